"""Run a plan's programs against a cluster model instead of a cluster.

The model, per device: one compute lane, which stands still at a `CommWait`; for links inside the
node one port that sends and one that receives, and for links between nodes the two ports of its
NIC, all independent of each other. A message is ready once both ends have launched it and the data
that it passes on has arrived. `PORT_SHARINGS` lists how messages share ports: one has both of its
ports for ``Link.busy_s``, or messages from one device to another go one after the other, and those
of different devices at once, at max-min fair shares (`fair_rates`). It arrives the link's latency
later. `MESSAGE_ORDERS` lists the rules by which a message is chosen, and other reasons to wait.
Attention takes the time of its blocks of threads (`KernelWork`), reductions `reduction_seconds`,
each after the launch of its kernel. Backward starts when the slowest device has finished forward.
Times are whole nanoseconds, durations rounded up.

The host has a clock of its own: `host_seconds` for each direction. Where it does not run ahead of
its device, a direction begins with its work. Where it does, it works on the next layer meanwhile,
and never waits for the device. So in a stack of equal layers a direction takes as long as the
devices need, or as long as the busiest host needs, whichever is longer: each is a circle of waiting
of its own. What the host needs longer stands at the begin of the direction, on all devices.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from dcp_dsl.arrays import Indices, Ints
from dcp_planner.errors import PlanError
from dcp_planner.model.cluster import Cluster
from dcp_planner.model.cost_model import KernelWork
from dcp_planner.model.problem import DIRECTIONS, Direction
from dcp_planner.simulation.event_loop import run_events
from dcp_planner.simulation.event_tables import (
    Bundles,
    Messages,
    Steps,
    durations,
    groups_of,
    host_seconds,
    levelled,
    message_times,
    nanoseconds,
    ports_of,
    streams_of,
)
from dcp_planner.simulation.trace import COLUMNS, EVENT_KINDS, Trace, message_names, wait_name
from dcp_planner.tables.head_groups import expand_head_groups
from dcp_planner.tables.plan import Plan, TransferKind, Transfers, columns_of
from dcp_planner.tables.programs import (
    ATTENTION,
    COPY,
    LAUNCH,
    OPS,
    REDUCTION,
    WAIT,
    ProgramTable,
    tabulate_programs,
)
from dcp_planner.tables.visits import find_feeders

_SEND, _RECEIVE, _WAIT = (EVENT_KINDS.index(kind) for kind in ("send", "receive", "wait"))
_KIND_OF_OP = np.array([EVENT_KINDS.index(op) if op in EVENT_KINDS else -1 for op in OPS])
_TIMES = [COLUMNS.index(name) for name in ("start_ns", "end_ns", "ready_ns")]
_END_OF_TIME_NS = 1 << 62  # 146 years; int64 holds two of them, forward and backward


class Prediction(NamedTuple):
    """Predicted seconds of each direction of a layer, in a stack of equal layers."""

    # until the last device has finished forward, or until the busiest host has, if that is later
    forward_s: float
    backward_s: float  # from there until the last one has finished backward; likewise

    @property
    def seconds(self) -> float:
        """Both directions."""
        return self.forward_s + self.backward_s


Evenness = Literal["as placed", "busy devices", "all devices"]
"""How a prediction shares compute out: as the plan says; or equally long in each direction, on all
devices with attention (``busy devices``) or on all devices."""


def simulate(plan: Plan) -> Trace:
    """Predict the timeline of a plan, forward and then backward.

    Discrete events, O(E log E) for E messages and instructions.

    Raises:
        PlanError: for a deadlock, or a run of a century.
    """
    return PlanModel.of(plan).simulate()


def predict(plan: Plan, evenness: Evenness = "as placed", token_seconds: float = 0.0) -> Prediction:
    """Predict how long attention takes in each direction, without a timeline.

    Args:
        plan: a plan, validated or not.
        evenness: how compute is imagined to be shared.
        token_seconds: time of a token in the rest of the layer (`PlanConfig.token_seconds`), in
            which the host may run ahead of its device; it is not in the result.

    Raises:
        PlanError: like `simulate`.
    """
    return PlanModel.of(plan).predict(plan.cluster, evenness, token_seconds)


def clocks_of(plan: Plan) -> Mapping[Direction, "Clocks"]:
    """Compute what devices and hosts need in each direction, and which of them decides."""
    model = PlanModel.of(plan)
    return {direction: model.play(direction, plan.cluster).clocks for direction in DIRECTIONS}


def rest_seconds(
    owner: Indices, tokens: Ints | Indices, devices: int, token_seconds: float
) -> Mapping[Direction, float]:
    """Compute the time of the rest of a layer on the device with the fewest tokens.

    There the host has the least time to run ahead. Backward is two thirds of it: two matrix
    products for each one of forward.
    """
    fewest = np.bincount(owner, tokens, devices).min()
    forward = token_seconds * float(fewest) / 3
    return {"forward": forward, "backward": 2 * forward}


def mean_compute_seconds(plan: Plan) -> float:
    """Compute how long each device would compute, forward and backward, if all did equally long."""
    flat, total = expand_head_groups(plan), 0.0
    speed = flat.cluster.speed_of_device
    for direction in DIRECTIONS:
        programs = tabulate_programs(flat, direction)
        work = _kernel_work(flat, direction, flat.cluster)
        steps = Steps.of(programs, flat.num_devices)
        spent = durations(programs, steps, flat.transfers, work, flat.cluster)
        total += float((spent * speed[programs.device]).sum() / speed.sum())
    return total


@dataclass(frozen=True, slots=True, eq=False)
class DirectionModel:
    """One direction of a plan on its devices and ports, whatever things cost there."""

    programs: ProgramTable  # of all devices; their items are rows of `transfers` and of the tiles
    transfers: Transfers  # of this direction
    rows: Ints  # `[X]`, their rows in the plan
    link: Ints  # `[X]`, class of link of each
    bundles: Bundles  # the messages that they travel in
    # steps, messages: for the event loop, without their times
    steps: Steps
    messages: Messages

    @classmethod
    def of(
        cls,
        programs: ProgramTable,
        transfers: Transfers,
        cluster: Cluster,
        rows: Ints | None = None,
        feeder: Ints | None = None,
    ) -> "DirectionModel":
        """Lay out the messages of a direction with their ports and feeders; O(E log E).

        `rows` are the rows of the transfers in their plan; without them, its first rows. `feeder`
        is the result of `find_feeders`, if the caller has it.
        """
        link = cluster.link_class(transfers.source, transfers.target)
        streams = None
        if cluster.is_sharing_ports:
            stream, streams = streams_of(transfers, cluster)
            # A stream is a port of its own, at both ends: its messages go one after the other.
            ports, num_ports = np.stack([stream, stream]), len(streams.part)
        else:
            ports, num_ports = ports_of(transfers.source, transfers.target, cluster)
        steps = Steps.of(programs, cluster.num_devices)
        bundles = Bundles.of(steps, transfers)
        if feeder is None:
            feeder = find_feeders(transfers)
        # A block is there to be passed on when all of its message is.
        feeder = np.where(feeder >= 0, bundles.last[feeder], -1)
        messages = Messages.of(
            (transfers.source, transfers.target), feeder, (ports, num_ports),
            groups_of(steps, transfers, cluster), is_fifo=cluster.message_order == "fifo",
            streams=streams,
        )  # fmt: skip
        if rows is None:
            rows = np.arange(len(transfers))
        return cls(programs, transfers, rows, link, bundles, steps, messages)

    @classmethod
    def of_plan(cls, plan: Plan, direction: Direction) -> "DirectionModel":
        """Take one direction out of a plan of one head group."""
        programs, transfers = tabulate_programs(plan, direction), plan.transfers
        rows = np.flatnonzero(transfers.is_backward == (direction == "backward"))
        # Items of launches and reductions name rows of all transfers: renumber them.
        place = np.full(len(transfers), -1, np.int32)
        place[rows] = np.arange(len(rows))
        travels = np.isin(programs.op, (LAUNCH, REDUCTION))[programs.row_of_item()]
        items = programs.items.copy()
        items[travels] = place[items[travels]]
        chosen: dict[str, Any]  # Any: columns of several types
        chosen = {name: column[rows] for name, column in columns_of(transfers).items()}
        programs = replace(programs, items=items)
        return cls.of(programs, Transfers(**chosen), plan.cluster, rows)

    def price(
        self, work: KernelWork, cluster: Cluster, evenness: Evenness = "as placed"
    ) -> "Prices":
        """Price all instructions and messages; the arguments are those of `play`."""
        duration = durations(self.programs, self.steps, self.transfers, work, cluster)
        on_host = host_seconds(self.programs, self.bundles, cluster)
        if not cluster.host_runs_ahead:
            begins = np.flatnonzero(self.programs.op == COPY)
            duration[begins] = on_host[self.programs.device[begins]]
        busy, latency = message_times(self.transfers, self.link, self.bundles, cluster)
        if evenness != "as placed":
            op, device = self.programs.op, self.programs.device
            duration = levelled(
                duration, device, (op == ATTENTION, op == REDUCTION), cluster.speed_of_device,
                is_everywhere=evenness == "all devices",
            )  # fmt: skip
        # Multiprocessors that move messages do not compute meanwhile.
        slowdown = cluster.sms / max(1, cluster.sms - cluster.comm_sms)
        # Everything one after the other bounds the end, which int64 nanoseconds must hold.
        total = float(sum(part.sum() for part in (slowdown * duration, busy, latency, on_host)))
        if not total * 1e9 < _END_OF_TIME_NS:
            raise PlanError(
                f"expected a predicted time below {_END_OF_TIME_NS / 1e9:.0f} s, got more; give "
                "the cluster's rates in bytes and FLOPs per second, its latency in seconds"
            )
        return Prices(
            nanoseconds(duration), nanoseconds(busy), nanoseconds(latency), nanoseconds(on_host),
            slowdown,
        )  # fmt: skip

    def play(
        self,
        work: KernelWork,
        cluster: Cluster,
        evenness: Evenness = "as placed",
        rest_s: float = 0.0,
    ) -> "Played":
        """Play the direction, from 0, at the rates of a cluster with the same devices and ports.

        `rest_s` is the device's time for the rest of the layer, in which the host may run ahead.
        """
        prices = self.price(work, cluster, evenness)
        steps = self.steps._replace(duration=prices.duration_ns)
        messages = self.messages._replace(
            busy=prices.busy_ns, latency=prices.latency_ns, slowdown=prices.slowdown
        )
        begun, ended, started, left, at, end_ns = run_events(steps, messages)
        stuck = np.flatnonzero(at < steps.row_ptr[1:])
        if stuck.size:
            raise PlanError(
                f"deadlock: devices {stuck[:8].tolist()} never get past a CommWait; validate(plan) "
                "names the transfer"
            )
        host_ns, held_ns = int(prices.host_ns.max(initial=0)), 0
        if cluster.host_runs_ahead:
            held_ns = max(0, host_ns - int(end_ns) - round(rest_s * 1e9))
            begins = self.programs.op == COPY
            begun, ended = begun + held_ns * ~begins, ended + held_ns
            started, left = (np.where(when >= 0, when + held_ns, -1) for when in (started, left))
        clocks = Clocks(int(end_ns), host_ns, held_ns)
        return Played(self, begun, ended, started, left, left + prices.latency_ns, clocks)


class Prices(NamedTuple):
    """Costs of one direction where nothing waits, in ns."""

    duration_ns: Ints  # `[I]`, of each instruction on its device; launches and waits take none
    busy_ns: Ints  # `[X]`, for which each transfer occupies ports that it has alone
    latency_ns: Ints  # `[X]`, between leaving and arriving
    host_ns: Ints  # `[R]`, work of each host
    slowdown: float  # times that attention takes longer while messages of its device are under way


class Clocks(NamedTuple):
    """Times of one direction in a stack of equal layers, in ns."""

    # that the devices need, with their messages; the host's work is in it where the host does not
    # run ahead
    device_ns: int
    host_ns: int  # that the busiest host needs
    held_ns: int  # time for which the devices wait for a host that runs ahead of them

    @property
    def end_ns(self) -> int:
        """From the begin of the direction in one layer to its begin in the next."""
        return self.device_ns + self.held_ns


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """Times of one played direction, all in ns."""

    model: DirectionModel  # the direction
    # begun, ended: int64 `[I]`, of every instruction
    begun: Ints
    ended: Ints
    # started, left, arrived: int64 `[X]`, of every transfer
    started: Ints
    left: Ints
    arrived: Ints
    clocks: Clocks  # of devices and hosts

    @property
    def end_ns(self) -> int:
        """Time of the last event."""
        return self.clocks.end_ns

    def ready_ns(self) -> Ints:
        """Find when both ends had launched each message and its data was at the source, ``[X]``."""
        programs, ready = self.model.programs, np.zeros(len(self.started), np.int64)
        row = programs.row_of_item()
        launched = programs.op[row] == LAUNCH
        np.maximum.at(ready, programs.items[launched], self.begun[row[launched]])
        feeder = self.model.messages.feeder
        return np.maximum(ready, np.where(feeder >= 0, self.arrived[feeder], 0))


@dataclass(frozen=True, slots=True, eq=False)
class PlanModel:
    """A plan that can be predicted at several rates."""

    plan: Plan  # any plan
    flat: Plan  # the same, of one head group
    directions: dict[Direction, DirectionModel]  # forward and backward

    @classmethod
    def of(cls, plan: Plan) -> "PlanModel":
        """Lay out both directions of any plan."""
        flat = expand_head_groups(plan)
        directions = {name: DirectionModel.of_plan(flat, name) for name in DIRECTIONS}
        return cls(plan, flat, directions)

    def play(
        self,
        direction: Direction,
        cluster: Cluster,
        evenness: Evenness = "as placed",
        rest_s: float = 0.0,
    ) -> Played:
        """Play one direction; like `DirectionModel.play`."""
        work = _kernel_work(self.flat, direction, cluster)
        return self.directions[direction].play(work, cluster, evenness, rest_s)

    def price(self, direction: Direction) -> Prices:
        """Price one direction on the plan's own cluster; like `DirectionModel.price`."""
        work = _kernel_work(self.flat, direction, self.plan.cluster)
        return self.directions[direction].price(work, self.plan.cluster)

    def predict(
        self, cluster: Cluster, evenness: Evenness = "as placed", token_seconds: float = 0.0
    ) -> Prediction:
        """Predict both directions; like `predict`, at the rates of another cluster."""
        blocks = self.plan.blocks
        rest = rest_seconds(blocks.owner, blocks.num_tokens, self.plan.num_devices, token_seconds)
        ends = (self.play(d, cluster, evenness, rest[d]).end_ns / 1e9 for d in DIRECTIONS)
        return Prediction(*ends)

    def simulate(self) -> Trace:
        """Predict the timeline; like `simulate`."""
        table, plan = self.flat.transfers, self.plan
        parts = [self.play(direction, plan.cluster) for direction in DIRECTIONS]
        names = message_names(table.kind, table.block, plan.head_groups, len(plan.blocks))
        return _trace_of(parts, names)


