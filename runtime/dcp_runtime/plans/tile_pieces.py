"""The tiles of a device, cut to the rows that its kernel computes at once, with exact masks.

A plan's block is cut into segments of at most `segment_rows` queries. Each tile is trimmed to the
keys that its segment sees. The tiles of a kernel so do not depend on the blocks of the plan, and
large planning blocks waste no work on a narrow window. Pieces are cut once per plan and device, in
packed coordinates; `device_plan` moves them to where the blocks lie in buffers.

Slabs are cut to the segments first and expanded to rows last, in a few passes over flat arrays:
no loop runs over rows, slabs or segments.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import Slabs
from dcp_dsl.arrays import Bools, Indices, Ints, expand
from dcp_dsl.forms import BlockKind, PlacedForm, ranges_of_tile
from dcp_planner.tables import Blocks, ComputeBlocks
from dcp_runtime.errors import RunError


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Segments times tiles: pieces before they are trimmed; all int64 ``[C]``, packed.

    `cut_slabs` needs them sorted by `q_start`. Cells that share rows share all of them.
    """

    tile: Ints
    q_start: Ints
    q_end: Ints
    kv_start: Ints
    kv_end: Ints

    def only(self, chosen: Ints) -> "Cells":
        """Return the chosen cells."""
        return Cells(*(getattr(self, name)[chosen] for name in self.__slots__))


@dataclass(frozen=True, slots=True, eq=False)
class CutRanges:
    """Visible keys inside cells: row `row[i]` of cell `cell[i]` sees the keys ``[lo[i], hi[i])``.

    Sorted by (cell, row, lo); the intervals of a row neither overlap nor touch; int64 ``[I]``.
    """

    cell: Ints
    row: Ints
    lo: Ints
    hi: Ints


def cut_slabs(slabs: Slabs, cells: Cells) -> CutRanges:
    """Return the visible keys of every row of every cell.

    Cost: O(slabs times cells that share rows + intervals), times log intervals where several slabs
    meet in one cell.

    >>> causal = Slabs(4, [0], [4], [0], [1], [0], [1])
    >>> cell = Cells(*np.array([[0], [2], [4], [1], [3]]))
    >>> cut = cut_slabs(causal, cell)
    >>> cut.row.tolist(), cut.lo.tolist(), cut.hi.tolist()
    ([2, 3], [1, 1], [3, 3])
    """
    slab, cell = _pairs_that_meet(slabs, cells)
    q_start = slabs.q_start[slab]
    first = np.maximum(cells.q_start[cell], q_start)
    end = np.minimum(cells.q_end[cell], slabs.q_end[slab])
    start_slope, end_slope = slabs.start_slope[slab], slabs.end_slope[slab]
    # Ends of the slab at the first row that it shares with the cell.
    lo_first = slabs.kv_start[slab] + start_slope * (first - q_start)
    hi_first = slabs.kv_end[slab] + end_slope * (first - q_start)
    lo_cell, hi_cell = cells.kv_start[cell], cells.kv_end[cell]
    pair, moved = expand(0, end - first)  # one entry per shared row; rows below the first
    lo = np.maximum(lo_first[pair] + start_slope[pair] * moved, lo_cell[pair])
    hi = np.minimum(hi_first[pair] + end_slope[pair] * moved, hi_cell[pair])
    row, cell = first[pair] + moved, cell[pair]
    # A slab that meets a cell may still miss it on some rows: a diagonal enters it further down.
    seen = lo < hi
    return _merged(CutRanges(cell[seen], row[seen], lo[seen], hi[seen]))


