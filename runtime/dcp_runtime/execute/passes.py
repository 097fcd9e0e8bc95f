"""Forward and backward calls on one device: their buffers, and what instructions do to them."""

import torch

from dcp_planner import Direction, TransferKind
from dcp_runtime.kernels.kernel import (
    AttentionState,
    Gradients,
    Kernel,
    QueryRows,
    accumulator_dtype,
)
from dcp_runtime.plans.device_plan import DevicePlan, DirectionPlan, Transfer
from dcp_runtime.plans.tile_table import TileTable


def working_buffer(own: torch.Tensor, receive_rows: int) -> torch.Tensor:
    """Return a buffer for own rows and received ones; the own tensor itself if nothing arrives.

    >>> own = torch.ones(2, 3)
    >>> working_buffer(own, 0) is own, working_buffer(own, 4).shape
    (True, torch.Size([6, 3]))
    """
    if receive_rows == 0:
        return own.contiguous()
    return own.new_empty(len(own) + receive_rows, *own.shape[1:])


def rows_of(plan: DirectionPlan, transfer: Transfer) -> slice:
    """Return the rows of a transfer's block in the buffers of queries or of keys."""
    is_kv = transfer.kind in (TransferKind.KV, TransferKind.DKV)
    start = int((plan.rows.kv if is_kv else plan.rows.q)[transfer.block])
    return slice(start, start + transfer.num_tokens)


