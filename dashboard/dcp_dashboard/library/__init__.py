"""Plan files of the served folder; each is parsed once, and its figures are computed then."""
