"""Build the syntax tree from the parser's tree, bottom-up and without recursion.

`_RULES` has an entry for every rule of the grammar. `build` walks with a stack of its own, so that
thousands of nested brackets do not overflow the call stack of Python.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import Any, TypeAlias, TypeGuard

from dcp_dsl.errors import printable
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.ast import Span
from dcp_dsl.syntax.trees import rewritten

MAX_NUMBER = 2**40  # a million times a million tokens, and far from the borders of int64
MAX_LAYERS = 2**10  # entries of a stack, groups written out
MAX_QUOTED = 128  # characters of a name in quotes
MAX_DEPTH = 64  # levels of one statement; everything behind the parser may recurse
COLUMN_KINDS = ("spans", "ids", "flags", "positions")

Built: TypeAlias = Any  # Any: a node, a word, None or a tuple of them; each rule knows its own
Builder: TypeAlias = Callable[[Sequence[Built], Span], Built]

_text, _parts = attrgetter("text"), attrgetter("parts")


class BuildError(Exception):
    """A mistake that the grammar allows; the parser turns it into a diagnostic."""

    def __init__(
        self, code: str, message: str, span: Span, hint: str = "", fix: str | None = None
    ) -> None:
        self.code, self.message, self.span, self.hint = code, message, span, hint
        self.fix = fix  # what certainly belongs in place of the span
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class ParsedWord:
    """A token of the grammar with its span in the whole text."""

    type: str
    text: str
    span: Span


def _same(child: Built) -> Built:
    return child


def _ident(word: ParsedWord | None) -> Built:  # None only where the grammar lets a name be left out
    if word is None:
        return None
    text = word.text
    if word.type == "STRING":
        text = text[1:-1]
        if not 1 <= len(text) <= MAX_QUOTED or "\t" in text or printable(text) != text:
            raise BuildError(
                "E028", f"a name in quotes has 1 to {MAX_QUOTED} characters, and no control "
                f"characters; this one has {len(text)} characters", word.span,
                "give the column another name in the data set",
            )  # fmt: skip
    return ast.Ident(text, span=word.span)


def _quoted(children: Sequence[Built], span: Span) -> ast.Quoted:
    return ast.Quoted(ast.Name("row", span=span), _ident(children[0]), span=span)


def _length(value: ast.Expr | None) -> ast.Expr | None:
    """Read quoted names in the length of a part of a layout as its other columns."""
    if value is None or isinstance(value, ast.Name):
        return value
    return rewritten(value, ast.Quoted, lambda column: ast.Name(column.name.text, span=column.span))


def _string(word: ParsedWord) -> ast.Ident:
    return ast.Ident(word.text[1:-1], span=word.span)


def _items(child: Built) -> tuple[Built, ...]:
    return child or ()


def _literal(value: Built) -> ast.Literals:
    # A number with a sign and a list are plain values by now.
    return int(value.value) if isinstance(value, ast.Number | ast.Bool) else value


def integer(word: ParsedWord) -> int:
    """Return the value of a number, ``4k`` being 4096."""
    digits = word.text.replace("_", "")
    scale = {"k": 2**10, "M": 2**20}.get(digits[-1], 1)
    digits = digits.rstrip("kM").lstrip("0")
    # Counting digits first: int() of a million digits is slow, and Python refuses it.
    if len(digits) > 13 or int(digits or "0") * scale > MAX_NUMBER:
        raise BuildError(
            "E014", f"this number is larger than {MAX_NUMBER:_}", word.span,
            "lengths are in tokens; `4k` is 4096 and `1M` is 1_048_576",
        )  # fmt: skip
    return int(digits or "0") * scale


def _node(
    make: Callable[..., ast.Node],
    *readers: Callable[[Built], Built],
    has_list: bool = False,
    **fixed: bool,
) -> Builder:
    """Return the rule that makes a node out of its children, with a reader for each.

    With `has_list` the last field of the node holds all children without a reader.
    """

    def build(children: Sequence[Built], span: Span) -> ast.Node:
        read = [reader(child) for reader, child in zip(readers, children, strict=not has_list)]
        if has_list:
            read.append(tuple(children[len(readers) :]))
        return make(*read, **fixed, span=span)

    return build


def _and(children: Sequence[Built], span: Span) -> ast.Expr:
    """Fold ``a and b minus c and d`` from the left; runs of `and` stay flat."""
    # `a and b minus c and d` is `(a and b minus c) and d`: `minus` takes all in front of it.
    items: list[ast.Expr] = [children[0]]
    for operator, operand in zip(children[1::2], children[2::2], strict=True):
        if operator.type == "AND":
            items.append(operand)
            continue
        end = operand.span.end
        items = [ast.Minus(_join(items, span), operand, span=Span(span.start, end))]
    return _join(items, span)


def _join(items: list[ast.Expr], span: Span) -> ast.Expr:
    if len(items) == 1:
        return items[0]
    return ast.And(tuple(items), span=Span(span.start, items[-1].span.end))


def _first(children: Sequence[Built], span: Span) -> Built:
    return children[0]


def _tuple(children: Sequence[Built], span: Span) -> tuple[Built, ...]:
    return tuple(children)


def _nothing(children: Sequence[Built], span: Span) -> None:
    return None


def _binary(children: Sequence[Built], span: Span) -> ast.Binary:
    left, operator, right = children
    return ast.Binary(operator.text, left, right, span=span)


def _target(children: Sequence[Built], span: Span) -> ast.Target:
    name, *qualifiers = children
    within = [value for value in qualifiers if value is not None]  # `causally` is built as None
    if len(within) > 1 or len(qualifiers) - len(within) > 1:
        hint = "`causally` and `within N` at most once each"
        raise BuildError("E010", "a qualifier is written twice", span, hint)
    is_causal = len(qualifiers) > len(within)
    return ast.Target(_ident(name), is_causal, within[0] if within else None, span=span)


def _part(make: Callable[..., ast.Node], read: Callable[[Built], Built]) -> Builder:
    """Return the rule of a part of a layout, whose content is read in a way of its own."""

    def build(children: Sequence[Built], span: Span) -> ast.Node:
        word, name, content, star, token, column = children
        kind = None if word is None else word.type
        parents = None if column is None else ast.Name(_ident(column).text, span=column.span)
        own = _ident(name), read(content), star is not None, kind == "BRANCH", parents
        return make(*own, token is not None, kind == "JOIN", span=span)

    return build


def _columns(children: Sequence[Built], span: Span) -> ast.Columns:
    kind, column, names = children
    if kind.text not in COLUMN_KINDS:
        hint = "write `spans(col)`, `ids(col) as a, b`, `flags(col)` or `positions(col)`"
        if re.fullmatch(r"(cu|offset|bord|bound|start|end|split)\w*", kind.text, re.IGNORECASE):
            hint = (
                "no column holds borders alone: write `positions(position_ids)` for a position per "
                "token that begins anew, `spans(col)` for a list of `[start, end)`, or "
                "`[doc_lens]*` for lengths, the differences of borders"
            )
        raise BuildError("E020", f"unknown kind of column `{kind.text}`", kind.span, hint)
    return ast.Columns(_ident(kind), _ident(column), names or (), span=span)


def _token(children: Sequence[Built], span: Span) -> ast.Token:
    # A `token` has three children, a `column` has its segment as well.
    name, size, *segment, column = children
    own = None if size is None else integer(size), _ident(segment[0]) if segment else None
    return ast.Token(_ident(name), _ident(column or name), *own, span=span)


def _mask(children: Sequence[Built], span: Span) -> ast.MaskDef:
    decorators = tuple(c for c in children if isinstance(c, ast.Decorator))
    name, params, value, bindings = children[len(decorators) :]
    return ast.MaskDef(_ident(name), params or (), value, bindings or (), decorators, span=span)


def _bind(children: Sequence[Built], span: Span) -> ast.Binding:
    name, *params, value = children
    return ast.Binding(_ident(name), params[0] if params else (), value, span=span)


def _layer(children: Sequence[Built], span: Span) -> ast.Layer:
    count, value = children
    repeat = 1 if count is None else integer(count)
    match value:
        case tuple():
            return ast.Layer(repeat, None, value, span=span)
        case None | ast.Ident():  # linear
            return ast.Layer(repeat, None, (), value, span=span)
    return ast.Layer(repeat, value, (), span=span)


def _layers(children: Sequence[Built], span: Span) -> tuple[ast.Layer, ...]:
    count, *items = children
    whole = _flat_layers(items) * min(integer(count), MAX_LAYERS + 1)
    if not 0 < len(whole) <= MAX_LAYERS:
        raise BuildError(
            "E111", f"this makes {len(whole) or 'no'} entries of a stack; expected 1 to "
            f"{MAX_LAYERS:_}", span, "a stack repeats by itself: name one cycle",
        )  # fmt: skip
    return whole


def _flat_layers(items: Sequence[Built]) -> tuple[ast.Layer, ...]:
    """Write repeated groups of layers out."""
    return tuple(chain.from_iterable(i if isinstance(i, tuple) else (i,) for i in items))


_RULES: Mapping[str, Builder] = {
    # expressions
    "or_": _node(ast.Or, has_list=True),
    "and_": _and,
    "not_": _node(ast.Not, _same),
    "per": _node(ast.Per, _same, _ident),
    "in_": _node(ast.In, _same, _same, negated=False),
    "not_in": _node(ast.In, _same, _same, negated=True),
    "chain": lambda children, span: ast.Compare(
        tuple(children[::2]), tuple(word.text for word in children[1::2]), span=span
    ),
    "sum": _binary,
    "product": _binary,
    "sign": _node(ast.Sign, _text, _same),
    "attribute": _node(ast.Attribute, _same, _ident),
    "quoted": _quoted,
    "number": _node(ast.Number, integer),
    "name": _node(ast.Name, _text),
    "call": _node(ast.Call, _ident, _items),
    "arguments": _tuple,
    "argument": _node(ast.Argument, _ident, _same),
    # Brackets leave a wider span and nothing else: messages mark them, too.
    "paren": lambda children, span: replace(children[0], span=span),
    "true_": _node(ast.Bool, value=True),
    "false_": _node(ast.Bool, value=False),
    "rules": lambda children, span: ast.Rules(tuple(chain.from_iterable(children)), span=span),
    "rule": lambda children, span: tuple(  # `a, b see ...` is a rule for each
        ast.Rule(subject, tuple(children[1:]), span=span) for subject in children[0]
    ),
    "target": _target,
    "causally": _nothing,
    "within": _first,
    "expression": _first,
    # statements
    "statement": _first,
    "version": _node(ast.Version, integer),
    "import_statement": lambda children, span: ast.Import(
        tuple(map(_ident, children[:-1])), _string(children[-1]), span=span
    ),
    "let": _node(ast.Let, _ident, _same),
    "segment": _node(ast.Segment, _ident, _same),
    "layout": _node(ast.Layout, has_list=True),
    "leaf": _part(ast.Leaf, _length),
    "group": _part(ast.Group, _parts),
    "rest": _nothing,
    "every": _node(ast.Every, _same, _ident),
    "columns": _columns,
    "filter": _node(ast.Filter, _ident, _same),
    "union": lambda children, span: ast.Union(tuple(map(_ident, children)), span=span),
    "names": lambda children, _: tuple(map(_ident, children)),
    "token": _token,
    "column": _token,
    "mask": _mask,
    "decorator": _node(ast.Decorator, _ident, _items),
    "params": _tuple,
    "param": _node(ast.Param, _ident, _ident, _same),
    "default": _first,
    "where": _tuple,
    "bind_segment": _bind,
    "bind_value": _bind,
    "bind_function": _bind,
    "stack": lambda children, span: ast.StackDef(
        _ident(children[0]), _flat_layers(children[1:]), span=span
    ),
    "layer": _layer,
    "layers": _layers,
    "heads": _tuple,
    "linear": lambda children, _: _ident(children[0]),
    "head_group": lambda children, span: ast.HeadGroup(
        children[0][0], children[0][1], children[1], span=span
    ),
    # `rest`, one head or `first..last`
    "head_range": lambda children, _: (
        (None, None)
        if children[0].type == "REST"
        else (integer(children[0]), integer(children[-1]))
    ),
    "attach": _node(ast.Attach, _string, _items, _same, _items),
    "having": lambda children, _: tuple(map(_ident, children)),
    "with_": _tuple,
    "rename": lambda children, span: ast.Rename(
        _ident(children[0]), _ident(children[1]), *map(_literal, children[2:]), span=span
    ),
    "absent": lambda children, span: ast.Rename(
        _ident(children[0]), _ident(children[0]), _literal(children[1]), span=span
    ),
    "sample": _node(ast.SampleDef, _ident, has_list=True),
    "field": _node(ast.Field, _ident, _literal),
    "negative": lambda children, _: integer(children[1]) * (-1 if children[0].text == "-" else 1),
    # An empty list has one child, None.
    "list_": lambda children, _: tuple(_literal(c) for c in children if c is not None),
    "check": lambda children, span: ast.Check(
        children[0], children[1][0], children[1][1], children[2], span=span
    ),
    "check_relation": lambda children, _: (children[0].text, children[1]),
    "check_property": lambda children, _: (children[0].text, None),
    "on": lambda children, _: _ident(children[0]),
}


def build(root: Any, offset: int) -> Built:  # Any: a Lark tree; Lark stays in the parser
    """Turn the tree of one statement or expression into a node.

    `offset` is where the text that was parsed begins in the whole text.
    """
    # Values with their depths; those of the children of one node are the last ones, in order.
    results: list[tuple[Built, int]] = []
    stack: list[tuple[Any, bool]] = [(root, False)]
    while stack:
        node, is_ready = stack.pop()
        if not _is_tree(node):
            results.append((_word(node, offset), 0))
        elif not is_ready:
            stack.append((node, True))  # comes again when its children have been built
            stack.extend((child, False) for child in reversed(node.children))
        else:
            first = len(results) - len(node.children)
            children = results[first:]
            del results[first:]
            span = _span(node.meta, offset)
            depth = 1 + max((d for _, d in children), default=0)
            if depth > MAX_DEPTH:
                raise BuildError(
                    "E015", f"this nests more than {MAX_DEPTH} levels deep", span,
                    "name a part of it: `mask part = ...`",
                )  # fmt: skip
            results.append((_RULES[node.data]([value for value, _ in children], span), depth))
    return results[0][0]


def _is_tree(node: Any) -> TypeGuard[Any]:
    return hasattr(node, "children")


def _word(token: Any, offset: int) -> ParsedWord | None:
    if token is None:  # where the grammar lets a text leave something out
        return None
    return ParsedWord(token.type, str(token), _span(token, offset))


def _span(place: Any, offset: int) -> Span:
    # Every rule that a text is parsed by holds a token, so that Lark knows its place.
    return Span(place.start_pos + offset, place.end_pos + offset)
