"""Facts about plans as numbers and sentences: waits, findings, comparisons; no browser."""
