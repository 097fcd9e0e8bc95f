"""Predict alternatives to a plan: without some costs, with another schedule, or cut otherwise.

A plan is predicted again while some costs are zero. A run cannot be repeated with other links, but
its recorded timeline can be played again: every event follows the same events as in the trace
(`find_dependencies`), with the same delay behind them. The order of messages stays as recorded.

Other schedules and other cuts follow from the tables of a plan, without the text of its mask.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from dcp_dsl.arrays import Indices, Ints, order_by
from dcp_dsl.forms import BlockKind
from dcp_planner.causes.dependencies import RECEIVE, SEND, Dependencies, layer_gaps
from dcp_planner.jit import compiled
from dcp_planner.model.cluster import CONSTANTS_OF_CAUSE, MOST_RATE, Cluster
from dcp_planner.model.config import PlanConfig
from dcp_planner.model.cuts import count_pairs
from dcp_planner.model.problem import DIRECTIONS, Direction, Placement, Workload
from dcp_planner.schedule.divisions import Manner, Schedule
from dcp_planner.schedule.emission import assemble
from dcp_planner.schedule.routing import find_needs
from dcp_planner.simulation.event_tables import levelled
from dcp_planner.simulation.schedules import divide, make_schedule
from dcp_planner.simulation.simulator import Evenness, PlanModel
from dcp_planner.simulation.trace import EVENT_KINDS, Trace
from dcp_planner.tables.head_groups import expand_head_groups
from dcp_planner.tables.plan import Plan, TransferKind

Free = Literal["links", "latency", "launches", "waves", "tiles", "balance", "idle"]
"""Causes that can be imagined away. While a cause is free:

- `links`: links are infinitely fast;
- `latency`: messages have no latency, and take no time to be started;
- `launches`: kernels start at once, and hosts take no time;
- `waves`: kernels keep all multiprocessors of a device busy from begin to end, and messages occupy
  none of them;
- `tiles`: kernels compute visible pairs only, no whole kernel tiles. It needs `waves`, which depend
  on kernel tiles;
