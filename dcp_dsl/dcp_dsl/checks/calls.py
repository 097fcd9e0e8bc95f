"""Check calls of masks, `where` functions and builtins: do the arguments fit the parameters?"""

from dataclasses import replace
from typing import cast

from dcp_dsl.checks.findings import (
    MASK,
    PARAM_KINDS,
    SEGMENT,
    SEGMENT_FUNCTIONS,
    UNKNOWN,
    Checker,
    Function,
    Kind,
    Names,
    are_comparable,
)
from dcp_dsl.checks.functions import NUMBER_FUNCTIONS
from dcp_dsl.checks.scope import Scope, keys_of_mask, known_masks
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.programs import substitute
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.ast import Span
from dcp_dsl.syntax.diagnostics import did_you_mean
from dcp_dsl.syntax.mistakes import JOINS, MASKS

MAX_CALL_DEPTH = 100  # of `where` functions that call each other


def check_call(value: ast.Call, names: Names, checker: Checker) -> Kind:
    """Return the kind of a call."""
    text = value.name.text
    if text in SEGMENT_FUNCTIONS:
        return _check_segment_function(value, names, checker)
    known = names.get(text)
    if isinstance(known, Function):
        return _check_function(value, known, names, checker)
    if known is not None:
        if known != UNKNOWN:
            checker.report("E106", f"`{text}` takes no arguments", value.span)
        return known
    if text in NUMBER_FUNCTIONS:
        return _check_number_function(value, names, checker)
    found = checker.scope.find_mask(text)
    if found is not None and text not in checker.scope.segments:
        return call_mask(*found, value.arguments, value.name.span, names, checker)
    # The call means nothing, but its arguments may have errors of their own.
    for argument in value.arguments:
        checker.kind(argument.value, names)
    if text in checker.lost:
        return UNKNOWN
    if text in checker.scope.segments:
        hint = f"write `same({text})` for tokens of one `{text}`, `q.{text}` for its number"
        checker.report("E103", f"`{text}` is a segment and cannot be called", value.name.span, hint)
    else:
        _report_unknown(value, names, checker)
    return UNKNOWN


def _takes(name: str, arguments: tuple[ast.Argument, ...], scope: Scope) -> bool:
    """Return whether a mask can be called with as many arguments, and with their names."""
    found = scope.find_mask(name)
    params = found[0].params if found else ()
    named = {argument.name.text for argument in arguments if argument.name is not None}
    needed = sum(param.default is None for param in params)
    return needed <= len(arguments) <= len(params) and named <= {p.name.text for p in params}


def _report_unknown(value: ast.Call, names: Names, checker: Checker) -> None:
    """Report a call of an unknown name; for `and_masks(a, b)` suggest `a and b`."""
    operator = JOINS.get(value.name.text)
    first = value.arguments[0].value if value.arguments else None
    if value.name.text == "len" and isinstance(first, ast.Name):
        hint = f"write `q.{first.text}.len`, `k.{first.text}.len`, or `len` for the whole sample"
        checker.report("E101", "`len` is no function", value.name.span, hint, is_unknown_name=True)
        return
    if operator is None or not value.arguments:
        meant = MASKS.get(value.name.text)
        if meant is None or not _takes(meant, value.arguments, checker.scope):
            meant = None
        unfit = {
            n for n in known_masks(checker.scope) if not _takes(n, value.arguments, checker.scope)
        }
        checker.unknown(value.name.text, value.name.span, names, "call", unfit, meant)
        return
    text = checker.program.text
    parts = [argument.span.text(text) for argument in value.arguments]
    meant = f"({f' {operator} '.join(parts)})"
    message = f"unknown name `{value.name.text}`"
    hint = f"write `{meant}`"
    checker.report("E101", message, value.span, hint, fix=meant, is_unknown_name=True)


def _has_count(value: ast.Call, low: int, high: int, checker: Checker) -> bool:
    """Check the number of arguments, all by position."""
    for argument in value.arguments:
        if argument.name is not None:
            checker.report("E106", f"`{value.name.text}` has no named arguments", argument.span)
            return False
    if low <= len(value.arguments) <= high:
        return True
    wanted = f"{low}" if low == high else f"{low} to {high}"
    wanted += f" argument{'' if high == 1 else 's'}"
    hint = ""
    if value.name.text == "same":
        hint = "it speaks of the query and the key: write `same(doc)` for tokens of one `doc`"
    message = f"`{value.name.text}` takes {wanted}, got {len(value.arguments)}"
    checker.report("E106", message, value.span, hint)
    return False


def _check_segment_function(value: ast.Call, names: Names, checker: Checker) -> Kind:
    """Return the kind of `same(S)`, `paths(S)`, `first(S, m)`, `last(S, m)`."""
    word, place = value.name.text, checker.place(value.span)
    kind = MASK if word in ("same", "paths") else SEGMENT
    if not _has_count(value, *SEGMENT_FUNCTIONS[word], checker):
        return kind
    first, *more = (argument.value for argument in value.arguments)
    segment = checker.segment(first, names)
    counts = [checker.constant(each, names, at_least=0) for each in more]
    if word == "same":
        return kind.of(nodes.same(segment, place))
    if word == "paths":
        checker.tree(segment, first.span.text(checker.program.text), first.span)
        return kind.of(nodes.Along(cast("nodes.Laid", segment), place=place))
    count = counts[0] if counts else nodes.Const(1, place=place)
    return kind.of(nodes.Chosen(word == "first", segment, count, place=place))


