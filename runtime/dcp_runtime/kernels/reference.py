"""The reference kernel: explicit scores and probabilities, in the type of the sums."""

from collections.abc import Iterator

import torch
from torch import Tensor

from dcp_runtime.kernels.kernel import AttentionState, Gradients, Kernel, QueryRows
from dcp_runtime.plans.tile_table import TileTable


class ReferenceKernel(Kernel):
    """Dense attention inside each piece; slow, exact, on any device.

    Args:
        softcap: scores s become ``softcap * tanh(s / softcap)`` before the mask; ``None``: as they
            are.
    """

    name = "reference"
    segment_rows = 512

    def __init__(self, softcap: float | None = None) -> None:
        self._softcap = softcap

    def forward(
        self, q: Tensor, kv: Tensor, table: TileTable, scale: float, state: AttentionState
    ) -> None:
        """Merge softmax(scale · q kᵀ) v over the keys of the table into `state`."""
        for rows, keys, mask in _pieces(table):
            q_rows = q[rows].to(state.out.dtype)
            k, v = _expand(kv[keys], q.shape[1], state.out.dtype)
            scores = self._scores(q_rows, k, scale).masked_fill(~mask, -torch.inf)
            lse = torch.logsumexp(scores, dim=-1)  # -inf for a row without keys
            weights = torch.exp(scores - _finite(lse).unsqueeze(-1))
            out = torch.einsum("hqk,khd->qhd", weights, v)
            state.merge(rows.start, out, lse.T)

    def backward(
        self, rows: QueryRows, kv: Tensor, table: TileTable, scale: float, gradients: Gradients
    ) -> None:
        """Add the gradients of the tiles of the table; uses the global lse and delta of `rows`."""
        dtype = gradients.dq.dtype
        for row, keys, mask in _pieces(table):
            q, dout = rows.q[row].to(dtype), rows.dout[row].to(dtype)
            k, v = _expand(kv[keys], q.shape[1], dtype)
            lse = _finite(rows.lse[row].to(dtype)).T.unsqueeze(-1)
            scores = self._scores(q, k, scale)
            weights = torch.exp(scores.masked_fill(~mask, -torch.inf) - lse)
            dweights = torch.einsum("qhd,khd->hqk", dout, v)
            dscores = weights * (dweights - rows.delta[row].to(dtype).T.unsqueeze(-1)) * scale
            if self._softcap is not None:  # the derivative of tanh
                dscores *= 1 - (scores / self._softcap).square()
            gradients.dq[row].add_(torch.einsum("hqk,khd->qhd", dscores, k))
            dk = torch.einsum("hqk,qhd->khd", dscores, q)
            dv = torch.einsum("hqk,qhd->khd", weights, dout)
            groups = (len(k), kv.shape[2], -1, kv.shape[3])  # query heads that share a kv head
            gradients.dkv[keys, 0].add_(dk.reshape(groups).sum(2))
            gradients.dkv[keys, 1].add_(dv.reshape(groups).sum(2))

    def _scores(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        scores = torch.einsum("qhd,khd->hqk", q, k) * scale
        if self._softcap is None:
            return scores
        return self._softcap * torch.tanh(scores / self._softcap)


def _pieces(table: TileTable) -> Iterator[tuple[slice, slice, Tensor]]:
    for segment in range(table.num_segments):
        start, length = int(table.q_start[segment]), int(table.q_len[segment])
        for piece in range(int(table.row_ptr[segment]), int(table.row_ptr[segment + 1])):
            first, size = int(table.kv_start[piece]), int(table.kv_len[piece])
            mask = torch.from_numpy(table.piece_mask(piece, length))
            yield slice(start, start + length), slice(first, first + size), mask


def _expand(kv: Tensor, q_heads: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    repeated = kv.to(dtype).repeat_interleave(q_heads // kv.shape[2], dim=2)
    return repeated[:, 0], repeated[:, 1]


def _finite(lse: Tensor) -> Tensor:
    # exp(-inf - -inf) is NaN; against any finite number it is 0, as a row without keys needs it.
    return lse.clamp_min(torch.finfo(lse.dtype).min)
