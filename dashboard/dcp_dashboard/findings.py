"""What stands out in a trace, as sentences, each with the rule that produced it.

Nothing is guessed: a finding is a maximum or a share that the reader can check in the timeline.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dcp_dashboard.quantities import duration, percent, ratio, size
from dcp_dashboard.summary import DeviceTotals, imbalance
from dcp_planner import LANES, Trace

MIN_SHARE = 0.005
"""Below half a per cent of the run nothing is worth a sentence."""


OUTSTANDING = 1.5
"""A link stands out when it carries this many times the mean of the links in use."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence and how it was found."""

    text: str
    rule: str


def findings(trace: Trace, totals: DeviceTotals) -> tuple[Finding, ...]:
    """Give the few things worth knowing about a run, the most costly first."""
    if trace.seconds() == 0:
        return (Finding("The trace holds no events.", "No event has a duration."),)
    found = (
        longest_wait(trace),
        waiting(trace, len(totals.tokens)),
        last_device(trace, len(totals.tokens)),
        busiest_device(totals),
        busiest_link(totals),
    )
    return tuple(finding for finding in found if finding is not None)


def longest_wait(trace: Trace) -> Finding | None:
    """Name the device, division and direction with the longest wait, and whose message ended it."""
    waits = np.flatnonzero(trace.lane == LANES.index("wait"))
    if not len(waits):
        return Finding("No device ever waits.", "The trace has no event on the wait lanes.")
    groups, group = np.unique(
        np.stack([trace.is_backward[waits], trace.device[waits], trace.division[waits]]),
        axis=1, return_inverse=True,
    )  # fmt: skip
    total = np.bincount(group, weights=(trace.end_ns - trace.start_ns)[waits])
    worst = int(total.argmax())
    if total[worst] / 1e9 < MIN_SHARE * trace.seconds():
        return None
    is_backward, device, division = (int(value) for value in groups[:, worst])
    members = waits[group == worst]
    longest = int(members[(trace.end_ns - trace.start_ns)[members].argmax()])
    released = _released_by(trace, longest)
    where = f"division {division} ({'backward' if is_backward else 'forward'})"
    text = f"Device {device} waits {duration(total[worst] / 1e9)} in {where}"
    if released is not None:
        verb = "from" if trace.lane[released] == LANES.index("receive") else "to"
        text += f"; the last message is {trace.name[released]} {verb} device {trace.peer[released]}"
    return Finding(
        text + ".",
        "Waits summed by device, division and direction; the largest sum. The message is the one "
        "of that device and direction that ends last within its longest wait.",
    )


def waiting(trace: Trace, num_devices: int) -> Finding | None:
    """Say how much of all devices' time is exposed communication, and on which device most."""
    per_device = trace.lane_seconds("wait", num_devices)
    share = float(per_device.sum() / (trace.seconds() * num_devices))
    if share < MIN_SHARE:
        return None
    most = int(per_device.argmax())
    return Finding(
        f"Devices wait {percent(share)} of the time; most on device {most} "
        f"({duration(per_device[most])}).",
        "Time on the wait lanes over the number of devices times the length of the run.",
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
    )


def _released_by(trace: Trace, wait: int) -> int | None:
    """Give the message of the waiting device that ends last within the wait, or ``None``."""
    is_message = np.isin(trace.lane, (LANES.index("send"), LANES.index("receive")))
    ends_inside = (trace.end_ns > trace.start_ns[wait]) & (trace.end_ns <= trace.end_ns[wait])
    chosen: NDArray[np.intp] = np.flatnonzero(
        is_message
        & ends_inside
        & (trace.device == trace.device[wait])
        & (trace.is_backward == trace.is_backward[wait])
        & (trace.peer >= 0)
    )
    return int(chosen[trace.end_ns[chosen].argmax()]) if len(chosen) else None
