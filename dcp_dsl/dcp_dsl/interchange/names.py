"""The formats that masks are written in: a table without numpy, for which no help should wait."""

from typing import NamedTuple


class Format(NamedTuple):
    """A format of an attention kernel.

    Attributes:
        meaning: what a file holds.
        module: the module beside this one with `to_NAME`, and `from_NAME` if files are read.
        is_read: whether masks are read back.
        has_blocks: whether `to_NAME` takes any form and an `ExportConfig`; else it takes slabs.
        may_cross: whether keys may be another sequence than the queries.
    """

    meaning: str
    module: str
    is_read: bool = False
    has_blocks: bool = False
    may_cross: bool = True


_TABLES = "block tables and a mask_mod, as a .py file with an .npz file beside it"

FORMATS = {
    "dense": Format("booleans", "lines", is_read=True),
    "dcp": Format("key ranges per row", "lines", is_read=True, may_cross=False),
    "flashmask": Format("hidden rows per key", "lines", is_read=True, may_cross=False),
    "magi": Format("slices with slanted ends", "slices", is_read=True),
    "varlen": Format("calls of a plain flash kernel", "slices"),
    "flex": Format(_TABLES, "block_sparse", has_blocks=True),
    "flash4": Format(_TABLES, "block_sparse", has_blocks=True),
}
"""Formats by name."""
READABLE = tuple(name for name, each in FORMATS.items() if each.is_read)
"""Formats that are read as well."""
