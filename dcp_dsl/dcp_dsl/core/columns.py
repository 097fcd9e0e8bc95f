"""Read and check the columns of a sample.

Layouts read lengths; `segment` statements without a layout read a column that names the instances
itself; masks read numbers of the row, of tokens and of instances.
"""

import array as arrays
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_dsl.checks.constants import ARITHMETIC
from dcp_dsl.core.instances import Instances
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.programs import layout_columns, show_segment
from dcp_dsl.errors import DatasetError, list_names
from dcp_dsl.symbolic.piecewise import MAX_VALUE
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.trees import walk

Column: TypeAlias = Any  # Any: an integer, a list of them, a list of such lists; checked on use


def _smallest(value: Column) -> int:
    """Return the smallest integer in a column; 0 without any."""
    if hasattr(value, "__len__") and not isinstance(value, str | bytes):
        return min(map(_smallest, value), default=0)
    return int(value) if isinstance(value, int | np.integer) else 0


MAX_BYTE = 255  # flags and ids up to it are read in half of the time


@dataclass(slots=True)
class LayoutColumns:
    """Reads and checks the columns of one statement on one sample of `length` tokens."""

    statement: ast.Segment
    columns: Mapping[str, Column]
    length: int

    def fail(self, message: str) -> NoReturn:
        """Raise an error about the columns of the statement."""
        raise DatasetError(f"segment `{self.statement.name.text}`: {message}")

    def column(self, name: str, row: Mapping[str, Column]) -> Column:
        """Return a column of a row: the sample, or one repetition of a group."""
        if name not in row:
            known = list_names(sorted(self.columns), "none")
            segment = self.statement.name.text
            raise DatasetError(
                f"segment `{segment}` needs the column `{name}`; the sample has {known}"
            )
        return row[name]

    def lengths(self, name: str, value: Column) -> Ints:
        """Check a column to be a list of lengths."""
        array = self.integers(name, value)
        if array.size and array.min() < 0:
            self.fail(f"column `{name}` has the negative length {array.min()}")
        if array.size and int(array.max()) > self.length:
            self.fail(
                f"column `{name}` has a part of {array.max()} tokens, the sample only {self.length}"
            )
        return array

    def integers(self, name: str, value: Column) -> Ints:
        """Check a column to be a list of integers."""
        is_flat = hasattr(value, "__len__") and not any(hasattr(v, "__len__") for v in value)
        array = np.asarray(value) if is_flat else None
        if array is None or array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            self.fail(f"expected column `{name}` to be a list of integers, got {_shorten(value)}")
        return array.astype(np.int64)

    def arithmetic(self, value: ast.Expr, row: Mapping[str, Column]) -> int:
        """Evaluate the length of a part that is not repeated."""
        result = self._number(value, row)
        if 0 <= result <= self.length:
            return result
        names = dict.fromkeys(n.text for n in walk(value) if isinstance(n, ast.Name))
        said = ", ".join(f"{name} = {row[name]}" for name in names if name != "len")
        where = f" ({said})" if said else ""
        if result < 0:
            message = f"a part would have {result} tokens; expected at least 0, mend the column"
            self.fail(f"{message}{where}")
        self._refuse_negative()
        self.fail(f"a part would have {result} tokens, the sample has {self.length}{where}")

    def _refuse_negative(self) -> None:
        """Raise an error for a negative length: it makes the sum of all parts too small."""
        layout = self.statement.source
        assert isinstance(layout, ast.Layout), "columns of a layout"
        for part in walk(layout):
            if isinstance(part, ast.Leaf) and isinstance(part.length, ast.Name):
                name = part.length.text
                smallest = _smallest(self.columns.get(name))
                if smallest < 0:
                    self.fail(f"column `{name}` has the negative length {smallest}")

    def _number(self, value: ast.Expr, row: Mapping[str, Column]) -> int:
        match value:
            case ast.Number(number):
                return number
            case ast.Name("len"):
                return self.length
            case ast.Name(name):
                found = self.column(name, row)
                if isinstance(found, bool) or not isinstance(found, int | np.integer):
                    self.fail(
                        f"expected column `{name}` to be one integer, got {_shorten(found)}; "
                        f"a list of lengths needs a `*` behind its part"
                    )
                return int(found)
            case ast.Sign(op, inner):
                return -self._number(inner, row) if op == "-" else self._number(inner, row)
            case ast.Binary(op, left, right):
                a, b = self._number(left, row), self._number(right, row)
                if op in ("//", "%") and b == 0:
                    self.fail("a length divides by zero")
                return ARITHMETIC[op](a, b)
        raise AssertionError(f"checked: no {type(value).__name__} in a length")

    def repetitions(self, group: ast.Group, row: Mapping[str, Column]) -> tuple[int, int | None]:
        """Count the repetitions of a group, and parts of the last one if it ends early, else None.

        Columns have one element per repetition; those of missing parts are one element short.
        """
        sizes: dict[str, int] = {}
        for name in layout_columns(group):
            value = self.column(name, row)
            if isinstance(value, int | np.integer | str | bytes) or not hasattr(value, "__len__"):
                self.fail(
                    f"column `{name}` stands in a repeated group, so it needs one element per "
                    f"repetition, got {_shorten(value)}"
                )
            sizes[name] = len(value)
        count = max(sizes.values(), default=0)
        if all(size == count for size in sizes.values()):
            return count, None
        # The last repetition ends early if all columns from some part on, but not from the first,
        # are one element short.
        short = [any(sizes[c] < count for c in _part_columns(part)) for part in group.parts]
        first = short.index(True)  # sizes differ, so some part is short
        late = [c for part in group.parts[first:] for c in _part_columns(part)]
        if first and all(sizes[c] == count - 1 for c in late):
            return count, first
        shown = ", ".join(f"`{n}` {s}" for n, s in sizes.items())
        self.fail(
            f"the columns of a repeated group must have equally many elements, got {shown}; only "
            f"the last repetition may lack its last parts"
        )

    def parents(
        self, name: str, row: Mapping[str, Column], size: int, *, is_forked: bool = False
    ) -> Ints:
        """Check a column to hold the parents of so many branches, int64 ``[size]``.

        Tokens, if they are forks, are checked where the positions of the branches are known.
        """
        parents = self.integers(name, self.column(name, row))
        if len(parents) != size:
            what = "forks" if is_forked else "parents"
            self.fail(f"column `{name}` has {len(parents)} {what} for {size} branches")
        if is_forked:
            return parents
        wrong = np.flatnonzero((parents < -1) | (parents >= np.arange(size)))
        if len(wrong):
            at = wrong[0]
            self.fail(
                f"column `{name}`: branch {at} goes on from {parents[at]}; expected an earlier "
                f"branch, or -1 for the place where the part stands"
            )
        return parents


