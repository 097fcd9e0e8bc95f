"""Bytes of transfers, and of the buffers that every device needs beside its own tokens."""

import numpy as np

from dcp_dsl.arrays import Bools, Ints
from dcp_planner.model.cluster import FLOAT32_BYTES, ModelShape
from dcp_planner.model.workload import DIRECTIONS, Direction
from dcp_planner.tables.head_groups import expand_head_groups, group_shape
from dcp_planner.tables.plan import Plan, TransferKind, Transfers


def receive_rows(plan: Plan, direction: Direction) -> Ints:
    """Compute the rows of every receive buffer, int64 ``[R, 5]``, one column per `TransferKind`.

    A device allocates exactly these rows: its transfers lie at their `slot` within them. In a plan
    of several head groups a row is a token with the heads of one group.
    """
    # A row of a head group holds the heads of the group.
    plan = expand_head_groups(plan)
    chosen = plan.transfers.is_backward == (direction == "backward")
    return _rows(plan.transfers, chosen, plan.blocks.num_tokens, plan.num_devices)


def receive_buffer_bytes(plan: Plan) -> Ints:
    """Compute the bytes of every device's receive buffers, int64 ``[2, R]``: forward, backward."""
    shape = group_shape(plan.shape, plan.head_groups)
    return np.stack([_input_bytes(receive_rows(plan, d), shape, d) for d in DIRECTIONS])


def accumulator_bytes(plan: Plan) -> Ints:
    """Compute the bytes of the partial sums of remote blocks, int64 ``[2, R]``: forward, backward.

    They lie at the rows of the blocks' inputs: out and lse, or dq, at those of Q; dkv at those of
    KV.
    """
    shape = group_shape(plan.shape, plan.head_groups)
    return np.stack([_sum_bytes(receive_rows(plan, d), shape, d) for d in DIRECTIONS])


def buffer_bytes(
    transfers: Transfers,
    block_tokens: Ints,
    shape: ModelShape,
    direction: Direction,
    num_devices: int,
) -> Ints:
    """Compute the bytes of receive buffers and partial sums in one direction, int64 ``[R]``.

    `transfers` are those of the direction.
    """
    rows = _rows(transfers, np.ones(len(transfers), np.bool_), block_tokens, num_devices)
    return _input_bytes(rows, shape, direction) + _sum_bytes(rows, shape, direction)


def _rows(table: Transfers, chosen: Bools, block_tokens: Ints, num_devices: int) -> Ints:
    rows = np.zeros((num_devices, len(TransferKind)), np.int64)
    ends = table.slot[chosen] + block_tokens[table.block[chosen]]
    np.maximum.at(rows, (table.target[chosen], table.kind[chosen]), ends)
    return rows


def _input_bytes(rows: Ints, shape: ModelShape, direction: Direction) -> Ints:
    return np.asarray(rows @ bytes_per_token(shape, direction))


def _sum_bytes(rows: Ints, shape: ModelShape, direction: Direction) -> Ints:
    row, keys = shape.q_heads * shape.head_dim, 2 * shape.kv_heads * shape.head_dim
    q, kv = rows[:, TransferKind.Q], rows[:, TransferKind.KV]
    elements = q * (row + shape.q_heads) if direction == "forward" else q * row + kv * keys
    return np.asarray(FLOAT32_BYTES * elements)


def bytes_per_token(shape: ModelShape, direction: Direction) -> Ints:
    """Compute the bytes of one token in each kind of transfer, int64 ``[5]`` by `TransferKind`.

    >>> bytes_per_token(ModelShape(32, 8, 128, 2), "forward").tolist()
    [4096, 8192, 8320, 8192, 4096]
    """
    q = shape.q_bytes if direction == "forward" else shape.q_backward_bytes
    return np.array([shape.kv_bytes, q, shape.out_bytes, shape.dq_bytes, shape.dkv_bytes])
