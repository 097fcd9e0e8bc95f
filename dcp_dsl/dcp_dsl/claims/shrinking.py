"""Make a sample on which a search finds something as small as it gets."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from dcp_dsl.core.layout_columns import Column
from dcp_dsl.core.sample import Sample
from dcp_dsl.core.sample_statement import layout_lengths
from dcp_dsl.errors import DatasetError
from dcp_dsl.syntax import ast

MAX_TRIES = 400

_Found = TypeVar("_Found")


def shrink(
    sample: Sample,
    found: _Found,
    search: Callable[[Sample], _Found | None],
    per_token: Collection[str],
    layouts: Sequence[tuple[ast.Segment, ast.Layout]],
) -> _Found:
    """Shrink a sample by small steps and return the finding on the smallest.

    A step leaves out a token or an element of a list, or makes a value smaller.

    Args:
        sample: one on which the search finds something.
        found: what it finds there.
        search: gives what it finds on a sample, or None; None for samples that fit no layout.
        per_token: columns with one value per token.
        layouts: what says how long a sample is.
    """
    tries = MAX_TRIES
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for smaller in _steps(sample, per_token, layouts):
            tries -= 1
            if tries < 0:
                return found
            again = search(smaller)
            if again is not None:
                sample, found, is_smaller = smaller, again, True
                break
    return found


def _steps(
    sample: Sample,
    per_token: Collection[str],
    layouts: Sequence[tuple[ast.Segment, ast.Layout]],
) -> Iterator[Sample]:
    """Yield the samples that are one step smaller, shorter ones first."""
    own = {name: sample.columns[name] for name in per_token if name in sample.columns}
    rest = {name: value for name, value in sample.columns.items() if name not in own}
    tokens = sample.length // 2 or sample.length
    while tokens:  # halves first, single tokens last
        for values in _cut(own, sample.length, tokens, every=tokens):
            yield Sample({**rest, **values}, sample.length - tokens)
        tokens //= 2
    for columns in _smaller_columns(rest):
        length = _new_length(columns, sample.length, layouts)
        if length is not None and length <= sample.length:
            for values in _cut(own, sample.length, sample.length - length):
                yield Sample({**columns, **values}, length)
    for columns in _smaller_values(own):
        yield Sample({**rest, **columns}, sample.length)


def _cut(
    own: Mapping[str, Column], length: int, tokens: int, every: int = 1
) -> Iterator[Mapping[str, Column]]:
    """Yield the columns per token without so many neighbouring tokens, at every so many places."""
    for at in range(0, length - tokens + 1, every) if own and tokens else range(1):
        yield {name: [*value[:at], *value[at + tokens :]] for name, value in own.items()}


def _new_length(
    columns: Mapping[str, Column],
    before: int,
    layouts: Sequence[tuple[ast.Segment, ast.Layout]],
) -> int | None:
    """Return the length that the layouts say, else the one before; None if they disagree."""
    try:
        lengths = {length for _, length in layout_lengths(columns, layouts)}
    except DatasetError:
        return None
    if len(lengths) > 1:
        return None
    return lengths.pop() if lengths else before


def _smaller_columns(columns: Mapping[str, Column]) -> Iterator[Mapping[str, Column]]:
    """Yield columns with one element less in all lists or in one, or with one smaller number."""
    lists = {name: value for name, value in columns.items() if isinstance(value, list)}
    for index in range(max(map(len, lists.values()), default=0)):
        shorter = {name: [*v[:index], *v[index + 1 :]] for name, v in lists.items()}
        yield {**columns, **shorter}
    for name, value in columns.items():
        for smaller in _shorter(value):
            yield {**columns, name: smaller}
    yield from _smaller_values(columns)


def _shorter(value: Column) -> Iterator[Column]:
    """Yield a list without one of its elements, or of the elements of the lists in it."""
    for index, item in enumerate(value if isinstance(value, list) else []):
        yield [*value[:index], *value[index + 1 :]]
        for shorter in _shorter(item):
            yield [*value[:index], shorter, *value[index + 1 :]]


def _smaller_values(columns: Mapping[str, Column]) -> Iterator[Mapping[str, Column]]:
    for name, value in columns.items():
        for smaller in _smaller(value):
            yield {**columns, name: smaller}


def _smaller(value: Column) -> Iterator[Column]:
    """Yield a value with all numbers 0, or one of them nearer to 0."""
    if isinstance(value, list):
        if any(value) and all(isinstance(item, int) for item in value):
            yield [0] * len(value)
        for index, item in enumerate(value):
            for smaller in _smaller(item):
                yield [*value[:index], smaller, *value[index + 1 :]]
    elif value:
        yield from dict.fromkeys((0, value // 2, value - 1) if value > 0 else (0,))
