"""Messages that share ports: by hand, and against a slow model that shares no code with it."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp_planner import Cluster, ClusterError, ModelShape, PlanConfig, build_plan, simulate
from dcp_planner.model.cluster_file import format_cluster, parse_cluster
from dcp_planner.simulation import (
    NEVER_NS,
    PlanModel,
    Streams,
    end_stream,
    first_ended,
    next_end,
    start_stream,
    streams_of,
)


def play(ports, messages, num_ports=8, part=None):
    """Send ``(stream, begin ns, work ns)``; return the end of each, in their order."""
    part = np.zeros(len(ports), np.int64) if part is None else np.array(part, np.int64)
    streams = Streams.of(np.array(ports, np.int64).T.copy(), part, num_ports)
    waiting = sorted(range(len(messages)), key=lambda m: messages[m][1])
    now, ends, under_way = 0, [None] * len(messages), {}
    while waiting or under_way:
        begins = messages[waiting[0]][1] if waiting else NEVER_NS
        now = min(begins, next_end(streams, now))
        while (s := first_ended(streams, now)) >= 0:
            end_stream(streams, s, now)
            ends[under_way.pop(s)] = now
        while waiting and messages[waiting[0]][1] <= now:
            m = waiting.pop(0)
            s = messages[m][0]
            assert s not in under_way
            under_way[s] = m
            start_stream(streams, s, messages[m][2], now)
    return ends


@pytest.mark.parametrize(
    ("ports", "messages", "ends"),
    [
        # One alone; two from one port, of unequal length; two into one, the second later.
        ([(0, 1)], [(0, 5, 10)], [15]),
        ([(0, 1), (0, 2)], [(0, 0, 10), (1, 0, 30)], [20, 40]),
        ([(0, 2), (1, 2)], [(0, 0, 10), (1, 5, 10)], [15, 20]),
        # A chain: 0 > 1 and 2 > 1 share port 1, 2 > 3 has the rest of port 2.
        ([(0, 1), (2, 1), (2, 3)], [(0, 0, 10), (1, 0, 10), (2, 0, 10)], [20, 20, 20]),
        # Of three into port 9's place each has a third, so the other one of port 0 has two thirds.
        (
            [(0, 1), (2, 1), (3, 1), (0, 4)],
            [(0, 0, 12), (1, 0, 12), (2, 0, 12), (3, 0, 12)], [36, 36, 36, 18],
        ),
        # A stream that goes on with its next message at once changes nothing for others.
        ([(0, 1), (0, 2)], [(0, 0, 10), (1, 0, 30), (0, 20, 10)], [20, 50, 40]),
        # Nothing to send, and nothing at all.
        ([(0, 1)], [(0, 3, 0)], [3]),
        ([(0, 1)], [], []),
    ],
)  # fmt: skip
def test_times_by_hand(ports, messages, ends):
    assert play(ports, messages) == ends


def exact_shares(streams):
    """Return the max-min fair shares of ``(send port, receive port)``, by filling all alike."""
    shares = [Fraction(0)] * len(streams)
    rising = set(range(len(streams)))
    while rising:
        steps = []
        for side in (0, 1):
            for port in {streams[s][side] for s in rising}:
                used = sum(shares[s] for s, ends in enumerate(streams) if ends[side] == port)
                many = sum(streams[s][side] == port for s in rising)
                steps.append(((1 - used) / many, side, port))
        least = min(steps)[0]
        for s in rising:
            shares[s] += least
        full = {(side, port) for step, side, port in steps if step == least}
        rising -= {s for s in rising if {(0, streams[s][0]), (1, streams[s][1])} & full}
    return shares


def exact_ends(ports, messages):
    """Play messages with exact shares; times are fractions."""
    now, left, ends = Fraction(0), {}, {}
    while len(ends) < len(messages):
        streams = [ports[messages[m][0]] for m in left]
        shares = dict(zip(left, exact_shares(streams), strict=True))
        later = [b for m, (_, b, _) in enumerate(messages) if m not in left and m not in ends]
        moments = [now + left[m] / shares[m] for m in left] + [Fraction(b) for b in later]
        when = min(moments)
        for m in left:
            left[m] -= shares[m] * (when - now)
        now = when
        for m in [m for m in left if left[m] == 0]:
            del left[m]
            ends[m] = now
        for m, (_, begin, work) in enumerate(messages):
            if begin == now and m not in ends and m not in left:
                left[m] = Fraction(work)
    return [ends[m] for m in range(len(messages))]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_shares_and_times_are_those_of_exact_fractions(data):
    pairs = st.tuples(st.integers(0, 4), st.integers(0, 4))
    ports = data.draw(st.lists(pairs, min_size=1, max_size=10, unique=True))
    drawn = st.tuples(st.integers(0, 3_000_000), st.integers(1, 9_000_000))
    messages = [(s, *data.draw(drawn)) for s in range(len(ports))]
    exact = exact_ends(ports, messages)
    # Ends are rounded up to whole nanoseconds, which the next ones feel.
    assert play(ports, messages) == pytest.approx([float(end) for end in exact], abs=30)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=16))
@settings(max_examples=100, deadline=None)
def test_shares_are_max_min_fair(ports):
    streams = Streams.of(np.array(ports, np.int64).T.copy(), np.zeros(len(ports), np.int64), 6)
    for s in range(len(ports)):
        start_stream(streams, s, 1000, 0)
    next_end(streams, 0)
    assert streams.share == pytest.approx([float(x) for x in exact_shares(ports)], rel=1e-9)


def test_parts_that_never_meet_do_not_wait_for_each_other():
    ports, messages = [(0, 1), (0, 2), (3, 4)], [(0, 0, 10), (1, 7, 10), (2, 3, 10)]
    assert play(ports, messages, part=[0, 0, 1]) == play(ports, messages) == [13, 20, 13]


SHAPE = ModelShape(1, 1, 16, 4)
FAIR = {"message_order": "any", "port_sharing": "fair"}


def sends(plan, *, is_backward=False):
    """Return the start and end of each message of a direction, by its transfer."""
    trace = simulate(plan)
    chosen = np.flatnonzero((trace.kind == 3) & (trace.is_backward == is_backward))
    return {int(trace.transfer[e]): (int(trace.start_ns[e]), int(trace.end_ns[e])) for e in chosen}


@pytest.fixture
def lab_plan(masks):
    """Return a function that plans full attention of one block of 1,000 tokens a device."""

    def plan_for(cluster):
        sparsity = masks.pack([np.ones((4000, 4000), bool)], 1000)
        config = PlanConfig("static:contiguous", divisions=2, routing="direct")
        return build_plan(sparsity, SHAPE, cluster, config)

    return plan_for


def test_messages_of_one_pair_go_one_after_the_other_and_pairs_share(masks):
    sparsity = masks.pack([np.ones((16, 16), bool)], 4)
    cluster = Cluster(1, 2, intra_bytes_per_s=1e9, latency_s=0, **FAIR)
    config = PlanConfig("static:contiguous", divisions=2, routing="direct")
    plan = build_plan(sparsity, ModelShape(1, 1, 1, 1), cluster, config)
    times = sorted(sends(plan).values())
    # Two blocks of 8 bytes each way: both ways at once, one after the other.
    assert times == [(0, 8), (0, 8), (8, 16), (8, 16)]


def test_sharing_takes_nothing_from_messages_that_meet_nobody(masks):
    sparsity = masks.pack([masks.causal(64)], 16)
    plan = build_plan(sparsity, SHAPE, Cluster(1, 2), PlanConfig("static:zigzag"))
    exclusive = replace(plan, cluster=replace(plan.cluster, port_sharing="exclusive"))
    assert simulate(plan).seconds() == pytest.approx(simulate(exclusive).seconds(), rel=0.01)


def test_ports_are_shared_unless_messages_are_grouped():
    sharing = [
        Cluster(message_order=order).is_sharing_ports for order in ("any", "fifo", "grouped")
    ]
    assert sharing == [True, True, False]
    assert Cluster(message_order="grouped", port_sharing="fair").is_sharing_ports
    assert not Cluster(port_sharing="exclusive").is_sharing_ports


def test_files_name_the_way_of_sharing_only_where_it_is_given():
    cluster = Cluster(port_sharing="exclusive")
    assert parse_cluster(format_cluster(cluster, {}), "x").cluster == cluster
    assert "port_sharing" not in format_cluster(Cluster(), {})
    for given_text, told in (('"half"', "expected one of fair, exclusive, got 'half'"),
                             ("3", "port_sharing: expected a text, got 3")):  # fmt: skip
        with pytest.raises(ClusterError, match=told):
            parse_cluster(format_cluster(Cluster(), {}) + f"port_sharing = {given_text}\n", "x")


def test_streams_of_nodes_and_of_the_network_are_parts_of_their_own(lab_plan):
    plan = lab_plan(Cluster(2, 2, **FAIR))
    stream, ports = streams_of(plan.transfers, plan.cluster)
    ends = np.stack([plan.transfers.source, plan.transfers.target])
    is_inter = ends[0] // 2 != ends[1] // 2
    assert (ports.part[stream] == np.where(is_inter, 2, ends[0] // 2)).all()
    assert (ports.ports[:, stream] == np.where(is_inter, 4 + ends, ends)).all()
    assert PlanModel.of(plan).directions["forward"].messages.streams.num_ports == ports.num_ports
