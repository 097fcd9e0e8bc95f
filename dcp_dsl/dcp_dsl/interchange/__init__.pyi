from .block_sparse import BlockTables, build_block_tables, build_mask_mod, list_blocks
from .export import Export, ExportConfig, read_export, write_export
from .lines import find_difference
from .slices import varlen_calls

__all__ = [
    "BlockTables",
    "Export",
    "ExportConfig",
    "build_block_tables",
    "build_mask_mod",
    "find_difference",
    "list_blocks",
    "read_export",
    "varlen_calls",
    "write_export",
]
