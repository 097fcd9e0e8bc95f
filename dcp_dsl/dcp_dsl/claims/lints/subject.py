"""What the lints of a mask's meaning look at: the masks that a text defines, attaches or stacks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from dcp_dsl.checks.checker import with_columns
from dcp_dsl.checks.masks import write_out_inside
from dcp_dsl.checks.scope import Scope, find_definition, keys_of_mask
from dcp_dsl.claims.testing import Testing
from dcp_dsl.core.mask import Mask, on_keys, read_mask
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.programs import substitute
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.trees import unparse

_NUMBER = 3  # value of parameters without a default on samples


@dataclass(frozen=True, slots=True)
class Subject:
    """A mask to check: a definition of the text, or an expression that is attached or stacked.

    Parameters without a default are free in its core program: a proof holds for all their values.

    Attributes:
        written: the mask as it is written; `mask` has the sequence of the keys alone (`on_keys`).
    """

    what: str
    written: Mask
    span: ast.Span

    @property
    def mask(self) -> Mask:
        """The mask over the sequence of the keys alone."""
        return on_keys(self.written)


def defined_subjects(definition: ast.MaskDef, testing: Testing) -> Iterator[Subject]:
    """Yield a definition, unless it has a parameter that only a caller can give, such as a mask."""
    needed = [param for param in definition.params if param.default is None]
    if any(param.type.text in ("mask", "bool", "pos") for param in needed):
        return
    names = [ast.Ident(param.name.text) for param in needed]
    value: ast.Expr = ast.Name(definition.name.text)
    if needed:
        numbers = (ast.Argument(name, ast.Number(_NUMBER)) for name in names)
        value = ast.Call(definition.name, tuple(numbers))
    mask = read_mask(value, testing.scope)
    if needed:
        free = tuple(ast.Argument(name, ast.Name(name.text)) for name in names)
        call = ast.Call(definition.name, free)
        (core,) = write_out_inside((call,), definition, testing.scope)
        mask = replace(mask, core=core)
    what, span = f"mask {definition.name.text}", definition.name.span
    yield Subject(what, mask, span)


def used_subjects(statement: ast.Attach | ast.StackDef, testing: Testing) -> Iterator[Subject]:
    """Yield the masks of a statement that are not looked at as definitions."""
    for value in used_masks(statement, testing.scope):
        if isinstance(value, ast.Name):
            own = testing.scope.own_mask(value.text)
            if own is None or own[1] is testing.scope:
                continue  # a mask of the library, or one of this text
        mask = read_mask(value, testing.scope)
        yield Subject(f"use of {unparse(value)}", mask, value.span)


def used_masks(statement: ast.Attach | ast.StackDef, scope: Scope) -> list[ast.Expr]:
    """Return the expressions that are attached to data sets or stacked into layers."""
    match statement:
        case ast.Attach(value=ast.Name(text)) if scope.find_stack(text) is not None:
            return []  # the statement of the stack is checked itself
        case ast.Attach():
            return [with_columns(statement, scope)]
        case ast.StackDef(layers=layers):
            found = [layer.value for layer in layers if layer.value is not None]
            found += [group.value for layer in layers for group in layer.heads]
            return list({id(value): value for value in found}.values())  # groups repeat


def definition_of(subject: Subject) -> tuple[ast.MaskDef, Scope] | None:
    """Return the definition that a mask calls, with its text; None if it is an expression."""
    return find_definition(subject.mask.expression, subject.mask.scope)


def given(core: nodes.Mask, value: Callable[[str], nodes.Number]) -> nodes.Mask:
    """Return a core program with values for its free parameters, by name."""
    names = {node.name for node in nodes.walk(core) if isinstance(node, nodes.Free)}
    return substitute(core, {name: value(name) for name in names})


def small(core: nodes.Mask) -> nodes.Mask:
    """Return a core program with small numbers for free parameters, as searches have it."""
    return given(core, lambda _: nodes.Const(_NUMBER))


def outside(mask: Mask, border: nodes.Mask, columns: frozenset[str] = frozenset()) -> Mask:
    """Return the pairs of a mask outside a relation that needs `columns`."""
    core = nodes.And((mask.core, nodes.Not(border)))
    return replace(mask, core=core, columns=mask.columns | columns)


def of_the_sample(core: nodes.Mask) -> Iterator[nodes.Mask]:
    """Yield the parts of a mask outside `per`: inside, positions count from an instance."""
    yield core
    match core:
        case nodes.Not(item):
            yield from of_the_sample(item)
        case nodes.And(items) | nodes.Or(items):
            for item in items:
                yield from of_the_sample(item)


def is_of_one_sequence(mask: ast.MaskDef, scope: Scope) -> bool:
    """Return whether queries and keys are tokens of one sequence, of which proofs speak.

    With an alignment, queries are tokens of the keys' sequence.
    """
    keys = keys_of_mask(mask, scope)
    return keys is None or bool(keys.alignment)
