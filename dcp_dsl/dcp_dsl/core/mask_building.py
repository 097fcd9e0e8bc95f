"""From checked syntax to masks and stacks: canonical calls, columns, layers."""

from collections.abc import Collection
from dataclasses import replace

from dcp_dsl.checks.checker import check_expression
from dcp_dsl.checks.columns import needed_columns
from dcp_dsl.checks.scope import Scope
from dcp_dsl.core.mask import Mask
from dcp_dsl.core.stack import HeadMask, Stack, StackLayer
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import SpecError
from dcp_dsl.syntax.unparse import unparse


def build_mask(expression: ast.Expr, scope: Scope, program: ast.Program) -> Mask:
    """Check a mask expression over the names of a scope and make it a mask.

    Raises:
        SpecError: if its names, kinds or arguments are wrong.
    """
    errors = check_expression(expression, scope, program)
    if errors:
        raise SpecError(errors)
    canonical = _canonical(expression, scope)
    match canonical:
        case ast.Name(text):
            name = text
        case ast.Call(ident):
            name = ident.text
        case _:
            name = unparse(canonical)
    columns = needed_columns(expression, scope)
    return Mask(name, unparse(canonical), columns, expression, scope, program)


def _canonical(expression: ast.Expr, scope: Scope) -> ast.Expr:
    """Name all arguments of a call, in the order of the parameters, without the defaults."""
    if not isinstance(expression, ast.Call):
        return expression
    found = scope.find_mask(expression.name.text)
    if found is None:
        return expression
    arguments = []
    for index, param in enumerate(found[0].params):
        for position, argument in enumerate(expression.arguments):
            is_it = (
                position == index
                if argument.name is None
                else argument.name.text == param.name.text
            )
            if is_it and argument.value != param.default:
                arguments.append(ast.Argument(ast.Ident(param.name.text), argument.value))
    if not arguments:
        return ast.Name(expression.name.text)
    return ast.Call(expression.name, tuple(arguments))


def build_stack(definition: ast.Stack, scope: Scope) -> Stack:
    """Make a checked `stack` statement a value."""
    return Stack(definition.name.text, tuple(_layer(each, scope) for each in definition.layers))


def _layer(layer: ast.Layer, scope: Scope) -> StackLayer:
    if layer.value is not None:
        return StackLayer(layer.count, (HeadMask(build_mask(layer.value, scope, scope.program)),))
    heads = [
        HeadMask(build_mask(group.value, scope, scope.program), group.first, group.last)
        for group in layer.heads
    ]
    return StackLayer(layer.count, tuple(heads))


def with_columns(used: ast.Expr, having: Collection[str], scope: Scope) -> ast.Expr:
    """Turn names of columns among the arguments of a call into ``row.column``.

    ``for "*" having window use sliding(window = window)`` takes each row's own window.
    """
    if not isinstance(used, ast.Call):
        return used
    return replace(used, arguments=tuple(_with_column(a, having, scope) for a in used.arguments))


def _with_column(argument: ast.Argument, having: Collection[str], scope: Scope) -> ast.Argument:
    value = argument.value
    if not isinstance(value, ast.Name) or value.text not in having:
        return argument
    if scope.find_mask(value.text) is not None or value.text in scope.segments:
        return argument
    column = ast.Attribute(ast.Name("row"), ast.Ident(value.text), span=value.span)
    return replace(argument, value=column)
