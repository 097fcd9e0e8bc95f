"""Read and write `.dcpm` texts: tokens, the syntax tree, diagnostics and the formatter."""
