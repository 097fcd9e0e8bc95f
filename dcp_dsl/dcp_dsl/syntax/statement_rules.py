"""From the parser's tree to our syntax tree: one small function per rule of a statement."""

from collections.abc import Callable, Mapping, Sequence

from dcp_dsl.syntax import ast
from dcp_dsl.syntax.ast import Span
from dcp_dsl.syntax.words import BuildError, Built, Word, ident, integer, maybe_ident

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
