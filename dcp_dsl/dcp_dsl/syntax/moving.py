"""Rewrite syntax trees: other nodes of a kind, or the same nodes at another place of a text."""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from dcp_dsl.syntax.ast import Span

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
    """Return a node in which everything of a kind is changed.

    Args:
        node: a node, or a tuple of them.
        kind: a class of nodes, or `Span`.
        change: what becomes of each; it may give a node of another kind.
    """

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
