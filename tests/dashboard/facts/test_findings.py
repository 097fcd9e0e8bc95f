import re
from dataclasses import replace

import numpy as np
import pytest

from dcp_dashboard.api.devices import path_payload
from dcp_dashboard.api.encoding import decode
from dcp_dashboard.facts.findings import answers, findings, longest_waits
from dcp_dashboard.facts.quantities import duration, percent
from dcp_dashboard.facts.traces import find_waits
from dcp_dashboard.library.plans import load_file
from dcp_planner import LANES, Trace, simulate, write_plan

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


BUSY = [event for event in EVENTS if event[1] != "wait"]
ALONE = [event for event in EVENTS if event[1] not in ("send", "receive")]
LATER = [(2, "wait", 5 + i, 6 + i, 0, 1, -1, "wait") for i in (1, 3, 5)]
BACKWARD = [(d, lane, s + 20, e + 20, 1, div, p, n) for d, lane, s, e, _, div, p, n in EVENTS]


@pytest.mark.parametrize(
    ("events", "text"),
    [
        (EVENTS, "Device 1 waits 3␣ms in division 1 (forward) until the last message, kv 0, "
         "arrives from device 0."),
        (EVENTS + LATER, "Device 2 waits 4␣ms in division 1 (forward) until"),  # all of a division
        ([*EVENTS, *BACKWARD, (1, "wait", 28, 31, 1, 1, -1, "wait")],
         "Device 1 waits 6␣ms in division 1 (backward) until"),
        (ALONE, "Device 1 waits 3␣ms in division 1 (forward)."),
        (BUSY, "No device waits."),
    ],
)  # fmt: skip
def test_the_longest_wait_names_the_message_that_ended_it(events, text):
    finding = longest_waits(trace_of(events))[0]
    assert finding.text.replace("\u00a0", "␣").startswith(text)
    if events is EVENTS:
        assert finding.selected == "division.1~backward.0~device.1~peer.0"
        assert finding.time_ns == (4 * MS, 7 * MS)


def test_a_wait_is_ended_by_a_message_of_its_own_direction():
    late = (1, "receive", 2, 7, 1, 1, 2, "dkv 4")  # arrives last, in the next pass already
    kv = (1, "receive", 1, 6, 0, 1, 0, "kv 0")
    events = [kv if event[-1] == "kv 0" and event[:2] == kv[:2] else event for event in EVENTS]
    for order in (1, -1):
        (wait, *_) = find_waits(trace_of([*events, late][::order]), 5, device=1)
        assert (wait.peer, wait.message, wait.direction) == (0, "kv 0", "forward")


SHOWN_BY = {"links": "send", "latency": "receive", "launches": None, "waves": "compute",
            "tiles": "compute"}  # fmt: skip


def check_step(trace, finding, lane):
    """The finding selects an event of a lane, and shows time of that event or just before it."""
    number = int(re.match(r"event\.(\d+)~source\.simulated~device\.", finding.selected)[1])
    event = np.lexsort((trace.start_ns, trace.lane, trace.device))[number]
    assert f"device.{trace.device[event]}~" in finding.selected
    assert lane is None or LANES[trace.lane[event]] == lane
    assert finding.time_ns[0] < finding.time_ns[1] <= trace.end_ns[event]


def test_the_critical_path_is_one_chain_from_the_first_moment_to_the_last(loaded):
    trace = loaded.traces["simulated"]
    header, columns = decode(path_payload(loaded, "simulated"))
    start, end = columns["start"], columns["end"]
    assert start[0] == 0
    assert end[-1] == trace.end_ns.max() - trace.start_ns.min()
    assert np.array_equal(end[:-1], start[1:])
    order = np.lexsort((trace.start_ns, trace.lane, trace.device))
    events = order[columns["event"]]
    assert (end <= trace.end_ns[events]).all()
    assert trace.end_ns[events[-1]] == trace.end_ns.max()
    shares = [float(re.search(r"([\d.]+)\u00a0%$", part["text"])[1]) for part in header["shares"]]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(100, abs=0.2)
    computing = np.isin(trace.kind[events], KIND["compute"]) * (end - start)
    told = next(part for part in header["shares"] if part["text"].startswith("compute"))
    longest = int((computing * (trace.start_ns[events] <= start)).argmax())
    assert told["time"] == f"{start[longest]:.0f}-{end[longest]:.0f}"


@pytest.fixture
def loaded(tmp_path, small_plan):
    trace = simulate(small_plan)
    still = Trace.of_rows("measured", np.zeros((0, 10), int), [])
    write_plan(tmp_path / "a.dcpplan", small_plan, (trace, still))
    return load_file(tmp_path / "a.dcpplan")


def test_the_most_costly_cause_is_the_answer_and_the_others_are_findings(loaded):
    found, diagnosis = findings(loaded, "simulated"), loaded.predicted.diagnosis
    worth = [cause for cause in diagnosis.causes if cause.saves_s > 0.01 * diagnosis.seconds]
    most, rest = answers(loaded, "simulated")
    told = [f for f in found if "the plan would take" in f.text]
    assert len(told) + 1 == len(worth) > 1
    for cause, finding in zip(worth, (most, *told), strict=True):
        share = percent(cause.saves_s / diagnosis.seconds)
        assert f"the plan would take {duration(cause.saves_s)} less ({share})" in finding.text
        where = cause.where.get("device")
        if cause.name in SHOWN_BY:
            check_step(loaded.traces["simulated"], finding, SHOWN_BY[cause.name])
        else:
            assert finding.selected == ("" if where is None else f"device.{where}")
    assert rest.text.startswith("The next costs, each removed alone: ")
    every = (most, rest, *found)
    assert all(finding.rule.endswith(".") for finding in every)
    assert all(start < end for start, end in (f.time_ns for f in every if f.time_ns))


def test_a_trace_without_time_is_no_error(loaded):
    assert [f.text for f in answers(loaded, "measured")] == ["The trace holds no events."]
    assert findings(loaded, "measured") == ()


@pytest.mark.parametrize(
    ("pass_s", "text"),
    [
        (1e-6, "The busiest host needs 2\xa0µs for a layer, hidden behind "),
        (1.0, "The busiest host needs 2\xa0s for a layer, the devices need "),
    ],
)
def test_a_prediction_says_what_hosts_need_that_run_ahead(tmp_path, small_plan, pass_s, text):
    cluster = replace(small_plan.cluster, host_runs_ahead=True, pass_s=pass_s)
    plan = replace(small_plan, cluster=cluster)
    write_plan(tmp_path / "ahead.dcpplan", plan, [simulate(plan)])
    told = answers(load_file(tmp_path / "ahead.dcpplan"), "simulated")
    assert told[-1].text.startswith(text)
    write_plan(tmp_path / "serial.dcpplan", small_plan, [simulate(small_plan)])
    assert "host needs" not in answers(load_file(tmp_path / "serial.dcpplan"), "simulated")[-1].text
