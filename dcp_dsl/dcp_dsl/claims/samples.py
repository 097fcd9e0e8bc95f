"""List the samples a claim is tested on: the one it names, else small ones and all that fit."""

from collections.abc import Iterator, Mapping
from random import Random

from dcp_dsl.budget import Budget
from dcp_dsl.checks.scope import Scope
from dcp_dsl.claims.column_samples import column_kinds, complete_samples, draw_columns
from dcp_dsl.core.layout_columns import Column
from dcp_dsl.core.mask import Mask
from dcp_dsl.core.sample import Sample
from dcp_dsl.core.sample_statement import declared_sample, layout_lengths
from dcp_dsl.elaboration.reads import layout_columns
from dcp_dsl.errors import DatasetError
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.walk import walk

MAX_SAMPLE_TOKENS = 256
GENERATED = 32
TRIES = 50 * GENERATED  # columns of several layouts fit together only by chance
TINY = 48  # further samples, of so few tokens that most of their shapes are drawn
MAX_TINY_TOKENS = 4
# Of `draw_columns`: parts of two tokens at most, in lists of 1, 2, 3; of one, in lists of any size.
TINY_INDICES = (1, 5, 9, 3) * 40
STEPS_PER_PART = 2**14  # what adding up the lengths of one part of a layout costs
REST_TOKENS = (3, 0, 1)  # what generated samples have beyond their columns, for `[..]`


class UnfitSampleError(DatasetError):
    """A sample that a claim names and cannot be tested on; `hint` is the way out."""

    def __init__(self, message: str, hint: str) -> None:
        self.hint = hint
        super().__init__(message)


def claim_samples(
    mask: Mask,
    asked: ast.Ident | None,
    scope: Scope,
    broken: frozenset[str],
    budget: Budget,
    *,
    with_open: bool = False,
) -> Iterator[Sample]:
    """Yield the samples to test a claim about a mask on, small ones first.

    Args:
        mask: the mask, or all that the claim speaks of in one.
        asked: the sample it names, if it does.
        scope: the text's definitions.
        broken: samples of the text that fit no layout.
        budget: shared by all claims of the text.
        with_open: whether to make up token columns and `row` columns as well, which may hold any
            integer; without it only declared samples give them.

    Raises:
        OverBudget: if the text holds too much to test.
        DatasetError: if the sample that the claim names has no length, is too long or lacks a
            column.
    """
    columns = mask.columns
    if asked is not None:
        yield _named(scope.samples[asked.text], columns, scope)
        return
    kinds = {
        column: kind
        for column, kind in column_kinds(mask.core).items()
        if column in columns and (with_open or not kind.is_open)
    }
    layouts = all_layouts(mask, scope)
    bases = sorted(_generate(columns - kinds.keys(), layouts, budget), key=lambda s: s.length)
    yield from complete_samples(bases, kinds, mask.core)
    size = sum(count_parts(layout) for _, layout in scope.layouts())
    for name, definition in scope.samples.items():
        if name not in broken:
            budget.spend(STEPS_PER_PART * (size + 4))
            try:
                sample = _named(definition, columns, scope)
            except DatasetError:  # not asked for: a sample of other masks, or a long one
                continue
            yield sample


def _named(definition: ast.SampleDef, columns: frozenset[str], scope: Scope) -> Sample:
    sample = declared_sample(definition, scope)
    name = definition.name.text
    missing = sorted(columns - sample.columns.keys())
    if missing:
        column = missing[0]
        raise UnfitSampleError(
            f"sample `{name}` has no column `{column}`", f"add `{column} = ...` to the sample"
        )
    if sample.length > MAX_SAMPLE_TOKENS:
        raise UnfitSampleError(
            f"sample `{name}` has {sample.length} tokens; checks test samples of at most "
            f"{MAX_SAMPLE_TOKENS}",
            "name a shorter sample, or none; `dcpm diff` compares two masks on samples of any "
            "length",
        )
    return Sample({column: sample.columns[column] for column in columns}, sample.length)


def _generate(
    columns: frozenset[str], laid: list[tuple[ast.Segment, ast.Layout]], budget: Budget
) -> Iterator[Sample]:
    """Yield small samples that fit the layouts, in a fixed order."""
    if not columns:
        for length in range(1, GENERATED + 1):
            yield Sample({}, length)
        return
    layouts = [layout for _, layout in laid]
    read = [layout for layout in layouts if columns & set(layout_columns(layout))]
    if columns - {name for layout in read for name in layout_columns(layout)}:
        return  # token columns: only declared samples know sensible values
    size = sum(map(count_parts, layouts))
    rng = Random(0)  # the same samples every time
    found: set[str] = set()
    for indices, longest, wanted in (
        (range(TRIES), MAX_SAMPLE_TOKENS, GENERATED),
        (TINY_INDICES, MAX_TINY_TOKENS, GENERATED + TINY),
    ):
        fitting = 0
        for index in indices:
            budget.spend(STEPS_PER_PART * size)
            drawn = draw_columns(read, index, rng)
            values = {name: drawn[name] for name in sorted(columns)}
            total = _length(values, laid, REST_TOKENS[index % len(REST_TOKENS)])
            shown = repr((values, total))
            if total and total <= longest and shown not in found:
                found.add(shown)
                yield Sample(values, total)
            fitting += total is not None
            if len(found) == wanted or fitting == 2 * wanted:
                break


def count_parts(layout: ast.Layout) -> int:
    """Return the number of parts and groups of a layout."""
    return sum(isinstance(node, ast.Leaf | ast.Group) for node in walk(layout))


def _length(
    values: Mapping[str, Column], laid: list[tuple[ast.Segment, ast.Layout]], rest: int
) -> int | None:
    """Return the tokens of a generated sample, None if its columns do not fit together."""
    try:
        lengths = {length for _, length in layout_lengths(values, laid)}
    except DatasetError:  # a length below 0, say, by `a - b`
        return None
    if lengths:
        return lengths.pop() if len(lengths) == 1 else None
    return max(0, _sum(list(values.values()))) + rest


def _sum(value: Column) -> int:
    return sum(map(_sum, value)) if isinstance(value, list) else int(value)


def all_layouts(mask: Mask, scope: Scope) -> list[tuple[ast.Segment, ast.Layout]]:
    """Return the layouts of the text, and those of other files that a mask reads."""
    found = {id(pair[0]): pair for pair in scope.layouts()}
    for segment in mask.segments:
        if isinstance(segment.source, ast.Layout):
            found.setdefault(id(segment), (segment, segment.source))
    return list(found.values())
