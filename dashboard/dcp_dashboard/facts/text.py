"""Data model of the details panel: sections of rows with links that select other things.

A selection is a text in URLs and links, ``tile.12~device.3~division.1``. The first part names the
selected thing; the others are further ids that belong to it, so that every view finds the part it
can mark: the mask the tile, the timeline the device and the division. `web/src/state.ts` reads the
same texts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dcp_dashboard.facts.quantities import duration
from dcp_dashboard.library.folder import DashboardError
from dcp_dashboard.library.plans import LoadedPlan
from dcp_planner import Direction, Plan, Source, Trace, TransferKind

SCHEMA = "dcp.facts/1"

SOURCE_LABELS: Mapping[Source, str] = {
    "simulated": "Predicted",
    "measured": "Measured",
}

DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")
TIMES = "\u00d7"

EVENT_WORDS: Mapping[str, str] = {"copy": "host work"}
"""Kinds and names of events that people read otherwise: most of a copy is the host's work."""

PLACER_WORDS: Mapping[str, str] = {"portfolio": "the default search"}
"""Names of partitioners that people read otherwise."""

KIND_WORDS: Mapping[TransferKind, str] = {
    TransferKind.KV: "Keys and values",
    TransferKind.Q: "Queries",
    TransferKind.OUT: "Partial outputs",
    TransferKind.DQ: "Gradients of queries",
    TransferKind.DKV: "Gradients of keys and values",
}


@dataclass(frozen=True, slots=True)
class DetailLink:
    """A text; a click on it selects something, and shows its part of a trace's timeline.

    Plain words have no selection. `time_ns` is on the clock of the trace.
    """

    text: str
    selected: str = ""
    time_ns: tuple[int, int] | None = None
    source: str = ""

    def to_json(self) -> dict[str, Any]:  # Any: JSON values
        """Return the fields that are set, as JSON values."""
        values: dict[str, Any] = {"text": self.text}
        if self.selected:
            values["sel"] = self.selected
        if self.time_ns is not None:
            values["time"] = window_text(self.time_ns)
            values["source"] = self.source
        return values


@dataclass(frozen=True, slots=True)
class DetailRow:
    """A label and the linked texts beside it."""

    label: str
    parts: tuple[DetailLink, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """Rows under a heading."""

    heading: str
    rows: Sequence[DetailRow]


@dataclass(frozen=True, slots=True)
class Details:
    """Contents of the details panel for one selection."""

    title: str
    selected: str
    sections: Sequence[Section]
    values: dict[str, Any]  # the bare numbers, for programs; Any: JSON values

    def to_json(self) -> dict[str, Any]:  # Any: JSON values
        """Return the answer of the data API."""
        # A section without rows would be a heading above nothing.
        sections = [
            {
                "heading": section.heading,
                "rows": [
                    {"label": row.label, "parts": [part.to_json() for part in row.parts]}
                    for row in section.rows
                ],
            }
            for section in self.sections
            if section.rows
        ]
        return {"schema": SCHEMA, "title": self.title, "sel": self.selected,
                "values": self.values, "sections": sections}  # fmt: skip


def window_text(time_ns: tuple[int, int]) -> str:
    """Write a range of the timeline for a URL; times before 0 become 0.

    >>> window_text((-5, 10))
    '0-10'
    """
    return "-".join(str(max(0, value)) for value in time_ns)


def row(label: str, *parts: str | DetailLink) -> DetailRow:
    """Build a row of words and links."""
    links = (DetailLink(part) if isinstance(part, str) else part for part in parts)
    return DetailRow(label, tuple(links))


def list_row(label: str, links: Sequence[DetailLink], most: int) -> DetailRow:
    """Build a row of links with commas between them and the number left out at the end."""
    # Each link brings the comma before it; the first comma is cut off.
    parts: list[str | DetailLink] = [part for link in links[:most] for part in (", ", link)][1:]
    more = len(links) - most
    return row(label, *parts, *([f" and {more:,} more"] if more > 0 else []))


def check_index(loaded: LoadedPlan, what: str, index: int, count: int, where: str = "") -> None:
    """Raise `DashboardError` unless a plan has the thing with this index."""
    if not 0 <= index < count:
        raise DashboardError(
            f"{loaded.entry.relative}: expected {what} from 0 to {count - 1:,}{where}, got "
            f"{index:,}"
        )


def device_link(device: int, text: str = "") -> DetailLink:
    """Build a link to a device, with its number as the text unless another is given."""
    return DetailLink(text or f"device {device}", device_selection(device))


def spent_text(start_ns: int, end_ns: int) -> str:
    """Write the length and the start of an event."""
    return f"{duration((end_ns - start_ns) / 1e9)} from {duration(start_ns / 1e9)}"


def selection(what: str, /, **ids: int | str) -> str:
    """Write a selection as text; the id of `what` itself comes first."""
    names = [what, *(name for name in ids if name != what)]
    return "~".join(f"{name}.{ids[name]}" for name in names)


def device_selection(device: int) -> str:
    """Select a device."""
    return selection("device", device=device)


def pair_selection(source: int, target: int) -> str:
    """Select the messages that one device sends another."""
    return selection("device", device=source, peer=target)


def division_selection(division: int, direction: Direction, device: int | None = None) -> str:
    """Select a step of the schedule, of all devices or of one."""
    ids = {"division": division, "backward": int(direction == "backward")}
    return selection("division", **ids, **({} if device is None else {"device": device}))


def tile_selection(plan: Plan, tile: int) -> str:
    """Select a tile; its division is that of forward."""
    tiles = plan.tiles
    return selection(
        "tile", tile=tile, device=int(tiles.device[tile]), division=int(tiles.division[tile]),
        q=int(tiles.q_block[tile]), kv=int(tiles.kv_block[tile]),
    )  # fmt: skip


def transfer_selection(plan: Plan, transfer: int) -> str:
    """Select a message."""
    table = plan.transfers
    # `peer` is the target: pages mark both devices, and the cell of the pair in the traffic.
    return selection(
        "transfer", transfer=transfer, device=int(table.source[transfer]),
        peer=int(table.target[transfer]), block=int(table.block[transfer]),
        division=int(table.division[transfer]), backward=int(table.is_backward[transfer]),
        kind=int(table.kind[transfer]),
        **({} if table.group is None else {"group": int(table.group[transfer])}),
    )  # fmt: skip


def event_selection(plan: Plan, trace: Trace, event: int) -> str:
    """Select an event, a row of the trace, with all ids that are known of it."""
    ids: dict[str, int | str] = {
        "event": event, "source": trace.source, "device": int(trace.device[event]),
        "backward": int(trace.is_backward[event]),
    }  # fmt: skip
    if trace.division[event] >= 0:
        ids["division"] = int(trace.division[event])
    if trace.peer[event] >= 0:
        ids["peer"] = int(trace.peer[event])
    if trace.transfer[event] >= 0:
        ids["block"] = int(plan.transfers.block[trace.transfer[event]])
    return selection("event", **ids)


def direction_word(is_backward: bool) -> Direction:
    """Return the direction's name."""
    return "backward" if is_backward else "forward"
