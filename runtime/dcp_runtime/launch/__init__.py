"""Start one process per rank, run jobs in them, and measure the machine."""
