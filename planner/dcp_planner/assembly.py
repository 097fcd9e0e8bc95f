"""The last stage before checking: a placed and scheduled workload becomes a plan."""

from dcp_planner.cluster import Cluster
from dcp_planner.emission import emit_programs, emit_transfers
from dcp_planner.placement import Placement
from dcp_planner.plan import Blocks, Plan, Provenance, Tiles
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
    transfers = emit_transfers(workload, placement, schedule)
    forward, backward = (
        emit_programs(direction, placement, schedule, transfers, cluster.num_devices)
        for direction in ("forward", "backward")
    )
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
        transfers=transfers,
        slabs=workload.slabs,
        forward=forward,
        backward=backward,
        partitioner=partitioner,
        provenance=provenance,
        warnings=placement.warnings,
    )
