"""Emit arranged batches as plans, and join those of groups of devices to one plan.

Sums are in float32. Where they travel in 16 bits, each message rounds them once more, so the error
grows with the number of devices. Float32 has no such rounding but twice the bytes. Most of them are
hidden behind compute, so plans take it where the simulator finds that it costs little.

Documents that are spread over devices of their own choice share a micro-batch as joined plans: each
group is planned alone, and the joined plan keeps every owner and every tile where its group has
them. The groups may overlap.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dcp_dsl import Slabs
from dcp_dsl.arrays import Ints
from dcp_planner.errors import BufferLimitError, PlanError
from dcp_planner.model.cluster import FLOAT32_BYTES, Cluster, ModelShape
from dcp_planner.model.config import MOST_COST, PlanConfig
from dcp_planner.model.problem import Placement, Workload, loads_of
from dcp_planner.plan.validation import validate
from dcp_planner.schedule.divisions import Schedule
from dcp_planner.schedule.emission import assemble
from dcp_planner.simulation.schedules import make_schedule, schedules_kept
from dcp_planner.simulation.simulator import predict
from dcp_planner.tables.metrics import accumulator_bytes, receive_buffer_bytes
from dcp_planner.tables.plan import Plan


@dataclass(frozen=True, slots=True, eq=False)
class Arranged:
    """A batch of one mask, arranged.

    Attributes:
        workload, placement, schedule: what is computed, where and when.
        partitioner: who placed it.
        spent: int64 ``[R]``, bytes of the memory limit that something else takes.
    """

    workload: Workload
    placement: Placement
    schedule: Schedule
    partitioner: str
    spent: Ints | int = 0

    @classmethod
    def of(
        cls,
        workload: Workload,
        placement: Placement,
        cluster: Cluster,
        config: PlanConfig,
        spent: Ints | int = 0,
    ) -> "Arranged":
        """Schedule a placement of ``config.partitioner``; see `make_schedule`.

        Raises:
            BufferLimitError: if no schedule fits the memory limit.
        """
        schedule = make_schedule(workload, placement, cluster, config, spent)
        return cls(workload, placement, schedule, config.partitioner, spent)

    def seconds(self, cluster: Cluster) -> float:
        """Predict forward and backward."""
        return predict(self.emit(cluster)).seconds

    def emit(self, cluster: Cluster, *, in_float32: bool = False) -> Plan:
        """Make the plan, at will with partial results in float32; placed and scheduled alike."""
        shape = self.workload.shape
        if in_float32:
            shape = replace(shape, float32_partials=True)
        workload = replace(self.workload, shape=shape)
        return assemble(workload, cluster, self.placement, self.schedule, self.partitioner)


def shape_of(shape: ModelShape, config: PlanConfig) -> ModelShape:
    """Return the shape with the type of partial results that a configuration demands, if it does.

    >>> shape_of(ModelShape(), PlanConfig(partials="float32")).float32_partials
    True
    """
    if config.partials == "auto":
        return shape
    return replace(shape, float32_partials=config.partials == "float32")


def emit_plans(
    arranged: Sequence[Arranged], layers: Sequence[int], cluster: Cluster, config: PlanConfig
) -> tuple[Plan, ...]:
    """Emit and validate the plans of one batch under all masks of a stack; O(size of the plans).

    Args:
        arranged: the batch under each mask.
        layers: of each mask.
        cluster: the machine.
        config: with ``partials="auto"`` all plans are in float32 if they fit the memory limit and
            take at most `MOST_COST` longer, tokens at their price included.
    """
    plans = tuple(one.emit(cluster) for one in arranged)
    if config.partials == "auto" and plans[0].shape.partial_bytes < FLOAT32_BYTES:
        wide = tuple(one.emit(cluster, in_float32=True) for one in arranged)
        least = _seconds(plans, layers, config)
        limit = config.memory_limit_bytes
        fits = (_fits(plan, one, limit) for plan, one in zip(wide, arranged, strict=True))
        if all(fits) and _seconds(wide, layers, config) <= (1 + MOST_COST) * least:
            plans = wide
    for plan in plans:
        validate(plan)
    return plans


def _seconds(plans: Sequence[Plan], layers: Sequence[int], config: PlanConfig) -> float:
    """Predict all layers: their attention, and the fullest device's tokens at their price."""
    blocks = plans[0].blocks
    tokens = loads_of(blocks.owner, blocks.num_tokens, plans[0].num_devices)
    attention = (n * predict(plan).seconds for n, plan in zip(layers, plans, strict=True))
    return sum(attention) + sum(layers) * config.token_seconds * float(tokens.max(initial=0))


def _fits(plan: Plan, arranged: Arranged, limit: int | None) -> bool:
    needed = receive_buffer_bytes(plan) + accumulator_bytes(plan) + arranged.spent
    return limit is None or int(needed.max()) <= limit


