"""The whole way: block sparsity and a cluster in, a validated plan out."""

from dcp_dsl import BlockSparsity
from dcp_planner.assembly import assemble
from dcp_planner.cluster import MOST_DEVICES, Cluster, ModelShape
from dcp_planner.config import PlanConfig
from dcp_planner.errors import PlanError
from dcp_planner.partitioning import place
from dcp_planner.plan import Plan, Provenance
from dcp_planner.schedule import make_schedule
from dcp_planner.validation import validate
from dcp_planner.workload import Workload, build_workload

MOST_TILES = 1 << 22
"""Tiles that still take minutes, not hours."""


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
        PlanError: if the cluster or the number of tiles is too large, or the partitioner is
            unknown, missing, fails or takes too long.
        ValueError: if queries and keys are cut at different places.
    """
    workload = build_workload(sparsity, shape)
    _check_size(workload, cluster)
    placement = place(workload, cluster, config)
    schedule = make_schedule(workload, placement, cluster, config)
    plan = assemble(workload, cluster, placement, schedule, config.partitioner, provenance)
    validate(plan)
    return plan


def _check_size(workload: Workload, cluster: Cluster) -> None:
    if cluster.num_devices > MOST_DEVICES:
        raise PlanError(
            f"expected a cluster of at most {MOST_DEVICES} devices, got {cluster.nodes} nodes of "
            f"{cluster.devices_per_node}; plan for the devices that share one batch"
        )
    if workload.num_tiles > MOST_TILES:
        raise PlanError(
            f"expected at most {MOST_TILES:,} tiles, got {workload.num_tiles:,} from "
            f"{workload.num_blocks:,} blocks; use larger blocks"
        )
