"""Reasons that are planted by hand, in plans small enough to follow nanosecond by nanosecond."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp_dsl import Sample, Spec
from dcp_planner import (
    LANES,
    Cluster,
    ModelShape,
    PlanConfig,
    PlanError,
    build_plan,
    cut_blocks,
    predict,
    preset,
    simulate,
)
from dcp_planner.causes import (
    Cause,
    Explanation,
    cause_sentence,
    diagnose,
    explain,
    explain_difference,
    find_causes,
    suggest,
)
from dcp_planner.causes.diagnosis import KINDS, Diagnosis
from dcp_planner.causes.explanation import headline
from dcp_planner.model.cluster import MOST_RATE
from dcp_planner.model.cuts import choose_block_size
from dcp_planner.model.problem import Placement, build_workload
from dcp_planner.schedule.divisions import Manner, Schedule
from dcp_planner.schedule.emission import assemble
from dcp_planner.simulation.schedules import make_schedule

TINY = ModelShape(q_heads=1, kv_heads=1, head_dim=1, dtype_bytes=1)  # 4 FLOPs a pair, kv 2 B
QUICK = Cluster(
    1, 2, intra_bytes_per_s=1e15, latency_s=0, flops_per_s=1e9
)  # 4 ns a pair, messages for nothing


def planned(sparsity, owners, devices, cluster=QUICK, divisions=None, is_frugal=False):
    """Plan with this owner of every block, this device of every tile, these divisions."""
    workload = build_workload(sparsity, TINY)
    placed = Placement(np.array(owners), np.array(devices))
    schedule = make_schedule(workload, placed, cluster, PlanConfig(routing="direct"))
    if divisions is not None:
        manner = Manner(is_frugal=is_frugal)
        schedule = Schedule(np.array(divisions), np.array(divisions), (manner, manner))
    return assemble(workload, cluster, placed, schedule, "by hand")


def told(found):
    return explain_difference(found, ("A", "B"), lambda seconds: f"{seconds * 1e9:.0f} ns")


def saved(found):
    """Return the seconds that each cause saves alone, and last."""
    return {cause.name: (cause.saves_s, cause.saves_last_s) for cause in found.causes}


def test_causes_save_these_nanoseconds(masks):
    # As in test_simulator: kv 0 takes 8 ns and 100 ns of latency to device 1, dkv 0 goes back.
    cluster = Cluster(1, 2, intra_bytes_per_s=1e9, latency_s=1e-7, flops_per_s=1e9)
    sparsity = masks.pack([masks.causal(8)], 4)
    plan = build_plan(sparsity, TINY, cluster, PlanConfig("static:contiguous"))
    found = diagnose(plan)
    # Forward 40 | 40 + wait + 64, backward 100 | 100 + 160 and dkv home: 172 and 376 together.
    # Means: 72 and 180. Even: 28 and 45 of device 1 in forward, 70 and 111 in backward.
    assert found.seconds == pytest.approx(548e-9)
    assert found.work_s == pytest.approx(252e-9)
    alone = {
        "links": (101 + 64) + (101 + 160 + 101),  # a message takes 1 ns
        "latency": 104 + (260 + 8),
        "balance": (108 + 45) + (108 + 111 + 108),
        "launches": 548,
    }
    others_free = {
        "links": 73 + (181 + 8),
        "latency": (101 + 45) + (101 + 111 + 101),
        "balance": 104 + 261,
        "launches": 255,
    }
    expected = {n: (548 - alone[n], others_free[n] - 255) for n in alone} | {"order": (3, 3)}
    assert list(saved(found)) == ["latency", "balance", "links", "order", "launches"]
    for name, (first, last) in saved(found).items():
        assert (first, last) == pytest.approx([ns * 1e-9 for ns in expected[name]], abs=1e-15)
    where = {cause.name: cause.where for cause in found.causes}
    assert where["order"] == {"device": 0, "seconds": pytest.approx(160e-9)}
    assert where["balance"] == {
        "device": 1, "seconds": pytest.approx(364e-9), "times_mean": pytest.approx(364 / 252),
        "sequence": 0,
    }  # fmt: skip
    assert where["launches"] == {"kernels_of_device": 4, "host_s": 0.0, "divisions": 2}
    assert where["latency"] == {"messages_on_path": 3, "device": 1}
    assert where["links"] == {  # kv 0 once in each direction; the other device sends dkv
        "device": 0, "side": "send", "seconds_on_path": pytest.approx(16e-9), "bytes": 16,
        "times_mean": pytest.approx(16 / 12),
    }  # fmt: skip


@settings(max_examples=20)
@given(st.data())
def test_what_causes_save_follows_from_predictions_on_other_clusters(strategies, data):
    plan = data.draw(strategies.placed_plans())
    diagnosis, seconds = diagnose(plan), predict(plan).seconds
    found = saved(diagnosis)
    for name, changes in (
        ("links", {"intra_bytes_per_s": MOST_RATE, "inter_bytes_per_s": MOST_RATE}),
        ("latency", {"latency_s": 0.0, "inter_latency_s": 0.0, "message_launch_s": 0.0}),
        ("launches", {"kernel_launch_s": 0.0}),
    ):
        less = predict(replace(plan, cluster=replace(plan.cluster, **changes))).seconds
        assert found[name][0] == pytest.approx(seconds - less, abs=1e-15)
    kinds = {cause.kind for cause in diagnosis.causes}
    assert kinds <= set(KINDS)
    assert ("idle" in found) == bool(
        plan.tiles.pairs.any() and len(set(plan.tiles.device.tolist())) < plan.num_devices
    )


@settings(max_examples=20)
@given(st.data())
def test_work_is_what_the_mean_device_computes(strategies, data):
    plan = data.draw(strategies.placed_plans())
    plan = replace(
        plan, cluster=replace(plan.cluster, flops_per_s=1e6, kernel_launch_s=0.0, kernel_tile=1)
    )  # microseconds a pair
    trace = simulate(plan)
    spent = trace.lane_seconds("compute", plan.num_devices)
    rounded = 1e-9 * np.count_nonzero(trace.lane == LANES.index("compute"))
    work = diagnose(plan).work_s
    assert work == pytest.approx(spent.mean(), rel=1e-12, abs=rounded / plan.num_devices)
    assert work > 1e-6 or not plan.tiles.pairs.any()


def test_slow_links_are_the_reason_where_only_they_differ(masks):
    sparsity = masks.pack([masks.causal(8), masks.causal(8)], 8)
    slow = replace(QUICK, intra_bytes_per_s=1e9, latency_s=1e-7)
    at_home = planned(sparsity, [0, 1], [0, 1], slow)
    away = planned(sparsity, [0, 1], [1, 0], slow)  # as even, but every input and result travels
    for found in (explain(at_home, away), explain(away, at_home)):
        assert found.reason == "latency"
    text = told(explain(at_home, away))
    assert text.startswith("A takes ")
    assert (
        ", mostly because B loses more time to message latency. Without message latency, A would"
        in text
    )


def test_the_device_with_most_compute_is_the_reason_where_links_are_fast(masks):
    sparsity = masks.pack([masks.causal(8), masks.causal(8)], 8)
    even = planned(sparsity, [0, 1], [0, 1])
    heaped = planned(sparsity, [0, 1], [0, 0])  # three messages, one behind the other, 1 ns each
    found = explain(even, heaped)
    assert found.reason == "idle"
    text = told(found)
    assert text.startswith("A takes 50.1% less time than B: 504 ns instead of 1011 ns")
    assert "mostly because B loses more time to devices without work" in text
    assert "If devices without work took their share, A would take 504 ns and B 507 ns; if" in text


def test_more_work_is_the_reason_where_a_machine_is_slower(masks):
    sparsity = masks.pack([masks.causal(8), masks.causal(8)], 8)
    plan = planned(sparsity, [0, 1], [0, 1])
    slower = replace(plan, cluster=replace(QUICK, flops_per_s=5e8))
    found = explain(slower, plan)
    assert found.reason == "work"
    assert told(found).startswith("B takes 50.0% less time than A")
    assert "mostly because the average device of A computes more" in told(found)


def test_what_neither_links_nor_compute_explain_is_put_down_to_order(masks):
    # Device 0 computes four full tiles at home; device 1 four whose keys come from there, in two
    # divisions. A frugal order launches the second keys only behind the tiles of device 0: device 1
    # waits for half of its time, whatever the links. Bytes and compute are the same.
    dense = np.zeros((16, 16), bool)
    dense[:, :8] = True
    sparsity = masks.pack([dense], 4)
    devices, divisions = [0] * 4 + [1] * 4, [0] * 4 + [1, 2] * 2
    early, late = (
        planned(sparsity, [0, 0, 1, 1], devices, divisions=divisions, is_frugal=is_frugal)
        for is_frugal in (False, True)
    )
    found = explain(late, early)
    assert found.reason == "order"
    assert found.shares["order"] == pytest.approx(448e-9, abs=2e-9)
    text = told(found)
    assert text.startswith("B takes 33.3% less time than A: 899 ns instead of 1347 ns, mostly ")
    assert "because A loses more time to waiting for earlier work of other devices" in text


def test_a_plan_without_messages_hides_none(masks):
    sparsity = masks.pack([masks.causal(8), masks.causal(8)], 8)
    home, away = (planned(sparsity, [0, 1], owner) for owner in ([0, 1], [1, 0]))
    assert headline(find_causes(home), str).endswith(". No data moves between devices.")
    assert re.search(
        r"Compute hides [\d.]+% of the communication\.$", headline(find_causes(away), str)
    )


def test_a_small_difference_gets_no_reason(masks):
    sparsity = masks.pack([masks.causal(8), masks.causal(8)], 8)
    plan = planned(sparsity, [0, 1], [0, 1])
    nearly = replace(plan, cluster=replace(QUICK, flops_per_s=0.992e9))
    found = explain(plan, nearly)
    assert found.reason == "close"
    assert told(found) == (
        "A and B take about the same time, 504 ns and 509 ns. The difference is at most 1.0%, too "
        "small to name a reason."
    )


def diagnosed(seconds, work, **parts):
    causes = [Cause(name, part, part, {}) for name, part in parts.items()]
    return Diagnosis(seconds, work, tuple(causes))


def test_several_reasons_are_listed_with_what_each_costs():
    first = diagnosed(10.0, 8.0, links=1.0, balance=0.5)
    second = diagnosed(14.0, 8.0, links=3.0, balance=2.5)
    found = Explanation(first, second)
    assert found.reason == "several"
    text = explain_difference(found, ("the old", "the new"), "{:g} s".format)
    assert text == (
        "The old takes 28.6% less time than the new: 10 s instead of 14 s, for several reasons: "
        "the new loses more time to uneven compute (2 s) and data transfer (2 s). With compute "
        "shared evenly, the old would take 9.5 s and the new 11.5 s; with infinitely fast links, "
        "the old would take 9 s and the new 11 s."
    )


def test_what_works_against_the_difference_is_said():
    first, second = diagnosed(10.0, 6.0, links=4.0), diagnosed(12.0, 6.0, links=1.0, balance=5.0)
    found = Explanation(first, second)
    assert found.reason == "balance"
    assert found.shares["links"] == -3.0
    assert "uneven compute, although B loses less time to data transfer (3 s). With" in (
        explain_difference(found, ("A", "B"), "{:g} s".format)
    )


def test_what_counts_is_saved_alone_and_last_in_equal_parts():
    cause = Cause("links", 1.0, 3.0, {"device": 2})
    assert cause.part_s == 2.0
    assert cause.to_json() == {
        "kind": "links", "name": "links", "saves_s": 1.0, "saves_last_s": 3.0,
        "where": {"device": 2},
    }  # fmt: skip


BALANCE = {"device": 3, "times_mean": 1.5}
LINKS = {"device": 1, "side": "send", "seconds_on_path": 2.0}
PLACES = [
    ("balance", BALANCE, "With compute shared evenly",
     "device 3 computes longest, 1.50 times the mean"),
    ("balance", BALANCE | {"sequence": 4}, "With", "the mean, mostly of sequence 4"),
    ("balance", BALANCE | {"sequence": 4, "sequence_name": "row 9"}, "With",
     "of sequence 4 (row 9)"),
    ("links", LINKS, "With infinitely fast links",
     "device 1 sends for 2 s on the critical path"),
    ("links", LINKS | {"side": "receive"}, "With infinitely",
     "device 1 receives for 2 s on the critical path"),
    ("links", {}, "With infinitely fast links", ""),
    ("latency", {"messages_on_path": 1}, "Without message latency",
     "the critical path waits for 1 message to arrive"),
    ("latency", {"messages_on_path": 2}, "Without", "waits for 2 messages to arrive"),
    ("launches", {"kernels_of_device": 7, "host_s": 0.0}, "Without host work",
     "a device launches up to 7 kernels"),
    ("launches", {"kernels_of_device": 7, "host_s": 3.0}, "Without host work",
     "a device launches up to 7 kernels, and waits up to 3 s a direction for a host"),
    ("waves", {"times_full": 1.25}, "If kernels kept all multiprocessors busy",
     "kernels now take 1.25 times as long"),
    ("tiles", {"computed_over_visible": 3.0}, "If kernels computed visible pairs only",
     "kernels compute 3.00 pairs per visible pair"),
    ("order", {"device": 2}, "If no device waited for earlier work of others",
     "device 2 waits longest for compute of other devices"),
    ("idle", {"devices": [1]}, "If devices without work took their share", "1 device has no tile"),
    ("idle", {"devices": [1, 2]}, "If devices", "2 devices have no tile"),
    ("memory", {"buffer_bytes": 1.5e6, "unlimited_bytes": 4e6}, "Without a memory limit",
     "buffers take 1.5 MB per device instead of 4.0 MB"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "where", "start", "end"), PLACES)
def test_a_sentence_says_what_a_cause_costs_and_where(name, where, start, end):
    text = cause_sentence(Cause(name, 2.5, 0.0, where), 10.0, "{:g} s".format)
    assert text.startswith(start)
    assert ", the plan would take 2.5 s less (25.0%)" in text
    assert text.endswith(f"{end}." if end else "less (25.0%).")


def test_plans_of_other_batches_are_not_explained(masks):
    plan = planned(masks.pack([masks.causal(8)], 8), [0], [0])
    other = planned(masks.pack([masks.causal(16)], 8), [0, 1], [0, 1, 1])
    with pytest.raises(PlanError, match="expected two plans of one batch, got plans for batches"):
        explain(plan, other)


@pytest.mark.parametrize("tokens", [0, 64])
def test_there_is_nothing_to_try_where_a_plan_takes_no_time(tokens):
    mask = Spec.from_text("@partial mask none = false").mask("none")
    sparsity = cut_blocks([mask.compile(Sample({}, tokens))], 16)
    cluster = Cluster(1, 3, devices=((1, 1, 0.5),))  # of which the documents layout is no best
    plan = build_plan(sparsity, TINY, cluster, PlanConfig("static:documents"))
    assert suggest(plan, diagnose(plan)) == ()


def test_zigzag_on_a_few_documents_is_slow_for_its_compute_not_for_its_messages():
    # Without groups of messages and host time, which would be causes of their own.
    cluster = replace(
        preset("a100-p4de", 4, 8), message_order="any", comm_sms=0, pass_s=0.0, host_message_s=0.0
    )
    config = PlanConfig("native", budget="fast")
    lengths = (40_000, 30_000, 20_000, 15_000, 10_000, 8_000, 4_000, 4_072)
    mask = Spec.from_text("mask c = causal").mask("c")
    forms = [mask.compile(Sample({}, n)) for n in lengths]
    sparsity = cut_blocks(forms, choose_block_size(forms, cluster, config))
    ours = build_plan(sparsity, ModelShape(), cluster, config)
    zigzag = build_plan(sparsity, ModelShape(), cluster, PlanConfig("static:zigzag"))
    found = explain(ours, zigzag)
    # The columns of the timeline mislead: devices that compute little wait for one that does much.
    spent = {
        lane: [simulate(plan).lane_seconds(lane, 32).mean() for plan in (ours, zigzag)]
        for lane in ("compute", "wait")
    }
    assert spent["wait"][1] - spent["wait"][0] > 0.5 * found.difference
    fast = replace(
        cluster, intra_bytes_per_s=MOST_RATE, inter_bytes_per_s=MOST_RATE, latency_s=0.0,
        inter_latency_s=None, message_launch_s=0.0,
    )  # fmt: skip
    assert predict(replace(zigzag, cluster=fast)).seconds > found.first.seconds
    assert found.reason == "balance"
