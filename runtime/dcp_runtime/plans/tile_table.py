"""Write the work of an attention instruction as a table of rows: which queries meet which keys.

A plan names blocks of a packed batch, a kernel reads rows of buffers: `TableBuilder` moves the
pieces of tiles to where their blocks lie.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import numpy as np

from dcp_dsl.arrays import Bools, Bytes, Indices, Ints, Record
from dcp_planner.tables import GRID, Blocks, ComputeBlocks
from dcp_runtime.plans.tile_pieces import MAX_RANGES, PieceKind, TilePieces
from dcp_runtime.plans.transfers import merged_rows

AddsTo: TypeAlias = Literal["both", "dq", "dkv"]
"""Gradients that a table is for: those of queries, of keys, or both."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class TileTable(Record):
    """Work of one attention instruction: S segments of queries, each with its pieces of keys.

    All positions are rows of the device's working buffers; ranges are half-open.

    Row r of a `RANGES` piece sees its keys ``[row_lo[k, mask_start + r], row_hi[k, mask_start +
    r])``, for every k; an unused range is ``[0, 0)``. Row r of a `BITS` piece is ``ceil(kv_len /
    8)`` bytes, key 0 in the highest bit (`numpy.packbits`). All tables of a device share these
    arrays. In an ordered table each sum gets a single piece, whose bits must not depend on others;
    a segment may be listed for each of its pieces.
    """

    q_start: Annotated[Indices, "S"]  # queries of each segment; no query is in two segments
    q_len: Annotated[Indices, "S"]
    row_ptr: Annotated[Indices, "S+1"]  # segment i has the pieces row_ptr[i]:row_ptr[i+1]
    kv_start: Annotated[Indices, "P"]  # keys of each piece
    kv_len: Annotated[Indices, "P"]
    kind: Annotated[Bytes, "P"]  # `PieceKind`
    mask_start: Annotated[Ints, "P"]  # first column of `row_lo`, or byte of `bits`; else -1
    row_lo: Annotated[Indices, MAX_RANGES, "M"]
    row_hi: Annotated[Indices, MAX_RANGES, "M"]
    bits: Annotated[Bytes, "Z"]
    pairs: int  # visible, of the whole table
    opens: Annotated[Bools | None, "S"] = None  # the sums of a segment begin here (`own_sums`)
    closes: Annotated[Bools | None, "S"] = None  # they end here
    opens_keys: bool = False  # the same of the gradients of all keys that the table meets
    closes_keys: bool = False
    adds_to: AddsTo = "both"
    is_ordered: bool = False

    @property
    def num_segments(self) -> int:
        """Segments of queries S."""
        return len(self.q_start)

    def key_rows(self) -> tuple[slice, ...]:
        """Return the keys that the table meets, as few runs of rows; no two pieces share one."""
        spans = sorted(zip(self.kv_start.tolist(), self.kv_len.tolist(), strict=True))
        return merged_rows(slice(start, start + size) for start, size in spans)

    def piece_mask(self, piece: int, rows: int) -> Bools:
        """Return the mask inside a piece of `rows` rows, bool ``[rows, kv_len]``."""
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
            if hi_row.any():  # most pieces have one range per row: spare a pass over all pairs
                seen |= (keys >= lo_row) & (keys < hi_row)
        return seen


class TableBuilder:
    """Builds the tables of one device and direction from the pieces of the device's tiles.

    `rows` are for every tile of the plan the first row of its queries and of its keys in the
    device's working buffers, int64 ``[W]`` each.
    """

    def __init__(
        self, blocks: Blocks, tiles: ComputeBlocks, pieces: TilePieces, rows: tuple[Ints, Ints]
    ) -> None:
        self._pieces = pieces
        q_block, kv_block = tiles.q_block[pieces.tile], tiles.kv_block[pieces.tile]
        self._q_row = rows[0][pieces.tile] + pieces.q_start - blocks.start[q_block]
        self._kv_row = rows[1][pieces.tile] + pieces.kv_start - blocks.start[kv_block]
        # Of keys, where a plan has a grid: its cell, as a number that rises with positions.
        self._cell = blocks.start[kv_block] + (
            (pieces.kv_start - blocks.start[kv_block]) // GRID * GRID
        )

    def build(self, tiles: tuple[int, ...]) -> TileTable:
        """Build the table of the given tiles; O(pieces of the device)."""
        chosen = np.flatnonzero(np.isin(self._pieces.tile, tiles))
        kv_row, kv_len = self._kv_row[chosen], self._pieces.kv_len[chosen]
        kind = self._pieces.kind[chosen]
        # Pieces are sorted by their queries, so the pieces of a segment are neighbours.
        opens_segment = np.diff(self._pieces.q_start[chosen], prepend=-1) != 0
        # Full pieces whose rows follow one another become one: a kernel then has longer loops.
        opens = opens_segment.copy()
        opens[1:] |= (kind[1:] != PieceKind.FULL) | (kind[:-1] != PieceKind.FULL)
        opens[1:] |= kv_row[:-1] + kv_len[:-1] != kv_row[1:]
        return self._table(chosen, np.flatnonzero(opens), np.flatnonzero(opens_segment))

    def build_ordered(self, tiles: tuple[int, ...], adds_to: AddsTo) -> list[TileTable]:
        """Build tables from each of which every sum gets one piece."""
        # A query gets its keys from the last to the first. A key gets its queries in any order: the
        # sums of its gradients are exact.
        pieces = self._pieces
        chosen = np.flatnonzero(np.isin(pieces.tile, tiles))
        q_start, cell = pieces.q_start[chosen], self._cell[chosen]
        chain, place = (cell, q_start) if adds_to == "dkv" else (q_start, -cell)
        order = np.lexsort((place, chain))
        chosen, chain = chosen[order], chain[order]
        first = np.flatnonzero(np.diff(chain, prepend=-1))
        nth = np.arange(len(chain)) - np.repeat(first, np.diff(first, append=len(chain)))
        tables = []
        for n in range(int(nth.max(initial=-1)) + 1):
            part = chosen[nth == n]
            each = np.arange(len(part))  # a segment of its own: these share no sum
            tables.append(self._table(part, each, each, adds_to, is_ordered=True))
        return tables

    def _table(
        self,
        chosen: Ints,
        first: Ints,
        segment: Ints,
        adds_to: AddsTo = "both",
        *,
        is_ordered: bool = False,
    ) -> TileTable:
        """Make a table of pieces, joined to those `first`, of which some begin a segment."""
        pieces, masks = self._pieces, self._pieces.masks
        return TileTable(
            q_start=self._q_row[chosen[segment]].astype(np.int32),
            q_len=pieces.q_len[chosen[segment]].astype(np.int32),
            row_ptr=np.append(np.searchsorted(first, segment), len(first)).astype(np.int32),
            kv_start=self._kv_row[chosen[first]].astype(np.int32),
            kv_len=np.add.reduceat(pieces.kv_len[chosen], first).astype(np.int32),
            kind=pieces.kind[chosen[first]],
            mask_start=pieces.mask_start[chosen[first]],
            row_lo=masks.row_lo,
            row_hi=masks.row_hi,
            bits=masks.bits,
            pairs=int(pieces.pairs[chosen].sum()),
            adds_to=adds_to,
            is_ordered=is_ordered,
        )
