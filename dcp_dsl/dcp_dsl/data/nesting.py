"""Hold columns of lists as flat arrays, and compute the length that a layout gives each row.

A batch of rows needs no Python object per row. Some rows cannot be added up here: those with
lengths below 0, with lists of different sizes in a repeated group, or with arithmetic in a layout.
The layout binder takes those, row by row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Bools, Ints
from dcp_dsl.elaboration.programs import layout_columns, parent_columns
from dcp_dsl.errors import MAX_TOKENS, DatasetError
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.trees import column_name, walk_parts

ANY_DEPTH = -1
_SHAPES = {
    ANY_DEPTH: "integers", 0: "one integer per row", 1: "a list of integers per row",
    2: "lists of lists per row",
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class NestedColumn:
    """A column of integers, of lists, or of lists of lists.

    Attributes:
        values: int64, all integers of the batch in order; 0 for those that are missing or do not
            fit.
        offsets: per level of lists, from the outside; int64 ``[items + 1]``: item i of a level
            holds the items ``offsets[i]:offsets[i + 1]`` of the next. Empty for plain integers.
        has_null: bool ``[rows]``, rows where the column or anything in it is missing or does not
            fit into int64.
    """

    values: Ints
    offsets: tuple[Ints, ...]
    has_null: Bools

    @property
    def depth(self) -> int:
        """Levels of lists."""
        return len(self.offsets)

    @property
    def num_rows(self) -> int:
        """Rows of the batch."""
        return len(self.has_null)

    def bounds(self, level: int) -> Ints:
        """Return where the items of each row begin on a level, int64 ``[rows + 1]``.

        Level 0 is the rows themselves; row i has the items ``bounds[i]:bounds[i + 1]``.
        """
        bounds = np.arange(self.num_rows + 1)
        for offsets in self.offsets[:level]:
            bounds = offsets[bounds]
        return bounds

    def row_sums(self, values: "NDArray[Any]", level: int | None = None) -> Ints:
        """Add up a number per item of a level, by default per integer, for each row."""
        # Differences of prefix sums, because `np.add.reduceat` has no empty ranges.
        total = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
        bounds = self.bounds(self.depth if level is None else level)
        sums: Ints = total[bounds[1:]] - total[bounds[:-1]]
        return sums

    def row_lists(self, row: int) -> Any:  # Any: an integer or nested lists of them
        """Return the value of one row as a Python object."""
        return self._item(row, 0)

    def _item(self, item: int, level: int) -> Any:  # Any: as above
        if level == self.depth:
            return int(self.values[item])
        first, last = self.offsets[level][item : item + 2].tolist()
        if level == self.depth - 1:
            return self.values[first:last].tolist()
        return [self._item(i, level + 1) for i in range(first, last)]


def column_depth(kind: Any) -> int | None:  # Any: the stubs know no common type of lists
    """Count the lists nested in a type; None if they hold no integers."""
    import pyarrow as pa

    depth = 0
    while is_list(kind):
        kind, depth = kind.value_type, depth + 1
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return depth
    return depth if pa.types.is_null(kind) else None  # of a column without values, or empty lists


def require_depth(
    kind: Any,  # Any: a pyarrow type
    depth: int,
    *,
    source: str,
    column: str,
    mask_column: str,
    reader: str,
) -> None:
    """Check that a column holds integers in lists nested as deep as its reader needs."""
    found = column_depth(kind)
    if found is None or depth not in (found, ANY_DEPTH):
        wanted = _SHAPES.get(depth, f"lists nested {depth} deep per row")
        raise DatasetError(
            f"{source}: column `{column}` holds {kind}, but {reader} reads {wanted} from it; mend "
            f"the column, or name another one with `with {column_name(mask_column)} = ...`"
        )


def is_list(kind: Any) -> bool:  # Any: as above
    """Return whether a pyarrow type is one of its kinds of lists."""
    import pyarrow as pa

    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def flatten_column(column: Any) -> NestedColumn:  # Any: a ChunkedArray of any type
    """Take apart a column of integers, or of nested lists of integers.

    The type must have a `column_depth`.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    array = column.combine_chunks()
    has_null = np.zeros(len(array), np.bool_)
    array = _fitting(array)
    # Nulls of each level, the rows first. Arrow leaves out the items of lists that are null.
    missing = [_nulls(array)]
    offsets: list[Ints] = []
    while is_list(array.type):
        sizes = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
        offsets.append(np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]))
        array = _fitting(pc.list_flatten(array))
        missing.append(_nulls(array))
    # First cast, then fill: booleans, and columns of nothing but nulls, take no 0.
    integers = array.cast(pa.int64(), safe=False)
    filled = integers.fill_null(0) if integers.null_count else integers
    values = filled.to_numpy(zero_copy_only=False)
    found = NestedColumn(values, tuple(offsets), has_null)
    for level, nulls in enumerate(missing):
        if nulls is not None:
            has_null |= found.row_sums(nulls, level) > 0
    return found


