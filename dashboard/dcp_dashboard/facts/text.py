"""The text of facts: rows with links, the selections that links carry, names of kinds of messages.

A selection is text for URLs and links, ``tile.12~device.3~division.1``: the first part names the
type, the others are the ids that are known of it. `assets/state.js` is the other half.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from dcp_planner import Direction, Plan, Source, TransferKind

SCHEMA = "dcp.facts/1"

SOURCE_LABELS: Mapping[Source, str] = MappingProxyType(
    {"simulated": "Predicted", "measured": "Measured"}
)

DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")
TIMES = "\u00d7"

KIND_WORDS: Mapping[TransferKind, str] = MappingProxyType(
    {
        TransferKind.KV: "Keys and values",
        TransferKind.Q: "Queries",
        TransferKind.OUT: "Partial outputs",
        TransferKind.DQ: "Gradients of queries",
        TransferKind.DKV: "Gradients of keys and values",
    }
)


@dataclass(frozen=True, slots=True)
class Link:
    """A text; a click on it selects something.

    Attributes:
        text: the words.
        selected: a selection as `dcp_dashboard.facts.text` writes it; empty for plain words.
        time_ns: part of the timeline to show, ns after the first event, or ``None``.
        source: the trace that the time belongs to.
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
            values["time"] = "-".join(str(max(0, value)) for value in self.time_ns)
            values["source"] = self.source
        return values


@dataclass(frozen=True, slots=True)
class Row:
    """A label and the linked texts beside it."""

    label: str
    parts: tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """Rows under a heading."""

    heading: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that is shown about one selected thing.

    Attributes:
        title: what it is.
        selected: its selection.
        sections: in reading order.
        values: the bare numbers, for programs.
    """

    title: str
    selected: str
    sections: tuple[Section, ...]
    values: dict[str, Any]  # Any: JSON values

    def to_json(self) -> dict[str, Any]:  # Any: JSON values
        """Return the answer of the data API."""
        return {
            "schema": SCHEMA,
            "title": self.title,
            "sel": self.selected,
            "values": self.values,
            "sections": [
                {
                    "heading": section.heading,
                    "rows": [
                        {"label": row.label, "parts": [part.to_json() for part in row.parts]}
                        for row in section.rows
                    ],
                }
                for section in self.sections
                if section.rows
            ],
        }


def row(label: str, *parts: str | Link) -> Row:
    """Build a row of words and links.

    >>> row("owner", "device ", Link("3", "device.3")).parts[0].text
    'device '
    """
    return Row(label, tuple(Link(part) if isinstance(part, str) else part for part in parts))


def joined(links: Sequence[Link], more: int = 0) -> tuple[Link, ...]:
    """Put commas between links, and at the end the number of those left out."""
    parts = [part for link in links for part in (Link(", "), link)][1:]
    return (*parts, Link(f" and {more:,} more")) if more > 0 else tuple(parts)


def selection(what: str, /, **ids: int | str) -> str:
    """Write a selection as text; the id of `what` itself comes first.

    >>> selection("device", device=3, peer=4)
    'device.3~peer.4'
    """
    names = [what, *(name for name in ids if name != what)]
    return "~".join(f"{name}.{ids[name]}" for name in names)


def device_selection(device: int) -> str:
    """Select a device."""
    return selection("device", device=device)


def pair_selection(source: int, target: int) -> str:
    """Select what one device sends another."""
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
    return selection(
        "transfer", transfer=transfer, device=int(table.source[transfer]),
        peer=int(table.target[transfer]), block=int(table.block[transfer]),
        division=int(table.division[transfer]), backward=int(table.is_backward[transfer]),
        kind=int(table.kind[transfer]),
        **({} if table.group is None else {"group": int(table.group[transfer])}),
    )  # fmt: skip


def direction_word(is_backward: bool) -> Direction:
    """Return the direction's name.

    >>> direction_word(True)
    'backward'
    """
    return "backward" if is_backward else "forward"
