from .block_sparse import MaskMod, build_block_tables, build_mask_mod
from .export import Export, ExportConfig, read_export, write_export
from .runs import find_difference
from .varlen import varlen_calls

__all__ = [
    "Export",
    "ExportConfig",
    "MaskMod",
    "build_block_tables",
    "build_mask_mod",
    "find_difference",
    "read_export",
    "varlen_calls",
    "write_export",
]
