"""The tiles of a device, cut to the rows that its kernel computes at once, with exact masks.

A plan's block is cut into segments of at most `segment_rows` queries, and each tile is trimmed to
the keys that its segment sees: the kernel's tile does not depend on the plan's blocks, so coarse
planning blocks waste no work on a narrow window. Done once per plan and device, in packed
coordinates; `tile_table` moves the pieces to where the blocks lie in buffers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import Slabs
from dcp_dsl.arrays import Indices, Ints
from dcp_dsl.forms import BlockKind, PlacedForm
from dcp_planner.tables import Blocks, ComputeBlocks
from dcp_runtime.errors import RunError
from dcp_runtime.plans.row_ranges import (
    CutRanges,
    RasterisedMask,
    Windows,
    cut_slabs,
    rasterise_mask,
    run_numbers,
)

MAX_RANGES = 2
"""Ranges per row that a piece may hold before it is stored as bits: a sink and a window."""


class PieceKind(IntEnum):
    """Storage of the mask inside a piece."""

    FULL = 0
    RANGES = 1
    BITS = 2


@dataclass(frozen=True, slots=True, eq=False)
class PieceMasks:
    """Masks inside pieces; a piece's `mask_start` points into them.

    Attributes:
        row_lo, row_hi: int32 ``[MAX_RANGES, M]``, ranges per row of `RANGES` pieces.
        bits: uint8 ``[Z]``, packed rows of `BITS` pieces.
    """

    row_lo: Indices
    row_hi: Indices
    bits: NDArray[np.uint8]

    def __post_init__(self) -> None:
        for array in (self.row_lo, self.row_hi, self.bits):
            array.flags.writeable = False  # every table of the device shares them


@dataclass(frozen=True, slots=True, eq=False)
class TilePieces:
    """Pieces of some tiles, sorted by (query block, segment, key block).

    Attributes:
        tile: int64 ``[P]``, row of the plan's tiles.
        q_start, q_len: int64 ``[P]``, queries of the piece's segment, packed.
        kv_start, kv_len: int64 ``[P]``, its keys, packed.
        kind: uint8 ``[P]``, `PieceKind`.
        mask_start: int64 ``[P]``, see `TileTable`.
        pairs: int64 ``[P]``, visible pairs.
        masks: where `mask_start` points.
    """

    tile: Ints
    q_start: Ints
    q_len: Ints
    kv_start: Ints
    kv_len: Ints
    kind: NDArray[np.uint8]
    mask_start: Ints
    pairs: Ints
    masks: PieceMasks


@dataclass(frozen=True, slots=True, eq=False)
class _Cells:
    """Segment times tile: what a piece is before it is trimmed; all int64 ``[C]``."""

    tile: Ints
    q_start: Ints
    q_end: Ints
    kv_start: Ints
    kv_end: Ints

    def only(self, chosen: Ints) -> "_Cells":
        return _Cells(*(getattr(self, name)[chosen] for name in self.__slots__))


def cut_pieces(
    blocks: Blocks,
    tiles: ComputeBlocks,
    slabs: Slabs,
    chosen: Ints,
    segment_rows: int,
    forms: Sequence[PlacedForm] = (),
) -> TilePieces:
    """Cut the tiles `chosen` of a plan, ascending, into pieces of at most `segment_rows` queries.

    `slabs` is the mask of the plan, `forms` the masks of its sequences that have no slabs.
    Cost: O(segments times tiles + intervals of the rows of partial tiles), and the pairs, visible
    or not, of partial tiles of forms.
    """
    cells = _make_cells(blocks, tiles, chosen, segment_rows)
    is_full = tiles.kind[cells.tile] == BlockKind.FULL
    full, partial = cells.only(np.flatnonzero(is_full)), cells.only(np.flatnonzero(~is_full))
    partial = partial.only(np.argsort(partial.q_start, kind="stable"))
    which = _forms_of(partial, forms)
    rasterised = _rasterise(
        partial.only(np.flatnonzero(which >= 0)), [forms[i] for i in which if i >= 0]
    )
    partial = partial.only(np.flatnonzero(which < 0))
    windows = Windows(partial.q_start, partial.q_end, partial.kv_start, partial.kv_end)
    pieces = _join(_whole(full), _trim(partial, cut_slabs(slabs, windows)), rasterised)
    _check_pairs(tiles, chosen, pieces)
    return pieces


def _make_cells(blocks: Blocks, tiles: ComputeBlocks, chosen: Ints, segment_rows: int) -> _Cells:
    q_block, kv_block = tiles.q_block[chosen], tiles.kv_block[chosen]
    start, end = blocks.start[q_block], blocks.end[q_block]
    tile, segment = run_numbers(-(-(end - start) // segment_rows))
    q_start = start[tile] + segment * segment_rows
    return _Cells(
        chosen[tile],
        q_start,
        np.minimum(q_start + segment_rows, end[tile]),
        blocks.start[kv_block][tile],
        blocks.end[kv_block][tile],
    )


def _whole(cells: _Cells) -> TilePieces:
    """Make pieces of cells that are visible altogether."""
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


def _trim(cells: _Cells, cut: CutRanges) -> TilePieces:
    """Trim cells to the visible keys and store their masks; drop empty cells."""
    count = np.bincount(cut.window, minlength=len(cells.tile))
    kept = np.flatnonzero(count)
    cells, number = cells.only(kept), np.cumsum(count > 0) - 1
    cut = CutRanges(number[cut.window], cut.row, cut.lo, cut.hi)
    starts = np.flatnonzero(np.diff(cut.window, prepend=-1))
    if not len(starts):
        return _whole(cells)
    low = np.minimum.reduceat(cut.lo, starts)
    high = np.maximum.reduceat(cut.hi, starts)
    pairs = np.add.reduceat(cut.hi - cut.lo, starts)
    rows = cells.q_end - cells.q_start
    nth = _place_in_row(cut)
    most = np.maximum.reduceat(nth, starts) + 1
    kind = np.where(most > MAX_RANGES, PieceKind.BITS, PieceKind.RANGES).astype(np.uint8)
    kind[pairs == rows * (high - low)] = PieceKind.FULL
    relative = CutRanges(
        cut.window, cut.row - cells.q_start[cut.window], cut.lo - low[cut.window],
        cut.hi - low[cut.window],
    )  # fmt: skip
    mask_start, masks = _store(kind, rows, high - low, relative, nth)
    return TilePieces(
        cells.tile, cells.q_start, rows, low, high - low, kind, mask_start, pairs, masks
    )


def _place_in_row(cut: CutRanges) -> Ints:
    """Number the intervals of each row of each window 0, 1, ..."""
    index = np.arange(len(cut.row))
    opens = np.ones(len(index), bool)
    opens[1:] = (cut.row[1:] != cut.row[:-1]) | (cut.window[1:] != cut.window[:-1])
    return index - np.maximum.accumulate(np.where(opens, index, 0))


def _store(
    kind: NDArray[np.uint8], rows: Ints, keys: Ints, relative: CutRanges, nth: Ints
) -> tuple[Ints, PieceMasks]:
    """Write ranges and bits of pieces; `relative` counts from each piece's first row and key."""
    mask_start = np.full(len(kind), -1, np.int64)
    is_ranges = kind == PieceKind.RANGES
    ends = np.cumsum(np.where(is_ranges, rows, 0))
    mask_start[is_ranges] = (ends - rows)[is_ranges]
    row_lo, row_hi = np.zeros((2, MAX_RANGES, int(ends[-1])), np.int32)
    chosen = np.flatnonzero(is_ranges[relative.window])
    at = mask_start[relative.window[chosen]] + relative.row[chosen]
    row_lo[nth[chosen], at] = relative.lo[chosen]
    row_hi[nth[chosen], at] = relative.hi[chosen]
    bits, size = [np.zeros(0, np.uint8)], 0
    for piece in np.flatnonzero(kind == PieceKind.BITS).tolist():
        part = slice(*np.searchsorted(relative.window, (piece, piece + 1)).tolist())
        steps = np.zeros((rows[piece], keys[piece] + 1), np.int8)
        # Intervals of a row neither overlap nor touch: no key is named twice.
        steps[relative.row[part], relative.lo[part]] += 1
        steps[relative.row[part], relative.hi[part]] -= 1
        seen = np.cumsum(steps[:, :-1], axis=1, dtype=np.int8)
        bits.append(np.packbits(seen, axis=1).reshape(-1))
        mask_start[piece], size = size, size + bits[-1].size
    return mask_start, PieceMasks(row_lo, row_hi, np.concatenate(bits))


