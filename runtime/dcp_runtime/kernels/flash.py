"""The flash-attention backends: plain variable-length kernels, called once per kind of segment.

`flash` is FlashAttention-2 as torch carries it, `flash4` the package flash-attn-4. `flash_calls`
rewrites a table once. Rows that a call gathers cost memory and time that our own kernels do not
spend. Outputs of several calls are merged by log-sum-exp. `flash` serves comparisons, and GPUs
without Triton. Atomics sum gradients, those of the operators and of keys that stand in several
segments of a call: the last bits may differ between two runs.

The operators exist on CUDA only. Everything around them is tested on the CPU with stand-ins; the
operators themselves have not been run by this project. Those of flash-attn-4 have been compiled for
compute capability 9, with the arguments that `Flash4Kernel` gives them.
"""

import re
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from dcp_planner import TransferKind
from dcp_runtime.kernels.flash_calls import FlashCall, FlashTable, Rows, flash_calls
from dcp_runtime.kernels.kernel import (
    AttentionState,
    Gradients,
    Kernel,
    QueryRows,
    TensorKind,
    Work,
    any_out_with,
)
from dcp_runtime.plans.tile_table import TileTable

DTYPES = (torch.float16, torch.bfloat16)
TILE = 128
"""Rows of queries and of keys that these kernels compute at once, roughly; predictions use it."""


def flash_refusal(
    dtype: torch.dtype, device: torch.device, head_dim: int | None, largest: int = 256
) -> str | None:
    """Return why flash kernels cannot compute this, ``None`` if they can."""
    if device.type != "cuda":
        return f"needs tensors on a CUDA device, got {device}"
    if dtype not in DTYPES:
        return f"needs one of {', '.join(map(str, DTYPES))}, got {dtype}"
    if head_dim is not None and (head_dim > largest or head_dim % 8):
        return f"needs head_dim up to {largest}, a multiple of 8, got {head_dim}"
    return None