def _pairs_that_meet(slabs: Slabs, cells: Cells) -> tuple[Ints, Ints]:
    """Return the pairs (slab, cell) that may share a visible pair, sorted by (cell, slab)."""
    # Cells of the same rows are one run: slabs are matched with runs by search, then with cells.
    first_cell = np.flatnonzero(np.diff(cells.q_start, prepend=-1))
    run_start, run_end = cells.q_start[first_cell], cells.q_end[first_cell]
    run_size = np.diff(first_cell, append=len(cells.q_start))
    first_run = np.searchsorted(run_end, slabs.q_start, side="right")
    last_run = np.searchsorted(run_start, slabs.q_end, side="left")
    slab, place = expand(0, np.maximum(last_run - first_run, 0))
    run = first_run[slab] + place
    pair, place = expand(0, run_size[run])
    slab, cell = slab[pair], first_cell[run[pair]] + place
    q_start = slabs.q_start[slab]
    first = np.maximum(cells.q_start[cell], q_start)
    last = np.minimum(cells.q_end[cell], slabs.q_end[slab]) - 1
    # No end falls from row to row: the first start and the last end bound what a slab sees.
    low = slabs.kv_start[slab] + slabs.start_slope[slab] * (first - q_start)
    high = slabs.kv_end[slab] + slabs.end_slope[slab] * (last - q_start)
    meets = np.flatnonzero((low < cells.kv_end[cell]) & (high > cells.kv_start[cell]))
    order = meets[np.argsort(cell[meets], kind="stable")]
    return slab[order], cell[order]


def _merged(cut: CutRanges) -> CutRanges:
    """Sort intervals and join those that touch: a sink that meets its window is one range."""
    is_next = (np.diff(cut.cell) > 0) | (np.diff(cut.row) > 0)
    if not is_next.all():  # nearly all masks come in order, and sorting costs most here
        order = np.lexsort((cut.lo, cut.row, cut.cell))
        cut = CutRanges(cut.cell[order], cut.row[order], cut.lo[order], cut.hi[order])
        is_next = (np.diff(cut.cell) > 0) | (np.diff(cut.row) > 0)
    opens = np.ones(len(cut.row), bool)
    opens[1:] = is_next | (cut.lo[1:] != cut.hi[:-1])
    # An interval ends with the last entry before the next one opens.
    return CutRanges(cut.cell[opens], cut.row[opens], cut.lo[opens], cut.hi[np.roll(opens, -1)])


MAX_RANGES = 2
"""Ranges per row that a piece may hold before it is stored as bits: a sink and a window."""


class PieceKind(IntEnum):
    """Storage of the mask inside a piece."""

    FULL = 0
    RANGES = 1
    BITS = 2


@dataclass(frozen=True, slots=True, eq=False)
class PieceMasks:
    """Masks inside pieces; a piece's `mask_start` points into them."""

    row_lo: Indices  # int32 [MAX_RANGES, M], ranges per row of `RANGES` pieces
    row_hi: Indices
    bits: NDArray[np.uint8]  # uint8 [Z], packed rows of `BITS` pieces

    def __post_init__(self) -> None:
        # Every table of the device shares them: `Record` copies arrays that are still writeable.
        for array in (self.row_lo, self.row_hi, self.bits):
            array.flags.writeable = False


@dataclass(frozen=True, slots=True, eq=False)
class TilePieces:
    """Pieces of some tiles, sorted by (query block, segment, key block); int64 ``[P]``."""

    tile: Ints  # row of the plan's tiles
    q_start: Ints  # queries of the piece's segment, packed
    q_len: Ints
    kv_start: Ints  # its keys, packed
    kv_len: Ints
    kind: NDArray[np.uint8]  # uint8 [P], `PieceKind`
    mask_start: Ints  # see `TileTable`
    pairs: Ints  # visible pairs
    masks: PieceMasks


