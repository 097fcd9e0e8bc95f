"""From the parser's tree to our syntax tree: one small function per rule of an expression."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from dcp_dsl.syntax import ast
from dcp_dsl.syntax.ast import Span
from dcp_dsl.syntax.words import BuildError, Built, ident, integer, maybe_ident


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
