"""The formats that masks are written in, by name; without numpy, for which no help should wait."""

MEANINGS = {
    "dense": "booleans", "dcp": "key ranges per row", "flashmask": "hidden rows per key",
    "magi": "slices with slanted ends", "varlen": "calls of a plain flash kernel",
    "flex": "block tables and a mask_mod, as a .py file with an .npz file beside it",
    "flash4": "block tables and a mask_mod, as a .py file with an .npz file beside it",
}  # fmt: skip
"""What a file of each format holds."""
FORMATS = tuple(MEANINGS)
READABLE = ("dense", "dcp", "flashmask", "magi")
"""Formats that are read as well."""
