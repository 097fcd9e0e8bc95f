"""Many small arrays to a device in one transfer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

ALIGNMENT = 16
"""Bytes: every array begins where any type may begin."""
_DTYPES = {"int32": torch.int32, "int64": torch.int64, "uint8": torch.uint8}


def move_arrays(
    arrays: "Sequence[NDArray[Any]]", device: torch.device
) -> tuple[torch.Tensor, ...]:  # Any: arrays of different types
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
