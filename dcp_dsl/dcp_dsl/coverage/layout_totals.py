"""How many tokens a layout says the rows of a batch have, for all rows at once.

Rows for which the answer is not certain here (a length below 0, lists of a repeated group with
different sizes, arithmetic) are left to the layout binder, row by row.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Ints
from dcp_dsl.checks.columns import layout_columns
from dcp_dsl.coverage.nesting import NestedColumn
from dcp_dsl.syntax import ast


@dataclass(frozen=True, slots=True, eq=False)
class LayoutTotals:
    """Tokens of each row of a batch by one layout.

    Attributes:
        tokens: int64 ``[rows]``, without what `[..]` takes.
        takes_rest: `[..]` takes whatever the row has more.
        is_certain: bool ``[rows]``; elsewhere the layout has to be bound to know.
    """

    tokens: Ints
    takes_rest: bool
    is_certain: NDArray[np.bool_]


def column_depths(layout: ast.Layout) -> dict[str, int]:
    """Give how deeply the lists of each column of a layout are nested.

    >>> from dcp_dsl.syntax.parser import parse
    >>> layout = parse("segment p = doc(head[h] body[b]*)* tail[t]").statements[0].source
    >>> column_depths(layout)
    {'h': 1, 'b': 2, 't': 0}
    """
    return {
        name: depth
        for leaf, depth in _leaves(layout.parts, 0)
        if leaf.length is not None
        for name in layout_columns(ast.Layout((leaf,)))
    }


def _leaves(parts: tuple[ast.Leaf | ast.Group, ...], depth: int) -> Iterator[tuple[ast.Leaf, int]]:
    """Give the leaves of a layout with the nesting of the lists they read."""
    for part in parts:
        inner = depth + part.is_repeated
        if isinstance(part, ast.Group):
            yield from _leaves(part.parts, inner)
        else:
            yield part, inner


def measure_layout(
    layout: ast.Layout, columns: Mapping[str, NestedColumn], num_rows: int
) -> LayoutTotals:
    """Add up the parts of a layout for every row of a batch; O(integers), no Python per row.

    Args:
        layout: its source.
        columns: those of the layout, nested as `column_depths` says.
        num_rows: rows of the batch.
    """
    tokens = np.zeros(num_rows, np.int64)
    is_certain = np.ones(num_rows, np.bool_)
    takes_rest = False
    for leaf, depth in _leaves(layout.parts, 0):
        match leaf.length:
            case None:
                takes_rest = True
                is_certain &= depth == 0
            case ast.Name(name) if name != "len":
                column = columns[name]
                tokens += column.row_sums()
                is_certain &= (column.row_sums(column.values < 0) == 0) & ~column.has_null
            case ast.Number(value) if depth == 0:
                tokens += value
            case _:
                is_certain[:] = False
    for names in _groups(layout.parts):
        is_certain &= _have_equal_sizes([columns[n] for n in names[1]], names[0], num_rows)
    return LayoutTotals(tokens, takes_rest, is_certain)


def _groups(
    parts: tuple[ast.Leaf | ast.Group, ...], depth: int = 0
) -> Iterator[tuple[int, list[str]]]:
    """Give (depth, columns) of every repeated group."""
    for part in parts:
        if isinstance(part, ast.Group):
            if part.is_repeated:
                yield depth, layout_columns(part)
            yield from _groups(part.parts, depth + part.is_repeated)


def _have_equal_sizes(columns: list[NestedColumn], level: int, num_rows: int) -> NDArray[np.bool_]:
    """Whether the lists of a repeated group have equally many elements, row by row."""
    result = np.ones(num_rows, np.bool_)
    if not columns:
        return result
    first = columns[0]
    for other in columns[1:]:
        counts, others = (np.diff(c.offsets[level]) for c in (first, other))
        if level == 0:
            result &= counts == others
        elif np.array_equal(first.bounds(level), other.bounds(level)):
            unequal = np.concatenate([[0], np.cumsum(counts != others)])
            bounds = first.bounds(level)
            result &= unequal[bounds[1:]] == unequal[bounds[:-1]]
        else:
            result[:] = False  # already found unequal outside; not worth telling rows apart
    return result
