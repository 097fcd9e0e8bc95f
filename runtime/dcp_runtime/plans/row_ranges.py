"""Masks inside rectangles of the attention matrix: the keys that each row of queries sees.

`cut_slabs` cuts slabs to the rectangles first and expands them to rows last, in a few passes over
flat arrays: nothing loops over rows, slabs or rectangles. `rasterise_mask` evaluates other forms
pair by pair: a dilated window, a tree or a cache that drops keys has hundreds of ranges on a row,
which would cost more than the bits that a kernel reads in the end.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import Slabs
from dcp_dsl.arrays import Indices, Ints
from dcp_dsl.forms import PlacedForm


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """Rectangles of the attention matrix: rows ``[row_start, row_end)``, keys ``[lo, hi)``.

    Sorted by `row_start`; windows that share rows share all of them. All int64 ``[N]``, packed.
    """

    row_start: Ints
    row_end: Ints
    lo: Ints
    hi: Ints


@dataclass(frozen=True, slots=True, eq=False)
class CutRanges:
    """Visible keys inside windows: interval i says that `row[i]` sees ``[lo[i], hi[i])``.

    Sorted by (window, row, lo); the intervals of a row neither overlap nor touch. All int64
    ``[I]``, packed.
    """

    window: Ints
    row: Ints
    lo: Ints
    hi: Ints


def run_numbers(counts: Ints) -> tuple[Ints, Ints]:
    """Return the run of each element of runs of some lengths, and its place within the run.

    >>> run, place = run_numbers(np.array([2, 0, 3]))
    >>> run.tolist(), place.tolist()
    ([0, 0, 2, 2, 2], [0, 1, 0, 1, 2])
    """
    run = np.repeat(np.arange(len(counts)), counts)
    starts = np.cumsum(counts) - counts
    return run, np.arange(len(run)) - np.repeat(starts, counts)


def cut_slabs(slabs: Slabs, windows: Windows) -> CutRanges:
    """Return the visible keys of every row of every window.

    Cost: O(slabs times windows that share rows + intervals), times log intervals where several
    slabs meet in one window.

    >>> causal = Slabs(4, [0], [4], [0], [1], [0], [1])
    >>> window = Windows(*np.array([[2], [4], [1], [3]]))
    >>> cut = cut_slabs(causal, window)
    >>> cut.row.tolist(), cut.lo.tolist(), cut.hi.tolist()
    ([2, 3], [1, 1], [3, 3])
    """
    slab, window = _pairs_that_meet(slabs, windows)
    q_start = slabs.q_start[slab]
    first = np.maximum(windows.row_start[window], q_start)
    end = np.minimum(windows.row_end[window], slabs.q_end[slab])
    start_slope, end_slope = slabs.start_slope[slab], slabs.end_slope[slab]
    # Ends of the slab at the first row that it shares with the window.
    lo_first = slabs.kv_start[slab] + start_slope * (first - q_start)
    hi_first = slabs.kv_end[slab] + end_slope * (first - q_start)
    lo_window, hi_window = windows.lo[window], windows.hi[window]
    pair, moved = run_numbers(end - first)
    lo = np.maximum(lo_first[pair] + start_slope[pair] * moved, lo_window[pair])
    hi = np.minimum(hi_first[pair] + end_slope[pair] * moved, hi_window[pair])
    row, window = first[pair] + moved, window[pair]
    seen = lo < hi
    if not seen.all():
        window, row, lo, hi = window[seen], row[seen], lo[seen], hi[seen]
    return _merged(CutRanges(window, row, lo, hi))


def _pairs_that_meet(slabs: Slabs, windows: Windows) -> tuple[Ints, Ints]:
    """Return the pairs (slab, window) that may share a visible pair, sorted by (window, slab)."""
    first_window = np.flatnonzero(np.diff(windows.row_start, prepend=-1))  # of each run of rows
    run_start, run_end = windows.row_start[first_window], windows.row_end[first_window]
    run_size = np.diff(first_window, append=len(windows.row_start))
    first_run = np.searchsorted(run_end, slabs.q_start, side="right")
    last_run = np.searchsorted(run_start, slabs.q_end, side="left")
    slab, place = run_numbers(np.maximum(last_run - first_run, 0))
    run = first_run[slab] + place
    pair, place = run_numbers(run_size[run])
    slab, window = slab[pair], first_window[run[pair]] + place
    q_start = slabs.q_start[slab]
    first = np.maximum(windows.row_start[window], q_start)
    last = np.minimum(windows.row_end[window], slabs.q_end[slab]) - 1
    low = slabs.kv_start[slab] + slabs.start_slope[slab] * (first - q_start)
    high = slabs.kv_end[slab] + slabs.end_slope[slab] * (last - q_start)
    meets = np.flatnonzero((low < windows.hi[window]) & (high > windows.lo[window]))
    order = meets[np.argsort(window[meets], kind="stable")]
    return slab[order], window[order]


def _merged(cut: CutRanges) -> CutRanges:
    """Sort intervals and join those that touch: a sink that meets its window is one range."""
    if not len(cut.row):
        return cut
    is_next = (np.diff(cut.window) > 0) | (np.diff(cut.row) > 0)
    if not is_next.all():
        order = np.lexsort((cut.lo, cut.row, cut.window))
        cut = CutRanges(cut.window[order], cut.row[order], cut.lo[order], cut.hi[order])
        is_next = (np.diff(cut.window) > 0) | (np.diff(cut.row) > 0)
    opens = np.append(True, is_next | (cut.lo[1:] != cut.hi[:-1]))
    if opens.all():
        return cut
    closes = np.append(opens[1:], True)
    return CutRanges(cut.window[opens], cut.row[opens], cut.lo[opens], cut.hi[closes])


@dataclass(frozen=True, slots=True, eq=False)
class RasterisedMask:
    """The mask of a rectangle, trimmed to the keys from the first to the last that a row sees.

    Attributes:
        low, high: these keys, packed.
        pairs: visible pairs.
        ranges: int32 ``[2, most, rows]``, starts and ends of each row's ranges counted from `low`,
            ``[0, 0)`` where a row has fewer; ``None`` if every pair is visible, or a row has more.
        bits: uint8, packed rows; ``None`` if every pair is visible, or `ranges` say it.
    """

    low: int
    high: int
    pairs: int
    ranges: Indices | None = None
    bits: NDArray[np.uint8] | None = None


def rasterise_mask(
    form: PlacedForm, queries: tuple[int, int], keys: tuple[int, int], most: int
) -> RasterisedMask | None:
    """Paint one rectangle; ``None`` if no pair of it is visible. O(pairs of the rectangle)."""
    seen = form.tile(*queries, *keys)
    met = np.flatnonzero(seen.any(axis=0))
    if not met.size:
        return None
    first, last = int(met[0]), int(met[-1]) + 1
    seen = np.ascontiguousarray(seen[:, first:last])
    pairs = int(np.count_nonzero(seen))
    place = keys[0] + first, keys[0] + last, pairs
    if pairs == seen.size:
        return RasterisedMask(*place)
    opens = seen.copy()
    opens[:, 1:] &= ~seen[:, :-1]
    counts = np.count_nonzero(opens, axis=1)
    if counts.max() > most:
        return RasterisedMask(*place, bits=np.packbits(seen, axis=1).reshape(-1))
    closes = seen.copy()
    closes[:, :-1] &= ~seen[:, 1:]
    row, start = np.nonzero(opens)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    ranges = np.zeros((2, most, len(seen)), np.int32)
    ranges[0, nth, row] = start
    ranges[1, nth, row] = np.nonzero(closes)[1] + 1
    return RasterisedMask(*place, ranges=ranges)
