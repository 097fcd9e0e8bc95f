"""Attention of one kv head on one sequence, the slow and obvious way: what verification trusts.

`exact` writes every formula out in float64; `eager` is what torch computes in the dtype of its
arguments, by autograd. Both go through the rows in chunks and look only at keys that some row of
the chunk sees, which changes no result and keeps memory and time within bounds.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

CHUNK_BYTES = 128 * 1024**2
"""Largest matrix of scores; about six of them are alive at once."""


@dataclass(frozen=True, slots=True)
class HeadTensors:
    """One kv head and the G query heads that share it, n tokens.

    Attributes:
        q, dout: ``[G, n, D]``.
        k, v: ``[n, D]``.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dout: torch.Tensor

    def to(self, dtype: torch.dtype) -> "HeadTensors":
        """Give the same values in another type."""
        return HeadTensors(*(t.to(dtype) for t in (self.q, self.k, self.v, self.dout)))


@dataclass(frozen=True, slots=True)
class HeadResults:
    """What attention gives for a `HeadTensors`, in the same shapes."""

    out: torch.Tensor
    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Rows that see something, the keys that some of them sees, and who sees which."""

    rows: torch.Tensor
    keys: torch.Tensor
    mask: torch.Tensor


def exact(head: HeadTensors, mask: torch.Tensor) -> HeadResults:
    """Compute attention and its gradients in float64, formula by formula.

    Args:
        head: tensors of one kv head, any dtype.
        mask: bool ``[n, n]``; rows without keys give zeros.
    """
    wide = head.to(torch.float64)
    scale = wide.q.shape[-1] ** -0.5
    out, dq = torch.zeros_like(wide.q), torch.zeros_like(wide.q)
    dk, dv = torch.zeros_like(wide.k), torch.zeros_like(wide.v)
    for chunk in _chunks(mask, torch.float64):
        k, v = wide.k[chunk.keys], wide.v[chunk.keys]
        for g in range(len(wide.q)):
            q, dout = wide.q[g, chunk.rows], wide.dout[g, chunk.rows]
            scores = (q @ k.T * scale).masked_fill_(~chunk.mask, -torch.inf)
            weights = (scores - scores.amax(1, keepdim=True)).exp_()
            weights /= weights.sum(1, keepdim=True)
            out_rows = weights @ v
            dscores = (dout @ v.T).sub_((dout * out_rows).sum(1, keepdim=True))
            dscores.mul_(weights).mul_(scale)
            out[g, chunk.rows] = out_rows
            dq[g, chunk.rows] = dscores @ k
            dk[chunk.keys] += dscores.T @ q
            dv[chunk.keys] += weights.T @ dout
    return HeadResults(out, dq, dk, dv)


def eager(head: HeadTensors, mask: torch.Tensor) -> HeadResults:
    """Compute ``softmax(q kᵀ / sqrt(D) + mask) v`` and its gradients as torch does, by autograd.

    In the dtype of the arguments. Gradients of k and v that several chunks or query heads share are
    added in float32 and rounded once, so that chunks add no error.
    """
    dtype, scale = head.q.dtype, head.q.shape[-1] ** -0.5
    out, dq = torch.zeros_like(head.q), torch.zeros_like(head.q)
    sums = torch.promote_types(dtype, torch.float32)
    dk, dv = torch.zeros_like(head.k, dtype=sums), torch.zeros_like(head.v, dtype=sums)
    for chunk in _chunks(mask, dtype):
        bias = torch.zeros(chunk.mask.shape, dtype=dtype).masked_fill_(~chunk.mask, -torch.inf)
        for g in range(len(head.q)):
            q, k, v = (
                t.clone().requires_grad_()
                for t in (head.q[g, chunk.rows], head.k[chunk.keys], head.v[chunk.keys])
            )
            result = torch.softmax(q @ k.T * scale + bias, -1) @ v
            grads = torch.autograd.grad(result, (q, k, v), head.dout[g, chunk.rows])
            out[g, chunk.rows] = result.detach()
            dq[g, chunk.rows] = grads[0]
            dk[chunk.keys] += grads[1]
            dv[chunk.keys] += grads[2]
    return HeadResults(out, dq, dk.to(dtype), dv.to(dtype))


def _chunks(mask: torch.Tensor, dtype: torch.dtype) -> Iterator[_Chunk]:
    row_bytes = max(1, mask.shape[1] * torch.finfo(dtype).bits // 8)
    step = max(1, CHUNK_BYTES // row_bytes)
    for first in range(0, len(mask), step):
        part = mask[first : first + step]
        rows, keys = part.any(1).nonzero().squeeze(1), part.any(0).nonzero().squeeze(1)
        if len(rows):
            yield _Chunk(rows + first, keys, part[rows][:, keys])
