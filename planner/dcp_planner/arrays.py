"""Names for arrays, those of two dimensions among them."""

from typing import Annotated, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Indices: TypeAlias = NDArray[np.int32]
Floats: TypeAlias = NDArray[np.float64]
IntTable: TypeAlias = Annotated[Ints, 2]
IndexTable: TypeAlias = Annotated[Indices, 2]
FloatTable: TypeAlias = Annotated[Floats, 2]
"""Arrays of two dimensions, for compiled functions, whose types come from their annotations."""
