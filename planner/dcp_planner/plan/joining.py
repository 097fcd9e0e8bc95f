"""Join the plans of groups of devices to one plan over all devices; the groups may overlap.

Documents that are spread over devices of their own choice share a micro-batch this way: each group
is planned alone, and the joined plan keeps every owner and every tile where its group has them.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dcp_dsl import Slabs
from dcp_dsl.arrays import Ints
from dcp_planner.errors import PlanError
from dcp_planner.model.cluster import Cluster
from dcp_planner.model.config import PlanConfig
from dcp_planner.model.placement import Placement
from dcp_planner.model.workload import Workload
from dcp_planner.plan.validation import validate
from dcp_planner.schedule.emission import assemble
from dcp_planner.simulation.schedules import make_schedule, schedules_kept
from dcp_planner.tables.plan import Plan


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
        config: how divisions are cut; placements stay as they are. Partial results travel in
            float32 if those of all plans do.

    Returns:
        A validated plan. O(size of the plans), and one schedule.

    Raises:
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
    schedule = make_schedule(workload, placement, cluster, config)
    joined = assemble(workload, cluster, placement, schedule, plans[0].partitioner)
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
