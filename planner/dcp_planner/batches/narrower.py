"""Ask the wider question of a data set: would fewer nodes for each batch be faster?

A batch on all nodes waits for the network more than on few of them. Groups of nodes, each with a
batch of its own, work side by side, at the price of more tokens on a device. For every batch a
quick search estimates the time on each number of whole nodes that divides the cluster.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dcp_planner.batches.batch import Batch
from dcp_planner.batches.planning import PlannedMask, PlanningChoices
from dcp_planner.model.cluster import Cluster
from dcp_planner.plan.assembly import workload_of
from dcp_planner.search.partitioners import PARTITIONERS, quick_seconds

MOST_SHARE = 0.9
"""Of the time a batch that all nodes take: above it narrower groups are not worth a word."""
MOST_BATCHES = 8
"""Batches that are estimated; more would say the same."""


@dataclass(frozen=True, slots=True)
class Narrower:
    """Groups of nodes side by side, each with a batch of its own."""

    groups: int  # how many there are
    cluster: Cluster  # the nodes of one
    share: float  # of the time a batch that all nodes together take, 0 to 1
    batches: int  # batches that were estimated

    def __str__(self) -> str:
        """Say it to people, in two sentences."""
        size = f"{self.cluster.nodes} x {self.cluster.devices_per_node}"
        return (
            f"{self.groups} groups of {size} devices, each with a batch of its own, would need "
            f"about {self.share:.2f} of this attention time a batch ({self.batches} estimated) and "
            f"have {self.groups} times the tokens on a device; dcpm step weighs that against memory"
        )


@dataclass(slots=True)
class Comparison:
    """Seconds of batches on all nodes and on groups of them, summed batch by batch."""

    planning: PlanningChoices  # shape, cluster and choices
    wide_s: float = 0.0  # of all nodes
    # of one group, by the number of groups
    narrow_s: dict[int, float] = field(default_factory=dict)
    batches: int = 0  # how many were added
    available: int = 0  # batches that the data set has

    def add(self, batch: Sequence[Batch], made: Sequence[PlannedMask]) -> None:
        """Estimate one more batch of a data set; O(quick searches)."""
        planning = self.planning
        is_fixed = PARTITIONERS[planning.config.partitioner].name.startswith("static:")
        if (
            is_fixed
            or planning.cluster.devices
            or planning.cluster.slow_ports
            or self.batches >= MOST_BATCHES
        ):
            return
        self.batches += 1
        self.available = batch[0].num_available or 0
        layers = [one.use.layers if one.use else 1 for one in batch]
        self.wide_s += sum(n * m.row.figures.predicted_s for n, m in zip(layers, made, strict=True))
        quick = replace(planning.config, budget="fast", head_groups=1, memory_limit_bytes=None)
        for groups in _groups_of(planning.cluster):
            narrow = replace(planning.cluster, nodes=planning.cluster.nodes // groups)
            seconds = sum(
                n * quick_seconds(workload_of(one.sparsity, planning.shape, quick), narrow, quick)
                for n, one in zip(layers, batch, strict=True)
            )
            self.narrow_s[groups] = self.narrow_s.get(groups, 0.0) + seconds

    def best(self) -> Narrower | None:
        """Return the fastest groups, ``None`` if all nodes together are nearly as fast."""
        cluster, found = self.planning.cluster, None
        for groups, seconds in self.narrow_s.items():
            share = seconds / groups / self.wide_s if self.wide_s else 1.0
            # Fewer batches than groups leave groups without work.
            if groups <= self.available and share < (found.share if found else MOST_SHARE):
                each = replace(cluster, nodes=cluster.nodes // groups)
                found = Narrower(groups, each, share, self.batches)
        return found


def _groups_of(cluster: Cluster) -> list[int]:
    """List the numbers of equal groups of whole nodes, from two.

    >>> _groups_of(Cluster(nodes=8, devices_per_node=8))
    [2, 4, 8]
    """
    return [n for n in range(2, cluster.nodes + 1) if cluster.nodes % n == 0]
