"""The whole way: block sparsity and a cluster in, a validated plan out."""

from dcp_dsl import BlockSparsity
from dcp_planner.cluster import Cluster, ModelShape
from dcp_planner.config import PlanConfig
from dcp_planner.emission import emit_programs, emit_transfers
from dcp_planner.partitioning import place
from dcp_planner.placement import Placement
from dcp_planner.plan import Blocks, Plan, Provenance, Tiles
from dcp_planner.schedule import Schedule, make_schedule
from dcp_planner.validation import validate
from dcp_planner.workload import Workload, build_workload


def build_plan(
    sparsity: BlockSparsity,
    shape: ModelShape,
    cluster: Cluster,
    config: PlanConfig = PlanConfig(),  # noqa: B008 - frozen
    *,
    provenance: Provenance | None = None,
) -> Plan:
    """Place, schedule and emit one batch, and validate the result.

    The same arguments give the same plan, byte for byte; `digest` shows it. What the caps of
    `config` could not be held to is said in ``Plan.warnings``.

    Raises:
        PlanError: if the partitioner is unknown, missing, fails or takes too long.
        ValueError: if queries and keys are cut at different places.
    """
    workload = build_workload(sparsity, shape)
    placement = place(workload, cluster, config)
    schedule = make_schedule(workload, placement, cluster, config)
    plan = assemble(workload, cluster, placement, schedule, config.partitioner, provenance)
    validate(plan)
    return plan


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
