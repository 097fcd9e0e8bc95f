"""Test what `check` statements claim, on the samples of the text and on small generated ones.

A claim that fails is shown with the smallest sample and the first pair that break it. A claim that
holds here is tested, not proved.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import ast
from dcp_dsl.ast import Program
from dcp_dsl.columns import needed_columns
from dcp_dsl.diagnostics import Diagnostic, make_diagnostic
from dcp_dsl.errors import DatasetError, SpecError
from dcp_dsl.layout import Column, layout_columns
from dcp_dsl.mask import Mask
from dcp_dsl.oracle import dense_mask
from dcp_dsl.sample import Sample
from dcp_dsl.scope import Scope
from dcp_dsl.unparse import unparse

MAX_SAMPLE_TOKENS = 256
GENERATED = 24

Bools = NDArray[np.bool_]


def check_claims(program: Program) -> tuple[Diagnostic, ...]:
    """Test every `check` statement of a text without errors.

    Returns:
        C401-C404 for claims that fail, E117 for samples that do not fit their layout, W290 where
        the claim cannot be evaluated yet.
    """
    scope = Scope.of(program)
    return tuple(
        found
        for statement in program.statements
        if isinstance(statement, ast.Check)
        for found in _check_claim(statement, scope)
    )


def _check_claim(check: ast.Check, scope: Scope) -> Iterator[Diagnostic]:
    left = _mask(check.left, scope)
    right = None if check.right is None else _mask(check.right, scope)
    columns = left.columns | (right.columns if right is not None else frozenset())
    program = scope.program
    try:
        for sample in _samples(check, columns, scope):
            failure = _test(check, left, right, sample)
            if failure is not None:
                yield _describe(check, failure, program)
                return
    except SpecError as error:
        yield make_diagnostic(
            "W290", f"this check cannot be tested yet: {error.diagnostics[0].message}",
            program.text, check.span, name=program.name,
        )  # fmt: skip
    except DatasetError as error:
        yield make_diagnostic(
            "E117", str(error), program.text,
            check.sample.span if check.sample else check.span, name=program.name,
            hint="mend the sample so that its layout fills it",
        )  # fmt: skip


def _mask(expression: ast.Expr, scope: Scope) -> Mask:
    columns = needed_columns(expression, scope)
    text = unparse(expression)
    return Mask(text, text, columns, expression, scope, scope.program)


@dataclass(frozen=True, slots=True)
class _Failure:
    """A pair (or a row, when `k` is None) that breaks a claim on a sample."""

    sample: Sample
    q: int
    k: int | None


def _test(check: ast.Check, left: Mask, right: Mask | None, sample: Sample) -> _Failure | None:
    seen = dense_mask(left, sample)
    if check.claim == "total":
        blind = np.flatnonzero(~seen.any(axis=1))
        return _Failure(sample, int(blind[0]), None) if len(blind) else None
    if check.claim == "lookback":
        wrong = np.triu(seen, k=1)
    else:
        assert right is not None, "the grammar gives implies and equals a right side"
        other = dense_mask(right, sample)
        wrong = seen & ~other if check.claim == "implies" else seen != other
    pairs = np.argwhere(wrong)
    return _Failure(sample, *pairs[0].tolist()) if len(pairs) else None


def _describe(check: ast.Check, failure: _Failure, program: Program) -> Diagnostic:
    code, what = {
        "implies": ("C401", "the left mask sees a pair that the right one does not"),
        "equals": ("C402", "the masks differ"),
        "total": ("C403", "a token sees nothing"),
        "lookback": ("C404", "a token sees a later one"),
    }[check.claim]
    place = f"q = {failure.q}" + ("" if failure.k is None else f", k = {failure.k}")
    return make_diagnostic(
        code, f"this check fails: {what}", program.text, check.span, name=program.name,
        hint=f"at {place} of the sample {failure.sample.to_json()}",
    )  # fmt: skip


# ---- samples -------------------------------------------------------------------------------------


def _samples(check: ast.Check, columns: frozenset[str], scope: Scope) -> Iterator[Sample]:
    """Give the samples to test on: the named one, or generated ones and all that fit."""
    if check.sample is not None:
        yield _declared(scope.samples[check.sample.text], columns, scope)
        return
    yield from sorted(_generate(columns, scope), key=lambda s: s.length)
    for definition in scope.samples.values():
        given = {entry.name.text for entry in definition.fields}
        if columns <= given | {"len"}:
            yield _declared(definition, columns, scope)


def _declared(definition: ast.SampleDef, columns: frozenset[str], scope: Scope) -> Sample:
    """Turn a `sample` statement into a sample; without `len` the layout says the length."""
    values: dict[str, Any] = {e.name.text: _lists(e.value) for e in definition.fields}
    length = values.pop("len", None)
    missing = sorted(columns - values.keys())
    if missing:
        raise DatasetError(f"sample `{definition.name.text}` has no column `{missing[0]}`")
    values = {name: values[name] for name in columns}
    sample = Sample(values, _natural_length(values, columns, scope) if length is None else length)
    if sample.length > MAX_SAMPLE_TOKENS:
        raise DatasetError(
            f"sample `{definition.name.text}` has {sample.length} tokens; checks test samples "
            f"of at "
            f"most {MAX_SAMPLE_TOKENS}"
        )
    return sample


def _lists(value: ast.Literals) -> Column:
    return [_lists(v) for v in value] if isinstance(value, tuple) else value


def _layouts(columns: frozenset[str], scope: Scope) -> list[ast.Layout]:
    """Give the layouts that read these columns, of the text and of the library masks it uses."""
    scopes = [scope]
    for statement in scope.program.statements:
        if isinstance(statement, ast.Check):
            for node in (statement.left, statement.right):
                name = node.text if isinstance(node, ast.Name) else None
                if isinstance(node, ast.Call):
                    name = node.name.text
                found = scope.find_mask(name) if name is not None else None
                if found is not None:
                    scopes.append(found[1])
    segments = [s for each in scopes for s in each.program.statements if isinstance(s, ast.Segment)]
    layouts = [s.source for s in segments if isinstance(s.source, ast.Layout)]
    return [x for x in layouts if columns & set(layout_columns(x))]


def _natural_length(values: dict[str, Any], columns: frozenset[str], scope: Scope) -> int:
    """Give the tokens of a layout's columns, plus some for `[..]`; 12 without any layout."""
    totals = []
    for layout in _layouts(columns, scope):
        known = [c for c in layout_columns(layout) if c in values]
        has_rest = any(isinstance(p, ast.Leaf) and p.length is None for p in layout.parts)
        totals.append(sum(_sum(values[c]) for c in known) + (3 if has_rest else 0))
    return max(totals, default=12)


