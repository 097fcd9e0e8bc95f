"""Documents and outputs of commands as short texts that are the same on every machine."""

import re
from collections.abc import Mapping
from pathlib import Path
from textwrap import indent, wrap
from typing import Any

WIDTH = 120
ELSEWHERE = frozenset({"compile_s", "digest", "plan_bytes_per_rank"})
"""Entries that differ between machines, or with every change of a plan."""


def short(value: Any) -> str:
    """Write what JSON holds: numbers to five digits, and as much on a line as fits.

    >>> print(short({"a": [1.234567, None], "b": {"c": "d"}}))
    a: [1.2346, null], b: {c: d}
    """
    line = _line(value)
    if len(line) <= WIDTH or not isinstance(value, Mapping | list | tuple):
        return line.removeprefix("{").removesuffix("}") if isinstance(value, Mapping) else line
    if all(not isinstance(part, Mapping | list | tuple) for part in _values(value)):
        return "\n".join(wrap(line[1:-1], WIDTH))
    entries = value.items() if isinstance(value, Mapping) else (("-", part) for part in value)
    lines = []
    for name, part in entries:
        text = short(part) if name not in ELSEWHERE else _told(name, part)
        lines.append(f"{name}: {text}" if "\n" not in text else f"{name}:\n{indent(text, '  ')}")
    return "\n".join(lines)


def _values(value: Any) -> Any:
    return value.values() if isinstance(value, Mapping) else value


def _told(name: str, value: Any) -> str:
    return "..." if name in ELSEWHERE and value is not None else _line(value)


def _line(value: Any) -> str:
    match value:
        case Mapping():
            return "{" + ", ".join(f"{name}: {_told(name, value[name])}" for name in value) + "}"
        case list() | tuple():
            return f"[{', '.join(map(_line, value))}]"
        case float():
            return f"{value:.5g}"
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def same_everywhere(text: str) -> str:
    """Leave out of the output of a command what differs between machines, and click's usage."""
    text = text.replace(str(Path.cwd()), "FOLDER").replace("\x1b", "^")
    text = re.sub(r"^Usage: .*\nTry .*\n+", "", text, flags=re.M)
    text = re.sub(r"^compiled in .*\n?", "", text, flags=re.M)
    return re.sub(r" +$", "", text, flags=re.M).rstrip()
