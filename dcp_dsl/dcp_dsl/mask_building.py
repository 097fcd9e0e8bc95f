"""From checked syntax to masks and stacks: canonical calls, columns, layers."""

from dcp_dsl import ast
from dcp_dsl.checker import check_expression
from dcp_dsl.columns import ahead_columns, needed_columns
from dcp_dsl.errors import SpecError
from dcp_dsl.mask import Mask
from dcp_dsl.scope import Scope
from dcp_dsl.stack import HeadMask, Stack, StackLayer
from dcp_dsl.unparse import unparse


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
    columns = needed_columns(expression, scope) | ahead_columns(expression, scope)
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
