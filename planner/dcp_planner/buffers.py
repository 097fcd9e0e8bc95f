"""What a plan makes every device hold beside its own tokens, in bytes."""

import numpy as np
from numpy.typing import NDArray

from dcp_planner.emission import bytes_per_token
from dcp_planner.plan import Direction, Plan, TransferKind

SUM_BYTES = 4
"""Bytes of an element of a partial sum: float32."""


def receive_rows(plan: Plan, direction: Direction) -> NDArray[np.int64]:
    """Give the token rows of every receive buffer, int64 ``[R, 5]``, one column per `TransferKind`.

    A device allocates exactly these rows: its transfers lie at their `slot` within them.
    """
    table = plan.transfers
    chosen = np.flatnonzero(table.is_backward == (direction == "backward"))
    rows = np.zeros((plan.num_devices, len(TransferKind)), np.int64)
    ends = table.slot[chosen] + plan.blocks.num_tokens[table.block[chosen]]
    np.maximum.at(rows, (table.target[chosen], table.kind[chosen]), ends)
    return rows


def receive_buffer_bytes(plan: Plan) -> NDArray[np.int64]:
    """Give the bytes of every device's receive buffers, int64 ``[2, R]``: forward, backward."""

    def of(direction: Direction) -> NDArray[np.int64]:
        is_backward = direction == "backward"
        sizes = [bytes_per_token(plan.shape, k, is_backward=is_backward) for k in TransferKind]
        return np.asarray(receive_rows(plan, direction) @ np.array(sizes))

    return np.stack([of("forward"), of("backward")])


def accumulator_bytes(plan: Plan) -> NDArray[np.int64]:
    """Give the bytes of the partial sums of remote blocks, int64 ``[2, R]``: forward, backward.

    They lie at the rows of the blocks' inputs: out and lse, or dq, at those of Q; dkv at those of
    KV.
    """
    shape = plan.shape
    row, keys = shape.q_heads * shape.head_dim, 2 * shape.kv_heads * shape.head_dim
    forward, backward = receive_rows(plan, "forward"), receive_rows(plan, "backward")
    return SUM_BYTES * np.stack(
        [
            forward[:, TransferKind.Q] * (row + shape.q_heads),
            backward[:, TransferKind.Q] * row + backward[:, TransferKind.KV] * keys,
        ]
    )
