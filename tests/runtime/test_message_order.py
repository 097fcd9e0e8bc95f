"""The simulator plays messages as ranks send them: event by event, on an emulated fabric."""

from dataclasses import replace

import numpy as np
import pytest

from dcp_dsl import Sample, Spec, block_sparsity
from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan, preset, simulate
from dcp_planner.simulation import EVENT_KINDS
from dcp_planner.simulation.simulator import PlanModel
from dcp_runtime.emulation.emulate import emulate_once
from dcp_runtime.transport.gloo_transport import GlooTransport
from dcp_runtime.transport.nccl_transport import NcclTransport

CLUSTER = Cluster(
    2, 2, intra_bytes_per_s=2e9, inter_bytes_per_s=5e8, latency_s=2e-6, flops_per_s=1e12,
    comm_sms=1, sms=8, copy_bytes_per_s=1e10, port_sharing="fair",
    devices=((1, 0.97), (0.9, 1.06)),  # unequal, so that no two events are at one moment
)  # fmt: skip


def plan_for(order):
    mask = Spec.from_text("mask m = causal").mask("m")
    sparsity = block_sparsity([mask.bind(Sample(length=1024))], 128, 128)
    config = PlanConfig(partitioner="static:zigzag", divisions=3)
    cluster = replace(CLUSTER, message_order=order)
    plan = build_plan(sparsity, ModelShape(1, 1, 16, 4), cluster, config)
    assert plan.transfers.hop.max() > 0  # some messages are passed on
    return plan


def times_of(trace, kind):
    """End of each event of a kind, by direction, device, division, transfer and name, in ns."""
    rows = np.flatnonzero(trace.kind == EVENT_KINDS.index(kind)).tolist()
    return sorted(
        (
            bool(trace.is_backward[e]), int(trace.device[e]), int(trace.division[e]),
            int(trace.transfer[e]), trace.name_of(e), int(trace.end_ns[e]),
        )
        for e in rows
    )  # fmt: skip


def whole_messages(plan, found):
    """Set the end of blocks that travel together to that of the last one, as in a run."""
    last = {}
    for part in PlanModel.of(plan).directions.values():
        last |= dict(zip(part.rows.tolist(), part.rows[part.bundles.last].tolist(), strict=True))
    ends = {key[3]: key[5] for key in found}
    return [(*key[:5], ends[last[key[3]]]) for key in found]


@pytest.mark.parametrize("order", ["fifo", "grouped"])
def test_ranks_send_and_compute_at_the_times_that_are_predicted(order):
    plan = plan_for(order)
    measured, predicted = emulate_once(plan), simulate(plan)
    total_ns = predicted.seconds() * 1e9
    for kind in ("send", "receive"):
        expected = whole_messages(plan, times_of(predicted, kind))
        assert len(expected) > 30
        found = times_of(measured, kind)
        assert [key[:5] for key in found] == [key[:5] for key in expected]
        late = [a[5] - b[5] for a, b in zip(found, expected, strict=True)]
        assert np.median(np.abs(late)) <= 1
        assert np.abs(late).max() < 0.001 * total_ns
    for kind in ("attention", "reduction"):
        pairs = zip(times_of(measured, kind), times_of(predicted, kind), strict=True)
        assert all(abs(a[5] - b[5]) < 0.001 * total_ns for a, b in pairs)
    assert measured.seconds() == pytest.approx(predicted.seconds(), rel=0.001)


def test_any_order_takes_about_as_long_as_predicted():
    # The simulator sends the lowest block first, a rank the lowest of what it launches together.
    plan = plan_for("any")
    assert emulate_once(plan).seconds() == pytest.approx(simulate(plan).seconds(), rel=0.05)


def test_the_order_of_another_transport_would_not_fit():
    predicted = {order: simulate(plan_for(order)).seconds() for order in ("fifo", "grouped")}
    assert abs(predicted["fifo"] - predicted["grouped"]) > 0.05 * predicted["grouped"]
    for order, seconds in predicted.items():
        assert emulate_once(plan_for(order)).seconds() == pytest.approx(seconds, rel=0.001)


def test_presets_name_the_order_of_their_transport():
    assert preset("cpu-gloo").message_order == GlooTransport.message_order == "fifo"
    for name in ("a100-p4de", "h100-dgx", "h200-dgx", "b200-dgx"):
        assert preset(name).message_order == NcclTransport.message_order == "grouped"
