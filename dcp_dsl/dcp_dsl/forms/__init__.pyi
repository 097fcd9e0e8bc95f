from .algebra import compare_masks, is_equal
from .conversion import as_rows, as_slabs, form_of, items_of, square_slabs
from .form import PlacedForm, num_keys, ranges_of_tile
from .parts import Parts, RegionPart, regions_of
from .slabs import Rows
from .sparsity import BatchShape, BlockKind

__all__ = [
    "BatchShape",
    "BlockKind",
    "Parts",
    "PlacedForm",
    "RegionPart",
    "Rows",
    "as_rows",
    "as_slabs",
    "compare_masks",
    "form_of",
    "is_equal",
    "items_of",
    "num_keys",
    "ranges_of_tile",
    "regions_of",
    "square_slabs",
]
