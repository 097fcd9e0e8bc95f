"""The arrays that the Triton kernels read: runs of keys and of queries, moved to a device at once.

Pieces are cut into runs that every row sees whole, and runs with a mask: a causal diagonal or the
edges of a window are a small part of their piece, and the rest needs no mask arithmetic.

The gradients dk and dv of a key are sums over all queries that see it. Key rows are cut at
multiples of a chunk, and one program computes a chunk, however the pieces overlap: every row has
exactly one program, so sums need no atomics.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dcp_dsl.arrays import Indices, Ints, expand
from dcp_runtime.plans.tile_pieces import MAX_RANGES, PieceKind
from dcp_runtime.plans.tile_table import TileTable

ALIGNMENT = 16  # bytes; an array of any element type may begin at a multiple of it
_BEYOND = np.iinfo(np.int32).max  # a number above all keys and chunks
OPENS, CLOSES = 1, 2  # bits of a segment: its sums begin with this table; they end with it
_DTYPES = {"int32": torch.int32, "int64": torch.int64, "uint8": torch.uint8}


class QueryRuns(NamedTuple):
    """R runs of keys of S segments, over which forward and dq loop; int32.

    Segment i has the runs ``row_ptr[i]:row_ptr[i+1]``, those from ``masked_ptr[i]`` on with a mask.
    Kind, mask and length are those of the piece that the run is cut from.
    """

    order: Indices  # [S], by falling work: no long program runs alone at the end
    q_start: Indices  # [S], the rows of each segment, which one program computes
    q_len: Indices
    turns: Indices  # [S], `OPENS` and `CLOSES` of each segment, added up
    row_ptr: Indices  # [S+1]
    masked_ptr: Indices  # [S]
    kv_start: Indices  # [R], first key row of the piece
    begin: Indices  # [R], keys of the run, counted from `kv_start`
    end: Indices
    kind: Indices
    mask_start: Ints
    kv_len: Indices


class KeyRuns(NamedTuple):
    """R runs of queries of C chunks of key rows, over which dk and dv loop; int32.

    Chunk i has the runs ``chunk_ptr[i]:chunk_ptr[i+1]``, those from ``masked_ptr[i]`` on with a
    mask. Keys, kind and mask are those of the piece; a run without a mask has the rows of its
    chunk.
    """

    order: Indices  # [C], by falling work
    chunk_row: Indices  # [C], first row
    chunk_ptr: Indices  # [C+1]
    masked_ptr: Indices  # [C]
    q_start: Indices  # [R]; without a mask possibly of several segments
    q_len: Indices
    kv_start: Indices
    kv_len: Indices
    kind: Indices
    mask_start: Ints


def cut_segments(table: TileTable, rows: int) -> TileTable:
    """Cut the segments of a table into segments of at most `rows` rows, which keep all pieces.

    Segments without rows are left out. Cost: O(segments and pieces of the result).
    """
    segment, offset = expand(0, -(-table.q_len.astype(np.int64) // rows))
    offset *= rows
    pieces = np.diff(table.row_ptr)[segment].astype(np.int64)
    part, piece = expand(table.row_ptr[segment].astype(np.int64), pieces)
    kind, kv_len = table.kind[piece], table.kv_len[piece]
    # The mask of a cut segment starts as many rows further on; a row has a column of ranges, or the
    # bytes that its bits fill. Full pieces have no mask: what becomes of their -1 is never read.
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
        opens=None if table.opens is None else table.opens[segment],
        closes=None if table.closes is None else table.closes[segment],
    )


def seen_keys(table: TileTable) -> tuple[Ints, Ints, Ints, Ints]:
    """Return first and end of the keys of each piece that some row sees, and that all rows see.

    Keys are counted from the piece's first key. The first two, int64 ``[P]``, are those that some
    row sees; of a piece of bits, all. The other two, ``[2, P]``, are those of two disjoint
    intervals that all rows see; of a piece of bits, none. An empty interval ends where it starts.
    O(rows of range pieces).
    """
    first, last = np.zeros(len(table.kind), np.int64), table.kv_len.astype(np.int64)
    low = np.zeros((MAX_RANGES, len(table.kind)), np.int64)
    high = low.copy()
    is_full = table.kind == PieceKind.FULL
    high[0, is_full] = last[is_full]
    rows = np.repeat(table.q_len, np.diff(table.row_ptr)).astype(np.int64)
    pieces = np.flatnonzero((table.kind == PieceKind.RANGES) & (rows > 0))
    rows = rows[pieces]
    begins = np.cumsum(rows) - rows
    column = np.repeat(table.mask_start[pieces] - begins, rows) + np.arange(rows.sum())
    row_lo, row_hi = table.row_lo[:, column], table.row_hi[:, column]
    # All rows see the keys from the last start to the first end; an unused range makes that empty.
    low[:, pieces] = np.maximum.reduceat(row_lo, begins, axis=1)
    high[:, pieces] = np.minimum.reduceat(row_hi, begins, axis=1)
    # For the keys that some row sees, an unused range counts as beginning behind all others.
    row_lo = np.where(row_lo < row_hi, row_lo, _BEYOND).min(axis=0)
    last[pieces] = np.maximum.reduceat(row_hi.max(axis=0), begins)
    first[pieces] = np.minimum(np.minimum.reduceat(row_lo, begins), last[pieces])
    # Disjoint: the second range of each row begins behind its first, so behind their common end.
    return first, last, low, np.maximum(low, high)


def query_runs(table: TileTable, step: int, rows: int) -> QueryRuns:
    """Cut pieces into runs of keys that all rows see, in steps of `step` keys, and masked runs.

    One program computes a segment of at most `rows` rows; keys that none of its rows sees are in no
    run. Cost: O(pieces log pieces + rows of range pieces).
    """
    table = cut_segments(table, rows)
    first, last, low, high = seen_keys(table)
    # The loop over whole runs has no mask, so it must end with a whole step.
    high = low + (high - low) // step * step
    empty = low == high
    low[empty] = high[empty] = 0
    # Keeps the borders below rising: first <= low[0] <= high[0] <= low[1] <= high[1] <= last.
    low[0], high[0] = np.maximum(low[0], first), np.maximum(high[0], first)
    low[1], high[1] = np.maximum(low[1], high[0]), np.maximum(high[1], high[0])
    # Five parts a piece: 1 and 3 are seen whole; 0, 2 and 4, between and around them, have a mask.
    cuts = np.stack([first, low[0], high[0], low[1], high[1], last], axis=1)
    piece, part = np.nonzero(np.diff(cuts, axis=1))
    is_masked = part % 2 == 0
    segment = np.repeat(np.arange(table.num_segments), np.diff(table.row_ptr))[piece]
    by = np.argsort(2 * segment + is_masked, kind="stable")  # of a segment, whole runs come first
    piece, part, is_masked, segment = piece[by], part[by], is_masked[by], segment[by]
    begin, end = cuts[piece, part], cuts[piece, part + 1]
    ends = np.searchsorted(2 * segment + is_masked, np.arange(2 * table.num_segments), "right")
    steps = np.bincount(segment, -(-(end - begin) // step), table.num_segments)
    return QueryRuns(
        order=_falling(steps * table.q_len),
        q_start=table.q_start,
        q_len=table.q_len,
        turns=_turns(table),
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

    Neighbours that see all of a chunk become one run, in whole steps of `step` rows; the rows that
    are left of it count as masked. An entry is a piece and a chunk that it meets. Cost: O(pieces
    log pieces + entries log entries).
    """
    segment = np.repeat(np.arange(table.num_segments), np.diff(table.row_ptr))
    pieces = np.argsort(table.q_start[segment], kind="stable")
    # Chunks count from row 0, but in an ordered table each piece has chunks of its own: its bits
    # then do not depend on the rows where it lies.
    origin = table.kv_start[pieces] if table.is_ordered else 0
    first = (table.kv_start[pieces] - origin) // chunk
    count = (table.kv_start[pieces] + table.kv_len[pieces] - 1 - origin) // chunk - first + 1
    entry, place = expand(0, count)
    number, piece = first[entry] + place, pieces[entry]
    row_of = np.arange(number.max(initial=-1) + 1) * chunk
    if table.is_ordered:
        row_of = table.kv_start[piece] + number * chunk
        number = np.arange(len(number))
    begin = row_of[number] - table.kv_start[piece]
    _, _, low, high = seen_keys(table)
    is_masked = ~((low[:, piece] <= begin) & (begin + chunk <= high[:, piece])).any(axis=0)
    key = 2 * number + is_masked
    order = np.argsort(key, kind="stable")  # entries of a chunk stay in the order of their queries
    key, piece = key[order], piece[order]
    q_start, q_len = table.q_start[segment[piece]], table.q_len[segment[piece]]
    opens = np.ones(len(key), np.bool_)
    opens[1:] = (np.diff(key) > 0) | (q_start[1:] != (q_start + q_len)[:-1]) | (key[1:] % 2 == 1)
    at = np.flatnonzero(opens)
    key, piece, q_start, q_len = key[at], piece[at], q_start[at], np.add.reduceat(q_len, at)
    is_masked = key % 2 == 1
    left = np.where(is_masked, 0, q_len % step)
    q_len, last = q_len - left, np.flatnonzero(left)
    # The rows that are left go to the masked runs, whose odd number is behind the chunk's even one.
    # They see the whole chunk, so they do not take the mask of their piece.
    key, piece = np.append(key, key[last] + 1), np.append(piece, piece[last])
    q_start = np.append(q_start, (q_start + q_len)[last])
    q_len = np.append(q_len, left[last])
    is_masked = np.append(is_masked, np.zeros(len(last), np.bool_))
    order = np.argsort(key, kind="stable")
    order = order[q_len[order] > 0]
    key, piece, is_masked = key[order], piece[order], is_masked[order]
    q_start, q_len, number = q_start[order], q_len[order], key // 2
    numbers = np.unique(number)
    kind = np.where(is_masked, table.kind[piece], PieceKind.FULL)
    return KeyRuns(
        order=_falling(np.bincount(np.searchsorted(numbers, number), q_len, len(numbers))),
        chunk_row=row_of[numbers].astype(np.int32),
        chunk_ptr=np.searchsorted(number, np.append(numbers, _BEYOND)).astype(np.int32),
        masked_ptr=np.searchsorted(key, 2 * numbers + 1).astype(np.int32),
        q_start=q_start,
        q_len=q_len.astype(np.int32),
        kv_start=np.where(is_masked, table.kv_start[piece], row_of[number]).astype(np.int32),
        kv_len=np.where(is_masked, table.kv_len[piece], chunk).astype(np.int32),
        kind=kind.astype(np.int32),
        mask_start=table.mask_start[piece],
    )


