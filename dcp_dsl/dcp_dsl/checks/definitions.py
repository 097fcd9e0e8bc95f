"""Check what a text defines: reserved and doubled names, recursion, size when written out."""

from dataclasses import dataclass
from typing import TypeAlias

from dcp_dsl.checks.expressions import ExpressionChecker
from dcp_dsl.checks.scope import Scope, segment_names
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.ast import Program
from dcp_dsl.syntax.tokens import RESERVED
from dcp_dsl.syntax.walk import mentioned_names, walk

MAX_EXPANDED_DEPTH = 128
MAX_EXPANDED_NODES = 20_000


def check_definitions(program: Program, checker: ExpressionChecker) -> None:
    """Report reserved and doubled names; samples have a space of names of their own."""
    seen: dict[tuple[str, str], ast.Ident] = {}
    for statement in program.statements:
        for space, ident in _defined(statement):
            if ident.text in RESERVED:
                checker.report(
                    "E109", f"`{ident.text}` is a word of the language", ident.span,
                    "choose another name",
                )  # fmt: skip
            first = seen.setdefault((space, ident.text), ident)
            if first is not ident:
                line = program.text.count("\n", 0, first.span.start) + 1
                checker.report(
                    "E108", f"`{ident.text}` is defined twice", ident.span, f"first in line {line}"
                )


def _defined(statement: ast.Statement) -> list[tuple[str, ast.Ident]]:
    match statement:
        case ast.MaskDef(name=name) | ast.Stack(name=name) | ast.Token(name=name):
            return [("", name)]
        case ast.Segment():
            return [("", name) for name in segment_names(statement)]
        case ast.SampleDef(name=name):
            return [("sample", name)]
        case ast.Import(names=names):
            return [("", name) for name in names]
    return []


@dataclass(frozen=True, slots=True)
class _Size:
    """How large a mask is with everything it calls written out."""

    depth: int
    nodes: int


def check_recursion(scope: Scope, checker: ExpressionChecker) -> None:
    """Report masks that call themselves, and masks too large when written out."""
    sizes: _Sizes = {}
    for name in scope.masks:
        _measure(name, scope, checker, sizes, ())


_Sizes: TypeAlias = dict[tuple[int, str], _Size]  # by scope and name


def _measure(
    name: str, scope: Scope, checker: ExpressionChecker, sizes: _Sizes, path: tuple[str, ...]
) -> _Size:
    """Give the size of a mask of a scope; `path` holds the masks being measured."""
    key = id(scope), name
    if key in sizes:
        return sizes[key]
    mask = scope.masks[name]
    if name in path and scope is checker.scope:
        cycle = " -> ".join((*path[path.index(name) :], name))
        hint = cycle if len(cycle) < 100 else ""
        checker.report("E110", f"mask `{name}` calls itself", mask.name.span, hint)
        return sizes.setdefault(key, _Size(1, 1))
    if len(path) > MAX_EXPANDED_DEPTH:
        report_size(mask, checker)
        return sizes.setdefault(key, _Size(1, 1))
    own = [node for node in walk(mask) if hasattr(node, "span")]
    depth, nodes = _depth(mask), len(own)
    deepest = 0
    for called, is_attribute in mentioned_names(mask):
        found = None if is_attribute else scope.own_mask(called)
        if found is not None:
            inner = _measure(found[0].name.text, found[1], checker, sizes, (*path, name))
            deepest, nodes = max(deepest, inner.depth), nodes + inner.nodes
    size = sizes.setdefault(key, _Size(depth + deepest, nodes))
    is_large = size.depth > MAX_EXPANDED_DEPTH or size.nodes > MAX_EXPANDED_NODES
    if is_large and scope is checker.scope:
        report_size(mask, checker)
    return size


def report_size(mask: ast.MaskDef, checker: ExpressionChecker) -> None:
    """Report a mask that is too large."""
    checker.report(
        "E116", f"mask `{mask.name.text}` is too large with everything it calls written out",
        mask.name.span,
        f"at most {MAX_EXPANDED_NODES:_} parts, {MAX_EXPANDED_DEPTH} levels deep",
    )  # fmt: skip


def _depth(node: object) -> int:
    """Give the depth of a tree; the parser bounds it."""
    deepest = 0
    stack: list[tuple[object, int]] = [(node, 0)]
    while stack:
        current, depth = stack.pop()
        deepest = max(deepest, depth)
        if isinstance(current, tuple):
            stack.extend((item, depth) for item in current)
        elif hasattr(current, "__dataclass_fields__"):
            fields = current.__dataclass_fields__
            stack.extend((getattr(current, name), depth + 1) for name in fields)
    return deepest


def check_size(expression: ast.Expr, checker: ExpressionChecker) -> None:
    """Report a single expression that is too large."""
    count = sum(1 for node in walk(expression) if hasattr(node, "span"))
    if count > MAX_EXPANDED_NODES // 20:
        checker.report("E116", "this expression is too large", expression.span, "name parts of it")
