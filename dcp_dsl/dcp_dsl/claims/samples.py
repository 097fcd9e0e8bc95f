"""List the samples that a claim is tested on, and shrink a sample that shows a fault.

A claim is tested on the sample it names. Without a name it is tested on made-up small samples and
on all declared samples that fit.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from random import Random
from typing import TypeVar

from dcp_dsl.checks.scope import Scope
from dcp_dsl.claims.column_samples import (
    column_kinds,
    complete_samples,
    draw_columns,
    reach_of,
)
from dcp_dsl.core.columns import Column
from dcp_dsl.core.mask import Mask
from dcp_dsl.core.sample import Sample, declared_sample, layout_lengths
from dcp_dsl.elaboration.programs import layout_columns
from dcp_dsl.errors import Budget, DatasetError
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.trees import walk

MAX_SAMPLE_TOKENS = 256
GENERATED = 32
TRIES = 50 * GENERATED  # columns of several layouts fit together only by chance
TINY = 48  # further samples, with so few tokens that most shapes of such samples are drawn
MAX_TINY_TOKENS = 4
# For `draw_columns`: parts of 0 to 2 tokens in lists of 1, 2 or 3; of 0 or 1 in lists of any size.
TINY_INDICES = (1, 5, 9, 3) * 40
USUAL_REACH = 4  # the longest part of other samples
LONG, MAX_REACH = 12, 96  # samples with parts as long as the mask's numbers, and their longest part
STEPS_PER_PART = 2**14  # cost of adding up the lengths of one part of a layout
REST_TOKENS = (3, 0, 1)  # tokens of generated samples beyond those of their columns, for `[..]`


class UnfitSampleError(DatasetError):
    """A claim names a sample that it cannot be tested on; `hint` is the way out."""

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

    Of a claim about two masks, `mask` is their difference. `broken` are samples of the text that
    fit no layout. Only `with_open` makes up token columns and `row` columns, which may hold any
    integer; else only declared samples give them. Raises `OverBudget` if the text holds too much to
    test, and `DatasetError` if the sample that the claim names does not fit.
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
    reach = reach_of(mask.core, MAX_REACH)
    bases = sorted(
        _generate(columns - kinds.keys(), layouts, budget, reach), key=lambda s: s.length
    )
    if mask.keys is None:  # else only declared samples know how both sequences fit together
        yield from complete_samples(bases, kinds, mask.core)
    size = sum(count_parts(layout) for _, layout in scope.layouts())
    for name, definition in scope.samples.items():
        if name not in broken:
            # Its length may need all layouts of the text, and those of the library.
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
    # In order: shrinking goes through the columns, and a set has another order in every run.
    return Sample({column: sample.columns[column] for column in sorted(columns)}, sample.length)


def _generate(
    columns: frozenset[str],
    laid: list[tuple[ast.Segment, ast.Layout]],
    budget: Budget,
    reach: int,
) -> Iterator[Sample]:
    """Yield small samples that fit the layouts, in a fixed order.

    `columns` are those of layouts. A mask without any is tested on every length up to `GENERATED`.
    The last samples are as long as the numbers of the mask ask for, `reach`.
    """
    if not columns:
        longer = [*range(GENERATED, reach, GENERATED)][1:] + [reach] * (reach > GENERATED)
        for length in [*range(1, GENERATED + 1), *longer]:
            yield Sample({}, length)
        return
    layouts = [layout for _, layout in laid]
    read = [layout for layout in layouts if columns & set(layout_columns(layout))]
    if columns - {name for layout in read for name in layout_columns(layout)}:
        return  # token columns: only declared samples know sensible values
    size = sum(map(count_parts, layouts))
    rng = Random(0)  # the same samples every time
    found: set[str] = set()
    tries = 2 * LONG if reach > USUAL_REACH else 0  # few: each costs as much as a short one
    # First samples of all shapes, then tiny ones, where chance alone would leave many shapes out.
    for indices, longest, wanted, most in (
        (range(TRIES), MAX_SAMPLE_TOKENS, GENERATED, 0),
        (TINY_INDICES, MAX_TINY_TOKENS, GENERATED + TINY, 0),
        (range(tries), MAX_SAMPLE_TOKENS, GENERATED + TINY + LONG, reach),
    ):
        fitting = 0  # samples drawn so far whose columns fit together, also those found before
        for index in indices:
            budget.spend(STEPS_PER_PART * size)
            drawn = draw_columns(read, index, rng, most)
            values = {name: drawn[name] for name in sorted(columns)}
            rest = REST_TOKENS[index % len(REST_TOKENS)]
            # Without a layout that says it, the length is the sum of the columns, and some rest.
            total = _length(values, laid, max(0, sum(map(_sum, values.values()))) + rest)
            shown = repr((values, total))
            if total and total <= longest and shown not in found:
                found.add(shown)
                yield Sample(values, total)
            fitting += total is not None
            # Where few samples are possible, the same ones come again: they count towards the end.
            if len(found) == wanted or fitting == 2 * wanted:
                break


def count_parts(layout: ast.Layout) -> int:
    """Return the number of parts and groups of a layout."""
    return sum(isinstance(node, ast.Leaf | ast.Group) for node in walk(layout))


def _length(
    values: Mapping[str, Column], laid: Sequence[tuple[ast.Segment, ast.Layout]], otherwise: int
) -> int | None:
    """Return the length on which all layouts agree; None if they do not, or the columns do not fit.

    `otherwise` is the length where no layout says any.
    """
    try:
        lengths = {length for _, length in layout_lengths(values, laid)}
    except DatasetError:  # a length below 0, say, by `a - b`
        return None
    if not lengths:
        return otherwise
    return lengths.pop() if len(lengths) == 1 else None


def _sum(value: Column) -> int:
    return sum(map(_sum, value)) if isinstance(value, list) else int(value)


def all_layouts(mask: Mask, scope: Scope) -> list[tuple[ast.Segment, ast.Layout]]:
    """Return the layouts of the text, and those of other files that a mask reads."""
    found = {id(pair[0]): pair for pair in scope.sample_layouts()}
    for pair in mask.layouts:
        found.setdefault(id(pair[0]), pair)
    return list(found.values())


MAX_TRIES = 400  # samples that shrinking looks at

_Found = TypeVar("_Found")


def shrink(
    sample: Sample,
    found: _Found,
    search: Callable[[Sample], _Found | None],
    per_token: Collection[str],
    layouts: Sequence[tuple[ast.Segment, ast.Layout]],
) -> _Found:
    """Shrink a sample by small steps and return the finding on the smallest.

    A step leaves out tokens or an element of a list, or makes a value smaller. Greedy: the first
    step after which the fault is still there is taken, and the steps begin anew from there.
    """
    tries = MAX_TRIES
    while True:
        for smaller in _steps(sample, per_token, layouts):
            tries -= 1
            if tries < 0:
                return found
            again = search(smaller)
            if again is not None:
                sample, found = smaller, again
                break
        else:
            return found


def _steps(
    sample: Sample, per_token: Collection[str], layouts: Sequence[tuple[ast.Segment, ast.Layout]]
) -> Iterator[Sample]:
    """Yield the samples that are one step smaller, shorter ones first."""
    own = {name: sample.columns[name] for name in per_token if name in sample.columns}
    rest = {name: value for name, value in sample.columns.items() if name not in own}
    # Columns of layouts stay here; where they fix the length, `search` refuses the sample.
    tokens = sample.length // 2 or sample.length
    while tokens:  # halves first, single tokens last
        for values in _cut(own, sample.length, tokens, every=tokens):
            yield Sample({**rest, **values}, sample.length - tokens)
        tokens //= 2
    for columns in _smaller_columns(rest):
        length = _length(columns, layouts, sample.length)
        # Fewer elements may mean fewer tokens: the columns per token lose as many, anywhere.
        if length is not None and length <= sample.length:
            for values in _cut(own, sample.length, sample.length - length):
                yield Sample({**columns, **values}, length)
    for columns in _smaller_values(own):
        yield Sample({**rest, **columns}, sample.length)


def _cut(
    own: Mapping[str, Column], length: int, tokens: int, every: int = 1
) -> Iterator[Mapping[str, Column]]:
    """Yield the columns per token without `tokens` neighbours, cut at every `every`-th place.

    Without such columns, or without tokens to cut, all places give the same.
    """
    for at in range(0, length - tokens + 1, every) if own and tokens else range(1):
        yield {name: [*value[:at], *value[at + tokens :]] for name, value in own.items()}


def _smaller_columns(columns: Mapping[str, Column]) -> Iterator[Mapping[str, Column]]:
    """Yield columns with one element less in all lists or in one, or with one smaller number."""
    lists = {name: value for name, value in columns.items() if isinstance(value, list)}
    # All lists at once first: columns of a repeated group must stay equally long.
    for index in range(max(map(len, lists.values()), default=0)):
        shorter = {name: [*v[:index], *v[index + 1 :]] for name, v in lists.items()}
        yield {**columns, **shorter}
    for name, value in columns.items():
        for smaller in _shorter(value):
            yield {**columns, name: smaller}
    yield from _smaller_values(columns)


def _shorter(value: Column) -> Iterator[Column]:
    """Yield a list without one of its elements, or without one element of a list inside it."""
    for index, item in enumerate(value if isinstance(value, list) else []):
        yield [*value[:index], *value[index + 1 :]]
        for shorter in _shorter(item):
            yield [*value[:index], shorter, *value[index + 1 :]]


def _smaller_values(columns: Mapping[str, Column]) -> Iterator[Mapping[str, Column]]:
    """Yield the columns with a smaller value in one of them."""
    for name, value in columns.items():
        for smaller in _smaller(value):
            yield {**columns, name: smaller}


def _smaller(value: Column) -> Iterator[Column]:
    """Yield a value with all numbers 0, or with one of them nearer to 0; -3 becomes 0 at once."""
    if isinstance(value, list):
        if any(value) and all(isinstance(item, int) for item in value):
            yield [0] * len(value)
        for index, item in enumerate(value):
            for smaller in _smaller(item):
                yield [*value[:index], smaller, *value[index + 1 :]]
    elif value:
        yield from dict.fromkeys((0, value // 2, value - 1) if value > 0 else (0,))
