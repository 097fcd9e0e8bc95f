"""Names of formats for the command line, which must not load numpy to print its help."""

FORMATS = ("dense", "dcp", "flashmask", "magi", "varlen", "flex", "flash4")
READABLE = ("dense", "dcp", "flashmask", "magi")
