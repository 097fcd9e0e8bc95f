"""Emit placed and scheduled batches as plans, and join the plans of groups of devices to one.

Partial results are summed in float32. Where they travel in 16 bits, each message rounds them once
more, so the error grows with the number of devices. Float32 has no such rounding but twice the
bytes. Compute hides most of these bytes, so plans use float32 where the simulator predicts that it
costs little.

A micro-batch may hold several groups of documents, each on devices of its own. Every group is
planned alone. The joined plan keeps every owner and every tile where the group has them; groups may
share devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import BlockSparsity, Slabs
from dcp_dsl.arrays import Ints
from dcp_planner.errors import BufferLimitError, PlanError
from dcp_planner.model.cluster import FLOAT32_BYTES, Cluster, ModelShape
from dcp_planner.model.config import MOST_COST, PlanConfig
from dcp_planner.model.cuts import cut_on_grid
from dcp_planner.model.problem import Placement, Workload, build_workload, loads_of
from dcp_planner.plan.validation import validate
from dcp_planner.schedule.divisions import Schedule
from dcp_planner.schedule.emission import assemble
from dcp_planner.simulation.schedules import make_schedule, schedules_kept
from dcp_planner.simulation.simulator import predict
from dcp_planner.tables.metrics import accumulator_bytes, receive_buffer_bytes
from dcp_planner.tables.plan import Plan


@dataclass(frozen=True, slots=True, eq=False)
class Arranged:
    """A batch of one mask with its placement and its schedule."""

    # workload, placement, schedule: what is computed, where and when
    workload: Workload
    placement: Placement
    schedule: Schedule
    partitioner: str  # name of the partitioner that placed it
    spent: Ints | int = 0  # int64 `[R]`, bytes of the memory limit that something else takes

    @classmethod
    def of(
        cls,
        workload: Workload,
        placement: Placement,
        cluster: Cluster,
        config: PlanConfig,
        spent: Ints | int = 0,
    ) -> "Arranged":
        """Schedule a placement of ``config.partitioner``; see `make_schedule`."""
        schedule = make_schedule(workload, placement, cluster, config, spent)
        return cls(workload, placement, schedule, config.partitioner, spent)

    def seconds(self, cluster: Cluster) -> float:
        """Predict forward and backward."""
        return predict(self.emit(cluster)).seconds

    def emit(self, cluster: Cluster, *, in_float32: bool = False) -> Plan:
        """Make the plan, on request with partial results in float32.

        The type changes the bytes of messages, but neither the placement nor the schedule.
        """
        workload = self.workload
        if in_float32:
            workload = replace(workload, shape=replace(workload.shape, float32_partials=True))
        return assemble(workload, cluster, self.placement, self.schedule, self.partitioner)


def shape_of(shape: ModelShape, config: PlanConfig) -> ModelShape:
    """Return the shape with the type of partial results that the configuration demands, if any.

    >>> shape_of(ModelShape(), PlanConfig(partials="float32")).float32_partials
    True
    """
    if config.reproducible:
        return replace(shape, exact_sums=True)
    if config.partials == "auto":
        return shape
    return replace(shape, float32_partials=config.partials == "float32")


def workload_of(sparsity: BlockSparsity, shape: ModelShape, config: PlanConfig) -> Workload:
    """Build the workload of a batch, cut on the grid if its plan is to be reproducible."""
    sparsity = cut_on_grid(sparsity) if config.reproducible else sparsity
    return build_workload(sparsity, shape_of(shape, config))


def emit_plans(
    arranged: Sequence[Arranged], layers: Sequence[int], cluster: Cluster, config: PlanConfig
) -> tuple[Plan, ...]:
    """Emit and validate the plans of one batch under all masks of a stack; O(size of the plans).

    With ``partials="auto"`` all are in float32 if they fit the memory limit and take at most
    `MOST_COST` longer, tokens at their price included.
    """
    plans = tuple(one.emit(cluster) for one in arranged)
    # All masks of a stack share the shape, so the first plan stands for all.
    is_open = config.partials == "auto" and not plans[0].shape.exact_sums
    if is_open and plans[0].shape.partial_bytes < FLOAT32_BYTES:
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
    price = config.token_seconds
    attention = (
        n * predict(plan, token_seconds=price).seconds
        for n, plan in zip(layers, plans, strict=True)
    )
    return sum(attention) + sum(layers) * config.token_seconds * float(tokens.max())


def _fits(plan: Plan, arranged: Arranged, limit: int | None) -> bool:
    # int64 [2, R]: the limit holds in each direction, since buffers are given back between them.
    needed = receive_buffer_bytes(plan) + accumulator_bytes(plan) + arranged.spent
    return limit is None or int(needed.max()) <= limit


@schedules_kept()
def join_plans(parts: Sequence[tuple[Plan, int]], cluster: Cluster, config: PlanConfig) -> Plan:
    """Join plans of several batches, each with its first device, into a plan of the joined batch.

    Placements stay as they are; `config` says how divisions are cut, and within what memory.
    Partial results travel in float32 if those of all plans do, and if that fits the limit. The plan
    is validated. O(size of the plans), and one schedule.
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
        # Each plan alone had room for float32; on a device of several groups the sum may not fit.
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
    if plan.is_reproducible != like.is_reproducible:
        raise PlanError("plans that are joined are all reproducible, or none is; got both kinds")
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
    """Return the begin of each part in their concatenation, int64 ``[parts]``."""
    return np.cumsum([0, *sizes[:-1]], dtype=np.int64)


def _join(plans: Sequence[Plan], token: Ints) -> Workload:
    sequence = _starts([len(plan.cu_seqlens) - 1 for plan in plans])
    block = _starts([len(plan.blocks) for plan in plans])
    return Workload(
        # The smallest type: float32 only if every plan has it.
        shape=min((plan.shape for plan in plans), key=lambda shape: shape.partial_bytes),
        cu_seqlens=np.append(0, _moved([plan.cu_seqlens[1:] for plan in plans], token)),
        block_sequence=_moved([plan.blocks.sequence for plan in plans], sequence),
        block_start=_moved([plan.blocks.start for plan in plans], token),
        block_end=_moved([plan.blocks.end for plan in plans], token),
        compute_q=_moved([plan.tiles.q_block for plan in plans], block),
        compute_kv=_moved([plan.tiles.kv_block for plan in plans], block),
        compute_kind=np.concatenate([plan.tiles.kind for plan in plans]),
        compute_pairs=np.concatenate([plan.tiles.pairs for plan in plans]),
        slabs=_join_slabs(plans, token),
        forms=tuple(
            replace(placed, q_start=placed.q_start + int(at), kv_start=placed.kv_start + int(at))
            for plan, at in zip(plans, token, strict=True)
            for placed in plan.forms
        ),
    )


def _moved(columns: Sequence[NDArray[np.integer]], by: Ints) -> Any:  # Any: a record narrows it
    """Concatenate the columns of all plans, each raised by the begin of its plan."""
    return np.concatenate([column + at for column, at in zip(columns, by, strict=True)])


def _join_slabs(plans: Sequence[Plan], token: Ints) -> Slabs:
    # Four columns of a slab are positions and move; the two slopes stay.
    moved = [
        plan.slabs.table() + np.array([at, at, at, at, 0, 0])
        for plan, at in zip(plans, token, strict=True)
    ]
    return Slabs(sum(plan.num_tokens for plan in plans), *np.concatenate(moved).T)
