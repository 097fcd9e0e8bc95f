"""Build a sample from a `sample` statement: its columns, and the length that they imply.

A statement may leave `len` out where a layout says it: ``sample s(doc_lens = [3, 4])`` has 7 tokens
if `segment doc = [doc_lens]*` stands in the text, or in the library's mask that reads `doc_lens`.
"""

from collections.abc import Iterable, Mapping

from dcp_dsl.checks.scope import Scope, library_scopes
from dcp_dsl.core.columns import Column
from dcp_dsl.core.layout import natural_length
from dcp_dsl.core.sample import Sample
from dcp_dsl.elaboration.reads import layout_columns
from dcp_dsl.errors import DatasetError
from dcp_dsl.syntax import ast


class NoLengthError(DatasetError):
    """A sample that does not say how many tokens it has; `columns` holds what it gives."""

    def __init__(self, message: str, columns: Mapping[str, Column]) -> None:
        self.columns = columns
        super().__init__(message)


def declared_sample(definition: ast.SampleDef, scope: Scope) -> Sample:
    """Return the sample that a statement declares.

    Its length is its `len`; else what every layout whose columns it has adds up to; else the size
    of a column of a `token` statement.

    Raises:
        DatasetError: if nothing says the length, two layouts say different ones, or a column holds
            something else than integers.
    """
    return complete_sample(column_values(definition), scope, f"sample `{definition.name.text}`")


def column_values(definition: ast.SampleDef) -> dict[str, Column]:
    """Return the columns of a statement, `len` among them, with lists as lists."""
    return {entry.name.text: _lists(entry.value) for entry in definition.fields}


def complete_sample(given: Mapping[str, Column], scope: Scope, where: str) -> Sample:
    """Make a sample of columns and perhaps `len`; find the length as for a `sample` statement.

    Raises:
        DatasetError: as `declared_sample`; `where` is how the message calls the sample.
    """
    columns = {column: value for column, value in given.items() if column != "len"}
    length = given.get("len")
    try:
        sample = Sample(columns, 0 if length is None else length)
        found = dict(layout_lengths(sample.columns, scope.layouts()))
        if length is None:
            found = found or _other_lengths(sample.columns, scope)
        else:
            found["len"] = length
    except DatasetError as error:
        raise DatasetError(error.reason, where) from None
    if not found:
        raise NoLengthError(
            f"{where}: nothing says how many tokens it has; add `len = ...` "
            f"(a layout says it only if the sample has all its columns and no part is `[..]`)",
            columns,
        )
    if len(set(found.values())) > 1:
        shown = ", ".join(f"`{source}` says {length}" for source, length in found.items())
        raise DatasetError(f"{where}: its length is not clear: {shown}; mend its columns")
    return Sample(columns, next(iter(found.values())))


def layout_lengths(
    columns: Mapping[str, Column], layouts: Iterable[tuple[ast.Segment, ast.Layout]]
) -> Iterable[tuple[str, int]]:
    """Yield (segment, length) for each layout that says how long a sample with these columns is.

    A layout stays silent if it lacks a column, reads `len` or takes the remaining tokens.
    """
    for segment, layout in layouts:
        needed = layout_columns(layout)
        if needed and columns.keys() >= set(needed):
            length = natural_length(segment, layout, columns)
            if length is not None:
                yield segment.name.text, length


def _other_lengths(columns: Mapping[str, Column], scope: Scope) -> dict[str, int]:
    """Return lengths by the columns of `token` statements, else by the library's layouts."""
    read = ((t, token) for t, token in scope.tokens.items() if token.segment is None)
    tokens = {t: columns.get(token.column.text) for t, token in read}
    sizes = {f"token {t}": len(value) for t, value in tokens.items() if isinstance(value, list)}
    library = (pair for each in library_scopes() for pair in each.layouts())
    return sizes or dict(layout_lengths(columns, library))


def _lists(value: ast.Literals) -> Column:
    return [_lists(v) for v in value] if isinstance(value, tuple) else value
