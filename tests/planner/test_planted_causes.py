"""Twenty-four plans and runs, each slow for one planted cause: the first finding names it.

Every case is built so that one thing costs most of its time; what that is, is written beside it by
hand. Blocks and tiles are placed by hand too, so that nothing else goes wrong.
"""

from dataclasses import replace

import numpy as np
import pytest
from recorded_runs import as_recorded

from dcp_planner import Cluster, ModelShape, Plan, PlanConfig, Trace, simulate
from dcp_planner.causes import find_causes, find_causes_of_run
from dcp_planner.model.problem import Placement, build_workload
from dcp_planner.schedule.divisions import Manner, Schedule
from dcp_planner.schedule.emission import assemble
from dcp_planner.simulation.schedules import make_schedule
from dcp_planner.simulation.trace import COLUMNS, EVENT_KINDS

SHAPE = ModelShape()
ONE_NODE = Cluster(1, 4, intra_bytes_per_s=1e14, latency_s=0.0, flops_per_s=1e12)
TWO_NODES = replace(ONE_NODE, nodes=2, devices_per_node=2, inter_bytes_per_s=1e14)
"""Machines on which only computing takes time."""
WITH_HOSTS = replace(ONE_NODE, pass_s=2e-5, copy_bytes_per_s=1e11)
"""One on which idle devices begin a direction, too, and merge results."""
DOCUMENTS = (256, 256, 256, 256)
BLOCK = 64
AWAY = (1, 2, 3, 0)
"""The device that computes the queries of each document, where its owner does not."""


def planned(masks, cluster, documents=DOCUMENTS, owners=(0, 1, 2, 3), computes=None, **choices):
    """Place whole documents: who owns each, and who computes its queries."""
    sparsity = masks.pack([masks.causal(n) for n in documents], choices.pop("block", BLOCK))
    workload = build_workload(sparsity, SHAPE)
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
    plan = planned(masks, ONE_NODE)
    slower = replace(plan, cluster=replace(ONE_NODE, devices=((1.0, 1.0, 0.4, 1.0),)))
    return plan, as_recorded(simulate(slower))


def slow_links_of_run(masks):
    plan = planned(masks, TWO_NODES, owners=(0, 0, 0, 0), is_split=True)
    run = as_recorded(simulate(replace(plan, cluster=replace(TWO_NODES, inter_bytes_per_s=1e9))))
    is_send = run.kind == EVENT_KINDS.index("send")  # the transport takes the bytes at once
    return plan, replace(run, end_ns=np.where(is_send, run.start_ns, run.end_ns))


def late_launch(masks, documents=DOCUMENTS):
    """A run in which device 1 begins its last attention late, by as long as the run took."""
    plan = planned(masks, ONE_NODE, documents)
    trace = as_recorded(simulate(plan))
    is_own = trace.device == 1
    begin = trace.start_ns[is_own & (trace.kind == EVENT_KINDS.index("attention"))].max()
    late = int(trace.end_ns.max()) * (is_own & (trace.start_ns >= begin))
    moved = {name: getattr(trace, name) + late for name in ("start_ns", "end_ns", "ready_ns")}
    return plan, replace(trace, **moved)


CASES = {  # what the first cause has to be, where, and a plan, or a plan and its run
    "slow device": ("compute", {"device": 3}, lambda m: planned(
        m, replace(TWO_NODES, devices=((1.0, 1.0), (1.0, 0.4))))),
    "slow first device": ("compute", {"device": 0}, lambda m: planned(
        m, replace(ONE_NODE, devices=((0.3, 1.0, 1.0, 1.0),)))),
    "two documents on one device": ("compute", {"device": 2}, lambda m: planned(
        m, ONE_NODE, (256,) * 5, (0, 1, 2, 3, 2))),
    "a long document that one device owns": ("compute", {"device": 0, "sequence": 0},
            lambda m: planned(m, ONE_NODE, (768, 256, 256, 256))),
    "a long document at the end": ("compute", {"device": 3, "sequence": 3},
            lambda m: planned(m, TWO_NODES, (256, 256, 256, 640))),
    "straggling compute in a run": ("compute", {"device": 2}, slow_run),
    "slow network": ("links", {}, lambda m: planned(
        m, replace(TWO_NODES, inter_bytes_per_s=1e9), computes=AWAY)),
    "slow links inside the node": ("links", {}, lambda m: planned(
        m, replace(ONE_NODE, intra_bytes_per_s=1e9), computes=AWAY)),
    "one crowded port that sends": ("links", {"device": 0, "side": "send"},
            lambda m: planned(m, replace(TWO_NODES, inter_bytes_per_s=1e9), owners=(0, 0, 0, 0),
                              is_split=True)),
    "one crowded NIC that receives": ("links", {"device": 3, "side": "receive"},
            lambda m: planned(
                m, replace(ONE_NODE, intra_bytes_per_s=5e8, port_sharing="exclusive"),
                (256,) * 8, (0, 1, 2, 3, 0, 1, 2, 3),
                devices_of_tiles=lambda w: np.where(
                    (w.compute_q != w.compute_kv) & (w.block_sequence[w.compute_q] > 3), 3,
                    w.block_sequence[w.compute_q] % 4))),
    "oversubscribed spine": ("links", {}, lambda m: planned(
        m, replace(TWO_NODES, rails=2, spine_bytes_per_s=1e9), computes=(3, 2, 1, 0))),
    "slow links in a run": ("links", {"device": 0, "side": "send"}, slow_links_of_run),
    "far nodes": ("latency", {}, lambda m: planned(
        m, replace(TWO_NODES, inter_latency_s=1e-3), computes=AWAY)),
    "latency inside the node": ("latency", {}, lambda m: planned(
        m, replace(ONE_NODE, latency_s=5e-4), computes=AWAY)),
    "dear messages": ("latency", {}, lambda m: planned(
        m, replace(ONE_NODE, message_launch_s=2e-4), computes=AWAY, block=32)),
    "slow launches": ("launches", {"divisions": 1}, lambda m: planned(
        m, replace(ONE_NODE, kernel_launch_s=1e-3))),
    "too many divisions": ("launches", {"divisions": 12}, lambda m: planned(
        m, replace(ONE_NODE, kernel_launch_s=3e-5), (512,) * 4, computes=AWAY, block=32,
        divisions=12)),
    "late launch in a run": ("launches", {}, late_launch),
    "small tiles": ("compute", {"kernel_tile": 256}, lambda m: planned(
        m, replace(ONE_NODE, kernel_tile=256), block=16)),
    "too few blocks of threads": ("compute", {"sms": 132}, lambda m: planned(
        m, replace(ONE_NODE, kernel_tile=64, sms=132))),
    "devices that only merge": ("idle", {"devices": [2, 3]}, lambda m: planned(
        m, WITH_HOSTS, (256, 256), (2, 3), (0, 1))),
    "all on one device": ("idle", {"devices": [0, 2, 3]}, lambda m: planned(
        m, replace(TWO_NODES, pass_s=2e-5), (256, 256), (1, 1))),
    "limit of memory": ("memory", {}, lambda m: planned(
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
    plan = planned(masks, WITH_HOSTS, computes=AWAY)
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
