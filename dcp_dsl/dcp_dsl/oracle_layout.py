"""The oracle's own way to lay a layout out on a sample: a tree of parts, walked from left to right.

Shares nothing with `layout`, which it is there to judge.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import add, floordiv, mod, mul, sub
from typing import Any

from dcp_dsl import ast
from dcp_dsl.errors import DatasetError


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance of a segment: its tokens, its number and how many its parent has."""

    start: int
    end: int
    number: int
    total: int


@dataclass(slots=True)
class _Node:
    """A part of a layout laid out on a sample."""

    name: str | None
    length: int
    children: list["_Node"] = field(default_factory=list)


def lay_out(
    statement: ast.Segment, layout: ast.Layout, name: str, columns: Mapping[str, Any], length: int
) -> list[Instance]:
    """Give the instances of one name of a layout by laying the whole layout out."""
    top = _Node(None, 0)
    for part in layout.parts:
        top.children += _expand(part, columns, length)
    _give_rest(top, length)
    if _size(top) != length:
        raise DatasetError(
            f"segment `{statement.name.text}`: the layout has {_size(top)} tokens, the "
            f"sample {length}"
        )
    if name == statement.name.text:
        for child in top.children:
            child.name = name
            child.children = []
    return _numbered(top, name)


def _expand(part: ast.Leaf | ast.Group, row: Mapping[str, Any], total: int) -> list[_Node]:
    """Repeat a part as often as its columns say; -1 marks the remaining tokens."""
    if isinstance(part, ast.Leaf):
        name = part.name.text if part.name else None
        if part.length is None:
            return [_Node(name, -1)]
        if part.is_repeated:
            assert isinstance(part.length, ast.Name), "a repeated part has a column"
            column = part.length.text
            lengths = _list(column, row[column])
            return [_Node(name, _not_negative(column, _integer(column, n))) for n in lengths]
        return [_Node(name, _not_negative("a length", _length(part.length, row, total)))]
    name = part.name.text if part.name else None
    rows = [row]
    if part.is_repeated:
        lists = {c: _list(c, row[c]) for c in _columns_below(part)}
        if len({len(value) for value in lists.values()}) > 1:
            raise DatasetError(f"{', '.join(lists)}: expected lists of equal sizes")
        rows = [{**row, **dict(zip(lists, values, strict=True))}
                for values in zip(*lists.values(), strict=True)]  # fmt: skip
    nodes = []
    for inner in rows:
        node = _Node(name, 0)
        for child in part.parts:
            node.children += _expand(child, inner, total)
        node.length = _size(node)
        nodes.append(node)
    return nodes


def _length(value: ast.Expr, row: Mapping[str, Any], total: int) -> int:
    match value:
        case ast.Number(number):
            return number
        case ast.Name("len"):
            return total
        case ast.Name(name):
            return _integer(name, row[name])
        case ast.Sign(op, inner):
            return _length(inner, row, total) * (-1 if op == "-" else 1)
        case ast.Binary(op, left, right):
            a, b = _length(left, row, total), _length(right, row, total)
            if op in ("//", "%") and b == 0:
                raise DatasetError("a length divides by zero")
            return int({"+": add, "-": sub, "*": mul, "//": floordiv, "%": mod}[op](a, b))
    raise AssertionError(f"no length: {type(value).__name__}")


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise DatasetError(f"column `{name}`: expected a list, got {value!r}")
    return value


def _integer(name: str, value: Any) -> int:
    if not isinstance(value, int):
        raise DatasetError(f"column `{name}`: expected one integer, got {value!r}")
    return value


def _not_negative(name: str, value: int) -> int:
    if value < 0:
        raise DatasetError(f"{name}: expected at least 0, got {value}")
    return value


def _columns_below(part: ast.Leaf | ast.Group) -> list[str]:
    if isinstance(part, ast.Group):
        return [name for child in part.parts for name in _columns_below(child)]
    names: list[str] = []
    pending: list[ast.Expr | None] = [part.length]
    while pending:
        match pending.pop():
            case ast.Name(name) if name != "len":
                names.append(name)
            case ast.Binary(_, left, right):
                pending += [left, right]
            case ast.Sign(_, inner):
                pending.append(inner)
    return names


def _size(node: _Node) -> int:
    if not node.children:
        return max(0, node.length)
    return sum(_size(child) for child in node.children)


def _give_rest(top: _Node, length: int) -> None:
    for child in top.children:
        if child.length == -1:
            child.length = 0
            child.length = length - _size(top)


def _numbered(top: _Node, name: str) -> list[Instance]:
    """Number all nodes of a name among those with the same nearest named ancestor."""
    spans: list[tuple[int, int, int]] = []  # start, end, ancestor

    def visit(node: _Node, at: int, ancestor: int) -> int:
        for child in node.children:
            end = at + _size(child)
            if child.name == name:
                spans.append((at, end, ancestor))
            visit(child, at, id(child) if child.name is not None else ancestor)
            at = end
        return at

    visit(top, 0, id(top))
    counts: dict[int, int] = {}
    for _, _, ancestor in spans:
        counts[ancestor] = counts.get(ancestor, 0) + 1
    numbers: dict[int, int] = {}
    found = []
    for start, end, ancestor in spans:
        number = numbers.get(ancestor, 0)
        numbers[ancestor] = number + 1
        found.append(Instance(start, end, number, counts[ancestor]))
    return found