def _part_columns(part: ast.Leaf | ast.Group) -> tuple[str, ...]:
    """Return the columns that one part reads."""
    return layout_columns(ast.Layout((part,)))


def _shorten(value: Column) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def bind_columns(
    segment: ast.Segment, source: ast.Columns, columns: Mapping[str, Column], length: int
) -> dict[str, Instances]:
    """Return the instances of a segment that a column spells out, and of the names behind `as`.

    `ids`: one integer per token; tokens of equal ids are one instance with that number, -1 is
    outside. Each name behind `as` stands for the stretches of one id (0, 1, ...), numbered from 0.
    `spans`: a list of ``[start, end)`` that do not overlap. `flags`: one 0 or 1 per token; each
    stretch of ones is an instance. `positions`: one position id per token; an instance begins
    wherever it does not continue the token before.
    """
    name, column = segment.name.text, source.column.text
    value = LayoutColumns(segment, columns, length).column(column, columns)
    where = f"segment `{name}`, column `{column}`"
    if source.kind.text == "spans":
        return {name: _spans(value, length, where)}
    values = integers(value, (length,), where)
    match source.kind.text:
        case "ids":
            return _ids(segment, source, values, where)
        case "flags":
            odd = values[(values != 0) & (values != 1)]
            if len(odd):
                raise DatasetError(f"{where}: expected flags 0 and 1, got {odd[0]}")
            # flags 0 on both sides close stretches that reach the first or the last token
            edges = np.diff(values, prepend=0, append=0)
            return {name: Instances.of(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1))}
        case "positions":
            # the first token differs by 0, not by 1, from itself: it always begins an instance
            begin = np.flatnonzero(np.diff(values, prepend=values[:1]) != 1)
            return {name: Instances.of(begin, np.append(begin[1:], length)[: len(begin)])}
    raise AssertionError(f"checked: {source.kind.text} is a kind of column")


def integers(value: Column, shape: tuple[int, ...], where: str, of: str = "token") -> Ints:
    """Check a column to hold one integer, or one list of so many, per token or instance.

    `shape` is how many of these, and how many integers in each list; `where` and `of` are for
    messages.
    """
    try:
        array = _quickly(value, shape)
        array = np.asarray(value) if array is None else array
    except (ValueError, OverflowError):  # lists of unequal sizes
        array = np.empty(0, object)
    if array.dtype.kind == "f" and array.shape == shape:  # int64 and uint64 mixed
        array = np.array(value, object)
    if array.size == 0 and shape[0] == 0:
        return np.empty(shape, np.int64)
    is_like = array.shape == shape and array.dtype.kind in "iuO"
    if is_like and (array.max() > MAX_VALUE or array.min() < -MAX_VALUE):
        raise DatasetError(f"{where}: values beyond {MAX_VALUE:_} are not supported")
    if array.shape != shape or array.dtype.kind not in "iu":
        got = f"an array of shape {array.shape}" if array.dtype.kind in "iu" else "something else"
        lists = "" if len(shape) == 1 else f"lists of {shape[1]} "
        raise DatasetError(f"{where}: expected {shape[0]} {lists}integers, one per {of}, got {got}")
    return array.astype(np.int64, copy=False)


