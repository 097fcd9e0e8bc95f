from .arrays import readonly
from .claims.guard import Guard
from .core.mask import Mask
from .core.sample import Sample
from .core.stack import HeadError, Stack
from .data.dataset import Dataset, read_dataset
from .data.packing import pack
from .errors import DatasetError, DCPError, ExchangeError
from .forms.algebra import (
    compare_masks,
    implies,
    intersect,
    is_empty,
    is_equal,
    subtract,
    unite,
)
from .forms.blocks import block_sparsity
from .forms.conversion import as_rows, as_slabs
from .forms.form import Form, PlacedForm
from .forms.items import form_of, items_of
from .forms.rows import Columns, Rows
from .forms.slabs import Slabs
from .forms.sparsity import BatchShape, BlockKind, BlockSparsity
from .forms.strided import Strided, StridedPart
from .forms.tiles import Tiles
from .interchange.block_sparse import MaskMod, build_block_tables, build_mask_mod
from .interchange.export import Export, ExportConfig, read_export, write_export
from .interchange.formats import export_mask, import_mask
from .interchange.runs import find_difference
from .interchange.varlen import varlen_calls
from .language_server.completion import complete_at
from .language_server.hover import describe_at, example_call
from .oracle.dense import dense_mask
from .pictures.picture import Picture, preview
from .specs.attachment import Attachment
from .specs.sample_argument import sample_from_argument
from .specs.spec import Spec, check, check_report, load
from .syntax.diagnostics import Diagnostic, SpecError, did_you_mean
from .syntax.formatter import format_source
from .syntax.parser import Program, parse

__all__ = [
    "Attachment",
    "BatchShape",
    "BlockKind",
    "BlockSparsity",
    "Columns",
    "DCPError",
    "Dataset",
    "DatasetError",
    "Diagnostic",
    "ExchangeError",
    "Export",
    "ExportConfig",
    "Form",
    "Guard",
    "HeadError",
    "Mask",
    "MaskMod",
    "Picture",
    "PlacedForm",
    "Program",
    "Rows",
    "Sample",
    "Slabs",
    "Spec",
    "SpecError",
    "Stack",
    "Strided",
    "StridedPart",
    "Tiles",
    "as_rows",
    "as_slabs",
    "block_sparsity",
    "build_block_tables",
    "build_mask_mod",
    "check",
    "check_report",
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
    "pack",
    "parse",
    "preview",
    "read_dataset",
    "read_export",
    "readonly",
    "sample_from_argument",
    "subtract",
    "unite",
    "varlen_calls",
    "write_export",
]
