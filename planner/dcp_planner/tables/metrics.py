"""Figures of a plan: balance, bytes of transfers and buffers, memory of devices.

The buffers of a direction are allocated when it begins and freed when it ends. So the memory of one
layer on a device has two levels, one while forward runs and one while backward runs. Between them
the device holds the tensors that backward needs (`DeviceMemory.saved`). Weights, other activations
of the model and the allocator's rounding are not counted.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dcp_dsl.arrays import Bools, Floats, Ints
from dcp_planner.model.cluster import FLOAT32_BYTES, ModelShape
from dcp_planner.model.problem import DIRECTIONS, Direction, loads_of
from dcp_planner.tables.head_groups import expand_head_groups, group_shape
from dcp_planner.tables.plan import Plan, TransferKind, Transfers


def receive_rows(plan: Plan, direction: Direction) -> Ints:
    """Compute the rows of every receive buffer, int64 ``[R, 5]``, one column per `TransferKind`.

    A device allocates exactly these rows: its transfers lie at their `slot` within them. In a plan
    of several head groups a row is a token with the heads of one group.
    """
    plan = expand_head_groups(plan)
    chosen = plan.transfers.is_backward == (direction == "backward")
    return _rows(plan.transfers, chosen, plan.blocks.num_tokens, plan.num_devices)


def receive_buffer_bytes(plan: Plan) -> Ints:
    """Compute the bytes of every device's receive buffers, int64 ``[2, R]``: forward, backward."""
    shape = group_shape(plan.shape, plan.head_groups)
    return np.stack([receive_rows(plan, d) @ bytes_per_token(shape, d) for d in DIRECTIONS])


def accumulator_bytes(plan: Plan) -> Ints:
    """Compute the bytes of the partial sums of remote blocks, int64 ``[2, R]``: forward, backward.

    They have the rows of the blocks' inputs: out and lse, or dq, those of Q; dkv those of KV.
    """
    shape = group_shape(plan.shape, plan.head_groups)
    return np.stack([receive_rows(plan, d) @ sum_bytes_per_token(shape, d) for d in DIRECTIONS])


def buffer_bytes(
    transfers: Transfers,
    block_tokens: Ints,
    shape: ModelShape,
    direction: Direction,
    num_devices: int,
) -> Ints:
    """Compute the bytes of receive buffers and partial sums of one direction ``[R]``."""
    rows = _rows(transfers, np.ones(len(transfers), np.bool_), block_tokens, num_devices)
    each = bytes_per_token(shape, direction) + sum_bytes_per_token(shape, direction)
    return np.asarray(rows @ each)


def _rows(table: Transfers, chosen: Bools, block_tokens: Ints, num_devices: int) -> Ints:
    # Rows are reused, so a buffer is as long as the last row of any transfer, not as their sum.
    rows = np.zeros((num_devices, len(TransferKind)), np.int64)
    ends = table.slot[chosen] + block_tokens[table.block[chosen]]
    np.maximum.at(rows, (table.target[chosen], table.kind[chosen]), ends)
    return rows


def sum_bytes_per_token(shape: ModelShape, direction: Direction) -> Ints:
    """Compute the bytes of the partial sums at a row of each kind of input, int64 ``[5]``.

    >>> sum_bytes_per_token(ModelShape(32, 8, 128, 2), "forward").tolist()
    [0, 16512, 0, 0, 0]
    """
    row, keys = shape.q_heads * shape.head_dim, 2 * shape.kv_heads * shape.head_dim
    elements = np.zeros(len(TransferKind), np.int64)
    if direction == "forward":
        elements[TransferKind.Q] = row + shape.q_heads
    else:
        elements[TransferKind.Q], elements[TransferKind.KV] = row, keys
        if shape.exact_sums:  # digits, beside the float32 of one piece
            elements[TransferKind.KV] += shape.dkv_bytes // FLOAT32_BYTES
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
    """Bytes of one attention layer on each device, int64 ``[R]``."""

    saved: Ints  # q, k, v, out and log-sum-exp of the own tokens, kept from forward to backward
    # forward, backward: held while a direction runs, the saved tensors among them: own tensors and
    # their copies in working buffers, receive buffers, partial sums, results
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
    own = tokens * plan.head_groups  # buffers have a row per token and head group
    shape = group_shape(plan.shape, plan.head_groups)
    forward, backward = (
        saved + _buffers(receive_rows(plan, direction), own, shape, direction)
        for direction in DIRECTIONS
    )
    # Forward's own tensors are those that are saved; backward has its own beside them.
    return DeviceMemory(saved, forward, backward + tokens * moving)


def own_bytes_per_token(shape: ModelShape) -> tuple[int, int]:
    """Compute the bytes of an own token: saved from forward, and held by backward beside them.

    Saved are q, k, v, out and log-sum-exp; backward adds dout, its product with out, and the
    gradients of q, k and v.

    >>> own_bytes_per_token(ModelShape(32, 8, 128, 2))
    (20608, 20608)
    """
    # dout and dq are as large as out and q, dkv as kv, and dout's product with out as lse.
    row = 2 * shape.q_bytes + shape.kv_bytes + FLOAT32_BYTES * shape.q_heads
    return row, row


