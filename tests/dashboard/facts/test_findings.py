import numpy as np
import pytest

from dcp_dashboard.facts.findings import (
    busiest_device,
    busiest_link,
    findings,
    last_device,
    longest_waits,
    waiting,
)
from dcp_dashboard.facts.traces import find_waits
from dcp_dashboard.library.summary import DeviceTotals
from dcp_planner import Trace

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


def totals_of(pairs=(10, 10, 10), traffic=((0, 4, 4), (0, 0, 0), (0, 4, 0))):
    traffic = np.array(traffic)
    return DeviceTotals(
        [1, 1, 1], [1, 1, 1], pairs, traffic.sum(1), traffic.sum(0), traffic, [2, 2, 2]
    )


def test_the_longest_wait_names_the_message_that_ended_it():
    finding = longest_waits(trace_of(EVENTS))[0]
    assert finding.text == (
        "Device 1 waits 3\u00a0ms in division 1 (forward) for device 0: kv 0 is the last to arrive."
    )
    assert finding.selected == "division.1~backward.0~device.1"
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


def test_the_share_of_waiting_is_over_all_devices():
    assert waiting(trace_of(EVENTS), 3).text == (
        "Devices wait 13.3\u00a0% of the time; most on device 1 (3\u00a0ms)."  # (3 + 1) / (3 * 10)
    )


def test_the_last_device_is_held_against_the_median():
    assert last_device(trace_of(EVENTS), 3).text == (
        "Device 0 finishes last, 2\u00a0ms after the median device."
    )


def test_devices_that_finish_together_are_no_finding():
    level = [event for event in EVENTS if event[0] > 0]
    shifted = [(d - 1, *rest) for d, *rest in level]
    assert last_device(trace_of(shifted), 2) is None


def test_balance_is_a_finding_only_when_it_is_off():
    assert busiest_device(totals_of()) is None
    assert busiest_device(totals_of(pairs=(10, 30, 20))).text == (
        "Device 1 computes most: 1.50 times the mean."
    )


def test_a_link_is_a_finding_only_when_it_stands_out():
    assert busiest_link(totals_of()) is None
    assert busiest_link(totals_of(traffic=((0, 4, 40), (0, 0, 0), (0, 4, 0)))).text == (
        "Device 0 sends device 2 the most: 40\u00a0B, 83.3\u00a0% of all bytes."
    )
    nothing = np.zeros((3, 3), np.int64)
    assert busiest_link(totals_of(traffic=nothing)).text == "No byte moves between devices."


def test_every_finding_says_its_rule():
    found = findings(trace_of(EVENTS), totals_of(pairs=(10, 30, 20)))
    assert len(found) == 5
    assert all(finding.rule.endswith(".") for finding in found)


@pytest.mark.parametrize("count", [0, 1])
def test_a_trace_without_time_is_no_error(count):
    still = [(0, "compute", 0, 0, 0, 0, -1, "attention")] * count
    empty = trace_of(still)
    assert [f.text for f in findings(empty, totals_of())] == ["The trace holds no events."]
