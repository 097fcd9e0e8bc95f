"""Names of the types of arrays."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Indices: TypeAlias = NDArray[np.int32]
