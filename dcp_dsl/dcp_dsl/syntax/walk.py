"""Walk and rewrite syntax trees: all nodes and names below a node, all parts of a layout.

Trees are rewritten with other nodes of a kind, or moved to another place of a text.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

from dcp_dsl.syntax import ast
from dcp_dsl.syntax.ast import Span

LayoutParts: TypeAlias = tuple[ast.Leaf | ast.Group, ...]


class PlacedPart(NamedTuple):
    """A part of a layout and where it stands.

    Attributes:
        part: the part.
        path: index of the part at each level, from the outside in; its own is the last.
        depth: repeated groups around it.
        around: the nearest group around it that has a name, and its level; "" and 0 without one.
    """

    part: ast.Leaf | ast.Group
    path: tuple[int, ...]
    depth: int
    around: tuple[str, int]


def walk_parts(
    parts: LayoutParts,
    path: tuple[int, ...] = (),
    depth: int = 0,
    around: tuple[str, int] = ("", 0),
) -> Iterator[PlacedPart]:
    """Yield the parts of a layout from left to right, each group before the parts inside."""
    for index, part in enumerate(parts):
        at = (*path, index)
        yield PlacedPart(part, at, depth, around)
        if isinstance(part, ast.Group):
            own = around if part.name is None else (part.name.text, len(at))
            yield from walk_parts(part.parts, at, depth + part.is_repeated, own)


def walk(node: object) -> Iterator[object]:
    """Yield a node of a syntax tree and all nodes below it, without spans; no recursion."""
    stack = [node]
    while stack:
        current = stack.pop()
        if type(current) is tuple:
            stack.extend(reversed(current))
        elif (names := _children(type(current))) is not None:  # type: ignore[arg-type]  # hashable
            yield current
            for name in names:
                stack.append(getattr(current, name))  # noqa: PERF401  # a generator is slower


def children(node: object) -> list[object]:
    """Return the nodes right below a node, those in tuples among them."""
    found: list[object] = []
    pending = [getattr(node, name) for name in _children(type(node)) or ()]  # type: ignore[arg-type]  # hashable
    while pending:
        value = pending.pop()
        if type(value) is tuple:
            pending.extend(value)
        elif _children(type(value)) is not None:  # type: ignore[arg-type]  # hashable
            found.append(value)
    return found


@cache
def _children(kind: type) -> tuple[str, ...] | None:
    """Return the fields of a kind of node that may hold nodes, the last first; None for others."""
    fields = getattr(kind, "__dataclass_fields__", None)
    return None if fields is None else tuple(name for name in reversed(fields) if name != "span")


def mentioned_names(node: object) -> Iterator[tuple[str, bool]]:
    """Yield every name in a tree, with whether it stands behind a dot."""
    for inner in walk(node):
        kind = type(inner)
        if kind is ast.Ident:
            continue
        match inner:
            case ast.Name(text):
                yield text, False
            case ast.Call(name):
                yield name.text, False
            case ast.Attribute(_, name):
                yield name.text, True
            case ast.Per(_, segment):
                yield segment.text, False
            case ast.Every(_, parent) if parent is not None:
                yield parent.text, False
            case ast.Rule(subject):
                yield subject.text, False
            case ast.Target(name):
                yield name.text, False


T = TypeVar("T")


def moved(node: T, distance: int) -> T:
    """Return a node with every span in it moved by so many characters.

    >>> from dcp_dsl.syntax.ast import Ident
    >>> moved(Ident("doc", span=Span(2, 5)), 4).span
    Span(start=6, end=9)
    """
    if distance == 0:
        return node
    return rewritten(node, Span, lambda span: Span(span.start + distance, span.end + distance))


def rewritten(node: T, kind: type, change: Callable[[Any], Any]) -> T:
    """Return a node in which everything of a kind is changed."""

    def rewrite(value: Any) -> Any:  # Any: a node, a tuple of them, or a plain value
        own: type = type(value)
        if own is kind:
            return change(value)
        if own is tuple:
            return tuple([rewrite(item) for item in value])
        names = _fields(own)
        if names is None:
            return value
        copy: Any = object.__new__(own)  # Any: of this kind
        for name in names:
            object.__setattr__(copy, name, rewrite(getattr(value, name)))
        return copy

    result: T = rewrite(node)
    return result


@cache
def _fields(kind: type) -> tuple[str, ...] | None:
    fields = getattr(kind, "__dataclass_fields__", None)
    return None if fields is None else tuple(fields)
