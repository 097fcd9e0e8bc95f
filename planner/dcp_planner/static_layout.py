"""Static layouts: what systems without a planner do, as baselines.

The packed batch is cut into chunks of equal tokens in its order, as closely as block borders allow.
A tile is computed by the owner of its queries, so only keys and values travel.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dcp_planner.cluster import Cluster
from dcp_planner.config import PlanConfig
from dcp_planner.placement import Placement
from dcp_planner.workload import Workload


@dataclass(frozen=True, slots=True)
class StaticLayout:
    """One of the static layouts.

    Attributes:
        kind: ``contiguous``: device r owns chunk r of R. ``zigzag``: device r owns the chunks r and
            2R-1-r of 2R, which levels one long causal document (Llama 3 report, Sec. 3.3.2).
    """

    kind: Literal["contiguous", "zigzag"]

    @property
    def name(self) -> str:
        """Key in the registry."""
        return f"static:{self.kind}"

    @property
    def is_fixed(self) -> bool:
        """A baseline stays as it is."""
        return True

    def unavailable(self) -> str | None:
        """Needs nothing."""
        return None

    def place(self, workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement:
        """Give the layout; O(D + W)."""
        devices = cluster.num_devices
        if self.kind == "contiguous":
            owner = chunk_of_blocks(workload, devices)
        else:
            chunk = chunk_of_blocks(workload, 2 * devices)
            owner = np.where(chunk < devices, chunk, 2 * devices - 1 - chunk).astype(np.int32)
        return Placement(owner, owner[workload.compute_q])


def chunk_of_blocks(workload: Workload, num_chunks: int) -> NDArray[np.int32]:
    """Cut the batch into chunks of consecutive blocks, each border at the nearest block border.

    Returns:
        int32 ``[D]``, chunk of each block, never falling; a chunk without a block is possible.
    """
    if workload.num_blocks == 0:
        return np.zeros(0, np.int32)
    bounds = np.append(workload.block_start, workload.block_end[-1])
    ideal = np.arange(1, num_chunks) * (float(bounds[-1]) / num_chunks)
    above = np.clip(np.searchsorted(bounds, ideal), 1, len(bounds) - 1)
    nearest = above - (ideal - bounds[above - 1] < bounds[above] - ideal)
    # A border before block b raises the chunk of b and of every later block by one.
    steps = np.bincount(nearest, minlength=len(bounds))[: workload.num_blocks]
    return np.cumsum(steps).astype(np.int32)
