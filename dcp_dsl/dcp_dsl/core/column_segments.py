"""Find the instances of segments that a column spells out, as `ids(c)` and `flags(c)` do."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Ints
from dcp_dsl.core.instances import Instances
from dcp_dsl.core.layout_columns import Column
from dcp_dsl.errors import DatasetError
from dcp_dsl.symbolic.piecewise import MAX_VALUE
from dcp_dsl.syntax import ast


def bind_columns(
    segment: ast.Segment, source: ast.Columns, columns: Mapping[str, Column], length: int
) -> dict[str, Instances]:
    """Return the instances of a segment that a column spells out, and of the names behind `as`.

    `ids`: one integer per token; tokens of equal ids are one instance with that number, -1 is
    outside. Each name behind `as` stands for the stretches of one id (0, 1, ...), numbered from 0.
    `spans`: a list of ``[start, end)`` that do not overlap. `flags`: one 0 or 1 per token; each
    stretch of ones is an instance. `positions`: one position id per token; an instance begins
    wherever it does not continue the token before.

    Raises:
        DatasetError: if the column is missing or holds something else.
    """
    name, column = segment.name.text, source.column.text
    if column not in columns:
        known = ", ".join(f"`{c}`" for c in sorted(columns)) or "none"
        raise DatasetError(f"segment `{name}` needs the column `{column}`; the sample has {known}")
    where = f"segment `{name}`, column `{column}`"
    if source.kind.text == "spans":
        return {name: _spans(columns[column], length, where)}
    values = integers(columns[column], (length,), where)
    match source.kind.text:
        case "ids":
            return _ids(segment, source, values, where)
        case "flags":
            if ((values != 0) & (values != 1)).any():
                raise DatasetError(f"{where}: expected flags 0 and 1, got {_odd(values)}")
            return {name: Instances.of(*_stretches(values == 1))}
        case "positions":
            begin = np.flatnonzero(np.diff(values, prepend=values[:1]) != 1)
            return {name: Instances.of(begin, np.append(begin[1:], length)[: len(begin)])}
    raise AssertionError(f"checked: {source.kind.text} is a kind of column")


def integers(value: Column, shape: tuple[int, ...], where: str, of: str = "token") -> Ints:
    """Check a column to hold one integer, or one list of so many, per token or instance.

    Args:
        value: the column.
        shape: how many tokens or instances, and how many integers in each list of lists.
        where: the column, for messages.
        of: what has a value each, for messages.

    Raises:
        DatasetError: if it does not.
    """
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):  # lists of unequal sizes
        array = np.empty(0, object)
    if array.dtype.kind == "f" and array.shape == shape:  # integers beyond uint64
        array = np.array(value, object)
    if array.size == 0 and shape[0] == 0:
        return np.empty(shape, np.int64)
    if array.shape == shape and array.dtype.kind in "iuO" and is_too_large(array):
        raise DatasetError(f"{where}: values beyond {MAX_VALUE:_} are not supported")
    if array.shape != shape or array.dtype.kind not in "iu":
        got = f"an array of shape {array.shape}" if array.dtype.kind in "iu" else "something else"
        lists = "" if len(shape) == 1 else f"lists of {shape[1]} "
        raise DatasetError(f"{where}: expected {shape[0]} {lists}integers, one per {of}, got {got}")
    return array.astype(np.int64)


def lists_of(values: Ints, where: str) -> Ints:
    """Return every list rising and each number once, with -1 for none.

    Raises:
        DatasetError: for numbers below -1.
    """
    if (values < -1).any():
        raise DatasetError(f"{where}: expected numbers from 0, or -1 for none, got {values.min()}")
    found = np.sort(values, axis=1)
    found[:, 1:][found[:, 1:] == found[:, :-1]] = -1
    return found


def flat_column(value: Column, depth: int) -> Column:
    """Return a column that nests as the instances of its segment do as one list of their values.

    Args:
        value: the column.
        depth: of the lists that a value is: 0 for an integer.
    """
    while isinstance(value, list) and _depth(value) > depth + 1:
        value = [
            item for inner in value for item in (inner if isinstance(inner, list) else [inner])
        ]
    return value


def _depth(value: Column) -> int:
    """Return how many lists stand around the first integer of a column."""
    depth = 0
    while isinstance(value, list):
        depth, value = depth + 1, next((inner for inner in value if inner != []), 0)
    return depth


def is_too_large(array: NDArray[Any]) -> bool:  # Any: integers of every size
    """Return whether one of the integers leaves the range that is computed with."""
    return bool(array.max() > MAX_VALUE or array.min() < -MAX_VALUE)


def _ids(
    segment: ast.Segment, source: ast.Columns, values: Ints, where: str
) -> dict[str, Instances]:
    if (values < -1).any() or (values >= 2**31).any():
        raise DatasetError(
            f"{where}: expected ids from 0 (or -1 for no segment), got {values.min()} to "
            f"{values.max()}"
        )
    if source.names and (values >= len(source.names)).any():
        shown = ", ".join(f"{i} = `{n.text}`" for i, n in enumerate(source.names))
        raise DatasetError(f"{where}: id {values.max()} has no name ({shown})")
    begin = np.flatnonzero(np.diff(values, prepend=-2))
    end = np.append(begin[1:], len(values))[: len(begin)]
    inside = values[begin] >= 0
    begin, end = begin[inside], end[inside]
    number = values[begin]
    total = len(source.names) or int(number.max(initial=-1)) + 1
    flat = np.zeros(len(begin), np.int64)
    found = {
        segment.name.text: Instances(begin, end, number, flat + total, flat, is_named=True),
    }
    for which, ident in enumerate(source.names):
        own = number == which
        found[ident.text] = Instances.of(begin[own], end[own])
    return found


def _spans(value: Column, length: int, where: str) -> Instances:
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):  # lists of unequal sizes
        array = np.empty(0, object)
    if array.size == 0 and array.dtype != object:
        return Instances.of(np.empty(0, np.int64), np.empty(0, np.int64))
    if array.ndim != 2 or array.shape[1] != 2 or array.dtype.kind not in "iu":
        raise DatasetError(f"{where}: expected a list of [start, end] pairs, got {str(value)[:60]}")
    array = array.astype(np.int64)
    start, end = array[np.lexsort((array[:, 1], array[:, 0]))].T
    wrong = np.flatnonzero((start < 0) | (end < start) | (end > length))
    if len(wrong):
        at = wrong[0]
        raise DatasetError(
            f"{where}: expected 0 <= start <= end <= {length}, got [{start[at]}, {end[at]}]"
        )
    overlap = np.flatnonzero(start[1:] < end[:-1])
    if len(overlap):
        at = overlap[0]
        raise DatasetError(
            f"{where}: the spans [{start[at]}, {end[at]}] and [{start[at + 1]}, {end[at + 1]}] "
            f"overlap; a token lies in one span at most"
        )
    return Instances.of(start, end)


def _stretches(inside: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> tuple[Ints, Ints]:
    edges = np.diff(np.concatenate([[0], inside.astype(np.int8), [0]]))
    return np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)


def _odd(values: Ints) -> int:
    return int(values[(values != 0) & (values != 1)][0])
