from .algebra import compare_masks, implies, intersect, is_empty, is_equal, subtract, unite
from .conversion import as_rows, as_slabs
from .form import PlacedForm
from .items import form_of, items_of
from .rows import Columns, Rows
from .sparsity import BatchShape, BlockKind
from .strided import Strided, StridedPart
from .tiles import Tiles

__all__ = [
    "BatchShape",
    "BlockKind",
    "Columns",
    "PlacedForm",
    "Rows",
    "Strided",
    "StridedPart",
    "Tiles",
    "as_rows",
    "as_slabs",
    "compare_masks",
    "form_of",
    "implies",
    "intersect",
    "is_empty",
    "is_equal",
    "items_of",
    "subtract",
    "unite",
]
