"""Masks as sums of parts, for masks that slabs cannot express, or only with too many slabs.

There are four kinds of parts: a region seen from the keys, where a bound depends on the key, as in
tree attention; slabs of which only some remainders of the distance count; slabs of which only pairs
of equal labels count (`labels`); and a predicate, which decides blocks by bounds, and blocks that
these leave open pair by pair.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Annotated, ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from dcp_dsl.arrays import Bools, Ints, Record, expand
from dcp_dsl.forms.form import (
    BlockCounts,
    Form,
    FormName,
    RowRanges,
    digest_of,
    limit_blocks,
    ranges_of_tile,
    row_chunks,
)
from dcp_dsl.forms.slabs import (
    Rows,
    Slabs,
    cut_at_rows,
    cut_blocks,
    slab_entries,
    sum_blocks,
)
from dcp_dsl.symbolic.intervals import Grid


def count_remainders(
    slabs: Slabs, which: tuple[int, Ints], q_bounds: Ints, kv_bounds: Ints
) -> tuple[Ints, Ints, Ints]:
    """Return row, column and signed pairs, at some remainders, of blocks, perhaps repeated."""
    period, remainders = which
    # Each remainder costs a pass over all pieces. If more than half of them count, the others are
    # taken away from all pairs.
    is_few = 2 * len(remainders) <= period
    if not is_few:
        remainders = np.setdiff1d(np.arange(period), remainders)
    pieces = cut_at_rows(slabs, q_bounds, kv_bounds)
    limit_blocks(int((pieces[-1] - pieces[-2]).sum()))
    found = cut_blocks(pieces, kv_bounds)
    piece, col = expand(found.full_from, found.full_to - found.full_from)
    rest, pairs = _whole_remainders(pieces, (piece, col), (period, remainders), kv_bounds)
    piece = np.concatenate([piece, piece[rest], found.piece])
    col = np.concatenate([col, col[rest], found.col])
    cut = slice(len(pairs), None)
    own = _cut_remainders(pieces, (piece[cut], col[cut]), (period, remainders), kv_bounds)
    row, pairs = pieces[1][piece], np.concatenate([pairs, own])
    if is_few:
        return row, col, pairs
    all_row, all_col, all_pairs = slab_entries(pieces, kv_bounds)
    parts = (all_row, row), (all_col, col), (all_pairs, -pairs)
    row, col, pairs = (np.concatenate(columns) for columns in parts)
    return row, col, pairs


def _whole_remainders(
    pieces: tuple[Ints, ...], place: tuple[Ints, Ints], which: tuple[int, Ints], kv_bounds: Ints
) -> tuple[Ints, Ints]:
    """Count the pairs of blocks inside pieces: blocks of one size differ by their distance alone.

    Return the blocks of another size, or all if a table is not worth it, and the pairs of each
    block, 0 for these.
    """
    (piece, col), (period, remainders) = place, which
    if len(piece) <= period:
        return np.arange(len(piece)), np.zeros(len(piece), np.int64)
    height, widths = int(pieces[3].max()), np.diff(kv_bounds)
    width = int(widths.max())
    # of blocks whose first row is `distance` keys behind their first key
    distance = np.arange(2 * period)
    table = np.zeros(2 * period, np.int64)
    for remainder in remainders.tolist():
        offset = remainder - 1 - distance
        for border, side in ((width, 1), (0, -1)):
            table += side * _falling_sum(border + offset, height, period)
    # from 1 to 2 * period - 1
    apart = (pieces[2] % period + period)[piece] - (kv_bounds[:-1] % period)[col]
    is_other = (pieces[3] < height)[piece] | (widths < width)[col]
    return np.flatnonzero(is_other), np.where(is_other, 0, table[apart])


def _cut_remainders(
    pieces: tuple[Ints, ...], place: tuple[Ints, Ints], which: tuple[int, Ints], kv_bounds: Ints
) -> Ints:
    """Count the pairs of blocks that an end of a piece may cut; int64 ``[blocks]``."""
    (piece, col), (period, remainders) = place, which
    q, rows, first, last, low, high = (column[piece] for column in pieces[2:-2])
    pairs = np.zeros(len(col), np.int64)
    for remainder in remainders.tolist():
        offset = remainder - 1 - q
        # keys between both ends and both borders: a difference of four counts
        for ends, slope, sign in ((last, high, 1), (first, low, -1)):
            for border, side in ((kv_bounds[col + 1], 1), (kv_bounds[col], -1)):
                below = _keys_below((ends, slope), border, rows, offset, period)
                pairs += sign * side * below
    return pairs


def _keys_below(
    end: tuple[Ints, Ints], border: Ints, rows: Ints, offset: Ints, period: int
) -> Ints:
    """Sum over the rows how many keys with a remainder lie left of ``min(end, border)``.

    Of the keys below x, row q counts ``(x - 1 - q + remainder) // period``, up to a number that
    depends on q alone and falls out of differences. `end` is an end of each piece on its first row
    and its slope; `offset` the remainder less 1 less its first row.
    """
    first, slope = end
    # rows on which the end is still left of the border; below, the border counts
    moving = np.clip(border - first, 0, rows)
    inside = np.where(slope == 1, moving, np.where(first < border, rows, 0))
    at_end = np.where(
        slope == 1,
        inside * ((first + offset) // period),  # end and row move together: the same on each row
        _falling_sum(first + offset, inside, period),
    )
    return at_end + _falling_sum(border + offset - inside, rows - inside, period)


def _falling_sum(first: Ints, count: Ints | int, period: int) -> Ints:
    """Return ``sum over i < count of (first - i) // period``."""
    return _sum_below(first + 1, period) - _sum_below(first + 1 - count, period)


