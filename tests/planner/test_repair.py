import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dcp_planner import Cluster, ModelShape, PlanConfig
from dcp_planner.model.packing import cap_of, pack_largest_first
from dcp_planner.model.placement import Placement
from dcp_planner.model.workload import DIRECTIONS, build_hypergraph, build_workload
from dcp_planner.search.repair import (
    PlacementState,
    choose_owners,
    find_shortfalls,
    price_between_nodes,
    repair,
)


def loads(part, sizes, parts):
    return [int(sum(s for s, p in zip(sizes, part, strict=True) if p == d)) for d in range(parts)]


@given(st.data())
def test_any_placement_is_brought_under_the_caps(strategies, data):
    workload = build_workload(data.draw(strategies.sparsities()), ModelShape())
    cluster = data.draw(strategies.clusters())
    parts = cluster.num_devices
    found = data.draw(strategies.placements(workload.num_blocks, workload.num_tiles, parts))
    tolerance = data.draw(st.sampled_from([0.0, 0.1, 0.5]))
    config = PlanConfig(compute_tolerance=tolerance, token_tolerance=tolerance)
    fixed = repair(found, workload, cluster, config)

    tokens = loads(fixed.device_of_data, workload.block_tokens, parts)
    packed = loads(pack_largest_first(workload.block_tokens, parts), workload.block_tokens, parts)
    assert max(tokens) <= max((1 + tolerance) * sum(tokens) / parts, max(packed))
    pairs = workload.compute_pairs.tolist()
    work = loads(fixed.device_of_compute, pairs, parts)
    mean = sum(pairs) / parts
    assert max(work) <= max((1 + tolerance) * mean, mean + max(pairs, default=0))
    if max(pairs, default=0) <= tolerance * mean:
        assert max(work) <= (1 + tolerance) * mean


@given(st.data())
def test_whatever_misses_a_tolerance_is_said(strategies, data):
    workload = build_workload(data.draw(strategies.sparsities()), ModelShape())
    cluster = data.draw(strategies.clusters())
    found = data.draw(
        strategies.placements(workload.num_blocks, workload.num_tiles, cluster.num_devices)
    )
    said = [w.code for w in find_shortfalls(found, workload, cluster, PlanConfig())]
    expected = []
    for what, part, sizes in (
        ("compute", found.device_of_compute, workload.compute_pairs),
        ("tokens", found.device_of_data, workload.block_tokens),
    ):
        each = loads(part, sizes, cluster.num_devices)
        if max(each) > 1.1 * sum(each) / len(each):
            expected.append(f"{what}_above_tolerance")
    assert said == expected


@given(st.data())
def test_a_move_costs_what_the_recount_says(strategies, data):
    workload = build_workload(data.draw(strategies.sparsities()), ModelShape())
    cluster = data.draw(strategies.clusters())
    found = data.draw(
        strategies.placements(workload.num_blocks, workload.num_tiles, cluster.num_devices)
    )
    state = PlacementState(workload, cluster, found)
    tiles = np.arange(workload.num_tiles)
    told = state._cost_of_moves(tiles)
    for tile in tiles[:6].tolist():
        for target in range(cluster.num_devices):
            if target == found.device_of_compute[tile]:
                continue
            device = found.device_of_compute.copy()
            device[tile] = target
            after = PlacementState(workload, cluster, Placement(found.device_of_data, device))
            assert told[tile, target] == after.cost() - state.cost()


@given(st.data())
def test_the_cost_is_both_directions_bytes_with_a_price_between_nodes(masks, strategies, data):
    workload = build_workload(data.draw(strategies.sparsities()), ModelShape())
    flat = Cluster(1, 4)
    found = data.draw(strategies.placements(workload.num_blocks, workload.num_tiles, 4))
    part = np.concatenate([found.device_of_compute, found.device_of_data])
    total = sum(masks.cost(build_hypergraph(workload, d), part) for d in DIRECTIONS)
    assert PlacementState(workload, flat, found).cost() == total
    apart = Cluster(4, 1)
    assert PlacementState(workload, apart, found).cost() == total * price_between_nodes(apart)


def test_nothing_is_dearer_between_nodes_if_both_links_are_equal():
    assert price_between_nodes(Cluster(intra_bytes_per_s=1e9, inter_bytes_per_s=1e9)) == 1
    assert price_between_nodes(Cluster(intra_bytes_per_s=1e9, inter_bytes_per_s=5e8)) == 2


@given(st.data())
def test_owners_are_best_whenever_the_cap_does_not_bind(data):
    blocks, parts = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 4))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    cost = rng.integers(0, 50, (blocks, parts)).astype(float)
    tokens = rng.integers(1, 9, blocks)
    owner = choose_owners(cost, tokens, int(tokens.sum()), np.zeros(blocks, np.int32))
    assert cost[np.arange(blocks), owner].sum() == cost.min(axis=1).sum()


@given(st.data())
def test_owners_keep_the_cap_and_stay_near_the_best_assignment(data):
    blocks, parts = data.draw(st.integers(1, 6)), data.draw(st.integers(2, 3))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    cost = rng.integers(0, 50, (blocks, parts)).astype(float)
    tokens = np.full(blocks, 4)
    cap = cap_of(tokens, parts, 0.1)
    owner = choose_owners(cost, tokens, cap, np.zeros(blocks, np.int32))
    assert max(loads(owner, tokens, parts)) <= cap
    best = min(
        cost[np.arange(blocks), list(choice)].sum()
        for choice in itertools.product(range(parts), repeat=blocks)
        if max(loads(choice, tokens, parts)) <= cap
    )
    worst_regret = (cost.max() - cost.min()) * blocks
    assert best <= cost[np.arange(blocks), owner].sum() <= best + worst_regret / 2


def test_largest_first_packing_meets_its_bound_on_tiny_cases():
    rng = np.random.default_rng(1)
    for _ in range(50):
        sizes = rng.integers(1, 20, 7)
        best = min(max(loads(choice, sizes, 3)) for choice in itertools.product(range(3), repeat=7))
        found = max(loads(pack_largest_first(sizes, 3), sizes, 3))
        assert best <= found <= 4 / 3 * best


def test_who_loses_most_by_the_second_choice_chooses_first():
    cost = np.array([[0.0, 1.0], [0.0, 10.0]])
    owner = choose_owners(cost, np.array([4, 4]), 4, np.zeros(2, np.int32))
    assert owner.tolist() == [1, 0]
