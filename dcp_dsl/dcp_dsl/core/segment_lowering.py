"""Find the instances of the segments that a mask speaks of, in the coordinates of its place.

Segments that a column spells out (`ids(c)`, `spans(c)`, `flags(c)`, `positions(c)`) are turned into
stretches of tokens once; everything behind that works on borders.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Ints
from dcp_dsl.core.environment import Closure, Env, Frame
from dcp_dsl.core.instances import Instances, tile
from dcp_dsl.core.layout import Column, bind_layout
from dcp_dsl.errors import DatasetError
from dcp_dsl.symbolic.piecewise import MAX_VALUE
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.ast import Span

KINDS = ("ids", "spans", "flags", "positions")


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
    values = per_token_values(columns[column], length, where)
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


def per_token_values(value: Column, length: int, where: str) -> Ints:
    """Check a column to hold one integer per token.

    Raises:
        DatasetError: if it does not.
    """
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):  # lists of unequal sizes
        array = np.empty(0, object)
    if array.dtype.kind == "f" and array.shape == (length,):  # integers beyond uint64
        array = np.array(value, object)
    if array.size == 0 and length == 0:
        return np.empty(0, np.int64)
    if array.shape == (length,) and array.dtype.kind in "iuO" and is_too_large(array):
        raise DatasetError(f"{where}: values beyond {MAX_VALUE:_} are not supported")
    if array.shape != (length,) or array.dtype.kind not in "iu":
        got = f"an array of shape {array.shape}" if array.dtype.kind in "iu" else "something else"
        raise DatasetError(f"{where}: expected {length} integers, one per token, got {got}")
    return array.astype(np.int64)


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


@dataclass(frozen=True, slots=True, eq=False)
class SegmentLowering:
    """Evaluates segments in one frame."""

    frame: Frame

    @property
    def n(self) -> int:
        """Tokens of the sample."""
        return self.frame.num_tokens

    @abstractmethod
    def constant(self, value: ast.Expr, env: Env) -> int:
        """Evaluate a number that depends on no position."""

    def instances(self, value: ast.Expr, env: Env) -> Instances:
        """Evaluate a segment: by name, or `first(S, m)`, `last(S, m)`."""
        if isinstance(value, ast.Name):
            return self.segment(value.text, env, value.span)
        assert isinstance(value, ast.Call), "checked: a segment is a name or a call"
        instances = self.instances(value.arguments[0].value, env)
        how_many = 1 if len(value.arguments) < 2 else self.constant(value.arguments[1].value, env)
        is_first = value.name.text == "first"
        return instances.first(how_many) if is_first else instances.last(how_many)

    def segment(self, name: str, env: Env, span: Span) -> Instances:
        """Return the instances of a segment by name."""
        local = env.names.get(name)
        if isinstance(local, Closure):
            assert isinstance(local.value, ast.Every), "checked: the name is a segment"
            return self.tiles(local.value, local.env)
        statement = env.scope.segments[name]
        if isinstance(statement.source, ast.Every):
            return self.tiles(statement.source, Env(env.scope, env.scope.program))
        return _bind(statement, (id(env.scope), statement.name.text), self.frame)[name]

    def tiles(self, every: ast.Every, env: Env) -> Instances:
        """Return the tiles of an `every`."""
        size = self.constant(every.size, env)
        if size < 1:
            env.fail(
                "E111", f"`every {size}` makes no tiles", every.size.span,
                "the size of a tile is at least 1 token",
            )  # fmt: skip
        if every.parent is None:
            return tile(size, self.frame.cells.as_parents())
        return tile(size, self.segment(every.parent.text, env, every.parent.span))


def _bind(statement: ast.Segment, key: tuple[int, str], frame: Frame) -> dict[str, Instances]:
    """Find the instances of all names of a statement, once; inside `per` cut to each instance."""
    if key not in frame.segments:
        if frame.outer is None:
            frame.segments[key] = _find(statement, frame)
        else:
            around = _bind(statement, key, frame.outer)
            frame.segments[key] = {
                name: found.clip(frame.cells, frame.outer.cells) for name, found in around.items()
            }
    return frame.segments[key]


def _find(statement: ast.Segment, frame: Frame) -> dict[str, Instances]:
    match statement.source:
        case ast.Layout() as layout:
            return bind_layout(statement, layout, frame.columns, frame.num_tokens)
        case ast.Columns() as source:
            return bind_columns(statement, source, frame.columns, frame.num_tokens)
    raise AssertionError("tiles are found where they are used")