class ForwardPass:
    """Buffers of one forward call; everything is sent from them and received into them.

    A partial result travels as lse, in the type of the sums, and out, in that of q.

    Args:
        part: the device's part of the plan.
        q: ``[T_local, Hq, D]``.
        kv: ``[T_local, 2, Hkv, D]``.
    """

    direction: Direction = "forward"

    def __init__(self, part: DevicePlan, q: torch.Tensor, kv: torch.Tensor) -> None:
        self._plan, self._num_local = part.forward, part.num_local
        received = part.forward.receive_rows
        self._local = q, kv
        self._q = working_buffer(q, received[TransferKind.Q])
        self._kv = working_buffer(kv, received[TransferKind.KV])
        self._scale = q.shape[-1] ** -0.5
        sums = accumulator_dtype(q.dtype)
        self._state = AttentionState.empty(
            len(self._q), q.shape[1], q.shape[2], sums, device=q.device
        )
        partials = received[TransferKind.OUT]
        self._out = q.new_empty(partials, *q.shape[1:])
        self._lse = q.new_empty(partials, q.shape[1], dtype=sums)

    @property
    def receive_bytes(self) -> int:
        """Bytes of the receive buffers, as ``receive_buffer_bytes`` of the planner counts them."""
        arriving = self._q[self._num_local :], self._kv[self._num_local :]
        return sum(tensor.nbytes for tensor in (*arriving, self._out, self._lse))

    def result(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return out ``[T_local, Hq, D]`` in the dtype of q and lse ``[T_local, Hq]``."""
        local = slice(self._num_local)
        out = self._state.out[local].to(self._q.dtype)
        # A copy: layers keep their result, which must not keep the rows of remote queries.
        is_whole = len(self._q) == self._num_local
        return (out, self._state.lse) if is_whole else (out.clone(), self._state.lse[local].clone())

    def copy(self) -> None:
        """Bring the own blocks into the working buffers."""
        for buffer, own in zip((self._q, self._kv), self._local, strict=True):
            if buffer is not own:
                buffer[: len(own)] = own

    def attend(self, kernel: Kernel, table: TileTable) -> None:
        """Merge the tiles of a table into the state."""
        kernel.forward(self._q, self._kv, table, self._scale, self._state)

    def outgoing(self, transfer: Transfer) -> tuple[torch.Tensor, ...]:
        """Return kv or q as they lie in the buffer, or lse and out so far."""
        rows = self._rows(transfer)
        if transfer.kind.is_result:
            return self._state.lse[rows], self._state.out[rows].to(self._q.dtype)
        return (self._input(transfer.kind)[rows],)

    def incoming(self, transfer: Transfer) -> tuple[torch.Tensor, ...]:
        """Return the place where it arrives; a query's state starts anew."""
        if transfer.kind.is_result:
            return self._partial(transfer)
        rows = self._rows(transfer)
        if transfer.kind == TransferKind.Q:
            self._state.out[rows] = 0
            self._state.lse[rows] = -torch.inf
        return (self._input(transfer.kind)[rows],)

    def reduce(self, transfer: Transfer) -> None:
        """Merge a partial result by log-sum-exp."""
        lse, out = self._partial(transfer)
        self._state.merge(self._rows(transfer).start, out, lse)

    def _input(self, kind: TransferKind) -> torch.Tensor:
        return self._kv if kind == TransferKind.KV else self._q

    def _partial(self, transfer: Transfer) -> tuple[torch.Tensor, torch.Tensor]:
        rows = slice(transfer.slot, transfer.slot + transfer.num_tokens)
        return self._lse[rows], self._out[rows]

    def _rows(self, transfer: Transfer) -> slice:
        return rows_of(self._plan, transfer)


class BackwardPass:
    """Buffers of one backward call.

    Queries travel as lse, delta, q, dout. Gradients are summed in float32 (float64 for float64) and
    travel home in the dtype of q, the size that plans count with.

    Args:
        part: the device's part of the plan.
        rows: q, dout, lse and delta of the local tokens.
        kv: ``[T_local, 2, Hkv, D]``.
    """

    direction: Direction = "backward"

    def __init__(self, part: DevicePlan, rows: QueryRows, kv: torch.Tensor) -> None:
        self._plan, self._num_local = part.backward, part.num_local
        received = part.backward.receive_rows
        queries = received[TransferKind.Q]
        self._local = (*_tensors(rows), kv)
        self._rows = QueryRows(
            q=working_buffer(rows.q, queries),
            dout=working_buffer(rows.dout, queries),
            lse=working_buffer(rows.lse, queries),
            delta=working_buffer(rows.delta, queries),
        )
        self._kv = working_buffer(kv, received[TransferKind.KV])
        self._scale = rows.q.shape[-1] ** -0.5
        sums = accumulator_dtype(kv.dtype)
        self._sums = Gradients(
            torch.zeros(self._rows.q.shape, dtype=sums, device=kv.device),
            torch.zeros(self._kv.shape, dtype=sums, device=kv.device),
        )
        self._dq = rows.q.new_empty(received[TransferKind.DQ], *rows.q.shape[1:])
        self._dkv = kv.new_empty(received[TransferKind.DKV], *kv.shape[1:])

    @property
    def receive_bytes(self) -> int:
        """Bytes of the receive buffers, as ``receive_buffer_bytes`` of the planner counts them."""
        arriving = (tensor[self._num_local :] for tensor in (*_tensors(self._rows), self._kv))
        return sum(tensor.nbytes for tensor in (*arriving, self._dq, self._dkv))

    def result(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return dq ``[T_local, Hq, D]`` and dkv ``[T_local, 2, Hkv, D]`` in the dtype of q."""
        dq, dkv = (
            sums[: self._num_local].to(self._kv.dtype) for sums in (self._sums.dq, self._sums.dkv)
        )
        # Copies: gradients live on and must not keep the rows of remote blocks.
        is_whole = len(self._kv) == len(self._rows.q) == self._num_local
        return (dq, dkv) if is_whole else (dq.clone(), dkv.clone())

    def copy(self) -> None:
        """Bring the own blocks into the working buffers."""
        for buffer, own in zip((*_tensors(self._rows), self._kv), self._local, strict=True):
            if buffer is not own:
                buffer[: len(own)] = own

    def attend(self, kernel: Kernel, table: TileTable) -> None:
        """Add the gradients of the tiles of a table."""
        kernel.backward(self._rows, self._kv, table, self._scale, self._sums)

    def outgoing(self, transfer: Transfer) -> tuple[torch.Tensor, ...]:
        """Return inputs as they lie in the buffers, or a sum so far in the dtype of q."""
        if transfer.kind.is_result:
            return (self._sum(transfer)[rows_of(self._plan, transfer)].to(self._kv.dtype),)
        return self._inputs(transfer)

    def incoming(self, transfer: Transfer) -> tuple[torch.Tensor, ...]:
        """Return the place where it arrives; a block's sums start anew."""
        if transfer.kind.is_result:
            return (self._partial(transfer),)
        sums = self._sums.dkv if transfer.kind == TransferKind.KV else self._sums.dq
        sums[rows_of(self._plan, transfer)] = 0
        return self._inputs(transfer)

    def reduce(self, transfer: Transfer) -> None:
        """Add a partial sum."""
        self._sum(transfer)[rows_of(self._plan, transfer)] += self._partial(transfer)

    def _inputs(self, transfer: Transfer) -> tuple[torch.Tensor, ...]:
        rows = rows_of(self._plan, transfer)
        if transfer.kind == TransferKind.KV:
            return (self._kv[rows],)
        return tuple(tensor[rows] for tensor in _tensors(self._rows))

    def _partial(self, transfer: Transfer) -> torch.Tensor:
        buffer = self._dkv if transfer.kind == TransferKind.DKV else self._dq
        return buffer[transfer.slot : transfer.slot + transfer.num_tokens]

    def _sum(self, transfer: Transfer) -> torch.Tensor:
        return self._sums.dkv if transfer.kind == TransferKind.DKV else self._sums.dq


def _tensors(rows: QueryRows) -> tuple[torch.Tensor, ...]:
    return rows.lse, rows.delta, rows.q, rows.dout
