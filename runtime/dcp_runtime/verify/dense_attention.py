"""Dense attention of one kv head on one sequence: slow and obvious, so verification trusts it.

`exact` writes every formula out in float64; `eager` is torch's computation in the dtype of its
arguments, by autograd. Both go through the rows in chunks and look only at keys that some row of
the chunk sees, which changes no result and keeps memory and time within bounds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

CHUNK_BYTES = 32 * 1024**2  # largest matrix of scores; about six of them are alive at once
CHUNK_BYTES_16_BIT = 128 * 1024**2
"""The same for 16-bit types: 8,192 tokens fit into one chunk, which rounds their gradients once."""


@dataclass(frozen=True, slots=True)
class HeadTensors:
    """One kv head and the G query heads that share it, n tokens."""

    q: Tensor  # [G, n, D]
    k: Tensor  # [n, D]
    v: Tensor
    dout: Tensor  # [G, n, D]

    def to(self, dtype: torch.dtype) -> "HeadTensors":
        """Return the same values in another type."""
        return HeadTensors(*(t.to(dtype) for t in (self.q, self.k, self.v, self.dout)))


@dataclass(frozen=True, slots=True)
class HeadResults:
    """The results of attention on a `HeadTensors`, in the same shapes."""

    out: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor


@dataclass(frozen=True, slots=True)
class Rounding:
    """Rounding units of a run."""

    tensor: float  # of the dtype of q, k, v, out and gradients
    sums: float  # of the dtype of scores, lse, delta and sums


@dataclass(frozen=True, slots=True)
class RowErrors(HeadResults):
    """Length, per row, of the error that a blockwise computation is expected to have.

    A computation in pieces keeps two numbers of each row i from piece to piece, lse and delta;
    eager attention has neither. To first order in their roundings:

    - ``p = exp(s - lse)`` is off by the relative ``a_i = u (1 + |lse_i| / 2)``, with u the unit of
      sums: one for the exponential, half of one of a number as large as lse for the exponent.
    - ``delta_i``, the sum of the D products ``dout * out``, is off by ``e_i``. With ``t_i`` the
      root of the sum of their squares, partial sums leave ``u t_i sqrt(D / 24)``, the products
      ``u t_i``; the other side of ``dp - delta`` doubles these squares. Out, rounded to the dtype
      of the run first, leaves its unit / sqrt(12) of ``t_i``, delta one u.
    - Backward computes s once more, in another order: p is off by the relative ``b_i |k_j|`` with
      ``b_i = u sqrt(2 (1 + D / 24)) scale |q_i| / sqrt(D)``. It matters for dv.

    Hence, as squares over independent errors, where ``ds = p (dp - delta)``:

    - out: ``a_i^2 sum_j p^2 |v_j|^2``
    - dv: ``sum_i (a_i^2 + b_i^2 |k_j|^2) p^2 |dout_i|^2``
    - dq: ``scale^2 (a_i^2 sum_j ds^2 |k_j|^2 + e_i^2 |sum_j p k_j|^2)``, e_i common to the row
    - dk: ``scale^2 sum_i (a_i^2 ds^2 + e_i^2 p^2) |q_i|^2``

    The parts with e_i matter where ``dp - delta`` cancels, as in a row that sees one key: there
    eager attention is exact, since it subtracts equal numbers.

    Of out and dq ``[G, n]``, of dk and dv ``[n]``.
    """


class _Chunk(NamedTuple):
    """Rows that see some key, the keys that some of these rows see, and the hidden pairs."""

    rows: Tensor
    keys: Tensor
    hidden: Tensor  # bool [rows, keys]


class _HeadRows(NamedTuple):
    """Rows of one query head in a chunk with their keys, and the results of `exact` for them."""

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor
    out: Tensor
    weights: Tensor
    dscores: Tensor
    lse: Tensor


def exact(head: HeadTensors, mask: Tensor, rounding: Rounding) -> tuple[HeadResults, RowErrors]:
    """Compute attention and its gradients in float64; rows without keys give zeros."""
    wide = head.to(torch.float64)
    scale = wide.q.shape[-1] ** -0.5
    out, dq = torch.zeros_like(wide.q), torch.zeros_like(wide.q)
    dk, dv = torch.zeros_like(wide.k), torch.zeros_like(wide.v)
    q_squares = wide.q.new_zeros(2, *wide.q.shape[:2])  # of out and dq, by query head and row
    kv_squares = wide.k.new_zeros(2, len(wide.k))  # of dk and dv: sums over rows and query heads
    for chunk in _chunks(mask, torch.float64):
        k, v = wide.k[chunk.keys], wide.v[chunk.keys]
        for g in range(len(wide.q)):
            q, dout = wide.q[g, chunk.rows], wide.dout[g, chunk.rows]
            scores = ((q * scale) @ k.T).masked_fill_(chunk.hidden, -torch.inf)
            lse = torch.logsumexp(scores, 1)
            weights = scores.sub_(lse.unsqueeze(1)).exp_()
            out_rows = weights @ v
            # ds = p (dp - delta), where dp = dout v^T and delta is the sum over dims of dout * out.
            dscores = (dout @ v.T).sub_((dout * out_rows).sum(1, keepdim=True)).mul_(weights)
            out[g, chunk.rows] = out_rows
            dq[g, chunk.rows] = (dscores @ k) * scale
            dk[chunk.keys] += dscores.T @ (q * scale)
            dv[chunk.keys] += weights.T @ dout
            rows = _HeadRows(q, k, v, dout, out_rows, weights, dscores, lse)
            of_rows, of_keys = _squares(rows, scale, rounding)
            q_squares[:, g, chunk.rows] = of_rows
            kv_squares[:, chunk.keys] += of_keys
    return HeadResults(out, dq, dk, dv), RowErrors(*q_squares.sqrt(), *kv_squares.sqrt())


def _squares(rows: _HeadRows, scale: float, rounding: Rounding) -> tuple[Tensor, Tensor]:
    """Return the squares of `RowErrors`: of out, dq ``[2, rows]``, of dk, dv ``[2, keys]``."""
    # Overwrites weights and dscores, which are as large as the mask. Names follow `RowErrors`.
    q2, k2, v2, dout2 = (t.square().sum(1) for t in (rows.q, rows.k, rows.v, rows.dout))
    products, head_dim = rows.dout * rows.out, rows.q.shape[1]
    of_dot = 2 * rounding.sums**2 * (1 + head_dim / 24)
    of_delta = (of_dot + rounding.tensor**2 / 12) * products.square().sum(1)
    of_delta += rounding.sums**2 * products.sum(1).square()  # e_i^2
    of_weights = (rounding.sums * (1 + rows.lse.abs() / 2)).square()  # a_i^2
    mean_key = (rows.weights @ rows.k).square().sum(1)  # |sum_j p k_j|^2
    p2, ds2 = rows.weights.square_(), rows.dscores.square_()
    of_out = of_weights * (p2 @ v2)
    of_dq = scale**2 * (of_weights * (ds2 @ k2) + of_delta * mean_key)
    of_dk = scale**2 * ((of_weights * q2) @ ds2 + (of_delta * q2) @ p2)
    of_scores = of_dot * scale**2 / head_dim * q2  # b_i^2
    of_dv = (of_weights * dout2) @ p2 + k2 * ((of_scores * dout2) @ p2)
    return torch.stack([of_out, of_dq]), torch.stack([of_dk, of_dv])


def eager(head: HeadTensors, mask: Tensor) -> HeadResults:
    """Compute ``softmax(q kᵀ / sqrt(D) + mask) v`` and its gradients as torch does, by autograd."""
    # In the dtype of the arguments. Gradients of k and v from several chunks or query heads are
    # added in float32.
    dtype, scale = head.q.dtype, head.q.shape[-1] ** -0.5
    out, dq = torch.zeros_like(head.q), torch.zeros_like(head.q)
    sums = torch.promote_types(dtype, torch.float32)  # float64 stays float64
    dk, dv = torch.zeros_like(head.k, dtype=sums), torch.zeros_like(head.v, dtype=sums)
    for chunk in _chunks(mask, dtype):
        bias = torch.zeros(chunk.hidden.shape, dtype=dtype, device=chunk.hidden.device)
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


def _chunks(mask: Tensor, dtype: torch.dtype) -> Iterator[_Chunk]:
    """Cut the rows so that the scores of a chunk stay within the limit of their dtype."""
    bits = torch.finfo(dtype).bits
    limit = CHUNK_BYTES_16_BIT if bits == 16 else CHUNK_BYTES
    step = max(1, limit // max(1, mask.shape[1] * bits // 8))
    for first in range(0, len(mask), step):
        part = mask[first : first + step]
        rows, keys = part.any(1).nonzero().squeeze(1), part.any(0).nonzero().squeeze(1)
        if len(rows):
            yield _Chunk(rows + first, keys, ~part[rows][:, keys])
