"""The CUDA backend: our own Triton kernels, which carry the softmax from table to table.

Tables are moved to the device once, all of a plan in one transfer, and stay there as long as they
live.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dcp_runtime.kernels import triton_source
from dcp_runtime.kernels.kernel import AttentionState, Gradients, Kernel, QueryRows, TensorKind
from dcp_runtime.kernels.triton_inputs import cut_keys, move_arrays
from dcp_runtime.plans.tile_pieces import PieceKind
from dcp_runtime.plans.tile_table import TileTable

HEAD_DIMS = (32, 64, 96, 128)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """Launch parameters of a kernel; chosen so that sm_90 spills no registers."""

    block_m: int
    block_n: int
    warps: int
    stages: int


def launch_shape(
    kernel: str, dtype: torch.dtype, head_dim: int, *, has_bits: bool = False
) -> LaunchShape:
    """Return the tile of ``"forward"``, ``"dq"`` or ``"dkv"``.

    >>> launch_shape("forward", torch.bfloat16, 128)
    LaunchShape(block_m=128, block_n=64, warps=8, stages=2)
    """
    if dtype == torch.float32:  # no tensor cores at full precision: small tiles
        return LaunchShape(32, 32, 8, 1)
    if kernel == "dkv":  # gathers both dk and dv: 64 rows of 128 spill 56 bytes
        return LaunchShape(64 if head_dim <= 64 and not has_bits else 32, 64, 8, 2)
    return LaunchShape(128, 32 if has_bits else 64, 8, 2)


@dataclass(frozen=True, slots=True, eq=False)
class _DeviceTable:
    """A tile table with its masks and its key chunks, on the device."""

    rows: tuple[Tensor, ...]  # q_start, q_len
    row_ptr: Tensor
    pieces: tuple[Tensor, ...]  # kv_start, kv_len, kind, mask_start
    chunks: tuple[Tensor, ...]  # chunk_row, chunk_ptr, segment, piece; none for forward
    masks: tuple[Tensor | int, ...]  # row_lo, row_hi, bits, columns; shared by a device's tables
    longest: int
    has_bits: bool

    def grid(self, q: Tensor, shape: LaunchShape) -> tuple[int, int, int]:
        return len(self.rows[0]), q.shape[1], -(-self.longest // shape.block_m)


class TritonKernel(Kernel):
    """Tiled attention on CUDA; also on the CPU where Triton interprets its kernels."""

    name = "triton"
    segment_rows = 128

    def __init__(self) -> None:
        self._tables: WeakKeyDictionary[TileTable, dict[tuple[str, int], _DeviceTable]] = (
            WeakKeyDictionary()
        )

    def load(
        self, forward: Sequence[TileTable], backward: Sequence[TileTable], kind: TensorKind
    ) -> None:
        """Move tables and their masks to the device in one transfer."""
        place, chunk = str(kind.device), launch_shape("dkv", kind.dtype, kind.head_dim).block_n
        new = [((place, 0), table, _arrays_of(table)) for table in forward]
        new += [
            ((place, chunk), table, [*_arrays_of(table), *cut_keys(table, chunk)])
            for table in backward
        ]
        # Tables of a device share their masks, and an id is that of a table that is alive.
        shared = {id(table.row_lo): table for _, table, _ in new}
        # Any: of different types
        groups: list[list[NDArray[Any]]] = [[t.row_lo, t.row_hi, t.bits] for t in shared.values()]
        groups += [arrays for _, _, arrays in new]
        moved = iter(move_arrays([array for group in groups for array in group], kind.device))
        there = [tuple(islice(moved, len(group))) for group in groups]
        masks: dict[int, tuple[Tensor | int, ...]] = {
            key: (*m, m[0].shape[1]) for key, m in zip(shared, there, strict=False)
        }
        for (key, table, _), m in zip(new, there[len(shared) :], strict=True):
            longest = int(table.q_len.max(initial=0))
            has_bits = bool((table.kind == PieceKind.BITS).any())
            self._tables.setdefault(table, {})[key] = _DeviceTable(
                m[:2], m[2], m[3:7], m[7:], masks[id(table.row_lo)], longest, has_bits
            )

    def forward(
        self, q: Tensor, kv: Tensor, table: TileTable, scale: float, state: AttentionState
    ) -> None:
        """Merge softmax(scale · q kᵀ) v over the keys of the table into `state`."""
        found = self._table(table, q)
        if not table.num_segments:
            return
        shape = launch_shape("forward", q.dtype, q.shape[2], has_bits=found.has_bits)
        triton_source.forward_kernel[found.grid(q, shape)](
            q, kv, state.out, state.lse, *found.rows, found.row_ptr, *found.pieces,
            *found.masks, scale, q.stride(0), kv.stride(0), kv.stride(1),
            HAS_BITS=found.has_bits, **_constants(q, kv, shape),
        )  # fmt: skip

    def backward(
        self, rows: QueryRows, kv: Tensor, table: TileTable, scale: float, gradients: Gradients
    ) -> None:
        """Add the gradients of the tiles of the table; uses the global lse and delta of `rows`."""
        q, dout = rows.q, rows.dout.to(rows.q.dtype)
        chunk = launch_shape("dkv", q.dtype, q.shape[2]).block_n
        found = self._table(table, q, chunk)
        if not table.num_segments:
            return
        row_values = (dout, rows.lse, rows.delta)
        shape = launch_shape("dq", q.dtype, q.shape[2], has_bits=found.has_bits)
        strides = (q.stride(0), dout.stride(0), kv.stride(0), kv.stride(1))
        triton_source.dq_kernel[found.grid(q, shape)](
            q, kv, *row_values, gradients.dq, *found.rows, found.row_ptr, *found.pieces,
            *found.masks, scale, *strides, HAS_BITS=found.has_bits, **_constants(q, kv, shape),
        )  # fmt: skip
        shape = launch_shape("dkv", q.dtype, q.shape[2])
        triton_source.dkv_kernel[(len(found.chunks[0]), kv.shape[2])](
            q, kv, *row_values, gradients.dkv, *found.chunks, *found.rows, *found.pieces,
            *found.masks, scale, len(kv), *strides, HAS_BITS=found.has_bits,
            **_constants(q, kv, shape),
        )  # fmt: skip

    def _table(self, table: TileTable, q: Tensor, chunk: int = 0) -> _DeviceTable:
        """Return a table on the device of `q`; moved on first use if `load` was not called."""
        key = str(q.device), chunk
        if key not in self._tables.get(table, {}):
            kind = TensorKind(q.dtype, q.device, q.shape[2])
            self.load(*(([], [table]) if chunk else ([table], [])), kind)
        return self._tables[table][key]


def _arrays_of(table: TileTable) -> "list[NDArray[Any]]":  # Any: of different types
    return [
        table.q_start, table.q_len, table.row_ptr, table.kv_start, table.kv_len,
        table.kind.astype(np.int32), table.mask_start,
    ]  # fmt: skip


def _constants(q: Tensor, kv: Tensor, shape: LaunchShape) -> dict[str, int]:
    heads, dim = q.shape[1:]
    return {
        "HEADS": heads, "GROUP": heads // kv.shape[2], "DIM": dim,
        "DIM_PAD": 1 << (dim - 1).bit_length(), "BLOCK_M": shape.block_m, "BLOCK_N": shape.block_n,
        "num_warps": shape.warps, "num_stages": shape.stages,
    }  # fmt: skip
