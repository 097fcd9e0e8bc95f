"""The native partitioner against brute force, sets and its own promises."""

import itertools
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dcp_planner import Cluster, ModelShape, PlanConfig
from dcp_planner.model.problem import Caps, build_workload
from dcp_planner.search.caps import prices_of
from dcp_planner.search.load_state import root
from dcp_planner.search.native import (
    EFFORTS,
    Search,
    device_tree,
)
from dcp_planner.search.partitioners import place
from dcp_planner.search.refinement import descend
from dcp_planner.search.state import (
    Split,
    bytes_of,
    coarsen,
    cost_of,
    excess_of,
    fill,
    problem_of,
    restrict,
    state_of_split,
)


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
    sparsity, cluster = data.draw(strategies.sparsities()), data.draw(strategies.clusters())
    workload = build_workload(sparsity, ModelShape())
    found = data.draw(
        strategies.placements(workload.num_blocks, workload.num_tiles, cluster.num_devices)
    )
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
    devices = cluster.num_devices
    for part, sizes in (
        (found.device_of_compute, workload.compute_pairs),
        (found.device_of_data, workload.block_tokens),
    ):
        assert part.min(initial=0) >= 0
        if workload.num_tiles:
            load = np.bincount(part, weights=sizes, minlength=devices)
            mean = sizes.sum() / devices
            assert load.max() <= max(1.1 * mean, mean + sizes.max())


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
    devices = shape[0] * shape[1]
    assert found.device_of_data.max() < devices
    load = np.bincount(found.device_of_compute, workload.compute_pairs, devices)
    assert len(load) == devices
    assert load.max() <= max(1.1 * load.mean(), load.mean() + workload.compute_pairs.max())


def test_caps_hold_where_blocks_are_fine_enough(masks):
    batch = [masks.causal(256), masks.causal(131), masks.shared_question(16, [60, 50])]
    workload = build_workload(masks.pack(batch, 8), ModelShape())
    for shape in ((1, 4), (2, 4), (3, 2)):
        found = place(workload, Cluster(*shape), config(budget="fast"))
        assert found.warnings == ()


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


def test_coarsening_keeps_work_tokens_and_bytes(masks):
    problem = problem_of(
        build_workload(masks.pack([masks.causal(50), masks.causal(23)], 4), ModelShape())
    )
    coarse, tile, block = coarsen(problem)
    assert coarse.num_blocks < problem.num_blocks
    assert coarse.work.sum() == problem.work.sum()
    assert coarse.tokens.sum() == problem.tokens.sum()
    assert coarse.weight.sum() == problem.weight.sum()
    assert np.array_equal(coarse.tile_q[tile], block[problem.tile_q])
    assert np.array_equal(coarse.sequence[block], problem.sequence)


def test_parts_of_a_split_hold_every_tile_once_and_every_block_at_its_owner(masks):
    problem = problem_of(build_workload(masks.pack([masks.causal(48)], 4), ModelShape()))
    rng = np.random.default_rng(3)
    split = Split(
        rng.integers(0, 3, problem.num_tiles, np.int32),
        rng.integers(0, 3, problem.num_blocks, np.int32),
    )
    seen, owned = [], []
    for part in range(3):
        inner, tiles, blocks = restrict(problem, split, part)
        assert np.array_equal(blocks[inner.tile_q], problem.tile_q[tiles])
        assert np.array_equal(blocks[inner.tile_kv], problem.tile_kv[tiles])
        seen += tiles.tolist()
        owned += blocks[inner.is_owned].tolist()
    assert sorted(seen) == list(range(problem.num_tiles))
    assert sorted(owned) == list(range(problem.num_blocks))


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
