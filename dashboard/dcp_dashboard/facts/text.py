"""The form of what is said about a selected thing: sections of rows, made of linked parts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SCHEMA = "dcp.facts/1"


@dataclass(frozen=True, slots=True)
class Link:
    """Words that select something when followed.

    Attributes:
        text: the words.
        selected: a selection as `dcp_dashboard.facts.selection` writes it; empty for plain words.
        time_ns: part of the timeline to show, ns after the first event, or ``None``.
        source: the trace that the time belongs to.
    """

    text: str
    selected: str = ""
    time_ns: tuple[int, int] | None = None
    source: str = ""

    def to_json(self) -> dict[str, Any]:  # Any: JSON values
        """Give the parts that are set."""
        values: dict[str, Any] = {"text": self.text}
        if self.selected:
            values["sel"] = self.selected
        if self.time_ns is not None:
            values["time"] = "-".join(str(max(0, value)) for value in self.time_ns)
            values["source"] = self.source
        return values


@dataclass(frozen=True, slots=True)
class Row:
    """A label and what it says."""

    label: str
    parts: tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """Rows under a heading."""

    heading: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """What is said about one thing.

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
        """Give the answer of the data API."""
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
    """Make a row of words and links.

    >>> row("owner", "device ", Link("3", "device.3")).parts[0].text
    'device '
    """
    return Row(label, tuple(Link(part) if isinstance(part, str) else part for part in parts))


def joined(links: Sequence[Link], more: int = 0) -> tuple[Link, ...]:
    """Put commas between links, and at the end how many are left out."""
    parts = [part for link in links for part in (Link(", "), link)][1:]
    return (*parts, Link(f" and {more:,} more")) if more > 0 else tuple(parts)
