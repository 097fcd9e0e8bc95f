"""Ways between nodes and orders of messages, on programs by hand and on plans."""

import itertools
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from dcp_planner import (
    Cluster,
    ModelShape,
    PlanConfig,
    PlanError,
    TransferKind,
    build_plan,
    predict,
    simulate,
    validate,
)
from dcp_planner.causes.alternatives import PlanInputs
from dcp_planner.model.problem import Placement, build_workload
from dcp_planner.schedule import emission
from dcp_planner.schedule.divisions import Manner, Schedule
from dcp_planner.schedule.emission import assemble
from dcp_planner.schedule.routing import Crossings, Stays, find_needs
from dcp_planner.tables.plan import columns_of


def test_gateways_share_the_bytes_of_queries_and_keys(masks):
    """Two devices of a node both need one query block and the keys of two blocks from afar.

    With 8 query heads to 1 key head, a query block weighs more than two key blocks, so one gateway
    takes the queries and the other takes both key blocks.
    """
    workload = build_workload(masks.pack([np.ones((16, 16), bool)], 4), ModelShape(8, 1, 16, 2))
    q, kv = workload.compute_q, workload.compute_kv
    # Devices 0 and 1 are node 0, devices 2 and 3 node 1, which owns blocks 2 and 3.
    device = np.zeros(len(q), np.int64)
    for row, column, at in ((0, 2, 2), (0, 3, 3), (2, 0, 2), (2, 1, 3), (3, 0, 3), (3, 1, 2)):
        device[(q == row) & (kv == column)] = at
    placement = Placement(np.array([0, 1, 2, 3]), device)
    needs = find_needs(workload, placement, Cluster(2, 2), "node")
    gateways = []
    for is_keys, block in ((False, 0), (True, 0), (True, 1)):
        chosen = (needs.is_keys == is_keys) & (needs.block == block) & (needs.height > 0)
        assert chosen.sum() == 1
        gateways.append(int(needs.device[chosen][0]))
    assert gateways[1] == gateways[2] != gateways[0]


def striped_plan(masks, is_striped=(True, True)):
    """Device 0 owns four blocks, device 1 none that it needs; device 2 computes with all of them.

    Half of the keys, and of the queries that device 2 computes with, leave by the port of device 1.
    """
    dense = np.tril(np.ones((24, 24), bool))
    workload = build_workload(masks.pack([dense], 4), ModelShape(4, 2, 8, 4))
    owner = np.array([0, 0, 0, 0, 1, 2])
    q, kv = workload.compute_q, workload.compute_kv
    device = np.where((q == 5) | ((q < 4) & (kv == 0) & (q > 0)), 2, owner[q])
    device[(q == 4) & (kv < 4)] = 0
    division = (owner[q] != device) | (owner[kv] != device)
    cluster = Cluster(nodes=2, devices_per_node=2, devices=((1.0, 1.0), (1.0,)))
    manners = tuple(Manner("node", is_striped=choice) for choice in is_striped)
    schedule = Schedule(*2 * (division.astype(np.int32),), manners)
    return assemble(workload, cluster, Placement(owner, device), schedule, "striped")


def relayed(plan):
    """Rows of the inputs that device 1 gets though no tile of it reads them."""
    table, tiles = plan.transfers, plan.tiles
    read = np.concatenate([x[tiles.device == 1] for x in (tiles.q_block, tiles.kv_block)])
    is_input = table.kind < TransferKind.OUT
    return np.flatnonzero(is_input & (table.target == 1) & ~np.isin(table.block, read))


def test_striped_blocks_leave_by_the_port_of_a_device_that_does_not_need_them(masks):
    plan = striped_plan(masks)
    validate(plan)
    table, x = plan.transfers, relayed(plan)
    assert set(table.kind[x]) == {TransferKind.Q, TransferKind.KV}
    for is_backward in (False, True):
        crosses = (table.is_backward == is_backward) & (table.source < 2) & (table.target == 2)
        sent = np.bincount(table.source[crosses], table.size_bytes[crosses], 2)
        assert sent.max() <= 1.3 * sent.mean()


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((100,) * 6, [1, 0, 2, 1, 2, 0]), (range(10, 70, 10), [0, 1, 0, 0, 1, 2])],
)
def test_ports_of_devices_that_compute_with_a_block_are_preferred(sizes, expected):
    """Device 0 owns six blocks that device 3 needs, and either device 1 or device 2 beside it."""
    cluster = Cluster(2, 3, devices=((1.0,) * 3, (1.0,)))
    device = np.array([1, 3, 1, 3, 2, 3, 1, 3, 2, 3, 2, 3])
    crossings = Crossings.of(np.repeat(np.arange(6), 2), device, np.zeros(12, int), cluster)
    size = np.array([sizes, sizes])
    target = crossings.elect(size.sum(axis=0), cluster)
    assert target.tolist() == [3] * 6
    assert crossings.stripe(size, target, cluster)[0].tolist() == expected