def _kernel_work(plan: Plan, direction: Direction, cluster: Cluster) -> KernelWork:
    return KernelWork.of(
        (plan.tiles.q_block, plan.tiles.kv_block, plan.tiles.pairs),
        plan.blocks.num_tokens,
        plan.shape,
        cluster,
        is_backward=direction == "backward",
    )


def _trace_of(parts: list[Played], messages: list[str]) -> Trace:
    """Build the trace of both directions, backward behind forward, sorted by (device, lane, start).

    `messages` names every transfer of the plan.
    """
    rows, texts, begin_ns = [], [], 0
    for is_backward, played in zip((False, True), parts, strict=True):
        for table, names in (_compute_events(played), _waits(played), _messages(played, messages)):
            # The tables have all of `COLUMNS` but the direction.
            found = np.insert(table, COLUMNS.index("is_backward"), is_backward, axis=1)
            found[:, _TIMES] += begin_ns
            rows.append(found)
            texts += names
        begin_ns = played.end_ns
    return Trace.of_rows("simulated", np.concatenate(rows), texts)


def _compute_events(played: Played) -> tuple[Ints, list[str]]:
    """List attentions, and the reductions and copies (the host's work) that take time."""
    programs = played.model.programs
    is_long = np.isin(programs.op, (REDUCTION, COPY)) & (played.ended > played.begun)
    chosen = np.flatnonzero((programs.op == ATTENTION) | is_long)
    kinds = _KIND_OF_OP[programs.op[chosen]]
    return _events_of_steps(played, chosen, kinds), [EVENT_KINDS[kind] for kind in kinds.tolist()]


