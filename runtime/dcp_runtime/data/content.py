"""Fingerprints of rows, by which ranks notice that they read different data.

Fingerprints guard against mistakes, not against attacks: they are fast, and not cryptographic.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np

from dcp_dsl.arrays import Ints

SHOWN_ROWS = 8
"""Rows whose numbers a message shows."""

_MASK = 2**64 - 1
_FACTOR = 0x9E3779B97F4A7C15  # odd, with bits all over


def describe_content(
    rows: Sequence[int], num_targets: int, tokens: Ints, targets: Ints, positions: Ints
) -> str:
    """Return a line with the rows of a batch and a fingerprint of all that ranks train on."""
    shown = ", ".join(map(str, rows[:SHOWN_ROWS])) or "none"
    if len(rows) > SHOWN_ROWS:
        shown += f", ... ({len(rows)} rows)"
    numbers = np.array([num_targets, *rows])
    return f"rows {shown} (fingerprint {fingerprint(numbers, tokens, targets, positions):016x})"


def fingerprint(*arrays: Ints) -> int:
    """Return a number of 64 bits that differs if one of the arrays does, almost certainly.

    >>> a, b = np.array([1, 2]), np.array([2, 1])
    >>> fingerprint(a, b) == fingerprint(a, b), fingerprint(a, b) == fingerprint(b, a)
    (True, False)
    """
    value = 0
    for values in arrays:
        # A sum of products modulo 2**64: several times faster than any hash of bytes.
        count = len(values)
        total = int(np.dot(values, _weights(max(1, count - 1).bit_length())[:count]))
        value = ((value + count) * _FACTOR + total) & _MASK
    return value


@cache
def _weights(bits: int) -> Ints:
    """Return odd numbers at random, the same on all ranks, int64 ``[2**bits]``."""
    weights: Ints = np.random.default_rng(0).integers(0, 2**63, 2**bits, dtype=np.int64) | 1
    return weights
