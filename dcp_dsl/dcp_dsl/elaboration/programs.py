"""Work with core programs: what they and layouts read of a sample, calls of them, their text.

A call puts values in the place of the free parameters of a program. As text, a program has a line
for each part of a mask, and numbers as they are written in masks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TypeAlias, TypeVar, cast

from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.keys import KeySequence
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.unparse import format_number
from dcp_dsl.syntax.walk import walk, walk_parts

Reader: TypeAlias = ast.Layout | ast.Columns | nodes.TokenColumn | nodes.RowColumn


def column_readers(*roots: nodes.Node) -> Iterator[tuple[str, Reader]]:
    """Yield every column that programs read, with what reads it."""
    for node in nodes.walk(*roots):
        match node:
            case nodes.RowColumn(name) | nodes.TokenColumn(_, name):
                yield name, node
    for statement in laid_statements(*roots):
        if isinstance(statement.source, ast.Layout):
            for column in layout_columns(statement.source):
                yield column, statement.source
        elif isinstance(statement.source, ast.Columns):
            yield statement.source.column.text, statement.source


def key_columns(keys: KeySequence | None) -> frozenset[str]:
    """Return the columns that say how many keys there are."""
    if keys is None or not isinstance(keys.statement.source, ast.Layout):
        return frozenset()
    return frozenset(layout_columns(keys.statement.source))


def laid_statements(*roots: nodes.Node) -> tuple[ast.Segment, ...]:
    """Return the segment statements that programs lay out, each once."""
    laid = (node.statement for node in nodes.walk(*roots) if isinstance(node, nodes.Laid))
    return tuple({id(statement): statement for statement in laid}.values())


@lru_cache(1024)
def reads_length(layout: ast.Layout) -> bool:
    """Return whether a layout depends on the sample's length: by `len` or by `[..]`."""
    return any(
        isinstance(node, ast.Leaf) and (node.length is None or ast.Name("len") in walk(node.length))
        for node in walk(layout)
    )


@lru_cache(1024)
def has_branches(layout: ast.Layout) -> bool:
    """Return whether parts of a layout go on from the same place."""
    return any(isinstance(node, ast.Leaf | ast.Group) and node.is_branch for node in walk(layout))


@lru_cache(1024)
def parent_columns(layout: ast.Layout) -> tuple[str, ...]:
    """Return the columns behind `from`, which hold branches and -1, not lengths."""
    parts = (node for node in walk(layout) if isinstance(node, ast.Leaf | ast.Group))
    return tuple(part.parents.text for part in parts if part.parents is not None)


@lru_cache(1024)
def layout_columns(layout: ast.Layout | ast.Group) -> tuple[str, ...]:
    """Return the columns that a layout, or a group of one, reads; in the order of the text."""
    names = (node.text for node in walk(layout.parts) if isinstance(node, ast.Name))
    return tuple(dict.fromkeys(name for name in names if name != "len"))


def column_depths(layout: ast.Layout) -> dict[str, int]:
    """Return the depth of the lists of each column of a layout.

    >>> from dcp_dsl.syntax.parser import parse
    >>> layout = parse("segment p = doc(head[h] body[b]*)* tail[t]").statements[0].source
    >>> column_depths(layout)
    {'h': 1, 'b': 2, 't': 0}
    """
    found: dict[str, int] = {}
    for part, _, depth, _ in walk_parts(layout.parts):
        if isinstance(part, ast.Leaf) and part.length is not None:
            found |= dict.fromkeys(layout_columns(ast.Layout((part,))), depth + part.is_repeated)
        if part.parents is not None:
            found[part.parents.text] = depth + 1
    return found


_NODE = TypeVar("_NODE", bound=nodes.Node)


def substitute(node: _NODE, given: Mapping[str, nodes.Node]) -> _NODE:
    """Return a program with values for its free parameters; what does not change is shared.

    Masks and positions are read in the coordinates of the place where they are put; lengths and
    integers keep the coordinates of the frame around the whole program.
    """
    return cast("_NODE", _Substitution(given).put(node, 0))


@dataclass(frozen=True, slots=True)
class _Substitution:
    """Values, and the nodes rewritten with them so far, by how many frames are around them."""

    given: Mapping[str, nodes.Node]
    known: dict[tuple[nodes.Node, int], nodes.Node] = field(default_factory=dict)

    def put(self, node: nodes.Node, depth: int) -> nodes.Node:
        """Rewrite a node with so many frames around it."""
        key = node, depth
        if key not in self.known:
            self.known[key] = self._put(node, depth)
        return self.known[key]

    def _put(self, node: nodes.Node, depth: int) -> nodes.Node:
        match node:
            case nodes.Free(name, kind):  # what has an error, `LOST`, stays
                value = self.given.get(name, node)
                return _outside(depth, value) if kind in ("tokens", "int") else value
            case nodes.Outside(levels, value):
                return _outside(levels, self.put(value, depth - levels))
        changed: dict[str, object] = {}
        for name in type(node).__slots__:
            old = getattr(node, name)
            if isinstance(old, nodes.Node):
                new = self.put(old, depth + (name == "body"))
                if new is not old:
                    changed[name] = new
            elif type(old) is tuple:
                items = tuple(self.put(item, depth) for item in old)
                if any(a is not b for a, b in zip(items, old, strict=True)):
                    changed[name] = items
        result = replace(node, **changed) if changed else node  # type: ignore[arg-type]  # nodes
        match result:
            case nodes.Arithmetic("*", nodes.Const(-1), nodes.Const() as number):
                return nodes.negated(number)
        return result


def _outside(levels: int, node: nodes.Node) -> nodes.Node:
    """Return a number of a frame so many levels further out.

    It is no such number itself: arguments are read in their own frame, and stay parameters until
    they are put in, through however many frames.
    """
    if levels == 0 or isinstance(node, nodes.Const | nodes.RowColumn | nodes.Free):
        return node
    assert not isinstance(node, nodes.Outside), "a number is put in once"
    return nodes.Outside(levels, cast("nodes.Number", node), place=node.place)


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
