"""The interface of kernels, the state that they carry, and the reference kernel.

Tensors are packed, ``[tokens, heads, head_dim]`` (kv ``[tokens, 2, heads, head_dim]``): rows of a
device's working buffers. A `TileTable` says which queries meet which keys.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from dcp_planner import TransferKind
from dcp_runtime.plans.tile_table import TileTable


def accumulator_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type that sums are kept in: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@dataclass(frozen=True, slots=True)
class AttentionState:
    """Output so far and its log-sum-exp; merging is exact in any order up to rounding.

    A kernel that finishes out writes the rows to `result` that a table closes, and reads no `out`
    in those that it opens; without `result` no table opens or closes rows.
    """

    out: Tensor  # [N, Hq, D], normalised, over the keys seen so far; 0 where none was
    lse: Tensor  # [N, Hq], natural logarithm of the sum of exponentials; -inf for no key
    result: Tensor | None = None  # [T_local, Hq, D], in the type of q

    @classmethod
    def empty(
        cls,
        num_rows: int,
        q_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> "AttentionState":
        """Return the state of rows that have seen nothing; `dtype` is that of the sums."""
        return cls(
            torch.zeros(num_rows, q_heads, head_dim, dtype=dtype, device=device),
            torch.full((num_rows, q_heads), -torch.inf, dtype=dtype, device=device),
        )

    def merge(self, start: int, out: Tensor, lse: Tensor) -> None:
        """Merge a partial result over other keys into the rows from `start` on.

        `out` is normalised over its own keys, and must be finite where `lse` is -inf.

        Source: FlashAttention-2, Sec. 3.1; DCP (SOSP'25), Sec. 5.
        """
        rows = slice(start, start + len(lse))
        ours, theirs = self.lse[rows], lse.to(self.lse.dtype)
        # The share of each side, and not 1 less the other share, which leaves a small share no
        # digit; nor exp(lse - total): such shares sum to one only up to the rounding of the total,
        # and the difference would grow with every merge. NaN is -inf - -inf: neither side has seen
        # a key, and out stays 0.
        lead = (ours - theirs).nan_to_num_(torch.inf, torch.inf, -torch.inf).unsqueeze(-1)
        total = torch.logaddexp(ours, theirs)
        self.out[rows].mul_(torch.sigmoid(lead)).addcmul_(
            out.to(self.out.dtype), torch.sigmoid(-lead)
        )
        self.lse[rows] = total


@dataclass(frozen=True, slots=True)
class QueryRows:
    """The tensors of the queries in backward, all rows of the working buffer."""

    q: Tensor  # [N, Hq, D]
    dout: Tensor  # [N, Hq, D]
    lse: Tensor  # [N, Hq], over *all* keys of the row, wherever they are; -inf if it sees none
    delta: Tensor  # [N, Hq], row sum of dout * out with the final out


@dataclass(frozen=True, slots=True)
class Gradients:
    """Sums that backward adds to, and the results of a kernel that finishes them."""

    dq: Tensor  # [N, Hq, D]
    dkv: Tensor  # [K, 2, Hkv, D]
    dq_result: Tensor | None = None  # [T_local, Hq, D] in the type of q, as `AttentionState.result`
    dkv_result: tuple[Tensor, ...] | None = None  # the same of the keys: dkv, or dk and dv


def row_delta(out: Tensor, dout: Tensor) -> Tensor:
    """Return the row sums of ``dout * out``, ``[N, Hq]``, in the type of the sums."""
    sums = accumulator_dtype(out.dtype)
    return (dout.to(sums) * out.to(sums)).sum(-1)


def any_out_with(delta: Tensor, dout: Tensor) -> Tensor:
    """Return an out whose row sums of ``dout * out`` are `delta`."""
    # Flash operators use out for these sums alone, and only delta travels to remote devices. A
    # multiple of dout has the right sums: dout * delta / |dout|². Dividing by the largest element
    # first keeps squares from underflowing. By Cauchy-Schwarz the result is never longer than the
    # true out.
    # A row of zeros divides by `tiny` instead of 0 and gets out 0.
    tiny = torch.finfo(dout.dtype).tiny
    largest = dout.abs().amax(-1, keepdim=True).clamp_min(tiny)
    unit = dout / largest
    return unit * (
        delta.unsqueeze(-1) / largest / unit.square().sum(-1, keepdim=True).clamp_min(tiny)
    )


@dataclass(frozen=True, slots=True)
class TensorKind:
    """The kind of tensors and the soft cap of scores, the same in all layers of a prepared plan."""

    dtype: torch.dtype
    device: torch.device
    head_dim: int
    softcap: float | None = None
    group: int = 1  # query heads of a kv head

    def __str__(self) -> str:
        capped = "" if self.softcap is None else f" with soft cap {self.softcap:g}"
        return f"{self.dtype} on {self.device.type}{capped}"


@dataclass(frozen=True, slots=True)
class Work:
    """Work of a kernel for some tables in one direction, from which its time is predicted."""

    launches: int = 0  # of kernels
    whole: int = 0  # pairs in tiles without a mask
    edge: int = 0  # pairs in tiles with a mask, visible or not
    q_rows: int = 0  # that are gathered to where the kernel wants them
    kv_rows: int = 0
    merged: int = 0  # rows whose results other kernels add to the sums

    def __add__(self, other: "Work") -> "Work":
        return Work(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


class Kernel(ABC):
    """A backend that computes the tiles of a table and accumulates their results."""

    name: str
    segment_rows = 256
    """Query rows per segment that it computes fastest; it takes segments of any size."""
    finishes: frozenset[TransferKind] = frozenset()
    """Results of own rows that it begins and ends where a table opens and closes them."""
    keeps_bits = False  # true if the bits of a piece in an ordered table depend on that piece alone

    def load(
        self, forward: Sequence[TileTable], backward: Sequence[TileTable], kind: TensorKind
    ) -> None:
        """Prepare tables ahead of the first call; by default nothing needs to be prepared."""
        return

    def work(self, table: TileTable, kind: TensorKind) -> Work:
        """Count the work of forward for a table; only kernels of `choice.COMPARED` can."""
        raise NotImplementedError

    @abstractmethod
    def forward(
        self, q: Tensor, kv: Tensor, table: TileTable, scale: float, state: AttentionState
    ) -> None:
        """Merge softmax(scale · q kᵀ) v over the keys of the table into `state`."""

    @abstractmethod
    def backward(
        self, rows: QueryRows, kv: Tensor, table: TileTable, scale: float, gradients: Gradients
    ) -> None:
        """Add the gradients of the tiles of the table; uses the global lse and delta of `rows`."""

    def delta(self, out: Tensor, dout: Tensor) -> Tensor:
        """Return the row sums of ``dout * out``, ``[N, Hq]``, in the type of the sums."""
        return row_delta(out, dout)

    def merge(self, state: AttentionState, start: int, out: Tensor, lse: Tensor) -> None:
        """Merge a partial result over other keys into the rows of a state from `start` on."""
        state.merge(start, out, lse)


class ReferenceKernel(Kernel):
    """Dense attention inside each piece; slow, exact, on any device."""

    name = "reference"
    segment_rows = 512
    keeps_bits = True

    def __init__(self, softcap: float | None = None) -> None:
        self._softcap = softcap

    def forward(
        self, q: Tensor, kv: Tensor, table: TileTable, scale: float, state: AttentionState
    ) -> None:
        """Merge softmax(scale · q kᵀ) v over the keys of the table into `state`."""
        for rows, keys, mask in _pieces(table, q.device):
            q_rows = q[rows].to(state.out.dtype)
            k, v = _expand(kv[keys], q.shape[1], state.out.dtype)
            # [Hq, rows, keys] of one piece, in the type of the sums: the memory of this kernel
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
        for row, keys, mask in _pieces(table, kv.device):
            q, dout = rows.q[row].to(dtype), rows.dout[row].to(dtype)
            k, v = _expand(kv[keys], q.shape[1], dtype)
            lse = _finite(rows.lse[row].to(dtype)).T.unsqueeze(-1)
            scores = self._scores(q, k, scale)
            weights = torch.exp(scores.masked_fill(~mask, -torch.inf) - lse)
            dweights = torch.einsum("qhd,khd->hqk", dout, v)
            dscores = weights * (dweights - rows.delta[row].to(dtype).T.unsqueeze(-1)) * scale
            if self._softcap is not None:  # tanh' = 1 - tanh², and scores / cap is the tanh
                dscores *= 1 - (scores / self._softcap).square()
            if table.adds_to != "dkv":
                gradients.dq[row].add_(torch.einsum("hqk,khd->qhd", dscores, k))
            if table.adds_to == "dq":
                continue
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


def _pieces(table: TileTable, device: torch.device) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield the rows, the keys and the mask of every piece."""
    for segment in range(table.num_segments):
        start, length = int(table.q_start[segment]), int(table.q_len[segment])
        for piece in range(int(table.row_ptr[segment]), int(table.row_ptr[segment + 1])):
            first, size = int(table.kv_start[piece]), int(table.kv_len[piece])
            mask = torch.from_numpy(table.piece_mask(piece, length)).to(device)
            yield slice(start, start + length), slice(first, first + size), mask


def _expand(kv: Tensor, q_heads: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    repeated = kv.to(dtype).repeat_interleave(q_heads // kv.shape[2], dim=2)
    return repeated[:, 0], repeated[:, 1]


def _finite(lse: Tensor) -> Tensor:
    # exp(-inf - -inf) is NaN; against any finite number it is 0, as a row without keys needs it.
    return lse.clamp_min(torch.finfo(lse.dtype).min)
