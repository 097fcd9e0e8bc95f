"""Plan a data set batch by batch."""