def _turns(table: TileTable) -> Indices:
    turns = np.zeros(table.num_segments, np.int32)
    if table.opens is not None and table.closes is not None:
        turns += OPENS * table.opens + CLOSES * table.closes
    return turns


def _falling(work: "NDArray[Any]") -> Indices:  # Any: of integers or floats
    return np.argsort(-work, kind="stable").astype(np.int32)


def move_arrays(
    arrays: "Sequence[NDArray[Any]]", device: torch.device
) -> tuple[Tensor, ...]:  # Any: arrays of different types
    """Move int32, int64 and uint8 arrays; the results are views of one tensor on the device.

    To CUDA they go through one buffer in pinned memory, and the host does not wait: work that is
    queued on the current stream afterwards finds them there, and torch does not use the buffer
    again before they have left it.

    >>> arrays = [np.arange(3, dtype=np.int32), np.ones((2, 2), np.uint8)]
    >>> a, b = move_arrays(arrays, torch.device("cpu"))
    >>> a.tolist(), b.tolist(), a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    ([0, 1, 2], [[1, 1], [1, 1]], True)
    """
    sizes = np.array([-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays], np.int64)
    starts = (np.cumsum(sizes) - sizes).tolist()
    is_cuda = device.type == "cuda"
    staged = torch.empty(int(sizes.sum()), dtype=torch.uint8, device="cpu", pin_memory=is_cuda)
    room = staged.numpy()
    for array, start in zip(arrays, starts, strict=True):
        room[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    there = staged.to(device, non_blocking=True)
    return tuple(
        there[start : start + array.nbytes].view(_DTYPES[array.dtype.name]).view(array.shape)
        for array, start in zip(arrays, starts, strict=True)
    )
