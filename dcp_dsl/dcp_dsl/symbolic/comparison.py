"""Turn bounds and lists into slabs: ``low(q) <= g(k) <= high(q)``, ``k // 64 in q.chosen``.

g is cut into runs of keys on which it rises or falls (`runs`), low and high into their pieces. For
a piece of rows and a run of keys, a *job*, the visible keys lie between two ends that a run's
levels give; rows are cut where an end would change its slope.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from dcp_dsl.arrays import Bools, Ints, expand
from dcp_dsl.symbolic.piecewise import Bands, Piecewise, limit_pieces, overlaps, sorted_unique
from dcp_dsl.symbolic.region import MAX_CELLS, MAX_PAIRS, Region
from dcp_dsl.symbolic.runs import Runs
from dcp_dsl.symbolic.shortcuts import trimmed

MIRRORED = {"<=": ">=", "<": ">", ">=": "<=", ">": "<", "==": "==", "!=": "!="}
MAX_JOBS = MAX_CELLS // 2
MIN_ROWS = 2**8
ROWS_PER_PIECE = 2  # with fewer rows for each piece of a bound, rows are solved one by one

# A bound on the rows of a job: ``value + slope * r`` on its row r, counted from its first one.
_Line: TypeAlias = tuple[Ints, Ints]


@dataclass(frozen=True, slots=True, eq=False)
class Between:
    """The pairs with ``low(row) <= number(key) <= high(row)``, where all of them are defined.

    Attributes:
        number: of each key.
        low, high: of each row, at least one; the same function if only equal numbers count.
    """

    number: Piecewise
    low: Piecewise | None
    high: Piecewise | None

    @classmethod
    def of(cls, on_rows: Piecewise, on_keys: Piecewise, op: str) -> "Between":
        """Return the pairs with ``on_rows(row) + on_keys(key) op 0``, for any `op` but ``!=``."""
        # Numbers of keys begin to rise, so that bounds of both sides on one number can be joined:
        # `q >= k` and `q - k < w` become `k <= q` and `k >= q - w + 1`.
        if _begins_falling(on_keys):
            bound, number, op = on_rows, on_keys.scale(-1), MIRRORED[op]
        else:
            bound, number = on_rows.scale(-1), on_keys
        if op in ("<", ">"):
            bound = bound.shift(-1 if op == "<" else 1)
        return cls(number, None if op[0] == "<" else bound, None if op[0] == ">" else bound)

    def joined(self, other: "Between") -> "Between | None":
        """Return the pairs in both as one, if one side bounds a number below, the other above.

        Numbers and bounds that are the same everywhere stay apart: each of these is solved without
        runs, as ranges of rows or keys. So do bounds that would cut each other into more pieces.
        """
        for one, two in ((self, other), (other, self)):
            low, high = one.low, two.high
            if low is None or high is None or one.high is not None or two.low is not None:
                continue
            is_aligned = 1 in (len(low.starts), len(high.starts)) or np.array_equal(
                low.starts, high.starts
            )
            if is_aligned and not any(f.is_constant for f in (one.number, low, high)):
                return Between(one.number, low, high) if one.number.is_same(two.number) else None
        return None

    def stays_in(self, bands: Bands) -> bool:
        """Return whether `region` has pairs in the bands alone."""
        return _breaks(bands, self.number) is not None

    def region(self, bands: Bands, *, max_jobs: int) -> Region:
        """Return the pairs in some bands, and perhaps others outside (see `stays_in`)."""
        number, n = self.number, self.number.num_tokens
        bounds = [bound for bound in (self.low, self.high) if bound is not None]
        op = "==" if len(bounds) == 2 else "<=" if self.low is None else ">="
        if number.is_constant:
            rows = bounds[0].solve(MIRRORED[op], int(number.values[0]))
            start, end, band, _ = overlaps(bands.row_start, bands.row_end, *rows)
            return Region.rectangles(n, start, end, bands.key_start[band], bands.key_end[band])
        if bounds[0].is_constant:
            keys = number.solve(op, int(bounds[0].values[0]))
            start, end, band, _ = overlaps(bands.key_start, bands.key_end, *keys)
            return Region.rectangles(n, bands.row_start[band], bands.row_end[band], start, end)
        is_whole = bands.is_whole(n)
        if is_whole and self._is_of_rows(bounds):
            limit_pieces(max(len(bound.starts) for bound in bounds), max_jobs, "pairs of steps")
            return self._of_rows()
        breaks = None if is_whole else _breaks(bands, number)
        runs = Runs.of(number, np.empty(0, np.int64) if breaks is None else breaks)
        pieces = _pieces(self.low, self.high, bands, is_whole=is_whole)
        jobs = _jobs(pieces, runs, bands, max_jobs)
        if len(jobs.start) == 0:
            return Region.empty(n)
        # On a run that falls, the same comparison of negated numbers rises.
        falls = runs.sign[jobs.run] < 0
        if not falls.any():
            return Region.of(n, jobs.slabs(runs, max_jobs))
        sides = jobs.select(~falls), jobs.select(falls).flipped()
        parts = [side.slabs(runs, max_jobs) for side in sides]
        return Region.of(n, tuple(map(np.concatenate, zip(*parts, strict=True))))

    def _is_of_rows(self, bounds: Sequence[Piecewise]) -> bool:
        """Return whether a range of keys for each row is the shortest way to write the pairs."""
        number, n = self.number, self.number.num_tokens
        pieces = max(len(bound.starts) for bound in bounds)
        is_position = len(number.starts) == 1 and number.slopes[0] == 1 and number.is_defined[0]
        return bool(is_position and n >= MIN_ROWS and n <= ROWS_PER_PIECE * pieces)

    def _of_rows(self) -> Region:
        """Return the pairs row by row, where the number of a key is its position and a constant."""
        n, shift = self.number.num_tokens, -int(self.number.values[0])
        row, kept = np.arange(n), np.ones(n, np.bool_)
        first, last = np.zeros(n, np.int64), np.full(n, n)
        if self.low is not None:
            low, is_defined = self.low.on_all()
            first = np.maximum(low + shift, 0, out=first)
            kept &= is_defined
        if self.high is not None:
            high, is_defined = self.high.on_all()
            last = np.minimum(high + (shift + 1), n, out=last)
            kept &= is_defined
        kept &= first < last
        if not kept.all():
            row, first, last = (np.compress(kept, column) for column in (row, first, last))
        flat = np.zeros_like(row)
        return Region(n, row, row + 1, first, last, flat, flat, is_maximal=False)


def _begins_falling(function: Piecewise) -> bool:
    step = int(function.slopes[0])
    if step == 0 and len(function.values) > 1:
        step = int(function.values[1] - function.values[0])
    return step < 0


def _breaks(bands: Bands, number: Piecewise) -> Ints | None:
    """Return the borders of bands, where runs must end; None if that could cut runs too often.

    It cannot if the keys of bands are disjoint, or a piece of the number begins at each border.
    Without breaks a run that reaches into a band brings its keys outside the band along.
    """
    borders = sorted_unique(np.concatenate([bands.key_start, bands.key_end]))
    borders = borders[borders < number.num_tokens]
    before = number.starts[np.searchsorted(number.starts, borders, side="right") - 1]
    is_disjoint = (bands.key_start[1:] >= bands.key_end[:-1]).all()
    return borders if is_disjoint or (before == borders).all() else None


@dataclass(frozen=True, slots=True, eq=False)
class _Jobs:
    """Runs of rows ``[start, end)``, each with the keys of one run of keys between two lines.

    Visible are the keys whose value is above the first line and not above the second; a line that
    is None bounds nothing.
    """

    start: Ints
    end: Ints
    run: Ints
    lines: tuple[_Line | None, _Line | None]

    def select(self, chosen: Bools) -> "_Jobs":
        if chosen.all():
            return self
        return self.at_rows(np.flatnonzero(chosen), self.start[chosen], self.end[chosen])

    def at_rows(self, job: Ints, row: Ints, end: Ints) -> "_Jobs":
        """Return parts of jobs: rows ``[row, end)`` of each."""
        down = row - self.start[job]
        low, high = (
            None if line is None else (line[0][job] + line[1][job] * down, line[1][job])
            for line in self.lines
        )
        return _Jobs(row, end, self.run[job], (low, high))

    def flipped(self) -> "_Jobs":
        """Return the jobs with the numbers of rows and keys negated."""
        # g <= t is -g > -t - 1, and ~t is -t - 1
        low, high = (None if line is None else (~line[0], -line[1]) for line in self.lines)
        return _Jobs(self.start, self.end, self.run, (high, low))

    def slabs(self, runs: Runs, max_jobs: int) -> tuple[Ints, ...]:
        """Return raw slabs of jobs whose runs all rise, or, flipped, all fall.

        Rows are cut where a line passes a level, and one by one where an end would still move by
        more than one key per row: every end is affine with slope 0 or 1 on what is left.
        """
        levels = [None if line is None else self._levels(line, runs) for line in self.lines]
        crossings = [
            self._crossings(line, at, runs, max_jobs)
            for line, at in zip(self.lines, levels, strict=True)
            if line is not None and at is not None
        ]
        jobs = self.cut(*map(np.concatenate, zip(*crossings, strict=True)))
        (first, low), (last, high) = jobs.ends(runs, levels if jobs is self else None)
        # only 0 and 1 become 0 when shifted by one bit; negative slopes stay negative
        rough = np.flatnonzero(((low | high) >> 1) != 0)
        if len(rough):
            length = (jobs.end - jobs.start)[rough]
            most = max(MAX_JOBS, max_jobs)
            limit_pieces(int(length.sum()), most, "rows with ranges of their own")
            job, row = expand(jobs.start[rough], length)
            jobs = jobs.cut(rough[job], row)
            (first, low), (last, high) = jobs.ends(runs)
        columns = jobs.start, jobs.end, first, last, low, high
        width = last - first
        last_width = width + (high - low) * (jobs.end - jobs.start - 1)
        return trimmed(*columns) if (np.minimum(width, last_width) < 0).any() else columns

    def ends(self, runs: Runs, levels: "Sequence[_Line | None] | None" = None) -> list[_Line]:
        """Return the first key and the end of each job, on its first row and per row.

        `levels` are those of both lines, if they are known; no line passes one.
        """
        is_tall = self.end - self.start > 1  # the slope of a single row means nothing: call it 0
        found = []
        for which, line in enumerate(self.lines):
            if line is None:
                found.append(((runs.start, runs.end)[which][self.run], np.zeros_like(self.run)))
                continue
            value, slope = line
            at = None if levels is None else levels[which]
            # the last level that the line has passed: from there the end grows with the line
            level = (runs.count_levels(self.run, value) if at is None else at[0]) - 1
            growth = runs.table.slopes[level]
            first = value - runs.table.levels[level]
            first *= growth
            first += runs.table.ends[level]
            found.append((first, growth * slope * is_tall))
        return found

    def _levels(self, line: _Line, runs: Runs) -> _Line:
        """Return how many levels a line has passed on the first and on the last row of each job."""
        value, slope = line
        first = last = runs.count_levels(self.run, value)
        way = slope * (self.end - self.start - 1)
        moving = np.flatnonzero(way)
        if len(moving):
            last = first.copy()
            last[moving] = runs.count_levels(self.run[moving], (value + way)[moving])
        return first, last

    def _crossings(
        self, line: _Line, levels: _Line, runs: Runs, max_jobs: int
    ) -> tuple[Ints, Ints]:
        """Return (job, row) wherever a line passes a level."""
        first, last = levels
        passing = np.flatnonzero(first != last)
        if not len(passing):
            return passing, passing
        low, counts = np.minimum(first, last)[passing], np.abs(last - first)[passing]
        limit_pieces(int(counts.sum()), max(MAX_JOBS, max_jobs), "crossings of a comparison")
        job, at = expand(low, counts)
        job = passing[job]
        level, value, slope = runs.table.levels[at], line[0][job], line[1][job]
        # A rising line passes on the first row at the level, a falling one on the first below it.
        # np.where computes both: the 1 keeps the one that is not taken from dividing by 0.
        up = -(-(level - value) // np.where(slope > 0, slope, 1))
        down = (value - level) // np.where(slope < 0, -slope, 1) + 1
        return job, self.start[job] + np.where(slope > 0, up, down)

    def cut(self, job: Ints, row: Ints) -> "_Jobs":
        """Cut jobs at rows inside them."""
        if len(job) == 0:
            return self
        # (job, row) as one number, since rows are below `base`: one sort instead of two
        base = int(self.end.max()) + 1
        own = np.arange(len(self.start)) * base
        keys = sorted_unique(np.concatenate([own + self.start, job * base + row]))
        job, row = np.divmod(keys, base)
        end = self.end[job]
        end[:-1] = np.where(job[1:] != job[:-1], end[:-1], row[1:])
        return self.at_rows(job, row, end)


def _pieces(
    low: Piecewise | None, high: Piecewise | None, bands: Bands, *, is_whole: bool
) -> tuple[_Jobs, Ints]:
    """Return the pieces of both bounds inside the bands, as jobs without runs, and their bands."""
    if low is not None and high is not None and low is not high:
        low, high = low.cut(high.starts), high.cut(low.starts)
    one = low if high is None else high
    assert one is not None, "something is bounded"
    kept = one.is_defined if low is None else one.is_defined & low.is_defined
    none, lengths = np.zeros(len(kept), np.int64), one.lengths
    is_tall = lengths > 1  # the slope of a single row means nothing: call it 0
    # keys lie behind those with numbers up to low - 1: low itself counts
    below = None if low is None else (low.values - 1, low.slopes * is_tall)
    above = None if high is None else (high.values, high.slopes * is_tall)
    whole = _Jobs(one.starts, one.starts + lengths, none, (below, above)).select(kept)
    if is_whole:
        return whole, none[: len(whole.start)]
    start, end, band, index = overlaps(bands.row_start, bands.row_end, whole.start, whole.end)
    return whole.at_rows(index, start, end), band


def _jobs(pieces: tuple[_Jobs, Ints], runs: Runs, bands: Bands, max_jobs: int) -> _Jobs:
    """Pair every piece of the bounds with the runs among the keys of its band."""
    rows, band = pieces
    first = np.searchsorted(runs.end, bands.key_start, side="right")
    counts = np.searchsorted(runs.start, bands.key_end, side="left") - first
    first, counts = first[band], np.maximum(counts, 0)[band]
    if (counts == 1).all():
        limit_pieces(len(counts), max_jobs, "pairs of steps")
        return replace(rows, run=first)
    limit_pieces(int(counts.sum()), max_jobs, "pairs of steps")
    piece, run = expand(first, counts)
    low, high = (None if line is None else (line[0][piece], line[1][piece]) for line in rows.lines)
    return _Jobs(rows.start[piece], rows.end[piece], run, (low, high))


def hull(region: Region) -> Bands:
    """Return bands that hold a region: for each run of rows the keys between the outermost ones."""
    if len(region.q_start) == 0:
        none = np.empty(0, np.int64)
        return Bands(none, none, none, none)
    knots = sorted_unique(np.concatenate([region.q_start, region.q_end]))
    low, high = (np.searchsorted(knots, v) for v in (region.q_start, region.q_end))
    slab, cell = expand(low, high - low)
    down = knots[cell] - region.q_start[slab]
    rows = knots[cell + 1] - knots[cell] - 1
    # slopes are 0 or 1: the first row has the smallest start, the last one the largest end
    first = region.kv_start[slab] + region.start_slope[slab] * down
    last = region.kv_end[slab] + region.end_slope[slab] * (down + rows)
    start = np.full(len(knots), region.num_tokens)
    end = np.zeros(len(knots), np.int64)
    np.minimum.at(start, cell, first)
    np.maximum.at(end, cell, last)
    used = np.flatnonzero(end > start)
    return Bands(knots[used], knots[used + 1], start[used], end[used])


def listed(rows: Piecewise, lists: Ints, numbers: Piecewise, max_places: int = 0) -> Region:
    """Return the pairs of a row and a key whose number is in the list of the row.

    `rows` says which of `lists` each row has, int64 ``[R, size]``, every number once, -1 for none.
    `max_places` may be looked at, if more than `MAX_PAIRS`; TooManyPieces beyond.
    """
    n, numbers = numbers.num_tokens, _flat(numbers)
    kept = np.flatnonzero(numbers.is_defined)
    kept = kept[np.argsort(numbers.values[kept], kind="stable")]
    value, start = numbers.values[kept], numbers.starts[kept]
    end = start + numbers.lengths[kept]
    begin, height = rows.starts, rows.lengths
    which, is_defined = rows.values, rows.is_defined
    most = max(MAX_PAIRS, max_places)
    if len(begin) < n <= ROWS_PER_PIECE * len(begin):
        # slabs of one row each are combined several times as fast
        which, is_defined = rows.on_all()
        begin, height = np.arange(n), np.ones(n, np.int64)
    if not is_defined.all():
        begin, height, which = begin[is_defined], height[is_defined], which[is_defined]
    sizes = np.count_nonzero(lists >= 0, axis=1)
    limit_pieces(int(sizes[which].sum()), most, "places of lists")
    entries = lists[which].ravel()
    named = np.flatnonzero(entries >= 0)
    row, wanted = named // lists.shape[1], entries[named]
    top = int(value.max(initial=-1)) + 1
    if top <= n:  # a table of all numbers is several times as fast
        firsts = np.searchsorted(value, np.arange(top + 2))
        # no key has the number `top`, so its range is empty
        wanted = np.minimum(wanted, top)
        first, counts = firsts[wanted], np.diff(firsts)[wanted]
    else:
        first = np.searchsorted(value, wanted)
        counts = np.searchsorted(value, wanted, side="right") - first
    limit_pieces(int(counts.sum()), most, "stretches of keys that lists name")
    if not (counts == 1).all():
        entry, first = expand(first, counts)
        row = row[entry]
    start, end = start[first], end[first]
    place = row * n + start
    if (place[1:] < place[:-1]).any():
        order = np.argsort(place, kind="stable")
        row, start, end = row[order], start[order], end[order]
    # stretches that touch are joined: fewer slabs, and key ranges are maximal on each row
    is_new = np.ones(len(row), np.bool_)
    is_new[1:] = (row[1:] != row[:-1]) | (start[1:] != end[:-1])
    # np.append makes one entry of none, hence the slice
    start, end = start[is_new], end[np.append(is_new[1:], True)[: len(end)]]
    row = row[is_new]
    q_start, flat = begin[row], np.zeros(len(row), np.int64)
    return Region(n, q_start, q_start + height[row], start, end, flat, flat, is_maximal=False)


def _flat(function: Piecewise) -> Piecewise:
    """Return a function in pieces of one value each."""
    sloped = np.flatnonzero(function.slopes)
    if not len(sloped):
        return function
    tokens = expand(function.starts[sloped], function.lengths[sloped])[1]
    return function.cut(tokens)
