"""Columns of lists as flat arrays: what a batch of rows holds, without a Python object per row."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Ints


@dataclass(frozen=True, slots=True, eq=False)
class NestedColumn:
    """A column of integers, of lists, or of lists of lists.

    Attributes:
        values: int64, all integers of the batch behind one another; 0 where one is missing.
        offsets: per level of lists, from the outside; int64 ``[items + 1]``: item i of a level
            holds the items ``offsets[i]:offsets[i + 1]`` of the next. Empty for plain integers.
        has_null: bool ``[rows]``, rows where the column or anything in it is missing.
    """

    values: Ints
    offsets: tuple[Ints, ...]
    has_null: NDArray[np.bool_]

    @property
    def depth(self) -> int:
        """Levels of lists."""
        return len(self.offsets)

    @property
    def num_rows(self) -> int:
        """Rows of the batch."""
        return len(self.has_null)

    def bounds(self, level: int) -> Ints:
        """Give which items of a level belong to each row, as int64 ``[rows + 1]``; 0 is the row."""
        bounds = np.arange(self.num_rows + 1)
        for offsets in self.offsets[:level]:
            bounds = offsets[bounds]
        return bounds

    def row_sums(self, values: "NDArray[Any] | None" = None) -> Ints:
        """Add up per row the integers of the column, or other values of the same size."""
        chosen = self.values if values is None else values
        total = np.concatenate([[0], np.cumsum(chosen, dtype=np.int64)])
        bounds = self.bounds(self.depth)
        result: Ints = total[bounds[1:]] - total[bounds[:-1]]
        return result

    def row_lists(self, row: int) -> Any:  # Any: an integer or nested lists of them
        """Give the value of one row as a Python object."""
        return self._item(row, 0)

    def _item(self, item: int, level: int) -> Any:  # Any: as above
        if level == self.depth:
            return int(self.values[item])
        first, last = self.offsets[level][item : item + 2].tolist()
        if level == self.depth - 1:
            return self.values[first:last].tolist()
        return [self._item(i, level + 1) for i in range(first, last)]


def column_depth(kind: Any) -> int | None:  # Any: the stubs know no common type of lists
    """Give how many lists are nested in a type, None if there are no integers inside.

    >>> import pyarrow as pa
    >>> column_depth(pa.list_(pa.int32())), column_depth(pa.string())
    (1, None)
    """
    import pyarrow as pa

    depth = 0
    while _is_list(kind):
        kind, depth = kind.value_type, depth + 1
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return depth
    return depth if pa.types.is_null(kind) else None


def _is_list(kind: Any) -> bool:  # Any: as above
    import pyarrow as pa

    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def flatten_column(column: Any) -> NestedColumn:  # Any: a ChunkedArray of any type
    """Take a column of integers or nested lists of them apart.

    The type must have a `column_depth`.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # what no rows combine to
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], column.type)
    rows = len(array)
    missing = [_nulls(array)]
    offsets: list[Ints] = []
    while _is_list(array.type):
        sizes = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
        offsets.append(np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]))
        array = pc.list_flatten(array)
        missing.append(_nulls(array))
    if pa.types.is_null(array.type):
        values = np.zeros(len(array), np.int64)
    else:
        filled = array.fill_null(0) if array.null_count else array
        values = filled.cast(pa.int64(), safe=False).to_numpy(zero_copy_only=False)
    return NestedColumn(values, tuple(offsets), _rows_with(missing, offsets, rows))


def _nulls(array: Any) -> "NDArray[np.bool_] | None":  # Any: an Array of any type
    return array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None


def _rows_with(
    missing: "list[NDArray[np.bool_] | None]", offsets: list[Ints], rows: int
) -> NDArray[np.bool_]:
    """Carry what is missing inside lists out to the rows."""
    found = np.zeros(rows, np.bool_)
    bounds = np.arange(rows + 1)
    for level, nulls in enumerate(missing):
        if level:
            bounds = offsets[level - 1][bounds]
        if nulls is not None:
            count = np.concatenate([[0], np.cumsum(nulls)])
            found |= count[bounds[1:]] > count[bounds[:-1]]
    return found
