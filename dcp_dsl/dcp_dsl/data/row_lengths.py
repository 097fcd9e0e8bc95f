"""Find the length of rows: stated in their file, or added up by a layout."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_dsl.core.layout import natural_length
from dcp_dsl.core.mask import Mask
from dcp_dsl.data.data_file import DataFile, join_names
from dcp_dsl.data.nesting import (
    NestedColumn,
    flatten_column,
    measure_layout,
    require_depth,
)
from dcp_dsl.elaboration.reads import column_depths, reads_length
from dcp_dsl.errors import DatasetError
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import did_you_mean

Summed = tuple[ast.Segment, ast.Layout]
"""A segment whose layout alone fixes the length of a row."""


def summed_layouts(masks: Iterable[Mask]) -> tuple[Summed, ...]:
    """Return the layouts that masks read and that fix the length of a row, each once."""
    found: dict[int, Summed] = {}
    for mask in masks:
        for segment in mask.segments:
            if isinstance(segment.source, ast.Layout) and not reads_length(segment.source):
                found[id(segment)] = segment, segment.source
    return tuple(found.values())


def layout_length(layouts: Iterable[Summed], columns: Mapping[str, Any]) -> int | None:
    """Return the tokens that the first of some layouts adds up to; None without a layout.

    Args:
        layouts: from `summed_layouts`.
        columns: of one row, by the mask's names; `Any`: integers or nested lists of them.

    Raises:
        DatasetError: if a column is missing or has the wrong shape.
    """
    first = next(iter(layouts), None)
    return None if first is None else natural_length(*first, columns)


def file_lengths(file: DataFile, layouts: Iterable[Summed], renames: Mapping[str, str]) -> Ints:
    """Return the tokens of each row of a file, int64 ``[rows]``.

    Args:
        file: the rows.
        layouts: of the masks that the rows get, from `summed_layouts`.
        renames: the mask's column -> the column of the file, where they differ.

    Raises:
        DatasetError: if nothing says how long a row is, or what is said makes no sense.
    """
    stated = file.stated_lengths()
    if stated is not None:
        return stated
    for segment, layout in layouts:
        return _sums(file, segment, layout, renames)
    raise DatasetError(
        f"{file.name}: rows need their length: a column `len`, `length`, `tokens` or `input_ids`, "
        "or a mask with a layout that adds up to it, such as `segment doc = text[lens]*`; this "
        f"file has {join_names(file.columns)}"
    )


def _sums(
    file: DataFile, segment: ast.Segment, layout: ast.Layout, renames: Mapping[str, str]
) -> Ints:
    """Add up a layout for every row: all at once, rows that need the binder one by one."""
    reader = f"segment `{segment.name.text}`"
    columns = {
        name: _column(file, name, renames.get(name, name), depth, reader)
        for name, depth in column_depths(layout).items()
    }
    for name, column in columns.items():
        if column.has_null.any():
            row = int(np.flatnonzero(column.has_null)[0])
            own = renames.get(name, name)
            raise DatasetError(f"{file.where(row)} has no value in column `{own}`")
    totals = measure_layout(layout, columns, len(file))
    lengths = totals.tokens.copy()
    for row in np.flatnonzero(~totals.is_certain).tolist():
        values = {name: column.row_lists(row) for name, column in columns.items()}
        try:
            found = natural_length(segment, layout, values)
        except DatasetError as error:
            raise DatasetError(f"{file.where(row)}: {error}") from None
        assert found is not None, "the layout does not read the length"
        lengths[row] = found
    return lengths


def _column(file: DataFile, mask_column: str, column: str, depth: int, reader: str) -> NestedColumn:
    if column not in file.columns:
        hint = did_you_mean(column, list(file.columns))
        raise DatasetError(
            f"{file.name}: {reader} needs the column `{column}`{'; ' + hint if hint else ''} "
            f"(columns: {join_names(file.columns)})"
        )
    found = file.table.column(column)
    require_depth(
        found.type, depth, source=file.name, column=column, mask_column=mask_column, reader=reader
    )
    return flatten_column(found)