def _quickly(value: Column, shape: tuple[int, ...]) -> Ints | None:
    """Return a list of integers, or of lists of them, as an array; None for everything else.

    That takes half of the time of `np.asarray` for integers, a third for lists.
    """
    if not isinstance(value, list) or not value or len(value) != shape[0]:
        return None
    found = arrays.array("q")
    try:
        if len(shape) == 1:
            if type(value[0]) is not int:  # a list of truths is none of integers
                return None
            if 0 <= value[0] <= MAX_BYTE and 0 <= value[-1] <= MAX_BYTE:
                with suppress(ValueError):
                    return np.frombuffer(bytes(value), np.uint8).astype(np.int64)
            found.fromlist(value)
        else:
            if type(value[0]) is not list or any(type(v) is not int for v in value[0][:1]):
                return None
            deque(map(found.fromlist, value), maxlen=0)
            if set(map(len, value)) != {shape[1]}:
                return None
    except (TypeError, OverflowError):
        return None
    return np.frombuffer(found, np.int64).reshape(shape)


def lists_of(values: Ints, where: str) -> Ints:
    """Sort every list and replace its repeated numbers by -1, which stands for no number."""
    if (values < -1).any():
        raise DatasetError(f"{where}: expected numbers from 0, or -1 for none, got {values.min()}")
    # equal numbers stand side by side after the sort
    found = np.sort(values, axis=1)
    found[:, 1:][found[:, 1:] == found[:, :-1]] = -1
    return found


def read_row(name: str, columns: Mapping[str, Column]) -> int:
    """Return the integer of a column for the whole sample."""
    if name not in columns:
        raise DatasetError(f"the mask reads `row.{name}`, but the sample has no column `{name}`")
    value = columns[name]
    if not isinstance(value, int):
        raise DatasetError(f"`row.{name}`: expected one integer, got {str(value)[:60]}")
    if abs(value) > MAX_VALUE:
        raise DatasetError(f"`row.{name}`: values beyond {MAX_VALUE:_} are not supported")
    return value


def read_tokens(
    node: nodes.TokenColumn, columns: Mapping[str, Column], num_tokens: int
) -> tuple[Instances, Ints]:
    """Return stretches of tokens with equal values of a column, and their values."""
    where = f"token column `{node.column}`"
    values = _values(node, columns, num_tokens, where, "token")
    is_new = np.ones(num_tokens, np.bool_)
    differs = values[1:] != values[:-1]
    is_new[1:] = differs if node.size is None else differs.any(axis=1)
    starts = np.flatnonzero(is_new)
    return Instances.of(starts, np.append(starts[1:], num_tokens)), values[starts]


def read_instances(node: nodes.TokenColumn, columns: Mapping[str, Column], own: Instances) -> Ints:
    """Return the value of a column for each instance of its segment."""
    assert node.segment is not None, "the column has a value per instance"
    # Stretches of one id share the value of that id: the column has one value per id.
    which = own.number if own.num_ids is not None else np.arange(len(own))
    count = len(own) if own.num_ids is None else own.num_ids
    where = f"column `{node.column}`"
    return _values(node, columns, count, where, show_segment(node.segment))[which]


def _values(
    node: nodes.TokenColumn, columns: Mapping[str, Column], count: int, where: str, of: str
) -> Ints:
    """Return the integers of a column, or its lists sorted; one for each thing that `of` names."""
    if node.column not in columns:
        raise DatasetError(f"{where}: the sample does not have it")
    size = () if node.size is None else (node.size,)
    value = columns[node.column]
    if node.segment is not None:
        value = flat_column(value, len(size))
    values = integers(value, (count, *size), where, of)
    return lists_of(values, where) if size else values


def flat_column(value: Column, depth: int) -> Column:
    """Join the lists of a column that nests as its segment does into one, of a value per instance.

    `depth` is that of a single value: 0 for an integer, 1 for a list.
    """
    for _ in range(_depth(value) - depth - 1):
        value = [
            item for inner in value for item in (inner if isinstance(inner, list) else [inner])
        ]
    return value


def _depth(value: Column) -> int:
    """Count the lists around the integers of a column; some of them may be empty."""
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0


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
    # No id is -2, so a stretch begins at the first token, too.
    begin = np.flatnonzero(np.diff(values, prepend=-2))
    end = np.append(begin[1:], len(values))[: len(begin)]
    inside = values[begin] >= 0
    begin, end = begin[inside], end[inside]
    number = values[begin]
    # Named ids exist also where a sample has no token of theirs, so that `count` is their number.
    total = len(source.names) or int(number.max(initial=-1)) + 1
    flat = np.zeros(len(begin), np.int64)
    found = {segment.name.text: Instances(begin, end, number, flat + total, flat, num_ids=total)}
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
