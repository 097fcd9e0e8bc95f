"""Give users a checked file as one value: its masks, its samples, the data sets they serve."""
