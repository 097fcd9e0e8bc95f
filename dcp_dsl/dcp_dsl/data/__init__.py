"""Read real data sets: their files, their columns, and samples packed into batches."""
