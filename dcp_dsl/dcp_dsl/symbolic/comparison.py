"""Turn comparisons and lists into slabs: ``f(q) + g(k) <= 0``, ``k // 64 in q.chosen``.

On a run of keys where g rises, the keys with ``g(k) <= t`` are a prefix whose end is a function of
t. So g is cut into stretches on which it rises or falls.
"""

from dataclasses import dataclass

import numpy as np

from dcp_dsl.arrays import Bools, Ints
from dcp_dsl.symbolic.piecewise import (
    Bands,
    Piecewise,
    expand,
    limit_pieces,
    overlaps,
    sorted_unique,
)
from dcp_dsl.symbolic.region import MAX_CELLS, MAX_PAIRS, Region

MIRRORED = {"<=": ">=", "<": ">", ">=": "<=", ">": "<", "==": "==", "!=": "!="}
MAX_JOBS = MAX_CELLS // 2


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Runs of keys ``[start, end)`` in order, and how many of their keys have values up to t.

    Attributes:
        start, end: int64 ``[R]``, keys.
        sign: int64 ``[R]``, 1 where the function rises, -1 where it falls; levels are of
            ``sign * function``, which always rises.
        first: int64 ``[R+1]``, where the levels of each run lie in the arrays below.
        levels: int64 ``[L]``, values at which the prefix changes, rising in each run.
        ends: int64 ``[L]``, end of the prefix with values up to the level.
        slopes: int64 ``[L]``, growth of the end per unit of t behind the level, 0 or 1.
        values: int64 ``[V]``, the distinct levels, rising.
        keys: int64 ``[L]``, ``run * (V + 1) + index of the level in values``.
    """

    start: Ints
    end: Ints
    sign: Ints
    first: Ints
    levels: Ints
    ends: Ints
    slopes: Ints
    values: Ints
    keys: Ints

    @classmethod
    def of(cls, function: Piecewise, breaks: Ints) -> "Runs":
        """Cut a function into runs; none goes past a break, given as rising positions."""
        if len(breaks):
            function = function.cut(breaks)
        starts, ends, values, slopes = _defined_pieces(function)
        slopes = np.where(ends - starts > 1, slopes, 0)
        if len(starts) == 0:
            none = np.empty(0, np.int64)
            return cls(none, none, none, np.zeros(1, np.int64), none, none, none, none, none)
        is_new = _run_starts(starts, ends, values, slopes, breaks)
        begin = np.flatnonzero(is_new)
        run = np.cumsum(is_new) - 1
        last = np.append(begin[1:], len(starts)) - 1
        final = values[last] + slopes[last] * (ends[last] - starts[last] - 1)
        sign = np.where(final < values[begin], -1, 1)
        run_end = ends[last]
        steps = _levels(starts, ends, sign[run] * values, sign[run] * slopes, run)
        return cls._of_levels(starts[begin], run_end, sign, *steps)

    @classmethod
    def _of_levels(
        cls, start: Ints, end: Ints, sign: Ints, run: Ints, levels: Ints, ends: Ints, slopes: Ints
    ) -> "Runs":
        first = np.searchsorted(run, np.arange(len(start) + 1))
        if len(start) == 1:
            values, rank = levels, np.arange(len(levels))
        else:
            values = sorted_unique(levels)
            rank = np.searchsorted(values, levels)
        keys = run * (len(values) + 1) + rank
        return cls(start, end, sign, first, levels, ends, slopes, values, keys)

    def __len__(self) -> int:
        return len(self.start)

    def count_levels(self, run: Ints, t: Ints) -> Ints:
        """Count the levels of all runs before, and of this one up to t."""
        rank = np.searchsorted(self.values, t, side="right")
        if len(self.start) == 1:
            return rank
        return np.searchsorted(self.keys, run * (len(self.values) + 1) + rank, side="left")

    def ends_at(self, run: Ints, t: Ints) -> Ints:
        """Return the end of the run's keys with value up to t, its start if there is none."""
        at = self.count_levels(run, t) - 1
        is_before = at < self.first[run]
        at = np.maximum(at, 0)
        inside = self.ends[at] + self.slopes[at] * (t - self.levels[at])
        return np.where(is_before, self.start[run], inside)


