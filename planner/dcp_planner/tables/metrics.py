"""Figures of a plan for tables, pages and benchmarks: balance, bytes, buffers."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dcp_dsl.arrays import Floats, Ints
from dcp_planner.model.placement import loads_of
from dcp_planner.model.workload import Direction
from dcp_planner.tables.memory import receive_buffer_bytes
from dcp_planner.tables.plan import Plan, TransferKind


@dataclass(frozen=True, slots=True)
class DirectionMetrics:
    """Bytes that one direction moves.

    Attributes:
        total_bytes: between all devices.
        inter_node_bytes: the part that crosses the network.
        bytes_by_kind: per `TransferKind` in lower case.
        sent_bytes, received_bytes: per device.
        peak_buffer_bytes: per device, the receive buffers that it allocates.
    """

    total_bytes: int
    inter_node_bytes: int
    bytes_by_kind: dict[str, int]
    sent_bytes: tuple[int, ...]
    received_bytes: tuple[int, ...]
    peak_buffer_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlanMetrics:
    """A plan in numbers; one tuple entry per device.

    Attributes:
        partitioner: who placed it.
        tokens, blocks, tiles: sizes of the batch; a tile of every head group counts.
        pairs: visible pairs.
        density: pairs over those of a causal mask on each whole sequence.
        full_density: pairs over those of the whole square of each sequence.
        flops: forward FLOPs per device.
        owned_tokens: tokens per device.
        compute_imbalance, token_imbalance: most over mean; 1 is level. A device at 0.8 of the rate
            has its share with 0.8 of the work.
        forward, backward: bytes.
        warnings: caps that could not be met.
    """

    partitioner: str
    tokens: int
    blocks: int
    tiles: int
    pairs: int
    density: float
    full_density: float
    flops: tuple[float, ...]
    owned_tokens: tuple[int, ...]
    compute_imbalance: float
    token_imbalance: float
    forward: DirectionMetrics
    backward: DirectionMetrics
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the figures as a JSON object; `Any`: numbers, lists, texts and objects."""
        return asdict(self, dict_factory=_plain_dict)


def measure(plan: Plan) -> PlanMetrics:
    """Compute the figures of a plan; O(W + X + D)."""
    tiles, blocks, devices = plan.tiles, plan.blocks, plan.num_devices
    lengths = np.diff(plan.cu_seqlens).astype(np.int64)
    # Every pair is there once for each head group, and costs a part of the FLOPs there.
    pairs = int(tiles.pairs.sum()) // plan.head_groups
    # A broken plan may name devices that do not exist: it can be written, and validated then.
    devices = max(devices, *(int(d.max(initial=-1)) + 1 for d in (tiles.device, blocks.owner)))
    work = loads_of(tiles.device, tiles.pairs, devices)
    tokens = loads_of(blocks.owner, blocks.num_tokens, devices)
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
        token_imbalance=_imbalance(tokens, np.ones(1)),
        forward=_measure_direction(plan, "forward"),
        backward=_measure_direction(plan, "backward"),
        warnings=tuple(map(str, plan.warnings)),
    )


def _measure_direction(plan: Plan, direction: Direction) -> DirectionMetrics:
    table, cluster = plan.transfers, plan.cluster
    chosen = table.is_backward == (direction == "backward")
    kind, size = table.kind[chosen], table.size_bytes[chosen]
    source, target = table.source[chosen], table.target[chosen]
    last = cluster.num_devices - 1  # as above: a broken plan may name others
    crosses = cluster.link_class(np.clip(source, 0, last), np.clip(target, 0, last)) > 0
    sent, received = (loads_of(ends, size, plan.num_devices) for ends in (source, target))
    peak = receive_buffer_bytes(plan)[int(direction == "backward")]
    return DirectionMetrics(
        total_bytes=int(size.sum()),
        inter_node_bytes=int(size[crosses].sum()),
        bytes_by_kind={
            k.name.lower(): int(size[kind == k].sum()) for k in TransferKind if (kind == k).any()
        },
        sent_bytes=tuple(sent.tolist()),
        received_bytes=tuple(received.tolist()),
        peak_buffer_bytes=tuple(peak.tolist()),
    )


def _imbalance(load: Ints, share: Floats) -> float:
    """Divide the most by the mean; a device with a larger share may have more."""
    relative = np.ones(len(load))
    relative[: len(share)] = share
    return float((load / relative).max() / load.mean()) if load.any() else 1.0


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _plain_dict(items: list[tuple[str, object]]) -> dict[str, object]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in items}
