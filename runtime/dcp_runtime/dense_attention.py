"""Attention of one kv head on one sequence, the slow and obvious way: what verification trusts.

`exact` writes every formula out in float64; `eager` is what torch computes in the dtype of its
arguments, by autograd. Both go through the rows in chunks and look only at keys that some row of
the chunk sees, which changes no result and keeps memory and time within bounds.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

CHUNK_BYTES = 32 * 1024**2
"""Largest matrix of scores; about six of them are alive at once."""
CHUNK_BYTES_16_BIT = 128 * 1024**2
"""The same for 16-bit types: 8,192 tokens in one chunk, whose gradients are rounded once."""


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
class SummedTerms:
    """Length, per row, of the terms that are summed into a result: what rounding is relative to.

    The root of the sum of squares of ``p * |v|`` for out, ``p * |dout|`` for dv, and
    ``scale * p * dp`` times ``|k|`` for dq, times ``|q|`` for dk, where ``dp = dout · v`` counts
    with its typical size ``|dout| * |v| / sqrt(D)``. Where terms cancel, as in a row that sees a
    single key and has dq = 0, the result itself is no measure of rounding.

    Attributes:
        out, dq: ``[G, n]``.
        dk, dv: ``[n]``.
    """

    out: torch.Tensor
    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Rows that see something, the keys that some of them sees, and which pairs are hidden."""

    rows: torch.Tensor
    keys: torch.Tensor
    hidden: torch.Tensor


def exact(head: HeadTensors, mask: torch.Tensor) -> tuple[HeadResults, SummedTerms]:
    """Compute attention and its gradients in float64, formula by formula.

    Args:
        head: tensors of one kv head, any dtype.
        mask: bool ``[n, n]``; rows without keys give zeros.
    """
    wide = head.to(torch.float64)
    scale = wide.q.shape[-1] ** -0.5
    out, dq = torch.zeros_like(wide.q), torch.zeros_like(wide.q)
    dk, dv = torch.zeros_like(wide.k), torch.zeros_like(wide.v)
    q_terms, kv_terms = wide.q.new_zeros(2, *wide.q.shape[:2]), wide.k.new_zeros(2, len(wide.k))
    for chunk in _chunks(mask, torch.float64):
        k, v = wide.k[chunk.keys], wide.v[chunk.keys]
        for g in range(len(wide.q)):
            q, dout = wide.q[g, chunk.rows], wide.dout[g, chunk.rows]
            scores = ((q * scale) @ k.T).masked_fill_(chunk.hidden, -torch.inf)
            weights = torch.softmax(scores, -1)
            out_rows = weights @ v
            dscores = (dout @ v.T).sub_((dout * out_rows).sum(1, keepdim=True)).mul_(weights)
            out[g, chunk.rows] = out_rows
            dq[g, chunk.rows] = (dscores @ k) * scale
            dk[chunk.keys] += dscores.T @ (q * scale)
            dv[chunk.keys] += weights.T @ dout
            squares = weights.square_()
            q2, k2, v2, dout2 = (t.square().sum(1) for t in (q, k, v, dout))
            row_terms = (squares @ torch.stack([v2, k2 * v2], 1)).T
            q_terms[0, g, chunk.rows], q_terms[1, g, chunk.rows] = (
                row_terms[0],
                row_terms[1] * dout2,
            )
            key_terms = torch.stack([q2 * dout2, dout2]) @ squares
            kv_terms[0, chunk.keys] += key_terms[0] * v2
            kv_terms[1, chunk.keys] += key_terms[1]
    (out_terms, dq_terms), (dk_terms, dv_terms) = q_terms.sqrt(), kv_terms.sqrt()
    size = scale * wide.q.shape[-1] ** -0.5
    terms = SummedTerms(out_terms, dq_terms * size, dk_terms * size, dv_terms)
    return HeadResults(out, dq, dk, dv), terms


def eager(head: HeadTensors, mask: torch.Tensor) -> HeadResults:
    """Compute ``softmax(q kᵀ / sqrt(D) + mask) v`` and its gradients as torch does, by autograd.

    In the dtype of the arguments. Gradients of k and v that several chunks or query heads share are
    added in float32.
    """
    dtype, scale = head.q.dtype, head.q.shape[-1] ** -0.5
    out, dq = torch.zeros_like(head.q), torch.zeros_like(head.q)
    sums = torch.promote_types(dtype, torch.float32)
    dk, dv = torch.zeros_like(head.k, dtype=sums), torch.zeros_like(head.v, dtype=sums)
    for chunk in _chunks(mask, dtype):
        bias = torch.zeros(chunk.hidden.shape, dtype=dtype)
        bias.masked_fill_(chunk.hidden, -torch.inf)
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
    bits = torch.finfo(dtype).bits
    limit = CHUNK_BYTES_16_BIT if bits == 16 else CHUNK_BYTES
    step = max(1, limit // max(1, mask.shape[1] * bits // 8))
    for first in range(0, len(mask), step):
        part = mask[first : first + step]
        rows, keys = part.any(1).nonzero().squeeze(1), part.any(0).nonzero().squeeze(1)
        if len(rows):
            yield _Chunk(rows + first, keys, ~part[rows][:, keys])
