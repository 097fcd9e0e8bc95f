"""Checked files as values: masks, samples, and the data sets that they serve."""
