"""The last stage before checking: a placed and scheduled workload becomes a plan."""

from dataclasses import fields, replace

import numpy as np

from dcp_planner.cluster import Cluster
from dcp_planner.emission import Emission, emit
from dcp_planner.placement import Placement
from dcp_planner.plan import DIRECTIONS, Blocks, Plan, Provenance, Tiles, Transfers
from dcp_planner.program_table import LAUNCH, REDUCTION, Programs, ProgramTable
from dcp_planner.routing import find_needs
from dcp_planner.schedule import Schedule
from dcp_planner.workload import Workload


def assemble(
    workload: Workload,
    cluster: Cluster,
    placement: Placement,
    schedule: Schedule,
    partitioner: str,
    provenance: Provenance | None = None,
) -> Plan:
    """Emit the plan of a placed and scheduled workload, without validating it."""
    needs = find_needs(workload, placement, cluster, schedule.routing)
    devices = cluster.num_devices
    forward, backward = (
        emit(
            direction, workload, placement, schedule.of(direction), needs, devices,
            is_frugal=schedule.is_frugal,
        )
        for direction in DIRECTIONS
    )  # fmt: skip
    return Plan(
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
        forward=Programs(forward.programs, devices),
        backward=Programs(_shifted(backward.programs, len(forward.transfers)), devices),
        partitioner=partitioner,
        provenance=provenance,
        warnings=placement.warnings,
    )


def _joined(forward: Emission, backward: Emission) -> Transfers:
    columns = (f.name for f in fields(Transfers))
    both = (forward.transfers, backward.transfers)
    return Transfers(*(np.concatenate([getattr(t, name) for t in both]) for name in columns))


def _shifted(programs: ProgramTable, by: int) -> ProgramTable:
    """Let the transfers of a program follow `by` others."""
    names_transfers = np.isin(programs.op, (LAUNCH, REDUCTION))
    items = programs.items + by * names_transfers[programs.row_of_item()]
    return replace(programs, items=items)
