"""Perfetto files, read back with the protobuf classes that Perfetto publishes."""

from collections import defaultdict
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as official

from dcp_planner import LANES, Trace, to_perfetto

EVENT = official.TrackEvent


@dataclass
class Shown:
    """What Perfetto would show of a file."""

    processes: dict[int, str] = field(default_factory=dict)
    tracks: dict[int, tuple[int, str]] = field(default_factory=dict)
    counters: dict[int, int] = field(default_factory=dict)
    slices: list[tuple] = field(default_factory=list)
    counts: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))


def describe(track, shown: Shown) -> None:
    if track.HasField("thread"):
        shown.tracks[track.uuid] = (track.thread.pid, track.thread.thread_name)
    elif track.HasField("counter"):
        assert track.counter.unit == official.CounterDescriptor.UNIT_SIZE_BYTES
        shown.counters[track.uuid] = track.parent_uuid
    else:
        shown.processes[track.process.pid] = track.process.process_name
        assert track.uuid == track.process.pid


def notes_of(event, names, texts):
    return {
        names[note.name_iid]: texts[note.string_value_iid]
        if note.HasField("string_value_iid")
        else note.int_value
        for note in event.debug_annotations
    }


def read(data: bytes) -> Shown:
    """Read a file as Perfetto does: an end closes what began last on its track."""
    shown, open_slices, last_ns = Shown(), defaultdict(list), 0
    names: dict[int, str] = {}
    trace = official.Trace.FromString(data)
    assert trace.packet[0].sequence_flags == 1
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id == 1
        table = packet.interned_data
        names.update({entry.iid: entry.name for entry in table.event_names})
        if table.event_names:
            notes = {entry.iid: entry.name for entry in table.debug_annotation_names}
            texts = {e.iid: e.str.decode() for e in table.debug_annotation_string_values}
        if packet.HasField("track_descriptor"):
            describe(packet.track_descriptor, shown)
        if not packet.HasField("track_event"):
            continue
        event, time = packet.track_event, packet.timestamp
        assert time >= last_ns
        last_ns = time
        if event.type == EVENT.TYPE_SLICE_BEGIN:
            assert not open_slices[event.track_uuid], "slices of a track do not overlap"
            facts = (names[event.name_iid], list(event.flow_ids), notes_of(event, notes, texts))
            open_slices[event.track_uuid].append((time, *facts))
        elif event.type == EVENT.TYPE_SLICE_END:
            begun, *facts = open_slices[event.track_uuid].pop()
            shown.slices.append((shown.tracks[event.track_uuid], begun, time, *facts))
        else:
            assert event.type == EVENT.TYPE_COUNTER
            shown.counts[shown.counters[event.track_uuid]].append((time, event.counter_value))
    assert not any(open_slices.values())
    return shown


def make_trace(rows, source="simulated"):
    start, end, device, lane, division, peer, size = np.array([r[:-1] for r in rows]).T
    kind, forward = np.array([0, 3, 4, 5])[lane], 0 * start
    transfer = [int(r[-1][3:]) if r[-1].startswith("kv") else -1 for r in rows]
    table = [start, end, start, device, kind, forward, division, peer, size, transfer]
    return Trace.of_rows(source, np.column_stack(table), [r[-1] for r in rows])


def names_of(trace):
    return [trace.name_of(i) for i in range(len(trace))]


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


def test_every_event_is_a_slice_on_the_row_of_its_device_and_lane():
    trace = make_trace(ROWS)
    shown = read(to_perfetto(trace))
    assert shown.processes == {1: "device 0", 2: "device 1"}
    assert sorted(shown.tracks.values()) == [
        (1, "compute"), (1, "send"), (1, "send 2"), (2, "compute"), (2, "receive"),
        (2, "receive 2"), (2, "wait"),
    ]  # fmt: skip
    seen = sorted((pid - 1, start, end, name) for (pid, _), start, end, name, *_ in shown.slices)
    assert seen == sorted(
        zip(trace.device.tolist(), trace.start_ns.tolist(), trace.end_ns.tolist(), names_of(trace),
            strict=True)
    )  # fmt: skip


