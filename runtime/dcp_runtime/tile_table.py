"""Tile tables: which keys each row of queries meets, and the exact mask inside partial pieces.

A plan speaks of blocks of a packed batch; a kernel speaks of rows of its working buffers. This
module translates once per plan and device. A block's queries are cut into segments of at most
`segment_rows` rows, and each tile is trimmed to the keys that its segment sees: the grain of the
kernel does not depend on the grain of the plan, so coarse planning blocks waste no work on a narrow
window.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import BlockKind, Slabs, readonly
from dcp_planner import Blocks, Tiles
from dcp_runtime.errors import RunError

MAX_RANGES = 2
"""Ranges per row that a piece may hold before it is stored as bits: a sink and a window."""


class PieceKind(IntEnum):
    """How the mask inside a piece is stored."""

    FULL = 0
    RANGES = 1
    BITS = 2


@dataclass(frozen=True, slots=True, eq=False)
class TileTable:
    """Work of one attention instruction: S segments of queries, each with its pieces of keys.

    All positions are rows of the device's working buffers; ranges are half-open.

    Attributes:
        q_start, q_len: int32 ``[S]``, the queries of each segment; no query is in two segments.
        row_ptr: int32 ``[S+1]``, segment i has the pieces ``row_ptr[i]:row_ptr[i+1]``.
        kv_start, kv_len: int32 ``[P]``, the keys of each piece.
        kind: uint8 ``[P]``, `PieceKind`.
        mask_start: int64 ``[P]``: first column of `row_lo` and `row_hi` of a `RANGES` piece, first
            byte of `bits` of a `BITS` piece, else -1.
        row_lo, row_hi: int32 ``[MAX_RANGES, M]``: row r of a `RANGES` piece sees the keys
            ``[row_lo[k, mask_start + r], row_hi[k, mask_start + r])`` of the piece, for every k; an
            unused range is ``[0, 0)``.
        bits: uint8 ``[Z]``: row r of a `BITS` piece is ``ceil(kv_len / 8)`` bytes, key 0 in the
            highest bit (`numpy.packbits`).
        pairs: visible (query, key) pairs of the whole table.
    """

    q_start: NDArray[np.int32]
    q_len: NDArray[np.int32]
    row_ptr: NDArray[np.int32]
    kv_start: NDArray[np.int32]
    kv_len: NDArray[np.int32]
    kind: NDArray[np.uint8]
    mask_start: NDArray[np.int64]
    row_lo: NDArray[np.int32]
    row_hi: NDArray[np.int32]
    bits: NDArray[np.uint8]
    pairs: int

    def __post_init__(self) -> None:
        segments, pieces = len(self.q_start), len(self.kv_start)
        for name, dtype, shape in (
            ("q_start", np.int32, (segments,)), ("q_len", np.int32, (segments,)),
            ("row_ptr", np.int32, (segments + 1,)), ("kv_start", np.int32, (pieces,)),
            ("kv_len", np.int32, (pieces,)), ("kind", np.uint8, (pieces,)),
            ("mask_start", np.int64, (pieces,)), ("row_lo", np.int32, (MAX_RANGES, None)),
            ("row_hi", np.int32, (MAX_RANGES, None)), ("bits", np.uint8, (None,)),
        ):  # fmt: skip
            value = readonly(f"TileTable.{name}", getattr(self, name), dtype, shape)
            object.__setattr__(self, name, value)

    @property
    def num_segments(self) -> int:
        """Segments of queries S."""
        return len(self.q_start)

    def piece_mask(self, piece: int, rows: int) -> NDArray[np.bool_]:
        """Give the mask inside a piece whose segment has `rows` rows, bool ``[rows, kv_len]``."""
        length = int(self.kv_len[piece])
        if self.kind[piece] == PieceKind.FULL:
            return np.ones((rows, length), bool)
        first = int(self.mask_start[piece])
        if self.kind[piece] == PieceKind.BITS:
            width = -(-length // 8)
            packed = self.bits[first : first + rows * width].reshape(rows, width)
            return np.unpackbits(packed, axis=1, count=length).astype(bool)
        keys = np.arange(length, dtype=np.int32)
        seen = np.zeros((rows, length), bool)
        for lo, hi in zip(self.row_lo, self.row_hi, strict=True):
            lo_row, hi_row = lo[first : first + rows, None], hi[first : first + rows, None]
            if hi_row.any():
                seen |= (keys >= lo_row) & (keys < hi_row)
        return seen


@dataclass(frozen=True, slots=True, eq=False)
class RowRanges:
    """Visible keys of a run of rows: interval i says that `row[i]` sees ``[lo[i], hi[i])``.

    Sorted by (row, lo); the intervals of a row neither overlap nor touch. Packed coordinates.
    """

    row: NDArray[np.int64]
    lo: NDArray[np.int64]
    hi: NDArray[np.int64]

    def cut(self, rows: tuple[int, int], keys: tuple[int, int]) -> "RowRanges":
        """Keep what lies in the given rows and keys, counted from their starts."""
        first, last = np.searchsorted(self.row, rows)
        lo = np.maximum(self.lo[first:last], keys[0]) - keys[0]
        hi = np.minimum(self.hi[first:last], keys[1]) - keys[0]
        seen = lo < hi
        return RowRanges(self.row[first:last][seen] - rows[0], lo[seen], hi[seen])


def find_row_ranges(slabs: Slabs, start: int, end: int) -> RowRanges:
    """Expand the slabs to the intervals of the rows ``[start, end)``; O(slabs + intervals).

    >>> causal = Slabs(4, [0], [4], [0], [1], [0], [1])
    >>> ranges = find_row_ranges(causal, 2, 4)
    >>> ranges.row.tolist(), ranges.lo.tolist(), ranges.hi.tolist()
    ([2, 3], [0, 0], [3, 4])
    """
    chosen = np.flatnonzero((slabs.q_start < end) & (slabs.q_end > start))
    first = np.maximum(slabs.q_start[chosen], start)
    count = np.minimum(slabs.q_end[chosen], end) - first
    slab = np.repeat(chosen, count)
    # Row numbers of all slabs, one run behind the other, without a loop over slabs.
    row = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count - first, count)
    moved = row - slabs.q_start[slab]
    lo = slabs.kv_start[slab] + slabs.start_slope[slab] * moved
    hi = slabs.kv_end[slab] + slabs.end_slope[slab] * moved
    order = np.lexsort((lo, row))
    row, lo, hi = row[order], lo[order], hi[order]
    # Touching intervals become one, so that a sink that meets its window counts as one range.
    opens = np.ones(len(row), bool)
    opens[1:] = (row[1:] != row[:-1]) | (lo[1:] != hi[:-1])
    closes = np.ones(len(row), bool)
    closes[:-1] = opens[1:]
    return RowRanges(row[opens], lo[opens], hi[closes])


@dataclass(slots=True)
class _Collector:
    """The growing lists behind one `TileTable`."""

    segments: list[tuple[int, int, int]]
    pieces: list[tuple[int, int, int, int]]
    lo: list[NDArray[np.int64]]
    hi: list[NDArray[np.int64]]
    bits: list[NDArray[np.uint8]]
    num_rows: int = 0
    num_bytes: int = 0
    pairs: int = 0

    def add_full(self, kv_start: int, length: int, *, is_first: bool) -> None:
        """Add keys that every row sees, joining a full piece that ends where this one begins."""
        if not is_first and self.pieces:
            start, size, kind, _ = self.pieces[-1]
            if kind == PieceKind.FULL and start + size == kv_start:
                self.pieces[-1] = (start, size + length, PieceKind.FULL, -1)
                return
        self.pieces.append((kv_start, length, PieceKind.FULL, -1))

    def add_partial(self, kv_start: int, length: int, ranges: RowRanges, rows: int) -> None:
        """Add a piece with a mask; `ranges` are relative to the segment and the piece."""
        per_row = np.bincount(ranges.row, minlength=rows)
        if per_row.max() > MAX_RANGES:
            bits = _pack_bits(ranges, rows, length)
            self.pieces.append((kv_start, length, PieceKind.BITS, self.num_bytes))
            self.bits.append(bits)
            self.num_bytes += bits.size
            return
        place = np.arange(len(ranges.row)) - np.repeat(np.cumsum(per_row) - per_row, per_row)
        lo, hi = np.zeros((2, MAX_RANGES, rows), np.int64)
        lo[place, ranges.row], hi[place, ranges.row] = ranges.lo, ranges.hi
        self.pieces.append((kv_start, length, PieceKind.RANGES, self.num_rows))
        self.lo.append(lo)
        self.hi.append(hi)
        self.num_rows += rows

    def finish(self) -> TileTable:
        """Freeze what was collected."""
        q_start, q_len, piece_end = np.array(self.segments, np.int32).reshape(-1, 3).T
        pieces = np.array(self.pieces, np.int64).reshape(-1, 4).T
        empty = np.zeros((MAX_RANGES, 0), np.int64)
        return TileTable(
            q_start=q_start,
            q_len=q_len,
            row_ptr=np.concatenate([[0], piece_end]),
            kv_start=pieces[0].astype(np.int32),
            kv_len=pieces[1].astype(np.int32),
            kind=pieces[2].astype(np.uint8),
            mask_start=pieces[3],
            row_lo=np.concatenate([empty, *self.lo], axis=1),
            row_hi=np.concatenate([empty, *self.hi], axis=1),
            bits=np.concatenate([np.zeros(0, np.uint8), *self.bits]),
            pairs=self.pairs,
        )


def _pack_bits(ranges: RowRanges, rows: int, length: int) -> NDArray[np.uint8]:
    """Turn intervals into packed bits: +1 where one begins, -1 where it ends, summed along keys."""
    steps = np.zeros((rows, length + 1), np.int8)
    steps[ranges.row, ranges.lo] += 1  # intervals of a row neither overlap nor touch, so no key
    steps[ranges.row, ranges.hi] -= 1  # is named twice and plain indexing is enough
    return np.packbits(np.cumsum(steps[:, :length], axis=1, dtype=np.int8), axis=1).reshape(-1)


@dataclass(frozen=True, slots=True)
class BlockRows:
    """Where each block lies in a device's working buffers.

    Attributes:
        q, kv: first row of each block in the buffers of queries and of keys, by block.
    """

    q: dict[int, int]
    kv: dict[int, int]


class TableBuilder:
    """Builds the tables of one device; a query block is expanded to ranges once for all of them.

    Args:
        blocks, tiles, slabs: tables of the plan.
        rows: where blocks lie on this device.
        segment_rows: most query rows of a segment.
    """

    def __init__(
        self, blocks: Blocks, tiles: Tiles, slabs: Slabs, rows: BlockRows, segment_rows: int
    ) -> None:
        self.blocks = blocks
        self.tiles = tiles
        self.slabs = slabs
        self.rows = rows
        self.segment_rows = segment_rows
        self._ranges: dict[int, RowRanges] = {}

    def build(self, tiles: Sequence[int]) -> TileTable:
        """Build the table of the given tiles of the plan.

        Raises:
            RunError: if the plan states another number of pairs than its mask has in these tiles.
        """
        out = _Collector([], [], [], [], [])
        chosen = np.sort(np.asarray(tiles, np.int64))  # tiles are sorted by (q_block, kv_block)
        q_blocks = self.tiles.q_block[chosen]
        starts = np.flatnonzero(np.diff(q_blocks, prepend=-1))
        for q_block, group in zip(
            q_blocks[starts].tolist(), np.split(chosen, starts[1:]), strict=False
        ):
            self._add_block(out, q_block, group)
        stated = int(self.tiles.pairs[chosen].sum())
        if out.pairs != stated:
            raise RunError(
                f"the plan states {stated} visible pairs in tiles {chosen[:8].tolist()}..., its "
                f"mask has {out.pairs}; the plan is damaged: build it again"
            )
        return out.finish()

    def _add_block(self, out: _Collector, q_block: int, group: NDArray[np.int64]) -> None:
        start, end = int(self.blocks.start[q_block]), int(self.blocks.end[q_block])
        if q_block not in self._ranges and (self.tiles.kind[group] != BlockKind.FULL).any():
            self._ranges[q_block] = find_row_ranges(self.slabs, start, end)
        for first in range(start, end, self.segment_rows):
            last = min(first + self.segment_rows, end)
            before = len(out.pieces)
            for tile in group.tolist():
                self._add_piece(out, tile, (first, last), is_first=len(out.pieces) == before)
            if len(out.pieces) > before:
                q_row = self.rows.q[q_block] + first - start
                out.segments.append((q_row, last - first, len(out.pieces)))

    def _add_piece(
        self, out: _Collector, tile: int, segment: tuple[int, int], *, is_first: bool
    ) -> None:
        kv_block = int(self.tiles.kv_block[tile])
        keys = int(self.blocks.start[kv_block]), int(self.blocks.end[kv_block])
        kv_row, rows = self.rows.kv[kv_block], segment[1] - segment[0]
        if self.tiles.kind[tile] == BlockKind.FULL:
            out.pairs += rows * (keys[1] - keys[0])
            out.add_full(kv_row, keys[1] - keys[0], is_first=is_first)
            return
        found = self._ranges[int(self.tiles.q_block[tile])].cut(segment, keys)
        if not len(found.row):
            return
        low, high = int(found.lo.min()), int(found.hi.max())
        pairs = int((found.hi - found.lo).sum())
        out.pairs += pairs
        if pairs == rows * (high - low):
            out.add_full(kv_row + low, high - low, is_first=is_first)
            return
        trimmed = RowRanges(found.row, found.lo - low, found.hi - low)
        out.add_partial(kv_row + low, high - low, trimmed, rows)
