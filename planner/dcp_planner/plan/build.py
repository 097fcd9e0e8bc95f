"""The whole way: block sparsity and a cluster in, a validated plan out."""

from dataclasses import replace

from dcp_dsl import BlockSparsity
from dcp_planner.baselines.layouts import STATIC_KINDS
from dcp_planner.errors import BufferLimitError, PlanError
from dcp_planner.model.cluster import Cluster, ModelShape
from dcp_planner.model.config import PlanConfig
from dcp_planner.model.placement import Placement
from dcp_planner.model.workload import Workload, build_workload
from dcp_planner.plan.validation import validate
from dcp_planner.schedule.assembly import assemble
from dcp_planner.schedule.divisions import Schedule
from dcp_planner.search.partitioners import place
from dcp_planner.simulation.schedules import make_schedule, predict_placement
from dcp_planner.tables.plan import Plan, Provenance

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

    If the plan does not fit ``config.memory_limit_bytes``, buffers are given back earlier and
    divisions cut finer; if that is not enough, the fastest static layout that fits takes the place
    of the partitioner, which ``Plan.warnings`` says.

    Raises:
        BufferLimitError: if nothing fits the memory limit.
        PlanError: if the cluster or the number of tiles is too large, or the partitioner is
            unknown, missing, fails or takes too long.
        ValueError: if queries and keys are cut at different places.
    """
    workload = build_workload(sparsity, shape)
    check_size(workload, config)
    placement, schedule, partitioner = _arrange(workload, cluster, config)
    plan = assemble(workload, cluster, placement, schedule, partitioner, provenance)
    validate(plan)
    return plan


def _arrange(
    workload: Workload, cluster: Cluster, config: PlanConfig
) -> tuple[Placement, Schedule, str]:
    """Place and schedule; if memory is short, with the fastest static layout that needs less."""
    placement = place(workload, cluster, config)
    try:
        return placement, make_schedule(workload, placement, cluster, config), config.partitioner
    except BufferLimitError as error:
        reason = error
    fitting = []
    for name in (f"static:{kind}" for kind in sorted(STATIC_KINDS)):
        found = place(workload, cluster, replace(config, partitioner=name))
        if any(text.startswith("tokens:") for text in found.warnings):
            continue  # what is saved in buffers, one device would need for tokens of its own
        try:
            schedule = make_schedule(workload, found, cluster, config)
        except BufferLimitError:
            continue
        seconds = predict_placement(workload, found, cluster, config).seconds
        fitting.append((seconds, name, found, schedule))
    if not fitting:
        raise reason
    _, name, found, schedule = min(fitting, key=lambda entry: entry[:2])
    warning = f"placed by {name}, because with {config.partitioner} {reason}"
    return replace(found, warnings=(*found.warnings, warning)), schedule, name


def check_size(workload: Workload, config: PlanConfig) -> None:
    """Refuse what would take hours.

    Raises:
        PlanError: if the number of tiles is too large.
    """
    groups = 1 if config.head_groups == "auto" else config.head_groups
    if workload.num_tiles * groups > MOST_TILES:
        times = f" in each of {groups} head groups" if groups > 1 else ""
        raise PlanError(
            f"expected at most {MOST_TILES:,} tiles, got {workload.num_tiles:,} from "
            f"{workload.num_blocks:,} blocks{times}; use larger blocks"
        )
