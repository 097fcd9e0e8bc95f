"""Read real data sets: files, rows, columns of lists as flat arrays, samples in batches."""
