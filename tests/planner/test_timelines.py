"""Timelines of small plans, event by event: when, what each waited for, and what follows from it.

Times are nanoseconds of machines on which everything takes few of them.
"""

from dataclasses import replace

import numpy as np
from dense_blocks import sparsity_of
from recorded_runs import as_recorded
from short_texts import short

from dcp_planner import (
    LANES,
    Cluster,
    ModelShape,
    PlanConfig,
    build_plan,
    predict,
    simulate,
    to_perfetto,
)
from dcp_planner.causes import (
    ACCOUNTS,
    STEPS,
    Reason,
    account_for,
    critical_path,
    find_causes,
    find_causes_of_run,
    find_dependencies,
)
from dcp_planner.causes.alternatives import (
    FREE,
    PlanInputs,
    coarser,
    divisions_of,
    finer,
    recut,
    seconds_without,
    workload_of,
)
from dcp_planner.causes.explanation import path_lines
from dcp_planner.model.problem import DIRECTIONS, Placement, build_workload
from dcp_planner.schedule.divisions import Manner, Schedule, cut_divisions
from dcp_planner.schedule.emission import assemble
from dcp_planner.simulation.simulator import PlanModel, mean_compute_seconds
from dcp_planner.simulation.trace import measure_trace
from dcp_planner.tables.head_groups import expand_placement
from dcp_planner.tables.metrics import receive_buffer_bytes

TINY = ModelShape(q_heads=1, kv_heads=1, head_dim=1, dtype_bytes=1)
QUICK = Cluster(
    2, 2, intra_bytes_per_s=1e9, inter_bytes_per_s=5e8, latency_s=3e-9, flops_per_s=4e9,
    inter_latency_s=2e-8,
)  # fmt: skip
BUSY = replace(
    QUICK, devices=((1, 0.5), (2, 1)), devices_per_nic=2, kernel_launch_s=7e-9, pass_s=1.1e-8,
    host_message_s=1e-9, message_launch_s=2e-9, copy_bytes_per_s=2e9, message_order="grouped",
    sms=4, comm_sms=1,
)  # fmt: skip
MANNERS = (Manner("node"), Manner("direct", is_frugal=True))