def _fitting(array: Any) -> Any:  # Any: an Array of any type
    """Replace integers beyond int64 by nulls, which refuses their rows like missing values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_uint64(array.type):
        return array
    return pc.if_else(pc.less(array, pa.scalar(2**63, pa.uint64())), array, None)


def _nulls(array: Any) -> Bools | None:  # Any: an Array of any type
    return array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None


@dataclass(frozen=True, slots=True, eq=False)
class LayoutTotals:
    """Tokens of each row of a batch by one layout.

    Attributes:
        tokens: int64 ``[rows]``, without those of `[..]`.
        takes_rest: whether a part `[..]` takes the tokens that remain.
        is_certain: bool ``[rows]``; where it is False, only the layout binder knows.
    """

    tokens: Ints
    takes_rest: bool
    is_certain: Bools


def measure_layout(
    layout: ast.Layout, columns: Mapping[str, NestedColumn], num_rows: int
) -> LayoutTotals:
    """Add up the parts of a layout for every row of a batch; O(integers), no Python per row."""
    tokens = np.zeros(num_rows, np.int64)
    is_certain = np.ones(num_rows, np.bool_)
    takes_rest = False
    # Parts, groups before the parts inside them; a part adds the integers of its column.
    for part, _, outside, _ in walk_parts(layout.parts):
        depth = outside + part.is_repeated
        if isinstance(part, ast.Group):
            if part.is_repeated:
                group_columns = [columns[name] for name in layout_columns(part)]
                is_certain &= _have_equal_sizes(group_columns, outside, num_rows)
            continue
        match part.length:
            case None:
                takes_rest = True  # once per row: the checker refuses `[..]` in repeated groups
            case ast.Name(name) if name != "len":
                column = columns[name]
                # Clipped: a sum of larger numbers may wrap around. Those rows are not certain.
                sizes = np.clip(column.values, -1, MAX_TOKENS + 1)
                tokens += column.row_sums(sizes)
                is_odd = (sizes < 0) | (sizes > MAX_TOKENS)
                is_certain &= (column.row_sums(is_odd) == 0) & ~column.has_null
            case ast.Number(value) if depth == 0:
                tokens += value
            case _:
                is_certain[:] = False
    if parent_columns(layout):  # only the binder checks that they make a tree
        is_certain[:] = False
    return LayoutTotals(tokens, takes_rest, is_certain)


def _have_equal_sizes(columns: list[NestedColumn], level: int, num_rows: int) -> Bools:
    """Return whether the lists of a repeated group have equally many elements, row by row."""
    result = np.ones(num_rows, np.bool_)
    for first, other in pairwise(columns):
        counts, others = (np.diff(c.offsets[level]) for c in (first, other))
        if level == 0:
            result &= counts == others
        elif np.array_equal(first.bounds(level), other.bounds(level)):
            result &= first.row_sums(counts != others, level) == 0
        else:
            result[:] = False  # already unequal outside, in some row: leave all to the binder
    return result
