"""Assign rows of the receive buffers to arriving blocks; reuse rows after their last read.

A span is the rows of one block from the time when they are taken to the time when they are freed.
"""

import numpy as np

from dcp_dsl.arrays import Ints, order_by
from dcp_planner.jit import compiled, inlined


def allocate_rows(group: Ints, taken: Ints, freed: Ints, rows: Ints) -> Ints:
    """Place spans of rows first-fit in order of their start, one buffer per group, from row 0.

    A span is taken from `taken` until before `freed`. Deterministic; O(N F) for F gaps in a buffer.
    """
    order, leaving = order_by(group, taken), order_by(group, freed)
    slot, gaps = np.zeros(len(group), np.int64), np.zeros((2, len(group)), np.int64)
    _place(group, taken, freed, rows, order, leaving, slot, gaps)
    return slot


@compiled
def _place(  # noqa: C901, PLR0913 - a compiled kernel
    group: Ints,
    taken: Ints,
    freed: Ints,
    rows: Ints,
    order: Ints,
    leaving: Ints,
    slot: Ints,
    scratch: Ints,
) -> None:
    # Gaps below `top` in the present buffer, ascending; all rows from `top` on are free.
    gap_at, gap_rows = scratch[0], scratch[1]
    gaps, top, out = 0, 0, 0
    for n in range(len(order)):
        i = order[n]
        if n == 0 or group[i] != group[order[n - 1]]:
            # Both orders sort by group first, so the spans of a group begin at the same place.
            gaps, top, out = 0, 0, n
        # Free what has left by now; `out` counts along the order of leaving.
        while out < len(leaving) and group[leaving[out]] == group[i]:
            j = leaving[out]
            if freed[j] > taken[i]:
                break
            at = 0
            while at < gaps and gap_at[at] < slot[j]:
                at += 1
            # Gaps that touch become one: a span takes its rows out of a single gap.
            free = rows[j]
            if at < gaps and slot[j] + free == gap_at[at]:
                free += gap_rows[at]
                gaps = _without(gap_at, gap_rows, gaps, at)
            if at > 0 and gap_at[at - 1] + gap_rows[at - 1] == slot[j]:
                gap_rows[at - 1] += free
            else:
                for k in range(gaps, at, -1):
                    gap_at[k], gap_rows[k] = gap_at[k - 1], gap_rows[k - 1]
                gap_at[at], gap_rows[at] = slot[j], free
                gaps += 1
            out += 1
        # The lowest gap that fits: rows high up stay free, so the buffer stays short.
        at = 0
        while at < gaps and gap_rows[at] < rows[i]:
            at += 1
        if at < gaps:
            slot[i] = gap_at[at]
            gap_at[at] += rows[i]
            gap_rows[at] -= rows[i]
            if gap_rows[at] == 0:
                gaps = _without(gap_at, gap_rows, gaps, at)
        elif gaps and gap_at[gaps - 1] + gap_rows[gaps - 1] == top:
            slot[i] = gap_at[gaps - 1]  # the last gap, and new rows behind it
            top = slot[i] + rows[i]
            gaps -= 1
        else:
            slot[i] = top
            top += rows[i]


@inlined
def _without(gap_at: Ints, gap_rows: Ints, gaps: int, at: int) -> int:
    """Take a gap out of the list of gaps; return how many are left."""
    for k in range(at, gaps - 1):
        gap_at[k], gap_rows[k] = gap_at[k + 1], gap_rows[k + 1]
    return gaps - 1


def find_shared_rows(
    group: Ints, taken: Ints, freed: Ints, slot: Ints, rows: Ints
) -> tuple[int, int] | None:
    """Find two spans of a group that share rows while both live, or ``None``.

    A span lives from `taken` up to and including `freed`. O(N log N + N L) for L spans that live at
    the same time in a group.
    """
    order = order_by(group, taken)
    live = np.zeros(len(group) + 1, np.int64)
    first, second = _find_clash(group, taken, freed, slot, rows, order, live)
    return None if first < 0 else (int(first), int(second))


@compiled
def _find_clash(
    group: Ints, taken: Ints, freed: Ints, slot: Ints, rows: Ints, order: Ints, live: Ints
) -> tuple[int, int]:
    count = 0
    for n in range(len(order)):
        i = order[n]
        if n == 0 or group[i] != group[order[n - 1]]:
            count = 0
        kept = 0
        for k in range(count):
            j = live[k]
            if freed[j] >= taken[i]:
                if slot[j] < slot[i] + rows[i] and slot[i] < slot[j] + rows[j]:
                    return j, i
                live[kept] = j  # spans that have ended drop out
                kept += 1
        live[kept] = i
        count = kept + 1
    return -1, -1
