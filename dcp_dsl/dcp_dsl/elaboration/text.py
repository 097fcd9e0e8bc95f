"""Print core programs: a line for each part of a mask, numbers as they are written in masks."""

from collections.abc import Iterator

from dcp_dsl.elaboration import nodes
from dcp_dsl.syntax.unparse import format_number

_LEVELS = {"+": 1, "-": 1, "*": 2, "//": 2, "%": 2}


def show_mask(node: nodes.Mask) -> str:
    """Return a core program as text.

    `frame S` stands for the instances of S, with coordinates of their own; `out(n, x)` is the
    number x as it is n frames further out.
    """
    return "\n".join(_lines(node, ""))


def _lines(node: nodes.Mask, indent: str) -> Iterator[str]:
    items: tuple[nodes.Mask, ...] = ()
    match node:
        case nodes.And(items) | nodes.Or(items):
            head = type(node).__name__.lower()
        case nodes.Not(item):
            head, items = "not", (item,)
        case nodes.Per(segment, body):
            head, items = f"frame {show_segment(segment)}", (body,)
        case _:
            head = _atom(node)
    yield indent + head
    for item in items:
        yield from _lines(item, indent + "  ")


def _atom(node: nodes.Mask) -> str:
    match node:
        case nodes.Truth(flag):
            return str(flag).lower()
        case nodes.Compare(op, left, right):
            return f"{show_number(left)} {op} {show_number(right)}"
        case nodes.Within(segment, at):
            return f"{show_number(at)} in {show_segment(segment)}"
        case nodes.Listed(item, table, at):
            return f"{show_number(item)} in {show_number(nodes.Lookup(table, 'number', at))}"
        case nodes.Same(segment):
            return f"same({show_segment(segment)})"
        case nodes.Along(layout):
            return f"paths({layout.name})"
        case nodes.Free(name):
            return name
    raise AssertionError(f"has parts: {type(node).__name__}")


def show_number(node: nodes.Number, level: int = 0) -> str:
    """Return a number as text; `level` is how tightly what stands around it binds."""
    match node:
        case nodes.Const(value):
            return format_number(value)
        case nodes.Pos(side):
            return side
        case nodes.Length():
            return "len"
        case nodes.Count(segment):
            return f"{show_segment(segment)}.count"
        case nodes.RowColumn(name):
            return f"row.{name}"
        case nodes.Lookup(table, fact, at):
            read = f"{show_number(at, 9)}.{show_segment(table)}"
            return read if fact == "number" else f"{read}.{fact}"
        case nodes.Outside(levels, value):
            return f"out({levels}, {show_number(value)})"
        case nodes.Free(name):
            return name
        case nodes.Arithmetic(op, left, right) if op in _LEVELS:
            tight = _LEVELS[op]
            text = f"{show_number(left, tight)} {op} {show_number(right, tight + 1)}"
            return f"({text})" if tight < level else text
    return f"{node.op}({show_number(node.left)}, {show_number(node.right)})"


def show_segment(node: nodes.Segment | nodes.TokenColumn) -> str:
    """Return a segment, or a column, as text."""
    match node:
        case nodes.TokenColumn(name, segment=segment):
            return name if segment is None else f"{show_segment(segment)}.{name}"
        case nodes.Laid(_, name):
            return name
        case nodes.Tiles(size, parent):
            inside = "" if parent is None else f", {show_segment(parent)}"
            return f"every({show_number(size)}{inside})"
        case nodes.Chosen(is_first, segment, count):
            word = "first" if is_first else "last"
            return f"{word}({show_segment(segment)}, {show_number(count)})"
