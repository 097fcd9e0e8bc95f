"""A plan under other conditions: what it would take if something cost nothing.

A plan is predicted again. A run cannot be repeated with other links, but its recorded timeline can
be played again: every event follows the same others as in the trace (`find_dependencies`), as long
behind them as it did there. The order of messages stays as recorded.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from dcp_dsl.arrays import Indices, Ints
from dcp_planner.causes.dependencies import COMPUTE, RECEIVE, SEND, Dependencies
from dcp_planner.jit import compiled
from dcp_planner.model.cluster import MOST_RATE, Cluster
from dcp_planner.simulation.simulator import Evenness, PlanModel
from dcp_planner.simulation.trace import Trace

Free = Literal["links", "latency", "launches", "waves", "tiles", "balance", "idle"]
"""Causes that can be imagined away.

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
"""Causes that are free before another one can be, where they cost anything."""


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


REPLAYED: tuple[Free, ...] = ("links", "launches", "balance", "idle")
"""Causes that can be imagined away in a recorded timeline: `links` are messages from the moment
that both ends have launched them, `launches` the time between an event and what it waited for."""


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """A trace with what its events waited for.

    Attributes:
        trace, dependencies: of each other.
        num_devices: of the plan.
        order: int64 ``[E]``, events in an order in which each comes behind what it waits for.
    """

    trace: Trace
    dependencies: Dependencies
    num_devices: int
    order: Ints

    @classmethod
    def of(cls, trace: Trace, found: Dependencies, num_devices: int) -> "Recording":
        """Sort the events by time; messages first where several are at one moment."""
        rank = np.array([2, 0, 1, 2])[trace.lane]
        order = np.lexsort((trace.start_ns, rank, found.end_ns, found.begin_ns))
        return cls(trace, found, num_devices, order)

    def seconds_without(self, free: Collection[Free]) -> float:
        """Compute from the first begin to the last end while some things cost nothing; O(E)."""
        found = self.dependencies
        if not len(self.order):
            return 0.0
        begin = found.begin_ns
        spent = self._spent(free)
        delay = begin - np.maximum(begin.min(), _latest(found))
        if "launches" in free:
            delay = np.zeros_like(delay)
        ended = np.full(len(begin), begin.min())
        _replay(self.order, found.edge_ptr, found.source, delay, spent, int(begin.min()), ended)
        return float(ended.max() - begin.min()) / 1e9

    def _spent(self, free: Collection[Free]) -> Ints:
        """Compute how long each event takes itself, int64 ``[E]``."""
        trace, found = self.trace, self.dependencies
        spent = (found.end_ns - found.begin_ns).astype(np.float64)
        if "links" in free:
            spent[(trace.lane == SEND) | (trace.lane == RECEIVE)] = 0
        if "balance" in free:
            computing = trace.lane == COMPUTE
            for backward in (False, True):
                rows = np.flatnonzero(computing & (trace.is_backward == backward))
                load = np.bincount(trace.device[rows], spent[rows], self.num_devices)
                chosen = np.ones(len(load), bool) if "idle" in free else load > 0
                mean = load[chosen].mean() if load.any() else 0.0
                factor = np.divide(mean, load, out=np.zeros(len(load)), where=load > 0)
                spent[rows] *= factor[trace.device[rows]]
        return np.rint(spent).astype(np.int64)


def _latest(found: Dependencies) -> Ints:
    """Find when the last thing that each event waited for had ended; -1 if there was nothing."""
    before = found.predecessor
    return np.where(before >= 0, found.end_ns[before], -1)


@compiled
def _replay(
    order: Ints,
    edge_ptr: Ints,
    source: Indices,
    delay: Ints,
    spent: Ints,
    first_ns: int,
    ended: Ints,
) -> None:
    """Let every event begin a delay behind what it waits for, and write down when it ends."""
    for n in range(len(order)):
        event = order[n]
        now = first_ns
        for k in range(edge_ptr[event], edge_ptr[event + 1]):
            now = max(now, ended[source[k]])
        ended[event] = now + delay[event] + spent[event]
