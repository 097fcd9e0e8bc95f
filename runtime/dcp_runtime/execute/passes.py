"""Forward and backward calls on one device: their buffers, and what instructions do to them."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from dcp_planner import Direction, TransferKind
from dcp_runtime.kernels.kernel import (
    AttentionState,
    Gradients,
    Kernel,
    QueryRows,
    accumulator_dtype,
)
from dcp_runtime.plans.device_plan import DevicePlan, Transfer
from dcp_runtime.plans.tile_table import TileTable


def working_buffer(own: Tensor, receive_rows: int) -> Tensor:
    """Return a buffer for own rows and received ones; the own tensor itself if nothing arrives.

    >>> own = torch.ones(2, 3)
    >>> working_buffer(own, 0) is own, working_buffer(own, 4).shape
    (True, torch.Size([6, 3]))
    """
    if receive_rows == 0:
        return own.contiguous()
    return own.new_empty(len(own) + receive_rows, *own.shape[1:])


class Pass(ABC):
    """One call in one direction, with its send and receive buffers.

    `queries` are the tensors of the local tokens that travel with a block of queries.
    """

    direction: Direction

    def __init__(self, part: DevicePlan, queries: tuple[Tensor, ...], kv: Tensor) -> None:
        self._plan, self._num_local = part.of(self.direction), part.num_local
        received = self._plan.receive_rows
        self._local = (*queries, kv)
        self._queries = tuple(working_buffer(own, received[TransferKind.Q]) for own in queries)
        self._kv = working_buffer(kv, received[TransferKind.KV])
        self._partials: tuple[Tensor, ...] = ()  # where partial results arrive

    @property
    def receive_bytes(self) -> int:
        """Bytes of the receive buffers, as ``receive_buffer_bytes`` of the planner counts them."""
        arriving = (tensor[self._num_local :] for tensor in (*self._queries, self._kv))
        return sum(tensor.nbytes for tensor in (*arriving, *self._partials))

    def copy(self) -> None:
        """Copy the own blocks into the working buffers."""
        for buffer, own in zip((*self._queries, self._kv), self._local, strict=True):
            if buffer is not own:
                buffer[: len(own)] = own

    def outgoing(self, transfer: Transfer) -> tuple[Tensor, ...]:
        """Return the contiguous tensors to send: inputs as they lie, or a result so far."""
        return self._result(transfer) if transfer.kind.is_result else self._inputs(transfer)

    def incoming(self, transfer: Transfer) -> tuple[Tensor, ...]:
        """Return the contiguous tensors to receive into; the results of a block start anew."""
        if transfer.kind.is_result:
            return self._partial(transfer)
        self._clear(transfer)
        return self._inputs(transfer)

    def _inputs(self, transfer: Transfer) -> tuple[Tensor, ...]:
        buffers = (self._kv,) if transfer.kind == TransferKind.KV else self._queries
        return tuple(buffer[self._rows(transfer)] for buffer in buffers)

    def _rows(self, transfer: Transfer) -> slice:
        """Return the rows of a transfer's block in the buffers of queries or of keys."""
        is_kv = transfer.kind in (TransferKind.KV, TransferKind.DKV)
        start = int((self._plan.rows.kv if is_kv else self._plan.rows.q)[transfer.block])
        return slice(start, start + transfer.num_tokens)

    @abstractmethod
    def attend(self, kernel: Kernel, table: TileTable) -> None:
        """Compute the tiles of a table."""

    @abstractmethod
    def reduce(self, transfer: Transfer) -> None:
        """Merge a partial result that has arrived."""

    @abstractmethod
    def _result(self, transfer: Transfer) -> tuple[Tensor, ...]:
        """Return the result so far of a transfer's block."""

    @abstractmethod
    def _partial(self, transfer: Transfer) -> tuple[Tensor, ...]:
        """Return where a partial result arrives."""

    @abstractmethod
    def _clear(self, transfer: Transfer) -> None:
        """Forget the results of the block that was in these rows before."""


