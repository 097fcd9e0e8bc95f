"""Build whole plans, check every invariant, and write plans to files and messages."""
