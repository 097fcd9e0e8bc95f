"""One backward call on one device: what is known of the queries, kv, and the gradients' sums."""

import torch

from dcp_planner import Direction, TransferKind
from dcp_runtime.execute.buffers import rows_of, working_buffer
from dcp_runtime.kernels.kernel import Gradients, Kernel, QueryRows, accumulator_dtype
from dcp_runtime.plans.device_plan import DevicePlan, Transfer
from dcp_runtime.plans.tile_table import TileTable


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
        """Give dq ``[T_local, Hq, D]`` and dkv ``[T_local, 2, Hkv, D]`` in the dtype of q."""
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
        """Give inputs as they lie in the buffers, or a sum so far in the dtype of q."""
        if transfer.kind.is_result:
            return (self._sum(transfer)[rows_of(self._plan, transfer)].to(self._kv.dtype),)
        return self._inputs(transfer)

    def incoming(self, transfer: Transfer) -> tuple[torch.Tensor, ...]:
        """Give the place where it arrives; a block's sums start anew."""
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
