"""Slabs turned into dense arrays, slowly."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from dcp_dsl import Slabs


def _paint(slabs: Slabs) -> NDArray[np.bool_]:
    """Paint slabs row by row and fail if two of them overlap or a row of one is empty."""
    seen = np.zeros((slabs.num_tokens, slabs.num_tokens), np.int64)
    for q0, q1, k0, k1, a, b in slabs.table().tolist():
        assert q0 < q1
        for q in range(q0, q1):
            first, last = k0 + a * (q - q0), k1 + b * (q - q0)
            assert 0 <= first < last <= slabs.num_tokens
            seen[q, first:last] += 1
    assert seen.max(initial=0) <= 1, "slabs overlap"
    return seen.astype(bool)


@pytest.fixture(scope="session")
def paint() -> Callable[[Slabs], NDArray[np.bool_]]:
    return _paint
