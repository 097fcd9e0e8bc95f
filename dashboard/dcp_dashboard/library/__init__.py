"""Plan files of the served folder, each parsed once, and the figures that are computed at once."""
