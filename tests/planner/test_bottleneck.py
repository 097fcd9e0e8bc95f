"""The search for time against loads counted with sets, and its promises."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dcp_planner import Cluster, ModelShape, PlanConfig
from dcp_planner.model.problem import Caps, Placement, build_workload, loads_of
from dcp_planner.search.bottleneck import load_state_of, relieve
from dcp_planner.search.load_state import LOADS
from dcp_planner.search.native import EFFORTS, Search
from dcp_planner.search.partitioners import place
from dcp_planner.search.state import Split, problem_of
from dcp_planner.simulation.schedules import predict_placement

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
    sparsity, cluster = data.draw(strategies.sparsities()), data.draw(strategies.clusters())
    workload = build_workload(sparsity, ModelShape())
    found = data.draw(
        strategies.placements(workload.num_blocks, workload.num_tiles, cluster.num_devices)
    )
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


def test_states_too_wide_for_memory_are_left_alone(masks, monkeypatch):
    workload = build_workload(masks.pack([masks.causal(16)], 4), ModelShape())
    split = Split(np.zeros(workload.num_tiles, np.int32), np.zeros(4, np.int32))
    monkeypatch.setattr("dcp_planner.search.native._MOST_CELLS", 1)
    assert search_under(Caps(1, 1), workload, Cluster(1, 2)).relieve(split, 100) is split


def test_owners_stay_if_they_are_to_stay(masks):
    workload = build_workload(masks.pack([masks.causal(96), masks.causal(40)], 8), ModelShape())
    cluster, owner = Cluster(2, 2), np.arange(workload.num_blocks, dtype=np.int32) % 4
    split = Split(np.zeros(workload.num_tiles, np.int32), owner)
    caps = Caps(int(workload.compute_pairs.sum() * 0.3), int(workload.block_tokens.sum()))
    search = search_under(caps, workload, cluster)
    found = search.relieve(search.level(split), 5000, keeps_owners=True)
    assert np.array_equal(found.owner, owner)
    assert loads_of(found.part, workload.compute_pairs, 4).max() <= caps.pairs
