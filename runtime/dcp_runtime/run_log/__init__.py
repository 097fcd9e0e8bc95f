"""A run that one can watch: one record per training step, in a file of JSON lines."""
