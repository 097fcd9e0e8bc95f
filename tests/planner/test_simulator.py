"""Timelines by hand and in general: devices, links and hosts that run ahead of devices."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp_planner import (
    LANES,
    Cluster,
    ModelShape,
    PlanConfig,
    PlanError,
    build_plan,
    predict,
    simulate,
)
from dcp_planner.causes import diagnose
from dcp_planner.model.problem import Placement, build_workload
from dcp_planner.schedule.emission import assemble
from dcp_planner.simulation.schedules import make_schedule
from dcp_planner.simulation.simulator import PlanModel, clocks_of
from dcp_planner.simulation.trace import EVENT_KINDS
from dcp_planner.tables.plan import Transfers
from dcp_planner.tables.visits import find_feeders

TINY = ModelShape(
    q_heads=1, kv_heads=1, head_dim=1, dtype_bytes=1
)  # 4 FLOPs a pair, kv 2 B a token


def rows(trace):
    return [
        (
            int(trace.device[i]), LANES[trace.lane[i]], trace.name_of(i), int(trace.start_ns[i]),
            int(trace.end_ns[i]), int(trace.peer[i]), int(trace.size_bytes[i]),
            bool(trace.is_backward[i]), int(trace.division[i]),
        )
        for i in range(len(trace))
    ]  # fmt: skip


@pytest.mark.parametrize(
    "cluster",
    [
        Cluster(1, 2, 1e9, inter_bytes_per_s=1, latency_s=1e-7, inter_latency_s=1, flops_per_s=1e9),
        Cluster(2, 1, 1, inter_bytes_per_s=1e9, latency_s=1, inter_latency_s=1e-7, flops_per_s=1e9),
    ],
    ids=["inside a node", "between nodes"],
)
def test_two_devices_and_two_causal_blocks_take_these_nanoseconds(two_blocks, cluster):
    # Blocks of 4: tiles (0,0) 10 pairs on device 0; (1,0) 16 and (1,1) 10 pairs on device 1.
    # 1 ns a FLOP and a byte, 100 ns latency; keys of block 0 travel: 4 tokens * 2 B = 8 ns.
    assert rows(simulate(two_blocks(cluster))) == [
        (0, "compute", "attention", 0, 40, -1, 0, False, 0),
        (0, "compute", "attention", 172, 272, -1, 0, True, 0),  # forward ended at 172
        (0, "send", "kv 0", 0, 8, 1, 8, False, 1),
        (0, "send", "kv 0", 172, 180, 1, 8, True, 1),
        (0, "receive", "dkv 0", 540, 548, 1, 8, True, 1),
        (0, "wait", "wait for results 1", 272, 548, -1, 0, True, 1),
        (1, "compute", "attention", 0, 40, -1, 0, False, 0),
        (1, "compute", "attention", 108, 172, -1, 0, False, 1),
        (1, "compute", "attention", 172, 272, -1, 0, True, 0),
        (1, "compute", "attention", 280, 440, -1, 0, True, 1),
        (1, "send", "dkv 0", 440, 448, 0, 8, True, 1),
        (1, "receive", "kv 0", 100, 108, 0, 8, False, 1),
        (1, "receive", "kv 0", 272, 280, 0, 8, True, 1),
        (1, "wait", "wait for inputs 1", 40, 108, -1, 0, False, 1),
        (1, "wait", "wait for inputs 1", 272, 280, -1, 0, True, 1),
        (1, "wait", "wait for results 1", 440, 448, -1, 0, True, 1),
    ]


def test_messages_through_one_port_follow_each_other_and_ports_work_at_once(masks):
    # Device 0 owns all keys that 1 (same node) and 2 (other node) need; each lane has its own port.
    sparsity = masks.pack([np.ones((12, 12), bool)], 4)
    workload = build_workload(sparsity, TINY)
    cluster = Cluster(
        2, 2, intra_bytes_per_s=1e9, inter_bytes_per_s=5e8, latency_s=0, flops_per_s=1e9,
        port_sharing="exclusive",
    )  # fmt: skip
    placed = Placement(np.array([0, 1, 2]), np.array([0, 1, 2])[workload.compute_q])
    config = PlanConfig(divisions=2, routing="direct")
    schedule = make_schedule(workload, placed, cluster, config)
    trace = simulate(assemble(workload, cluster, placed, schedule, "by hand"))
    sends = [r for r in rows(trace) if r[1] == "send" and not r[7]]
    # kv 0: 0->1 inside, 8 ns; 0->2 between, 16 ns, at once. kv 1 likewise; kv 2 leaves 2's one
    # network port twice, and what enters 2 from 0 and from 1 shares its network port.
    assert {(r[0], r[5], r[2]): (r[3], r[4]) for r in sends} == {
        (0, 1, "kv 0"): (0, 8),
        (0, 2, "kv 0"): (0, 16),
        (1, 0, "kv 1"): (0, 8),
        (1, 2, "kv 1"): (16, 32),
        (2, 0, "kv 2"): (0, 16),
        (2, 1, "kv 2"): (16, 32),
    }
    fair = simulate(assemble(workload, replace(cluster, port_sharing="fair"), placed, schedule, ""))
    sends = [r for r in rows(fair) if r[1] == "send" and not r[7]]
    # At once, and each half as fast: what leaves 2, and what enters it.
    assert {(r[0], r[5], r[2]): (r[3], r[4]) for r in sends} == {
        (0, 1, "kv 0"): (0, 8),
        (0, 2, "kv 0"): (0, 32),
        (1, 0, "kv 1"): (0, 8),
        (1, 2, "kv 1"): (0, 32),
        (2, 0, "kv 2"): (0, 32),
        (2, 1, "kv 2"): (0, 32),
    }


@given(st.data())
@settings(max_examples=60)
def test_devices_and_links_do_one_thing_at_a_time_at_their_speed(strategies, data):
    plan = data.draw(strategies.placed_plans())
    for sharing in ("fair", "exclusive"):
        trace = simulate(replace(plan, cluster=replace(plan.cluster, port_sharing=sharing)))
        check_no_plan_is_faster_than_its_compute_or_its_busiest_link(plan, trace)
        check_every_transfer_is_sent_and_received_once_with_its_latency(plan, rows(trace))
    check_no_lane_of_a_device_does_two_things_at_once(plan, rows(trace))


def check_no_plan_is_faster_than_its_compute_or_its_busiest_link(plan, trace):
    table, cluster = plan.transfers, plan.cluster
    for is_backward, ratio in ((False, 1.0), (True, 2.5)):
        seconds = trace.seconds(is_backward=is_backward)
        flops = np.bincount(plan.tiles.device, weights=plan.tiles.pairs, minlength=plan.num_devices)
        flops = flops * 4 * plan.shape.q_heads * plan.shape.head_dim * ratio
        assert seconds >= flops.max() / cluster.flops_per_s - 1e-15
        per_node = cluster.devices_per_node
        is_inter = table.source // per_node != table.target // per_node
        for crosses, rate in (
            (False, cluster.intra_bytes_per_s),
            (True, cluster.inter_bytes_per_s),
        ):
            chosen = (table.is_backward == is_backward) & (is_inter == crosses)
            for ends in (table.source, table.target):
                sizes = np.bincount(ends[chosen], weights=table.size_bytes[chosen])
                assert seconds >= sizes.max(initial=0) / rate - 1e-15


def check_every_transfer_is_sent_and_received_once_with_its_latency(plan, events):
    table = plan.transfers
    latency = round(plan.cluster.latency_s * 1e9)
    sent = sorted((r[0], r[5], r[2], r[6], r[7], r[3], r[4]) for r in events if r[1] == "send")
    received = sorted(
        (r[5], r[0], r[2], r[6], r[7], r[3] - latency, r[4] - latency)
        for r in events
        if r[1] == "receive"
    )
    assert sent == received
    assert sorted(s[:2] + s[3:5] for s in sent) == sorted(
        zip(
            table.source.tolist(), table.target.tolist(), table.size_bytes.tolist(),
            table.is_backward.tolist(), strict=True,
        )
    )  # fmt: skip


def check_no_lane_of_a_device_does_two_things_at_once(plan, events):
    busy = {}
    per_node = plan.cluster.devices_per_node
    for device, lane, _, start, end, peer, *_ in events:
        port = peer >= 0 and peer // per_node != device // per_node
        busy.setdefault((device, lane, port), []).append((start, end))
    for device in range(plan.num_devices):  # a device computes or waits
        both = busy.get((device, "compute", False), []) + busy.pop((device, "wait", False), [])
        busy[device, "compute", False] = both
    for spans in busy.values():
        spans.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(spans))


def test_waits_and_compute_fill_the_time_of_the_slowest_device_and_only_messages_have_a_peer(plan):
    trace = simulate(plan)
    computes, waits, sends = (trace.lane == LANES.index(x) for x in ("compute", "wait", "send"))
    for is_backward in (False, True):
        chosen = trace.is_backward == is_backward
        start = trace.start_ns[chosen].min()
        stands = chosen & (computes | waits)
        spent = np.bincount(trace.device[stands], (trace.end_ns - trace.start_ns)[stands])
        ends = [trace.end_ns[stands & (trace.device == d)].max() for d in range(4)]
        assert spent.tolist() == [end - start for end in ends]
    for column, value in ((trace.peer, -1), (trace.transfer, -1), (trace.size_bytes, 0)):
        assert {*column[computes].tolist()} == {value}
    assert sends.any()
    assert (trace.peer[sends] >= 0).all()


def test_a_plan_laid_out_once_is_predicted_at_other_rates_as_if_made_for_them(plan):
    model = PlanModel.of(plan)
    for changes in ({}, {"latency_s": 0.0}, {"flops_per_s": 1e10, "sms": 7, "comm_sms": 3}):
        other = replace(plan.cluster, **changes)
        assert model.predict(other) == predict(replace(plan, cluster=other))
    assert model.predict(plan.cluster).seconds == pytest.approx(model.simulate().seconds())


@pytest.mark.parametrize(
    "constant",
    [
        {"flops_per_s": 1e-300}, {"intra_bytes_per_s": 1e-300},
        {"flops_per_s": 2e-7, "sms": 100, "comm_sms": 99},
    ],
)  # fmt: skip
def test_a_cluster_too_slow_for_any_clock_is_refused(masks, constant):
    sparsity = masks.pack([masks.causal(8)], 4)
    config, cluster = PlanConfig("static:contiguous", divisions=4), Cluster(1, 2, **constant)
    plan = build_plan(sparsity, TINY, cluster, replace(config, partials="input"))
    with pytest.raises(PlanError, match="expected a predicted time below 4611686018 s"):
        simulate(plan)
    with pytest.raises(PlanError, match="expected a predicted time below 4611686018 s"):
        build_plan(sparsity, TINY, cluster, config)  # predicts what float32 would cost


def test_two_directions_of_a_century_follow_each_other(masks):
    cluster = Cluster(1, 2, flops_per_s=9e-8)  # forward ends after 104 FLOPs, backward has 360
    config = PlanConfig("static:contiguous", divisions=4, partials="input")
    plan = build_plan(masks.pack([masks.causal(8)], 4), TINY, cluster, config)
    assert predict(plan).forward_s == pytest.approx(104 / 9e-8)
    assert simulate(plan).seconds() == pytest.approx(predict(plan).seconds)


def test_what_passes_on_an_input_is_fed_by_the_message_that_brings_it():
    """Forward 0 -> 1 -> 2, backward 1 -> 0 -> 2, of one block: more targets than sources."""
    is_backward = np.array([False, False, True, True])
    source, target, hop = np.array([[0, 1, 1, 0], [1, 2, 0, 2], [0, 1, 0, 1]], np.int32)
    none = np.zeros(4, np.int32)
    table = Transfers(is_backward, none, none, source, target, none, none, hop, none)
    assert find_feeders(table).tolist() == [-1, 0, -1, 2]


AHEAD = Cluster(1, 2, 1e9, latency_s=1e-7, flops_per_s=1e9, host_runs_ahead=True)
# On two devices with blocks of 4 a forward takes 172 ns and a backward 376 (`test_simulator`).
FORWARD_NS, BACKWARD_NS = 172, 376


@pytest.fixture(scope="module")
def ahead_plan(two_blocks):
    return two_blocks(AHEAD)


def with_hosts(ahead_plan, pass_ns, kernel_ns, message_ns, **others):
    cluster = replace(
        ahead_plan.cluster, pass_s=pass_ns / 1e9, host_kernel_s=kernel_ns / 1e9,
        host_message_s=message_ns / 1e9, **others,
    )  # fmt: skip
    return replace(ahead_plan, cluster=cluster)


def test_a_host_that_is_faster_than_its_device_costs_nothing(ahead_plan):
    busy = with_hosts(ahead_plan, 50, 20, 30)
    clocks = clocks_of(busy)
    # The busiest host: forward two kernels and a message, backward two kernels and two messages.
    assert clocks["forward"] == (FORWARD_NS, 50 + 2 * 20 + 30, 0)
    assert clocks["backward"] == (BACKWARD_NS, 50 + 2 * 20 + 2 * 30, 0)
    assert predict(busy) == predict(ahead_plan)
    assert EVENT_KINDS.index("copy") not in simulate(busy).kind


def test_the_busiest_host_decides_where_devices_are_faster(ahead_plan):
    slow = with_hosts(ahead_plan, 300, 20, 30)
    clocks = clocks_of(slow)
    assert clocks["forward"] == (FORWARD_NS, 370, 370 - FORWARD_NS)
    assert clocks["backward"] == (BACKWARD_NS, 400, 400 - BACKWARD_NS)
    assert predict(slow) == pytest.approx((370e-9, 400e-9))
    # The timeline is that of the devices, behind the time for which they wait for the host.
    held, free = simulate(slow), simulate(ahead_plan)
    copies = held.kind == EVENT_KINDS.index("copy")
    spans = zip(held.start_ns[copies].tolist(), held.end_ns[copies].tolist(), strict=True)
    assert sorted(spans) == 2 * [(0, 198)] + 2 * [(370, 394)]
    late = {False: 198, True: 198 + 24}
    for name in ("start_ns", "end_ns"):
        shifts = getattr(held, name)[~copies] - getattr(free, name)
        assert shifts.tolist() == [late[bool(b)] for b in free.is_backward]
    saved = {cause.name: cause.saves_s for cause in diagnose(slow).causes}
    assert saved["launches"] == pytest.approx((198 + 24) / 1e9)


def test_a_host_that_does_not_run_ahead_comes_first(ahead_plan):
    """`dcpm simulate --single`: each device begins when its own host has ended."""
    alone = with_hosts(ahead_plan, 300, 20, 30, host_runs_ahead=False)
    clocks = clocks_of(alone)
    # Device 0 sends at 350; 8 ns and 100 ns later device 1, ready since 370, has the keys.
    assert clocks["forward"] == (370 + 8 + 100 + 64, 370, 0)
    assert predict(alone).forward_s == pytest.approx(542e-9)


def test_the_rest_of_a_layer_hides_the_host(ahead_plan):
    slow = with_hosts(ahead_plan, 300, 20, 30)
    for token_ns, forward_ns in ((0, 370), (30, 330), (300, FORWARD_NS)):
        # Four tokens a device, a third of their time in forward.
        assert predict(slow, token_seconds=token_ns / 1e9).forward_s == pytest.approx(
            forward_ns / 1e9
        )


def stack_ns(layers, pass_ns, kernel_ns, message_ns):
    """Play the forward of a stack of layers of the ahead_plan above step by step."""
    host, done, ends = [0, 0], [0, 0], []
    for _ in range(layers):
        issued = []
        for device in range(2):
            host[device] += pass_ns + message_ns
            times = [host[device]]
            for _ in range(1 + device):
                host[device] += kernel_ns
                times.append(host[device])
            issued.append(times)
        sent = max(issued[0][0], issued[1][0], done[0])  # both ends are issued, the keys are there
        done[0] = max(issued[0][1], done[0]) + 40
        done[1] = max(issued[1][1], done[1]) + 40
        done[1] = max(issued[1][2], done[1], sent + 8 + 100) + 64
        ends.append(max(done))
    return (ends[-1] - ends[layers // 2]) / (layers - 1 - layers // 2)


@pytest.mark.parametrize(
    "hosts", [(0, 0, 0), (50, 20, 30), (102, 20, 30), (300, 20, 30), (10, 300, 5), (5, 0, 900)]
)
def test_a_stack_of_layers_takes_what_the_slower_clock_says(ahead_plan, hosts):
    found, clocks = stack_ns(200, *hosts), clocks_of(with_hosts(ahead_plan, *hosts))["forward"]
    # Device 1 computes 104 ns of 172: without messages to wait for, as device 0 runs ahead of it.
    assert found == max(104, clocks.host_ns)
    assert found <= clocks.end_ns
    if clocks.held_ns:
        assert found == clocks.end_ns
