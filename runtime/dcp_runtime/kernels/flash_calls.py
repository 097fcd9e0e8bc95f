"""Rewrite a tile table as calls of a plain variable-length attention kernel.

Segments of a call are rectangles, causal triangles or windows (`varlen_calls`). Rows and keys that
lie in order in the buffers are used where they lie; others are gathered by index. Where a table
begins or ends the sums of rows, its first or last call with these rows does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dcp_dsl import ExchangeError, import_mask
from dcp_dsl.arrays import Bools, Indices, Ints, expand
from dcp_dsl.forms import ranges_of_tile
from dcp_dsl.interchange import Export, varlen_calls
from dcp_runtime.errors import RunError
from dcp_runtime.plans.tile_pieces import PieceKind
from dcp_runtime.plans.tile_table import TileTable

MAX_SEGMENTS = 512
"""Most segments of a call: backward takes float32 room for whole tiles of each, 2 MiB with 32 query
and 8 key heads of 128."""

Rows = Tensor | slice  # rows of a buffer: a slice where they lie in order, else their index
NO_ROW = slice(0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class FlashCall:
    """One call on the device: `VarlenCall` as tensors and slices, with the longest segments.

    With it the sums of its rows begin (`opens`) and end (`closes`), if they do so with its table.
    """

    causal: bool
    window: int
    q_idx: Rows
    kv_idx: Rows
    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    max_q: int
    max_k: int
    opens: bool
    closes: bool

    def to(self, device: torch.device) -> "FlashCall":
        """Return the same call on a device."""
        return replace(
            self,
            q_idx=_moved(self.q_idx, device),
            kv_idx=_moved(self.kv_idx, device),
            cu_seqlens_q=self.cu_seqlens_q.to(device),
            cu_seqlens_k=self.cu_seqlens_k.to(device),
        )


@dataclass(frozen=True, slots=True, eq=False)
class FlashTable:
    """The calls of a table, and the rows whose sums begin or end with it but with none of them."""

    calls: tuple[FlashCall, ...]
    blank: Rows
    left: Rows

    def to(self, device: torch.device) -> "FlashTable":
        """Return the same calls on a device."""
        calls = tuple(call.to(device) for call in self.calls)
        return FlashTable(calls, _moved(self.blank, device), _moved(self.left, device))

    def sums(self, wide: Tensor, rows: Tensor) -> Tensor:
        """Return room for the sums of rows: `wide`, or new memory where the plan keeps none."""
        is_direct = all(call.opens and call.closes for call in self.calls)
        is_used = not is_direct or _counts(self.blank) or _counts(self.left)
        if len(wide) == len(rows) or not is_used:
            return wide
        return rows.new_empty(rows.shape, dtype=wide.dtype)


def flash_calls(table: TileTable) -> FlashTable:
    """Rewrite a table as calls of a plain flash kernel; O(rows of its masks and of all calls)."""
    try:
        calls = varlen_calls(import_mask(_as_slices(table)), max_segments=MAX_SEGMENTS)
    except ExchangeError as error:
        raise RunError(
            "its calls would gather too many rows and keys of this plan; kernel 'triton' gathers "
            f"none ({error})"
        ) from error
    rows = [call.q_idx for call in calls]
    opens, blank = _turns(table, table.opens, rows)
    closes, left = _turns(table, table.closes, rows[::-1])
    made = (
        FlashCall(
            causal=call.causal,
            window=call.window,
            q_idx=_rows(call.q_idx),
            kv_idx=_rows(call.kv_idx),
            cu_seqlens_q=torch.from_numpy(call.cu_seqlens_q),
            cu_seqlens_k=torch.from_numpy(call.cu_seqlens_k),
            max_q=int(np.diff(call.cu_seqlens_q).max()),
            max_k=int(np.diff(call.cu_seqlens_k).max()),
            opens=is_first,
            closes=is_last,
        )
        for call, is_first, is_last in zip(calls, opens, closes[::-1], strict=True)
    )
    return FlashTable(tuple(made), blank, left)


def _turns(
    table: TileTable, marks: Bools | None, calls: Sequence[Indices]
) -> tuple[list[bool], Rows]:
    """Return which calls hold marked rows alone, in none before; and the marked rows in none."""
    chosen = np.flatnonzero(marks) if marks is not None else np.zeros(0, np.int64)
    segment, place = expand(0, table.q_len[chosen].astype(np.int64))
    waits = np.zeros(int((table.q_start + table.q_len).max(initial=0)), bool)
    waits[table.q_start[chosen][segment] + place] = True
    left, found = waits.copy(), []
    for rows in calls:
        found.append(bool(waits[rows].all()))
        waits[rows] = False
        left[rows] &= not found[-1]
    return found, _rows(np.flatnonzero(left))


def _as_slices(table: TileTable) -> Export:
    """Write the pairs of a table as rectangles: whole pieces, and the runs of each masked row."""
    # `import_mask` joins rows to slabs again, from which `varlen_calls` makes windows and
    # triangles.
    segment = np.repeat(np.arange(table.num_segments), np.diff(table.row_ptr))
    q, rows = table.q_start[segment].astype(np.int64), table.q_len[segment].astype(np.int64)
    k = table.kv_start.astype(np.int64)
    is_full = table.kind == PieceKind.FULL
    # Boxes of [first row, end row, first key, end key], int64 [N, 4].
    boxes: list[Ints] = [np.column_stack([q, q + rows, k, k + table.kv_len])[is_full]]
    pieces = np.flatnonzero(table.kind == PieceKind.RANGES)
    piece, place = expand(0, rows[pieces])
    piece = pieces[piece]
    row, at = q[piece] + place, table.mask_start[piece] + place
    for low, high in zip(table.row_lo[:, at], table.row_hi[:, at], strict=True):
        box = np.column_stack([row, row + 1, k[piece] + low, k[piece] + high])
        boxes.append(box[low < high])
    for bits in np.flatnonzero(table.kind == PieceKind.BITS).tolist():
        row_ptr, begin, end = ranges_of_tile(table.piece_mask(bits, int(rows[bits])))
        row = q[bits] + np.repeat(np.arange(rows[bits]), np.diff(row_ptr))
        boxes.append(np.column_stack([row, row + 1, k[bits] + begin, k[bits] + end]))
    table_of = np.concatenate(boxes)
    tokens = int(table_of[:, [1, 3]].max(initial=0))
    kind = np.zeros(len(table_of), np.int64)
    return Export(
        "magi",
        tokens,
        {"q_ranges": table_of[:, :2], "k_ranges": table_of[:, 2:], "attn_type_map": kind},
    )


def _moved(rows: Rows, device: torch.device) -> Rows:
    return rows if isinstance(rows, slice) else rows.to(device)


def _rows(index: Indices | Ints) -> Rows:
    first = int(index[0]) if len(index) else 0
    in_order = np.array_equal(index, np.arange(first, first + len(index)))
    return slice(first, first + len(index)) if in_order else torch.from_numpy(index)


def _counts(rows: Rows) -> bool:
    return isinstance(rows, Tensor) or rows != NO_ROW
