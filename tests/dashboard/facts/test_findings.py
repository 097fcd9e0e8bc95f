import numpy as np
import pytest

from dcp_dashboard.facts.findings import answers, findings, longest_waits
from dcp_dashboard.facts.quantities import duration
from dcp_dashboard.facts.traces import find_waits
from dcp_dashboard.library.plans import load_file
from dcp_planner import Trace, simulate, write_plan

MS = 1_000_000
KIND = {"compute": 0, "send": 3, "receive": 4, "wait": 5}  # of EVENT_KINDS
# device, lane, start ms, end ms, backward, division, peer, name
EVENTS = [
    (0, "compute", 0, 10, 0, 0, -1, "attention"),
    (0, "send", 1, 7, 0, 1, 1, "kv 0"),
    (0, "send", 1, 5, 0, 1, 2, "kv 0"),
    (1, "compute", 0, 4, 0, 0, -1, "attention"),
    (1, "receive", 1, 7, 0, 1, 0, "kv 0"),
    (1, "receive", 2, 5, 0, 1, 2, "kv 4"),
    (1, "wait", 4, 7, 0, 1, -1, "wait"),
    (1, "compute", 7, 8, 0, 1, -1, "attention"),
    (2, "compute", 0, 4, 0, 0, -1, "attention"),
    (2, "receive", 1, 5, 0, 1, 0, "kv 0"),
    (2, "wait", 4, 5, 0, 1, -1, "wait"),
    (2, "compute", 5, 8, 0, 1, -1, "attention"),
]


def trace_of(events):
    rows = [
        (start * MS, end * MS, start * MS, device, KIND[lane], backward, division, peer, 0, -1)
        for device, lane, start, end, backward, division, peer, _ in events
    ]
    return Trace.of_rows("measured", np.array(rows, int).reshape(-1, 10), [e[-1] for e in events])


def test_the_longest_wait_names_the_message_that_ended_it():
    finding = longest_waits(trace_of(EVENTS))[0]
    assert finding.text == (
        "Device 1 waits 3\u00a0ms in division 1 (forward) for device 0: kv 0 is the last to arrive."
    )
    assert finding.selected == "division.1~backward.0~device.1~peer.0"
    assert finding.time_ns == (4 * MS, 7 * MS)


def test_a_wait_is_ended_by_a_message_of_its_own_direction():
    late = (1, "receive", 2, 7, 1, 1, 2, "dkv 4")  # arrives last, in the next pass already
    kv = (1, "receive", 1, 6, 0, 1, 0, "kv 0")
    events = [kv if event[-1] == "kv 0" and event[:2] == kv[:2] else event for event in EVENTS]
    for order in (1, -1):
        (wait, *_) = find_waits(trace_of([*events, late][::order]), 5, device=1)
        assert (wait.peer, wait.message, wait.direction) == (0, "kv 0", "forward")


def test_waits_of_one_division_are_summed():
    extra = [(2, "wait", 5 + i, 6 + i, 0, 1, -1, "wait") for i in (1, 3, 5)]
    assert longest_waits(trace_of(EVENTS + extra))[0].text.startswith(
        "Device 2 waits 4\u00a0ms in division 1 (forward)"
    )


def test_the_two_directions_are_told_apart():
    backward = [(d, lane, s + 20, e + 20, 1, div, p, n) for d, lane, s, e, _, div, p, n in EVENTS]
    backward.append((1, "wait", 28, 31, 1, 1, -1, "wait"))
    assert "Device 1 waits 6\u00a0ms in division 1 (backward)" in (
        longest_waits(trace_of(EVENTS + backward))[0].text
    )


def test_a_wait_for_nothing_that_arrives_names_nobody():
    alone = [event for event in EVENTS if event[1] not in ("send", "receive")]
    assert (
        longest_waits(trace_of(alone))[0].text
        == "Device 1 waits 3\u00a0ms in division 1 (forward)."
    )


def test_no_wait_at_all_is_said():
    busy = [event for event in EVENTS if event[1] != "wait"]
    assert longest_waits(trace_of(busy))[0].text == "No device ever waits."


@pytest.fixture
def loaded(tmp_path, small_plan):
    trace = simulate(small_plan)
    still = Trace.of_rows("measured", np.zeros((0, 10), int), [])
    write_plan(tmp_path / "a.dcpplan", small_plan, (trace, still))
    return load_file(tmp_path / "a.dcpplan")


def test_the_most_costly_cause_is_the_answer_and_the_others_are_findings(loaded):
    found, diagnosis = findings(loaded, "simulated"), loaded.predicted.diagnosis
    worth = [cause for cause in diagnosis.causes if cause.saves_s > 0.01 * diagnosis.seconds]
    most, rest, spent = answers(loaded, "simulated")
    told = [f for f in found if "it would take" in f.text]
    assert len(told) + 1 == len(worth) > 1
    for cause, finding in zip(worth, (most, *told), strict=True):
        assert f"it would take {duration(cause.saves_s)} less" in finding.text
        place = f"device.{cause.where['device']}" if "device" in cause.where else ""
        assert finding.selected == place
    assert rest.text.startswith("Next come")
    assert spent.text.startswith(f"The plan takes {duration(diagnosis.seconds)}: its devices")
    every = (most, rest, spent, *found)
    assert all(finding.rule.endswith(".") for finding in every)
    assert all(start < end for start, end in (f.time_ns for f in every if f.time_ns))


def test_a_trace_without_time_is_no_error(loaded):
    assert [f.text for f in answers(loaded, "measured")] == ["The trace holds no events."]
    assert findings(loaded, "measured") == ()