def cut_pieces(
    blocks: Blocks,
    tiles: ComputeBlocks,
    slabs: Slabs,
    chosen: Ints,
    segment_rows: int,
    forms: Sequence[PlacedForm] = (),
    grid: int | None = None,
) -> TilePieces:
    """Cut the tiles `chosen` of a plan, ascending, into pieces of at most `segment_rows` queries.

    `slabs` is the mask of the plan, `forms` the masks of its sequences that are not slabs. With a
    `grid` a piece has the queries and keys of one cell of so many tokens, for all kernels. Cost:
    O(segments times tiles + intervals of the rows of partial tiles); partial tiles of forms cost
    all their pairs, visible or not.
    """
    cells = _make_cells(blocks, tiles, chosen, grid or segment_rows)
    if grid is not None:
        cells = _cut_keys(cells, grid)
    is_full = tiles.kind[cells.tile] == BlockKind.FULL
    full, partial = cells.only(np.flatnonzero(is_full)), cells.only(np.flatnonzero(~is_full))
    # As `cut_slabs` wants them: cells that share rows side by side.
    partial = partial.only(np.argsort(partial.q_start, kind="stable"))
    which = _forms_of(partial, forms)
    rasterised = _rasterise(
        partial.only(np.flatnonzero(which >= 0)), [forms[i] for i in which if i >= 0]
    )
    partial = partial.only(np.flatnonzero(which < 0))
    pieces = _join(_whole(full), _trim(partial, cut_slabs(slabs, partial)), rasterised)
    _check_pairs(tiles, chosen, pieces)
    return pieces


