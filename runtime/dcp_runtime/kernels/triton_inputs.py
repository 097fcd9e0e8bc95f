"""The arrays that the Triton kernels read: runs of keys and of queries, moved to a device at once.

Pieces are cut into runs that every row sees whole, and runs with a mask: a causal diagonal or the
edges of a window are a small part of their piece, and the rest needs no mask arithmetic.

dk and dv of a key gather from all queries that see it. Cutting the key rows at multiples of a chunk
gives every row to exactly one program, however the pieces overlap, so sums need no atomics.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dcp_dsl.arrays import Indices, Ints, expand
from dcp_runtime.plans.device_plan import TileTable
from dcp_runtime.plans.tile_pieces import MAX_RANGES, PieceKind

ALIGNMENT = 16
"""Bytes: every array begins where any type may begin."""
_BEYOND = np.iinfo(np.int32).max
"""A number above all chunks."""
_DTYPES = {"int32": torch.int32, "int64": torch.int64, "uint8": torch.uint8}


class QueryRuns(NamedTuple):
    """R runs of keys of S segments: what forward and dq loop over.

    Attributes:
        order: int32 ``[S]``, segments by falling work: the last programs to start are short.
        q_start, q_len: int32 ``[S]``, the rows of each segment, which one program computes.
        row_ptr, masked_ptr: int32 ``[S+1]`` and ``[S]``; segment i has the runs
            ``row_ptr[i]:row_ptr[i+1]``, those from ``masked_ptr[i]`` on with a mask.
        kv_start: int32 ``[R]``, first key row of the piece that the run is cut from.
        begin, end: int32 ``[R]``, keys of the run, counted from `kv_start`.
        kind, mask_start, kv_len: int32, int64, int32 ``[R]``, of the piece.
    """

    order: Indices
    q_start: Indices
    q_len: Indices
    row_ptr: Indices
    masked_ptr: Indices
    kv_start: Indices
    begin: Indices
    end: Indices
    kind: Indices
    mask_start: Ints
    kv_len: Indices


class KeyRuns(NamedTuple):
    """R runs of queries of C chunks of key rows: what dk and dv loop over.

    Attributes:
        order: int32 ``[C]``, chunks by falling work.
        chunk_row: int32 ``[C]``, first row of each chunk, a multiple of the chunk size.
        chunk_ptr, masked_ptr: int32 ``[C+1]`` and ``[C]``; chunk i has the runs
            ``chunk_ptr[i]:chunk_ptr[i+1]``, those from ``masked_ptr[i]`` on with a mask.
        q_start, q_len: int32 ``[R]``, queries of the run; without a mask possibly of several
            segments.
        kv_start, kv_len, kind, mask_start: int32 and int64 ``[R]``, of the piece; a run without a
            mask has the rows of its chunk.
    """

    order: Indices
    chunk_row: Indices
    chunk_ptr: Indices
    masked_ptr: Indices
    q_start: Indices
    q_len: Indices
    kv_start: Indices
    kv_len: Indices
    kind: Indices
    mask_start: Ints


def cut_segments(table: TileTable, rows: int) -> TileTable:
    """Cut the segments of a table into segments of at most `rows` rows, which keep all pieces.

    Segments of no rows go. Cost: O(segments and pieces of the result).
    """
    segment, offset = expand(0, -(-table.q_len.astype(np.int64) // rows))
    offset *= rows
    pieces = np.diff(table.row_ptr)[segment].astype(np.int64)
    part, piece = expand(table.row_ptr[segment].astype(np.int64), pieces)
    kind, kv_len = table.kind[piece], table.kv_len[piece]
    # Each row has a column of ranges, or as many bytes as its bits fill.
    width = np.where(kind == PieceKind.BITS, -(-kv_len // 8), 1)
    return replace(
        table,
        q_start=(table.q_start[segment] + offset).astype(np.int32),
        q_len=np.minimum(table.q_len[segment] - offset, rows).astype(np.int32),
        row_ptr=np.append(0, np.cumsum(pieces)).astype(np.int32),
        kv_start=table.kv_start[piece],
        kv_len=kv_len,
        kind=kind,
        mask_start=table.mask_start[piece] + offset[part] * width,
    )


def seen_keys(table: TileTable) -> tuple[Ints, Ints, Ints, Ints]:
    """Return where the keys of each piece begin and end that any row sees, and that all rows see.

    The first two are int64 ``[P]``. The last two, int64 ``[2, P]``, are intervals, ascending and
    disjoint; an empty one ends where it starts. All are counted from the piece's first key. Any row
    may see any key of a piece of bits, and all see none. Cost: O(rows of range pieces).
    """
    first, last = np.zeros(len(table.kind), np.int64), table.kv_len.astype(np.int64)
    low = np.zeros((MAX_RANGES, len(table.kind)), np.int64)
    high = low.copy()
    is_full = table.kind == PieceKind.FULL
    high[0, is_full] = last[is_full]
    rows = np.repeat(table.q_len, np.diff(table.row_ptr)).astype(np.int64)
    pieces = np.flatnonzero((table.kind == PieceKind.RANGES) & (rows > 0))
    if len(pieces):
        rows = rows[pieces]
        begins = np.cumsum(rows) - rows
        column = np.repeat(table.mask_start[pieces] - begins, rows) + np.arange(rows.sum())
        row_lo, row_hi = table.row_lo[:, column], table.row_hi[:, column]
        low[:, pieces] = np.maximum.reduceat(row_lo, begins, axis=1)
        high[:, pieces] = np.minimum.reduceat(row_hi, begins, axis=1)
        # An unused range begins behind all others.
        row_lo = np.where(row_lo < row_hi, row_lo, _BEYOND).min(axis=0)
        last[pieces] = np.maximum.reduceat(row_hi.max(axis=0), begins)
        first[pieces] = np.minimum(np.minimum.reduceat(row_lo, begins), last[pieces])
    # Rows may disagree on which of their ranges is the first.
    low[1] = np.maximum(low[1], np.maximum(high[0], low[0]))
    return first, last, low, np.maximum(low, high)


def query_runs(table: TileTable, step: int, rows: int) -> QueryRuns:
    """Cut the pieces of a table into runs that are seen whole, in steps of `step` keys, and others.

    A segment, of at most `rows` rows, is what one program computes; keys that none of its rows sees
    are in no run. Cost: O(pieces log pieces + rows of range pieces).
    """
    table = cut_segments(table, rows)
    first, last, low, high = seen_keys(table)
    high = low + (high - low) // step * step
    empty = low == high
    low[empty] = high[empty] = 0
    low[0], high[0] = np.maximum(low[0], first), np.maximum(high[0], first)
    low[1], high[1] = np.maximum(low[1], high[0]), np.maximum(high[1], high[0])
    # Five parts a piece: 1 and 3 are seen whole; 0, 2 and 4, between and around them, have a mask.
    cuts = np.stack([first, low[0], high[0], low[1], high[1], last], axis=1)
    piece, part = np.nonzero(np.diff(cuts, axis=1))
    is_masked = part % 2 == 0
    segment = np.repeat(np.arange(table.num_segments), np.diff(table.row_ptr))[piece]
    by = np.argsort(2 * segment + is_masked, kind="stable")  # whole runs have even numbers
    piece, part, is_masked, segment = piece[by], part[by], is_masked[by], segment[by]
    begin, end = cuts[piece, part], cuts[piece, part + 1]
    ends = np.searchsorted(2 * segment + is_masked, np.arange(2 * table.num_segments), "right")
    steps = np.bincount(segment, -(-(end - begin) // step), table.num_segments)
    return QueryRuns(
        order=_falling(steps * table.q_len),
        q_start=table.q_start,
        q_len=table.q_len,
        row_ptr=np.append(0, ends[1::2]).astype(np.int32),
        masked_ptr=ends[::2].astype(np.int32),
        kv_start=table.kv_start[piece],
        begin=begin.astype(np.int32),
        end=end.astype(np.int32),
        kind=table.kind[piece].astype(np.int32),
        mask_start=table.mask_start[piece],
        kv_len=table.kv_len[piece],
    )


def key_runs(table: TileTable, chunk: int, step: int) -> KeyRuns:
    """List, for every chunk of key rows that a table meets, the queries that see it.

    Neighbours that see all of a chunk become one run, in whole steps of `step` rows; what is left
    of them counts as masked. Cost: O(pieces log pieces + entries).
    """
    segment = np.repeat(np.arange(table.num_segments), np.diff(table.row_ptr))
    pieces = np.argsort(table.q_start[segment], kind="stable")
    first = table.kv_start[pieces] // chunk
    count = (table.kv_start[pieces] + table.kv_len[pieces] - 1) // chunk - first + 1
    entry, place = expand(0, count)
    number, piece = first[entry] + place, pieces[entry]
    begin = number * chunk - table.kv_start[piece]
    _, _, low, high = seen_keys(table)
    is_masked = ~((low[:, piece] <= begin) & (begin + chunk <= high[:, piece])).any(axis=0)
    key = 2 * number + is_masked
    # 16 bits hold a million keys in chunks of 32, and numpy sorts them by radix, in linear time.
    is_short = int(key.max(initial=0)) < 1 << 16
    order = np.argsort(key.astype(np.uint16) if is_short else key, kind="stable")
    key, piece = key[order], piece[order]
    q_start, q_len = table.q_start[segment[piece]], table.q_len[segment[piece]]
    opens = np.append(True, (np.diff(key) > 0) | (q_start[1:] != (q_start + q_len)[:-1]))
    opens[1:] |= key[1:] % 2 == 1
    at = np.flatnonzero(opens[: len(key)])
    key, piece, q_start = key[at], piece[at], q_start[at]
    q_len = np.add.reduceat(q_len, at) if len(at) else q_len
    is_masked = key % 2 == 1
    left = np.where(is_masked, 0, q_len % step)
    q_len, last = q_len - left, np.flatnonzero(left)
    # The odd number behind a chunk's even one is that of its masked runs.
    key, piece = np.append(key, key[last] + 1), np.append(piece, piece[last])
    q_start = np.append(q_start, (q_start + q_len)[last])
    q_len = np.append(q_len, left[last])
    is_masked = np.append(is_masked, left[last] == 0)
    order = np.argsort(key, kind="stable")
    order = order[q_len[order] > 0]
    key, piece, is_masked = key[order], piece[order], is_masked[order]
    q_start, q_len, number = q_start[order], q_len[order], key // 2
    numbers = np.unique(number)
    kind = np.where(is_masked, table.kind[piece], PieceKind.FULL)
    return KeyRuns(
        order=_falling(np.bincount(np.searchsorted(numbers, number), q_len, len(numbers))),
        chunk_row=(numbers * chunk).astype(np.int32),
        chunk_ptr=np.searchsorted(number, np.append(numbers, _BEYOND)).astype(np.int32),
        masked_ptr=np.searchsorted(key, 2 * numbers + 1).astype(np.int32),
        q_start=q_start,
        q_len=q_len.astype(np.int32),
        kv_start=np.where(is_masked, table.kv_start[piece], number * chunk).astype(np.int32),
        kv_len=np.where(is_masked, table.kv_len[piece], chunk).astype(np.int32),
        kind=kind.astype(np.int32),
        mask_start=table.mask_start[piece],
    )


def _falling(work: "NDArray[Any]") -> Indices:  # Any: of integers or floats
    return np.argsort(-work, kind="stable").astype(np.int32)


def move_arrays(
    arrays: "Sequence[NDArray[Any]]", device: torch.device
) -> tuple[Tensor, ...]:  # Any: arrays of different types
    """Move int32, int64 and uint8 arrays; the results are views of one tensor on the device.

    To CUDA they go through one buffer in pinned memory, without waiting: work that is queued on the
    current stream afterwards finds them there, and the buffer is not used again before they are.

    >>> arrays = [np.arange(3, dtype=np.int32), np.ones((2, 2), np.uint8)]
    >>> a, b = move_arrays(arrays, torch.device("cpu"))
    >>> a.tolist(), b.tolist(), a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    ([0, 1, 2], [[1, 1], [1, 1]], True)
    """
    sizes = np.array([-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays], np.int64)
    starts = (np.cumsum(sizes) - sizes).tolist()
    is_cuda = device.type == "cuda"
    staged = torch.empty(int(sizes.sum()), dtype=torch.uint8, pin_memory=is_cuda)
    room = staged.numpy()
    for array, start in zip(arrays, starts, strict=True):
        room[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    there = staged.to(device, non_blocking=True)
    return tuple(
        there[start : start + array.nbytes].view(_DTYPES[array.dtype.name]).view(array.shape)
        for array, start in zip(arrays, starts, strict=True)
    )
