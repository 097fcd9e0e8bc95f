"""Files for Perfetto, read back as it reads Chrome's trace events."""

import json
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dcp_planner import LANES, Trace, to_perfetto


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
