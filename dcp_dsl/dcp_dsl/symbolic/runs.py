"""Runs of keys on which a function of the key rises or falls, for comparisons with it.

On a run on which g rises, the keys with ``g(k) <= t`` are its first ones. How far they reach is a
function of t, which changes at the *levels* of the run. Where g falls, -g is used instead.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dcp_dsl.arrays import Bools, Ints, expand
from dcp_dsl.symbolic.piecewise import Piecewise, sorted_unique

LEAST = -(2**60)  # far below all numbers


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """How many keys of each run have values up to t; `sign * function` always rises.

    Attributes:
        levels: int64 ``[L]``, values at which the prefix changes, rising in each run; the first
            one of a run is smaller than all numbers.
        ends: int64 ``[L]``, end of the prefix with values up to the level.
        slopes: int64 ``[L]``, growth of the end per unit of t behind the level, 0 or 1.
        values: int64 ``[V]``, the distinct levels, rising.
        keys: int64 ``[L]``, ``run * (V + 1) + index of the level in values``; empty if every run
            has all of them.
    """

    levels: Ints
    ends: Ints
    slopes: Ints
    values: Ints
    keys: Ints


@dataclass(frozen=True, eq=False)
class Runs:
    """Runs of keys ``[start, end)`` in order.

    Attributes:
        start, end: int64 ``[R]``, keys.
        sign: int64 ``[R]``, 1 where the function rises, -1 where it falls.
        pieces: of the function: first key, end, value and slope, both times `sign`, and run.
    """

    start: Ints
    end: Ints
    sign: Ints
    pieces: tuple[Ints, ...]

    @classmethod
    def of(cls, function: Piecewise, breaks: Ints) -> "Runs":
        """Cut a function into runs; none goes past a break, given as rising positions."""
        if len(breaks):
            function = function.cut(breaks)
        kept = function.is_defined
        starts, ends = function.starts[kept], (function.starts + function.lengths)[kept]
        values, slopes = function.values[kept], function.slopes[kept]
        if len(starts) == 0:
            none = np.empty(0, np.int64)
            return cls(none, none, none, (none,) * 5)
        # the slope of a single key means nothing: call it 0
        slopes = np.where(ends - starts > 1, slopes, 0)
        is_new = _run_starts(starts, ends, values, slopes, breaks)
        begin = np.flatnonzero(is_new)
        run = np.cumsum(is_new) - 1
        last = np.append(begin[1:], len(starts)) - 1
        final = values[last] + slopes[last] * (ends[last] - starts[last] - 1)
        sign = np.where(final < values[begin], -1, 1)
        pieces = starts, ends, sign[run] * values, sign[run] * slopes, run
        return cls(starts[begin], ends[last], sign, pieces)

    @cached_property
    def table(self) -> Levels:
        """The levels of all runs, made on first use: too many runs are refused before."""
        starts, ends, values, slopes, _ = self.pieces
        if len(starts) == 1 and slopes[0] == 1:  # spares the way below: nearly every mask has one
            start, end, first = int(starts[0]), int(ends[0]), int(values[0])
            # a prefix of one key up to `first`, one key more per unit, all from the last one on
            levels = np.array([LEAST, first, first + end - start])
            reach, growth = np.array([start, start + 1, end]), np.array([0, 1, 0])
            return Levels(levels, reach, growth, levels, np.empty(0, np.int64))
        return self._of_levels(*_levels(*self.pieces))

    def _of_levels(self, run: Ints, levels: Ints, ends: Ints, slopes: Ints) -> Levels:
        start = self.start
        # where the lowest level of each run goes, among all levels
        first = np.searchsorted(run, np.arange(len(start))) + np.arange(len(start))
        is_level = np.ones(len(levels) + len(start), np.bool_)
        is_level[first] = False

        def behind(own: Ints | int, column: Ints) -> Ints:
            merged = np.empty(len(is_level), np.int64)
            merged[first], merged[is_level] = own, column
            return merged

        # each run gets a level below all numbers, at which its prefix is still empty
        levels, ends, slopes = behind(LEAST, levels), behind(start, ends), behind(0, slopes)
        size = len(levels) // len(start)
        values, every = levels[:size], np.empty(0, np.int64)
        # all runs have the same levels, as for `k % 64`: then no keys are needed to find them
        if size * len(start) == len(levels) and (levels.reshape(-1, size) == values).all():
            return Levels(levels, ends, slopes, values, every)
        run = behind(np.arange(len(start)), run)
        values = sorted_unique(levels)
        keys = run * (len(values) + 1) + np.searchsorted(values, levels)
        return Levels(levels, ends, slopes, values, keys)

    def __len__(self) -> int:
        return len(self.start)

    def count_levels(self, run: Ints, t: Ints) -> Ints:
        """Count the levels of all runs before a run, and those of the run up to t."""
        values, keys = self.table.values, self.table.keys
        rank = np.searchsorted(values, t, side="right")
        if not len(keys):
            return rank if len(self.start) == 1 else run * len(values) + rank
        # ranks go from 0 to V, so every run takes V + 1 numbers
        return np.searchsorted(keys, run * (len(values) + 1) + rank, side="left")


def _run_starts(starts: Ints, ends: Ints, values: Ints, slopes: Ints, breaks: Ints) -> Bools:
    """Mark the pieces that begin a run."""
    is_new = np.ones(len(starts), np.bool_)
    if len(starts) == 1:
        return is_new
    is_new[1:] = starts[1:] != ends[:-1]  # behind a gap where the function is undefined
    if len(breaks):
        is_new |= np.isin(starts, breaks)
    jumps = values[1:] - (values + slopes * (ends - starts - 1))[:-1]
    rises, falls = slopes > 0, slopes < 0
    # A stretch may rise or fall as a whole; one that does both is cut before every fall.
    bad_up, bad_down = falls.copy(), rises.copy()
    inner = ~is_new[1:]
    bad_up[1:] |= inner & (jumps < 0)
    bad_down[1:] |= inner & (jumps > 0)
    begin = np.flatnonzero(is_new)
    # one piece keeps such a stretch from rising as a whole, another from falling
    is_mixed = np.logical_or.reduceat(bad_up, begin) & np.logical_or.reduceat(bad_down, begin)
    if is_mixed.any():
        mixed = np.repeat(is_mixed, np.diff(np.append(begin, len(starts))))
        cut = bad_up.copy()
        cut[1:] |= falls[:-1]  # a falling piece is a run of its own
        is_new |= mixed & cut
    return is_new


def _levels(
    starts: Ints, ends: Ints, values: Ints, slopes: Ints, run: Ints
) -> tuple[Ints, Ints, Ints, Ints]:
    """Return (run, level, end, slope) of every change of the prefix; values rise in a run."""
    if (slopes > 1).any():  # steeper than 1: every key is a step of its own
        repeat = np.where(slopes > 1, ends - starts, 1)
        piece, inner = expand(0, repeat)
        values = values[piece] + slopes[piece] * inner
        single = slopes[piece] > 1
        starts = np.where(single, starts[piece] + inner, starts[piece])
        ends = np.where(single, starts + 1, ends[piece])
        slopes, run = np.where(single, 0, slopes[piece]), run[piece]
    is_unit = slopes == 1
    if not is_unit.any():
        levels, reach, growth = values, ends, slopes
    else:
        # A piece of slope 1 ends in a flat stretch, which begins behind its last value.
        levels = np.column_stack([values, values + is_unit * (ends - starts)]).ravel()
        reach = np.column_stack([np.where(is_unit, starts + 1, ends), ends]).ravel()
        growth = np.column_stack([slopes, np.zeros_like(slopes)]).ravel()
        run = np.repeat(run, 2)
    # Of equal levels of a run the last one counts, and a flat stretch only where it begins.
    is_final = np.append((levels[1:] > levels[:-1]) | (run[1:] != run[:-1]), True)
    if is_final.all():
        return run, levels, reach, growth
    return run[is_final], levels[is_final], reach[is_final], growth[is_final]
