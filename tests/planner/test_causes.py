"""Reasons of a plan's time, planted by hand: what each saves, and how it is said."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_runs import as_recorded

from dcp_dsl import Sample, Spec
from dcp_planner import (
    LANES,
    Cluster,
    ModelShape,
    Plan,
    PlanConfig,
    PlanError,
    Trace,
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
    find_causes_of_run,
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
from dcp_planner.simulation.trace import COLUMNS, EVENT_KINDS

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
    return explain_difference(found, ("the old", "the new"), "{:.4g} s".format)


def saved(found):
    """Return the seconds that each cause saves alone, and last."""
    return {cause.name: (cause.saves_s, cause.saves_last_s) for cause in found.causes}


def test_causes_save_these_nanoseconds(two_blocks):
    # As in test_simulator: kv 0 takes 8 ns and 100 ns of latency to device 1, dkv 0 goes back.
    cluster = Cluster(1, 2, intra_bytes_per_s=1e9, latency_s=1e-7, flops_per_s=1e9)
    found = diagnose(two_blocks(cluster))
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


def diagnosed(seconds, work, **parts):
    causes = [Cause(name, part, part, {}) for name, part in parts.items()]
    return Diagnosis(seconds, work, tuple(causes))


def test_the_reason_of_a_difference_is_said(masks, snapshots):
    sparsity = masks.pack([masks.causal(8), masks.causal(8)], 8)
    slow = replace(QUICK, intra_bytes_per_s=1e9, latency_s=1e-7)
    even = planned(sparsity, [0, 1], [0, 1])
    # Device 0 computes four full tiles at home; device 1 four whose keys come from there, in two
    # divisions. A frugal order launches the second keys only behind the tiles of device 0: device 1
    # waits for half of its time, whatever the links. Bytes and compute are the same.
    dense = np.zeros((16, 16), bool)
    dense[:, :8] = True
    devices, divisions = [0] * 4 + [1] * 4, [0] * 4 + [1, 2] * 2
    early, late = (
        planned(masks.pack([dense], 4), [0, 0, 1, 1], devices, divisions=divisions, is_frugal=way)
        for way in (False, True)
    )
    pairs = {
        "latency": explain(planned(sparsity, [0, 1], [0, 1], slow),
                           planned(sparsity, [0, 1], [1, 0], slow)),
        "idle": explain(even, planned(sparsity, [0, 1], [0, 0])),
        "work": explain(replace(even, cluster=replace(QUICK, flops_per_s=5e8)), even),
        "order": explain(late, early),
        "close": explain(even, replace(even, cluster=replace(QUICK, flops_per_s=0.992e9))),
        "several": Explanation(diagnosed(10.0, 8.0, links=1.0, balance=0.5),
                               diagnosed(14.0, 8.0, links=3.0, balance=2.5)),
        "balance": Explanation(diagnosed(10.0, 6.0, links=4.0),  # which works against the rest
                               diagnosed(12.0, 6.0, links=1.0, balance=5.0)),
    }  # fmt: skip
    assert {name: found.reason for name, found in pairs.items()} == {name: name for name in pairs}
    assert pairs["order"].shares["order"] == pytest.approx(448e-9, abs=2e-9)
    snapshots.check("causes_of_differences", {name: told(pairs[name]) for name in pairs})


def test_a_plan_without_messages_hides_none(masks):
    sparsity = masks.pack([masks.causal(8), masks.causal(8)], 8)
    home, away = (planned(sparsity, [0, 1], owner) for owner in ([0, 1], [1, 0]))
    assert headline(find_causes(home), str).endswith(". No data moves between devices.")
    assert re.search(
        r"Compute hides [\d.]+% of the communication\.$", headline(find_causes(away), str)
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
PLACES = (
    ("balance", BALANCE), ("balance", BALANCE | {"sequence": 4}),
    ("balance", BALANCE | {"sequence": 4, "sequence_name": "row 9"}),
    ("links", LINKS), ("links", LINKS | {"side": "receive"}), ("links", {}),
    ("latency", {"messages_on_path": 1}), ("latency", {"messages_on_path": 2}),
    ("launches", {"kernels_of_device": 7, "host_s": 0.0}),
    ("launches", {"kernels_of_device": 7, "host_s": 3.0}),
    ("waves", {"times_full": 1.25}), ("tiles", {"computed_over_visible": 3.0}),
    ("order", {"device": 2}), ("idle", {"devices": [1]}), ("idle", {"devices": [1, 2]}),
    ("memory", {"buffer_bytes": 1.5e6, "unlimited_bytes": 4e6}),
)  # fmt: skip


def test_a_sentence_says_what_a_cause_costs_and_where(snapshots):
    found = {f"{name} {where}": cause_sentence(Cause(name, 2.5, 0.0, where), 10.0, "{:g} s".format)
             for name, where in PLACES}  # fmt: skip
    snapshots.check("causes_in_words", found)


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


USUAL = ModelShape()
ONE_NODE = Cluster(1, 4, intra_bytes_per_s=1e14, latency_s=0.0, flops_per_s=1e12)
TWO_NODES = replace(ONE_NODE, nodes=2, devices_per_node=2, inter_bytes_per_s=1e14)
"""Machines on which only computing takes time."""
WITH_HOSTS = replace(ONE_NODE, pass_s=2e-5, copy_bytes_per_s=1e11)
"""One on which idle devices begin a direction, too, and merge results."""
DOCUMENTS = (256, 256, 256, 256)
BLOCK = 64
AWAY = (1, 2, 3, 0)
"""The device that computes the queries of each document, where its owner does not."""


def placed(masks, cluster, documents=DOCUMENTS, owners=(0, 1, 2, 3), computes=None, **choices):
    """Place whole documents: who owns each, and who computes its queries."""
    sparsity = masks.pack([masks.causal(n) for n in documents], choices.pop("block", BLOCK))
    workload = build_workload(sparsity, USUAL)
    of_block = workload.block_sequence
    owner = np.array(owners)[of_block]
    device = np.array(owners if computes is None else computes)[of_block[workload.compute_q]]
    if choices.pop("is_split", False):  # rows of blocks in turn, whoever owns them
        device = workload.compute_q % cluster.num_devices
    if "devices_of_tiles" in choices:
        device = choices.pop("devices_of_tiles")(workload)
    placed = Placement(owner, device)
    choices = {"divisions": 2, "routing": "direct"} | choices
    schedule = make_schedule(workload, placed, cluster, PlanConfig(**choices))
    return assemble(workload, cluster, placed, schedule, "by hand")


def late_in_frugal_order(masks):
    """Keys of the second division are launched only behind the tiles of the first."""
    dense = np.zeros((16, 16), bool)
    dense[:, :8] = True
    workload = build_workload(masks.pack([dense], 4), ModelShape(1, 1, 1, 1))
    cluster = Cluster(1, 2, intra_bytes_per_s=1e15, latency_s=0, flops_per_s=1e9)
    divisions = np.array([0] * 4 + [1, 2] * 2)
    placed = Placement(np.array([0, 0, 1, 1]), np.array([0] * 4 + [1] * 4))
    schedule = Schedule(divisions, divisions, 2 * (Manner(is_frugal=True),))
    return assemble(workload, cluster, placed, schedule, "by hand")


def slow_run(masks):
    """A run on a machine whose device 2 is slower than the plan knows."""
    plan = placed(masks, ONE_NODE)
    slower = replace(plan, cluster=replace(ONE_NODE, devices=((1.0, 1.0, 0.4, 1.0),)))
    return plan, as_recorded(simulate(slower))


def slow_links_of_run(masks):
    plan = placed(masks, TWO_NODES, owners=(0, 0, 0, 0), is_split=True)
    run = as_recorded(simulate(replace(plan, cluster=replace(TWO_NODES, inter_bytes_per_s=1e9))))
    is_send = run.kind == EVENT_KINDS.index("send")  # the transport takes the bytes at once
    return plan, replace(run, end_ns=np.where(is_send, run.start_ns, run.end_ns))


def late_launch(masks, documents=DOCUMENTS):
    """A run in which device 1 begins its last attention late, by as long as the run took."""
    plan = placed(masks, ONE_NODE, documents)
    trace = as_recorded(simulate(plan))
    is_own = trace.device == 1
    begin = trace.start_ns[is_own & (trace.kind == EVENT_KINDS.index("attention"))].max()
    late = int(trace.end_ns.max()) * (is_own & (trace.start_ns >= begin))
    moved = {name: getattr(trace, name) + late for name in ("start_ns", "end_ns", "ready_ns")}
    return plan, replace(trace, **moved)


CASES = {  # what the first cause has to be, where, and a plan, or a plan and its run
    "slow device": ("compute", {"device": 3}, lambda m: placed(
        m, replace(TWO_NODES, devices=((1.0, 1.0), (1.0, 0.4))))),
    "slow first device": ("compute", {"device": 0}, lambda m: placed(
        m, replace(ONE_NODE, devices=((0.3, 1.0, 1.0, 1.0),)))),
    "two documents on one device": ("compute", {"device": 2}, lambda m: placed(
        m, ONE_NODE, (256,) * 5, (0, 1, 2, 3, 2))),
    "a long document that one device owns": ("compute", {"device": 0, "sequence": 0},
            lambda m: placed(m, ONE_NODE, (768, 256, 256, 256))),
    "a long document at the end": ("compute", {"device": 3, "sequence": 3},
            lambda m: placed(m, TWO_NODES, (256, 256, 256, 640))),
    "straggling compute in a run": ("compute", {"device": 2}, slow_run),
    "slow network": ("links", {}, lambda m: placed(
        m, replace(TWO_NODES, inter_bytes_per_s=1e9), computes=AWAY)),
    "slow links inside the node": ("links", {}, lambda m: placed(
        m, replace(ONE_NODE, intra_bytes_per_s=1e9), computes=AWAY)),
    "one crowded port that sends": ("links", {"device": 0, "side": "send"},
            lambda m: placed(m, replace(TWO_NODES, inter_bytes_per_s=1e9), owners=(0, 0, 0, 0),
                              is_split=True)),
    "one crowded NIC that receives": ("links", {"device": 3, "side": "receive"},
            lambda m: placed(
                m, replace(ONE_NODE, intra_bytes_per_s=5e8, port_sharing="exclusive"),
                (256,) * 8, (0, 1, 2, 3, 0, 1, 2, 3),
                devices_of_tiles=lambda w: np.where(
                    (w.compute_q != w.compute_kv) & (w.block_sequence[w.compute_q] > 3), 3,
                    w.block_sequence[w.compute_q] % 4))),
    "oversubscribed spine": ("links", {}, lambda m: placed(
        m, replace(TWO_NODES, rails=2, spine_bytes_per_s=1e9), computes=(3, 2, 1, 0))),
    "slow links in a run": ("links", {"device": 0, "side": "send"}, slow_links_of_run),
    "far nodes": ("latency", {}, lambda m: placed(
        m, replace(TWO_NODES, inter_latency_s=1e-3), computes=AWAY)),
    "latency inside the node": ("latency", {}, lambda m: placed(
        m, replace(ONE_NODE, latency_s=5e-4), computes=AWAY)),
    "dear messages": ("latency", {}, lambda m: placed(
        m, replace(ONE_NODE, message_launch_s=2e-4), computes=AWAY, block=32)),
    "slow launches": ("launches", {"divisions": 1}, lambda m: placed(
        m, replace(ONE_NODE, kernel_launch_s=1e-3))),
    "too many divisions": ("launches", {"divisions": 12}, lambda m: placed(
        m, replace(ONE_NODE, kernel_launch_s=3e-5), (512,) * 4, computes=AWAY, block=32,
        divisions=12)),
    "late launch in a run": ("launches", {}, late_launch),
    "small tiles": ("compute", {"kernel_tile": 256}, lambda m: placed(
        m, replace(ONE_NODE, kernel_tile=256), block=16)),
    "too few blocks of threads": ("compute", {"sms": 132}, lambda m: placed(
        m, replace(ONE_NODE, kernel_tile=64, sms=132))),
    "devices that only merge": ("idle", {"devices": [2, 3]}, lambda m: placed(
        m, WITH_HOSTS, (256, 256), (2, 3), (0, 1))),
    "all on one device": ("idle", {"devices": [0, 2, 3]}, lambda m: placed(
        m, replace(TWO_NODES, pass_s=2e-5), (256, 256), (1, 1))),
    "limit of memory": ("memory", {}, lambda m: placed(
        m, replace(ONE_NODE, intra_bytes_per_s=1e10, latency_s=1e-4, kernel_launch_s=3e-5),
        (512,) * 4, computes=AWAY, block=32, divisions="auto", memory_limit_bytes=2_800_000)),
    "order that launches late": ("order", {"device": 1}, late_in_frugal_order),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "where", "make"), CASES.values(), ids=CASES)
def test_the_first_finding_names_the_planted_cause(masks, kind, where, make):
    made = make(masks)
    why = find_causes(made) if isinstance(made, Plan) else find_causes_of_run(*made)
    first = why.diagnosis.causes[0]
    assert (first.kind, {name: first.where.get(name) for name in where}) == (kind, where)
    assert first.saves_s > 0.2 * why.diagnosis.seconds


def test_order_costs_what_early_launches_would_not_save(masks):
    plan = CASES["limit of memory"][2](masks)
    last = {c.kind: c.saves_last_s for c in find_causes(plan).diagnosis.causes}
    assert last["memory"] < 0 < last["order"]  # all else free, early launches gain nothing


def test_a_late_device_with_little_work_makes_no_cost_of_a_run_negative(masks):
    # Shared evenly, compute would make the device that begins last end later still.
    why = find_causes_of_run(*late_launch(masks, (256, 64, 256, 256)))
    found = {cause.name: (cause.saves_s, cause.saves_last_s) for cause in why.diagnosis.causes}
    assert found["balance"][0] == 0
    assert min(map(min, found.values())) >= 0


def test_the_model_between_two_layers_is_no_cause(masks):
    plan = placed(masks, WITH_HOSTS, computes=AWAY)
    trace = as_recorded(simulate(plan))
    rows = np.column_stack([getattr(trace, name).astype(np.int64) for name in COLUMNS])
    times = [COLUMNS.index(name) for name in ("start_ns", "end_ns", "ready_ns")]
    forward, backward = (round(trace.seconds(is_backward=b) * 1e9) for b in (False, True))
    model = 9 * (forward + backward)
    parts = []
    for begins in ((0, forward + model), (forward + model, forward + backward + 2 * model)):
        parts.append(rows.copy())
        parts[-1][:, times] += np.where(trace.is_backward, begins[1], begins[0])[:, None]
    names = [trace.name_of(event) for event in range(len(trace))]
    twice = Trace.of_rows("measured", np.concatenate(parts), 2 * names)
    one, two = (find_causes_of_run(plan, run) for run in (trace, twice))
    assert two.diagnosis.seconds == pytest.approx(2 * one.diagnosis.seconds)
    saved = {cause.name: cause.saves_s for cause in one.diagnosis.causes}
    for cause in two.diagnosis.causes:
        assert cause.saves_s == pytest.approx(2 * saved[cause.name], abs=1e-9)
    spent = [why.accounting.spent_ns.sum(axis=(0, 1)) for why in (one, two)]
    assert (spent[1] == 2 * spent[0]).all()
