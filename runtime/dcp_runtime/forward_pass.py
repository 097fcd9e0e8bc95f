"""One forward call on one device: working buffers of q and kv, and the state they fill."""

import torch

from dcp_planner import Direction, TransferKind
from dcp_runtime.device_plan import DevicePlan, Transfer
from dcp_runtime.kernels.kernel import AttentionState, Kernel, accumulator_dtype
from dcp_runtime.tile_table import TileTable
from dcp_runtime.wire import join, room_for, split


class ForwardPass:
    """Buffers of one forward call; kv and q are sent from them and received into them.

    A partial result travels as lse, in the type of the sums, and out, in that of q.

    Args:
        part: the device's part of the plan.
        q: ``[T_local, Hq, D]``.
        kv: ``[T_local, 2, Hkv, D]``.
    """

    direction: Direction = "forward"

    def __init__(self, part: DevicePlan, q: torch.Tensor, kv: torch.Tensor) -> None:
        self._part = part
        self._local = q, kv
        self._q = q.new_empty(part.num_q, *q.shape[1:])
        self._kv = kv.new_empty(part.num_kv, *kv.shape[1:])
        self._scale = q.shape[-1] ** -0.5
        sums = accumulator_dtype(q.dtype)
        self._state = AttentionState.empty(part.num_q, q.shape[1], q.shape[2], sums)

    def result(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Give out ``[T_local, Hq, D]`` in the dtype of q and lse ``[T_local, Hq]``."""
        local = slice(self._part.num_local)
        return self._state.out[local].to(self._q.dtype), self._state.lse[local].contiguous()

    def copy(self) -> None:
        """Bring the own blocks into the working buffers."""
        q, kv = self._local
        self._q[: len(q)] = q
        self._kv[: len(kv)] = kv

    def attend(self, kernel: Kernel, table: TileTable) -> None:
        """Merge the tiles of a table into the state."""
        kernel.forward(self._q, self._kv, table, self._scale, self._state)

    def outgoing(self, transfer: Transfer) -> torch.Tensor:
        """Give kv or q as they lie in the buffer, or a packed partial result."""
        if transfer.kind.is_result:
            rows = self._rows(transfer)
            return join(self._state.lse[rows], self._state.out[rows].to(self._q.dtype))
        return self._input(transfer)

    def incoming(self, transfer: Transfer) -> torch.Tensor:
        """Give the place in the buffer, or room for a packed partial result."""
        return room_for(*self._like(transfer)) if transfer.kind.is_result else self._input(transfer)

    def arrive(self, transfer: Transfer, tensor: torch.Tensor) -> None:
        """Nothing to do: inputs were received in place."""

    def reduce(self, transfer: Transfer, tensor: torch.Tensor) -> None:
        """Merge a partial result by log-sum-exp."""
        lse, out = split(tensor, *self._like(transfer))
        self._state.merge(self._rows(transfer).start, out, lse)

    def _input(self, transfer: Transfer) -> torch.Tensor:
        return (self._kv if transfer.kind == TransferKind.KV else self._q)[self._rows(transfer)]

    def _like(self, transfer: Transfer) -> tuple[torch.Tensor, torch.Tensor]:
        rows = self._rows(transfer)
        return self._state.lse[rows], self._q[rows]

    def _rows(self, transfer: Transfer) -> slice:
        known = self._part.rows.kv if transfer.kind == TransferKind.KV else self._part.rows.q
        start = int(known[transfer.block])
        return slice(start, start + transfer.num_tokens)
