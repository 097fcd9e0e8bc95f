"""What the dashboard shows as compact texts that a person reads: pages, charts, columns, details.

An element is one line, `tag#id.class attribute=value "text"`, with what it holds below it, or
behind it in parentheses if that is short. Elements of one kind that stand beside each other and
hold a text each share a line, with bars between the texts. A long list is its first and last
values, its length and a checksum. The sign for an open box is a no-break space.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import groupby
from typing import Any

import numpy as np
import plotly.graph_objects as go
from dash.development.base_component import Component

from dcp_dashboard.api.encoding import decode
from dcp_dashboard.pages.charts import TEMPLATE

WIDTH, LONGEST, MOST = 160, 240, 8
LIBRARIES = {"dash_html_components": "", "dash_core_components": "dcc."}


@dataclass
class Element:
    """The line of an element and what it holds: elements, texts in quotes."""

    head: str
    inside: list["Element | str"] = field(default_factory=list)

    @property
    def is_leaf(self) -> bool:
        return all(isinstance(part, str) for part in self.inside)


def page_text(shown: Any) -> str:
    """Write components of Dash as an outline, also as they travel to a browser."""
    return "\n".join(_lines(_elements(shown), 0))


def folded(texts: Mapping[str, str], least: int = 4) -> dict[str, str]:
    """Shorten outlines: parts of `least` lines that stood in one before are their first line."""
    known, made = set[tuple[str, ...]](), {}
    for title, text in texts.items():
        lines, kept, at = text.split("\n"), list[str](), 0
        while at < len(lines):
            depth, end = _depth(lines[at]), at + 1
            while end < len(lines) and _depth(lines[end]) > depth:
                end += 1
            part = tuple(line[depth:] for line in lines[at:end])
            is_known = len(part) >= least and part in known
            known.add(part)
            kept.append(lines[at] + (" … as above" if is_known else ""))
            at = end if is_known else at + 1
        made[title] = "\n".join(kept)
    return made


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _elements(shown: Any) -> list[Element | str]:
    if shown is None:
        return []
    if isinstance(shown, (list, tuple)):
        return [element for part in shown for element in _elements(part)]
    if isinstance(shown, Component):
        return [_element(shown.to_plotly_json())]
    return [_element(shown) if isinstance(shown, Mapping) else _quoted(str(shown))]


def _element(described: Mapping[str, Any]) -> Element:
    library = LIBRARIES.get(described["namespace"], "dmc.")
    tag, given = described["type"], dict(described["props"])
    inside, written = given.pop("children", None), given.pop("data-html", None)
    figure = go.Figure(given.pop("figure")) if "figure" in given else None
    made = Element(_head(tag if library else tag.lower(), given, library), _elements(inside))
    if written is not None:
        made.head += " written"
        made.inside += _Parsed(written).root.inside
    if figure is not None:
        made.inside += [Element(line) for line in figure_text(figure).splitlines()]
    return made


def _head(tag: str, given: Mapping[str, Any], library: str = "") -> str:
    known = {"className", "class", "id"}
    name = f"#{given['id']}" if given.get("id") else ""
    kinds = str(given.get("className") or given.get("class") or "").split()
    others = [f" {key}={_value(value)}" for key, value in sorted(given.items()) if key not in known]
    return library + tag + name + "".join(f".{kind}" for kind in kinds) + "".join(others)


class _Parsed(HTMLParser):
    """The elements of a text of HTML, in the element `root`."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.root = Element("")
        self._open = [self.root]
        self.feed(text)
        assert len(self._open) == 1, f"{self._open[-1].head} is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        made = Element(_head(tag, {name: value or "" for name, value in attrs}))
        self._open[-1].inside.append(made)
        if tag not in {"br", "img", "input", "link", "meta", "source"}:
            self._open.append(made)

    def handle_endtag(self, tag: str) -> None:
        opened = re.split(r"[#. ]", self._open.pop().head)[0]
        assert opened == tag, f"expected the end of {opened}, got that of {tag}"

    def handle_data(self, data: str) -> None:
        self._open[-1].inside.append(_quoted(data))


def html_elements(text: str) -> str:
    """Write a text of HTML as an outline."""
    return "\n".join(_lines(_Parsed(text).root.inside, 0))


def _together(elements: Sequence[Element | str]) -> Iterator[str | Element]:
    """Yield elements and texts; leaves of one kind beside each other as one text."""

    def kind(element: Element | str) -> str:
        is_leaf = isinstance(element, Element) and element.is_leaf
        return element.head if is_leaf else f"\0{id(element)}"

    for head, group in groupby(elements, kind):
        for_all = list(group)
        if head.startswith("\0"):
            yield from for_all
        else:
            texts = " | ".join(" ".join(leaf.inside) or "-" for leaf in for_all)
            yield head if texts == "-" else f"{head} {texts}"


