"""Queries over the events of a trace: those that match a filter, the longest waits, a table.

A `Trace` is sorted by (device, lane, start), and the payload of the timeline keeps that order. So
an event has one number everywhere: its row of the trace, in URLs, in tables and in the browser.

The page filters events in the browser, the export on the server; a test holds both to the same
meaning of the words.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dcp_dashboard.facts.text import DIRECTIONS, EVENT_WORDS, direction_word
from dcp_dashboard.library.folder import DashboardError
from dcp_planner import LANES, Direction, Trace
from dcp_planner.simulation import EVENT_KINDS

WAIT, SEND, RECEIVE = (LANES.index(lane) for lane in ("wait", "send", "receive"))

SORTABLE = ("device", "kind", "name", "division", "peer", "bytes", "start_ns", "duration_ns")

_NUMBERS = {
    "device": r"\b(?:gpu|device|rank)\s*(\d{1,9})\b",
    "division": r"\bdivision\s*(\d{1,9})\b",
    "peer": r"\b(?:peer|from|to)\s*(\d{1,9})\b",
}


def length_ns(trace: Trace) -> int:
    """Return the time from the first start to the last end."""
    return int(trace.end_ns.max() - trace.start_ns.min()) if len(trace) else 0


def phase_of(trace: Trace, direction: str) -> Trace:
    """Return the events of one direction, the first of which starts at 0; all for any other text.

    Two traces whose forward takes different times then show their backward side by side.
    """
    if direction not in DIRECTIONS:
        return trace
    chosen = trace.is_backward == (direction == "backward")
    # `lane` is no argument of a trace: it follows from `kind`.
    columns = {
        column.name: getattr(trace, column.name)[chosen]
        for column in fields(trace)
        if column.init and column.name not in ("source", "names")
    }
    begin = columns["start_ns"].min() if chosen.any() else 0
    for name in ("start_ns", "end_ns", "ready_ns"):
        columns[name] = columns[name] - begin
    return replace(trace, **columns)


@dataclass(frozen=True, slots=True)
class EventFilter:
    """A choice of events and their order, as the filters and the search of the timeline have it."""

    kinds: tuple[str, ...] = ()  # of `EVENT_KINDS`; empty means all, "none" alone means no event
    longer_ns: int = 0
    find: str = ""  # words as in the page's search: gpu 17, division 3, backward, kv 12
    sort: str = ""  # one of `SORTABLE`, "-" in front for falling; empty: device, lane, start

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.kinds if kind not in (*EVENT_KINDS, "none")]
        if unknown:
            raise DashboardError(
                f"expected kinds of {', '.join(EVENT_KINDS)}, got {unknown[0][:40]!r}; "
                "leave `kinds` out to get all events"
            )
        if self.sort.removeprefix("-") not in ("", *SORTABLE):
            raise DashboardError(
                f"expected to sort by one of {', '.join(SORTABLE)}, got {self.sort[:40]!r}; leave "
                "`sort` out to get the order of devices, lanes and time"
            )


def read_filter(query: Mapping[str, str]) -> EventFilter:
    """Read a filter from the texts that the state of the page puts into a URL."""
    longer = query.get("longer", "0")
    # At most 18 digits, which int64 holds.
    if not re.fullmatch(r"\d{1,18}", longer, re.ASCII):
        raise DashboardError(
            f"expected `longer` in whole nanoseconds, got {longer[:40]!r}; leave it out for events "
            "of any duration"
        )
    kinds = tuple(kind for kind in query.get("kinds", "").split(",") if kind)
    return EventFilter(kinds, int(longer), query.get("find", "")[:200], query.get("sort", ""))


def matching(trace: Trace, chosen: EventFilter) -> NDArray[np.intp]:
    """Return the rows of a trace that pass a filter, in the order that it asks for; O(E log E)."""
    keep = (trace.end_ns - trace.start_ns) >= chosen.longer_ns
    if chosen.kinds:
        keep &= np.isin(
            trace.kind, [i for i, known in enumerate(EVENT_KINDS) if known in chosen.kinds]
        )
    if chosen.find.strip():
        keep &= found_by(chosen.find, trace)
    rows: NDArray[np.intp] = np.flatnonzero(keep)
    if not chosen.sort:
        return rows
    columns: dict[str, NDArray[np.integer]] = {
        "device": trace.device, "kind": trace.kind.astype(np.int64), "name": trace.name,
        "division": trace.division, "peer": trace.peer, "bytes": trace.size_bytes,
        "start_ns": trace.start_ns, "duration_ns": trace.end_ns - trace.start_ns,
    }  # fmt: skip
    key = columns[chosen.sort.removeprefix("-")][rows]
    # Falling order sorts negated values: events with equal values stay in the order of the trace.
    return rows[np.argsort(-key if chosen.sort.startswith("-") else key, kind="stable")]


def found_by(text: str, trace: Trace) -> NDArray[np.bool_]:
    """Mark the events that a search means, bool ``[E]``.

    Words such as `gpu 17`, `division 3` and `backward` choose by a column; the rest of the text
    must be a part of the event's name.
    """
    columns = {"device": trace.device, "division": trace.division, "peer": trace.peer}
    keep = np.ones(len(trace), np.bool_)
    for column, pattern in _NUMBERS.items():
        number = re.search(pattern, text, re.IGNORECASE | re.ASCII)
        if number:
            keep &= columns[column] == int(number[1])
            # What was read as a number is no part of a name.
            text = text.replace(number[0], " ", 1)
    for word, is_backward in (("forward", False), ("backward", True)):
        if re.search(rf"\b{word}\b", text, re.IGNORECASE):
            keep &= trace.is_backward == is_backward
            text = re.sub(rf"\b{word}\b", " ", text, count=1, flags=re.IGNORECASE)
    wanted = re.escape(" ".join(text.split()).lower())
    # `kv 1` does not mean `kv 12`.
    end = r"(?![0-9])" if re.search(r"[0-9]$", wanted) else ""
    # A trace has few distinct names: each is searched once, not once for every event.
    shown = [EVENT_WORDS.get(name, name) for name in trace.names]
    is_named = [bool(re.search(wanted + end, name.lower())) for name in shown]
    return keep & np.array(is_named, np.bool_)[trace.name]


@dataclass(frozen=True, slots=True)
class Wait:
    """The waits of one device in one division and direction: their sum, and the longest of them.

    `start_ns` and `end_ns` are those of the longest wait. The message that ended it went to the
    peer (`is_sent`) or came from the peer; `message` is its name in the trace, such as ``"kv 12"``,
    and `event` its row. Without a known message they are empty and -1.
    """

    device: int
    division: int
    direction: Direction
    seconds: float
    start_ns: int
    end_ns: int
    peer: int = -1
    is_sent: bool = False
    message: str = ""
    event: int = -1


def find_waits(
    trace: Trace, limit: int, *, device: int | None = None, division: tuple[int, bool] | None = None
) -> list[Wait]:
    """Sum the waits of each device, division and direction; return the `limit` longest sums.

    The longest comes first. `device`, and `division` as (number, whether it is of backward), leave
    out the waits of all others. O(E log E + limit E).
    """
    chosen = trace.lane == WAIT
    if device is not None:
        chosen &= trace.device == device
    if division is not None:
        chosen &= (trace.division == division[0]) & (trace.is_backward == division[1])
    waits = np.flatnonzero(chosen)
    if not len(waits):
        return []
    # Device, division and direction as one number, so that one `unique` groups the waits. Plus 1:
    # a division may be -1.
    place = trace.device[waits].astype(np.int64) << 32 | (trace.division[waits] + 1)
    _, group = np.unique(place * 2 + trace.is_backward[waits], return_inverse=True)
    length = (trace.end_ns - trace.start_ns)[waits]
    total = np.bincount(group, weights=length)
    # For the few largest sums alone, look for the longest wait among the members.
    found = []
    for index in np.argsort(-total, kind="stable")[:limit]:
        members = np.flatnonzero(group == index)
        longest = int(waits[members[length[members].argmax()]])
        found.append(_wait(trace, longest, float(total[index]) / 1e9))
    return found


def _wait(trace: Trace, longest: int, seconds: float) -> Wait:
    start, end = int(trace.start_ns[longest]), int(trace.end_ns[longest])
    direction = direction_word(trace.is_backward[longest])
    device, division = int(trace.device[longest]), int(trace.division[longest])
    wait = Wait(device, division, direction, seconds, start, end)
    event = released_by(trace, longest)
    if event is None:
        return wait
    is_sent, peer = bool(trace.lane[event] == SEND), int(trace.peer[event])
    return replace(wait, peer=peer, is_sent=is_sent, message=trace.name_of(event), event=event)


def released_by(trace: Trace, wait: int) -> int | None:
    """Find the message of the waiting device that ends last within the wait, or ``None``.

    A device waits until everything of one launch has arrived and left (`CommWait`), so the message
    that ends last also ends the wait.
    """
    is_message = (trace.lane == SEND) | (trace.lane == RECEIVE)
    ends_inside = (trace.end_ns > trace.start_ns[wait]) & (trace.end_ns <= trace.end_ns[wait])
    is_own = (trace.device == trace.device[wait]) & (trace.peer >= 0)
    is_of_pass = trace.is_backward == trace.is_backward[wait]
    chosen = np.flatnonzero(is_message & ends_inside & is_own & is_of_pass)
    return int(chosen[trace.end_ns[chosen].argmax()]) if len(chosen) else None


def event_table(trace: Trace, rows: NDArray[np.integer]) -> pa.Table:
    """Build a table of some rows of a trace; codes become words, `event` is the row.

    `peer` is null where an event has none; O(rows).
    """
    peer, start, end = trace.peer[rows], trace.start_ns[rows], trace.end_ns[rows]
    return pa.table(
        {
            "source": _words(np.zeros(len(rows), np.uint8), (trace.source,)),
            "event": rows,
            "device": trace.device[rows],
            "lane": _words(trace.lane[rows], LANES),
            "kind": _words(trace.kind[rows], EVENT_KINDS),
            "name": _words(trace.name[rows], trace.names),
            "direction": _words(trace.is_backward[rows].astype(np.uint8), DIRECTIONS),
            "division": trace.division[rows],
            "peer": pa.array(peer, mask=peer < 0),
            "bytes": trace.size_bytes[rows],
            "start_ns": start,
            "end_ns": end,
            "duration_ns": end - start,
        }
    )


def _words(codes: NDArray[np.integer], texts: tuple[str, ...]) -> "pa.Array[Any]":
    # Arrow copies the texts by their codes, without a Python object for each event.
    return pa.array(texts, pa.string()).take(pa.array(codes))
