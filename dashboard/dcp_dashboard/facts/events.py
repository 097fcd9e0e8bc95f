"""Events of a trace as rows of a table: the filters and the search of the timeline, sorted, as CSV.

The page filters in the browser, where the events are already; the export asks the server, with the
same words. Both mean the same, which a test holds them to.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dcp_dashboard.api.palette import KINDS
from dcp_dashboard.api.payloads import distinct_names, kinds_of_names, track_order
from dcp_dashboard.library.folder import DashboardError
from dcp_planner import LANES, Trace

COLUMNS = (
    "source", "event", "device", "lane", "kind", "name", "direction", "division", "peer", "bytes",
    "start_ns", "end_ns", "duration_ns",
)  # fmt: skip
SORTABLE = ("device", "kind", "name", "division", "peer", "bytes", "start_ns", "duration_ns")
CHUNK_ROWS = 20_000

_NUMBERS = {
    "device": r"\b(?:gpu|device|rank)\s*(\d{1,9})\b",
    "division": r"\bdivision\s*(\d{1,9})\b",
    "peer": r"\b(?:peer|from|to)\s*(\d{1,9})\b",
}


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events are meant, and in which order.

    Attributes:
        kinds: of `KINDS`; an empty tuple means all, the word ``none`` no event.
        longer_ns: least duration.
        find: words as in the page's search: ``gpu 17``, ``division 3``, ``backward``, ``kv 12``.
        sort: one of `SORTABLE`, with ``-`` in front for falling; empty: device, lane, start.
    """

    kinds: tuple[str, ...] = ()
    longer_ns: int = 0
    find: str = ""
    sort: str = ""

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.kinds if kind not in (*KINDS, "none")]
        if unknown:
            raise DashboardError(
                f"expected kinds of {', '.join(KINDS)}, got {unknown[0][:40]!r}; leave `kinds` out "
                "to get all events"
            )
        if self.sort.removeprefix("-") not in ("", *SORTABLE):
            raise DashboardError(
                f"expected to sort by one of {', '.join(SORTABLE)}, got {self.sort[:40]!r}; leave "
                "`sort` out to get the order of devices, lanes and time"
            )


def read_filter(query: Mapping[str, str]) -> EventFilter:
    """Make a filter of the texts that the state of the page puts into a URL.

    Raises:
        DashboardError: if one of them means nothing.
    """
    longer = query.get("longer", "0")
    if not re.fullmatch(r"\d{1,18}", longer, re.ASCII):
        raise DashboardError(
            f"expected `longer` in whole nanoseconds, got {longer[:40]!r}; leave it out for events "
            "of any duration"
        )
    kinds = tuple(kind for kind in query.get("kinds", "").split(",") if kind)
    return EventFilter(kinds, int(longer), query.get("find", "")[:200], query.get("sort", ""))


def matching(trace: Trace, chosen: EventFilter) -> NDArray[np.intp]:
    """Give the rows of a trace that pass a filter, in its order; O(E log E)."""
    names, name = distinct_names(trace)
    kind = kinds_of_names(names, name, trace.lane)
    keep = (trace.end_ns - trace.start_ns) >= chosen.longer_ns
    if chosen.kinds:
        keep &= np.isin(kind, [i for i, known in enumerate(KINDS) if known in chosen.kinds])
    if chosen.find.strip():
        keep &= found_by(chosen.find, trace, names, name)
    order = track_order(trace)
    rows: NDArray[np.intp] = order[keep[order]]
    if not chosen.sort:
        return rows
    columns: dict[str, NDArray[np.int64]] = {
        "device": trace.device.astype(np.int64), "kind": kind.astype(np.int64), "name": name,
        "division": trace.division.astype(np.int64), "peer": trace.peer.astype(np.int64),
        "bytes": trace.size_bytes, "start_ns": trace.start_ns,
        "duration_ns": trace.end_ns - trace.start_ns,
    }  # fmt: skip
    key = columns[chosen.sort.removeprefix("-")][rows]
    return rows[np.argsort(-key if chosen.sort.startswith("-") else key, kind="stable")]


def found_by(
    text: str, trace: Trace, names: list[str], name: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Tell which events a search means, bool ``[E]``: numbers after words, the rest in the name."""
    columns = {"device": trace.device, "division": trace.division, "peer": trace.peer}
    keep = np.ones(len(trace), np.bool_)
    for column, pattern in _NUMBERS.items():
        number = re.search(pattern, text, re.IGNORECASE | re.ASCII)
        if number:
            keep &= columns[column] == int(number[1])
            text = text.replace(number[0], " ", 1)
    for word, is_backward in (("forward", False), ("backward", True)):
        if re.search(rf"\b{word}\b", text, re.IGNORECASE):
            keep &= trace.is_backward == is_backward
            text = re.sub(rf"\b{word}\b", " ", text, count=1, flags=re.IGNORECASE)
    wanted = re.escape(" ".join(text.split()).lower())
    end = r"(?![0-9])" if re.search(r"[0-9]$", wanted) else ""
    is_named = np.array([bool(re.search(wanted + end, n.lower())) for n in names], np.bool_)
    return keep & is_named[name] if len(names) else keep


def csv_lines(traces: Iterable[Trace], chosen: EventFilter) -> Iterator[str]:
    """Give the matching events of traces as CSV, a heading first, some thousand lines at a time."""
    yield ",".join(COLUMNS) + "\r\n"
    for trace in traces:
        names, name = distinct_names(trace)
        kind = kinds_of_names(names, name, trace.lane)
        rank = np.empty(len(trace), np.int64)
        rank[track_order(trace)] = np.arange(len(trace))
        rows = matching(trace, chosen)
        safe = [_plain(text) for text in names]
        for at in range(0, len(rows), CHUNK_ROWS):
            part = rows[at : at + CHUNK_ROWS]
            start, end = trace.start_ns[part], trace.end_ns[part]
            text = io.StringIO()
            csv.writer(text).writerows(
                zip(
                    [trace.source] * len(part),
                    rank[part].tolist(),
                    trace.device[part].tolist(),
                    [LANES[lane] for lane in trace.lane[part].tolist()],
                    [KINDS[code] for code in kind[part].tolist()],
                    [safe[code] for code in name[part].tolist()],
                    ["backward" if b else "forward" for b in trace.is_backward[part].tolist()],
                    trace.division[part].tolist(),
                    ["" if peer < 0 else peer for peer in trace.peer[part].tolist()],
                    trace.size_bytes[part].tolist(),
                    start.tolist(),
                    end.tolist(),
                    (end - start).tolist(),
                    strict=True,
                )
            )
            yield text.getvalue()


def _plain(text: str) -> str:
    """Give a text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
