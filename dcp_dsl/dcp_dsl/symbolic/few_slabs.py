"""Combine a handful of slabs one by one: the same answer as with whole arrays, without their cost.

An operation on arrays costs some microseconds however short they are, and combining two regions is
a hundred of them. Most masks have a dozen slabs, which plain integers do in a fraction of the time.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeAlias

Slab: TypeAlias = tuple[int, int, int, int, int, int]  # columns as in `Slabs`
Interval: TypeAlias = tuple[int, int, int, int]  # start, end, and the slopes of both


def sweep(slabs: Sequence[Slab], weights: Sequence[int], truth: Sequence[bool]) -> list[Slab]:
    """Give maximal slabs of what is visible: where `truth` holds for the sum of weights there.

    Args:
        slabs: none has an end before its start; those of one weight are disjoint.
        weights: one for each slab.
        truth: for each sum of weights.

    >>> causal, window = (0, 4, 0, 1, 0, 1), (0, 4, 0, 4, 1, 0)
    >>> sweep([causal, window], [1, 2], [False, False, False, True])
    [(0, 4, 0, 1, 1, 1)]
    """
    kept = [
        (slab, weight)
        for slab, weight in zip(slabs, weights, strict=True)
        if slab[0] < slab[1] and not _is_empty(slab)
    ]
    knots = sorted({row for slab, _ in kept for row in slab[:2]})
    done: list[Slab] = []
    growing: list[Slab] = []
    for begin, end in pairwise(knots):
        own = [(slab, weight) for slab, weight in kept if slab[0] <= begin < slab[1]]
        lines = [line for slab, weight in own for line in _lines(slab, weight, begin)]
        cuts = [begin, *_meetings(lines, begin, end), end]
        for row, next_row in pairwise(cuts):
            found = _intervals(lines, row - begin, next_row - row > 1, truth)
            growing = _glue(growing, row, next_row, found, done)
    return sorted(done + growing, key=lambda slab: (slab[0], slab[2]))


def _is_empty(slab: Slab) -> bool:
    q_start, q_end, kv_start, kv_end, low, high = slab
    down = q_end - q_start - 1
    return kv_start >= kv_end and kv_start + low * down >= kv_end + high * down


def _lines(slab: Slab, weight: int, row: int) -> Iterable[tuple[int, int, int]]:
    """Give (value at a row, slope, change of the sum) of both ends."""
    q_start, _, kv_start, kv_end, low, high = slab
    down = row - q_start
    return (kv_start + low * down, low, weight), (kv_end + high * down, high, -weight)


def _meetings(lines: Sequence[tuple[int, int, int]], begin: int, end: int) -> list[int]:
    """Give the rows to cut at so that ends of different slope meet on rows of their own."""
    rows = end - begin
    still = {value for value, slope, _ in lines if not slope}
    moving = {value for value, slope, _ in lines if slope}
    met = {value - other for value in still for other in moving if 0 <= value - other < rows}
    return sorted({begin + cut for at in met for cut in (at, at + 1) if 0 < cut < rows})


def _intervals(
    lines: Sequence[tuple[int, int, int]], down: int, is_tall: bool, truth: Sequence[bool]
) -> list[Interval]:
    """Give what is visible on the rows from `down` on; the slope of a single row counts as 0."""
    events: dict[tuple[int, int], int] = {}
    for value, slope, change in lines:
        key = (value + slope * down, slope if is_tall else 0)
        events[key] = events.get(key, 0) + change
    found = []
    total, first = 0, None
    for key in sorted(events):
        total += events[key]
        if truth[total] and first is None:
            first = key
        elif first is not None and not truth[total]:
            found.append((first[0], key[0], first[1], key[1]))
            first = None
    return found


def _glue(
    growing: list[Slab], row: int, next_row: int, found: list[Interval], done: list[Slab]
) -> list[Slab]:
    """Continue slabs from the rows above with what is visible on ``[row, next_row)``.

    A slab takes up rows as long as both ends make equal steps, from the top down; those that end
    move to `done`.
    """
    continued: list[Slab] = []
    taken: set[int] = set()
    for start, end, low, high in found:
        for index, (top, bottom, kv_start, kv_end, a, b) in enumerate(growing):
            down = bottom - top - 1
            step = start - kv_start - a * down, end - kv_end - b * down
            if bottom == row and 0 <= step[0] <= 1 and 0 <= step[1] <= 1:
                taken.add(index)
                break
        else:
            continued.append((row, next_row, start, end, low, high))
            continue
        if down and step != (a, b):
            done.append(growing[index])
            continued.append((row, next_row, start, end, low, high))
        elif next_row - row == 1 or (low, high) == step:
            continued.append((top, next_row, kv_start, kv_end, *step))
        else:  # only the first row belongs to the slab above
            done.append((top, row + 1, kv_start, kv_end, *step))
            slopes = (low, high) if next_row - row > 2 else (0, 0)
            continued.append((row + 1, next_row, start + low, end + high, *slopes))
    done += [slab for index, slab in enumerate(growing) if index not in taken]
    return continued