def _make_cells(blocks: Blocks, tiles: ComputeBlocks, chosen: Ints, segment_rows: int) -> Cells:
    q_block, kv_block = tiles.q_block[chosen], tiles.kv_block[chosen]
    start, end = blocks.start[q_block], blocks.end[q_block]
    tile, segment = expand(0, -(-(end - start) // segment_rows))
    q_start = start[tile] + segment * segment_rows
    return Cells(
        chosen[tile],
        q_start,
        np.minimum(q_start + segment_rows, end[tile]),
        blocks.start[kv_block][tile],
        blocks.end[kv_block][tile],
    )


def _cut_keys(cells: Cells, size: int) -> Cells:
    """Cut cells so that none has more than `size` keys."""
    cell, part = expand(0, -(-(cells.kv_end - cells.kv_start) // size))
    cut = cells.only(cell)
    start = cut.kv_start + part * size
    return replace(cut, kv_start=start, kv_end=np.minimum(start + size, cut.kv_end))


def _whole(cells: Cells) -> TilePieces:
    """Make pieces of cells whose pairs are all visible."""
    rows, keys = cells.q_end - cells.q_start, cells.kv_end - cells.kv_start
    none = np.zeros((MAX_RANGES, 0), np.int32)
    return TilePieces(
        cells.tile,
        cells.q_start,
        rows,
        cells.kv_start,
        keys,
        np.full(len(rows), PieceKind.FULL, np.uint8),
        np.full(len(rows), -1, np.int64),
        rows * keys,
        PieceMasks(none, none, np.zeros(0, np.uint8)),
    )


def _trim(cells: Cells, cut: CutRanges) -> TilePieces:
    """Trim cells to the visible keys and store their masks; drop empty cells."""
    count = np.bincount(cut.cell, minlength=len(cells.tile))
    cells, number = cells.only(np.flatnonzero(count)), np.cumsum(count > 0) - 1
    cut = CutRanges(number[cut.cell], cut.row, cut.lo, cut.hi)
    starts = np.flatnonzero(np.diff(cut.cell, prepend=-1))  # a first interval for every kept cell
    low = np.minimum.reduceat(cut.lo, starts)
    high = np.maximum.reduceat(cut.hi, starts)
    pairs = np.add.reduceat(cut.hi - cut.lo, starts)
    rows = cells.q_end - cells.q_start
    nth = _place_in_row(cut)
    most = np.maximum.reduceat(nth, starts) + 1
    kind = np.where(most > MAX_RANGES, PieceKind.BITS, PieceKind.RANGES).astype(np.uint8)
    # After trimming, a tile that the plan calls partial may be full: the keys of a sink are.
    kind[pairs == rows * (high - low)] = PieceKind.FULL
    relative = CutRanges(
        cut.cell, cut.row - cells.q_start[cut.cell], cut.lo - low[cut.cell],
        cut.hi - low[cut.cell],
    )  # fmt: skip
    mask_start, masks = _store(kind, rows, high - low, relative, nth)
    return TilePieces(
        cells.tile, cells.q_start, rows, low, high - low, kind, mask_start, pairs, masks
    )


def _place_in_row(cut: CutRanges) -> Ints:
    """Number the intervals of each row of each cell 0, 1, ..."""
    index = np.arange(len(cut.row))
    opens = np.ones(len(index), bool)
    opens[1:] = (cut.row[1:] != cut.row[:-1]) | (cut.cell[1:] != cut.cell[:-1])
    # The running maximum is the index of the row's first interval.
    return index - np.maximum.accumulate(np.where(opens, index, 0))


def _store(
    kind: NDArray[np.uint8], rows: Ints, keys: Ints, relative: CutRanges, nth: Ints
) -> tuple[Ints, PieceMasks]:
    """Write ranges and bits of pieces; `relative` counts from each piece's first row and key."""
    mask_start = np.full(len(kind), -1, np.int64)
    is_ranges = kind == PieceKind.RANGES
    columns = rows[is_ranges]  # a column for each row
    mask_start[is_ranges] = np.cumsum(columns) - columns
    row_lo, row_hi = np.zeros((2, MAX_RANGES, columns.sum()), np.int32)
    chosen = np.flatnonzero(is_ranges[relative.cell])
    at = mask_start[relative.cell[chosen]] + relative.row[chosen]
    row_lo[nth[chosen], at] = relative.lo[chosen]
    row_hi[nth[chosen], at] = relative.hi[chosen]
    bits, size = [np.zeros(0, np.uint8)], 0
    for piece in np.flatnonzero(kind == PieceKind.BITS).tolist():
        part = slice(*np.searchsorted(relative.cell, (piece, piece + 1)).tolist())
        # One step up where an interval begins, one down where it ends: the mask is their sum.
        steps = np.zeros((rows[piece], keys[piece] + 1), np.int8)
        # Intervals of a row neither overlap nor touch: no key is named twice.
        steps[relative.row[part], relative.lo[part]] += 1
        steps[relative.row[part], relative.hi[part]] -= 1
        seen = np.cumsum(steps[:, :-1], axis=1, dtype=np.int8)
        bits.append(np.packbits(seen, axis=1).reshape(-1))
        mask_start[piece], size = size, size + bits[-1].size
    return mask_start, PieceMasks(row_lo, row_hi, np.concatenate(bits))


def _forms_of(cells: Cells, forms: Sequence[PlacedForm]) -> Ints:
    """Return the number of the form that holds each cell's mask, int64 ``[C]``; -1 for slabs."""
    order = sorted(range(len(forms)), key=lambda i: forms[i].q_start)
    starts = np.array([forms[i].q_start for i in order], np.int64)
    ends = np.array([0, *(forms[i].q_end for i in order)], np.int64)
    # Of the forms that begin at or before the cell, the last holds it, if it has not ended yet.
    place = np.searchsorted(starts, cells.q_start, side="right")
    number = np.array([-1, *order], np.int64)[place]
    return np.where(cells.q_start < ends[place], number, -1)


def _rasterise(cells: Cells, forms: Sequence[PlacedForm]) -> TilePieces:
    """Make pieces of cells by painting the form of each; empty cells are dropped."""
    # A dilated window, a tree or a cache that drops keys has hundreds of ranges in a row. Listing
    # them would cost more than the bits that a kernel reads in the end. O(pairs of the cells).
    spans = zip(*(getattr(cells, n).tolist() for n in Cells.__slots__[1:]), strict=True)
    found: list[tuple[int, ...]] = []  # cell, first and last key, pairs, kind, mask_start
    ranges, bits = [np.zeros((2, MAX_RANGES, 0), np.int32)], [np.zeros(0, np.uint8)]
    num_rows = num_bytes = 0
    for cell, (form, (q0, q1, k0, k1)) in enumerate(zip(forms, spans, strict=True)):
        seen = form.tile(q0, q1, k0, k1)
        met = np.flatnonzero(seen.any(axis=0))
        if not met.size:
            continue
        first, last = int(met[0]), int(met[-1]) + 1
        seen = np.ascontiguousarray(seen[:, first:last])
        pairs = int(np.count_nonzero(seen))
        kind, start = PieceKind.FULL, -1
        if pairs < seen.size and (own := _row_ranges(seen)) is not None:
            kind, start, num_rows = PieceKind.RANGES, num_rows, num_rows + len(seen)
            ranges.append(own)
        elif pairs < seen.size:
            bits.append(np.packbits(seen, axis=1).reshape(-1))
            kind, start, num_bytes = PieceKind.BITS, num_bytes, num_bytes + bits[-1].size
        found.append((cell, k0 + first, k0 + last, pairs, kind, start))
    chosen, low, high, num_pairs, kinds, mask_start = np.array(found, np.int64).reshape(-1, 6).T
    cells, (row_lo, row_hi) = cells.only(chosen), np.concatenate(ranges, axis=2)
    masks = PieceMasks(row_lo, row_hi, np.concatenate(bits))
    return TilePieces(
        cells.tile, cells.q_start, cells.q_end - cells.q_start, low, high - low,
        kinds.astype(np.uint8), mask_start, num_pairs, masks,
    )  # fmt: skip


def _row_ranges(seen: Bools) -> Indices | None:
    """Return the ranges of each row, int32 ``[2, MAX_RANGES, rows]``; ``None`` if one has more."""
    # Counted first: finding the ranges costs several times as much, and most tiles have too many.
    opens = seen.copy()
    opens[:, 1:] &= ~seen[:, :-1]
    if np.count_nonzero(opens, axis=1).max() > MAX_RANGES:
        return None
    row_ptr, start, end = ranges_of_tile(seen)
    row, nth = expand(0, np.diff(row_ptr))
    found = np.zeros((2, MAX_RANGES, len(seen)), np.int32)
    found[:, nth, row] = start, end
    return found


def _join(*parts: TilePieces) -> TilePieces:
    """Put pieces into the order of segments, and of tiles within one."""
    shifted, num_rows, num_bytes = [], 0, 0
    for part in parts:
        # Ranges count columns, bits count bytes; -1 of full pieces stays.
        by = np.where(part.kind == PieceKind.RANGES, num_rows, num_bytes)
        by[part.kind == PieceKind.FULL] = 0
        shifted.append(replace(part, mask_start=part.mask_start + by))
        num_rows += part.masks.row_lo.shape[1]
        num_bytes += part.masks.bits.size
    columns = {
        name: np.concatenate([getattr(part, name) for part in shifted])
        for name in TilePieces.__slots__
        if name != "masks"
    }
    order = np.lexsort((columns["tile"], columns["q_start"]))  # as `TableBuilder` expects them
    masks = PieceMasks(
        np.concatenate([part.masks.row_lo for part in parts], axis=1),
        np.concatenate([part.masks.row_hi for part in parts], axis=1),
        np.concatenate([part.masks.bits for part in parts]),
    )
    return TilePieces(**{name: column[order] for name, column in columns.items()}, masks=masks)


def _check_pairs(tiles: ComputeBlocks, chosen: Ints, pieces: TilePieces) -> None:
    found = np.zeros(len(tiles), np.int64)
    np.add.at(found, pieces.tile, pieces.pairs)
    wrong = chosen[found[chosen] != tiles.pairs[chosen]]
    if wrong.size:
        tile = int(wrong[0])
        raise RunError(
            f"the plan states {tiles.pairs[tile]} visible pairs in tile {tile}, its mask has "
            f"{found[tile]}; the plan is damaged: build it again"
        )
