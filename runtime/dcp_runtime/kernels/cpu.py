"""The CPU backend: torch's own flash attention, called per segment on gathered keys.

Each segment takes at most two calls: one without a mask on all its full pieces, one with a mask on
its partial ones. 16-bit inputs are widened to float32 on the way in: on CPUs without matrix units
that costs nothing (measured on an EPYC core with avx512_bf16: 74 against 79 GFLOP/s), and partial
results are not rounded to 16 bits.

The operators have three traps, which this kernel avoids: a row that the mask hides completely
returns lse 0 instead of -inf; lse -inf makes backward NaN, while +inf makes it 0; and the mask must
have the type of q.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dcp_dsl.arrays import Ints
from dcp_runtime.kernels.kernel import AttentionState, Gradients, Kernel, QueryRows, any_out_with
from dcp_runtime.plans.tile_pieces import PieceKind
from dcp_runtime.plans.tile_table import TileTable


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of the operator: rows of a segment, runs of keys, and the additive mask if any."""

    rows: slice
    runs: tuple[slice, ...]
    bias: Tensor | None  # [1, 1, rows, keys], 0 or -inf
    fully_masked: Tensor | None  # rows that see none of these keys, bool [rows]
    is_ordered: bool


class CpuKernel(Kernel):
    """Tiled attention through ``aten::_scaled_dot_product_flash_attention_for_cpu``."""

    name = "cpu"
    keeps_bits = True

    def forward(
        self, q: Tensor, kv: Tensor, table: TileTable, scale: float, state: AttentionState
    ) -> None:
        """Merge softmax(scale · q kᵀ) v over the keys of the table into `state`."""
        dtype = state.out.dtype
        for call in _calls(table, dtype):
            k, v = _gather(kv, call, dtype)
            out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                _heads_first(_rows(q, call, dtype)), k, v, attn_mask=call.bias, scale=scale
            )
            lse = lse[0].T
            if call.fully_masked is not None:
                lse = lse.masked_fill(call.fully_masked.unsqueeze(-1), -torch.inf)
            state.merge(call.rows.start, out[0].transpose(0, 1), lse)

    def backward(
        self, rows: QueryRows, kv: Tensor, table: TileTable, scale: float, gradients: Gradients
    ) -> None:
        """Add the gradients of the tiles of the table; uses the global lse and delta of `rows`."""
        dtype = gradients.dq.dtype
        for call in _calls(table, dtype):
            k, v = _gather(kv, call, dtype)
            dout, lse = _rows(rows.dout, call, dtype), _rows(rows.lse, call, dtype)
            out = any_out_with(_rows(rows.delta, call, dtype), dout)
            # A row that sees no key anywhere: exp(score - inf) is 0, and so are its gradients.
            lse = lse.masked_fill(lse == -torch.inf, torch.inf)
            dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                _heads_first(dout),
                _heads_first(_rows(rows.q, call, dtype)),
                k,
                v,
                _heads_first(out),
                lse.T.unsqueeze(0),
                0.0,  # dropout
                False,  # causal
                attn_mask=call.bias,
                scale=scale,
            )
            if table.adds_to != "dkv":
                gradients.dq[call.rows].add_(dq[0].transpose(0, 1))  # += would copy it back, too
            if table.adds_to != "dq":
                keys = dk[0].transpose(0, 1), dv[0].transpose(0, 1)
                _scatter_add(gradients.dkv, call.runs, *keys)


def _heads_first(x: Tensor) -> Tensor:
    """Show ``[tokens, heads, head_dim]`` as ``[1, heads, tokens, head_dim]``, without a copy."""
    return x.transpose(0, 1).unsqueeze(0)


def _rows(x: Tensor, call: _Call, dtype: torch.dtype) -> Tensor:
    # The last bit of a product of matrices may depend on the addresses at which they begin.
    return x[call.rows].to(dtype, copy=call.is_ordered)


def _gather(kv: Tensor, call: _Call, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    # One run is a view: `cat` would copy every key once per segment.
    runs = call.runs
    rows = kv[runs[0]] if len(runs) == 1 else torch.cat([kv[run] for run in runs])
    rows = rows.to(dtype, copy=call.is_ordered)
    return _heads_first(rows[:, 0]), _heads_first(rows[:, 1])


def _scatter_add(dkv: Tensor, runs: tuple[slice, ...], dk: Tensor, dv: Tensor) -> None:
    at = 0
    for run in runs:
        size = run.stop - run.start
        dkv[run, 0].add_(dk[at : at + size])
        dkv[run, 1].add_(dv[at : at + size])
        at += size


def _calls(table: TileTable, dtype: torch.dtype) -> Iterator[_Call]:
    for segment in range(table.num_segments):
        start, length = int(table.q_start[segment]), int(table.q_len[segment])
        rows = slice(start, start + length)
        pieces = np.arange(table.row_ptr[segment], table.row_ptr[segment + 1])
        is_full = table.kind[pieces] == PieceKind.FULL
        if is_full.any():
            yield _Call(rows, _runs(table, pieces[is_full]), None, None, table.is_ordered)
        if not is_full.all():
            yield _masked_call(table, rows, pieces[~is_full], dtype)


def _runs(table: TileTable, pieces: Ints) -> tuple[slice, ...]:
    starts, sizes = table.kv_start[pieces].tolist(), table.kv_len[pieces].tolist()
    return tuple(slice(a, a + n) for a, n in zip(starts, sizes, strict=True))


def _masked_call(table: TileTable, rows: slice, pieces: Ints, dtype: torch.dtype) -> _Call:
    length = rows.stop - rows.start
    parts = [table.piece_mask(int(piece), length) for piece in pieces]
    seen = torch.from_numpy(np.concatenate(parts, axis=1))
    bias = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)
    fully_masked = ~seen.any(1)
    return _Call(
        rows,
        _runs(table, pieces),
        bias.view(1, 1, *bias.shape),
        # Most segments have no such row; None spares the copy of lse.
        fully_masked if bool(fully_masked.any()) else None,
        table.is_ordered,
    )
