from .arrays import readonly
from .blocks import block_sparsity
from .dataset import Dataset, read_dataset
from .diagnostics import Diagnostic, Edit, Fix
from .errors import DatasetError, DCPError, SpecError
from .formatter import format_source
from .mask import Mask
from .oracle import dense_mask
from .packing import pack
from .parser import Program, parse
from .pictures.picture import Picture
from .pictures.preview import preview
from .sample import Sample
from .sparsity import BatchShape, BlockKind, BlockSparsity, Slabs
from .spec import Attachment, Spec, check, load

__all__ = [
    "Attachment",
    "BatchShape",
    "BlockKind",
    "BlockSparsity",
    "DCPError",
    "Dataset",
    "DatasetError",
    "Diagnostic",
    "Edit",
    "Fix",
    "Mask",
    "Picture",
    "Program",
    "Sample",
    "Slabs",
    "Spec",
    "SpecError",
    "block_sparsity",
    "check",
    "dense_mask",
    "format_source",
    "load",
    "pack",
    "parse",
    "preview",
    "read_dataset",
    "readonly",
]
