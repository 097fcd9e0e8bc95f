"""Memory that attention holds on each device, as the runtime allocates it.

The buffers of a direction are allocated when it begins and given back when it ends, so a device has
two levels: what one layer holds while forward runs, and while backward runs. Between the two it
holds what backward needs (`saved`). The model's own weights, its other activations and the
allocator's rounding are not counted.
"""

from dataclasses import dataclass

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_planner.model.cluster import FLOAT32_BYTES, ModelShape
from dcp_planner.model.packing import loads_of
from dcp_planner.model.workload import DIRECTIONS, Direction
from dcp_planner.tables.buffers import receive_buffer_bytes, receive_rows
from dcp_planner.tables.head_groups import group_shape
from dcp_planner.tables.plan import Plan, TransferKind


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
    saved = tokens * (plan.shape.q_bytes + plan.shape.kv_bytes + _lse_and_out(plan.shape))
    own = tokens * plan.head_groups  # rows of one head group each
    shape = group_shape(plan.shape, plan.head_groups)
    buffers = receive_buffer_bytes(plan)
    forward, backward = (
        saved + buffers[side] + _buffers(receive_rows(plan, direction), own, shape, direction)
        for side, direction in enumerate(DIRECTIONS)
    )
    # dout, its product with out, and the gradients of q, k and v.
    moving = 2 * plan.shape.q_bytes + plan.shape.kv_bytes + FLOAT32_BYTES * plan.shape.q_heads
    return DeviceMemory(saved, forward, backward + tokens * moving)


def _lse_and_out(shape: ModelShape) -> int:
    return shape.q_bytes + FLOAT32_BYTES * shape.q_heads


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
