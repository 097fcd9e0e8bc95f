"""The native search against brute force and sets, and its promises: costs, loads, caps."""

import itertools
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dcp_planner import Cluster, ModelShape, PlanConfig
from dcp_planner.model.problem import (
    Caps,
    Placement,
    build_workload,
    cap_of,
    loads_of,
    loads_on,
    pack_largest_first,
)
from dcp_planner.search.bottleneck import load_state_of, relieve
from dcp_planner.search.caps import exchange_owners, find_shortfalls, prices_of
from dcp_planner.search.load_state import LOADS, root
from dcp_planner.search.native import EFFORTS, Search, device_tree, hold, hold_tokens
from dcp_planner.search.partitioners import place
from dcp_planner.search.refinement import descend
from dcp_planner.search.state import (
    Problem,
    Split,
    bytes_of,
    cost_of,
    excess_of,
    fill,
    problem_of,
    state_of_split,
)
from dcp_planner.simulation.schedules import predict_placement


def config(**choices):
    return PlanConfig(partitioner="native", **choices)


def sent_bytes(workload, placement, devices_per_node=1):
    """Count with sets what crosses nodes (or devices) in a forward and a backward pass."""
    shape, total = workload.shape, 0
    row = 2 * shape.q_bytes + shape.out_bytes + shape.q_backward_bytes
    for block, size in ((workload.compute_q, row), (workload.compute_kv, 3 * shape.kv_bytes)):
        places = {
            (b, d // devices_per_node)
            for b, d in zip(block.tolist(), placement.device_of_compute.tolist(), strict=True)
        }
        for b, place_of in places:
            if placement.device_of_data[b] // devices_per_node != place_of:
                total += int(workload.block_tokens[b]) * size
    return total


def best_bytes(workload, tolerances):
    """Try every placement on two devices under the caps, which are no tighter than possible."""

    def under(sizes, tolerance):
        choices = [np.array(c, np.int32) for c in itertools.product((0, 1), repeat=len(sizes))]
        fullest = [np.bincount(choice, weights=sizes).max() for choice in choices]
        cap = max(sizes.sum() * (1 + tolerance) / 2, min(fullest))
        return [c for c, load in zip(choices, fullest, strict=True) if load <= cap]

    owners = under(workload.block_tokens, tolerances[1])
    return min(
        sent_bytes(workload, SimpleNamespace(device_of_data=owner, device_of_compute=device))
        for device in under(workload.compute_pairs, tolerances[0])
        for owner in owners
    )


IS_MISSING = pytest.mark.skipif(find_spec("kahypar") is None, reason="it is not installed")
KAHYPAR = pytest.param("kahypar", marks=[pytest.mark.dist, pytest.mark.timing, IS_MISSING])


@pytest.mark.parametrize("partitioner", ["native", KAHYPAR])
@pytest.mark.parametrize("name", ["causal", "window", "packed", "ragged"])
def test_tiny_cases_are_placed_at_the_best_cost(masks, partitioner, name):
    batch = {
        "causal": [masks.causal(12)],
        "window": [masks.sliding_window(16, 5)],
        "packed": [masks.causal(8), masks.causal(8)],
        "ragged": [masks.causal(7), masks.causal(6)],
    }[name]
    workload = build_workload(masks.pack(batch, 4), ModelShape())
    assert workload.num_tiles <= 10
    limits = PlanConfig(partitioner, compute_tolerance=0.3, token_tolerance=0.1)
    found = place(workload, Cluster(1, 2), limits)
    assert sent_bytes(workload, found) == best_bytes(workload, (0.3, 0.1))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_the_cost_of_a_state_is_what_sets_count(strategies, data):
    workload, cluster, found = data.draw(strategies.placed())
    devices = cluster.num_devices
    group = np.arange(devices) // cluster.devices_per_node
    state = state_of_split(
        problem_of(workload),
        Split(found.device_of_compute, found.device_of_data),
        np.full((2, devices), float(workload.compute_pairs.sum() + workload.block_tokens.sum())),
        np.ones(2),
        group,
        3.0,
        data.draw(st.integers(0, 9)),
    )

    def counted():
        now = SimpleNamespace(device_of_data=state.owner, device_of_compute=state.part)
        return sent_bytes(workload, now) + 3 * sent_bytes(workload, now, cluster.devices_per_node)

    assert bytes_of(state) == counted()
    assert excess_of(state) == 0
    limits = np.repeat([[2.0], [3.0]], devices, axis=1)
    over = state._replace(limits=limits, prices=np.array([5.0, 7.0]))
    beyond = [5 * max(w - 2, 0) + 7 * max(n - 3, 0) for w, n in state.loads.T]
    assert excess_of(over) == sum(beyond)
    assert cost_of(over) == counted() + sum(beyond)
    before = bytes_of(state)
    descend(state, 3, 0.0)
    assert bytes_of(state) == counted() <= before
    descend(state, 4, 1e6)
    assert bytes_of(state) == counted()
    kept = [array.copy() for array in (state.counts, state.loads)]
    fill(state)
    for array, again in zip(kept, (state.counts, state.loads), strict=True):
        assert np.array_equal(array, again)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_mask_on_any_cluster_is_placed_under_the_caps(strategies, data):
    sparsity, cluster = data.draw(strategies.sparsities()), data.draw(strategies.clusters())
    workload = build_workload(sparsity, ModelShape())
    found = place(workload, cluster, config(budget="fast"))
    check_balance(found, workload, cluster)


def check_balance(found, workload, cluster):
    for part, sizes in (
        (found.device_of_compute, workload.compute_pairs),
        (found.device_of_data, workload.block_tokens),
    ):
        load = np.bincount(part, weights=sizes, minlength=cluster.num_devices)
        assert len(load) == cluster.num_devices
        assert load.max() <= max(1.1 * load.mean(), load.mean() + sizes.max(initial=0))


@pytest.mark.parametrize(
    ("lengths", "block", "shape"),
    [
        ([1], 4, (1, 4)),  # one token, more devices than blocks
        ([9, 1, 1, 2], 16, (3, 5)),
        ([512], 4, (4, 4)),  # one long sequence
        ([40] * 20, 8, (2, 17)),  # more devices than one level takes
        ([64, 32, 16, 8, 4, 2, 1], 2, (2, 4)),
        ([60], 1, (1, 67)),  # a prime of devices
    ],
)
def test_hard_shapes_are_placed(masks, lengths, block, shape):
    workload = build_workload(masks.pack([masks.causal(n) for n in lengths], block), ModelShape())
    found = place(workload, Cluster(*shape), config())
    check_balance(found, workload, Cluster(*shape))


@pytest.mark.parametrize("partitioner", ["native", KAHYPAR])
def test_caps_hold_where_blocks_are_fine_enough(masks, partitioner):
    batch = [masks.causal(256), masks.causal(131), masks.shared_question(16, [60, 50])]
    workload = build_workload(masks.pack(batch, 8), ModelShape())
    for shape in ((1, 4), (2, 4), (3, 2)):
        found = place(workload, Cluster(*shape), PlanConfig(partitioner, budget="fast"))
        assert found.warnings == ()
        pairs, tokens = loads_on(found, workload, Cluster(*shape))
        assert max(pairs.max() / pairs.mean(), tokens.max() / tokens.mean()) <= 1.1


def test_whole_documents_stay_on_one_node(masks):
    workload = build_workload(masks.pack([masks.causal(32)] * 8, 8), ModelShape())
    found = place(workload, Cluster(4, 2), config())
    assert sent_bytes(workload, found, devices_per_node=2) == 0


def test_every_part_of_a_level_is_at_most_sixteen_wide():
    for nodes in (1, 2, 7, 16, 17, 24, 64, 128, 900):
        for per_node in (1, 8, 72):
            tree = device_tree(Cluster(nodes, per_node))
            assert leaves(tree) == list(range(nodes * per_node))
            assert all(n <= 16 or n in (17, 125) for n in widths(tree))


def leaves(tree):
    return [tree] if isinstance(tree, int) else [x for part in tree for x in leaves(part)]


def widths(tree):
    return set() if isinstance(tree, int) else {len(tree)}.union(*map(widths, tree))


def test_longer_blocks_are_levelled_by_the_search_not_by_its_repair(masks):
    # A pair of a long row is cheaper than a byte: its price must not round to nothing.
    problem = problem_of(build_workload(masks.pack([masks.causal(64)], 4), ModelShape()))
    for scale in (1, 1 << 10, 1 << 20):
        longer = replace(problem, work=problem.work * scale)
        price = float(prices_of(longer, 4)[0])
        assert price > 0
        assert price * scale == pytest.approx(float(prices_of(problem, 4)[0]), rel=0.05)


@pytest.mark.parametrize(("parts", "side"), [(1024, 2), (256, 4), (64, 8)])
def test_everything_on_one_of_many_devices_costs_more_than_tiles_in_squares(masks, parts, side):
    # Few blocks seen by very many devices: bytes must not outweigh what exceeds the cap.
    problem = problem_of(build_workload(masks.pack([masks.causal(60)], 1), ModelShape()))
    of_tile = list(zip(problem.tile_q.tolist(), problem.tile_kv.tolist(), strict=True))
    sent = 0.0
    for axis in range(2):
        copies = {(tile[axis], tile[0] // side, tile[1] // side) for tile in of_tile}
        sent += sum(problem.weight[axis, block] for block, _, _ in copies)
    too_much = problem.work.sum() * (1 - 1.1 / parts)
    assert prices_of(problem, parts)[0] * too_much > sent


def test_an_impossible_cap_is_met_as_nearly_as_whole_tiles_allow(masks):
    batch = [masks.causal(200), masks.causal(90), masks.sliding_window(150, 30)]
    workload = build_workload(masks.pack(batch, 8), ModelShape())
    problem = problem_of(workload)
    mean = problem.work.sum() / 6
    search = Search(workload, problem, Cluster(2, 3), EFFORTS["fast"], Caps(1, 1), 0)
    load = np.bincount(search.few_bytes().part, weights=problem.work, minlength=6)
    assert load.max() <= mean + problem.work.max()


def test_the_root_of_a_sum_of_eighth_powers_is_the_largest_of_few():
    assert root.py_func(2.0**8) == 2.0
    assert root.py_func(-1e-9) == 0.0


COMPUTE, INPUTS_IN, INPUTS_OUT, RESULTS_IN, RESULTS_OUT, NEAR_IN, NEAR_OUT = range(LOADS)


def search_under(caps, workload, cluster):
    return Search(workload, problem_of(workload), cluster, EFFORTS["fast"], caps, 0)


def laid_out(split, workload, cluster, caps):
    state = search_under(caps, workload, cluster).state_of(split)
    return load_state_of(state, workload, cluster)


def counted(state, cluster, way):
    """Count what every device is busy with, block by block, device by device."""
    split, load = state.split, np.zeros((cluster.num_devices, LOADS))
    blocks = len(split.owner)
    for tile, device in enumerate(split.part.tolist()):
        load[device, COMPUTE] += state.seconds[way, tile]
    for net in range(2 * blocks):
        of_tile = split.tile_q if net < blocks else split.tile_kv
        owner = int(split.owner[net % blocks])
        users = set(split.part[of_tile == net % blocks].tolist()) - {owner}
        far_in, far_out, near_in, near_out = state.cost[4 * way : 4 * way + 4, net]
        for node in {user // cluster.devices_per_node for user in users}:
            here = [u for u in users if u // cluster.devices_per_node == node]
            if node == owner // cluster.devices_per_node:
                for user in here:
                    load[user, NEAR_IN] += near_in
                    load[owner, NEAR_OUT] += near_in
                    load[user, NEAR_OUT] += near_out
                    load[owner, NEAR_IN] += near_out
                continue
            load[owner, INPUTS_OUT] += far_in
            load[owner, RESULTS_IN] += far_out
            for gateway in here:  # each in turn, so many-eth part of the time
                load[gateway, INPUTS_IN] += far_in / len(here)
                load[gateway, RESULTS_OUT] += far_out / len(here)
                for user in set(here) - {gateway}:
                    load[gateway, NEAR_OUT] += near_in / len(here)
                    load[user, NEAR_IN] += near_in / len(here)
                    load[user, NEAR_OUT] += near_out / len(here)
                    load[gateway, NEAR_IN] += near_out / len(here)
    return load


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_loads_are_what_sets_count_and_nobody_ends_above_a_cap_and_where_it_began(strategies, data):
    workload, cluster, found = data.draw(strategies.placed())
    split = Split(found.device_of_compute, found.device_of_data)
    state = laid_out(split, workload, cluster, Caps(10**9, 10**9))
    for budget in (0, 500):
        relieve(state, budget)
        for way in range(2):
            at = slice(LOADS * way, LOADS * (way + 1))
            assert state.load[:, at] == pytest.approx(counted(state, cluster, way), abs=1e-9)
    sizes = workload.compute_pairs, workload.block_tokens
    caps = Caps(*(int(size.sum() * 1.2 / cluster.num_devices) for size in sizes))
    after = search_under(caps, workload, cluster).relieve(split, 500)
    for cap, size, *ends in zip(
        (caps.pairs, caps.tokens), sizes, (split.part, split.owner), (after.part, after.owner),
        strict=True,
    ):  # fmt: skip
        before, now = (loads_of(part, size, cluster.num_devices) for part in ends)
        assert (now <= np.maximum(before, cap)).all()


@pytest.fixture
def slow(masks):
    """A workload, and a cluster whose ports take as long as its kernels."""
    batch = [masks.causal(200), masks.causal(90), masks.sliding_window(150, 30)]
    cluster = Cluster(2, 4, inter_bytes_per_s=1e10, intra_bytes_per_s=1e11, flops_per_s=1e12)
    return build_workload(masks.pack(batch, 8), ModelShape()), cluster


@pytest.mark.parametrize("name", ["documents", "ring"])
def test_uneven_tokens_are_levelled_and_time_is_saved(slow, name):
    workload, cluster = slow
    config = PlanConfig(f"static:{name}")
    start = place(workload, cluster, config)
    search = Search.of(workload, cluster, config)
    held = search.hold(Split(start.device_of_compute, start.device_of_data))
    split = search.relieve(held, 150_000)
    found = Placement(split.owner, split.part)
    tokens = loads_of(found.device_of_data, workload.block_tokens, cluster.num_devices)
    assert tokens.max() <= 1.1 * tokens.mean()
    before, after = (
        predict_placement(workload, p, cluster, config).seconds for p in (start, found)
    )
    assert name == "ring" or after < 0.5 * before


def test_a_second_of_ports_costs_what_the_rate_says(slow, monkeypatch):
    workload, cluster = slow
    found = place(workload, cluster, PlanConfig("static:zigzag"))
    split = Split(found.device_of_compute, found.device_of_data)
    busy, longest = {}, {}
    for rate in (0.0, 1.0, 1e6):
        monkeypatch.setattr("dcp_planner.search.bottleneck.RATE", rate)
        state = laid_out(split, workload, cluster, Caps(10**9, 10**9))
        relieve(state, 0)
        before = state.load.copy()
        relieve(state, 20_000)
        for load, name in ((before, "start"), (state.load, rate)):
            ports = np.delete(load, [COMPUTE, LOADS + COMPUTE], axis=1)
            busy[name] = ports.sum()
            longest[name] = load[:, COMPUTE].max() + load[:, LOADS + COMPUTE].max()
    assert busy[1e6] < busy[1.0] < busy[0.0]
    assert busy[1e6] <= busy["start"]
    assert longest[1.0] < longest["start"]


def test_owners_stay_if_they_are_to_stay(masks):
    workload = build_workload(masks.pack([masks.causal(96), masks.causal(40)], 8), ModelShape())
    cluster, owner = Cluster(2, 2), np.arange(workload.num_blocks, dtype=np.int32) % 4
    split = Split(np.zeros(workload.num_tiles, np.int32), owner)
    caps = Caps(int(workload.compute_pairs.sum() * 0.3), int(workload.block_tokens.sum()))
    search = search_under(caps, workload, cluster)
    found = search.relieve(search.level(split), 5000, keeps_owners=True)
    assert np.array_equal(found.owner, owner)
    assert loads_of(found.part, workload.compute_pairs, 4).max() <= caps.pairs


def loads_by_hand(part, sizes, parts):
    return [int(sum(s for s, p in zip(sizes, part, strict=True) if p == d)) for d in range(parts)]


@given(st.data())
def test_any_placement_is_brought_under_the_caps(strategies, data):
    workload, cluster, found = data.draw(strategies.placed())
    parts = cluster.num_devices
    tolerance = data.draw(st.sampled_from([0.0, 0.1, 0.5]))
    config = PlanConfig(compute_tolerance=tolerance, token_tolerance=tolerance)
    fixed = hold(found, workload, cluster, config)

    tokens = loads_by_hand(fixed.device_of_data, workload.block_tokens, parts)
    packed = loads_by_hand(
        pack_largest_first(workload.block_tokens, parts), workload.block_tokens, parts
    )
    assert max(tokens) <= max((1 + tolerance) * sum(tokens) / parts, max(packed))
    pairs = workload.compute_pairs.tolist()
    work = loads_by_hand(fixed.device_of_compute, pairs, parts)
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
    assert loads_by_hand(held.device_of_data, workload.block_tokens, 2) == [32, 32]
    assert hold_tokens(held, workload, Cluster(1, 2), config) is held


@pytest.mark.parametrize("tolerance", [None, 0.1])
@given(st.data())
def test_whatever_misses_a_tolerance_is_said(strategies, tolerance, data):
    workload, cluster, found = data.draw(strategies.placed())
    config = PlanConfig(compute_tolerance=tolerance)
    said = [w.code for w in find_shortfalls(found, workload, cluster, config)]
    expected = []
    for what, part, sizes in (
        ("compute", found.device_of_compute, workload.compute_pairs),
        ("tokens", found.device_of_data, workload.block_tokens),
    ):
        each = loads_by_hand(part, sizes, cluster.num_devices)
        is_bounded = what == "tokens" or tolerance is not None
        if is_bounded and max(each) > 1.1 * sum(each) / len(each):
            expected.append(f"{what}_above_tolerance")
    assert said == expected


@given(st.data())
def test_copies_of_a_block_get_one_owner_under_the_cap_and_stay_where_it_holds(strategies, data):
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
    assert max(loads_by_hand(owner, workload.block_tokens, 3)) <= cap
    if max(loads_by_hand(found.device_of_data, workload.block_tokens, 3)) <= cap:
        assert np.array_equal(owner, found.device_of_data)


def test_largest_first_packing_meets_its_bound_on_tiny_cases():
    rng = np.random.default_rng(1)
    for _ in range(12):
        sizes = rng.integers(1, 20, 7)
        best = min(
            max(loads_by_hand(choice, sizes, 3)) for choice in itertools.product(range(3), repeat=7)
        )
        found = max(loads_by_hand(pack_largest_first(sizes, 3), sizes, 3))
        assert best <= found <= 4 / 3 * best
