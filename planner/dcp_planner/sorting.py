"""Sort rows by several integers at once."""

import math

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Ints

_MOST = 1 << 63


def order_by(*keys: NDArray[np.integer | np.bool_]) -> Ints:
    """Return the order of rows by their keys, the first key first; equal rows stay in order.

    Keys are at least 0. If they fit into one number of 63 bits with the row behind them, sorting
    that takes a fifth of the time of `np.lexsort`. O(n log n).

    >>> order_by(np.array([1, 0, 1]), np.array([5, 9, 4])).tolist()
    [1, 2, 0]
    """
    size = len(keys[0])
    spans = [int(key.max(initial=0)) + 1 for key in keys]
    if math.prod(spans, start=size) >= _MOST:
        return np.lexsort(keys[::-1])
    place = keys[0].astype(np.int64)
    for key, span in zip(keys[1:], spans[1:], strict=True):
        place = place * span + key
    return np.asarray(np.sort(place * size + np.arange(size)) % max(size, 1))
