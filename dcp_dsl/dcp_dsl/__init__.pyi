from .arrays import readonly
from .attachment import Attachment
from .blocks import block_sparsity
from .conversion import as_rows, as_slabs
from .dataset import Dataset, read_dataset
from .diagnostics import Diagnostic, Edit, Fix, did_you_mean
from .errors import DatasetError, DCPError, ExchangeError, SpecError
from .form import BlockCounts, Form
from .form_items import form_of, items_of
from .formatter import format_source
from .guard import Guard
from .interchange.block_tables import BlockTables, build_block_tables
from .interchange.difference import MaskDifference, find_difference
from .interchange.export import Export, ExportConfig
from .interchange.export_file import read_export, write_export
from .interchange.formats import export_mask, import_mask
from .interchange.mask_mod import MaskMod, build_mask_mod
from .interchange.varlen import VarlenCall, varlen_calls
from .language_server.completion import Proposal, complete_at
from .language_server.hover import describe_at, example_call
from .mask import Mask
from .mask_algebra import (
    MaskComparison,
    compare_masks,
    implies,
    intersect,
    is_empty,
    is_equal,
    subtract,
    unite,
)
from .oracle import dense_mask
from .output_file import check_writable, make_folder, replacing
from .packing import pack
from .parser import Program, parse
from .pictures.picture import Picture
from .pictures.preview import preview
from .placed_form import PlacedForm
from .report import Report, Verdict
from .rows import Rows
from .sample import Sample
from .sample_argument import sample_from_argument
from .slabs import Slabs
from .sparsity import BatchShape, BlockKind, BlockSparsity
from .spec import Spec, check, check_report, load
from .stack import HeadError, HeadMask, Stack, StackLayer
from .strided import Strided, StridedPart
from .tiles import Tiles
from .transposed import Columns

__all__ = [
    "Attachment",
    "BatchShape",
    "BlockCounts",
    "BlockKind",
    "BlockSparsity",
    "BlockTables",
    "Columns",
    "DCPError",
    "Dataset",
    "DatasetError",
    "Diagnostic",
    "Edit",
    "ExchangeError",
    "Export",
    "ExportConfig",
    "Fix",
    "Form",
    "Guard",
    "HeadError",
    "HeadMask",
    "Mask",
    "MaskComparison",
    "MaskDifference",
    "MaskMod",
    "Picture",
    "PlacedForm",
    "Program",
    "Proposal",
    "Report",
    "Rows",
    "Sample",
    "Slabs",
    "Spec",
    "SpecError",
    "Stack",
    "StackLayer",
    "Strided",
    "StridedPart",
    "Tiles",
    "VarlenCall",
    "Verdict",
    "as_rows",
    "as_slabs",
    "block_sparsity",
    "build_block_tables",
    "build_mask_mod",
    "check",
    "check_report",
    "check_writable",
    "compare_masks",
    "complete_at",
    "dense_mask",
    "describe_at",
    "did_you_mean",
    "example_call",
    "export_mask",
    "find_difference",
    "form_of",
    "format_source",
    "implies",
    "import_mask",
    "intersect",
    "is_empty",
    "is_equal",
    "items_of",
    "load",
    "make_folder",
    "pack",
    "parse",
    "preview",
    "read_dataset",
    "read_export",
    "readonly",
    "replacing",
    "sample_from_argument",
    "subtract",
    "unite",
    "varlen_calls",
    "write_export",
]
