import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp_planner import Cluster, ModelShape, PlanConfig
from dcp_planner.model.cost_model import price_between_nodes
from dcp_planner.model.problem import Placement, build_workload, cap_of, pack_largest_first
from dcp_planner.search.caps import exchange_owners, find_shortfalls
from dcp_planner.search.native import hold, hold_tokens
from dcp_planner.search.state import Problem, Split, bytes_of, problem_of, state_of_split


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
    fixed = hold(found, workload, cluster, config)

    tokens = loads(fixed.device_of_data, workload.block_tokens, parts)
    packed = loads(pack_largest_first(workload.block_tokens, parts), workload.block_tokens, parts)
    assert max(tokens) <= max((1 + tolerance) * sum(tokens) / parts, max(packed))
    pairs = workload.compute_pairs.tolist()
    work = loads(fixed.device_of_compute, pairs, parts)
    mean = sum(pairs) / parts
    assert max(work) <= max((1 + tolerance) * mean, mean + max(pairs, default=0))
    if max(pairs, default=0) <= tolerance * mean:
        assert max(work) <= (1 + tolerance) * mean


def test_owners_of_head_groups_are_brought_under_the_token_cap(masks):
    workload = build_workload(masks.pack([masks.causal(64)], 8), ModelShape(4, 2))
    owner = np.array([0, 0, 0, 0, 0, 0, 0, 1], np.int32)
    found = Placement(owner, np.zeros(2 * workload.num_tiles, np.int32), head_groups=2)
    config = PlanConfig(token_tolerance=0.0)
    held = hold_tokens(found, workload, Cluster(1, 2), config)
    assert loads(held.device_of_data, workload.block_tokens, 2) == [32, 32]
    assert hold_tokens(held, workload, Cluster(1, 2), config) is held


@pytest.mark.parametrize("tolerance", [None, 0.1])
@given(st.data())
def test_whatever_misses_a_tolerance_is_said(strategies, tolerance, data):
    workload = build_workload(data.draw(strategies.sparsities()), ModelShape())
    cluster = data.draw(strategies.clusters())
    found = data.draw(
        strategies.placements(workload.num_blocks, workload.num_tiles, cluster.num_devices)
    )
    config = PlanConfig(compute_tolerance=tolerance)
    said = [w.code for w in find_shortfalls(found, workload, cluster, config)]
    expected = []
    for what, part, sizes in (
        ("compute", found.device_of_compute, workload.compute_pairs),
        ("tokens", found.device_of_data, workload.block_tokens),
    ):
        each = loads(part, sizes, cluster.num_devices)
        is_bounded = what == "tokens" or tolerance is not None
        if is_bounded and max(each) > 1.1 * sum(each) / len(each):
            expected.append(f"{what}_above_tolerance")
    assert said == expected


def test_nothing_is_dearer_between_nodes_if_both_links_are_equal():
    assert price_between_nodes(Cluster(intra_bytes_per_s=1e9, inter_bytes_per_s=1e9)) == 1
    assert price_between_nodes(Cluster(intra_bytes_per_s=1e9, inter_bytes_per_s=5e8)) == 2


@given(st.data())
def test_copies_of_a_block_get_one_owner_under_the_cap_near_the_best(strategies, data):
    workload = build_workload(data.draw(strategies.sparsities()), ModelShape())
    blocks, tiles, copies = workload.num_blocks, workload.num_tiles, data.draw(st.integers(1, 3))
    found = data.draw(strategies.placements(blocks, tiles * copies, 3))
    problem = problem_of(workload)
    whole = Problem(
        tile_q=np.concatenate([problem.tile_q + c * blocks for c in range(copies)]),
        tile_kv=np.concatenate([problem.tile_kv + c * blocks for c in range(copies)]),
        work=np.tile(problem.work, copies),
        sequence=np.concatenate([problem.sequence + 99 * c for c in range(copies)]),
        tokens=np.tile(problem.tokens, copies),
        is_owned=np.tile(problem.is_owned, copies),
        weight=np.tile(problem.weight, copies),
    )
    split = Split(found.device_of_compute, np.tile(found.device_of_data, copies))
    limits, ones = np.full((2, 3), 1e18), np.ones(2)
    state = state_of_split(whole, split, limits, ones, np.zeros(3, np.int64), 0.0, 0)
    cap = cap_of(workload.block_tokens, 3, 0.1)
    owner = exchange_owners(state, copies, cap)

    def cost(owner):
        again = Split(split.part, np.tile(np.array(owner, np.int32), copies))
        return bytes_of(state_of_split(whole, again, limits, ones, np.zeros(3, np.int64), 0.0, 0))

    assert max(loads(owner, workload.block_tokens, 3)) <= cap
    if max(loads(found.device_of_data, workload.block_tokens, 3)) <= cap:
        assert np.array_equal(owner, found.device_of_data)
    elif blocks <= 4:
        fitting = [
            choice
            for choice in itertools.product(range(3), repeat=blocks)
            if max(loads(choice, workload.block_tokens, 3)) <= cap
        ]
        dearest = max(map(cost, fitting))
        assert min(map(cost, fitting)) <= cost(owner) <= dearest


def test_largest_first_packing_meets_its_bound_on_tiny_cases():
    rng = np.random.default_rng(1)
    for _ in range(12):
        sizes = rng.integers(1, 20, 7)
        best = min(max(loads(choice, sizes, 3)) for choice in itertools.product(range(3), repeat=7))
        found = max(loads(pack_largest_first(sizes, 3), sizes, 3))
        assert best <= found <= 4 / 3 * best
