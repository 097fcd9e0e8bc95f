"""Read data sets: files, rows, columns of lists as flat arrays; pack samples into batches."""