def test_a_message_is_an_arrow_and_says_its_bytes():
    slices = read(to_perfetto(make_trace(ROWS))).slices
    for name, size in (("kv 3", 128), ("kv 4", 256)):
        ends = [(flow, notes) for _, _, _, label, flow, notes in slices if label == name]
        assert len(ends) == 2
        assert ends[0][0] == ends[1][0] != []
        assert [notes["bytes"] for _, notes in ends] == [size, size]
        assert sorted(notes["peer"] for _, notes in ends) == [0, 1]
        assert {(notes["division"], notes["direction"]) for _, notes in ends} == {(1, "forward")}
    flows = {flow for _, _, _, _, found, _ in slices for flow in found}
    assert len(flows) == 2


def test_received_bytes_are_counted_until_their_division_is_done():
    shown = read(to_perfetto(make_trace(ROWS)))
    assert shown.counts == {2: [(31, 128), (45, 384), (70, 0)]}


def test_two_traces_are_two_groups_of_processes():
    trace = make_trace(ROWS)
    slower = make_trace([(2 * r[0], 2 * r[1], *r[2:]) for r in ROWS], "measured")
    shown = read(to_perfetto(trace, slower))
    assert shown.processes == {
        1: "device 0 (predicted)", 2: "device 1 (predicted)", 3: "device 0 (measured)",
        4: "device 1 (measured)",
    }  # fmt: skip
    flows = defaultdict(set)
    for (pid, _), _, _, _, found, _ in shown.slices:
        flows[(pid - 1) // 2].update(found)
    assert len(flows[0]) == len(flows[1]) == 2
    assert flows[0].isdisjoint(flows[1])
    lengths = [end - start for (pid, _), start, end, *_ in shown.slices if pid > 2]
    assert sorted(lengths) == sorted(2 * (r[1] - r[0]) for r in ROWS)


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
    """How many events of a lane lie over each other at most, counting instants at their start."""
    chosen = (trace.device == device) & (trace.lane == lane)
    spans = list(zip(trace.start_ns[chosen], trace.end_ns[chosen], strict=True))
    return max(
        (sum(s == t or s < t < e for s, e in spans) for t in {s for s, _ in spans}), default=0
    )


@pytest.mark.parametrize("seed", range(4))
def test_overlapping_events_take_no_more_rows_than_overlap(seed):
    trace = random_trace(seed)
    shown = read(to_perfetto(trace))  # asserts that no two slices of a track overlap
    rows = defaultdict(set)
    for pid, name in shown.tracks.values():
        rows[pid - 1, name.split()[0]].add(name)
    for (device, lane), used in rows.items():
        assert len(used) == depth(trace, device, LANES.index(lane))
    seen = sorted((pid - 1, start, end, name) for (pid, _), start, end, name, *_ in shown.slices)
    assert seen == sorted(
        zip(trace.device.tolist(), trace.start_ns.tolist(), trace.end_ns.tolist(), names_of(trace),
            strict=True)
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_the_nth_send_is_joined_to_the_nth_receive(seed):
    trace = random_trace(seed)
    ends = defaultdict(lambda: ([], []))
    for i in np.argsort(trace.start_ns, kind="stable").tolist():
        if trace.lane[i] in (1, 2):
            ends[int(trace.transfer[i])][trace.lane[i] - 1].append(int(trace.start_ns[i]))
    wanted = sorted(pair for sent, got in ends.values() for pair in zip(sent, got, strict=False))
    flows = defaultdict(dict)
    for (_, row), start, _, _, found, _ in read(to_perfetto(trace)).slices:
        for flow in found:
            flows[flow][row.split()[0]] = start
    assert sorted((flow["send"], flow["receive"]) for flow in flows.values()) == wanted


def test_an_empty_trace_is_a_file_without_slices():
    nothing = Trace.of_rows("simulated", np.empty((0, 10), int), ())
    assert read(to_perfetto(nothing)).slices == []
