"""Lay a layout out for the oracle: a tree of parts, walked from left to right.

The code shares nothing with `core.layout`, which it judges.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import add, floordiv, mod, mul, sub
from typing import Any

from dcp_dsl.errors import DatasetError
from dcp_dsl.syntax import ast


@dataclass(frozen=True, slots=True)
class Instance:
    """A stretch of tokens of a segment.

    Attributes:
        start, end: its tokens.
        number: within its parent.
        total: how many the parent has.
        parent: tells parents apart.
        name: tells instances apart; only ids give several stretches one name.
        is_id: whether the number is an id, which means the same everywhere.
        layout: the statement that laid it out; None for tiles and columns.
        path: which child to take at each level of that layout to come to it.
        within: of a tile, the instance that it is cut from.
    """

    start: int
    end: int
    number: int
    total: int
    parent: int = 0
    name: int = 0
    is_id: bool = False
    layout: ast.Segment | None = None
    path: tuple[int, ...] = ()
    within: "Instance | None" = None


@dataclass(slots=True)
class _Node:
    """A part of a layout laid out on a sample."""

    name: str | None
    length: int
    children: list["_Node"] = field(default_factory=list)
    part: "ast.Leaf | ast.Group | None" = None
    fork: int = -1  # number of the repetition that a branch goes on from


def lay_out(
    statement: ast.Segment, layout: ast.Layout, name: str, columns: Mapping[str, Any], length: int
) -> list[Instance]:
    """Return the instances of one name of a layout by laying the whole layout out."""
    top = _whole(statement, layout, columns, length)
    if name == statement.name.text:
        for child in top.children:
            child.name = name
            child.children = []
    return _numbered(top, name, statement)


def _whole(
    statement: ast.Segment, layout: ast.Layout, columns: Mapping[str, Any], length: int
) -> _Node:
    top = _Node(None, 0)
    for part in layout.parts:
        top.children += _expand(part, columns, length)
    _give_rest(top, length)
    if _size(top) != length:
        raise DatasetError(
            f"segment `{statement.name.text}`: the layout has {_size(top)} tokens, the "
            f"sample {length}"
        )
    return top


def lay_paths(
    statement: ast.Segment, layout: ast.Layout, columns: Mapping[str, Any], length: int
) -> list[tuple[int, ...]]:
    """Return for each token the tokens on its path, from the root to the token itself."""
    found: list[tuple[int, ...]] = []

    def visit(node: _Node, path: tuple[int, ...]) -> tuple[int, ...]:
        """Lay out what is in a node behind a path; return the path at its end."""
        if not node.children:
            for _ in range(node.length):
                path = (*path, len(found))
                found.append(path)
        ends: dict[int, list[tuple[int, ...]]] = {}
        for child in node.children:
            assert child.part is not None, "only the top is no part"
            before = ends.setdefault(id(child.part), [])
            start = path if child.fork < 0 else before[child.fork]
            end = visit(child, start)
            before.append(end)
            path = path if child.part.is_branch else end
        return path

    visit(_whole(statement, layout, columns, length), ())
    return found


def _expand(part: ast.Leaf | ast.Group, row: Mapping[str, Any], total: int) -> list[_Node]:
    """Repeat a part as often as its columns say; -1 marks the remaining tokens."""
    nodes = _repeat(part, row, total)
    forks = [-1] * len(nodes)
    if part.parents is not None:
        forks = _list(part.parents.text, row[part.parents.text])
    if len(forks) != len(nodes) or any(not -1 <= f < i for i, f in enumerate(forks)):
        raise DatasetError("expected for each branch an earlier one, or -1")
    for node, fork in zip(nodes, forks, strict=True):
        node.part, node.fork = part, fork
    return nodes


def _repeat(part: ast.Leaf | ast.Group, row: Mapping[str, Any], total: int) -> list[_Node]:
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
    repeats: list[tuple[Mapping[str, Any], int]] = [(row, len(part.parts))]
    if part.is_repeated:
        below = [name for child in part.parts for name in _columns_below(child)]
        lists = {c: _list(c, row[c]) for c in below}
        repeats = _repeats(part, row, lists)
    nodes = []
    for inner, present in repeats:
        node = _Node(name, 0)
        for child in part.parts[:present]:
            node.children += _expand(child, inner, total)
        node.length = _size(node)
        nodes.append(node)
    return nodes


def _repeats(
    part: ast.Group, row: Mapping[str, Any], lists: Mapping[str, list[Any]]
) -> list[tuple[Mapping[str, Any], int]]:
    """Return for each repetition the columns it sees and how many parts it has."""
    longest = max((len(values) for values in lists.values()), default=0)
    found: list[tuple[Mapping[str, Any], int]] = []
    for index in range(longest):
        here = {name: values[index] for name, values in lists.items() if index < len(values)}
        present = 0
        for child in part.parts:
            if any(name not in here for name in _columns_below(child)):
                break
            present += 1
        late = [name for child in part.parts[present:] for name in _columns_below(child)]
        if present < len(part.parts):
            is_last = index == longest - 1
            if not is_last or present == 0 or any(name in here for name in late):
                raise DatasetError(f"{', '.join(lists)}: expected lists of equal sizes")
        found.append(({**row, **here}, present))
    return found


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
    own = [part.parents.text] if part.parents is not None else []
    if isinstance(part, ast.Group):
        return own + [name for child in part.parts for name in _columns_below(child)]
    names: list[str] = own
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


def _numbered(top: _Node, name: str, statement: ast.Segment) -> list[Instance]:
    """Number all nodes of a name among those with the same nearest named ancestor."""
    spans: list[tuple[int, int, int, tuple[int, ...]]] = []  # start, end, ancestor, path

    def visit(node: _Node, at: int, ancestor: int, path: tuple[int, ...]) -> int:
        for index, child in enumerate(node.children):
            end, here = at + _size(child), (*path, index)
            if child.name == name:
                spans.append((at, end, ancestor, here))
            visit(child, at, id(child) if child.name is not None else ancestor, here)
            at = end
        return at

    visit(top, 0, id(top), ())
    parents = list(dict.fromkeys(ancestor for _, _, ancestor, _ in spans))
    found = []
    for index, (start, end, ancestor, path) in enumerate(spans):
        siblings = [i for i, span in enumerate(spans) if span[2] == ancestor]
        number, parent = siblings.index(index), parents.index(ancestor)
        found.append(
            Instance(start, end, number, len(siblings), parent, index, layout=statement, path=path)
        )
    return found


def spell_out(
    source: ast.Columns, is_whole_segment: bool, name: str, value: Any, length: int
) -> list[Instance]:
    """Return the instances of one name of a segment that a column spells out.

    Args:
        source: `ids`, `spans`, `flags` or `positions` of a column.
        is_whole_segment: whether the name is the segment's own, not one behind `as`.
        name: which one.
        value: the column.
        length: tokens of the sample.
    """
    values = _list(source.column.text, value)
    if source.kind.text == "spans":
        return _spans(values, length)
    if len(values) != length:
        raise DatasetError(f"expected {length} values")
    labels = [_integer("value", v) for v in values]
    if source.kind.text == "ids":
        return _named(labels, source, is_whole_segment, name)
    stretches: list[list[int]] = []
    for token, label in enumerate(labels):
        if source.kind.text == "flags":
            if label not in (0, 1):
                raise DatasetError("a flag is 0 or 1")
            if label == 0:
                continue
            is_next = bool(stretches) and stretches[-1][-1] == token - 1
        else:
            is_next = token > 0 and label == labels[token - 1] + 1
        if is_next:
            stretches[-1].append(token)
        else:
            stretches.append([token])
    return [Instance(s[0], s[-1] + 1, i, len(stretches), 0, i) for i, s in enumerate(stretches)]


def _spans(values: list[Any], length: int) -> list[Instance]:
    if any(not isinstance(pair, list) or len(pair) != 2 for pair in values):
        raise DatasetError("a span is a pair [start, end]")
    spans = sorted((_integer("start", a), _integer("end", b)) for a, b in values)
    if any(start < end for (_, end), (start, _) in pairwise(spans)):
        raise DatasetError("spans overlap")
    if any(not 0 <= a <= b <= length for a, b in spans):
        raise DatasetError("a span leaves the sample")
    return [Instance(a, b, i, len(spans), 0, i) for i, (a, b) in enumerate(spans)]


def _named(
    labels: list[int], source: ast.Columns, is_whole_segment: bool, name: str
) -> list[Instance]:
    """Return the stretches of equal ids."""
    if any(label < -1 for label in labels):
        raise DatasetError("an id is -1 or at least 0")
    if source.names and any(label >= len(source.names) for label in labels):
        raise DatasetError("an id has no name")
    total = len(source.names) or max([*labels, -1]) + 1
    wanted = None if is_whole_segment else [n.text for n in source.names].index(name)
    found: list[Instance] = []
    for token, label in enumerate(labels):
        if label == -1 or (wanted is not None and label != wanted):
            continue
        if token > 0 and labels[token - 1] == label:
            last = found[-1]
            found[-1] = Instance(last.start, token + 1, label, total, 0, label, True)
        else:
            found.append(Instance(token, token + 1, label, total, 0, label, True))
    if wanted is None:
        return found
    return [Instance(f.start, f.end, i, len(found), 0, i) for i, f in enumerate(found)]


def cut_to(instances: list[Instance], cell: Instance, length: int) -> list[Instance]:
    """Cut instances to a cell, counted from its start and numbered anew unless by ids.

    Args:
        instances: in the frame around.
        cell: a stretch of tokens there.
        length: tokens of the frame around.
    """
    inside = []
    for one in instances:
        start, end = max(one.start, cell.start), min(one.end, cell.end)
        if start < end or (one.start == one.end and _stands_in(one, cell, length)):
            inside.append(replace(one, start=start - cell.start, end=end - cell.start))
    found = []
    for index, one in enumerate(inside):
        if one.is_id:
            found.append(one)
            continue
        siblings = [i.number for i in inside if i.parent == one.parent]
        number = one.number - min(siblings)
        found.append(replace(one, number=number, total=len(siblings), name=index))
    return found


def _stands_in(empty: Instance, cell: Instance, length: int) -> bool:
    """Say whether an instance without tokens lies in a cell.

    Its layout decides, for cells of the same layout. Else it goes with the token behind it, and at
    the end of the frame with the token before it. A tile divides what it is cut from.
    """
    if cell.within is not None:
        if not _stands_in(empty, cell.within, length):
            return False
        length = cell.within.end
    elif empty.layout is not None and empty.layout == cell.layout:
        return empty.path[: len(cell.path)] == cell.path
    return cell.start <= empty.start < cell.end or empty.start == cell.end == length


def choose(instances: list[Instance], which: str, how_many: int) -> list[Instance]:
    """Return the first or the last instances of every parent, numbered among themselves."""
    found = []
    for one in instances:
        total = min(one.total, max(how_many, 0))
        skipped = one.total - total if which == "last" else 0
        if 0 <= one.number - skipped < total:
            found.append(replace(one, number=one.number - skipped, total=total))
    return found