def _sum(value: Column) -> int:
    return sum(map(_sum, value)) if isinstance(value, list) else int(value)


def _generate(columns: frozenset[str], scope: Scope) -> Iterator[Sample]:
    """Give small samples whose columns fit the layouts; always the same ones."""
    layouts = _layouts(columns, scope)
    shapes: dict[str, int] = {}
    for layout in layouts:
        _collect_shapes(layout.parts, 0, shapes)
    rng = Random(0)  # the same samples every time
    for index in range(GENERATED):
        if not shapes:
            if columns - shapes.keys():
                return  # token columns: only declared samples know sensible values
            yield Sample({}, index + 1)
            continue
        count = 1 + index % 3
        values = {name: _value(depth, count, rng) for name, depth in shapes.items()}
        if columns <= values.keys():
            yield Sample({c: values[c] for c in columns}, _natural_length(values, columns, scope))


def _collect_shapes(
    parts: tuple[ast.Leaf | ast.Group, ...], depth: int, shapes: dict[str, int]
) -> None:
    """Note for every column how deeply its lists are nested."""
    for part in parts:
        if isinstance(part, ast.Group):
            _collect_shapes(part.parts, depth + part.is_repeated, shapes)
        elif part.length is not None:
            for name in layout_columns(ast.Layout((part,))):
                shapes[name] = depth + part.is_repeated


def _value(depth: int, count: int, rng: Random) -> Column:
    if depth == 0:
        return rng.randint(1, 4)
    return [_value(depth - 1, count, rng) for _ in range(count)]
