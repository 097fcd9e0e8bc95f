"""Hold the exact mask of one sample in its shortest form, count its blocks, compare masks."""
