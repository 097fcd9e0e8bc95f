"""Warn of tolerances that a placement misses."""

import numpy as np
from numpy.typing import NDArray

from dcp_planner.model.cluster import Cluster
from dcp_planner.model.config import PlanConfig
from dcp_planner.model.packing import cap_of, loads_of
from dcp_planner.model.placement import Placement, PlanWarning
from dcp_planner.model.workload import Workload
from dcp_planner.tables.head_groups import expand_placement


def find_shortfalls(
    found: Placement, workload: Workload, cluster: Cluster, config: PlanConfig
) -> tuple[PlanWarning, ...]:
    """Warn of each tolerance that a placement misses, and say if tiles or blocks could meet it."""
    workload, found = expand_placement(workload, found)
    devices = cluster.num_devices
    pairs = loads_of(found.device_of_compute, workload.compute_pairs, devices)
    tokens = loads_of(found.device_of_data, workload.block_tokens, devices)
    warnings = []
    work = pairs / cluster.work_of_device
    if work.max(initial=0) > (1 + config.compute_tolerance) * float(pairs.mean()):
        text = _shortfall("tile", work, workload.compute_pairs, config.compute_tolerance)
        warnings.append(PlanWarning("compute_above_tolerance", f"compute: {text}"))
    most = (1 + config.token_tolerance) * float(tokens.mean())
    if not config.token_seconds and tokens.max(initial=0) > most:
        text = _shortfall("block", tokens, workload.block_tokens, config.token_tolerance)
        warnings.append(PlanWarning("tokens_above_tolerance", f"tokens: {text}"))
    return tuple(warnings)


def _shortfall(
    unit: str, loads: NDArray[np.int64 | np.float64], sizes: NDArray[np.int64], tolerance: float
) -> str:
    mean = float(sizes.sum()) / len(loads)
    reached = cap_of(sizes, len(loads), 0.0) / mean
    text = f"the fullest device has {loads.max() / mean:.3f} x the mean, more than the "
    text += f"tolerated {1 + tolerance:.3f}"
    if reached > 1 + tolerance:
        text += f"; whole {unit}s allow about {reached:.3f}, smaller blocks allow less"
    return text