def _defined_pieces(function: Piecewise) -> tuple[Ints, Ints, Ints, Ints]:
    starts, lengths, kept = function.starts, function.lengths, function.is_defined
    if kept.all():
        return starts, starts + lengths, function.values, function.slopes
    return starts[kept], (starts + lengths)[kept], function.values[kept], function.slopes[kept]


def _run_starts(starts: Ints, ends: Ints, values: Ints, slopes: Ints, breaks: Ints) -> Bools:
    """Mark the pieces that begin a run."""
    is_new = np.ones(len(starts), np.bool_)
    is_new[1:] = starts[1:] != ends[:-1]
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
    is_mixed = np.logical_or.reduceat(bad_up, begin) & np.logical_or.reduceat(bad_down, begin)
    if is_mixed.any():
        mixed = np.repeat(is_mixed, np.diff(np.append(begin, len(starts))))
        cut = bad_up.copy()
        cut[1:] |= falls[:-1]
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
        # A piece of slope 1 ends in a flat stretch.
        length = ends - starts
        levels = np.column_stack([values, values + np.where(is_unit, length - 1, 0)]).ravel()
        reach = np.column_stack([np.where(is_unit, starts + 1, ends), ends]).ravel()
        growth = np.column_stack([slopes, np.zeros_like(slopes)]).ravel()
        run = np.repeat(run, 2)
    # Of equal levels of a run the last one counts.
    is_final = np.append((levels[1:] != levels[:-1]) | (run[1:] != run[:-1]), True)
    if is_final.all():
        return run, levels, reach, growth
    return run[is_final], levels[is_final], reach[is_final], growth[is_final]


def compare(
    on_q: Piecewise, on_k: Piecewise, op: str, bands: Bands, *, max_jobs: int = MAX_JOBS
) -> Region:
    """Return the pairs where ``on_q(q) + on_k(k) op 0``; where either is undefined, no pair is in.

    Raises:
        TooManyPieces: if the exact answer has too many slabs.
    """
    n = on_q.num_tokens
    if on_k.is_constant:
        rows = on_q.solve(op, -int(on_k.values[0]))
        start, end, band = bands.cut_rows(*rows)
        return Region.rectangles(n, start, end, bands.key_start[band], bands.key_end[band])
    if on_q.is_constant:
        keys = on_k.solve(op, -int(on_q.values[0]))
        start, end, band = bands.cut_keys(*keys)
        return Region.rectangles(n, bands.row_start[band], bands.row_end[band], start, end)
    is_whole = bands.is_whole(n)
    breaks = np.empty(0, np.int64) if is_whole else _breaks(bands, n)
    runs = Runs.of(on_k, breaks)
    pieces = _pieces(on_q, bands, is_whole=is_whole)
    jobs = _jobs(pieces, runs, bands, max_jobs)
    if len(jobs.start) == 0:
        return Region.empty(n)
    parts = []
    for sign in (1, -1):
        own = jobs.select(runs.sign[jobs.run] == sign)
        if len(own.start):
            parts += _compare_jobs(own, runs, sign, op if sign == 1 else MIRRORED[op])
    joined = parts[0]
    if len(parts) > 1:
        joined = tuple(np.concatenate(group) for group in zip(*parts, strict=True))
    return Region.of(n, joined)


def _breaks(bands: Bands, num_tokens: int) -> Ints:
    """Return the rows where runs must end: the borders of bands with disjoint keys."""
    if (bands.key_start[1:] < bands.key_end[:-1]).any():
        return np.empty(0, np.int64)  # what goes past a band is cut away later
    borders = sorted_unique(np.concatenate([bands.key_start, bands.key_end]))
    return borders[borders < num_tokens]


@dataclass(frozen=True, slots=True, eq=False)
class _Jobs:
    """Rows ``[start, end)`` on which ``-f`` is ``value + slope * row``, each with a run of keys."""

    start: Ints
    end: Ints
    value: Ints
    slope: Ints
    run: Ints

    def select(self, chosen: Bools) -> "_Jobs":
        if chosen.all():
            return self
        return _Jobs(
            self.start[chosen], self.end[chosen], self.value[chosen], self.slope[chosen],
            self.run[chosen],
        )  # fmt: skip

    def from_row(self, job: Ints, row: Ints, end: Ints) -> "_Jobs":
        """Return parts of jobs: rows ``[row, end)`` of each."""
        slope = self.slope[job]
        value = self.value[job] + slope * (row - self.start[job])
        return _Jobs(row, end, value, slope, self.run[job])