- `balance`: in each direction all devices that compute anything compute equally long;
- `idle`: devices that compute nothing take their share too. It needs `balance`.
"""
FREE: tuple[Free, ...] = get_args(Free)

_FREE_OF_ALL = Cluster(intra_bytes_per_s=MOST_RATE, inter_bytes_per_s=MOST_RATE, latency_s=0.0)
"""A cluster on which no constant has an effect: the others leave theirs out by default."""
NEEDS: Mapping[Free, frozenset[Free]] = {
    "idle": frozenset({"balance"}),
    "tiles": frozenset({"waves"}),
}
"""Causes that must be free before another one can be, if they cost anything."""


def costly(cluster: Cluster) -> tuple[Free, ...]:
    """List the causes that can cost anything on a cluster.

    >>> costly(Cluster())
    ('links', 'latency', 'launches', 'balance', 'idle')
    """
    # Devices of one multiprocessor (CPUs) whose kernels compute single pairs have neither cause.
    return tuple(
        name for name in FREE
        if name not in ("waves", "tiles") or cluster_without(cluster, [name]) != cluster
    )  # fmt: skip


def cluster_without(cluster: Cluster, free: Collection[Free]) -> Cluster:
    """Return a cluster on which some things cost nothing."""
    names = [name for cause in free for name in CONSTANTS_OF_CAUSE.get(cause, ())]
    return replace(cluster, **{name: getattr(_FREE_OF_ALL, name) for name in names})


def seconds_without(model: PlanModel, free: Collection[Free]) -> float:
    """Predict forward and backward of a plan while some things cost nothing."""
    evenness: Evenness = "as placed"
    if "balance" in free:
        evenness = "all devices" if "idle" in free else "busy devices"
    return model.predict(cluster_without(model.plan.cluster, free), evenness).seconds


REPLAYED: tuple[Free, ...] = ("links", "launches", "balance", "idle")
"""Causes that can be imagined away in a recorded timeline. `links` is the time of messages from the
moment that both ends have launched them; `launches` is the host's work before a direction, and the
gap between an event and the last event that it waited for."""


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """A trace and its dependencies, ready to be played again."""

    # trace, dependencies: the events and their edges
    trace: Trace
    dependencies: Dependencies
    num_devices: int  # of the plan
    order: Ints  # `[E]`, a topological order: each event comes after those it waits for

    @classmethod
    def of(cls, trace: Trace, found: Dependencies, num_devices: int) -> "Recording":
        """Sort the events by time; messages first where several are at one moment."""
        # By lane: a send (0) before its receive (1), and both before the wait (2) that they end.
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
        # The gap behind the last event that it waited for stays, as the event's own delay.
        before = found.predecessor
        latest = np.where(before >= 0, found.end_ns[before], -1)
        delay = begin - np.maximum(begin.min(), latest)
        # Between two layers the rest of the model runs, which is no time of attention.
        begins, gap = layer_gaps(self.trace)
        delay[begins] -= gap
        if "launches" in free:
            delay = np.zeros_like(delay)
        ended = np.full(len(begin), begin.min())
        _replay(self.order, found.edge_ptr, found.source, delay, spent, int(begin.min()), ended)
        return float(ended.max() - begin.min()) / 1e9

    def _spent(self, free: Collection[Free]) -> Ints:
        trace, found = self.trace, self.dependencies
        spent = (found.end_ns - found.begin_ns).astype(np.float64)
        if "links" in free:
            spent[(trace.lane == SEND) | (trace.lane == RECEIVE)] = 0
        if "launches" in free:
            spent[trace.kind == EVENT_KINDS.index("copy")] = 0
        if "balance" in free:
            attends, reduces = (
                trace.kind == EVENT_KINDS.index(kind) for kind in ("attention", "reduction")
            )
            for backward in (False, True):
                here = trace.is_backward == backward
                # A trace does not tell the speed of devices: all count alike.
                spent = levelled(
                    spent, trace.device, (attends & here, reduces & here),
                    np.ones(self.num_devices), is_everywhere="idle" in free,
                )  # fmt: skip
        return np.rint(spent).astype(np.int64)


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
    """Let every event begin a delay after those it waits for, and write down when it ends."""
    for n in range(len(order)):
        event = order[n]
        now = first_ns  # its sources come before it in `order`, so their ends are known
        for k in range(edge_ptr[event], edge_ptr[event + 1]):
            now = max(now, ended[source[k]])
        ended[event] = now + delay[event] + spent[event]


@dataclass(frozen=True, slots=True, eq=False)
class PlanInputs:
    """The ingredients of a plan; head groups are laid out one behind the other."""

    plan: Plan  # expanded
    # workload, placement: of it
    workload: Workload
    placement: Placement
    config: PlanConfig  # the routing that its transfers show; the rest as usual

    @classmethod
    def of(cls, plan: Plan) -> "PlanInputs":
        """Read the inputs of a plan from its tables."""
        plan = expand_head_groups(plan)
        placement = Placement(plan.blocks.owner, plan.tiles.device)
        # Where nothing is passed on, both routings send the same messages.
        is_routed = bool((plan.transfers.hop > 0).any())
        config = PlanConfig(routing="node" if is_routed else "direct")
        return cls(plan, workload_of(plan), placement, config)

    def divided(self, divisions: int) -> Plan:
        """Schedule the placement in so many divisions, launched early."""
        return self._scheduled(
            divide(self.workload, self.placement, self.plan.cluster, self.config, divisions)
        )

    def launched_early(self) -> Plan:
        """Keep the divisions, but launch everything as early as programs can."""
        return self._scheduled(self._early())

    def rounded_partials(self) -> Plan:
        """Keep the divisions, but let partial results travel in the type of the inputs."""
        shape = replace(self.workload.shape, float32_partials=False)
        other = replace(self, workload=replace(self.workload, shape=shape))
        return other._scheduled(self._early())

    def _early(self) -> Schedule:
        tiles, routing = self.plan.tiles, self.config.routing
        forward, backward = (Manner(routing, is_striped=self._is_striped(d)) for d in DIRECTIONS)
        return Schedule(tiles.division, tiles.backward_division, (forward, backward))

    def _is_striped(self, direction: Direction) -> bool:
        """Tell whether blocks take the routes of striping, by comparing: no column says so."""
        if self.config.routing == "direct":
            return False
        table, cluster = self.plan.transfers, self.plan.cluster
        needs = find_needs(self.workload, self.placement, cluster, "node", None, direction)
        is_input = table.kind < TransferKind.OUT
        x = np.flatnonzero(is_input & (table.is_backward == (direction == "backward")))
        ends = np.stack([table.kind[x] == TransferKind.KV, table.block[x], table.target[x]])
        # In the order of `find_needs`: queries before keys, then by block and device.
        order = order_by(*ends)
        return np.array_equal(
            np.vstack([ends, table.source[x]])[:, order],
            np.stack([needs.is_keys, needs.block, needs.device, needs.peer]),
        )

    def unlimited(self) -> Plan:
        """Schedule the placement the fastest way, whatever memory that takes."""
        cluster = self.plan.cluster
        return self._scheduled(make_schedule(self.workload, self.placement, cluster, self.config))

    def _scheduled(self, schedule: Schedule) -> Plan:
        name = self.plan.partitioner
        return assemble(self.workload, self.plan.cluster, self.placement, schedule, name)


def divisions_of(plan: Plan) -> int:
    """Return the most divisions of a direction, including the one of local tiles."""
    columns = plan.tiles.division, plan.tiles.backward_division
    return 1 + max(int(column.max(initial=0)) for column in columns)


def workload_of(plan: Plan) -> Workload:
    """Read the workload of a plan of one head group back from its tables."""
    blocks, tiles = plan.blocks, plan.tiles
    return Workload(
        plan.shape, plan.cu_seqlens, blocks.sequence, blocks.start, blocks.end, tiles.q_block,
        tiles.kv_block, tiles.kind, tiles.pairs, plan.slabs, plan.forms,
    )  # fmt: skip


def recut(workload: Workload, borders: Ints) -> Workload:
    """Cut a batch at other borders, among them the ends of its sequences; O(tiles log tiles)."""
    # The mask is exact in every plan, so no text is needed to count the pairs of other tiles.
    q, kv, pairs = count_pairs(workload.slabs, borders, workload.forms)
    tokens = np.diff(borders)
    is_full = pairs == tokens[q] * tokens[kv]
    ends = workload.cu_seqlens
    return replace(
        workload,
        block_sequence=(np.searchsorted(ends, borders[:-1], side="right") - 1).astype(np.int32),
        block_start=borders[:-1],
        block_end=borders[1:],
        compute_q=q.astype(np.int32),
        compute_kv=kv.astype(np.int32),
        compute_kind=np.where(is_full, BlockKind.FULL, BlockKind.PARTIAL).astype(np.uint8),
        compute_pairs=pairs,
    )


def coarser(workload: Workload) -> Ints:
    """Leave out every second border inside each sequence: about twice the tokens per block."""
    sequence = workload.block_sequence
    # Number of a block in its sequence: blocks are sorted by sequence.
    place = np.arange(len(sequence)) - np.searchsorted(sequence, sequence)
    return np.append(workload.block_start[place % 2 == 0], workload.block_end[-1:])


def finer(workload: Workload) -> Ints:
    """Cut every block of at least two tokens in the middle."""
    middle = (workload.block_start + workload.block_end) // 2
    borders = np.concatenate([workload.block_start, middle, workload.block_end[-1:]])
    return np.unique(borders)  # the middle of a block of one token is its start