def _check_number_function(value: ast.Call, names: Names, checker: Checker) -> Kind:
    """Return the kind of a call of a function of numbers."""
    function = NUMBER_FUNCTIONS[value.name.text]
    kinds = [checker.number(a.value, names) for a in value.arguments]
    if not _has_count(value, function.fewest, function.most, checker):
        return UNKNOWN
    result = kinds[0]
    for other, argument in zip(kinds[1:], value.arguments[1:], strict=True):
        if not are_comparable(result, other):
            checker.report(
                "E104", f"this compares {result.described()} with {other.described()}",
                argument.span, "use values of one kind",
            )  # fmt: skip
        is_vague = result.name == "int"  # `min(4, len)` is a length, like `min(len, 4)`
        result = replace(other if is_vague else result, depends=result.depends | other.depends)
    _check_limits(value, checker)
    place = checker.place(value.span)
    return result.of(function.build([kind.node for kind in kinds], place))


def _check_limits(value: ast.Call, checker: Checker) -> None:
    """Refuse `clamp(x, 3, 1)`, which may mean 1 or numbers from 1 to 3."""
    limits = [argument.value for argument in value.arguments[1:]]
    low, high = limits if value.name.text == "clamp" else (None, None)
    if isinstance(low, ast.Number) and isinstance(high, ast.Number) and low.value > high.value:
        shown = value.arguments[0].span.text(checker.program.text)
        checker.report(
            "E106", "the low limit of this `clamp` is above the high one", value.span,
            f"write `clamp({shown}, {high.value}, {low.value})` for numbers between them, or "
            f"`{high.value}` for the constant",
        )  # fmt: skip


def _check_function(value: ast.Call, function: Function, names: Names, checker: Checker) -> Kind:
    """Return the kind of a call of a `where` function: check its body with these arguments."""
    # Parameters of a `where` function have no types: each call checks the body with the kinds of
    # its arguments.
    kinds = [checker.kind(a.value, names) for a in value.arguments]
    params = function.params
    if not _has_count(value, len(params), len(params), checker):
        return UNKNOWN
    if checker.depth >= MAX_CALL_DEPTH:
        message = f"more than {MAX_CALL_DEPTH} functions call each other here"
        checker.report("E116", message, value.span, "write some of them out")
        return UNKNOWN
    inner = {**function.names, **dict(zip((p.text for p in params), kinds, strict=True))}
    checker.depth += 1
    kind = checker.kind(function.value, inner)
    checker.depth -= 1
    return kind


def call_mask(
    mask: ast.MaskDef,
    scope: Scope,
    given: tuple[ast.Argument, ...],
    span: Span,
    names: Names,
    checker: Checker,
) -> Kind:
    """Check the arguments of a mask against its parameters; return what the call means."""
    keys = keys_of_mask(mask, scope)
    if keys is not None and keys != checker.keys:
        checker.report(
            "E126", f"`{mask.name.text}` looks at keys of `{keys.statement.name.text}`; the "
            "expression around it does not", span,
            "use it alone, or in a mask with the same `@keys`",
        )  # fmt: skip
    params = {p.name.text: p for p in mask.params}
    values: dict[str, nodes.Node] = {}
    for index, argument in enumerate(given):
        if not _has_place(mask, given, index, checker):
            return MASK
        name = (argument.name or mask.params[index].name).text
        if name not in params:
            known = ", ".join(params) or "none"
            hint = did_you_mean(name, params) or f"parameters: {known}"
            message = f"`{mask.name.text}` has no parameter `{name}`"
            at = argument.span if argument.name is None else argument.name.span
            checker.report("E106", message, at, hint)
            continue
        if name in values:
            checker.report("E106", f"parameter `{name}` is given twice", argument.span)
        values[name] = check_argument(argument.value, params[name], names, checker)
    missing = [n for n, param in params.items() if param.default is None and n not in values]
    if missing:
        shown = ", ".join(f"`{m}`" for m in missing)
        checker.report(
            "E106", f"`{mask.name.text}` needs a value for {shown}", span,
            f"write `{mask.name.text}({missing[0]} = ...)`",
        )  # fmt: skip
        return MASK
    body = checker.body(mask, scope)
    if body is None:
        return MASK
    for name in params:
        if name not in values:  # a default may speak of the parameters before it
            values[name] = substitute(body.defaults[name], values)
    return MASK.of(substitute(body.core, values) if params else body.core)


def _has_place(
    mask: ast.MaskDef, given: tuple[ast.Argument, ...], index: int, checker: Checker
) -> bool:
    """Check that an argument by position has a parameter and stands before those by name."""
    argument = given[index]
    if argument.name is not None:
        return True
    if index >= len(mask.params):
        wanted = f"{len(mask.params)} argument{'' if len(mask.params) == 1 else 's'}"
        message = f"`{mask.name.text}` takes {wanted}, got {len(given)}"
    elif any(a.name is not None for a in given[:index]):
        message = "an argument by position follows one by name"
    else:
        return True
    checker.report("E106", message, argument.span)
    return False


def check_argument(value: ast.Expr, param: ast.Param, names: Names, checker: Checker) -> nodes.Node:
    """Check one argument (or default) against its parameter; return what it means."""
    wanted, kind = PARAM_KINDS.get(param.type.text, UNKNOWN), checker.kind(value, names)
    node: nodes.Node = kind.node
    if "unknown" in (wanted.name, kind.name):
        return node
    # Lengths and integers are taken for each other, and a number such as 0 for a position.
    takes_plain = wanted.is_plain or wanted.name == "pos"
    if kind.name != wanted.name and not (takes_plain and kind.is_plain):
        checker.report(
            "E107",
            f"parameter `{param.name.text}` is {wanted.described()}, got {kind.described()}",
            value.span,
            "write `true` or `false`" if param.type.text == "bool" else "",
        )
    elif kind.depends and wanted.is_plain:
        checker.report(
            "E107", f"parameter `{param.name.text}` may not depend on a position", value.span
        )
    return node
