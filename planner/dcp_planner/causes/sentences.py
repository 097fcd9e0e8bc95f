"""Causes in words: three sentences for a plan, lines for its critical path."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from dcp_planner.causes.diagnosis import Cause, Diagnosis, Name, Why
from dcp_planner.causes.path import STEPS
from dcp_planner.simulation.trace import EVENT_KINDS, LANES, Trace

TimeText: TypeAlias = Callable[[float], str]
ShareText: TypeAlias = Callable[[float], str]

NOUNS: Mapping[Name, str] = {
    "balance": "uneven compute",
    "waves": "kernels that leave multiprocessors idle",
    "tiles": "pairs that kernels compute but nobody sees",
    "links": "bytes on links",
    "latency": "latency of messages",
    "launches": "launches",
    "idle": "devices that compute nothing",
    "order": "waiting for what others do first",
    "memory": "giving buffers back early",
}
"""Causes as nouns: the time is lost to ..."""

CONDITIONS: Mapping[Name, str] = {
    "balance": "with compute shared evenly",
    "waves": "if kernels kept all multiprocessors busy",
    "tiles": "if kernels computed visible pairs only",
    "links": "with infinitely fast links",
    "latency": "without latency",
    "launches": "without launches",
    "idle": "if idle devices took their share",
    "order": "if nobody waited for what others do first",
    "memory": "without a limit of memory",
}
"""The condition that is imagined instead of each cause."""


def joined(parts: list[str]) -> str:
    """List parts as a sentence does.

    >>> joined(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(part for part in (", ".join(parts[:-1]), *parts[-1:]) if part)


def percent(share: float) -> str:
    """Write a share.

    >>> percent(0.1234)
    '12.3%'
    """
    return f"{share:.1%}"


LEAST_SHARE = 0.01
"""Causes that save a smaller share of the time get no sentence."""


@dataclass(frozen=True, slots=True)
class PathLine:
    """A step of the critical path.

    Attributes:
        event: row of the trace.
        start_s, seconds: when, and for how long.
        share: of the whole path.
        step: of `STEPS`.
        text: what happens, for people.
    """

    event: int
    start_s: float
    seconds: float
    share: float
    step: str
    text: str

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; `Any`: texts and numbers."""
        return {name: getattr(self, name) for name in self.__slots__}


def three_sentences(
    why: Why, seconds: TimeText, share: ShareText = percent
) -> tuple[str, str, str]:
    """Describe in three sentences how a plan spends its time and which causes cost most."""
    total, causes = why.diagnosis.seconds, worth_saying(why.diagnosis)
    least = share(LEAST_SHARE)
    if not causes:
        first = f"No single cause costs {least} of the time: what is left is computing."
        return headline(why, seconds, share), first, "There is little to gain."
    first = f"Most is lost to {NOUNS[causes[0].name]}: {_would(causes[0], total, seconds, share)}"
    told = joined([f"{NOUNS[cause.name]} ({seconds(cause.saves_s)})" for cause in causes[1:]])
    rest = f"Next come {told}, each alone; nothing" if told else "Nothing"
    return headline(why, seconds, share), first, f"{rest} else saves {least}."


def worth_saying(diagnosis: Diagnosis) -> tuple[Cause, ...]:
    """Keep the causes that save at least `LEAST_SHARE` of the time."""
    least = LEAST_SHARE * diagnosis.seconds
    return tuple(cause for cause in diagnosis.causes if cause.saves_s > least)


def headline(why: Why, seconds: TimeText, share: ShareText = percent) -> str:
    """Say what devices do all the time; like `three_sentences`."""
    spent = why.accounting.shares()
    told = [
        f"compute for {share(spent['computing'])} of that",
        f"merge results for {share(spent['reducing'])}",
        f"wait for messages for {share(spent['links'] + spent['latency'])}",
        f"wait for others' compute for {share(spent['others'])}",
        f"have nothing left to do for {share(spent['idle'])}",
    ]
    if spent["launches"] >= LEAST_SHARE:
        told.insert(2, f"start work for {share(spent['launches'])}")
    taken = f"The plan takes {seconds(why.diagnosis.seconds)}: its devices {joined(told)}"
    return f"{taken}; {share(why.hidden_share)} of the communication is hidden."


def cause_sentence(
    cause: Cause, total_s: float, seconds: TimeText, share: ShareText = percent
) -> str:
    """Say what a plan would take without a cause, and where that shows."""
    text = _would(cause, total_s, seconds, share)
    return text[:1].upper() + text[1:]


def _would(cause: Cause, total_s: float, seconds: TimeText, share: ShareText) -> str:
    saves = f"{seconds(cause.saves_s)} less ({share(cause.saves_s / total_s)})"
    where = place_text(cause, seconds)
    return f"{CONDITIONS[cause.name]} it would take {saves}{f'; {where}' if where else ''}."


def place_text(cause: Cause, seconds: TimeText) -> str:
    """Say where a cause shows; empty if there is no one place."""
    where = cause.where
    match cause.name:
        case "balance":
            of = f", mostly of sequence {where['sequence']}" if "sequence" in where else ""
            of += f" ({where['sequence_name']})" if "sequence_name" in where else ""
            return (
                f"device {where['device']} computes longest, {where['times_mean']:.2f} times the "
                f"mean{of}"
            )
        case "links" if where:
            verb = "sends" if where["side"] == "send" else "receives"
            return (
                f"on the critical path device {where['device']} {verb} for "
                f"{seconds(where['seconds_on_path'])}"
            )
        case "latency":
            messages = where["messages_on_path"]
            noun = "message" if messages == 1 else "messages"
            return f"the critical path waits for {messages} {noun} to arrive"
        case "launches":
            host = where["host_s"]
            starts = f", and its host works for up to {seconds(host)} before them" if host else ""
            return f"a device starts up to {where['kernels_of_device']} kernels{starts}"
        case "waves":
            return f"kernels take {where['times_full']:.2f} times as long as their work"
        case "tiles":
            return f"kernels compute {where['computed_over_visible']:.2f} pairs for a visible one"
        case "order":
            return f"device {where['device']} waits longest for what others compute"
        case "idle":
            return f"{len(where['devices'])} devices have no tile"
        case "memory":
            return (
                f"it needs {where['buffer_bytes'] / 1e6:.1f} MB of buffers a device, without the "
                f"limit {where['unlimited_bytes'] / 1e6:.1f} MB"
            )
        case _:
            return ""


def path_lines(why: Why) -> tuple[PathLine, ...]:
    """Write the critical path as lines, in time."""
    path, trace = why.path, why.trace
    total = float(np.maximum(1, (path.end_ns - path.start_ns).sum()))
    lines = []
    for event, start, end, step in zip(
        path.event.tolist(), path.start_ns.tolist(), path.end_ns.tolist(), path.step.tolist(),
        strict=True,
    ):  # fmt: skip
        lines.append(
            PathLine(event, start / 1e9, (end - start) / 1e9, (end - start) / total, STEPS[step],
                     _step_text(trace, event, STEPS[step]))
        )  # fmt: skip
    return tuple(lines)


def _step_text(trace: Trace, event: int, step: str) -> str:
    """Say what happens in a step."""
    device, peer, name = int(trace.device[event]), int(trace.peer[event]), trace.name_of(event)
    lane, division = LANES[trace.lane[event]], int(trace.division[event])
    if lane == "send":
        text = f"{name} leaves device {device} for {peer}"
    elif lane == "receive":
        text = f"{name} is on its way from device {peer} to {device}"
    else:
        text = f"{name} on device {device}, division {division}"
    if trace.kind[event] == EVENT_KINDS.index("copy"):
        text = f"device {device} starts work"
    elif step == "launches":
        text = f"before {text}"
    return f"{text}, {'backward' if trace.is_backward[event] else 'forward'}"
