"""The log of a training run, readable while it goes on: JSON lines, one record for each step."""