class FlashKernel(Kernel):
    """Attention through the plain flash kernels of torch, ``torch.ops.aten``."""

    name = "flash"
    finishes = frozenset({TransferKind.OUT, TransferKind.DQ})

    def __init__(self, operators: Any = None) -> None:  # Any: a namespace that torch fills
        self._operators = operators or torch.ops.aten
        self._tables: WeakKeyDictionary[TileTable, dict[str, FlashTable]] = WeakKeyDictionary()

    def load(
        self, forward: Sequence[TileTable], backward: Sequence[TileTable], kind: TensorKind
    ) -> None:
        """Rewrite tables as calls, on the device."""
        for table in (*forward, *backward):
            self._prepared(table, kind.device)

    def forward(
        self, q: Tensor, kv: Tensor, table: TileTable, scale: float, state: AttentionState
    ) -> None:
        """Merge softmax(scale · q kᵀ) v over the keys of the table into `state`."""
        prepared, result = self._prepared(table, q.device), state.result
        wide = prepared.sums(state.out, q)
        if result is not None:
            wide[prepared.blank], state.lse[prepared.blank] = 0, -torch.inf
        for call in prepared.calls:
            rows = call.q_idx
            k, v = kv[call.kv_idx].unbind(1)  # operators take any stride between rows
            into = _place_of(result, call)
            out, lse = self._attend(q[rows], k, v, call, scale, into)
            target = wide if result is None or not call.closes else result
            if result is not None and call.opens:
                target[rows], state.lse[rows] = out, lse.T
                continue
            # A row stands in at most one segment of a call, so merged rows can be written back;
            # those of a slice are where they belong, and torch copies nothing onto itself.
            part = AttentionState(wide[rows], state.lse[rows])
            self.merge(part, 0, out, lse.T)
            target[rows], state.lse[rows] = part.out, part.lse
        if result is not None:
            result[prepared.left] = wide[prepared.left].to(result.dtype)

    def backward(
        self, rows: QueryRows, kv: Tensor, table: TileTable, scale: float, gradients: Gradients
    ) -> None:
        """Add the gradients of the tiles of the table; uses the global lse and delta of `rows`."""
        prepared, result = self._prepared(table, rows.q.device), gradients.dq_result
        wide = prepared.sums(gradients.dq, rows.q)
        if result is not None:
            wide[prepared.blank] = 0
        for call in prepared.calls:
            k, v = kv[call.kv_idx].unbind(1)
            gathered = QueryRows(
                rows.q[call.q_idx],
                rows.dout[call.q_idx].to(rows.q.dtype),
                rows.lse[call.q_idx].T.contiguous(),
                rows.delta[call.q_idx].float().T.contiguous(),
            )
            dq, dk, dv = self._gradients(gathered, k, v, call, scale, _place_of(result, call))
            if result is not None and call.opens:
                (result if call.closes else wide)[call.q_idx] = dq
            elif result is not None and call.closes:
                result[call.q_idx] = (wide[call.q_idx] + dq).to(result.dtype)
            else:
                _add(wide, call.q_idx, dq)
            _add(gradients.dkv[:, 0], call.kv_idx, dk)
            _add(gradients.dkv[:, 1], call.kv_idx, dv)
        if result is not None:
            result[prepared.left] = wide[prepared.left].to(result.dtype)

    def merge(self, state: AttentionState, start: int, out: Tensor, lse: Tensor) -> None:
        """Merge a partial result, with Triton in one launch."""
        if out.is_cuda and find_spec("triton") is not None:
            triton = import_module("dcp_runtime.kernels.triton_kernel")
            triton.merge_rows(state, start, out, lse)
        else:
            super().merge(state, start, out, lse)

    def work(self, table: TileTable, kind: TensorKind) -> Work:
        """Count the tiles of the calls, and the rows that they gather."""
        total = Work()
        for call in self._prepared(table, torch.device("cpu")).calls:
            rows, keys = (x.diff().long() for x in (call.cu_seqlens_q, call.cu_seqlens_k))
            tall, wide = (_whole_tiles(x) for x in (rows, keys))
            # A diagonal crosses one tile per TILE rows, and the tiles behind it are skipped: above
            # the end of the keys that rows see, and below their start.
            above = tall * call.causal
            below = _whole_tiles((keys - call.window - 1).clamp_min(0)) * (call.window >= 0)
            hidden = sum(int((x * (x - TILE) // 2).sum()) for x in (above, below))
            computed = int(tall @ wide) - hidden
            edge = min(int(((above + below) * TILE).sum()), computed)
            gathered = _gathered(call.q_idx), _gathered(call.kv_idx)
            merged = int(call.cu_seqlens_q[-1]) * (1 - call.opens * call.closes)
            total += Work(1, computed - edge, edge, *gathered, merged=merged)
        return total

    def _prepared(self, table: TileTable, device: torch.device) -> FlashTable:
        known = self._tables.setdefault(table, {})
        if "cpu" not in known:
            known["cpu"] = flash_calls(table)
        if str(device) not in known:
            known[str(device)] = known["cpu"].to(device)
        return known[str(device)]

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, call: FlashCall, scale: float, into: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return out ``[rows, Hq, D]``, in `into` if it can, and natural lse ``[Hq, rows]``."""
        out, lse, *_ = self._operators._flash_attention_forward(
            q, k, v, call.cu_seqlens_q, call.cu_seqlens_k, call.max_q, call.max_k, 0.0,
            call.causal, False, scale=scale, window_size_left=call.window,
        )  # fmt: skip
        return out, lse

    def _gradients(
        self,
        rows: QueryRows,
        k: Tensor,
        v: Tensor,
        call: FlashCall,
        scale: float,
        into: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute dq, in `into` if it can, dk, dv; lse and delta are float32 ``[Hq, rows]``."""
        # The operator computes delta from out and dout itself.
        out = any_out_with(rows.delta.T, rows.dout.float()).to(rows.q.dtype)
        state = torch.zeros(2, dtype=torch.uint64, device=out.device)  # random state of no dropout
        dq, dk, dv = self._operators._flash_attention_backward(
            rows.dout, rows.q, k, v, out, rows.lse, call.cu_seqlens_q,
            call.cu_seqlens_k, call.max_q, call.max_k, 0.0, call.causal, state, state[0],
            scale=scale, window_size_left=call.window,
        )  # fmt: skip
        return dq, dk, dv


def _whole_tiles(length: Tensor) -> Tensor:
    return -(-length // TILE) * TILE


def _place_of(result: Tensor | None, call: FlashCall) -> Tensor | None:
    """Return where a call may write its results, if its rows begin and end with it."""
    is_direct = call.opens and call.closes and isinstance(call.q_idx, slice)
    return None if result is None or not is_direct else result[call.q_idx]


def _gathered(rows: Rows) -> int:
    return 0 if isinstance(rows, slice) else len(rows)


def _add(total: Tensor, rows: Rows, part: Tensor) -> None:
    """Add to rows of sums; a key may stand in an index several times."""
    if isinstance(rows, slice):
        total[rows] += part
    else:
        total.index_add_(0, rows, part.to(total.dtype))


HEAD_DIMS_TO = 128  # largest head of which every device takes dlse; some devices take larger heads
OLDEST = 36
"""Oldest beta to use: earlier ones sometimes give wrong gradients on compute capability 9."""


class Flash4Kernel(FlashKernel):
    """Attention through the kernels of flash-attn-4, compiled at the first call of a shape.

    Facts of version 4.0.0b36, read from the package: out and lse (``[Hq, rows]``, natural, float32)
    come first in what forward returns; backward subtracts ``rowsum(out * dout) - dlse`` from dp, so
    zeros for out and minus delta for dlse bring our delta in without rounding it to 16 bits. Rows
    of all inputs may lie at any stride, 0 included, that is a multiple of 16 bytes.
    """

    name = "flash4"

    def __init__(self, operators: Any = None) -> None:  # Any: the package has no types
        super().__init__(operators or import_module("flash_attn.cute.interface"))

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, call: FlashCall, scale: float, into: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        out, lse, *_ = self._operators._flash_attn_fwd(
            q, k, v, **_segments(call), softmax_scale=scale, return_lse=True, out=into
        )
        return out, lse

    def _gradients(
        self,
        rows: QueryRows,
        k: Tensor,
        v: Tensor,
        call: FlashCall,
        scale: float,
        into: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        zeros = rows.q.new_zeros(rows.q.shape[-1]).expand_as(rows.q)  # takes no memory
        dq, dk, dv = self._operators._flash_attn_bwd(
            rows.q, k, v, zeros, rows.dout, rows.lse,
            **_segments(call), softmax_scale=scale, dlse=-rows.delta, dq=into,
        )  # fmt: skip
        return dq, dk, dv


def _segments(call: FlashCall) -> dict[str, Tensor | int | bool | None]:
    return {
        "cu_seqlens_q": call.cu_seqlens_q,
        "cu_seqlens_k": call.cu_seqlens_k,
        "max_seqlen_q": call.max_q,
        "max_seqlen_k": call.max_k,
        "causal": call.causal,
        "window_size_left": None if call.window < 0 else call.window,
    }


def flash4_refusal(dtype: torch.dtype, device: torch.device, head_dim: int | None) -> str | None:
    """Return why flash-attn-4 cannot compute this here, ``None`` if it can."""
    if refused := flash_refusal(dtype, device, head_dim, HEAD_DIMS_TO):
        return refused
    try:
        found = version("flash-attn-4")
    except PackageNotFoundError:
        return "flash-attn-4 is not installed; pip install 'dcp-dsl[flash]'"
    beta = re.fullmatch(r"4\.0\.0b(\d+)", found)
    if found.startswith("0.") or (beta and int(beta[1]) < OLDEST):
        return f"flash-attn-4 {found} may give wrong gradients; install 4.0.0b{OLDEST} or newer"
    if torch.cuda.get_device_capability(device)[0] not in (9, 10, 11):
        return "needs a GPU of compute capability 9, 10 or 11"
    return None
