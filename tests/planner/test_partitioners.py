"""Static layouts block by block, and the default: the simulator's choice among candidates."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
from dense_blocks import causal_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dcp_dsl import block_sparsity
from dcp_planner import (
    Cluster,
    ModelShape,
    PlanConfig,
    build_plan,
    digest,
    measure,
    predict,
    preset,
    validate,
)
from dcp_planner.baselines import STATIC_KINDS, chunk_of_blocks, team_sizes, teams_of
from dcp_planner.model.config import MOST_TOLERANCE, tolerances_of
from dcp_planner.model.problem import Placement, build_workload, caps_of, loads_of
from dcp_planner.search import partitioners
from dcp_planner.search.partitioners import fastest, place
from dcp_planner.simulation.schedules import predict_placement


def owners(sparsity, devices, partitioner):
    workload = build_workload(sparsity, ModelShape())
    config = PlanConfig(partitioner=partitioner)
    return workload, place(workload, Cluster(1, devices), config)


@pytest.mark.parametrize(
    ("partitioner", "expected"),
    [
        ("static:contiguous", [0, 0, 1, 1, 2, 2, 3, 3]),
        ("static:zigzag", [0, 1, 2, 3, 3, 2, 1, 0]),
        ("static:ring", [0, 1, 2, 3, 3, 2, 1, 0]),
        ("static:documents", [0, 0, 0, 0, 0, 0, 0, 0]),
        ("static:grid", [0, 1, 2, 3, 0, 1, 2, 3]),
    ],
)
def test_eight_equal_blocks_lie_like_this(masks, partitioner, expected):
    _, found = owners(masks.pack([masks.causal(32)], 4), 4, partitioner)
    assert found.device_of_data.tolist() == expected


def test_a_tile_is_computed_by_the_owner_of_its_queries(masks):
    for partitioner in ("static:contiguous", "static:zigzag"):
        workload, found = owners(masks.pack([masks.causal(40)], 4), 3, partitioner)
        owner = found.device_of_data
        assert found.device_of_compute.tolist() == owner[workload.compute_q].tolist()


@given(st.data())
def test_every_chunk_border_is_the_nearest_block_border(strategies, data):
    workload = build_workload(data.draw(strategies.sparsities()), ModelShape())
    chunks = data.draw(st.integers(1, 12))
    chunk = chunk_of_blocks(workload, chunks)
    assert (np.diff(chunk) >= 0).all()
    bounds = [*workload.block_start.tolist(), int(workload.block_end[-1])]
    for number in range(1, chunks):
        ideal = number * bounds[-1] / chunks
        border = bounds[int((chunk < number).sum())]  # where the chunks below `number` end
        assert abs(border - ideal) == min(abs(b - ideal) for b in bounds)


def test_a_ring_cuts_every_sequence_and_documents_none(masks):
    sparsity = masks.pack([masks.causal(16), masks.causal(16)], 4)
    _, ring = owners(sparsity, 2, "static:ring")
    assert ring.device_of_data.tolist() == [0, 1, 1, 0, 0, 1, 1, 0]
    _, documents = owners(sparsity, 2, "static:documents")
    assert documents.device_of_data.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_grid_keeps_rows_in_a_node_and_keys_on_a_device(masks):
    workload = build_workload(masks.pack([masks.causal(64)], 4), ModelShape())
    found = place(workload, Cluster(2, 4), PlanConfig(partitioner="static:grid"))
    node = found.device_of_compute // 4
    assert np.array_equal(node, found.device_of_data[workload.compute_q] // 4)
    assert np.array_equal(found.device_of_compute % 4, workload.compute_kv % 4)
    assert sorted(set(found.device_of_data.tolist())) == list(range(8))


TWO_RAILS = Cluster(4, 4, rails=2, spine_bytes_per_s=3e9, inter_bytes_per_s=5e9)


@pytest.mark.parametrize(
    "cluster",
    [
        TWO_RAILS, replace(TWO_RAILS, devices_per_nic=2), replace(TWO_RAILS, rails=3),
        replace(TWO_RAILS, rails=4, nodes_per_leaf=2), Cluster(4, 4, nodes_per_leaf=2),
        Cluster(4, 2, nodes_per_leaf=4, devices_per_nic=2, copy_bytes_per_s=1e12),
        Cluster(6, 2, nodes_per_leaf=3, backward_flops_per_s=1e11, spine_bytes_per_s=1e9),
    ],
)  # fmt: skip
def test_a_team_has_the_rates_and_the_ways_of_its_devices_together(cluster):
    for size in team_sizes(cluster):
        teams = teams_of(cluster, size)
        assert teams.num_devices == cluster.num_devices // size
        for name in ("flops_per_s", "backward_flops_per_s", "copy_bytes_per_s"):
            rate = getattr(cluster, name)
            assert getattr(teams, name) == (None if rate is None else rate * size)
        ports = [min(c.devices_per_nic, c.devices_per_node) for c in (cluster, teams)]
        for alone, together in zip(cluster.links[1:], teams.links[1:], strict=True):
            assert together.bytes_per_s / ports[1] == size * alone.bytes_per_s / ports[0]
        assert teams.links[0].bytes_per_s == size * cluster.links[0].bytes_per_s
        members = np.arange(cluster.num_devices).reshape(-1, size)
        for a, first in enumerate(members):
            for b, second in enumerate(members):
                (way,) = teams.link_class(np.array([a]), np.array([b]))
                ways = set(cluster.link_class(first, second).tolist())
                # Where teams lie across leaves, some of their devices' messages cross the spine.
                assert way in ways or teams.nodes_per_leaf == 1


WHOLE = [f"static:{kind}" for kind in STATIC_KINDS]  # layouts that do not split heads


def seconds_of(sparsity, cluster, config):
    return predict(build_plan(sparsity, ModelShape(), cluster, config)).seconds


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_it_is_never_slower_than_a_static_layout_that_holds_the_caps(strategies, data):
    sparsity, cluster = data.draw(strategies.sparsities()), data.draw(strategies.clusters())
    workload = build_workload(sparsity, ModelShape())
    caps = caps_of(workload, cluster.num_devices, PlanConfig())
    like = PlanConfig(budget="fast", partials="input")  # float32 may cost each plan 3 % of its own
    chosen = seconds_of(sparsity, cluster, like)
    for name in WHOLE:
        found = place(workload, cluster, PlanConfig(partitioner=name))
        tokens = loads_of(found.device_of_data, workload.block_tokens, cluster.num_devices)
        pairs = loads_of(found.device_of_compute, workload.compute_pairs, cluster.num_devices)
        if tokens.max(initial=0) <= caps.tokens and pairs.max(initial=0) <= caps.pairs:
            assert chosen <= seconds_of(sparsity, cluster, replace(like, partitioner=name))


def test_the_fastest_is_found_behind_one_that_computes_for_too_long(packed):
    workload, cluster = build_workload(packed, ModelShape()), Cluster(1, 4, flops_per_s=1e9)
    config = PlanConfig(compute_tolerance=9.0, token_tolerance=9.0)
    kinds = ("contiguous", "zigzag")
    slow, fast = (place(workload, cluster, PlanConfig(f"static:{kind}")) for kind in kinds)
    lone = replace(slow, device_of_compute=np.zeros_like(slow.device_of_compute))
    assert fastest([slow, lone, fast], workload, cluster, config) is fast
    assert fastest([fast, lone, slow], workload, cluster, config) is fast


def test_teams_of_several_nodes_are_tried_beside_those_inside_one(packed, monkeypatch):
    seen = []
    monkeypatch.setattr(partitioners, "fastest", lambda found, *_: seen.append(found) or found[0])
    config = PlanConfig("native", head_groups=4, budget="fast")
    place(build_workload(packed, ModelShape(8, 4)), Cluster(2, 2), config)
    ((inside, wider),) = seen
    devices = [len(np.unique(one.device_of_compute[: len(one.device_of_compute) // 4]))
               for one in (inside, wider)]  # fmt: skip
    assert devices == [2, 1]


@pytest.fixture
def packed(masks):
    batch = [masks.causal(160), masks.causal(70), masks.sliding_window(90, 20)]
    return masks.pack(batch, 8)


def test_it_is_the_default_and_its_plans_hold(packed):
    plan = build_plan(packed, ModelShape(), Cluster(2, 2))
    validate(plan)
    assert plan.partitioner == "portfolio"


def test_tokens_within_the_tolerance_come_before_time_where_packing_misses_it(masks):
    # Largest first, whole blocks of 3, 3, 2, 2, 2 tokens come to 7 and 5 on two devices.
    workload = build_workload(
        masks.pack([masks.causal(n) for n in (3, 3, 2, 2, 2)], 3), ModelShape()
    )
    cluster, config = Cluster(1, 2), PlanConfig()
    assert caps_of(workload, 2, config).tokens == 7
    uneven, even = (np.array(owner, np.int32) for owner in ([0, 1, 0, 1, 0], [0, 0, 1, 1, 1]))
    quick = Placement(uneven, uneven[workload.block_sequence[workload.compute_q]])
    level = replace(quick, device_of_data=even)
    seconds = [predict_placement(workload, one, cluster, config).seconds for one in (quick, level)]
    assert seconds[0] < seconds[1]
    assert fastest([quick, level], workload, cluster, config) is level
    assert fastest([quick], workload, cluster, config) is quick


def test_a_huge_batch_takes_the_quick_search_alone(packed, monkeypatch):
    searched = PlanConfig("native", budget="fast")
    quick = digest(build_plan(packed, ModelShape(), Cluster(2, 2), searched))
    monkeypatch.setattr(partitioners, "MOST_JUDGED", 1)
    monkeypatch.setattr(partitioners, "fastest", lambda *_: pytest.fail("candidates were judged"))
    plan = build_plan(packed, ModelShape(), Cluster(2, 2))
    assert digest(replace(plan, partitioner="native")) == quick


def test_a_layout_above_the_token_cap_is_not_taken(masks):
    # Two long documents and dust: whole documents would be level in compute, not in tokens.
    sparsity = masks.pack([masks.causal(64), masks.causal(64), *[masks.causal(4)] * 40], 4)
    workload = build_workload(sparsity, ModelShape())
    found = place(workload, Cluster(1, 4), PlanConfig())
    tokens = loads_of(found.device_of_data, workload.block_tokens, 4)
    assert tokens.max() <= caps_of(workload, 4, PlanConfig()).tokens


def test_a_layout_above_the_compute_cap_is_taken_only_if_the_tolerance_allows_it(masks):
    # One document in two blocks: contiguous placement sends little and computes 1 to 3.
    sparsity, cluster = masks.pack([masks.causal(64)], 4), Cluster(1, 2)
    level = build_plan(sparsity, ModelShape(), cluster, PlanConfig(partials="input"))
    assert measure(level).compute_imbalance <= 1.1
    asked = PlanConfig(compute_tolerance=1.0, partials="input")
    assert seconds_of(sparsity, cluster, asked) <= predict(level).seconds


def test_tolerances_are_tried_around_the_one_given_and_none_beyond_the_most():
    plain = PlanConfig(token_tolerance=0.25)
    assert tolerances_of(plain) == [plain]
    for given_, tried in ((0.25, [0.125, 0.25, 0.5]), (MOST_TOLERANCE, [5e5, 1e6, 1e6])):
        configs = tolerances_of(PlanConfig(token_tolerance=given_, token_seconds=1e-9))
        assert [config.token_tolerance for config in configs] == tried


def test_a_price_of_tokens_leaves_other_objectives_alone(packed):
    for objective in ("bytes", "balance", "memory"):
        free = PlanConfig(budget="fast", objective=objective, partials="input")
        priced = replace(free, token_seconds=1e-3)
        plans = [build_plan(packed, ModelShape(), Cluster(2, 2), c) for c in (free, priced)]
        assert digest(plans[0]) == digest(plans[1])


def test_no_workload_outlives_its_plan(packed, monkeypatch):
    seen = []

    def build(*arguments):
        workload = build_workload(*arguments)
        seen.append(weakref.ref(workload.block_tokens))
        return workload

    monkeypatch.setattr("dcp_planner.plan.assembly.build_workload", build)
    build_plan(packed, ModelShape(), Cluster(2, 2), PlanConfig(budget="fast"))
    gc.collect()
    assert [tokens() for tokens in seen] == [None]


def test_a_batch_of_many_documents_is_dealt_out_without_a_search(monkeypatch):
    """Documents far outnumber devices: nothing travels, and a search would gain nothing."""
    lengths = np.random.default_rng(3).integers(8, 90, 240).tolist()
    sparsity = block_sparsity([*map(causal_of, lengths)], 16, 16)
    cluster, shape = preset("h100-dgx", 2, 4), ModelShape(8, 2, 128)
    searched = build_plan(sparsity, shape, cluster, PlanConfig("native", budget="fast"))
    with monkeypatch.context() as patch:
        patch.setattr(partitioners, "ladder", None)  # not called
        plan = build_plan(sparsity, shape, cluster)
    assert len(plan.transfers) == 0
    assert measure(plan).warnings == ()
    assert predict(plan).seconds <= partitioners.SETTLED * predict(searched).seconds
    # Too few documents, or one that is too long, and the search is asked.
    for others in (lengths[:12], [*lengths, 3_000]):
        workload = build_workload(block_sparsity([*map(causal_of, others)], 16, 16), shape)
        assert partitioners.place_apart(workload, cluster, PlanConfig()) is None
