"""Plan files of the served folder, and everything that is computed from each of them once."""
