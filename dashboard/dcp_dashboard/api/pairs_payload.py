"""The exact visible pairs of a part of the mask, in the wire format of `dcp_dashboard.api.columns`.

`dcp.pairs/1`. Header: `tokens`, the window `[first query, past the last, first key, past the
last]`. Column `bits` (u1): one bit a pair, queries after queries, each row padded to whole bytes,
most significant bit first, as `numpy.packbits` writes it.
"""

import numpy as np

from dcp_dashboard.api.columns import encode
from dcp_dashboard.library.folder import DashboardError
from dcp_planner import Plan

MAX_PAIRS = 1 << 24
"""Pairs of a window: two megabytes of bits."""

Window = tuple[int, int, int, int]


def read_window(text: str, num_tokens: int) -> Window:
    """Read ``"q0-q1-k0-k1"``, half-open ranges of tokens.

    Raises:
        DashboardError: if it is something else, lies outside the batch or is too large.

    >>> read_window("0-4-2-6", 8)
    (0, 4, 2, 6)
    """
    parts = text.split("-")
    if len(parts) != 4 or not all(part.isascii() and part.isdigit() for part in parts):
        raise DashboardError(f"expected tokens=q0-q1-k0-k1, four whole numbers, got {text[:80]!r}")
    q0, q1, k0, k1 = (int(part[:12]) for part in parts)
    if not (q0 < q1 <= num_tokens and k0 < k1 <= num_tokens):
        raise DashboardError(
            f"expected non-empty ranges inside {num_tokens:,} tokens, got queries {q0} to {q1} and "
            f"keys {k0} to {k1}"
        )
    if (q1 - q0) * (k1 - k0) > MAX_PAIRS:
        raise DashboardError(
            f"expected at most {MAX_PAIRS:,} pairs in one window, got {(q1 - q0) * (k1 - k0):,}; "
            "ask for fewer tokens"
        )
    return q0, q1, k0, k1


def pairs_payload(plan: Plan, window: Window) -> bytes:
    """Pack the mask of a window, taken from the plan's own form of the mask; O(pairs)."""
    visible = plan.mask_tile(*window)
    bits = np.packbits(visible, axis=1).ravel()
    return encode("dcp.pairs/1", {"tokens": list(window)}, {"bits": bits})
