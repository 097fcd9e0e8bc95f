"""The CUDA backend: our own Triton kernels, which carry the softmax from table to table.

The tables of a plan are moved to the device once, in a single transfer, and stay there as long as
the plan lives.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from math import gcd
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from triton import cdiv

from dcp_planner import TransferKind
from dcp_runtime.kernels import triton_source
from dcp_runtime.kernels.kernel import (
    AttentionState,
    Gradients,
    Kernel,
    QueryRows,
    TensorKind,
    Work,
    accumulator_dtype,
)
from dcp_runtime.kernels.triton_inputs import key_runs, move_arrays, query_runs
from dcp_runtime.plans.tile_pieces import PieceKind
from dcp_runtime.plans.tile_table import TileTable

HEAD_DIMS = (32, 64, 96, 128, 192, 256)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
ROWS = 32
"""Rows, of one token and head each, that a program takes of a pass without matrix products."""


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """Launch parameters of a kernel; on sm_90 none spills registers in its whole-run loop."""

    block_m: int  # rows of queries in a tile without a mask
    block_n: int  # rows of keys in a tile without a mask
    warps: int
    stages: int  # of its pipeline, that is, steps of keys under way at once
    edge: int = 32  # keys, or with dkv rows of queries, in a tile with a mask
    heads: int = 1  # query heads of one kv head that share the rows of a tile of forward and dq

    @property
    def tokens(self) -> int:
        """Rows of q in a tile of forward and dq."""
        return self.block_m // self.heads


def launch_shape(
    kernel: str, dtype: torch.dtype, arch: int = 90, group: int = 1, head_dim: int = 128
) -> LaunchShape:
    """Return the tile of ``"forward"``, ``"dq"`` or ``"dkv"``; queries times keys.

    `arch` is the compute capability times ten, `group` the query heads of a kv head. As many heads
    share a tile as fill it and leave it no fewer tokens than an edge has keys.

    >>> launch_shape("forward", torch.bfloat16, group=8)
    LaunchShape(block_m=128, block_n=128, warps=8, stages=2, edge=32, heads=4)
    """
    if dtype == torch.float32:  # no tensor cores at full precision: small tiles
        return LaunchShape(32, 32, 8, 1) if head_dim <= 128 else LaunchShape(16, 16, 8, 1, 16)
    # wgmma reads the operands from shared memory; older instructions need registers for them.
    has_wgmma = 90 <= arch < 120
    if head_dim > 128:
        return _wide_shape(kernel, gcd(group, 4), has_wgmma=has_wgmma)
    if kernel == "dkv":
        return LaunchShape(64 if has_wgmma else 32, 128, 8, 2)
    # Three heads would fill 126 of 128 rows, and eight would leave fewer tokens than an edge has
    # keys (LOG.md).
    heads = gcd(group, 4)
    if has_wgmma:
        return LaunchShape(128, 128, 8, 2, heads=heads)
    return LaunchShape(128, 64, 8, 3 if kernel == "forward" else 2, heads=heads)


def _wide_shape(kernel: str, heads: int, *, has_wgmma: bool) -> LaunchShape:
    """Return the tile of heads above 128: the largest whose loop over whole runs spills nothing."""
    # Without wgmma it fits the 99 KiB of shared memory of consumer GPUs.
    if kernel == "dkv":
        return LaunchShape(32, 64, 8, 2) if has_wgmma else LaunchShape(32, 32, 4, 1)
    stages = 2 if kernel == "forward" else 1
    if has_wgmma:
        return LaunchShape(128, 64, 8, stages, heads=heads)
    return LaunchShape(64, 32, 8, stages, heads=gcd(heads, 2))


@dataclass(frozen=True, slots=True, eq=False)
class _DeviceTable:
    """A tile table on the device, as one kernel reads it."""

    runs: tuple[Tensor, ...]  # `QueryRuns` or `KeyRuns`
    masks: tuple[Tensor | int, ...]  # row_lo, row_hi, bits, columns; shared by a device's tables
    has_bits: bool

    def grid(self, heads: int) -> tuple[int]:
        return (len(self.runs[0]) * heads,)


_Place: TypeAlias = tuple[str, str, LaunchShape]
"""Of a device table: the kernel that reads it, the device, and the tiles that it is cut for."""


class TritonKernel(Kernel):
    """Tiled attention on CUDA; also on the CPU where Triton interprets its kernels."""

    name = "triton"
    segment_rows = 128
    finishes = frozenset({TransferKind.OUT, TransferKind.DQ, TransferKind.DKV})
    keeps_bits = True

    def __init__(self, softcap: float | None = None) -> None:
        self._softcap = softcap
        self._tables: WeakKeyDictionary[TileTable, dict[_Place, _DeviceTable]] = WeakKeyDictionary()

    def load(
        self, forward: Sequence[TileTable], backward: Sequence[TileTable], kind: TensorKind
    ) -> None:
        """Cut tables into runs and move them with their masks to the device, in one transfer."""
        # dq and dkv cut the same table differently, so each has runs of its own.
        new = [("forward", table) for table in forward]
        new += [
            (kernel, table)
            for table in backward
            for kernel in ("dq", "dkv")
            if table.adds_to in (kernel, "both")
        ]
        # Tables of a device share their masks, which are moved once. Ids are unique here: `new`
        # keeps the tables alive.
        shared = {id(table.row_lo): table for _, table in new}
        # Any: of different types
        groups: list[Sequence[NDArray[Any]]] = [
            [t.row_lo, t.row_hi, t.bits] for t in shared.values()
        ]
        groups += [_runs_of(kernel, table, kind) for kernel, table in new]
        moved = iter(move_arrays([array for group in groups for array in group], kind.device))
        there = [tuple(islice(moved, len(group))) for group in groups]
        # The masks come first in `there`, the runs behind them.
        masks: dict[int, tuple[Tensor | int, ...]] = {
            key: (*m, m[0].shape[1]) for key, m in zip(shared, there, strict=False)
        }
        for (kernel, table), runs in zip(new, there[len(shared) :], strict=True):
            has_bits = bool((table.kind == PieceKind.BITS).any())
            self._tables.setdefault(table, {})[_place(kernel, kind)] = _DeviceTable(
                runs, masks[id(table.row_lo)], has_bits
            )

    def work(self, table: TileTable, kind: TensorKind) -> Work:
        """Count the pairs of the tiles of forward, which `load` cuts anew."""
        shape = _place("forward", kind)[-1]
        runs = query_runs(table, shape.block_n, shape.tokens)
        # Whole runs are whole steps of block_n keys already, a multiple of an edge.
        keys = -(-(runs.end - runs.begin) // shape.edge) * shape.edge
        until = np.append(0, np.cumsum(keys, dtype=np.int64))
        whole = int((until[runs.masked_ptr] - until[runs.row_ptr[:-1]]).sum())
        return Work(1, whole * shape.tokens, (int(until[-1]) - whole) * shape.tokens)

    def forward(
        self, q: Tensor, kv: Tensor, table: TileTable, scale: float, state: AttentionState
    ) -> None:
        """Merge softmax(scale · q kᵀ) v over the keys of the table into `state`."""
        if not table.num_segments:
            return
        found, shape = self._table("forward", table, q, kv)
        constants = self._constants(q, kv, found, shape)
        triton_source.forward_kernel[found.grid(q.shape[1] // shape.heads)](
            q, kv, state.out, state.lse, *_target(state.result, q), *found.runs,
            *found.masks, scale, self._softcap or 1.0, q.stride(0), kv.stride(0), kv.stride(1),
            PACK=shape.heads, **constants,
        )  # fmt: skip

    def backward(
        self, rows: QueryRows, kv: Tensor, table: TileTable, scale: float, gradients: Gradients
    ) -> None:
        """Add the gradients of the tiles of the table; uses the global lse and delta of `rows`."""
        if not table.num_segments:
            return
        q, dout = rows.q, rows.dout.to(rows.q.dtype)
        inputs = (q, kv, dout, rows.lse, rows.delta)
        strides = (q.stride(0), dout.stride(0), kv.stride(0), kv.stride(1))
        factors = (scale, self._softcap or 1.0)
        if table.adds_to != "dkv":
            found, shape = self._table("dq", table, q, kv)
            triton_source.dq_kernel[found.grid(q.shape[1] // shape.heads)](
                *inputs, gradients.dq, *_target(gradients.dq_result, q), *found.runs, *found.masks,
                *factors, *strides, PACK=shape.heads, **self._constants(q, kv, found, shape),
            )  # fmt: skip
        if table.adds_to == "dq":
            return
        # Not written to unless the table closes its keys.
        results = gradients.dkv_result or (kv,)
        dk, dv = results if len(results) == 2 else results[0].unbind(1)
        finishes = gradients.dkv_result is not None
        found, shape = self._table("dkv", table, q, kv)
        triton_source.dkv_kernel[found.grid(kv.shape[2])](
            *inputs, gradients.dkv, dk, dv, dk.stride(0), int(finishes and table.opens_keys),
            int(finishes and table.closes_keys), *found.runs, *found.masks, *factors, len(kv),
            *strides, **self._constants(q, kv, found, shape),
        )  # fmt: skip

    def delta(self, out: Tensor, dout: Tensor) -> Tensor:
        """Return the row sums of ``dout * out``, read once: torch would write them wide first."""
        dim = out.shape[-1]
        delta = torch.empty(out.shape[:-1], dtype=accumulator_dtype(out.dtype), device=out.device)
        if delta.numel():
            triton_source.delta_kernel[(cdiv(delta.numel(), ROWS),)](
                out.contiguous(), dout.contiguous(), delta, delta.numel(), DIM=dim,
                DIM_PAD=1 << (dim - 1).bit_length(), ROWS=ROWS,
            )  # fmt: skip
        return delta

    def merge(self, state: AttentionState, start: int, out: Tensor, lse: Tensor) -> None:
        """Merge a partial result in one pass: torch would take seven."""
        merge_rows(state, start, out, lse)

    def _constants(
        self, q: Tensor, kv: Tensor, table: _DeviceTable, shape: LaunchShape
    ) -> dict[str, int]:
        heads, dim = q.shape[1:]
        return {
            "HEADS": heads, "GROUP": heads // kv.shape[2], "DIM": dim,
            # `tl.arange` takes powers of two only.
            "DIM_PAD": 1 << (dim - 1).bit_length(), "BLOCK_M": shape.block_m,
            "BLOCK_N": shape.block_n, "EDGE": shape.edge, "HAS_BITS": table.has_bits,
            "CAPPED": self._softcap is not None, "num_warps": shape.warps,
            "num_stages": shape.stages,
        }  # fmt: skip

    def _table(
        self, kernel: str, table: TileTable, q: Tensor, kv: Tensor
    ) -> tuple[_DeviceTable, LaunchShape]:
        """Return a table on the device of `q`; moved on first use if `load` was not called."""
        kind = TensorKind(q.dtype, q.device, q.shape[2], group=q.shape[1] // kv.shape[2])
        key = _place(kernel, kind)
        if key not in self._tables.get(table, {}):
            self.load(*(([table], []) if kernel == "forward" else ([], [table])), kind)
        return self._tables[table][key], key[-1]


def merge_rows(state: AttentionState, start: int, out: Tensor, lse: Tensor) -> None:
    """Merge a partial result into the float32 rows of a state from `start` on, in one launch."""
    rows, dim = slice(start, start + len(lse)), out.shape[-1]
    if lse.numel():
        triton_source.merge_kernel[(cdiv(lse.numel(), ROWS),)](
            state.out[rows], state.lse[rows], out.contiguous(), lse.contiguous(), lse.numel(),
            DIM=dim, DIM_PAD=1 << (dim - 1).bit_length(), ROWS=ROWS,
        )  # fmt: skip


def _target(result: Tensor | None, like: Tensor) -> tuple[Tensor, int]:
    """Return where rows that a table closes go, and whether tables open and close rows at all."""
    return (like, 0) if result is None else (result, 1)


def _place(kernel: str, kind: TensorKind) -> _Place:
    is_cuda = kind.device.type == "cuda"
    # Triton's interpreter computes with the tiles of sm_90, so tests on the CPU cover these.
    major, minor = torch.cuda.get_device_capability(kind.device) if is_cuda else (9, 0)
    shape = launch_shape(kernel, kind.dtype, 10 * major + minor, kind.group, kind.head_dim)
    return kernel, str(kind.device), shape


def _runs_of(
    kernel: str, table: TileTable, kind: TensorKind
) -> "Sequence[NDArray[Any]]":  # Any: of different types
    shape = _place(kernel, kind)[-1]
    if kernel in ("forward", "dq"):
        return query_runs(table, shape.block_n, shape.tokens)
    return key_runs(table, shape.block_n, shape.block_m)
