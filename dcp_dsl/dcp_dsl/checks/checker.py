"""Check a text as a whole: statement by statement, and every expression in it."""

from dcp_dsl.checks.definitions import (
    check_column,
    check_definitions,
    check_layout,
    check_recursion,
    check_size,
)
from dcp_dsl.checks.masks import MaskChecker, check_mask
from dcp_dsl.checks.scope import Scope
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.reads import parent_columns
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.ast import Program
from dcp_dsl.syntax.diagnostics import Diagnostic, did_you_mean
from dcp_dsl.syntax.tokens import RESERVED
from dcp_dsl.syntax.walk import rewritten


def check_scope(scope: Scope, lost: frozenset[str] = frozenset()) -> tuple[Diagnostic, ...]:
    """Find errors in the names, kinds and layouts of a parsed text.

    Args:
        scope: what the statements that parsed define and import.
        lost: names that statements with syntax errors would have defined.

    Returns:
        Errors and warnings.
    """
    program = scope.program
    checker = MaskChecker(scope, program, lost | _missing_imports(scope))
    check_definitions(program, checker)
    check_recursion(scope, checker)
    for statement in program.statements:
        _check_statement(statement, checker)
    return tuple(checker.found)


def check_expression(
    expression: ast.Expr, scope: Scope, program: Program
) -> tuple[nodes.Mask, tuple[Diagnostic, ...]]:
    """Return a mask expression over the names of a checked text as a core program, and its errors.

    With errors the program means nothing.
    """
    checker = MaskChecker(scope, program)
    check_size(expression, checker)
    core = nodes.LOST if checker.found else checker.mask(expression, {})
    return core, tuple(d for d in checker.found if d.severity == "error")


def with_columns(attach: ast.Attach, scope: Scope) -> ast.Expr:
    """Return the mask that a `for` statement uses, with its columns read as ``row.column``.

    ``for "*" having window use sliding(window = window)`` takes each row's own window.
    """
    having = {column.text for column in attach.having} - RESERVED

    def read(name: ast.Name) -> ast.Expr:
        text = name.text
        if text not in having or text in scope.segments or scope.find_mask(text) is not None:
            return name
        return ast.Attribute(ast.Name("row"), ast.Ident(text, span=name.span), span=name.span)

    return rewritten(attach.value, ast.Name, read)


def _missing_imports(scope: Scope) -> frozenset[str]:
    """Return the imported names that could not be found; their `import` is reported already."""
    names = {
        name.text
        for statement in scope.program.statements
        if isinstance(statement, ast.Import)
        for name in statement.names
    }
    known = {*scope.imported.masks, *scope.imported.stacks, *scope.imported.segments}
    return frozenset(names - known - scope.imported.tokens.keys())


# ---- statements ----------------------------------------------------------------------------------


def _check_statement(statement: ast.Statement, checker: MaskChecker) -> None:
    match statement:
        case ast.MaskDef():
            check_mask(statement, checker)
        case ast.Segment():
            _check_segment(statement, checker)
        case ast.Token():
            check_column(statement, checker)
        case ast.StackDef():
            _check_stack(statement, checker)
        case ast.Attach():
            _check_attach(statement, checker)
        case ast.SampleDef():
            _check_sample(statement, checker)
        case ast.Check():
            _check_check(statement, checker)


def _check_segment(segment: ast.Segment, checker: MaskChecker) -> None:
    match segment.source:
        case ast.Every() as every:
            checker.every(every, {})
            if every.parent is not None and every.parent.text == segment.name.text:
                checker.report("E110", f"`{segment.name.text}` tiles itself", every.parent.span)
        case ast.Columns(kind=kind, names=names) if names and kind.text != "ids":
            checker.report(
                "E113", f"`{kind.text}` makes instances of one kind, so names mean nothing",
                names[0].span, "`as` names the ids of `ids(column)`",
            )  # fmt: skip
        case ast.Layout() as layout:
            check_layout(layout, checker)


def _check_stack(stack: ast.StackDef, checker: MaskChecker) -> None:
    if all(layer.value is None and not layer.heads for layer in stack.layers):
        hint = "`3 of linear, causal` has a mask in every fourth layer"
        checker.report("E103", "no layer of this stack has a mask", stack.name.span, hint)
    for layer in stack.layers:
        if layer.count < 1:
            checker.report("E111", "a stack repeats a layer at least once", layer.span)
        if layer.value is not None:
            checker.mask(layer.value, {})
        _check_heads(layer, checker)


def _check_heads(layer: ast.Layer, checker: MaskChecker) -> None:
    """Check the head groups of a layer: ranges that are empty or overlap, `rest` once and last."""
    taken: list[tuple[int, int]] = []
    for index, group in enumerate(layer.heads):
        checker.mask(group.value, {})
        if group.first is None or group.last is None:
            if index != len(layer.heads) - 1:
                message = "`rest` stands for the heads that nothing else names, so it comes last"
                checker.report("E123", message, group.span)
            continue
        if group.last < group.first:
            checker.report("E111", "this range of heads is empty", group.span)
        elif any(group.first <= last and first <= group.last for first, last in taken):
            checker.report("E123", "these heads already have a mask in this layer", group.span)
        taken.append((group.first, group.last))
    if taken and layer.heads[-1].first is not None:
        ends = [0, *(last + 1 for _, last in sorted(taken))]
        gaps = [end for end, (first, _) in zip(ends, sorted(taken), strict=False) if first > end]
        if gaps:
            message, hint = f"head {gaps[0]} has no mask", "name it, or end with `rest: causal`"
            checker.report("E123", message, layer.span, hint)


def _check_attach(attach: ast.Attach, checker: MaskChecker) -> None:
    value = attach.value
    if isinstance(value, ast.Name) and checker.scope.find_stack(value.text) is not None:
        return  # its masks are checked where it is defined
    checker.mask(with_columns(attach, checker.scope), {})
    seen: set[str] = set()
    for rename in attach.renames:
        if rename.new.text in seen:
            checker.report("E108", f"`{rename.new.text}` is renamed twice", rename.new.span)
        seen.add(rename.new.text)


def _check_sample(sample: ast.SampleDef, checker: MaskChecker) -> None:
    scope = checker.scope
    signed = {name for _, layout in scope.layouts() for name in parent_columns(layout)}
    signed |= {token.column.text for token in scope.tokens.values() if token.size is not None}
    seen: set[str] = set()
    for entry in sample.fields:
        if entry.name.text in seen:
            checker.report("E108", f"column `{entry.name.text}` is given twice", entry.name.span)
        seen.add(entry.name.text)
        if _has_negative(entry.value) and entry.name.text not in signed:
            checker.report("E117", "a sample's lengths and values are at least 0", entry.span)


def _has_negative(value: ast.Literals) -> bool:
    pending = [value]
    while pending:
        current = pending.pop()
        if isinstance(current, tuple):
            pending.extend(current)
        elif current < 0:
            return True
    return False


def _check_check(check: ast.Check, checker: MaskChecker) -> None:
    checker.mask(check.left, {})
    if check.right is not None:
        checker.mask(check.right, {})
    if check.sample is not None and check.sample.text not in checker.scope.samples:
        if check.sample.text in checker.lost:
            return
        hint = did_you_mean(check.sample.text, list(checker.scope.samples))
        checker.report("E101", f"unknown sample `{check.sample.text}`", check.sample.span, hint)
