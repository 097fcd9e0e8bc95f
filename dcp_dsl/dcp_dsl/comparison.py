"""From ``f(q) + g(k) <= 0`` and its five sisters to slabs.

On a stretch of keys where g rises, the keys with ``g(k) <= t`` are a prefix whose end is a function
of t with slopes 0 and 1; putting ``t = -f(q)`` gives an end of a slab for each piece of f. Where
the end would move otherwise than by 0 or 1 key per row, the piece falls apart into single rows:
still exact, only longer.
"""

from dataclasses import dataclass

import numpy as np

from dcp_dsl.piecewise import Bools, Ints, Piecewise, TooManyPieces, sorted_unique
from dcp_dsl.region import MAX_CELLS, Region

_MIRRORED = {"<=": ">=", "<": ">", ">=": "<=", ">": "<", "==": "==", "!=": "!="}


def compare(on_q: Piecewise, on_k: Piecewise, op: str) -> Region:
    """Give the pairs where ``on_q(q) + on_k(k) op 0``; where either is undefined, no pair is in.

    Raises:
        TooManyPieces: if the exact answer has too many slabs.
    """
    n = on_q.num_tokens
    if on_k.is_constant:
        starts, ends = on_q.solve(op, -int(on_k.values[0]))
        return Region.rectangles(n, starts, ends, np.zeros_like(starts), np.full_like(ends, n))
    if on_q.is_constant:
        starts, ends = on_k.solve(op, -int(on_q.values[0]))
        return Region.rectangles(n, np.zeros_like(starts), np.full_like(ends, n), starts, ends)
    runs = _rising_runs(on_k, at_most=MAX_CELLS // 4 // len(on_q.starts))
    parts = [part for run in runs for part in _compare_run(on_q, run, op)]
    if not parts:
        return Region.empty(n)
    joined = tuple(np.concatenate(group) for group in zip(*parts, strict=True))
    return Region.of(n, joined)


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbouring keys ``[start, end)`` on which `sign` times g never falls, as pieces."""

    start: int
    end: int
    sign: int
    starts: Ints
    values: Ints
    slopes: Ints


def _rising_runs(function: Piecewise, at_most: int) -> list[_Run]:
    """Cut a function into stretches where it is defined and rises, or else falls.

    Raises:
        TooManyPieces: if there are more than `at_most`.
    """
    starts, ends = function.defined_ranges()
    runs: list[_Run] = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        low, high = np.searchsorted(function.starts, [start, end])
        piece = slice(low, high)
        values, slopes, last = (
            function.values[piece],
            function.slopes[piece],
            function.last_values[piece],
        )
        jumps = values[1:] - last[:-1]
        for sign in (1, -1):
            if (sign * slopes >= 0).all() and (sign * jumps >= 0).all():
                runs.append(
                    _Run(start, end, sign, function.starts[piece], sign * values, sign * slopes)
                )
                break
        else:
            runs += _split_runs(
                function, int(low), int(high), jumps < 0, slopes < 0, at_most - len(runs)
            )
        if len(runs) > at_most:
            raise TooManyPieces
    return runs


def _split_runs(
    function: Piecewise, low: int, high: int, falls: Bools, is_falling: Bools, at_most: int
) -> list[_Run]:
    """Cut pieces ``[low, high)`` before every fall; a falling piece stands alone."""
    is_new = np.ones(high - low, np.bool_)
    is_new[1:] = falls | is_falling[1:] | is_falling[:-1]
    begin = np.flatnonzero(is_new)
    if len(begin) > at_most:
        raise TooManyPieces
    bounds = np.append(function.starts, function.num_tokens)
    runs = []
    for a, b in zip((begin + low).tolist(), np.append(begin[1:] + low, high).tolist(), strict=True):
        sign = -1 if function.slopes[a] < 0 else 1
        runs.append(
            _Run(
                int(bounds[a]), int(bounds[b]), sign, function.starts[a:b],
                sign * function.values[a:b], sign * function.slopes[a:b],
            )
        )  # fmt: skip
    return runs


def _compare_run(on_q: Piecewise, run: _Run, op: str) -> list[tuple[Ints, ...]]:
    """Give raw slabs over the keys of one run."""
    target = on_q.scale(-run.sign)  # sign * g(k) op' target(q)
    op = op if run.sign == 1 else _MIRRORED[op]
    below = {"<=": None, ">": None, "<": -1, ">=": -1, "==": -1, "!=": -1}[op]
    count = _Count.of(run)
    shifts = [0] if below is None else ([-1] if op in ("<", ">=") else [-1, 0])
    rows = _row_pieces(target, count, shifts)
    ends = [count.end_on(rows, shift) for shift in shifts]
    low = (np.full_like(rows.starts, run.start), np.zeros_like(rows.starts))
    high = (np.full_like(rows.starts, run.end), np.zeros_like(rows.starts))
    spans = {
        "<=": [(low, ends[0])], "<": [(low, ends[0])], ">=": [(ends[0], high)],
        ">": [(ends[0], high)], "==": [(ends[0], ends[-1])],
        "!=": [(low, ends[0]), (ends[-1], high)],
    }[op]  # fmt: skip
    return [(rows.starts, rows.ends, a[0], b[0], a[1], b[1]) for a, b in spans]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Pieces of rows with the target value on the first row and its slope."""

    starts: Ints
    ends: Ints
    values: Ints
    slopes: Ints


@dataclass(frozen=True, slots=True)
class _Count:
    """``end(t)``: one past the last key of a run with value at most t, affine by pieces of t."""

    start: int
    knots: Ints
    ends: Ints
    slopes: Ints

    @classmethod
    def of(cls, run: _Run) -> "_Count":
        lengths = np.diff(run.starts, append=run.end)
        # Steeper than 1: every key is a step of its own.
        is_steep = run.slopes > 1
        repeat = np.where(is_steep, lengths, 1)
        piece = np.repeat(np.arange(len(repeat)), repeat)
        inner = np.arange(len(piece)) - np.repeat(np.cumsum(repeat) - repeat, repeat)
        knots = run.values[piece] + run.slopes[piece] * inner
        ends = run.starts[piece] + inner + 1
        is_unit = run.slopes[piece] == 1
        is_flat = run.slopes[piece] == 0
        ends = np.where(is_flat, (run.starts + lengths)[piece], ends)
        stop = np.where(is_unit, knots + lengths[piece] - 1, knots)
        # A piece of slope 1 ends in a flat stretch; of equal knots the last one counts.
        all_knots = np.column_stack([knots, stop]).ravel()
        all_ends = np.column_stack(
            [ends, np.where(is_unit, (run.starts + lengths)[piece], ends)]
        ).ravel()
        all_slopes = np.column_stack([is_unit, np.zeros_like(is_unit)]).astype(np.int64).ravel()
        is_final = np.append(all_knots[1:] != all_knots[:-1], True)
        return cls(run.start, all_knots[is_final], all_ends[is_final], all_slopes[is_final])

    def at(self, t: Ints) -> Ints:
        """Evaluate at each t."""
        piece = np.searchsorted(self.knots, t, side="right") - 1
        inside = self.ends[piece] + self.slopes[piece] * (t - self.knots[piece])
        return np.where(piece >= 0, inside, self.start)

    def end_on(self, rows: _Rows, shift: int) -> tuple[Ints, Ints]:
        """Give (end, slope) of ``end(target + shift)`` on each piece of rows."""
        first = self.at(rows.values + shift)
        second = self.at(rows.values + rows.slopes + shift)
        return first, np.where(rows.ends - rows.starts > 1, second - first, 0)


def _row_pieces(target: Piecewise, count: _Count, shifts: list[int]) -> _Rows:
    """Cut the rows so that every end is affine with slope 0 or 1 on each piece."""
    kept = target.is_defined
    starts, values, slopes = target.starts[kept], target.values[kept], target.slopes[kept]
    lengths = target.lengths[kept]
    cuts = [_cut_rows(starts, lengths, values, slopes, count.knots - s) for s in shifts]
    cut = target.cut(sorted_unique(np.concatenate(cuts)))
    rows = _defined_rows(cut)
    for shift in shifts:
        _, slope = count.end_on(rows, shift)
        is_rough = (slope < 0) | (slope > 1)
        if is_rough.any():
            if (rows.ends - rows.starts)[is_rough].sum() > MAX_CELLS // 4:
                raise TooManyPieces
            begin, length = rows.starts[is_rough], (rows.ends - rows.starts)[is_rough]
            single = np.repeat(begin - np.cumsum(length) + length, length) + np.arange(length.sum())
            cut = cut.cut(single)
            rows = _defined_rows(cut)
    return rows


def _defined_rows(target: Piecewise) -> _Rows:
    kept = target.is_defined
    ends = target.starts + target.lengths
    return _Rows(target.starts[kept], ends[kept], target.values[kept], target.slopes[kept])


def _cut_rows(starts: Ints, lengths: Ints, values: Ints, slopes: Ints, knots: Ints) -> Ints:
    """Give the rows where a target value passes a knot."""
    last = values + slopes * (lengths - 1)
    low = np.searchsorted(knots, np.minimum(values, last), side="right")
    high = np.searchsorted(knots, np.maximum(values, last), side="right")
    counts = high - low
    total = int(counts.sum())
    if total > MAX_CELLS // 4:
        raise TooManyPieces
    piece = np.repeat(np.arange(len(starts)), counts)
    knot = knots[np.arange(total) - np.repeat(np.cumsum(counts) - counts - low, counts)]
    slope, value = slopes[piece], values[piece]
    up = -(-(knot - value) // np.where(slope > 0, slope, 1))
    down = (value - knot) // np.where(slope < 0, -slope, 1) + 1
    rows: Ints = starts[piece] + np.where(slope > 0, up, down)
    return rows
