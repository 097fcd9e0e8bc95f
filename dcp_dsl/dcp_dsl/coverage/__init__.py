"""Check every row of a real data set against the masks that a spec attaches to it."""
