"""Facts about one event of a trace."""

import numpy as np

from dcp_dashboard.facts import quantities
from dcp_dashboard.facts.text import (
    SOURCE_LABELS,
    Facts,
    Link,
    Row,
    Section,
    device_selection,
    direction_word,
    division_selection,
    pair_selection,
    row,
    selection,
    transfer_selection,
)
from dcp_dashboard.facts.traces import RECEIVE, SEND, WAIT, released_by, track_order
from dcp_dashboard.library.folder import DashboardError
from dcp_dashboard.library.plans import LoadedPlan
from dcp_planner import LANES, Plan, Source, Trace


def event_facts(loaded: LoadedPlan, source: Source, index: int) -> Facts:
    """Collect the facts of an event, counted as the timeline's payload counts; O(E log E).

    Raises:
        DashboardError: if the trace has no such event.
    """
    trace = loaded.traces[source]
    if not 0 <= index < len(trace):
        raise DashboardError(
            f"{loaded.entry.relative}: expected an event from 0 to {len(trace) - 1:,} in the "
            f"{source} trace, got {index:,}"
        )
    event = int(track_order(trace)[index])
    start, end = int(trace.start_ns[event]), int(trace.end_ns[event])
    device = int(trace.device[event])
    chosen = _event_selection(loaded.plan, trace, source, event, index)
    span = f"{quantities.duration((end - start) / 1e9)} from {quantities.duration(start / 1e9)}"
    rows = [
        row("Device", Link(f"device {device}", device_selection(device))),
        row(SOURCE_LABELS[source], Link(span, chosen, (start, end), source)),
        *_step_rows(trace, event),
        *_message_rows(loaded, trace, event),
        *_other_end_rows(loaded, trace, source, event),
        *_release_rows(trace, event),
    ]
    return Facts(
        f"{_what(trace, event)} on device {device}",
        chosen,
        (Section("", tuple(rows)),),
        {
            "event": index, "source": source, "name": trace.name_of(event), "device": device,
            "lane": LANES[trace.lane[event]], "start_ns": start, "end_ns": end,
            "size_bytes": int(trace.size_bytes[event]), "peer": int(trace.peer[event]),
        },
    )  # fmt: skip


def _what(trace: Trace, event: int) -> str:
    """Name an event: "Attention", "Receive of dq 14"."""
    name = trace.name_of(event)
    if trace.lane[event] not in (SEND, RECEIVE):
        return name.capitalize()
    return f"{LANES[trace.lane[event]].capitalize()} of {name}"


def _step_rows(trace: Trace, event: int) -> list[Row]:
    division = int(trace.division[event])
    if division < 0:
        return []
    word, device = direction_word(trace.is_backward[event]), int(trace.device[event])
    link = Link(f"division {division} {word}", division_selection(division, word, device))
    return [row("In", link)]


def _message_rows(loaded: LoadedPlan, trace: Trace, event: int) -> list[Row]:
    lane, peer = trace.lane[event], int(trace.peer[event])
    if lane not in (SEND, RECEIVE) or peer < 0:
        return []
    device = int(trace.device[event])
    ends = (device, peer) if lane == SEND else (peer, device)
    word = "To" if lane == SEND else "From"
    rows = [row(word, Link(f"device {peer}", pair_selection(*ends)))]
    transfer = int(trace.transfer[event])
    if transfer >= 0:
        text = f"{trace.name_of(event)}, {quantities.size(trace.size_bytes[event])}"
        link = Link(text, transfer_selection(loaded.plan, transfer))
        rows.append(row("Message", link, _rate(trace, event)))
    return rows


def _rate(trace: Trace, event: int) -> str:
    length_ns = int(trace.end_ns[event] - trace.start_ns[event])
    if not length_ns:
        return ""
    return f" at {quantities.size(int(trace.size_bytes[event]) * 1e9 / length_ns)}/s"


def _event_selection(plan: Plan, trace: Trace, source: Source, event: int, index: int) -> str:
    """Select an event with all that is known of it, as a click in the timeline does."""
    ids: dict[str, int | str] = {
        "event": index, "source": source, "device": int(trace.device[event]),
        "backward": int(trace.is_backward[event]),
    }  # fmt: skip
    if trace.division[event] >= 0:
        ids["division"] = int(trace.division[event])
    if trace.peer[event] >= 0:
        ids["peer"] = int(trace.peer[event])
    if trace.transfer[event] >= 0:
        ids["block"] = int(plan.transfers.block[trace.transfer[event]])
    return selection("event", **ids)


def other_end_of(trace: Trace, event: int) -> int | None:
    """Find the receive of a send or the send of a receive, ``None`` if there is none; O(E log E).

    Layers use a transfer again: its n-th send belongs to its n-th receive.
    """
    lane, transfer = trace.lane[event], trace.transfer[event]
    if lane not in (SEND, RECEIVE) or transfer < 0:
        return None
    ends = np.flatnonzero(trace.transfer == transfer)
    ends = ends[np.argsort(trace.start_ns[ends], kind="stable")]
    here, others = ends[trace.lane[ends] == lane], ends[trace.lane[ends] == SEND + RECEIVE - lane]
    number = int(np.flatnonzero(here == event)[0])
    return int(others[number]) if number < len(others) else None


def _other_end_rows(loaded: LoadedPlan, trace: Trace, source: Source, event: int) -> list[Row]:
    other = other_end_of(trace, event)
    if other is None:
        return []
    index = int(np.flatnonzero(track_order(trace) == other)[0])
    length, start = trace.end_ns[other] - trace.start_ns[other], trace.start_ns[other]
    text = f"{quantities.duration(length / 1e9)} from {quantities.duration(start / 1e9)}"
    label = "Its receive" if trace.lane[event] == SEND else "Its send"
    return [row(label, Link(text, _event_selection(loaded.plan, trace, source, other, index)))]


def _release_rows(trace: Trace, event: int) -> list[Row]:
    if trace.lane[event] != WAIT:
        return []
    message = released_by(trace, event)
    if message is None:
        return [row("Ends with", "no message of the trace")]
    device, peer = int(trace.device[event]), int(trace.peer[message])
    ends = (device, peer) if trace.lane[message] == SEND else (peer, device)
    verb = "to" if trace.lane[message] == SEND else "from"
    link = Link(f"device {peer}", pair_selection(*ends))
    return [row("Ends with", f"{trace.name_of(message)} {verb} ", link)]