def _sum_below(x: Ints, period: int) -> Ints:
    """Return the sum of ``j // period`` for j from 0 up to x (exclusive), also below 0."""
    # each quotient below `whole` comes `period` times, `whole` itself as often as is left
    whole = x // period
    return period * (whole * (whole - 1) // 2) + whole * (x - period * whole)


# For every block: whether all of its pairs are visible, and whether any may be.
BlockDecision: TypeAlias = tuple[Bools, Bools]


BLOCKS_AT_ONCE = 2**18
PAIRS_AT_ONCE = 2**20
LEAST_STEP = 64
MOST_STEPS = 2**9


def step_of(num_tokens: int) -> int:
    """Return the tokens of the blocks by which a predicate is decided before its pairs are.

    >>> step_of(1000), step_of(131_072)
    (64, 256)
    """
    return max(LEAST_STEP, -(-num_tokens // MOST_STEPS))


def decide_form(form: Form, grid: Grid) -> BlockDecision:
    """Decide every block of a grid by an exact form."""
    q, k = grid.q_bounds, grid.kv_bounds
    if grid.is_of_pairs:
        seen = form.tile(int(q[0]), int(q[-1]), int(k[0]), int(k[-1]))
        return seen, seen
    # a grid may be a part of the sample, but forms count blocks of all of it
    borders = [np.unique(np.concatenate([[0], b, [form.num_tokens]])) for b in (q, k)]
    counts = form.count_blocks(borders[0], borders[1])
    pairs = np.zeros((len(borders[0]) - 1, len(borders[1]) - 1), np.int64)
    pairs[counts.row, counts.col] = counts.pairs
    rows, columns = grid.shape
    row, column = (int(np.searchsorted(b, v[0])) for b, v in zip(borders, (q, k), strict=True))
    own = pairs[row : row + rows, column : column + columns]
    return own == np.diff(q)[:, None] * np.diff(k), own > 0


class Part(Protocol):
    """A set of pairs that is added to a mask, or taken away from it."""

    @property
    def form(self) -> FormName:
        """The name of a mask that is made of such parts alone."""

    @property
    def name(self) -> str:
        """A text that only equal parts share, for digests."""

    def tile(self, q_start: int, q_end: int, kv_start: int, kv_end: int) -> Bools:
        """Return the part's pairs among some queries and keys, bool ``[queries, keys]``."""

    def count_blocks(self, q_bounds: Ints, kv_bounds: Ints) -> tuple[Ints, Ints, Ints]:
        """Return row, column and signed pairs of blocks, in any order."""


@dataclass(frozen=True, slots=True, eq=False)
class RegionPart(Record):
    """A region, seen from the queries or from the keys, of which some distances count.

    Attributes:
        region: slabs, or ranges of rows.
        is_transposed: if so, rows of the region are keys and its keys are queries.
        period: divisor of the distance; 1 if all pairs count. Only slabs seen from the
            queries may have more.
        remainders: int64 ``[M]``, rising: a pair counts if ``(q - k) % period`` is one of them.
    """

    region: Slabs | Rows
    is_transposed: bool = False
    period: int = 1
    remainders: Annotated[Ints, "M"] = field(default_factory=lambda: np.zeros(1, np.int64))

    def _check(self) -> None:
        if (self.remainders < 0).any() or (self.remainders >= self.period).any():
            raise ValueError(f"RegionPart: remainders of {self.period}, got {self.remainders}")
        if self.period > 1 and (self.is_transposed or isinstance(self.region, Rows)):
            raise ValueError("RegionPart: remainders are counted in slabs seen from the queries")

    @property
    def form(self) -> FormName:
        """The name of a mask that is made of such parts alone."""
        if self.period > 1:
            return "strided"
        return "cols" if self.is_transposed else self.region.form

    @property
    def name(self) -> str:
        """SHA-256 of the region, how it is seen, and the remainders."""
        how = f"{self.is_transposed} {self.period}"
        return f"{how} {digest_of(how, len(self.region), self.remainders)} {self.region.digest}"

    def tile(self, q_start: int, q_end: int, kv_start: int, kv_end: int) -> Bools:
        """Return the part's pairs among some queries and keys, bool ``[queries, keys]``."""
        if self.is_transposed:
            return self.region.tile(kv_start, kv_end, q_start, q_end).T
        seen = self.region.tile(q_start, q_end, kv_start, kv_end)
        if self.period == 1 or not seen.size:
            return seen
        # All pairs of one distance lie on one diagonal: rows are windows that step to the left.
        # [R + K - 1]: from the last row at the first key to the first row at the last key
        remainder = np.arange(q_end - 1 - kv_start, q_start - kv_end, -1) % self.period
        counts = np.zeros(self.period, np.bool_)
        counts[self.remainders] = True
        return seen & sliding_window_view(counts[remainder], kv_end - kv_start)[::-1]

    def count_blocks(self, q_bounds: Ints, kv_bounds: Ints) -> tuple[Ints, Ints, Ints]:
        """Return row, column and signed pairs of the blocks that the region touches."""
        if self.is_transposed:
            col, row, pairs = RegionPart(self.region).count_blocks(kv_bounds, q_bounds)
            return row, col, pairs
        if self.period > 1:
            assert isinstance(self.region, Slabs), "checked above"
            which = self.period, self.remainders
            return count_remainders(self.region, which, q_bounds, kv_bounds)
        return self.region.count_blocks(q_bounds, kv_bounds)


@dataclass(frozen=True, eq=False)
class DecidedPart:
    """The pairs for which a predicate holds: products of positions, comparisons of random numbers.

    Only equal predicates share a `name`.
    """

    predicate: Callable[[Grid], BlockDecision]
    name: str
    form: ClassVar[FormName] = "tiles"

    def tile(self, q_start: int, q_end: int, kv_start: int, kv_end: int) -> Bools:
        """Return the part's pairs among some queries and keys, bool ``[queries, keys]``."""
        seen = np.zeros((q_end - q_start, kv_end - kv_start), np.bool_)
        if seen.size:
            # numbers of both tokens are int64 arrays of all pairs, kept until the grid is gone
            for begin, end in row_chunks(q_end - q_start, kv_end - kv_start, PAIRS_AT_ONCE):
                grid = Grid.of_pairs((q_start + begin, q_start + end), (kv_start, kv_end))
                seen[begin:end] = self.predicate(grid)[1]
        return seen

    def count_blocks(self, q_bounds: Ints, kv_bounds: Ints) -> tuple[Ints, Ints, Ints]:
        """Return row, column and pairs of non-empty blocks; large ones are decided in pieces."""
        q_cuts, kv_cuts = _cut(q_bounds), _cut(kv_bounds)
        limit_blocks((len(q_cuts) - 1) * (len(kv_cuts) - 1))
        # cuts hold all borders, so whole pieces add up to a block
        first = np.searchsorted(kv_cuts, kv_bounds[:-1])
        parts = [(np.empty(0, np.int64),) * 3]
        for begin, end in row_chunks(len(q_cuts) - 1, len(kv_cuts) - 1, BLOCKS_AT_ONCE):
            pairs = self._count_some(q_cuts[begin : end + 1], kv_cuts)
            pairs = np.add.reduceat(pairs, first, axis=1)
            row, col = np.nonzero(pairs)
            own = np.searchsorted(q_bounds, q_cuts[begin + row], side="right") - 1
            parts.append((own, col, pairs[row, col]))
        row, col, pairs = (np.concatenate(c) for c in zip(*parts, strict=True))
        return row, col, pairs

    def _count_some(self, q_bounds: Ints, kv_bounds: Ints) -> Ints:
        """Count the pairs of all blocks of a grid, int64 ``[Nq, Nk]``."""
        always, ever = self.predicate(Grid(q_bounds, kv_bounds))
        pairs = np.where(always, np.diff(q_bounds)[:, None] * np.diff(kv_bounds), 0)
        # undecided neighbours in a row of blocks are looked at together
        row_ptr, starts, ends = ranges_of_tile(ever & ~always)
        rows = np.repeat(np.arange(len(always)), np.diff(row_ptr))
        runs = zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True)
        for row, first, last in runs:
            start, end = kv_bounds[first], kv_bounds[last]
            seen = self.tile(int(q_bounds[row]), int(q_bounds[row + 1]), int(start), int(end))
            borders = kv_bounds[first:last] - start
            pairs[row, first:last] = np.add.reduceat(seen.sum(axis=0), borders)
        return pairs


def _cut(bounds: Ints) -> Ints:
    """Cut large blocks, so that few of their pairs are left open."""
    step = step_of(int(bounds[-1] - bounds[0]))
    if int(np.diff(bounds).max(initial=0)) <= step:
        return bounds
    return np.union1d(bounds, np.arange(bounds[0], bounds[-1], step))


@dataclass(frozen=True, eq=False)
class Parts:
    """A mask as a sum of parts that know how many pairs a block holds.

    Attributes:
        num_tokens: rows, and keys, of the mask.
        parts: they add up to 0 or 1 on every pair.

    >>> causal = Slabs(4, [0], [4], [0], [1], [0], [1])
    >>> Parts.of_keys(causal).tile(0, 2, 0, 3).astype(int).tolist()  # from the keys: anticausal
    [[1, 1, 1], [0, 1, 1]]
    >>> Parts(4, (RegionPart(causal, period=2, remainders=[0]),)).tile(3, 4, 0, 4).tolist()
    [[False, True, False, True]]
    """

    num_tokens: int
    parts: tuple[Part, ...]

    @classmethod
    def of_keys(cls, region: Slabs | Rows) -> "Parts":
        """Return the transposed mask of a region: its rows are keys."""
        return cls(region.num_tokens, (RegionPart(region, is_transposed=True),))

    @property
    def form(self) -> FormName:
        """`cols` or `strided` if all parts are of that kind, else `tiles`."""
        names = {part.form for part in self.parts}
        return names.pop() if len(names) == 1 else "tiles"

    @cached_property
    def num_pairs(self) -> int:
        """Number of visible (query, key) pairs; as expensive as counting blocks."""
        bounds = np.unique([0, self.num_tokens])
        return int(self.count_blocks(bounds, bounds).pairs.sum())

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the parts; see `Form`."""
        names = " ".join(part.name for part in self.parts)
        return sha256(f"dcp.mask/1 parts {self.num_tokens} {names}".encode()).hexdigest()

    def tile(self, q_start: int, q_end: int, kv_start: int, kv_end: int) -> Bools:
        """Return the mask of some queries and keys, bool ``[queries, keys]``."""
        if len(self.parts) == 1:
            return self.parts[0].tile(q_start, q_end, kv_start, kv_end)
        seen = np.zeros((q_end - q_start, kv_end - kv_start), np.bool_)
        # parts add up to 0 or 1 on every pair, so the parity of the sum is enough
        for part in self.parts:
            seen ^= part.tile(q_start, q_end, kv_start, kv_end)
        return seen

    def row_ranges(self, q_start: int, q_end: int) -> RowRanges:
        """Return the maximal key ranges of the rows ``[q_start, q_end)``; see `Form`."""
        return ranges_of_tile(self.tile(q_start, q_end, 0, self.num_tokens))

    def count_blocks(self, q_bounds: Ints, kv_bounds: Ints) -> BlockCounts:
        """Count the visible pairs of every block; see `Form`."""
        shape = len(q_bounds) - 1, len(kv_bounds) - 1
        found = [part.count_blocks(q_bounds, kv_bounds) for part in self.parts]
        if len(found) == 1:  # without a copy
            return sum_blocks(*found[0], shape)
        none = (np.empty(0, np.int64),) * 3
        row, col, pairs = (np.concatenate(c) for c in zip(none, *found, strict=True))
        return sum_blocks(row, col, pairs, shape)


def regions_of(form: Form) -> tuple[RegionPart, ...]:
    """Return the regions that a mask is made of; slabs and rows are one themselves.

    >>> causal = Slabs(4, [0], [4], [0], [1], [0], [1])
    >>> [regions_of(mask)[0].is_transposed for mask in (causal, Parts.of_keys(causal))]
    [False, True]
    """
    if isinstance(form, Slabs | Rows):
        return (RegionPart(form),)
    parts = form.parts if isinstance(form, Parts) else ()
    return tuple(part for part in parts if isinstance(part, RegionPart))


def keys_of(form: Form) -> Slabs | Rows | None:
    """Return the transposed mask of a form that is one region seen from the keys, else None."""
    parts = regions_of(form) if form.form == "cols" else ()
    return parts[0].region if len(parts) == 1 else None