def placed(masks, cluster, shape=TINY, manners=MANNERS, groups=1):
    """Place three blocks of keys and six tiles badly, in two divisions of remote tiles at most."""
    workload = build_workload(sparsity_of([masks.causal(9 if groups == 1 else 5)], 4), shape)
    tiles = np.arange(groups * workload.num_tiles)
    owner = np.arange(workload.num_blocks) % 3
    placement = Placement(owner, tiles * 7 // 3 % 4, head_groups=groups)
    cuts = [cut_divisions(*expand_placement(workload, placement), d, 2) for d in DIRECTIONS]
    return assemble(workload, cluster, placement, Schedule(*cuts, manners), "badly")


def told(plan, trace):
    """Write a line for each event: its time, when it was ready, what it did and waited for."""
    found, lines = find_dependencies(plan, trace), []
    for event in range(len(trace)):
        lane, peer = LANES[trace.lane[event]], int(trace.peer[event])
        before = int(found.predecessor[event])
        text = [
            f"{event:3} {'fb'[int(trace.is_backward[event])]}{trace.device[event]} {lane:8}",
            f"{trace.start_ns[event]:4}-{trace.end_ns[event]:<4}",
            f"{trace.name_of(event)}/{trace.division[event]}",
        ]
        if peer >= 0:
            text.append(f"{peer} {trace.size_bytes[event]}B #{trace.transfer[event]}")
        if trace.ready_ns[event] != trace.start_ns[event]:
            text.append(f"ready {trace.ready_ns[event]}")
        own = int(found.begin_ns[event]), int(found.end_ns[event])
        if own != (trace.start_ns[event], trace.end_ns[event]):
            text.append(f"own {own[0]}-{own[1]}")
        if before >= 0:
            text.append(f"after {before} {Reason(found.reason[event]).name.lower()}")
        edges = {*found.source[found.edge_ptr[event] : found.edge_ptr[event + 1]].tolist()}
        text.append(f"{sorted(edges)}" if len(edges) > 1 else "")
        lines.append(" ".join(text).rstrip())
    path, spent = critical_path(trace, found), account_for(trace, found, plan.num_devices).spent_ns
    steps = zip(path.event, path.start_ns, path.end_ns, path.step, strict=True)
    lines.append("path " + ", ".join(f"{e} {a}-{b} {STEPS[s]}" for e, a, b, s in steps))
    for way, of in zip(DIRECTIONS, spent.tolist(), strict=True):
        told = ("/".join(map(str, device)) for device in of)
        lines.append(f"{way} {'/'.join(ACCOUNTS)}: {', '.join(told)}")
    return "\n".join([*lines, short(measure_trace(trace, plan.num_devices).to_json())])


def test_events(masks, snapshots):
    plan = placed(masks, QUICK)
    found = {"any": told(plan, simulate(plan)), "a run": told(plan, as_recorded(simulate(plan)))}
    busy = replace(plan, cluster=BUSY)
    found["busy hosts, messages in groups"] = told(busy, simulate(busy))
    grouped = placed(masks, BUSY, ModelShape(2, 2, 1, 2, float32_partials=True), groups=2)
    found["two head groups"] = told(grouped, simulate(grouped))
    nothing = build_plan(
        masks.pack([np.zeros((4, 4), bool)], 4), TINY, BUSY, PlanConfig("static:ring")
    )
    found["nothing to do"] = told(nothing, simulate(nothing))
    idle = replace(nothing, cluster=QUICK)
    found["no event"] = told(idle, simulate(idle))
    snapshots.check("timeline_events", found)


def test_perfetto(masks, snapshots):
    plan = build_plan(masks.pack([masks.causal(8)], 4), TINY, QUICK, PlanConfig("static:ring"))
    trace = simulate(plan)
    one, two = to_perfetto(trace).decode(), to_perfetto(trace, as_recorded(trace)).decode()
    more = [line for line in two.split("\n") if line not in one.split("\n")]
    snapshots.check("timeline_perfetto", {"one": one, "more of two": "\n".join(more)})


def test_causes_and_alternatives(masks, snapshots):
    found = {}
    for name, cluster in (("quick", QUICK), ("busy", BUSY)):
        plan = placed(masks, cluster)
        why, model = find_causes(plan), PlanModel.of(plan)
        run = find_causes_of_run(plan, as_recorded(simulate(plan)))
        evenness = ("as placed", "busy devices", "all devices")
        alone = {one: 1e9 * seconds_without(model, [one]) for one in FREE}
        found[name] = short({
            "seconds_without": alone,
            "evenness": [1e9 * s for e in evenness for s in predict(plan, e)],
            "mean_compute": 1e9 * mean_compute_seconds(plan),
            "causes": why.diagnosis.to_json(), "hidden": why.hidden_share,
            "causes_of_run": run.diagnosis.to_json(),
            "path": [line.text for line in path_lines(run)],
        })  # fmt: skip
    snapshots.check("timeline_causes", found)


def test_alternatives(masks, snapshots):
    """The plan scheduled otherwise, and its batch cut into larger and smaller blocks."""
    found = {}
    wide = ModelShape(2, 1, 4, 2, float32_partials=True)
    for name, manners in (("node", MANNERS), ("striped", 2 * (Manner("node", is_striped=True),))):
        plan = placed(masks, BUSY, wide, manners)
        inputs = PlanInputs.of(plan)
        others = {
            "as it is": plan, "early": inputs.launched_early(), "4 divisions": inputs.divided(4),
            "rounded": inputs.rounded_partials(), "unlimited": inputs.unlimited(),
        }  # fmt: skip
        lines = [f"routing {inputs.config.routing}, {divisions_of(plan)} divisions"]
        for what, other in others.items():
            divided = ("".join(map(str, other.tiles.division)),
                       "".join(map(str, other.tiles.backward_division)))  # fmt: skip
            sizes = receive_buffer_bytes(other).max(axis=1).tolist()
            took = [round(1e9 * s) for s in predict(other)]
            lines.append(f"{what}: {' '.join(divided)}, {took} ns, {sizes} bytes, "
                         f"{len(other.transfers)} transfers")  # fmt: skip
        found[name] = "\n".join(lines)
    workload = workload_of(placed(masks, QUICK))
    for name, borders in (("larger", coarser(workload)), ("smaller", finer(workload))):
        cut = recut(workload, borders)
        columns = ("block_sequence", "block_start", "block_end", "compute_q", "compute_kv",
                   "compute_kind", "compute_pairs")  # fmt: skip
        found[name] = "\n".join(f"{c}: {getattr(cut, c).tolist()}" for c in columns)
    snapshots.check("timeline_alternatives", found)
