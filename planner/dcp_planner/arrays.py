"""Names for arrays, and records whose columns are checked and read-only."""

from typing import Annotated, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import readonly

Ints: TypeAlias = NDArray[np.int64]
Indices: TypeAlias = NDArray[np.int32]
Floats: TypeAlias = NDArray[np.float64]
IntTable: TypeAlias = Annotated[Ints, 2]
IndexTable: TypeAlias = Annotated[Indices, 2]
FloatTable: TypeAlias = Annotated[Floats, 2]
"""Arrays of two dimensions, for compiled functions, whose types come from their annotations."""

Column: TypeAlias = tuple[type[np.generic], tuple[int | None, ...]]
"""Type and shape of a column; ``None`` stands for any length."""


def freeze_columns(record: object, **columns: Column) -> None:
    """Check the columns of a frozen dataclass and make them read-only; for ``__post_init__``.

    Raises:
        ValueError: if a column has another type or shape.
    """
    for name, (dtype, shape) in columns.items():
        value = readonly(f"{type(record).__name__}.{name}", getattr(record, name), dtype, shape)
        object.__setattr__(record, name, value)