def _lines(elements: Sequence[Element | str], depth: int) -> Iterator[str]:
    for part in _together(elements):
        line = part if isinstance(part, str) else _in_one_line(part)
        if isinstance(part, str) or len(line) < WIDTH:
            yield " " * depth + line
        else:
            yield " " * depth + part.head
            yield from _lines(part.inside, depth + 1)


def _in_one_line(element: Element) -> str:
    inside = [p if isinstance(p, str) else _in_one_line(p) for p in _together(element.inside)]
    return f"{element.head} ({', '.join(inside)})"


def _quoted(text: str) -> str:
    return json.dumps(text.replace("\u00a0", "␣"), ensure_ascii=False)


def _value(value: Any) -> str:
    """Write a property: five digits of a number, the ends of a long text or list."""
    if isinstance(value, np.ndarray | tuple):
        value = value.tolist() if isinstance(value, np.ndarray) else list(value)
    if isinstance(value, Component):
        return "<" + " ".join(page_text(value).split("\n")) + ">"
    if isinstance(value, Mapping) and "bdata" in value:  # an array on its way to a browser
        array = np.frombuffer(base64.b64decode(value["bdata"]), value["dtype"])
        shape = value.get("shape")
        value = array if shape is None else array.reshape([*map(int, str(shape).split(","))])
        return _value(value.tolist())
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {_value(v)}" for k, v in sorted(value.items())) + "}"
    if isinstance(value, list):
        return _list([_value(part) for part in value])
    if isinstance(value, float):
        return f"{value:.5g}"
    text = str(value)
    if isinstance(value, str):
        text = text if re.fullmatch(r"[\w./:#%~?&=+-]+", text) else _quoted(text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… {_sum([text])}"


def _list(parts: list[str]) -> str:
    if len(parts) <= MOST:
        return f"[{', '.join(parts)}]"
    return f"[{parts[0]}, {parts[1]}, {parts[2]} … {parts[-1]}; {len(parts)}, {_sum(parts)}]"


def _sum(parts: Sequence[str]) -> str:
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=3).hexdigest()


def figure_text(figure: go.Figure) -> str:
    """Write the traces and the layout of a chart."""
    lines = []
    for trace in figure.data:
        given = trace.to_plotly_json()
        name = f" {_quoted(given.pop('name'))}" if "name" in given else ""
        others = (f"{key}={_value(value)}" for key, value in sorted(given.items()) if key != "type")
        lines.append(f"{given['type']}{name} {' '.join(others)}")
    for key, value in sorted(figure.layout.to_plotly_json().items()):
        if key == "template":
            is_shared = value == TEMPLATE.to_plotly_json()
            lines.append(f"template {'shared' if is_shared else 'own'}")
        elif key in ("annotations", "shapes"):
            lines += [f"{key[:-1]} {_value(part)}" for part in value]
        else:
            lines.append(f"{key} {_value(value)}")
    return "\n".join(lines)


def columns_text(payload: bytes) -> str:
    """Write the header and the columns of a payload."""
    header, columns = decode(payload)
    types = {column["name"]: column["dtype"] for column in header.pop("columns")}
    lines = []
    for key, value in header.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            lines += [f"{key}: {_value(part)}" for part in value]
        else:
            lines.append(f"{key}: {_value(value)}")
    lines += [f"{name} {types[name]} {_value(column)}" for name, column in columns.items()]
    return "\n".join(lines)


def json_text(value: Any) -> str:
    """Write JSON values, an entry of the outer object in a line."""
    return "\n".join(f"{key}: {_value(part)}" for key, part in value.items())


def details_text(details: Mapping[str, Any]) -> str:
    """Write the details of a thing; links are in brackets, with what they select."""
    lines = [f"{_plain(details['title'])} <{details['sel']}>"]
    for section in details["sections"]:
        lines += [f" {section['heading']}"] if section["heading"] else []
        for row in section["rows"]:
            lines.append(f"  {row['label']}: {''.join(map(_part, row['parts']))}")
    return "\n".join([*lines, f"  {_value(details['values'])}"])


def _part(part: Mapping[str, str]) -> str:
    at = f" @{part['source']} {part['time']}" if "time" in part else ""
    selected = f" <{part['sel']}>" if "sel" in part else ""
    text = _plain(part["text"])
    return f"[{text}{selected}{at}]" if selected or at else text


def _plain(text: str) -> str:
    return text.replace("\u00a0", "␣")
