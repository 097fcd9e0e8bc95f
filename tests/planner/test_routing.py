"""Ways between nodes: gateways of blocks that several devices need, and striped crossings."""

from dataclasses import replace

import numpy as np
import pytest

from dcp_planner import Cluster, ModelShape, PlanError, TransferKind, validate
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