def _pieces(
    on_q: Piecewise, bands: Bands, *, is_whole: bool
) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Return (start, end, -value, -slope, band) of every piece of f inside a band."""
    kept = on_q.is_defined
    starts, ends = on_q.starts, on_q.starts + on_q.lengths
    values, slopes = -on_q.values, -on_q.slopes
    if not kept.all():
        starts, ends, values, slopes = starts[kept], ends[kept], values[kept], slopes[kept]
    if is_whole:
        return starts, ends, values, slopes, np.zeros(len(starts), np.int64)
    band, index = overlaps(bands.row_start, bands.row_end, starts, ends)
    low: Ints = np.maximum(bands.row_start[band], starts[index])
    high: Ints = np.minimum(bands.row_end[band], ends[index])
    value: Ints = values[index] + slopes[index] * (low - starts[index])
    return low, high, value, slopes[index], band


def _jobs(
    pieces: tuple[Ints, Ints, Ints, Ints, Ints], runs: Runs, bands: Bands, max_jobs: int
) -> _Jobs:
    """Pair every piece of f with the runs of g among the keys of its band."""
    start, end, value, slope, band = pieces
    first = np.searchsorted(runs.end, bands.key_start[band], side="right")
    counts = np.searchsorted(runs.start, bands.key_end[band], side="left") - first
    counts = np.maximum(counts, 0)
    limit_pieces(int(counts.sum()), max_jobs, "pairs of steps")
    piece, run = expand(first, counts)
    return _Jobs(start[piece], end[piece], value[piece], slope[piece], run)


def _compare_jobs(jobs: _Jobs, runs: Runs, sign: int, op: str) -> list[tuple[Ints, ...]]:
    """Return raw slabs of jobs whose runs all rise (or all fall)."""
    if sign < 0:
        jobs = _Jobs(jobs.start, jobs.end, -jobs.value, -jobs.slope, jobs.run)
    shifts = {"<=": [0], ">": [0], "<": [-1], ">=": [-1]}.get(op, [-1, 0])
    jobs = _cut_at_levels(jobs, runs, shifts)
    ends = [_ends(jobs, runs, shift) for shift in shifts]
    flat = np.zeros(len(jobs.start), np.int64)
    low, high = (runs.start[jobs.run], flat), (runs.end[jobs.run], flat)
    spans = {
        "<=": [(low, ends[0])], "<": [(low, ends[0])], ">=": [(ends[0], high)],
        ">": [(ends[0], high)], "==": [(ends[0], ends[-1])],
        "!=": [(low, ends[0]), (ends[-1], high)],
    }[op]  # fmt: skip
    return [(jobs.start, jobs.end, a[0], b[0], a[1], b[1]) for a, b in spans]


def _ends(jobs: _Jobs, runs: Runs, shift: int) -> tuple[Ints, Ints]:
    """Return (end, slope) of the prefix with values up to ``value + shift`` on each job."""
    first = runs.ends_at(jobs.run, jobs.value + shift)
    is_tall = (jobs.end - jobs.start > 1) & (jobs.slope != 0)
    if not is_tall.any():
        return first, np.zeros_like(first)
    second = runs.ends_at(jobs.run, jobs.value + jobs.slope + shift)
    return first, np.where(is_tall, second - first, 0)


def _cut_at_levels(jobs: _Jobs, runs: Runs, shifts: list[int]) -> _Jobs:
    """Cut the rows so that every end is affine with slope 0 or 1 on each job."""
    if not jobs.slope.any():
        return jobs
    cuts = [_crossings(jobs, runs, shift) for shift in shifts]
    if len(cuts) == 1:
        jobs = _cut_jobs(jobs, *cuts[0])
    else:
        jobs = _cut_jobs(jobs, *(np.concatenate(pair) for pair in zip(*cuts, strict=True)))
    for shift in shifts:
        _, slope = _ends(jobs, runs, shift)
        is_rough = (slope < 0) | (slope > 1)
        if is_rough.any():
            rough = np.flatnonzero(is_rough)
            length = jobs.end[rough] - jobs.start[rough]
            limit_pieces(int(length.sum()), MAX_JOBS, "rows with ranges of their own")
            job, row = expand(jobs.start[rough], length)
            jobs = _cut_jobs(jobs, rough[job], row)
    return jobs


def _crossings(jobs: _Jobs, runs: Runs, shift: int) -> tuple[Ints, Ints]:
    """Return (job, row) wherever the target passes a level."""
    value, slope = jobs.value + shift, jobs.slope
    last = value + slope * (jobs.end - jobs.start - 1)
    low = runs.count_levels(jobs.run, np.minimum(value, last))
    counts = runs.count_levels(jobs.run, np.maximum(value, last)) - low
    limit_pieces(int(counts.sum()), MAX_JOBS, "crossings of a comparison")
    job, at = expand(low, counts)
    level, slope, value = runs.levels[at], slope[job], value[job]
    up = -(-(level - value) // np.where(slope > 0, slope, 1))
    down = (value - level) // np.where(slope < 0, -slope, 1) + 1
    return job, jobs.start[job] + np.where(slope > 0, up, down)


def _cut_jobs(jobs: _Jobs, job: Ints, row: Ints) -> _Jobs:
    """Cut jobs at rows inside them."""
    if len(job) == 0:
        return jobs
    base = int(jobs.end.max()) + 1
    own = np.arange(len(jobs.start)) * base
    keys = sorted_unique(np.concatenate([own + jobs.start, job * base + row]))
    job, row = np.divmod(keys, base)
    next_row = np.append(row[1:], 0)
    is_last = np.append(job[1:] != job[:-1], True)
    return jobs.from_row(job, row, np.where(is_last, jobs.end[job], next_row))


def listed(rows: Piecewise, lists: Ints, numbers: Piecewise) -> Region:
    """Return the pairs of a row and a key whose number is in the list of the row.

    Args:
        rows: which list each row has; flat, undefined where it has none.
        lists: int64 ``[R, size]``, every number once, -1 for none.
        numbers: the number of each key.

    Raises:
        TooManyPieces: if there are too many places of lists, or of keys.
    """
    n, numbers = numbers.num_tokens, _flat(numbers)
    kept = np.flatnonzero(numbers.is_defined)
    kept = kept[np.argsort(numbers.values[kept], kind="stable")]
    value, start = numbers.values[kept], numbers.starts[kept]
    end = start + numbers.lengths[kept]
    piece = np.flatnonzero(rows.is_defined)
    entries = lists[rows.values[piece]]
    limit_pieces(int(np.count_nonzero(entries >= 0)), MAX_PAIRS, "places of lists")
    row, place = np.nonzero(entries >= 0)
    wanted = entries[row, place]
    top = int(value.max(initial=-1)) + 1
    if top <= n:  # a table of all numbers is several times as fast
        firsts = np.searchsorted(value, np.arange(top + 2))
        wanted = np.minimum(wanted, top)
        first, counts = firsts[wanted], np.diff(firsts)[wanted]
    else:
        first = np.searchsorted(value, wanted)
        counts = np.searchsorted(value, wanted, side="right") - first
    limit_pieces(int(counts.sum()), MAX_PAIRS, "stretches of keys that lists name")
    entry, at = expand(first, counts)
    row, start, end = row[entry], start[at], end[at]
    order = np.argsort(row * n + start, kind="stable")
    row, start, end = row[order], start[order], end[order]
    is_new = np.ones(len(row), np.bool_)
    is_new[1:] = (row[1:] != row[:-1]) | (start[1:] != end[:-1])
    start, end = start[is_new], end[np.append(is_new[1:], True)[: len(end)]]
    which = piece[row[is_new]]
    q_start, flat = rows.starts[which], np.zeros(len(which), np.int64)
    q_end = q_start + rows.lengths[which]
    return Region(n, q_start, q_end, start, end, flat, flat, is_maximal=False)


def _flat(function: Piecewise) -> Piecewise:
    """Return a function in pieces of one value each."""
    sloped = np.flatnonzero(function.slopes)
    if not len(sloped):
        return function
    tokens = expand(function.starts[sloped], function.lengths[sloped])[1]
    return function.cut(tokens)
