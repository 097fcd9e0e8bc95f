"""Choose a sample to draw a mask on: a declared one that fits, or one that is made up."""

from collections.abc import Iterator

from dcp_dsl.checks.scope import Scope
from dcp_dsl.core.layout_columns import Column
from dcp_dsl.core.mask import Mask
from dcp_dsl.core.sample import Sample
from dcp_dsl.core.sample_statement import declared_sample, layout_lengths
from dcp_dsl.elaboration.reads import column_depths, parent_columns
from dcp_dsl.errors import DatasetError
from dcp_dsl.syntax.walk import mentioned_names

MAX_TOKENS = 4096  # a longer sample is no example
PLAIN_TOKENS = 16  # of a mask without columns whose text has no sample


def example_samples(mask: Mask) -> Iterator[Sample]:
    """Yield samples with the columns of a mask, which may still not fit it.

    First those declared in the text of the mask and in the files of the library that it uses, then
    small ones made up from the layouts; 16 tokens for a mask that reads no columns.
    """
    for scope in read_scopes(mask.expression, mask.scope):
        for definition in scope.samples.values():
            try:
                sample = declared_sample(definition, scope)
            except DatasetError:
                continue
            if mask.columns <= sample.columns.keys() and 0 < sample.length <= MAX_TOKENS:
                yield Sample({c: sample.columns[c] for c in mask.columns}, sample.length)
    if mask.columns:
        yield from _made_up(mask)
    else:
        yield Sample(length=PLAIN_TOKENS)


def _made_up(mask: Mask) -> Iterator[Sample]:
    """Yield a sample with two instances of all that repeats, if layouts know the columns."""
    shapes: dict[str, int] = {}
    scopes = read_scopes(mask.expression, mask.scope)
    layouts = [pair for scope in scopes for pair in scope.layouts()]
    for _, layout in layouts:
        shapes |= column_depths(layout)
    if mask.columns <= shapes.keys():
        columns = {column: _lengths(shapes[column], 3) for column in sorted(mask.columns)}
        for name in {name for _, layout in layouts for name in parent_columns(layout)}:
            if name in columns:
                columns[name] = _parents(shapes[name])
        try:
            found = dict(layout_lengths(columns, layouts))
        except DatasetError:
            return
        for length in found.values() or (PLAIN_TOKENS,):
            yield Sample(columns, length)


def _lengths(depth: int, size: int) -> Column:
    return size if depth == 0 else [_lengths(depth - 1, size - i) for i in range(2)]


def _parents(depth: int) -> Column:
    return [-1, 0] if depth == 1 else [_parents(depth - 1) for _ in range(2)]


def read_scopes(expression: object, scope: Scope) -> Iterator[Scope]:
    """Yield the texts whose names an expression uses, through all masks it calls; its own first."""
    yield scope
    seen: set[tuple[int, str]] = set()
    given = [scope]
    todo: list[tuple[object, Scope]] = [(expression, scope)]
    while todo:
        node, at = todo.pop()
        for name, is_attribute in mentioned_names(node):
            found = None if is_attribute else at.find_mask(name)
            if found is None or (id(at), name) in seen:
                continue
            seen.add((id(at), name))
            todo.append(found)
            if found[1] not in given:
                given.append(found[1])
                yield found[1]
