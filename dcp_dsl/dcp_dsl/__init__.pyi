from .claims.guard import Guard
from .claims.reach import Reach
from .core.mask import Mask, Stack
from .core.per_token import TokenPaths, dense_mask, token_paths
from .core.sample import Sample
from .data.dataset import Dataset, pack, read_dataset, row_name
from .errors import DatasetError, DCPError, ExchangeError, printable
from .forms.form import Form
from .forms.slabs import Slabs
from .forms.sparsity import BlockSparsity, block_sparsity
from .interchange.formats import export_mask, import_mask
from .pictures.picture import Picture, preview
from .specs.attachment import Attachment
from .specs.spec import Spec, check, check_report, load, sample_from_argument
from .syntax.diagnostics import Diagnostic, SpecError, did_you_mean
from .syntax.source import format_source

__all__ = [
    "Attachment",
    "BlockSparsity",
    "DCPError",
    "Dataset",
    "DatasetError",
    "Diagnostic",
    "ExchangeError",
    "Form",
    "Guard",
    "Mask",
    "Picture",
    "Reach",
    "Sample",
    "Slabs",
    "Spec",
    "SpecError",
    "Stack",
    "TokenPaths",
    "block_sparsity",
    "check",
    "check_report",
    "dense_mask",
    "did_you_mean",
    "export_mask",
    "format_source",
    "import_mask",
    "load",
    "pack",
    "preview",
    "printable",
    "read_dataset",
    "row_name",
    "sample_from_argument",
    "token_paths",
]