def _forms_of(cells: _Cells, forms: Sequence[PlacedForm]) -> Ints:
    """Return the form that each cell's mask is, int64 ``[C]``; -1 where it is slabs."""
    order = sorted(range(len(forms)), key=lambda i: forms[i].q_start)
    starts = np.array([forms[i].q_start for i in order], np.int64)
    ends = np.array([0, *(forms[i].q_end for i in order)], np.int64)
    place = np.searchsorted(starts, cells.q_start, side="right")
    number = np.array([-1, *order], np.int64)[place]
    return np.where(cells.q_start < ends[place], number, -1)


def _rasterise(cells: _Cells, forms: Sequence[PlacedForm]) -> TilePieces:
    """Make pieces of cells by rasterising the form of each; empty cells are dropped."""
    spans = zip(*(getattr(cells, n).tolist() for n in _Cells.__slots__[1:]), strict=True)
    rasterised = [
        rasterise_mask(form, (q0, q1), (k0, k1), MAX_RANGES)
        for form, (q0, q1, k0, k1) in zip(forms, spans, strict=True)
    ]
    found = [mask for mask in rasterised if mask is not None]
    cells = cells.only(np.flatnonzero([mask is not None for mask in rasterised]))
    rows = cells.q_end - cells.q_start
    low, high, pairs = (
        np.array([getattr(mask, name) for mask in found], np.int64)
        for name in ("low", "high", "pairs")
    )
    kind, mask_start, masks = _store_rasterised(found)
    return TilePieces(
        cells.tile, cells.q_start, rows, low, high - low, kind, mask_start, pairs, masks
    )


