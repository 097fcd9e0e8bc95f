"""Advise how to confine a layer to documents or paths, so that it equals that of each alone.

`and` alone does not: `sliding(1k) and paths` counts the tokens of other branches, and
`streaming(4, 1k) and same(doc)` has its sinks in the first document only.
"""

from collections.abc import Mapping

from dcp_dsl.checks.checker import check_expression
from dcp_dsl.checks.scope import Scope, find_definition, given_arguments
from dcp_dsl.claims.alone import alone, difference
from dcp_dsl.claims.testing import Testing
from dcp_dsl.core.mask import Mask
from dcp_dsl.elaboration import nodes
from dcp_dsl.proof.proving import never
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.trees import unparse

IN_WORDS_PATHS = (
    "confine the layer as well: begin it with `paths and`, and count with `q.path` and `k.path`; "
    "`q - k` would count the tokens of other branches"
)
IN_WORDS_PARTS = (
    "confine the layer as well: write `... per {name}`, so that sinks, windows and tiles begin "
    "anew in each"
)


def advise(value: ast.Expr, mask: Mask, border: nodes.Mask, testing: Testing) -> str:
    """Return how to confine a layer to a border: a mask that is proved right, else general words.

    `border` is `Same` of documents, or `Or` with `Along` for paths.
    """
    scope = testing.scope
    match border:
        case nodes.Same(nodes.Laid(statement, name)):
            found = ast.Per(value, ast.Ident(name))
            if scope.segments.get(name) == statement and _is_right(found, None, testing):
                return f"confine the layer as well: `{unparse(found)}`"
            return IN_WORDS_PARTS.format(name=name)
        case nodes.Or((nodes.Along(tree), *_)):
            inside = nodes.Along(tree)
            items = _on_path(value, scope, {})
            if scope.trees() == [tree.statement] and items is not None:
                paths = ast.Name("paths")
                on_path = ast.And((paths, *items)) if items else paths
                separate = alone(mask.core, tree, is_tree=True)
                if separate is not None:
                    wanted = nodes.And((inside, separate))
                    if _is_right(on_path, wanted, testing):
                        return f"confine the layer as well: `{unparse(on_path)}`"
    return IN_WORDS_PATHS


def _is_right(advice: ast.Expr, wanted: nodes.Mask | None, testing: Testing) -> bool:
    """Return whether an advised mask has no errors and is proved to be the wanted one, if any."""
    core, errors = check_expression(advice, testing.scope, testing.scope.program)
    if errors or wanted is None:
        return not errors
    return never(difference(core, wanted, nodes.Truth(True)), budget=testing.proofs)


def _on_path(value: ast.Expr, scope: Scope, given: Mapping[str, ast.Expr]) -> list[ast.Expr] | None:
    """Return the conditions of a mask besides `paths`, counted along the path; None if unknown.

    Masks that it calls are written out. `given` holds the values of parameters.
    """
    match value:
        case ast.Name("causal") if scope.own_mask("causal") is None:
            return []
        case ast.And(items):
            found = [_on_path(item, scope, given) for item in items]
            lists = [each for each in found if each is not None]
            return None if len(lists) < len(found) else [item for each in lists for item in each]
        case ast.Or(items):
            found = [_on_path(item, scope, given) for item in items]
            lists = [each for each in found if each]
            if len(lists) < len(found):  # unknown, or all of the path
                return [] if None not in found else None
            return [ast.Or(tuple(e[0] if len(e) == 1 else ast.And(tuple(e)) for e in lists))]
        case ast.Compare(operands, ops):
            counted = tuple(_counted(operand, given) for operand in operands)
            known = tuple(each for each in counted if each is not None)
            return [ast.Compare(known, ops)] if len(known) == len(operands) else None
        case ast.Name() | ast.Call():
            return _written_out(value, scope, given)
    return None


def _written_out(
    value: ast.Name | ast.Call, scope: Scope, given: Mapping[str, ast.Expr]
) -> list[ast.Expr] | None:
    """Return the conditions of a mask that is called."""
    found = find_definition(value, scope)
    if found is None or found[0].bindings or found[0].decorators:
        return None
    definition, inner = found
    arguments = value.arguments if isinstance(value, ast.Call) else ()
    values = {p.name.text: p.default for p in definition.params}
    values |= given_arguments(definition, arguments)
    counted = {
        name: None if number is None else _counted(number, given) for name, number in values.items()
    }
    known = {name: number for name, number in counted.items() if number is not None}
    return _on_path(definition.value, inner, known) if len(known) == len(counted) else None


def _counted(number: ast.Expr, given: Mapping[str, ast.Expr]) -> ast.Expr | None:
    """Return a number with positions on the path in place of those of the row."""
    match number:
        case ast.Number():
            return number
        case ast.Name("q" | "k"):
            return ast.Attribute(number, ast.Ident("path"))
        case ast.Name(text):
            return given.get(text)
        case ast.Binary(op, left, right):
            a, b = _counted(left, given), _counted(right, given)
            return None if a is None or b is None else ast.Binary(op, a, b)
    return None
