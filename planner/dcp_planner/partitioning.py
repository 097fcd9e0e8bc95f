"""The partitioners by name, and `place`, which runs one and holds its result to the caps."""

from collections.abc import Mapping
from types import MappingProxyType

from dcp_planner.cluster import Cluster
from dcp_planner.config import PlanConfig
from dcp_planner.errors import PlanError
from dcp_planner.kahypar_adapter import KaHyPar
from dcp_planner.kahypar_process import MT_KAHYPAR
from dcp_planner.native_partitioner import Native, refine
from dcp_planner.placement import Partitioner, Placement
from dcp_planner.portfolio import Portfolio
from dcp_planner.repair import find_shortfalls
from dcp_planner.static_layout import STATIC_KINDS, StaticLayout
from dcp_planner.workload import Workload

_EXTERNAL: tuple[Partitioner, ...] = (KaHyPar(), KaHyPar(MT_KAHYPAR))
_ADAPTERS: tuple[Partitioner, ...] = (
    Portfolio(_EXTERNAL),
    Native(),
    *_EXTERNAL,
    *(StaticLayout(kind) for kind in STATIC_KINDS),
)
PARTITIONERS: Mapping[str, Partitioner] = MappingProxyType({a.name: a for a in _ADAPTERS})
"""Every partitioner by the name that `PlanConfig.partitioner` takes."""


def place(workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement:
    """Place a workload with the chosen partitioner and hold the result to the caps.

    What an external partitioner found is held to the caps and searched once more with the moves of
    `native`. A static layout is a baseline and stays as it is. Whatever cap is still missed is said
    in ``Placement.warnings``.

    Raises:
        PlanError: if the partitioner is unknown, not installed, fails or takes too long.
    """
    partitioner = PARTITIONERS.get(config.partitioner)
    if partitioner is None:
        known = ", ".join(PARTITIONERS)
        raise PlanError(f"unknown partitioner {config.partitioner!r}; expected one of {known}")
    if workload.num_tiles == 0 or cluster.num_devices == 1:
        # Nothing to search for; KaHyPar refuses one part and empty hypergraphs.
        partitioner = PARTITIONERS["static:contiguous"]
    reason = partitioner.unavailable()
    if reason:
        raise PlanError(f"partitioner {partitioner.name!r} cannot run: {reason}")
    found = partitioner.place(workload, cluster, config)
    if not partitioner.is_fixed:
        found = refine(found, workload, cluster, config)
    warnings = found.warnings + find_shortfalls(found, workload, cluster, config)
    return Placement(found.device_of_data, found.device_of_compute, warnings)