def _waits(played: Played) -> tuple[Ints, list[str]]:
    programs = played.model.programs
    chosen = np.flatnonzero((programs.op == WAIT) & (played.ended > played.begun))
    # Programs launch inputs and results apart, so the first transfer of a launch tells.
    launch = played.model.steps.launch_of[chosen]
    is_result = (
        played.model.transfers.kind[programs.items[programs.item_ptr[launch]]] >= TransferKind.OUT
    )
    divisions = programs.division[chosen].tolist()
    names = [wait_name(d, is_result=r) for d, r in zip(divisions, is_result.tolist(), strict=True)]
    return _events_of_steps(played, chosen, np.full(len(chosen), _WAIT)), names


def _events_of_steps(played: Played, rows: Ints, kinds: Ints) -> Ints:
    programs, nothing = played.model.programs, np.zeros(len(rows), np.int64)
    begun = played.begun[rows]
    return np.column_stack([
        begun, played.ended[rows], begun, programs.device[rows], kinds,
        np.maximum(programs.division[rows], 0),  # a copy belongs to no division: it comes first
        nothing - 1, nothing, nothing - 1,
    ])  # fmt: skip


def _messages(played: Played, messages: list[str]) -> tuple[Ints, list[str]]:
    """List every message twice: as it is sent, and as it is received, a latency later."""
    x, transfers = np.flatnonzero(played.started >= 0), played.model.transfers
    row = played.model.rows[x]
    names = [messages[transfer] for transfer in row.tolist()]
    start, left, ready = played.started[x], played.left[x], played.ready_ns()[x]
    source, target = transfers.source[x], transfers.target[x]
    latency = (played.arrived - played.left)[x]
    both = [
        np.column_stack([
            start + later, left + later, ready + later, device, np.full(len(x), kind),
            transfers.division[x], peer, transfers.size_bytes[x], row,
        ])
        for later, device, peer, kind in (
            (0 * latency, source, target, _SEND), (latency, target, source, _RECEIVE)
        )
    ]  # fmt: skip
    return np.concatenate(both), names * 2
