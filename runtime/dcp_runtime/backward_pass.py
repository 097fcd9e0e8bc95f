"""One backward call on one device: what is known of the queries, kv, and the gradients' sums."""

import torch

from dcp_planner import Direction, TransferKind
from dcp_runtime.device_plan import DevicePlan, Transfer
from dcp_runtime.kernels.kernel import Gradients, Kernel, QueryRows, accumulator_dtype
from dcp_runtime.tile_table import TileTable
from dcp_runtime.wire import join, room_for, split


class BackwardPass:
    """Buffers of one backward call.

    Queries travel as the bundle lse, delta, q, dout. Gradients are summed in float32 (float64 for
    float64) and travel home in the dtype of q, the size that plans count with.

    Args:
        part: the device's part of the plan.
        rows: q, dout, lse and delta of the local tokens.
        kv: ``[T_local, 2, Hkv, D]``.
    """

    direction: Direction = "backward"

    def __init__(self, part: DevicePlan, rows: QueryRows, kv: torch.Tensor) -> None:
        self._part = part
        self._local_rows, self._local_kv = rows, kv
        size = part.num_q
        self._rows = QueryRows(
            q=rows.q.new_empty(size, *rows.q.shape[1:]),
            dout=rows.dout.new_empty(size, *rows.dout.shape[1:]),
            lse=rows.lse.new_empty(size, *rows.lse.shape[1:]),
            delta=rows.delta.new_empty(size, *rows.delta.shape[1:]),
        )
        self._kv = kv.new_empty(part.num_kv, *kv.shape[1:])
        self._scale = rows.q.shape[-1] ** -0.5
        sums = accumulator_dtype(kv.dtype)
        self._sums = Gradients(
            torch.zeros(self._rows.q.shape, dtype=sums), torch.zeros(self._kv.shape, dtype=sums)
        )

    def result(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Give dq ``[T_local, Hq, D]`` and dkv ``[T_local, 2, Hkv, D]`` in the dtype of q."""
        local = slice(self._part.num_local)
        return self._sums.dq[local].to(self._kv.dtype), self._sums.dkv[local].to(self._kv.dtype)

    def copy(self) -> None:
        """Bring the own blocks into the working buffers."""
        local = slice(self._part.num_local)
        for buffer, own in zip(self._bundle(local), _tensors(self._local_rows), strict=True):
            buffer.copy_(own)
        self._kv[local] = self._local_kv

    def attend(self, kernel: Kernel, table: TileTable) -> None:
        """Add the gradients of the tiles of a table."""
        kernel.backward(self._rows, self._kv, table, self._scale, self._sums)

    def outgoing(self, transfer: Transfer) -> torch.Tensor:
        """Give kv as it lies in the buffer, a packed bundle, or a sum in the dtype of q."""
        place = self._place(transfer)
        match transfer.kind:
            case TransferKind.KV:
                return self._kv[place]
            case TransferKind.Q:
                return join(*self._bundle(place))
            case _:
                return self._sum(transfer)[place].to(self._kv.dtype)

    def incoming(self, transfer: Transfer) -> torch.Tensor:
        """Give the place in the buffer, room for a bundle, or room for a partial sum."""
        place = self._place(transfer)
        match transfer.kind:
            case TransferKind.KV:
                return self._kv[place]
            case TransferKind.Q:
                return room_for(*self._bundle(place))
            case _:
                return torch.empty_like(self._sum(transfer)[place], dtype=self._kv.dtype)

    def arrive(self, transfer: Transfer, tensor: torch.Tensor) -> None:
        """Unpack a bundle; kv was received in place."""
        if transfer.kind == TransferKind.Q:
            bundle = self._bundle(self._place(transfer))
            for buffer, arrived in zip(bundle, split(tensor, *bundle), strict=True):
                buffer.copy_(arrived)

    def reduce(self, transfer: Transfer, tensor: torch.Tensor) -> None:
        """Add a partial sum."""
        self._sum(transfer)[self._place(transfer)] += tensor

    def _sum(self, transfer: Transfer) -> torch.Tensor:
        return self._sums.dkv if transfer.kind == TransferKind.DKV else self._sums.dq

    def _bundle(self, place: slice) -> tuple[torch.Tensor, ...]:
        return tuple(tensor[place] for tensor in _tensors(self._rows))

    def _place(self, transfer: Transfer) -> slice:
        is_kv = transfer.kind in (TransferKind.KV, TransferKind.DKV)
        start = int((self._part.rows.kv if is_kv else self._part.rows.q)[transfer.block])
        return slice(start, start + transfer.num_tokens)


def _tensors(rows: QueryRows) -> tuple[torch.Tensor, ...]:
    return rows.lse, rows.delta, rows.q, rows.dout  # the widest type first, as `join` wants it
