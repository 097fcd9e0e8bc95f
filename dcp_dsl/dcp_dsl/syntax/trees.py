"""Walk syntax trees, rewrite them, and write them as text with as few brackets as possible.

Trees are rewritten with other nodes of a kind, or moved to another place of a text.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

from dcp_dsl.syntax import ast
from dcp_dsl.syntax.ast import Span
from dcp_grammar import words_of

LayoutParts: TypeAlias = tuple[ast.Leaf | ast.Group, ...]


class PlacedPart(NamedTuple):
    """A part of a layout and where it stands.

    `path` is its index at each level, from the outside in; `depth` the repeated groups around it;
    `around` the nearest named group around it, and its level, or "" and 0.
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
        match inner:
            case ast.Name(text):
                yield text, False
            case ast.Call(name):
                yield name.text, False
            case ast.Attribute(_, name):
                yield name.text, True
            case _:
                yield from ((name.text, False) for name in named_segments(inner))


def named_segments(node: object) -> tuple[ast.Ident, ...]:
    """Return the segments that a node itself names as bare words."""
    match node:
        case (
            ast.Per(segment=name) | ast.Filter(base=name) | ast.Every(parent=ast.Ident() as name)
            | ast.Rule(subject=name) | ast.Target(name=name)
            | ast.Layer(documents=ast.Ident() as name)
        ):  # fmt: skip
            return (name,)
        case ast.Union(bases):
            return bases
    return ()


T = TypeVar("T")


def moved(node: T, distance: int) -> T:
    """Return a node with every span in it moved by so many characters."""
    if distance == 0:
        return node
    return rewritten(node, Span, lambda span: Span(span.start + distance, span.end + distance))


def rewritten(node: T, kind: type, change: Callable[[Any], Any]) -> T:
    """Return a node in which `change` has replaced all nodes of a kind."""

    def rewrite(value: Any) -> Any:  # Any: a node, a tuple of them, or a plain value
        own: type = type(value)
        if own is kind:
            return change(value)
        if own is tuple:
            return tuple([rewrite(item) for item in value])
        names = _fields(own)
        if names is None:
            return value
        # nodes are frozen, so attributes are set past their own `__setattr__`
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


# How tightly each kind of node binds; an operand that binds less needs brackets.
_OR, _AND, _NOT, _PER, _COMPARE, _SUM, _PRODUCT, _SIGN, _POSTFIX = range(9)


def unparse(value: ast.Expr) -> str:
    """Return a text that parses to an equal tree."""
    return _text(value)[0]


_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED = frozenset(words_of("statement", "clause", "operator", "constant"))


def column_name(text: str) -> str:
    """Write the name of a column, in quotes if it needs them.

    >>> column_name("lens"), column_name("my col"), column_name("for")
    ('lens', '"my col"', '"for"')
    """
    return text if _BARE.fullmatch(text) and text not in _RESERVED else f'"{text}"'


def format_number(value: int) -> str:
    """Write a number as people do: ``4k`` for 4096.

    >>> format_number(4096), format_number(1000), format_number(-3)
    ('4k', '1000', '-3')
    """
    for suffix, factor in (("M", 2**20), ("k", 2**10)):
        if value and value % factor == 0:
            return f"{value // factor}{suffix}"
    return str(value)


def _text(value: ast.Expr) -> tuple[str, int]:
    """Return the text of a node and how tightly it binds."""
    match value:
        case ast.Number(number):
            return format_number(number), _POSTFIX
        case ast.Bool(flag):
            return str(flag).lower(), _POSTFIX
        case ast.Name(text):
            return column_name(text), _POSTFIX
        case ast.Quoted(_, name):
            return f'"{name.text}"', _POSTFIX
        case ast.Attribute(inner, name):
            return f"{_at_least(inner, _POSTFIX)}.{column_name(name.text)}", _POSTFIX
        case ast.Call(name, arguments):
            return f"{name.text}({', '.join(map(_argument, arguments))})", _POSTFIX
        case ast.Sign(op, inner):
            return f"{op}{_at_least(inner, _POSTFIX)}", _SIGN
        case ast.Rules(rules):
            return "{ " + "  ".join(map(_rule, rules)) + " }", _POSTFIX
        case ast.Binary(op, left, right):
            level = _SUM if op in ("+", "-") else _PRODUCT
            # Operators group from the left: `a - (b - c)` needs its brackets, `(a - b) - c` none.
            return f"{_at_least(left, level)} {op} {_at_least(right, level + 1)}", level
    return _logic(value)


def _logic(value: ast.Expr) -> tuple[str, int]:
    match value:
        case ast.Compare(operands, ops):
            parts = [_at_least(operands[0], _SUM)]
            for op, operand in zip(ops, operands[1:], strict=True):
                parts += [op, _at_least(operand, _SUM)]
            return " ".join(parts), _COMPARE
        case ast.In(item, container, negated):
            word = "not in" if negated else "in"
            return f"{_at_least(item, _SUM)} {word} {_at_least(container, _POSTFIX)}", _COMPARE
        case ast.Per(inner, segment):
            return f"{_at_least(inner, _PER)} per {segment.text}", _PER
        case ast.Not(inner):
            return f"not {_at_least(inner, _NOT)}", _NOT
        case ast.And(items):
            # A nested `and` keeps its brackets, else it would become one with this; a leading
            # `minus` needs none.
            first = items[0]
            head = _text(first)[0] if isinstance(first, ast.Minus) else _at_least(first, _NOT)
            rest = [_at_least(item, _NOT) for item in items[1:]]
            return " and ".join([head, *rest]), _AND
        case ast.Minus(left, right):
            # `a and b minus c` is the text of this tree: `minus` takes all in front of it.
            head = (
                _text(left)[0] if isinstance(left, ast.And | ast.Minus) else _at_least(left, _NOT)
            )
            return f"{head} minus {_at_least(right, _NOT)}", _AND
        case ast.Or(items):
            return " or ".join(_at_least(item, _AND) for item in items), _OR
    raise AssertionError(f"no text for {type(value).__name__}")


def _at_least(value: ast.Expr, level: int) -> str:
    text, own = _text(value)
    return text if own >= level else f"({text})"


def _argument(argument: ast.Argument) -> str:
    text = unparse(argument.value)
    return text if argument.name is None else f"{argument.name.text} = {text}"


def _rule(rule: ast.Rule) -> str:
    return f"{rule.subject.text} sees {', '.join(map(_target, rule.targets))}"


def _target(target: ast.Target) -> str:
    text = target.name.text
    if target.is_causal:
        text += " causally"
    if target.within is not None:
        text += f" within {_at_least(target.within, _SUM)}"
    return text
