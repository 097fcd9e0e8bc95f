"""Evaluate a mask pair by pair with numpy: its slow, obvious meaning."""

import numpy as np

from dcp_dsl.arrays import Bools
from dcp_dsl.budget import Budget
from dcp_dsl.core.cross import Rectangle
from dcp_dsl.core.frame import Frame
from dcp_dsl.core.mask import Mask
from dcp_dsl.core.predicate import Predicate
from dcp_dsl.core.sample import Sample
from dcp_dsl.errors import DatasetError
from dcp_dsl.symbolic.intervals import Grid

MAX_TOKENS = 2**15  # 1 GiB of pairs
MAX_STEPS = 2**40  # what finding segments may cost: any number
PAIRS_AT_ONCE = 2**21  # rows are evaluated in bunches of about so many pairs, to bound memory


def dense_mask(mask: Mask, sample: Sample, *, budget: Budget | None = None) -> Bools:
    """Evaluate a mask on every pair of a sample.

    The reference for all other forms; O(n^2) time and result.

    Args:
        mask: any mask of a spec.
        sample: its columns and length n.
        budget: most steps (one numpy operation on one pair) to take; without it, any number.

    Returns:
        bool ``[queries, keys]``, ``[n, n]`` without `@keys`: whether query q sees key k.

    Raises:
        DatasetError: if the sample lacks a column, its layout does not fill it, or it is longer
            than `MAX_TOKENS`.
        SpecError: for constants out of range (E111).
        OverBudget: if the budget is used up.

    >>> from dcp_dsl import Spec
    >>> band = Spec.from_text("mask band = causal and q - k < 2").mask("band")
    >>> dense_mask(band, Sample(length=3)).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    mask.require(sample)
    queries = keys = size = sample.length
    core, found = mask.core, None
    if mask.keys is not None:
        found = Rectangle.of(core, mask.keys, sample.columns, queries)
        keys, size, core = found.num_kv, found.size, found.cut(core)
    if max(queries, keys) > MAX_TOKENS:
        raise DatasetError(
            f"a dense mask of {max(queries, keys):_} tokens is too large; expected at most "
            f"{MAX_TOKENS:_}, or use `mask.bind(sample)`"
        )
    result = np.zeros((queries, keys), np.bool_)
    if result.size == 0:
        return result
    frame = Frame.of(size, sample.columns, Budget(MAX_STEPS), found)
    decide = Predicate.of(core, frame, is_symbolic=False)
    shift = 0 if found is None else found.first_row
    step = max(1, PAIRS_AT_ONCE // keys)
    for begin in range(max(0, -shift), queries, step):
        end = min(begin + step, queries)
        rows = begin + shift, end + shift
        result[begin:end] = decide(Grid.of_pairs(rows, (0, keys), budget))[1]
    return result
