"""A plan predicted under other conditions: what it would take if something cost nothing."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Literal, get_args

from dcp_planner.model.cluster import MOST_RATE, Cluster
from dcp_planner.simulation.simulator import Evenness, PlanModel

Free = Literal["links", "latency", "launches", "waves", "tiles", "balance", "idle"]
"""What can be imagined away.

- `links`: messages have no bytes;
- `latency`: they take no time on their way, and none to be started;
- `launches`: kernels start at once, and the host takes no time before a direction;
- `waves`: kernels keep all multiprocessors of a device busy, from the begin to the end, and
  messages take none of them;
- `tiles`: kernels compute visible pairs only, not whole tiles of their own. It follows `waves`,
  which depend on those tiles;
- `balance`: in each direction all devices that compute do so for equally long;
- `idle`: devices that compute nothing take their share too. It follows `balance`.
"""
FREE: tuple[Free, ...] = get_args(Free)

_CHANGES: Mapping[Free, Callable[[Cluster], Cluster]] = {
    "links": lambda c: replace(
        c, intra_bytes_per_s=MOST_RATE, inter_bytes_per_s=MOST_RATE, spine_bytes_per_s=None
    ),
    "latency": lambda c: replace(c, latency_s=0.0, inter_latency_s=None, message_launch_s=0.0),
    "launches": lambda c: replace(c, kernel_launch_s=0.0, pass_s=0.0, host_message_s=0.0),
    "waves": lambda c: replace(c, sms=1, comm_sms=0, cta_keys=0),
    "tiles": lambda c: replace(c, kernel_tile=1),
}
NEEDS: Mapping[Free, frozenset[Free]] = {
    "idle": frozenset({"balance"}),
    "tiles": frozenset({"waves"}),
}
"""What is free before something can be, where that costs anything."""


def costly(cluster: Cluster) -> tuple[Free, ...]:
    """List what can cost anything on a cluster.

    >>> costly(Cluster())
    ('links', 'latency', 'launches', 'balance', 'idle')
    """
    return tuple(
        name for name in FREE
        if name not in ("waves", "tiles") or cluster_without(cluster, [name]) != cluster
    )  # fmt: skip


def cluster_without(cluster: Cluster, free: Collection[Free]) -> Cluster:
    """Return a cluster on which some things cost nothing.

    >>> cluster_without(Cluster(latency_s=1e-5, kernel_launch_s=2e-5), ["latency"]).latency_s
    0.0
    """
    for name in FREE:
        if name in free and name in _CHANGES:
            cluster = _CHANGES[name](cluster)
    return cluster


def seconds_without(model: PlanModel, free: Collection[Free]) -> float:
    """Predict forward and backward of a plan while some things cost nothing.

    Raises:
        PlanError: like `simulate`.
    """
    evenness: Evenness = "as placed"
    if "balance" in free:
        evenness = "all devices" if "idle" in free else "busy devices"
    return model.predict(cluster_without(model.plan.cluster, free), evenness).seconds
