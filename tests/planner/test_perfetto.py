"""Perfetto files, read back by a decoder of the wire format that shares nothing with the writer."""

import numpy as np

from dcp_planner import Trace, to_perfetto


def fields(data):
    """Decode one protobuf message: (field number, value) in order; bytes stay bytes."""
    at, found = 0, []

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            value = varint()
        elif key & 7 == 1:
            value, at = int.from_bytes(data[at : at + 8], "little"), at + 8
        else:
            assert key & 7 == 2
            size = varint()
            value, at = data[at : at + size], at + size
        found.append((key >> 3, value))
    return found


def make_trace():
    rows = [  # start, end, device, lane, division, peer, bytes, name
        (0, 50, 0, 0, 0, -1, 0, "attention"),
        (5, 30, 0, 1, 1, 1, 128, "kv 3"),
        (10, 40, 0, 1, 1, 1, 256, "kv 4"),
        (60, 90, 0, 0, 1, -1, 0, "attention"),
        (6, 31, 1, 2, 1, 0, 128, "kv 3"),
        (11, 45, 1, 2, 1, 0, 256, "kv 4"),
        (20, 20, 1, 3, 1, -1, 0, "wait for inputs 1"),
    ]
    start, end, device, lane, division, peer, size = np.array([r[:-1] for r in rows]).T
    return Trace(
        source="simulated", start_ns=start, end_ns=end, device=device.astype(np.int32),
        lane=lane.astype(np.uint8), is_backward=np.zeros(len(rows), bool),
        division=division.astype(np.int32), peer=peer.astype(np.int32), size_bytes=size,
        name=tuple(r[-1] for r in rows),
    )  # fmt: skip


def read(data):
    """Give names of processes, rows (device, name) and slices as Perfetto would show them."""
    processes, rows, slices, open_slices = {}, {}, [], {}
    for number, packet in fields(data):
        assert number == 1
        parts = dict(fields(packet))
        assert parts[10] == 1
        if 60 in parts:
            track = dict(fields(parts[60]))
            if 3 in track:
                process = dict(fields(track[3]))
                processes[process[1]] = process[6].decode()
            else:
                thread = dict(fields(track[4]))
                rows[track[1]] = (thread[1], thread[5].decode())
        if 11 in parts:
            event, time = fields(parts[11]), parts[8]
            plain = dict(event)
            if plain[9] == 1:
                assert plain[11] not in open_slices, "slices of a row do not overlap"
                notes = {}
                for note in (dict(fields(v)) for k, v in event if k == 4):
                    notes[note[10].decode()] = note[6].decode() if 6 in note else note[4]
                open_slices[plain[11]] = (time, plain[23].decode(), plain.get(47), notes)
            else:
                started, *rest = open_slices.pop(plain[11])
                slices.append((rows[plain[11]], started, time, *rest))
    assert not open_slices
    return processes, rows, slices


def test_every_event_is_a_slice_on_the_row_of_its_device_and_lane():
    trace = make_trace()
    processes, rows, slices = read(to_perfetto(trace))
    assert processes == {1: "device 0", 2: "device 1"}
    assert sorted(rows.values()) == [
        (1, "compute"), (1, "send"), (1, "send 2"), (2, "receive"), (2, "receive 2"), (2, "wait"),
    ]  # fmt: skip
    seen = sorted((device - 1, start, end, name) for (device, _), start, end, name, *_ in slices)
    assert seen == sorted(
        zip(trace.device.tolist(), trace.start_ns.tolist(), trace.end_ns.tolist(), trace.name,
            strict=True)
    )  # fmt: skip


def test_a_message_is_an_arrow_and_says_its_bytes():
    _, _, slices = read(to_perfetto(make_trace()))
    for name, size in (("kv 3", 128), ("kv 4", 256)):
        ends = [(flow, notes) for _, _, _, label, flow, notes in slices if label == name]
        assert len(ends) == 2
        assert ends[0][0] == ends[1][0] is not None
        assert [notes["bytes"] for _, notes in ends] == [size, size]
        assert {notes["division"] for _, notes in ends} == {1}
    flows = {flow for _, _, _, _, flow, _ in slices if flow is not None}
    assert len(flows) == 2
