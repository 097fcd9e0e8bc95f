"""Build the syntax tree from the parser's tree, bottom-up and without recursion.

One small function per grammar rule, found by the rule's name. Walking with a stack of our own keeps
a text with thousands of nested brackets from overflowing Python's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeGuard, cast

from dcp_dsl.syntax import ast
from dcp_dsl.syntax.ast import Span

MAX_NUMBER = 2**40  # a million times a million tokens, and far from the borders of int64

Built: TypeAlias = Any  # Any: a node, a word, None or a tuple of them; each rule knows its own


class BuildError(Exception):
    """A mistake that the grammar allows; the parser turns it into a diagnostic."""

    def __init__(
        self, code: str, message: str, span: Span, hint: str = "", fix: str | None = None
    ) -> None:
        self.code, self.message, self.span, self.hint = code, message, span, hint
        self.fix = fix  # what certainly belongs in place of the span
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Word:
    """A token of the grammar with its span in the whole text."""

    type: str
    text: str
    span: Span


def ident(word: Word) -> ast.Ident:
    """Return a name."""
    return ast.Ident(word.text, span=word.span)


def maybe_ident(word: Word | None) -> ast.Ident | None:
    """Return a name that may be left out."""
    return None if word is None else ident(word)


def integer(word: Word) -> int:
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


def _or(children: Sequence[Built], span: Span) -> ast.Or:
    return ast.Or(tuple(children), span=span)


def _and(children: Sequence[Built], span: Span) -> ast.Expr:
    """Fold ``a and b minus c and d`` from the left; runs of `and` stay flat."""
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


def _not(children: Sequence[Built], span: Span) -> ast.Not:
    return ast.Not(children[0], span=span)


def _per(children: Sequence[Built], span: Span) -> ast.Per:
    return ast.Per(children[0], ident(children[1]), span=span)


def _in(children: Sequence[Built], span: Span) -> ast.In:
    return ast.In(children[0], children[1], False, span=span)


def _not_in(children: Sequence[Built], span: Span) -> ast.In:
    return ast.In(children[0], children[1], True, span=span)


def _chain(children: Sequence[Built], span: Span) -> ast.Compare:
    ops = tuple(word.text for word in children[1::2])
    return ast.Compare(
        tuple(children[::2]), cast("Any", ops), span=span
    )  # Any: a Literal from the lexer


def _binary(children: Sequence[Built], span: Span) -> ast.Binary:
    left, operator, right = children
    return ast.Binary(operator.text, left, right, span=span)


def _sign(children: Sequence[Built], span: Span) -> ast.Sign:
    return ast.Sign(children[0].text, children[1], span=span)


def _attribute(children: Sequence[Built], span: Span) -> ast.Attribute:
    return ast.Attribute(children[0], ident(children[1]), span=span)


def _number(children: Sequence[Built], span: Span) -> ast.Number:
    return ast.Number(integer(children[0]), span=span)


def _name(children: Sequence[Built], span: Span) -> ast.Name:
    return ast.Name(children[0].text, span=span)


def _call(children: Sequence[Built], span: Span) -> ast.Call:
    return ast.Call(ident(children[0]), children[1] or (), span=span)


def _argument(children: Sequence[Built], span: Span) -> ast.Argument:
    return ast.Argument(maybe_ident(children[0]), children[1], span=span)


def _paren(children: Sequence[Built], span: Span) -> ast.Expr:
    return cast("ast.Expr", replace(children[0], span=span))


def _true(children: Sequence[Built], span: Span) -> ast.Bool:
    return ast.Bool(True, span=span)


def _false(children: Sequence[Built], span: Span) -> ast.Bool:
    return ast.Bool(False, span=span)


def _rules(children: Sequence[Built], span: Span) -> ast.Rules:
    return ast.Rules(tuple(children), span=span)


def _rule(children: Sequence[Built], span: Span) -> ast.Rule:
    return ast.Rule(ident(children[0]), tuple(children[1:]), span=span)


def _target(children: Sequence[Built], span: Span) -> ast.Target:
    name, *qualifiers = children
    within = [value for value in qualifiers if value is not None]
    if len(within) > 1 or len(qualifiers) - len(within) > 1:
        raise BuildError(
            "E010",
            "a qualifier is written twice",
            span,
            "`causally` and `within N` at most once each",
        )
    is_causal = len(qualifiers) > len(within)
    return ast.Target(ident(name), is_causal, within[0] if within else None, span=span)


EXPRESSION_RULES: Mapping[str, Callable[[Sequence[Built], Span], Built]] = {
    "or_": _or, "and_": _and, "not_": _not, "per": _per, "in_": _in, "not_in": _not_in,
    "chain": _chain, "sum": _binary, "product": _binary, "sign": _sign, "attribute": _attribute,
    "number": _number, "name": _name, "call": _call, "argument": _argument, "paren": _paren,
    "true_": _true, "false_": _false, "rules": _rules, "rule": _rule, "target": _target,
}  # fmt: skip


COLUMN_KINDS = ("spans", "ids", "flags", "positions")


def _version(children: Sequence[Built], span: Span) -> ast.Version:
    return ast.Version(integer(children[0]), span=span)


def _import(children: Sequence[Built], span: Span) -> ast.Import:
    *names, path = children
    return ast.Import(tuple(map(ident, names)), _string(path), span=span)


def _string(word: Word) -> ast.Ident:
    return ast.Ident(word.text[1:-1], span=word.span)


def _segment(children: Sequence[Built], span: Span) -> ast.Segment:
    return ast.Segment(ident(children[0]), children[1], span=span)


def _layout(children: Sequence[Built], span: Span) -> ast.Layout:
    return ast.Layout(tuple(children), span=span)


def _leaf(children: Sequence[Built], span: Span) -> ast.Leaf:
    name, length, star = children
    return ast.Leaf(maybe_ident(name), length, star is not None, span=span)


def _group(children: Sequence[Built], span: Span) -> ast.Group:
    name, layout, star = children
    return ast.Group(maybe_ident(name), layout.parts, star is not None, span=span)


def _rest(children: Sequence[Built], span: Span) -> None:
    return None


def _every(children: Sequence[Built], span: Span) -> ast.Every:
    return ast.Every(children[0], maybe_ident(children[1]), span=span)


def _columns(children: Sequence[Built], span: Span) -> ast.Columns:
    kind, column, names = children
    if kind.text not in COLUMN_KINDS:
        raise BuildError(
            "E020", f"unknown kind of column `{kind.text}`", kind.span,
            "write `spans(col)`, `ids(col) as a, b`, `flags(col)` or `positions(col)`",
        )  # fmt: skip
    return ast.Columns(ident(kind), ident(column), names or (), span=span)


def _token(children: Sequence[Built], span: Span) -> ast.Token:
    name, column = children
    return ast.Token(ident(name), ident(column or name), span=span)


def _names(children: Sequence[Built], span: Span) -> tuple[ast.Ident, ...]:
    return tuple(map(ident, children))


def _mask(children: Sequence[Built], span: Span) -> ast.MaskDef:
    decorators = tuple(c for c in children if isinstance(c, ast.Decorator))
    name, params, value, bindings = children[len(decorators) :]
    return ast.MaskDef(ident(name), params or (), value, bindings or (), decorators, span=span)


def _decorator(children: Sequence[Built], span: Span) -> ast.Decorator:
    return ast.Decorator(ident(children[0]), children[1] or (), span=span)


def _tuple(children: Sequence[Built], span: Span) -> tuple[Built, ...]:
    return tuple(children)


def _param(children: Sequence[Built], span: Span) -> ast.Param:
    name, type_, default = children
    return ast.Param(ident(name), ident(type_), default, span=span)


def _bind_segment(children: Sequence[Built], span: Span) -> ast.BindSegment:
    return ast.BindSegment(ident(children[0]), children[1], span=span)


def _bind_value(children: Sequence[Built], span: Span) -> ast.BindValue:
    return ast.BindValue(ident(children[0]), children[1], span=span)


def _bind_function(children: Sequence[Built], span: Span) -> ast.BindFunction:
    name, params, value = children
    return ast.BindFunction(ident(name), params, value, span=span)


def _stack(children: Sequence[Built], span: Span) -> ast.Stack:
    return ast.Stack(ident(children[0]), tuple(children[1:]), span=span)


def _layer(children: Sequence[Built], span: Span) -> ast.Layer:
    count, value = children
    repeat = 1 if count is None else integer(count)
    if isinstance(value, tuple):
        return ast.Layer(repeat, None, value, span=span)
    return ast.Layer(repeat, value, (), span=span)


def _head_group(children: Sequence[Built], span: Span) -> ast.HeadGroup:
    (first, last), value = children
    return ast.HeadGroup(first, last, value, span=span)


def _head_range(children: Sequence[Built], span: Span) -> tuple[int | None, int | None]:
    if children[0].type == "REST":
        return None, None
    first = integer(children[0])
    return first, integer(children[-1])


def _attach(children: Sequence[Built], span: Span) -> ast.Attach:
    pattern, having, value, renames = children
    return ast.Attach(_string(pattern), having or (), value, renames or (), span=span)


def _first(children: Sequence[Built], span: Span) -> Built:
    return children[0]


def _rename(children: Sequence[Built], span: Span) -> ast.Rename:
    return ast.Rename(ident(children[0]), ident(children[1]), span=span)


def _sample(children: Sequence[Built], span: Span) -> ast.SampleDef:
    return ast.SampleDef(ident(children[0]), tuple(children[1:]), span=span)


def _field(children: Sequence[Built], span: Span) -> ast.Field:
    name, value = children
    return ast.Field(ident(name), _literal(value), span=span)


def _literal(value: Built) -> ast.Literals:
    return value.value if isinstance(value, ast.Number | ast.Bool) else value


def _negative(children: Sequence[Built], span: Span) -> int:
    sign, digits = children
    return -integer(digits) if sign.text == "-" else integer(digits)


def _list(children: Sequence[Built], span: Span) -> ast.Literals:
    return tuple(_literal(c) for c in children if c is not None)


def _check(children: Sequence[Built], span: Span) -> ast.Check:
    left, (claim, right), sample = children
    return ast.Check(left, claim, right, sample, span=span)


def _claim(children: Sequence[Built], span: Span) -> tuple[str, ast.Expr | None]:
    return children[0].text, children[1] if len(children) > 1 else None


def _on(children: Sequence[Built], span: Span) -> ast.Ident:
    return ident(children[0])


STATEMENT_RULES: Mapping[str, Callable[[Sequence[Built], Span], Built]] = {
    "version": _version, "statement": _first, "import_statement": _import, "segment": _segment,
    "layout": _layout, "leaf": _leaf, "group": _group, "rest": _rest, "every": _every,
    "columns": _columns, "token": _token, "names": _names, "mask": _mask,
    "decorator": _decorator, "params": _tuple, "param": _param, "where": _tuple,
    "bind_segment": _bind_segment, "bind_value": _bind_value, "bind_function": _bind_function,
    "stack": _stack, "layer": _layer, "heads": _tuple, "head_group": _head_group,
    "head_range": _head_range, "attach": _attach, "having": _first, "with_": _tuple,
    "rename": _rename, "sample": _sample, "field": _field, "negative": _negative,
    "list_": _list, "check": _check, "check_relation": _claim, "check_property": _claim,
    "on": _on, "arguments": _tuple, "expression": _first, "default": _first, "causally": _rest,
    "within": _first,
}  # fmt: skip


MAX_DEPTH = 64
_RULES = {**STATEMENT_RULES, **EXPRESSION_RULES}


def build_statement(
    tree: Any, offset: int
) -> ast.Statement:  # Any: lark.Tree; lark stays in the parser
    """Turn the tree of one statement into a node.

    Args:
        tree: a Lark tree with positions.
        offset: where the parsed text begins in the whole text, added to every span.

    Raises:
        BuildError: for numbers out of range, too deep nesting, unknown kinds of columns.
    """
    return cast("ast.Statement", _build(tree, offset))


def build_expression(tree: Any, offset: int) -> ast.Expr:  # Any: as above
    """Turn the tree of one expression into a node; raises as `build_statement`."""
    return cast("ast.Expr", _build(tree, offset))


def _build(root: Any, offset: int) -> Built:
    if not _is_tree(root):
        return root
    results: list[tuple[Built, int]] = []
    stack: list[tuple[Any, bool]] = [(root, False)]
    while stack:
        node, is_ready = stack.pop()
        if not _is_tree(node):
            results.append((_shift(node, offset), 0))
        elif not is_ready:
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(node.children))
        else:
            count = len(node.children)
            children = results[len(results) - count :] if count else []
            del results[len(results) - count :]
            span = _span_of(node, offset)
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


def _shift(token: Any, offset: int) -> Word | None:
    if token is None:
        return None
    return Word(token.type, str(token), Span(token.start_pos + offset, token.end_pos + offset))


def _span_of(node: Any, offset: int) -> Span:
    if node.meta.empty:
        return Span(offset, offset)
    return Span(node.meta.start_pos + offset, node.meta.end_pos + offset)
