"""The last stage before checking: a placed and scheduled workload becomes a plan."""

from dataclasses import replace
from typing import Any

import numpy as np

from dcp_planner.model.cluster import Cluster
from dcp_planner.model.placement import Placement
from dcp_planner.model.workload import Workload
from dcp_planner.schedule.divisions import Schedule
from dcp_planner.schedule.emission import Emission, emit
from dcp_planner.schedule.routing import find_needs
from dcp_planner.tables.head_groups import folded, in_groups
from dcp_planner.tables.plan import (
    DIRECTIONS,
    Blocks,
    Plan,
    Provenance,
    Tiles,
    Transfers,
    columns_of,
    schema_of,
)
from dcp_planner.tables.programs import LAUNCH, REDUCTION, Programs, ProgramTable


def assemble(
    workload: Workload,
    cluster: Cluster,
    placement: Placement,
    schedule: Schedule,
    partitioner: str,
    provenance: Provenance | None = None,
) -> Plan:
    """Emit the plan of a placed and scheduled workload, without validating it."""
    groups, real = placement.head_groups, workload
    workload, placement = in_groups(workload, placement)
    needs = find_needs(workload, placement, cluster, schedule.routing)
    devices = cluster.num_devices
    forward, backward = (
        emit(
            direction, workload, placement, schedule.of(direction), needs, devices,
            is_frugal=schedule.is_frugal,
        )
        for direction in DIRECTIONS
    )  # fmt: skip
    plan = Plan(
        cluster=cluster,
        shape=workload.shape,
        cu_seqlens=workload.cu_seqlens,
        blocks=Blocks(
            workload.block_sequence,
            workload.block_start,
            workload.block_end,
            placement.device_of_data,
        ),
        tiles=Tiles(
            workload.compute_q,
            workload.compute_kv,
            workload.compute_kind,
            workload.compute_pairs,
            placement.device_of_compute,
            schedule.division,
            schedule.backward_division,
        ),
        transfers=_joined(forward, backward),
        slabs=workload.slabs,
        forms=workload.forms,
        schema=schema_of(1, workload.forms),
        forward=Programs(forward.programs, devices),
        backward=Programs(_shifted(backward.programs, len(forward.transfers)), devices),
        partitioner=partitioner,
        provenance=provenance,
        warnings=placement.warnings,
    )
    return plan if groups == 1 else folded(plan, real, groups)


def _joined(forward: Emission, backward: Emission) -> Transfers:
    first, second = (columns_of(emission.transfers) for emission in (forward, backward))
    # Any: columns of several types, which the table checks
    both: dict[str, Any] = {name: np.concatenate([first[name], second[name]]) for name in first}
    return Transfers(**both)


def _shifted(programs: ProgramTable, by: int) -> ProgramTable:
    """Let the transfers of a program follow `by` others."""
    names_transfers = np.isin(programs.op, (LAUNCH, REDUCTION))
    items = programs.items + by * names_transfers[programs.row_of_item()]
    return replace(programs, items=items)
