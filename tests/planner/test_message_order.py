"""Orders of messages, on programs written by hand and on plans."""

import itertools
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan, predict, simulate

SHAPE = ModelShape(1, 1, 16, 4)
CLUSTER = Cluster(2, 2, 1e6, inter_bytes_per_s=1e6, latency_s=0.0, flops_per_s=1e15)


@pytest.fixture(scope="module")
def plan(masks):
    sparsity = masks.pack([masks.causal(512)], 32)
    return build_plan(
        sparsity, SHAPE, CLUSTER, PlanConfig(partitioner="static:zigzag", divisions=4)
    )


def played(plan, order):
    cluster = replace(plan.cluster, message_order=order, port_sharing="exclusive")
    trace = simulate(replace(plan, cluster=cluster))
    rows = {}
    for kind, name in ((3, "send"), (4, "receive")):
        for e in np.flatnonzero(trace.kind == kind):
            rows[name, int(trace.transfer[e])] = (int(trace.start_ns[e]), int(trace.end_ns[e]))
    return rows


def group_of(plan, x):
    table = plan.transfers
    return bool(table.is_backward[x]), table.kind[x] >= 2, int(table.division[x]), int(table.hop[x])


def test_a_group_begins_when_the_one_before_it_is_done_at_both_ends(plan):
    rows = played(plan, "grouped")
    table = plan.transfers
    for device in range(4):
        groups, channels = defaultdict(list), defaultdict(list)
        for x in range(len(table)):
            if device in (table.source[x], table.target[x]):
                end = rows["send" if table.source[x] == device else "receive", x][1]
                groups[group_of(plan, x)].append((rows["send", x][0], end))
        for key, spans in groups.items():
            begins, ends = zip(*spans, strict=True)
            channels[key[:2]].append((min(begins), max(ends)))
        assert any(len(spans) > 1 for spans in channels.values())
        for spans in channels.values():
            assert all(a[1] <= b[0] for a, b in itertools.pairwise(sorted(spans)))


def test_without_groups_messages_overtake_them(plan):
    """The same check fails where nothing holds messages back: it can tell the two apart."""
    rows = played(plan, "any")
    table = plan.transfers
    overtakes = 0
    for x in range(len(table)):
        for y in range(len(table)):
            same = group_of(plan, x)[:2] == group_of(plan, y)[:2]
            meets = {table.source[x], table.target[x]} & {table.source[y], table.target[y]}
            if same and meets and group_of(plan, x) < group_of(plan, y):
                overtakes += rows["send", y][0] < rows["send", x][1]
    assert overtakes > 0


def test_fifo_sends_one_by_one_and_waits_for_no_receiver(plan):
    rows = played(plan, "fifo")
    table = plan.transfers
    for device in range(4):
        sent = sorted(rows["send", x] for x in range(len(table)) if table.source[x] == device)
        assert all(b[0] >= a[1] for a, b in itertools.pairwise(sent))
    # Two devices may send to a third at once, which a port of the receiver would forbid.
    overlaps = sum(
        rows["receive", x][0] < rows["receive", y][0] < rows["receive", x][1]
        for x in range(len(table)) for y in range(len(table))
        if table.target[x] == table.target[y] and x != y
    )  # fmt: skip
    assert overlaps > 0


def test_messages_take_multiprocessors_from_attention(masks):
    slow = replace(CLUSTER, flops_per_s=1e8, sms=4)
    sparsity = masks.pack([masks.causal(512)], 32)
    plan = build_plan(sparsity, SHAPE, slow, PlanConfig(partitioner="static:zigzag", divisions=4))
    taken = replace(plan, cluster=replace(slow, comm_sms=2))
    free = replace(plan, cluster=replace(slow, comm_sms=0))
    assert predict(free).seconds < predict(taken).seconds < 2 * predict(free).seconds + 1
    third, most = (replace(plan, cluster=replace(slow, comm_sms=count)) for count in (1, 3))
    own = [simulate(p) for p in (free, taken, third, most)]
    first = [t.end_ns[(t.kind == 0) & (t.division == 0)].min() for t in own]
    assert first[1] == pytest.approx(2 * first[0], rel=0.01)  # its inputs are on the way
    assert first[2] == -(-4 * int(first[0]) // 3)
    assert first[3] == 4 * first[0]
