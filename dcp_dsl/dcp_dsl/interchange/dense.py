"""Every pair as a boolean."""

import numpy as np

from dcp_dsl.errors import ExchangeError
from dcp_dsl.forms.slabs import Slabs
from dcp_dsl.interchange.export import Export
from dcp_dsl.interchange.runs import Runs, row_runs, slabs_of_rows

MAX_TOKENS = 2**15  # 1 GiB


def to_dense(slabs: Slabs) -> Export:
    """Write `mask`, bool ``[n, n]``; entry (q, k) says whether query q sees key k.

    Raises:
        ExchangeError: X304 beyond `MAX_TOKENS`.
    """
    n = slabs.num_tokens
    if n > MAX_TOKENS:
        raise ExchangeError(
            f"dense: {n:_} tokens make {n * n:_} booleans; a dense mask holds at most "
            f"{MAX_TOKENS:_} tokens, use a block format such as `flex` or `magi`",
            "X304",
        )
    runs = row_runs(slabs)
    steps = np.zeros((n, n + 1), np.int8)
    steps[runs.line, runs.lo] += 1  # runs of a row neither overlap nor touch: no place twice
    steps[runs.line, runs.hi] -= 1
    mask = np.cumsum(steps, axis=1, dtype=np.int8)[:, :n].astype(bool)
    return Export("dense", n, {"mask": mask})


def from_dense(export: Export) -> Slabs:
    """Read `mask`: bool or integers 0 and 1, ``[n, n]``."""
    n = export.num_tokens
    mask = export.integers("mask", n, n)
    if not ((mask == 0) | (mask == 1)).all():
        raise ExchangeError("dense: expected booleans or 0 and 1 in `mask`")
    steps = np.diff(mask, axis=1, prepend=0, append=0)
    line, lo = np.nonzero(steps == 1)
    return slabs_of_rows(Runs(n, line, lo, np.nonzero(steps == -1)[1]))
