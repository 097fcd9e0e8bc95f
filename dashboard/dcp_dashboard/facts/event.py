"""Details of one event of a trace; a number that it lacks raises `DashboardError`."""

import numpy as np

from dcp_dashboard.facts import quantities
from dcp_dashboard.facts.text import (
    SOURCE_LABELS,
    DetailLink,
    DetailRow,
    Details,
    Section,
    check_index,
    device_link,
    direction_word,
    division_selection,
    pair_selection,
    row,
    selection,
    spent_text,
    transfer_selection,
)
from dcp_dashboard.facts.traces import RECEIVE, SEND, WAIT, released_by, track_order
from dcp_dashboard.library.plans import LoadedPlan
from dcp_planner import LANES, Plan, Source, Trace

MOST_STEPS = 12
"""Most events of a chain that are listed."""


def event_facts(loaded: LoadedPlan, source: Source, index: int) -> Details:
    """Collect the details of an event, counted as the timeline's payload counts; O(E log E)."""
    plan, trace = loaded.plan, loaded.traces[source]
    check_index(loaded, "an event", index, len(trace), f" in the {source} trace")
    event = int(track_order(trace)[index])
    start, end = int(trace.start_ns[event]), int(trace.end_ns[event])
    device, lane, name = int(trace.device[event]), trace.lane[event], trace.name_of(event)
    chosen = _event_selection(plan, trace, source, event, index)
    span = DetailLink(spent_text(start, end), chosen, (start, end), source)
    rows = [
        row("Device", device_link(device)),
        row(SOURCE_LABELS[source], span),
        *_step_rows(trace, event),
        *_message_rows(plan, trace, event),
        *_other_end_rows(plan, trace, source, event),
        *_release_rows(trace, event),
    ]
    is_message = lane in (SEND, RECEIVE)
    chain = chain_behind(loaded, source, event) if lane == WAIT else []
    place = np.argsort(track_order(trace)) if chain else np.zeros(0, np.int64)
    what = f"{LANES[lane].capitalize()} of {name}" if is_message else name.capitalize()
    return Details(
        f"{what} on device {device}",
        chosen,
        [
            Section("", rows),
            Section(
                "The chain that ends it, backwards in time",
                [_chain_row(plan, trace, source, step, int(place[step])) for step in chain],
            ),
        ],
        {
            "event": index, "source": source, "name": name, "device": device,
            "lane": LANES[lane], "start_ns": start, "end_ns": end,
            "size_bytes": int(trace.size_bytes[event]), "peer": int(trace.peer[event]),
            "chain": [int(place[step]) for step in chain],
        },
    )  # fmt: skip


def chain_behind(loaded: LoadedPlan, source: Source, wait: int) -> list[int]:
    """Return the rows of the events that held up the end of a wait, the last one first.

    Each began when the next one had ended; the chain goes back to the begin of the wait.
    """
    trace, found = loaded.traces[source], loaded.recorded[source].dependencies
    chain: list[int] = []
    at = int(found.predecessor[wait])
    while at >= 0 and found.end_ns[at] > trace.start_ns[wait] and len(chain) < MOST_STEPS:
        chain.append(at)
        at = int(found.predecessor[at])
    return chain


def _chain_row(plan: Plan, trace: Trace, source: Source, event: int, index: int) -> DetailRow:
    """Build the row of an event in a chain; `index` as the timeline's payload counts."""
    start, end, device = (int(of[event]) for of in (trace.start_ns, trace.end_ns, trace.device))
    chosen = _event_selection(plan, trace, source, event, index)
    verb = {SEND: "leaves ", RECEIVE: "arrives at "}.get(int(trace.lane[event]), "on ")
    span = DetailLink(spent_text(start, end), chosen, (start, end), source)
    return row(trace.name_of(event), f"{verb}device {device}: ", span)


def _step_rows(trace: Trace, event: int) -> list[DetailRow]:
    division = int(trace.division[event])
    if division < 0:
        return []
    word, device = direction_word(trace.is_backward[event]), int(trace.device[event])
    chosen = division_selection(division, word, device)
    return [row("In", DetailLink(f"division {division} {word}", chosen))]


def _peer_link(trace: Trace, message: int) -> DetailLink:
    """Build a link to what a message's two devices send each other, named by the peer."""
    device, peer = int(trace.device[message]), int(trace.peer[message])
    ends = (device, peer) if trace.lane[message] == SEND else (peer, device)
    return DetailLink(f"device {peer}", pair_selection(*ends))


def _message_rows(plan: Plan, trace: Trace, event: int) -> list[DetailRow]:
    if trace.lane[event] not in (SEND, RECEIVE) or trace.peer[event] < 0:
        return []
    rows = [row("To" if trace.lane[event] == SEND else "From", _peer_link(trace, event))]
    transfer, size = int(trace.transfer[event]), int(trace.size_bytes[event])
    if transfer >= 0:
        text = f"{trace.name_of(event)}, {quantities.size(size)}"
        length_ns = int(trace.end_ns[event] - trace.start_ns[event])
        rate = f" at {quantities.size(size * 1e9 / length_ns)}/s" if length_ns else ""
        rows.append(row("Message", DetailLink(text, transfer_selection(plan, transfer)), rate))
    return rows


def event_selection(loaded: LoadedPlan, source: Source, event: int) -> str:
    """Select the event of a row of a trace, as a click in the timeline does; O(E log E)."""
    trace = loaded.traces[source]
    index = int(np.flatnonzero(track_order(trace) == event)[0])
    return _event_selection(loaded.plan, trace, source, event, index)


def _event_selection(plan: Plan, trace: Trace, source: Source, event: int, index: int) -> str:
    """Select an event with all known ids; `index` as the timeline's payload counts."""
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


def _other_end_rows(plan: Plan, trace: Trace, source: Source, event: int) -> list[DetailRow]:
    """Link the receive of a send or the send of a receive; O(E log E).

    Layers use a transfer again: its n-th send belongs to its n-th receive.
    """
    lane, transfer = trace.lane[event], trace.transfer[event]
    if lane not in (SEND, RECEIVE) or transfer < 0:
        return []
    ends = np.flatnonzero(trace.transfer == transfer)
    ends = ends[np.argsort(trace.start_ns[ends], kind="stable")]
    here, others = ends[trace.lane[ends] == lane], ends[trace.lane[ends] == SEND + RECEIVE - lane]
    number = int(np.flatnonzero(here == event)[0])
    if number >= len(others):
        return []
    other = int(others[number])
    index = int(np.flatnonzero(track_order(trace) == other)[0])
    text = spent_text(int(trace.start_ns[other]), int(trace.end_ns[other]))
    chosen = _event_selection(plan, trace, source, other, index)
    return [row("Its receive" if lane == SEND else "Its send", DetailLink(text, chosen))]


def _release_rows(trace: Trace, event: int) -> list[DetailRow]:
    if trace.lane[event] != WAIT:
        return []
    message = released_by(trace, event)
    if message is None:
        return [row("Ends with", "no message of the trace")]
    verb = "to" if trace.lane[message] == SEND else "from"
    return [row("Ends with", f"{trace.name_of(message)} {verb} ", _peer_link(trace, message))]
