"""Move nodes of a syntax tree to another place of a text."""

from functools import cache
from typing import Any, TypeVar, cast

from dcp_dsl.syntax.ast import Span

T = TypeVar("T")


def moved(node: T, distance: int) -> T:
    """Return a node with every span in it moved by so many characters.

    >>> from dcp_dsl.syntax.ast import Ident
    >>> moved(Ident("doc", span=Span(2, 5)), 4).span
    Span(start=6, end=9)
    """
    return node if distance == 0 else cast(T, _moved(node, distance))


def _moved(value: Any, distance: int) -> Any:  # Any: a node, a tuple of them, or a plain value
    kind: type = type(value)
    if kind is tuple:
        return tuple([_moved(item, distance) for item in value])
    if kind is Span:
        return Span(value.start + distance, value.end + distance)
    names = _fields(kind)
    if names is None:
        return value
    copy: Any = object.__new__(kind)  # Any: of this kind
    for name in names:
        object.__setattr__(copy, name, _moved(getattr(value, name), distance))
    return copy


@cache
def _fields(kind: type) -> tuple[str, ...] | None:
    fields = getattr(kind, "__dataclass_fields__", None)
    return None if fields is None else tuple(fields)
