"""Emit arranged batches as plans, and choose how their partial results travel.

Sums are in float32. Where they travel in 16 bits, each message rounds them once more, so the error
grows with the number of devices. Float32 has no such rounding but twice the bytes. Most of them are
hidden behind compute, so plans take it where the simulator finds that it costs little.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_planner.model.cluster import FLOAT32_BYTES, Cluster, ModelShape
from dcp_planner.model.config import MOST_COST, PlanConfig
from dcp_planner.model.placement import Placement, loads_of
from dcp_planner.model.workload import Workload
from dcp_planner.plan.validation import validate
from dcp_planner.schedule.divisions import Schedule
from dcp_planner.schedule.emission import assemble
from dcp_planner.simulation.schedules import make_schedule
from dcp_planner.simulation.simulator import predict
from dcp_planner.tables.memory import accumulator_bytes, receive_buffer_bytes
from dcp_planner.tables.plan import Plan


@dataclass(frozen=True, slots=True, eq=False)
class Arranged:
    """A batch of one mask with its placement and schedule, and who placed it."""

    workload: Workload
    placement: Placement
    schedule: Schedule
    partitioner: str

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
        return cls(workload, placement, schedule, config.partitioner)

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
        if _fits(wide, config) and _seconds(wide, layers, config) <= (1 + MOST_COST) * least:
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


def _fits(plans: Sequence[Plan], config: PlanConfig) -> bool:
    limit = config.memory_limit_bytes
    if limit is None:
        return True
    needed = [receive_buffer_bytes(plan) + accumulator_bytes(plan) for plan in plans]
    return int(np.max(needed)) <= limit
