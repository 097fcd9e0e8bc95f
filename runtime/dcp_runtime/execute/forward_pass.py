"""One forward call on one device: working buffers of q and kv, and the state they fill."""

import torch

from dcp_planner import Direction, TransferKind
from dcp_runtime.execute.buffers import rows_of, working_buffer
from dcp_runtime.kernels.kernel import AttentionState, Kernel, accumulator_dtype
from dcp_runtime.plans.device_plan import DevicePlan, Transfer
from dcp_runtime.plans.tile_table import TileTable


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
        """Give out ``[T_local, Hq, D]`` in the dtype of q and lse ``[T_local, Hq]``."""
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
        """Give kv or q as they lie in the buffer, or lse and out so far."""
        rows = self._rows(transfer)
        if transfer.kind.is_result:
            return self._state.lse[rows], self._state.out[rows].to(self._q.dtype)
        return (self._input(transfer.kind)[rows],)

    def incoming(self, transfer: Transfer) -> tuple[torch.Tensor, ...]:
        """Give the place where it arrives; a query's state starts anew."""
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