def test_a_relay_that_loses_results_or_serves_nobody_is_refused(masks):
    plan = striped_plan(masks)
    table, first = plan.transfers, relayed(plan)
    results = np.flatnonzero((table.kind >= TransferKind.OUT) & (table.source == 1))
    at = results[np.isin(table.block[results], table.block[first])]
    for x in at:
        columns = {name: np.delete(column, x) for name, column in columns_of(table).items()}
        with pytest.raises(PlanError, match="every remote input and result has a transfer"):
            validate(replace(plan, transfers=replace(table, **columns)))
    x = int(first[table.kind[first] == TransferKind.KV][0])
    behind = (table.source == 1) & (table.block == table.block[x]) & (table.kind == table.kind[x])
    columns = columns_of(table) | {"source": np.where(behind, 0, table.source).astype(np.int32)}
    with pytest.raises(PlanError, match="every transfer is needed by a tile"):
        validate(replace(plan, transfers=replace(table, **columns)))


def test_a_relay_that_has_nothing_to_send_home_is_refused(masks, monkeypatch):
    """Results go straight to the owner; devices that only pass inputs on send what nobody added."""
    owner, rows_of = striped_plan(masks).blocks.owner, emission._rows_of

    def straight(*arguments):
        inputs, rows = rows_of(*arguments)
        return inputs, rows._replace(
            target=owner[rows.block], hop=0 * rows.hop, freed=rows.freed + 99
        )

    monkeypatch.setattr(emission, "_rows_of", straight)
    with pytest.raises(PlanError, match="a result takes sums home: no tile and no partial adds"):
        validate(striped_plan(masks))


@pytest.mark.parametrize("is_striped", [(True, True), (True, False), (False, True)])
def test_a_plan_that_is_launched_early_keeps_the_ways_of_each_direction(masks, is_striped):
    plan = striped_plan(masks, is_striped)
    early = PlanInputs.of(plan).launched_early()
    ways = [
        set(zip(t.is_backward, t.kind, t.block, t.source, t.target, strict=True))
        for t in (plan.transfers, early.transfers)
    ]
    assert ways[0] == ways[1]
    relays = plan.transfers.is_backward[relayed(plan)]
    assert set(relays) == {
        way for way, choice in zip((False, True), is_striped, strict=True) if choice
    }


def test_a_block_that_leaves_when_idle_is_fetched_for_each_later_visit():
    group = np.array([0, 0, 0, 0, 0, 3, 3])
    division = np.array([0, 11, 5, 1, 10, 7, 9])
    visits = Stays(division.astype(np.int32), 1).visits(group, division)
    assert visits.tolist() == [0, 2, 1, 0, 2, 0, 0]
    assert Stays(division.astype(np.int32), 0).visits(group, division)[-1] == 1


ONE_HEAD = ModelShape(1, 1, 16, 4)
CLUSTER = Cluster(2, 2, 1e6, inter_bytes_per_s=1e6, latency_s=0.0, flops_per_s=1e15)


@pytest.fixture(scope="module")
def plan(masks):
    sparsity = masks.pack([masks.causal(512)], 32)
    return build_plan(
        sparsity, ONE_HEAD, CLUSTER, PlanConfig(partitioner="static:zigzag", divisions=4)
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
    plan = build_plan(
        sparsity, ONE_HEAD, slow, PlanConfig(partitioner="static:zigzag", divisions=4)
    )
    taken = replace(plan, cluster=replace(slow, comm_sms=2))
    free = replace(plan, cluster=replace(slow, comm_sms=0))
    assert predict(free).seconds < predict(taken).seconds < 2 * predict(free).seconds + 1
    third, most = (replace(plan, cluster=replace(slow, comm_sms=count)) for count in (1, 3))
    own = [simulate(p) for p in (free, taken, third, most)]
    first = [t.end_ns[(t.kind == 0) & (t.division == 0)].min() for t in own]
    assert first[1] == pytest.approx(2 * first[0], rel=0.01)  # its inputs are on the way
    assert first[2] == -(-4 * int(first[0]) // 3)
    assert first[3] == 4 * first[0]
