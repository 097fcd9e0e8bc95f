"""Findings: what stands out in a trace, as sentences with their rules.

Every finding is a maximum or a share that the reader can check in the timeline.
"""

from dataclasses import dataclass

import numpy as np

from dcp_dashboard.facts.quantities import duration, percent, ratio, size
from dcp_dashboard.facts.text import device_selection, division_selection, pair_selection
from dcp_dashboard.facts.traces import Wait, find_waits
from dcp_dashboard.library.summary import DeviceTotals, imbalance
from dcp_planner import Trace

MIN_SHARE = 0.005
"""Shares of the run below this are worth no sentence."""

NUM_WAITS = 2
"""Number of longest waits that are named."""

OUTSTANDING = 1.5
"""A link stands out when it carries this many times the mean of the links in use."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence, its rule, and its place.

    Attributes:
        text, rule: shown.
        selected: selection of the thing that it names, empty if none.
        time_ns: the part of the trace that it is about, or ``None``.
    """

    text: str
    rule: str
    selected: str = ""
    time_ns: tuple[int, int] | None = None


def findings(trace: Trace, totals: DeviceTotals) -> tuple[Finding, ...]:
    """Return the findings of a run, the most costly first."""
    if trace.seconds() == 0:
        return (Finding("The trace holds no events.", "No event has a duration."),)
    found = (
        *longest_waits(trace),
        waiting(trace, len(totals.tokens)),
        last_device(trace, len(totals.tokens)),
        busiest_device(totals),
        busiest_link(totals),
    )
    return tuple(finding for finding in found if finding is not None)


def longest_waits(trace: Trace) -> list[Finding]:
    """Name the devices and divisions with the longest waits, and the devices they wait for."""
    worst = find_waits(trace, NUM_WAITS)
    if not worst:
        return [Finding("No device ever waits.", "The trace has no event on the wait lanes.")]
    return [_wait_finding(wait) for wait in worst if wait.seconds >= MIN_SHARE * trace.seconds()]


def _wait_finding(wait: Wait) -> Finding:
    where = f"division {wait.division} ({wait.direction})"
    text = f"Device {wait.device} waits {duration(wait.seconds)} in {where}"
    if wait.peer >= 0:
        end = "to reach it" if wait.is_sent else "to arrive"
        text += f" for device {wait.peer}: {wait.message} is the last {end}"
    chosen = division_selection(wait.division, wait.direction, wait.device)
    return Finding(
        text + ".",
        "Waits summed by device, division and direction; the largest sums. The message is the one "
        "of that device and direction that ends last within its longest wait.",
        chosen,
        (wait.start_ns, wait.end_ns),
    )


def waiting(trace: Trace, num_devices: int) -> Finding | None:
    """State the share of all devices' time that is exposed communication, and the worst device."""
    per_device = trace.lane_seconds("wait", num_devices)
    share = float(per_device.sum() / (trace.seconds() * num_devices))
    if share < MIN_SHARE:
        return None
    most = int(per_device.argmax())
    return Finding(
        f"Devices wait {percent(share)} of the time; most on device {most} "
        f"({duration(per_device[most])}).",
        "Time on the wait lanes over the number of devices times the length of the run.",
        device_selection(most),
    )


def last_device(trace: Trace, num_devices: int) -> Finding | None:
    """Name the device that finishes last, when the others finish noticeably earlier."""
    ends = np.zeros(num_devices, np.int64)
    np.maximum.at(ends, trace.device, trace.end_ns)
    last = int(ends.argmax())
    lag = float(ends[last] - np.median(ends)) / 1e9
    if lag < MIN_SHARE * trace.seconds():
        return None
    return Finding(
        f"Device {last} finishes last, {duration(lag)} after the median device.",
        "End of the last event of each device; the largest against the median.",
        device_selection(last),
        (int(np.median(ends)), int(ends[last])),
    )


def busiest_device(totals: DeviceTotals) -> Finding | None:
    """Name the device with the most visible pairs, when that is noticeably above the mean."""
    above = imbalance(totals.pairs)
    if above < 1 + MIN_SHARE:
        return None
    most = int(totals.pairs.argmax())
    return Finding(
        f"Device {most} computes most: {ratio(above)} times the mean.",
        "Visible pairs of the tiles of each device; the largest over the mean.",
        device_selection(most),
    )


def busiest_link(totals: DeviceTotals) -> Finding | None:
    """Name the ordered pair of devices between which most bytes move, when it stands out."""
    traffic = totals.traffic_bytes
    total = int(traffic.sum())
    if total == 0:
        return Finding("No byte moves between devices.", "The plan has no transfers.")
    if traffic.max() < OUTSTANDING * traffic[traffic > 0].mean():
        return None
    source, target = np.unravel_index(int(traffic.argmax()), traffic.shape)
    return Finding(
        f"Device {source} sends device {target} the most: {size(traffic.max())}, "
        f"{percent(traffic.max() / total)} of all bytes.",
        f"Bytes of all transfers by source and target; the largest, if at least {OUTSTANDING} "
        "times the mean of the links in use.",
        pair_selection(int(source), int(target)),
    )
