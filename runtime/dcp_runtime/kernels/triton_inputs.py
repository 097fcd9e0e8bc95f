"""The arrays that the Triton kernels read: tile tables by keys, moved to the device at once.

dk and dv of a key gather from all queries that see it. Cutting the key rows at multiples of a chunk
gives every row to exactly one program, however the pieces overlap, so sums need no atomics.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dcp_dsl.arrays import Indices
from dcp_runtime.plans.tile_table import TileTable

ALIGNMENT = 16
"""Bytes: every array begins where any type may begin."""
_DTYPES = {"int32": torch.int32, "int64": torch.int64, "uint8": torch.uint8}


class KeyChunks(NamedTuple):
    """C runs of key rows, each with the pieces that meet it.

    Attributes:
        chunk_row: int32 ``[C]``, first row of each chunk, a multiple of the chunk size.
        chunk_ptr: int32 ``[C+1]``, chunk i has the entries ``chunk_ptr[i]:chunk_ptr[i+1]``.
        segment, piece: int32 ``[E]``, of the table; ascending within a chunk.
    """

    chunk_row: Indices
    chunk_ptr: Indices
    segment: Indices
    piece: Indices


def cut_keys(table: TileTable, chunk: int) -> KeyChunks:
    """List, for every run of `chunk` key rows that a table meets, its segments and pieces.

    Cost: O(pieces + entries).
    """
    first = table.kv_start // chunk
    count = (table.kv_start + table.kv_len - 1) // chunk - first + 1
    piece = np.repeat(np.arange(len(first), dtype=np.int32), count)
    begin = (np.cumsum(count) - count).astype(np.int32)
    number = np.arange(len(piece), dtype=np.int32) + (first - begin)[piece]
    # 16 bits hold 2 million keys in chunks of 32, and numpy sorts them by radix, in linear time.
    is_short = int(number.max(initial=0)) < 1 << 16
    order = np.argsort(number.astype(np.uint16) if is_short else number, kind="stable")
    number, piece = number[order], piece[order]
    begins = np.flatnonzero(np.diff(number, prepend=-1))
    segment_of = np.repeat(np.arange(table.num_segments, dtype=np.int32), np.diff(table.row_ptr))
    return KeyChunks(
        (number[begins] * chunk).astype(np.int32),
        np.append(begins, len(number)).astype(np.int32),
        segment_of[piece],
        piece,
    )


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