class ForwardPass(Pass):
    """Buffers of a forward call on q ``[T_local, Hq, D]`` and kv.

    A partial result travels as lse, in the type of the sums, and out, in that of q.
    """

    direction: Direction = "forward"

    def __init__(self, part: DevicePlan, q: Tensor, kv: Tensor) -> None:
        super().__init__(part, (q,), kv)
        (self._q,), sums = self._queries, accumulator_dtype(q.dtype)
        self._state = AttentionState.empty(
            len(self._q), q.shape[1], q.shape[2], sums, device=q.device
        )
        rows = self._plan.receive_rows[TransferKind.OUT]
        self._partials = (
            q.new_empty(rows, q.shape[1], dtype=sums),
            q.new_empty(rows, *q.shape[1:]),
        )

    def result(self) -> tuple[Tensor, Tensor]:
        """Return out ``[T_local, Hq, D]`` in the dtype of q and lse ``[T_local, Hq]``."""
        local = slice(self._num_local)
        out = self._state.out[local].to(self._q.dtype)
        # A copy: layers keep their result, which must not keep the rows of remote queries.
        is_whole = len(self._q) == self._num_local
        return (out, self._state.lse) if is_whole else (out.clone(), self._state.lse[local].clone())

    def attend(self, kernel: Kernel, table: TileTable) -> None:
        """Merge the tiles of a table into the state."""
        scale = self._q.shape[-1] ** -0.5
        kernel.forward(self._q, self._kv, table, scale, self._state)

    def reduce(self, transfer: Transfer) -> None:
        """Merge a partial result by log-sum-exp."""
        lse, out = self._partial(transfer)
        self._state.merge(self._rows(transfer).start, out, lse)

    def _result(self, transfer: Transfer) -> tuple[Tensor, ...]:
        rows = self._rows(transfer)
        return self._state.lse[rows], self._state.out[rows].to(self._q.dtype)

    def _partial(self, transfer: Transfer) -> tuple[Tensor, ...]:
        rows = slice(transfer.slot, transfer.slot + transfer.num_tokens)
        return tuple(tensor[rows] for tensor in self._partials)

    def _clear(self, transfer: Transfer) -> None:
        if transfer.kind == TransferKind.Q:
            self._state.out[self._rows(transfer)] = 0
            self._state.lse[self._rows(transfer)] = -torch.inf


class BackwardPass(Pass):
    """Buffers of a backward call on the `QueryRows` of the local tokens and kv.

    Queries travel as lse, delta, q, dout. Gradients are summed in float32 (float64 for float64) and
    travel home in the dtype of q, the size that plans count with.
    """

    direction: Direction = "backward"

    def __init__(self, part: DevicePlan, rows: QueryRows, kv: Tensor) -> None:
        super().__init__(part, (rows.lse, rows.delta, rows.q, rows.dout), kv)
        lse, delta, q, dout = self._queries
        self._query_rows = QueryRows(q, dout, lse, delta)
        sums = accumulator_dtype(kv.dtype)
        self._sums = Gradients(
            torch.zeros(q.shape, dtype=sums, device=kv.device),
            torch.zeros(self._kv.shape, dtype=sums, device=kv.device),
        )
        received = self._plan.receive_rows
        self._partials = (
            rows.q.new_empty(received[TransferKind.DQ], *rows.q.shape[1:]),
            kv.new_empty(received[TransferKind.DKV], *kv.shape[1:]),
        )

    def result(self) -> tuple[Tensor, Tensor]:
        """Return dq ``[T_local, Hq, D]`` and dkv ``[T_local, 2, Hkv, D]`` in the dtype of q."""
        local, dtype = slice(self._num_local), self._kv.dtype
        dq, dkv = (sums[local].to(dtype) for sums in (self._sums.dq, self._sums.dkv))
        # Copies: gradients live on and must not keep the rows of remote blocks.
        is_whole = len(self._kv) == len(self._query_rows.q) == self._num_local
        return (dq, dkv) if is_whole else (dq.clone(), dkv.clone())

    def attend(self, kernel: Kernel, table: TileTable) -> None:
        """Add the gradients of the tiles of a table."""
        scale = self._kv.shape[-1] ** -0.5
        kernel.backward(self._query_rows, self._kv, table, scale, self._sums)

    def reduce(self, transfer: Transfer) -> None:
        """Add a partial sum."""
        (partial,) = self._partial(transfer)
        self._sum(transfer)[self._rows(transfer)] += partial

    def _result(self, transfer: Transfer) -> tuple[Tensor, ...]:
        return (self._sum(transfer)[self._rows(transfer)].to(self._kv.dtype),)

    def _partial(self, transfer: Transfer) -> tuple[Tensor, ...]:
        buffer = self._partials[transfer.kind == TransferKind.DKV]
        return (buffer[transfer.slot : transfer.slot + transfer.num_tokens],)

    def _clear(self, transfer: Transfer) -> None:
        self._sum(transfer)[self._rows(transfer)] = 0

    def _sum(self, transfer: Transfer) -> Tensor:
        is_kv = transfer.kind in (TransferKind.KV, TransferKind.DKV)
        return self._sums.dkv if is_kv else self._sums.dq
