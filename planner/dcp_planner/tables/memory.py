"""Bytes of transfers, of buffers, and of all that attention holds on a device while it runs.

The buffers of a direction are allocated when it begins and given back when it ends, so a device has
two levels: what one layer holds while forward runs, and while backward runs. Between the two it
holds what backward needs (`saved`). The model's own weights, its other activations and the
allocator's rounding are not counted.
"""

from dataclasses import dataclass

import numpy as np

from dcp_dsl.arrays import Bools, Ints
from dcp_planner.model.cluster import FLOAT32_BYTES, ModelShape
from dcp_planner.model.placement import loads_of
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
    return np.asarray(rows @ sum_bytes_per_token(shape, direction))


def sum_bytes_per_token(shape: ModelShape, direction: Direction) -> Ints:
    """Compute the bytes of the partial sums at a row of each kind, int64 ``[5]``.

    >>> sum_bytes_per_token(ModelShape(32, 8, 128, 2), "forward").tolist()
    [0, 16512, 0, 0, 0]
    """
    row, keys = shape.q_heads * shape.head_dim, 2 * shape.kv_heads * shape.head_dim
    elements = np.zeros(len(TransferKind), np.int64)
    if direction == "forward":
        elements[TransferKind.Q] = row + shape.q_heads
    else:
        elements[TransferKind.Q], elements[TransferKind.KV] = row, keys
    return FLOAT32_BYTES * elements


def bytes_per_token(shape: ModelShape, direction: Direction) -> Ints:
    """Compute the bytes of one token in each kind of transfer, int64 ``[5]`` by `TransferKind`.

    >>> bytes_per_token(ModelShape(32, 8, 128, 2), "forward").tolist()
    [4096, 8192, 8320, 8192, 4096]
    """
    q = shape.q_bytes if direction == "forward" else shape.q_backward_bytes
    return np.array([shape.kv_bytes, q, shape.out_bytes, shape.dq_bytes, shape.dkv_bytes])


@dataclass(frozen=True, slots=True, eq=False)
class DeviceMemory:
    """Bytes of one attention layer on each device, int64 ``[R]``.

    Attributes:
        saved: q, k, v, out and log-sum-exp of the own tokens, kept from forward to backward.
        forward, backward: held while a direction runs, the saved tensors among them: own tensors
            and their copies in working buffers, receive buffers, partial sums, results.
    """

    saved: Ints
    forward: Ints
    backward: Ints

    @property
    def peak(self) -> Ints:
        """The most that each device holds."""
        return np.asarray(np.maximum(self.forward, self.backward))


def measure_memory(plan: Plan) -> DeviceMemory:
    """Compute the memory of every device; O(X + D)."""
    devices = plan.num_devices
    tokens = loads_of(plan.blocks.owner, plan.blocks.num_tokens, devices)
    kept, moving = own_bytes_per_token(plan.shape)
    saved = tokens * kept
    own = tokens * plan.head_groups  # rows of one head group each
    shape = group_shape(plan.shape, plan.head_groups)
    buffers = receive_buffer_bytes(plan)
    forward, backward = (
        saved + buffers[side] + _buffers(receive_rows(plan, direction), own, shape, direction)
        for side, direction in enumerate(DIRECTIONS)
    )
    return DeviceMemory(saved, forward, backward + tokens * moving)


def own_bytes_per_token(shape: ModelShape) -> tuple[int, int]:
    """Compute the bytes of an own token: what is saved, and what backward holds beside it.

    Saved are q, k, v, out and log-sum-exp; backward adds dout, its product with out, and the
    gradients of q, k and v.

    >>> own_bytes_per_token(ModelShape(32, 8, 128, 2))
    (20608, 20608)
    """
    row = 2 * shape.q_bytes + shape.kv_bytes + FLOAT32_BYTES * shape.q_heads
    return row, row


def _buffers(rows: Ints, own: Ints, shape: ModelShape, direction: Direction) -> Ints:
    """Compute copies of own rows, where something arrives beside them, and partial sums."""
    q, kv = rows[:, TransferKind.Q], rows[:, TransferKind.KV]
    row = shape.q_bytes if direction == "forward" else shape.q_backward_bytes
    copies = np.where(q > 0, own * row, 0) + np.where(kv > 0, own * shape.kv_bytes, 0)
    query, keys = shape.q_heads * shape.head_dim, 2 * shape.kv_heads * shape.head_dim
    if direction == "forward":
        sums = (own + q) * (query + shape.q_heads)
    else:
        sums = (own + q) * query + (own + kv) * keys
    return np.asarray(copies + FLOAT32_BYTES * sums)
