"""Which rows share a batch, and in which order batches come: the same on every rank, every time."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import DatasetError, pack
from dcp_runtime.data.choices import Packing

Batches: TypeAlias = tuple[tuple[int, ...], ...]


def pack_epoch(
    rows: Sequence[int], lengths: Sequence[int], packing: Packing, epoch: int
) -> Batches:
    """Give the rows of every batch of one epoch; each row is in exactly one.

    Args:
        rows: row numbers that take part.
        lengths: tokens of each of them, at most the budget.
        packing: how.
        epoch: counts from 0; matters only to a shuffle.

    Raises:
        DatasetError: if a row exceeds the budget.

    >>> pack_epoch([0, 1, 4], [3, 5, 2], Packing(7), epoch=0)
    ((0,), (1, 4))
    """
    rng = np.random.default_rng([packing.seed, epoch])
    order = rng.permutation(len(rows)) if packing.shuffle else np.arange(len(rows))
    packed = pack([int(lengths[i]) for i in order], packing.token_budget, order=packing.order)
    batches = [tuple(int(rows[order[i]]) for i in batch) for batch in packed]
    if packing.drop_last:
        batches = batches[:-1]
    if packing.shuffle and packing.order == "decreasing":
        batches = [batches[i] for i in rng.permutation(len(batches))]
    return tuple(batches)


def check_batches(
    batches: Sequence[Sequence[int]], lengths: NDArray[np.int64], budget: int
) -> None:
    """Check the batches that a user chose.

    Raises:
        DatasetError: if one names a row that is not there, or several rows exceed the budget.
    """
    for number, rows in enumerate(batches):
        for row in rows:
            if not 0 <= row < len(lengths):
                raise DatasetError(
                    f"batches[{number}] names row {row}; the data set has {len(lengths)} rows"
                )
        total = int(lengths[list(rows)].sum())
        if total > budget and len(rows) > 1:
            raise DatasetError(
                f"batches[{number}] has {total} tokens, the token budget is {budget}; give fewer "
                "rows or raise the budget"
            )
