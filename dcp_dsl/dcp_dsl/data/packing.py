"""Put samples into batches of at most so many tokens."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from dcp_dsl.errors import DatasetError


def pack(
    lengths: Sequence[int],
    token_budget: int,
    *,
    order: Literal["in_order", "decreasing"] = "in_order",
) -> tuple[tuple[int, ...], ...]:
    """Choose which samples share a batch.

    Args:
        lengths: tokens of each sample.
        token_budget: most tokens of a batch.
        order: ``"in_order"`` fills a batch until the next sample does not fit and keeps the order
            of the data set; ``"decreasing"`` takes the longest sample first and puts it into the
            first batch with room (fewer batches, at most 11/9 of the best number).

    Returns:
        Indices of the samples of each batch; every sample is in exactly one.

    Raises:
        DatasetError: if a sample alone exceeds the budget.

    >>> pack([3, 5, 2, 4], 7)
    ((0,), (1, 2), (3,))
    >>> pack([3, 5, 2, 4], 7, order="decreasing")
    ((1, 2), (3, 0))
    """
    sizes = [int(length) for length in lengths]
    for index, size in enumerate(sizes):
        if size > token_budget:
            raise DatasetError(
                f"sample {index} has {size} tokens, the token budget is {token_budget}; raise the "
                f"budget or leave the sample out"
            )
    if order == "in_order":
        return _in_order(sizes, token_budget)
    if order == "decreasing":
        return _decreasing(sizes, token_budget)
    raise ValueError(f"order: expected 'in_order' or 'decreasing', got {order!r}")


def _in_order(sizes: list[int], budget: int) -> tuple[tuple[int, ...], ...]:
    batches: list[list[int]] = []
    room = 0
    for index, size in enumerate(sizes):
        if not batches or size > room:
            batches.append([])
            room = budget
        batches[-1].append(index)
        room -= size
    return tuple(map(tuple, batches))


def _decreasing(sizes: list[int], budget: int) -> tuple[tuple[int, ...], ...]:
    """First fit: a batch's room is looked up with one vectorised comparison per sample."""
    batches: list[list[int]] = []
    room = np.zeros(len(sizes), np.int64)
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        fits = np.flatnonzero(room[: len(batches)] >= sizes[index])
        at = int(fits[0]) if len(fits) else len(batches)
        if at == len(batches):
            batches.append([])
            room[at] = budget
        batches[at].append(index)
        room[at] -= sizes[index]
    return tuple(map(tuple, batches))
