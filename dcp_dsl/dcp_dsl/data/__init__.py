"""Real data sets under a spec: where rows are read from, how long they are, which are refused."""