@schedules_kept()
def join_plans(
    parts: Sequence[tuple[Plan, int]],
    cluster: Cluster,
    config: PlanConfig = PlanConfig(),  # noqa: B008 - frozen
) -> Plan:
    """Join plans whose batches lie one behind the other in the joined batch.

    Args:
        parts: each plan and its first device; device d of the plan is ``first + d`` of the cluster.
        cluster: all devices.
        config: how divisions are cut, and what memory they may need; placements stay as they are.
            Partial results travel in float32 if those of all plans do, and if that fits the limit.

    Returns:
        A validated plan. O(size of the plans), and one schedule.

    Raises:
        BufferLimitError: if no schedule fits the memory limit.
        PlanError: if there is no plan, shapes differ, a plan has several head groups, or reaches
            beyond the cluster.
    """
    if not parts:
        raise PlanError("expected at least one plan to join, got none")
    for plan, first in parts:
        _check(plan, first, parts[0][0], cluster)
    plans = [plan for plan, _ in parts]
    token = _starts([plan.num_tokens for plan in plans])
    owner = np.concatenate([plan.blocks.owner + first for plan, first in parts])
    device = np.concatenate([plan.tiles.device + first for plan, first in parts])
    placement = Placement(owner.astype(np.int32), device.astype(np.int32))
    workload = _join(plans, token)
    try:
        schedule = make_schedule(workload, placement, cluster, config)
    except BufferLimitError:
        if config.partials != "auto" or not workload.shape.float32_partials:
            raise
        # Each plan had room for float32 alone; on devices that several share they may not have.
        workload = replace(workload, shape=replace(workload.shape, float32_partials=False))
        schedule = make_schedule(workload, placement, cluster, config)
    names = tuple(name for plan in plans for name in plan.sequence_names)
    joined = replace(
        assemble(workload, cluster, placement, schedule, plans[0].partitioner),
        warnings=tuple(dict.fromkeys(warning for plan in plans for warning in plan.warnings)),
        sequence_names=names if all(plan.sequence_names for plan in plans) else (),
    )
    validate(joined)
    return joined


def _check(plan: Plan, first: int, like: Plan, cluster: Cluster) -> None:
    if not plan.shape.is_same_model(like.shape) or plan.head_groups != 1:
        raise PlanError(
            f"plans that are joined share a shape and have one head group; expected {like.shape}, "
            f"got {plan.shape} in {plan.head_groups} head groups"
        )
    if not 0 <= first <= cluster.num_devices - plan.num_devices:
        raise PlanError(
            f"expected devices 0 to {cluster.num_devices - 1}, got a plan of {plan.num_devices} "
            f"that begins at {first}"
        )


def _starts(sizes: Sequence[int]) -> Ints:
    return np.cumsum([0, *sizes[:-1]], dtype=np.int64)


def _join(plans: Sequence[Plan], token: Ints) -> Workload:
    """Put the token blocks and tiles of the plans one behind the other."""
    sequence = _starts([len(plan.cu_seqlens) - 1 for plan in plans])
    block = _starts([len(plan.blocks) for plan in plans])
    ends = [plan.cu_seqlens[1:] + at for plan, at in zip(plans, token, strict=True)]
    by_block = {
        "block_sequence": [p.blocks.sequence + at for p, at in zip(plans, sequence, strict=True)],
        "compute_q": [p.tiles.q_block + at for p, at in zip(plans, block, strict=True)],
        "compute_kv": [p.tiles.kv_block + at for p, at in zip(plans, block, strict=True)],
    }
    return Workload(
        shape=min((plan.shape for plan in plans), key=lambda shape: shape.partial_bytes),
        cu_seqlens=np.concatenate([[0], *ends]).astype(np.int32),
        block_start=np.concatenate(
            [p.blocks.start + at for p, at in zip(plans, token, strict=True)]
        ),
        block_end=np.concatenate([p.blocks.end + at for p, at in zip(plans, token, strict=True)]),
        compute_kind=np.concatenate([plan.tiles.kind for plan in plans]),
        compute_pairs=np.concatenate([plan.tiles.pairs for plan in plans]),
        slabs=_join_slabs(plans, token),
        forms=tuple(
            replace(placed, q_start=placed.q_start + int(at), kv_start=placed.kv_start + int(at))
            for plan, at in zip(plans, token, strict=True)
            for placed in plan.forms
        ),
        **{name: np.concatenate(found).astype(np.int32) for name, found in by_block.items()},
    )


def _join_slabs(plans: Sequence[Plan], token: Ints) -> Slabs:
    moved = [
        plan.slabs.table() + np.array([at, at, at, at, 0, 0])
        for plan, at in zip(plans, token, strict=True)
    ]
    table = np.concatenate(moved)
    total = sum(plan.num_tokens for plan in plans)
    return Slabs(total, *table[:, :4].T, *table[:, 4:].T.astype(np.uint8))
