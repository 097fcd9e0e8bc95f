"""Timelines of small plans, event by event, and what follows from them; files for Perfetto."""

import json
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from dense_blocks import sparsity_of
from recorded_runs import as_recorded
from short_texts import short

from dcp_planner import (
    LANES,
    Cluster,
    ModelShape,
    PlanConfig,
    Trace,
    build_plan,
    predict,
    simulate,
    to_perfetto,
)
from dcp_planner.causes import (
    ACCOUNTS,
    STEPS,
    compare_with_run,
    find_causes,
    find_causes_of_run,
    three_sentences,
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
from dcp_planner.causes.dependencies import Reason, find_dependencies
from dcp_planner.causes.explanation import path_lines
from dcp_planner.causes.path import account_for, critical_path
from dcp_planner.model.problem import DIRECTIONS, Placement, build_workload
from dcp_planner.schedule.divisions import Manner, Schedule, cut_divisions
from dcp_planner.schedule.emission import assemble
from dcp_planner.simulation.simulator import PlanModel, mean_compute_seconds
from dcp_planner.simulation.trace import COLUMNS, measure_trace
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
    assert predict(idle).seconds == 0
    snapshots.check("timeline_events", found)


def test_perfetto(masks, snapshots):
    plan = build_plan(masks.pack([masks.causal(8)], 4), TINY, QUICK, PlanConfig("static:ring"))
    trace = simulate(plan)
    one, two = to_perfetto(trace).decode(), to_perfetto(trace, as_recorded(trace)).decode()
    more = [line for line in two.split("\n") if line not in one.split("\n")]
    snapshots.check("timeline_perfetto", {"one": one, "more of two": "\n".join(more)})


def test_causes(masks, snapshots):
    found = {}
    idle = PlanConfig("static:contiguous", divisions=2)
    documents = masks.pack([masks.causal(4)] * 3, 4)
    nothing = masks.pack([np.zeros((4, 4), bool)], 4)
    plans = {
        "quick": placed(masks, QUICK), "busy": placed(masks, BUSY),
        "two head groups": placed(masks, BUSY, ModelShape(2, 2, 1, 2), groups=2),
        "an idle device": replace(
            build_plan(documents, TINY, BUSY, idle), sequence_names=("a", "b", "c")
        ),
        "nothing to do": build_plan(nothing, TINY, BUSY, idle),
    }  # fmt: skip
    for name, plan in plans.items():
        why, model = find_causes(plan), PlanModel.of(plan)
        run = find_causes_of_run(plan, as_recorded(simulate(plan)))
        evenness = ("as placed", "busy devices", "all devices")
        found[name] = short({
            "seconds_without": {one: 1e9 * seconds_without(model, [one]) for one in FREE},
            "evenness": [1e9 * s for e in evenness for s in predict(plan, e)],
            "mean_compute": 1e9 * mean_compute_seconds(plan),
            "causes": why.diagnosis.to_json(), "hidden": why.hidden_share,
            "causes_of_run": run.diagnosis.to_json(),
            "path": [line.text for line in path_lines(run)],
            "sentences": three_sentences(why, "{:.3g} s".format),
        })  # fmt: skip
    snapshots.check("timeline_causes", found)


def test_runs_beside_their_predictions(masks, snapshots):
    """Layers of a run, a part of a run, and every class of work, with messages of every size."""
    cluster = Cluster(
        2, 2, flops_per_s=1e12, inter_bytes_per_s=1e9, rails=2, spine_bytes_per_s=5e8,
        kernel_launch_s=1e-5, copy_bytes_per_s=1e11, pass_s=1e-4, host_message_s=1e-6,
        inter_latency_s=3e-5,
    )  # fmt: skip
    documents = masks.pack([masks.causal(n) for n in (100, 70, 9)], 40)
    config = PlanConfig("static:grid", divisions=3)
    plan = build_plan(documents, ModelShape(4, 4, 2048, 4), cluster, config)
    slow = {"flops_per_s": 4e11, "spine_bytes_per_s": 1e8, "pass_s": 4e-4, "latency_s": 2e-3}
    runs = {
        name: as_recorded(simulate(replace(plan, cluster=replace(cluster, **{name: value}))))
        for name, value in slow.items()
    }
    layers = _repeated(as_recorded(simulate(plan)), (1.0, 3.0, 1.1))
    kept = np.flatnonzero((layers.device != 2) | ~layers.is_backward | (layers.kind != 0))
    names = [layers.name_of(event) for event in kept]
    part = Trace.of_rows("measured", _rows_of(layers)[kept], names)
    runs |= {"three layers": layers, "no attention of a device": part}
    found = {}
    for name, run in runs.items():
        compared = compare_with_run(plan, run)
        times = [round(1e6 * s) for s in (compared.predicted_s, compared.measured_s,
                                          compared.fitted_s)]  # fmt: skip
        lines = [
            f"{one.name}: {one.pieces} x, {1e6 * one.predicted_s:.0f} -> "
            f"{1e6 * one.measured_s:.0f}{' differs' * one.differs}, {one.constant} {one.now:.4g} "
            f"-> {one.set_to:.4g}, {one.explains:.3f}"
            for one in compared.classes
        ]
        found[name] = "\n".join([f"predicted, measured, fitted: {times} us", *lines])
    snapshots.check("timeline_runs", found)


def _repeated(trace, factors):
    """Let layers follow each other, each slower by a factor."""
    names, begin, layers = ("start_ns", "end_ns", "ready_ns"), 0, []
    for factor in factors:
        moved = {n: begin + (getattr(trace, n) * factor).astype(np.int64) for n in names}
        layers.append(replace(trace, **moved))
        begin = int(layers[-1].end_ns.max())
    texts = [trace.name_of(event) for event in range(len(trace))] * len(factors)
    return Trace.of_rows("measured", np.concatenate([*map(_rows_of, layers)]), texts)


def _rows_of(trace):
    return np.column_stack([getattr(trace, name).astype(np.int64) for name in COLUMNS])


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


def nanoseconds(text):
    whole, part = text.split(".")
    assert len(part) == 3
    return 1000 * int(whole) + int(part)


def read(data):
    """Read what Perfetto shows; slices of a thread must not overlap, or it drops the second."""
    shown = SimpleNamespace(processes={}, slices=[], counts=defaultdict(list))
    tracks, reached = {}, defaultdict(int)
    events = json.loads(data, parse_float=nanoseconds)["traceEvents"]
    for event in (e for e in events if e["ph"] == "M"):
        if event["name"] == "process_name":
            shown.processes[event["pid"]] = event["args"]["name"]
        else:
            assert (event["pid"], event["tid"]) not in tracks
            tracks[event["pid"], event["tid"]] = (event["pid"], event["args"]["name"])
    shown.tracks = list(tracks.values())
    slices = [e for e in events if e["ph"] == "X"]
    for e in sorted(slices, key=lambda e: (e["pid"], e["tid"], e["ts"], e["ts"] + e["dur"])):
        track = tracks[e["pid"], e["tid"]]
        assert reached[track] <= e["ts"], "slices of a track do not overlap"
        reached[track] = e["ts"] + e["dur"]
        ways = [way for way in ("flow_in", "flow_out") if e.get(way)]
        assert len(ways) == ("bind_id" in e)
        if ways:
            lane = {"flow_in": "receive", "flow_out": "send"}[ways[0]]
            assert track[1].startswith(lane)
        flow = [e["bind_id"]] if ways else []
        facts = (e["name"], flow, e["args"])
        shown.slices.append((track, e["ts"], e["ts"] + e["dur"], *facts))
    for e in events:
        if e["ph"] == "C":
            shown.counts[e["pid"]].append((e["ts"], e["args"]["bytes"]))
    return shown


def make_trace(rows):
    start, end, device, lane, division, peer, size = np.array([r[:-1] for r in rows]).T
    kind, forward = np.array([0, 3, 4, 5])[lane], 0 * start
    transfer = [int(r[-1][3:]) if r[-1].startswith("kv") else -1 for r in rows]
    table = [start, end, start, device, kind, forward, division, peer, size, transfer]
    return Trace.of_rows("simulated", np.column_stack(table), [r[-1] for r in rows])


ROWS = [  # start, end, device, lane, division, peer, bytes, name
    (0, 50, 0, 0, 0, -1, 0, "attention"),
    (5, 30, 0, 1, 1, 1, 128, "kv 3"),
    (10, 40, 0, 1, 1, 1, 256, "kv 4"),
    (60, 90, 0, 0, 1, -1, 0, "attention"),
    (6, 31, 1, 2, 1, 0, 128, "kv 3"),
    (11, 45, 1, 2, 1, 0, 256, "kv 4"),
    (20, 20, 1, 3, 1, -1, 0, "wait for inputs 1"),
    (50, 70, 1, 0, 1, -1, 0, "attention"),
]


def test_messages_that_overlap_get_rows_and_received_bytes_count_until_their_division_is_done():
    shown = read(to_perfetto(make_trace(ROWS)))
    assert sorted(shown.tracks) == [
        (1, "compute"), (1, "send"), (1, "send 2"), (2, "compute"), (2, "receive"),
        (2, "receive 2"), (2, "wait"),
    ]  # fmt: skip
    assert shown.counts == {2: [(31, 128), (45, 384), (70, 0)]}


def random_trace(seed, size=300):
    """Messages that overlap, touch and last no time, on few devices and names."""
    rng = np.random.default_rng(seed)
    start = rng.integers(0, 60, size)
    lane = rng.integers(0, 4, size)
    is_message = (lane == 1) | (lane == 2)
    rows = zip(
        start.tolist(), (start + rng.integers(0, 9, size)).tolist(),
        rng.integers(0, 3, size).tolist(), lane.tolist(), rng.integers(-1, 3, size).tolist(),
        np.where(is_message, rng.integers(0, 3, size), -1).tolist(),
        np.where(is_message, rng.integers(1, 10**12, size), 0).tolist(),
        [f"kv {n}" for n in rng.integers(0, 4, size)], strict=True,
    )  # fmt: skip
    trace = make_trace(list(rows))
    return replace(trace, is_backward=rng.random(size) < 0.5)


def depth(trace, device, lane):
    """Count the events of a lane that lie over each other at most, instants at their start."""
    chosen = (trace.device == device) & (trace.lane == lane)
    spans = list(zip(trace.start_ns[chosen], trace.end_ns[chosen], strict=True))
    return max(
        (sum(s == t or s < t < e for s, e in spans) for t in {s for s, _ in spans}), default=0
    )


@pytest.mark.parametrize("seed", range(4))
def test_slices_are_the_events_on_as_many_rows_as_overlap_and_arrows_join_the_nth_messages(seed):
    trace = random_trace(seed)
    shown = read(to_perfetto(trace))  # asserts that no two slices of a track overlap
    rows = defaultdict(set)
    for pid, name in shown.tracks:
        rows[pid - 1, name.split()[0]].add(name)
    for (device, lane), used in rows.items():
        assert len(used) == depth(trace, device, LANES.index(lane))
    seen = sorted((pid - 1, start, end, name) for (pid, _), start, end, name, *_ in shown.slices)
    names = [trace.name_of(event) for event in range(len(trace))]
    columns = (trace.device.tolist(), trace.start_ns.tolist(), trace.end_ns.tolist(), names)
    assert seen == sorted(zip(*columns, strict=True))
    ends = defaultdict(lambda: ([], []))
    for i in np.argsort(trace.start_ns, kind="stable").tolist():
        if trace.lane[i] in (1, 2):
            ends[int(trace.transfer[i])][trace.lane[i] - 1].append(int(trace.start_ns[i]))
    wanted = sorted(pair for sent, got in ends.values() for pair in zip(sent, got, strict=False))
    flows = defaultdict(dict)
    for (_, row), start, _, _, found, _ in shown.slices:
        for flow in found:
            flows[flow][row.split()[0]] = start
    assert sorted((flow["send"], flow["receive"]) for flow in flows.values()) == wanted


def test_an_empty_trace_has_no_slices_and_takes_no_numbers_of_processes_and_arrows():
    nothing, trace = Trace.of_rows("simulated", np.empty((0, 10), int), ()), make_trace(ROWS)
    assert read(to_perfetto(nothing)).slices == []
    alone, behind = read(to_perfetto(trace)), read(to_perfetto(nothing, trace))
    assert behind.processes == {pid: f"{name} (predicted)" for pid, name in alone.processes.items()}
    assert (behind.slices, behind.counts) == (alone.slices, alone.counts)