def _buffers(rows: Ints, own: Ints, shape: ModelShape, direction: Direction) -> Ints:
    """Compute the bytes of received rows, copies of own rows and partial sums, int64 ``[R]``."""
    sizes, sums = bytes_per_token(shape, direction), sum_bytes_per_token(shape, direction)
    total = np.asarray(rows @ sizes)
    for kind in (TransferKind.Q, TransferKind.KV):
        received = rows[:, kind]
        # Own rows are copied in front of received ones; where none arrive they are used in place.
        total += np.where(received > 0, own * sizes[kind], 0) + (own + received) * sums[kind]
    return total


@dataclass(frozen=True, slots=True)
class DirectionMetrics:
    """Bytes that one direction moves."""

    total_bytes: int  # between all devices
    inter_node_bytes: int  # the part that crosses the network
    bytes_by_kind: dict[str, int]  # per `TransferKind` in lower case
    # sent_bytes, received_bytes: per device
    sent_bytes: tuple[int, ...]
    received_bytes: tuple[int, ...]
    peak_buffer_bytes: tuple[int, ...]  # per device, the receive buffers that it allocates


@dataclass(frozen=True, slots=True)
class PlanMetrics:
    """A plan in numbers; one tuple entry per device."""

    partitioner: str  # name of the partitioner
    # tokens, blocks, tiles: sizes of the batch; a tile of every head group counts
    tokens: int
    blocks: int
    tiles: int
    pairs: int  # visible pairs
    density: float  # pairs over those of a causal mask on each whole sequence
    full_density: float  # pairs over those of the whole square of each sequence
    flops: tuple[float, ...]  # forward FLOPs per device
    owned_tokens: tuple[int, ...]  # tokens per device
    # compute_imbalance, token_imbalance: most over mean; 1 is level. Work counts relative to the
    # device's rate: 0.8 of the mean work is level on a device at 0.8 of the mean rate.
    compute_imbalance: float
    token_imbalance: float
    # forward, backward: bytes
    forward: DirectionMetrics
    backward: DirectionMetrics
    warnings: tuple[str, ...]  # caps that are not met

    def to_json(self) -> dict[str, Any]:
        """Return the figures as a JSON object; `Any`: numbers, lists, texts and objects."""
        return asdict(self, dict_factory=_plain_dict)


def measure(plan: Plan) -> PlanMetrics:
    """Compute the figures of a plan; O(W + X + D)."""
    tiles, blocks, devices = plan.tiles, plan.blocks, plan.num_devices
    lengths = np.diff(plan.cu_seqlens).astype(np.int64)
    # Every pair is there once for each head group, each time with a Gth of the FLOPs.
    pairs = int(tiles.pairs.sum()) // plan.head_groups
    work = loads_of(tiles.device, tiles.pairs, devices)
    tokens = loads_of(blocks.owner, blocks.num_tokens, devices)
    forward, backward = (
        _measure_direction(plan, direction, peaks)
        for direction, peaks in zip(DIRECTIONS, receive_buffer_bytes(plan), strict=True)
    )
    return PlanMetrics(
        partitioner=plan.partitioner,
        tokens=plan.num_tokens,
        blocks=len(blocks),
        tiles=len(tiles),
        pairs=pairs,
        density=_ratio(pairs, int((lengths * (lengths + 1) // 2).sum())),
        full_density=_ratio(pairs, int((lengths**2).sum())),
        flops=tuple((work * (plan.shape.flops_per_pair // plan.head_groups) * 1.0).tolist()),
        owned_tokens=tuple(tokens.tolist()),
        compute_imbalance=_imbalance(work, plan.cluster.work_of_device),
        token_imbalance=_imbalance(tokens, np.ones(devices)),
        forward=forward,
        backward=backward,
        warnings=tuple(map(str, plan.warnings)),
    )


def _measure_direction(plan: Plan, direction: Direction, peaks: Ints) -> DirectionMetrics:
    table, cluster = plan.transfers, plan.cluster
    chosen = table.is_backward == (direction == "backward")
    kind, size = table.kind[chosen], table.size_bytes[chosen]
    source, target = table.source[chosen], table.target[chosen]
    crosses = cluster.link_class(source, target) > 0  # 0 is inside a node
    sent, received = (loads_of(ends, size, plan.num_devices) for ends in (source, target))
    return DirectionMetrics(
        total_bytes=int(size.sum()),
        inter_node_bytes=int(size[crosses].sum()),
        bytes_by_kind={
            k.name.lower(): int(size[kind == k].sum()) for k in TransferKind if (kind == k).any()
        },
        sent_bytes=tuple(sent.tolist()),
        received_bytes=tuple(received.tolist()),
        peak_buffer_bytes=tuple(peaks.tolist()),
    )


def _imbalance(load: Ints, share: Floats) -> float:
    """Divide the most by the mean, each load relative to the device's share of the work."""
    return float((load / share).max() / load.mean()) if load.any() else 1.0


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _plain_dict(items: list[tuple[str, object]]) -> dict[str, object]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in items}
