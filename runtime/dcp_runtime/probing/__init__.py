"""Find out which keys each query of a model really sees, and compare with a written mask."""
