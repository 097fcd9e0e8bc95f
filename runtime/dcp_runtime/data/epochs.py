"""Which rows share a batch, and in which order batches come: the same on every rank, every time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from dcp_dsl import pack

PackingOrder: TypeAlias = Literal["in_order", "decreasing"]
Batches: TypeAlias = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class EpochConfig:
    """How the rows of a data set become the batches of an epoch.

    Attributes:
        token_budget: most tokens of a batch.
        order: ``"in_order"`` closes a batch when the next row does not fit, ``"decreasing"`` packs
            tighter by taking the longest rows first.
        shuffle: whether every epoch has another order of rows (of batches, for ``"decreasing"``).
        seed: of the shuffles.
        drop_last: whether the last batch, which may be far from full, is left out.
    """

    token_budget: int
    order: PackingOrder = "in_order"
    shuffle: bool = False
    seed: int = 0
    drop_last: bool = False


def pack_epoch(
    rows: Sequence[int], lengths: Sequence[int], config: EpochConfig, epoch: int
) -> Batches:
    """Give the rows of every batch of one epoch; each row is in exactly one.

    Args:
        rows: row numbers that take part.
        lengths: tokens of each of them, at most the budget.
        config: how.
        epoch: counts from 0; matters only to a shuffle.

    Raises:
        DatasetError: if a row exceeds the budget.

    >>> pack_epoch([0, 1, 4], [3, 5, 2], EpochConfig(7), epoch=0)
    ((0,), (1, 4))
    """
    rng = np.random.default_rng([config.seed, epoch])
    order = rng.permutation(len(rows)) if config.shuffle else np.arange(len(rows))
    packed = pack([int(lengths[i]) for i in order], config.token_budget, order=config.order)
    batches = [tuple(int(rows[order[i]]) for i in batch) for batch in packed]
    if config.drop_last:
        batches = batches[:-1]
    if config.shuffle and config.order == "decreasing":
        batches = [batches[i] for i in rng.permutation(len(batches))]
    return tuple(batches)