def _store_rasterised(
    rasterised: Sequence[RasterisedMask],
) -> tuple[NDArray[np.uint8], Ints, PieceMasks]:
    kind = np.full(len(rasterised), PieceKind.FULL, np.uint8)
    mask_start = np.full(len(rasterised), -1, np.int64)
    ranges, bits = [np.zeros((2, MAX_RANGES, 0), np.int32)], [np.zeros(0, np.uint8)]
    num_rows = num_bytes = 0
    for piece, mask in enumerate(rasterised):
        if mask.ranges is not None:
            kind[piece], mask_start[piece] = PieceKind.RANGES, num_rows
            num_rows += mask.ranges.shape[2]
            ranges.append(mask.ranges)
        elif mask.bits is not None:
            kind[piece], mask_start[piece] = PieceKind.BITS, num_bytes
            num_bytes += mask.bits.size
            bits.append(mask.bits)
    row_lo, row_hi = np.concatenate(ranges, axis=2)
    return kind, mask_start, PieceMasks(row_lo, row_hi, np.concatenate(bits))


def _join(*parts: TilePieces) -> TilePieces:
    """Put pieces into the order of segments, and of tiles within one."""
    shifted, num_rows, num_bytes = [], 0, 0
    for part in parts:
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
    order = np.lexsort((columns["tile"], columns["q_start"]))
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
