"""Hosts that run ahead of their devices: which of the two decides, by hand and layer by layer."""

from dataclasses import replace

import pytest

from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan, predict, simulate
from dcp_planner.causes import diagnose
from dcp_planner.simulation.simulator import clocks_of
from dcp_planner.simulation.trace import EVENT_KINDS

TINY = ModelShape(q_heads=1, kv_heads=1, head_dim=1, dtype_bytes=1)
AHEAD = Cluster(1, 2, 1e9, latency_s=1e-7, flops_per_s=1e9, host_runs_ahead=True)
# On two devices with blocks of 4 a forward takes 172 ns and a backward 376 (`test_simulator`).
FORWARD_NS, BACKWARD_NS = 172, 376


@pytest.fixture(scope="module")
def plan(masks):
    sparsity = masks.pack([masks.causal(8)], 4)
    return build_plan(sparsity, TINY, AHEAD, PlanConfig(partitioner="static:contiguous"))


def with_hosts(plan, pass_ns, kernel_ns, message_ns, **others):
    cluster = replace(
        plan.cluster, pass_s=pass_ns / 1e9, host_kernel_s=kernel_ns / 1e9,
        host_message_s=message_ns / 1e9, **others,
    )  # fmt: skip
    return replace(plan, cluster=cluster)


def test_a_host_that_is_faster_than_its_device_costs_nothing(plan):
    busy = with_hosts(plan, 50, 20, 30)
    clocks = clocks_of(busy)
    # The busiest host: forward two kernels and a message, backward two kernels and two messages.
    assert clocks["forward"] == (FORWARD_NS, 50 + 2 * 20 + 30, 0)
    assert clocks["backward"] == (BACKWARD_NS, 50 + 2 * 20 + 2 * 30, 0)
    assert predict(busy) == predict(plan)
    assert EVENT_KINDS.index("copy") not in simulate(busy).kind


def test_the_busiest_host_decides_where_devices_are_faster(plan):
    slow = with_hosts(plan, 300, 20, 30)
    clocks = clocks_of(slow)
    assert clocks["forward"] == (FORWARD_NS, 370, 370 - FORWARD_NS)
    assert clocks["backward"] == (BACKWARD_NS, 400, 400 - BACKWARD_NS)
    assert predict(slow) == pytest.approx((370e-9, 400e-9))
    # The timeline is that of the devices, behind the time for which they wait for the host.
    held, free = simulate(slow), simulate(plan)
    copies = held.kind == EVENT_KINDS.index("copy")
    spans = zip(held.start_ns[copies].tolist(), held.end_ns[copies].tolist(), strict=True)
    assert sorted(spans) == 2 * [(0, 198)] + 2 * [(370, 394)]
    late = {False: 198, True: 198 + 24}
    for name in ("start_ns", "end_ns"):
        shifts = getattr(held, name)[~copies] - getattr(free, name)
        assert shifts.tolist() == [late[bool(b)] for b in free.is_backward]
    saved = {cause.name: cause.saves_s for cause in diagnose(slow).causes}
    assert saved["launches"] == pytest.approx((198 + 24) / 1e9)


def test_a_host_that_does_not_run_ahead_comes_first(plan):
    """`dcpm simulate --single`: each device begins when its own host has ended."""
    alone = with_hosts(plan, 300, 20, 30, host_runs_ahead=False)
    clocks = clocks_of(alone)
    # Device 0 sends at 350; 8 ns and 100 ns later device 1, ready since 370, has the keys.
    assert clocks["forward"] == (370 + 8 + 100 + 64, 370, 0)
    assert predict(alone).forward_s == pytest.approx(542e-9)


def test_the_rest_of_a_layer_hides_the_host(plan):
    slow = with_hosts(plan, 300, 20, 30)
    for token_ns, forward_ns in ((0, 370), (30, 330), (300, FORWARD_NS)):
        # Four tokens a device, a third of their time in forward.
        assert predict(slow, token_seconds=token_ns / 1e9).forward_s == pytest.approx(
            forward_ns / 1e9
        )


def stack_ns(layers, pass_ns, kernel_ns, message_ns):
    """Play the forward of a stack of layers of the plan above step by step."""
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
def test_a_stack_of_layers_takes_what_the_slower_clock_says(plan, hosts):
    found, clocks = stack_ns(200, *hosts), clocks_of(with_hosts(plan, *hosts))["forward"]
    # Device 1 computes 104 ns of 172: without messages to wait for, as device 0 runs ahead of it.
    assert found == max(104, clocks.host_ns)
    assert found <= clocks.end_ns
    if clocks.held_ns:
        assert found == clocks.end_ns
