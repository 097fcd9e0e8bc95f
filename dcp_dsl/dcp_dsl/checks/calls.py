"""Check calls of masks, `where` functions and builtins: do the arguments fit the parameters?"""

from dataclasses import replace

from dcp_dsl.checks.findings import Checker
from dcp_dsl.checks.kinds import (
    BUILTINS,
    MASK,
    SEGMENT,
    SEGMENT_FUNCTIONS,
    UNKNOWN,
    Function,
    Kind,
    Names,
    are_comparable,
    param_kind,
)  # fmt: skip
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.ast import Span
from dcp_dsl.syntax.diagnostics import did_you_mean
from dcp_dsl.syntax.foreign import JOINS

MAX_CALL_DEPTH = 20


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
    if text in BUILTINS:
        return _check_builtin(value, names, checker)
    found = checker.scope.find_mask(text)
    if found is not None and text not in checker.scope.segments:
        check_arguments(found[0], value.arguments, value.name.span, names, checker)
        return MASK
    for argument in value.arguments:
        checker.kind(argument.value, names)
    if text in checker.lost:
        return UNKNOWN
    if text in checker.scope.segments:
        checker.report("E103", f"`{text}` is a segment and cannot be called", value.name.span)
    else:
        _report_unknown(value, names, checker)
    return UNKNOWN


def _report_unknown(value: ast.Call, names: Names, checker: Checker) -> None:
    """Report a call of an unknown name; for `and_masks(a, b)` suggest `a and b`."""
    operator = JOINS.get(value.name.text)
    if operator is None or not value.arguments:
        checker.unknown(value.name.text, value.name.span, names, "call")
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
    checker.report(
        "E106", f"`{value.name.text}` takes {wanted}, got {len(value.arguments)}",
        value.span,
    )  # fmt: skip
    return False


def _check_segment_function(value: ast.Call, names: Names, checker: Checker) -> Kind:
    """Check `same(S)`, `paths(S)`, `first(S, m)`, `last(S, m)`."""
    kind = MASK if value.name.text in ("same", "paths") else SEGMENT
    if _has_count(value, *SEGMENT_FUNCTIONS[value.name.text], checker):
        segment = checker.segment(value.arguments[0].value, names)
        if value.name.text == "paths":
            checker.tree(segment, value.arguments[0].value.span)
        for argument in value.arguments[1:]:
            checker.constant(argument.value, names, at_least=0)
    return kind


def _check_builtin(value: ast.Call, names: Names, checker: Checker) -> Kind:
    """Return the kind of `abs`, `min`, `max`, `clamp`."""
    kinds = [checker.number(a.value, names) for a in value.arguments]
    if not _has_count(value, *BUILTINS[value.name.text], checker):
        return UNKNOWN
    result = kinds[0]
    for other, argument in zip(kinds[1:], value.arguments[1:], strict=True):
        if not are_comparable(result, other):
            checker.report(
                "E104", f"this compares {result.described()} with {other.described()}",
                argument.span, "use values of one kind",
            )  # fmt: skip
        is_vague = result.name == "int"
        result = replace(other if is_vague else result, depends=result.depends | other.depends)
    return result


def _check_function(value: ast.Call, function: Function, names: Names, checker: Checker) -> Kind:
    """Return the kind of a call of a `where` function: check its body with these arguments."""
    kinds = [checker.kind(a.value, names) for a in value.arguments]
    params = function.definition.params
    if not _has_count(value, len(params), len(params), checker) or checker.depth > MAX_CALL_DEPTH:
        return UNKNOWN
    inner = {**function.names, **dict(zip((p.text for p in params), kinds, strict=True))}
    checker.depth += 1
    kind = checker.kind(function.definition.value, inner)
    checker.depth -= 1
    return kind


def check_arguments(
    mask: ast.MaskDef,
    given: tuple[ast.Argument, ...],
    span: Span,
    names: Names,
    checker: Checker,
) -> None:
    """Check the arguments of a mask against its parameters."""
    params = {p.name.text: p for p in mask.params}
    taken: set[str] = set()
    for index, argument in enumerate(given):
        if not _has_place(mask, given, index, checker):
            return
        name = argument.name.text if argument.name is not None else list(params)[index]
        if name not in params:
            known = ", ".join(params) or "none"
            hint = did_you_mean(name, list(params)) or f"parameters: {known}"
            message = f"`{mask.name.text}` has no parameter `{name}`"
            at = argument.span if argument.name is None else argument.name.span
            checker.report("E106", message, at, hint)
            continue
        if name in taken:
            checker.report("E106", f"parameter `{name}` is given twice", argument.span)
        taken.add(name)
        check_argument(argument.value, params[name], names, checker)
    missing = [n for n, param in params.items() if param.default is None and n not in taken]
    if missing:
        shown = ", ".join(f"`{m}`" for m in missing)
        checker.report(
            "E106", f"`{mask.name.text}` needs a value for {shown}", span,
            f"write `{mask.name.text}({missing[0]} = ...)`",
        )  # fmt: skip


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


def check_argument(value: ast.Expr, param: ast.Param, names: Names, checker: Checker) -> None:
    """Check one argument (or default) against its parameter."""
    wanted, kind = param_kind(param.type.text), checker.kind(value, names)
    if UNKNOWN in (wanted, replace(kind, depends=frozenset())):
        return
    fits = kind.is_plain if wanted.is_plain else kind.name == wanted.name
    if wanted.name == "pos" and kind.is_plain:
        fits = True
    if not fits:
        checker.report(
            "E107",
            f"parameter `{param.name.text}` is {wanted.described()}, got {kind.described()}",
            value.span,
        )  # fmt: skip
    elif kind.depends and wanted.is_plain:
        checker.report(
            "E107", f"parameter `{param.name.text}` may not depend on a position", value.span
        )
