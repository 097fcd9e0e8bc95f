"""Bind segments to a sample: where each instance of `question`, `answer`, `doc` begins and ends.

A layout becomes arrays of instances, never labels per token. Numbers count within the nearest named
group around a segment, else within the sample; instances without tokens count too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import ast
from dcp_dsl.columns import layout_columns, reads_length
from dcp_dsl.errors import DatasetError
from dcp_dsl.piecewise import Piecewise
from dcp_dsl.sample import MAX_TOKENS
from dcp_dsl.scope import part_names

Ints = NDArray[np.int64]

MAX_INSTANCES = 1_000_000
MAX_GROUPS = 2**16  # repetitions of groups with groups or lists inside; each is laid out alone

Column: TypeAlias = (
    Any  # Any: an integer, a list of integers or a list of such lists; checked on use
)


@dataclass(frozen=True, slots=True, eq=False)
class Instances:
    """The instances of one segment, in the order of their tokens; they never overlap.

    Attributes:
        start, end: int64 ``[I]``, tokens.
        number: int64 ``[I]``, from 0 within the parent.
        total: int64 ``[I]``, how many the parent has.
    """

    start: Ints
    end: Ints
    number: Ints
    total: Ints

    @classmethod
    def of(cls, start: Ints, end: Ints) -> "Instances":
        """Number instances that have the whole sample as their parent."""
        size = len(start)
        return cls(start, end, np.arange(size), np.full(size, size))

    def select(self, chosen: NDArray[np.bool_]) -> "Instances":
        """Give some of the instances with their numbers unchanged."""
        return Instances(
            self.start[chosen], self.end[chosen], self.number[chosen], self.total[chosen]
        )

    def filled(self) -> "Instances":
        """Give the instances that have tokens."""
        return self.select(self.end > self.start)

    def function(self, num_tokens: int, values: Ints, slope: int = 0) -> Piecewise:
        """Give ``values[i] + slope * (t - start[i])`` on instance i, undefined between them."""
        has_tokens = self.end > self.start
        start, end, values = self.start[has_tokens], self.end[has_tokens], values[has_tokens]
        before = np.concatenate([[0], end])  # a gap may follow each instance and precede the first
        has_gap = np.append(start, num_tokens) > before
        starts = np.concatenate([start, before[has_gap]])
        gap = np.zeros(int(has_gap.sum()), np.int64)
        order = np.argsort(starts, kind="stable")
        return Piecewise(
            num_tokens,
            starts[order],
            np.concatenate([values, gap])[order],
            np.concatenate([np.full(len(start), slope, np.int64), gap])[order],
            np.concatenate([np.ones(len(start), np.bool_), np.zeros(len(gap), np.bool_)])[order],
        )


def tile(size: int, parents: Instances) -> Instances:
    """Cut every parent into tiles of `size` tokens; the last one may be short."""
    lengths = parents.end - parents.start
    counts = -(-lengths // size)
    if counts.sum() > MAX_INSTANCES:
        raise DatasetError(
            f"`every {size}` makes {counts.sum():_} tiles; at most {MAX_INSTANCES:_} are supported"
        )
    parent = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(parent)) - np.repeat(np.cumsum(counts) - counts, counts)
    start = parents.start[parent] + number * size
    return Instances(start, np.minimum(start + size, parents.end[parent]), number, counts[parent])


def bind_layout(
    segment: ast.Segment, layout: ast.Layout, columns: Mapping[str, Column], length: int
) -> dict[str, Instances]:
    """Give the instances of every name of a layout.

    The statement's own name stands for the outermost parts: each repetition is an instance.

    Args:
        segment: the statement, for messages.
        layout: its source.
        columns: the sample's columns.
        length: the sample's tokens; the layout must fill them exactly.

    Raises:
        DatasetError: if a column is missing, has the wrong shape, or the lengths do not add up.
    """
    binder = _LayoutBinder(segment.name.text, columns, length)
    binder.rest = binder.find_rest(layout.parts)
    top = _Parent()
    end = binder.walk(layout.parts, 0, columns, top, is_top=True)
    top.close(binder.found)
    if end != length:
        needed = sorted(set(layout_columns(layout)))
        raise DatasetError(
            f"segment `{segment.name.text}`: the layout has {end} tokens, the sample {length}; the "
            f"lengths in {_list_names(needed)} must add up to the sample's length"
        )
    empty = np.empty(0, np.int64)
    for name in (segment.name, *_names(layout.parts)):
        binder.found.setdefault(name.text, [Instances(empty, empty, empty, empty)])
    return {name: _join(parts) for name, parts in binder.found.items()}


def natural_length(
    segment: ast.Segment, layout: ast.Layout, columns: Mapping[str, Column]
) -> int | None:
    """Give the tokens that the columns add up to; None if the layout asks for the sample's length.

    Raises:
        DatasetError: if a column is missing or has the wrong shape.
    """
    if reads_length(layout):
        return None
    binder = _LayoutBinder(segment.name.text, columns, MAX_TOKENS)
    return binder.walk(layout.parts, 0, columns, _Parent())


def _names(parts: tuple[ast.Leaf | ast.Group, ...]) -> list[ast.Ident]:
    return list(part_names(parts))


def _list_names(names: list[str]) -> str:
    return ", ".join(f"`{n}`" for n in names) if names else "the layout"


def _join(parts: list[Instances]) -> Instances:
    columns = zip(*((p.start, p.end, p.number, p.total) for p in parts), strict=True)
    return Instances(*(np.concatenate(c) for c in columns))


@dataclass(slots=True)
class _Parent:
    """Instances found so far inside one named group (or the sample), waiting for their total."""

    waiting: dict[str, list[tuple[Ints, Ints]]] = field(default_factory=dict)

    def add(self, name: str, start: Ints, end: Ints) -> None:
        self.waiting.setdefault(name, []).append((start, end))

    def close(self, found: dict[str, list[Instances]]) -> None:
        """Number what was found and hand it over."""
        for name, spans in self.waiting.items():
            starts, ends = (np.concatenate(group) for group in zip(*spans, strict=True))
            found.setdefault(name, []).append(Instances.of(starts, ends))


@dataclass(slots=True)
class _LayoutBinder:
    """Walks a layout from left to right, keeping the position in the sample."""

    segment: str
    columns: Mapping[str, Column]
    length: int
    rest: int = 0
    groups: int = 0
    found: dict[str, list[Instances]] = field(default_factory=dict)

    def find_rest(self, parts: tuple[ast.Leaf | ast.Group, ...]) -> int:
        """Give the tokens that `[..]` stands for: what the other parts leave."""
        if not any(isinstance(p, ast.Leaf) and p.length is None for p in parts):
            return 0
        used = self.walk(parts, 0, self.columns, _Parent(), is_top=True)
        self.found.clear()
        self.groups = 0
        if used > self.length:
            raise DatasetError(
                f"segment `{self.segment}`: the parts before `[..]` have {used} tokens, the sample "
                f"only {self.length}"
            )
        return self.length - used

    def walk(
        self,
        parts: tuple[ast.Leaf | ast.Group, ...],
        at: int,
        row: Mapping[str, Column],
        parent: _Parent,
        *,
        is_top: bool = False,
    ) -> int:
        """Lay parts out from position `at`; give the position behind them."""
        for part in parts:
            begin = at
            if isinstance(part, ast.Leaf):
                bounds = at + np.concatenate([[0], np.cumsum(self.leaf_lengths(part, row))])
            else:
                bounds = self.walk_group(part, at, row, parent)
            at = int(bounds[-1])
            if isinstance(part, ast.Leaf) and part.name is not None:
                parent.add(part.name.text, bounds[:-1], bounds[1:])
            if is_top:
                parent.add(self.segment, bounds[:-1], bounds[1:])
            assert at >= begin, "lengths are checked to be positive"
        return at

    def walk_group(
        self, group: ast.Group, at: int, row: Mapping[str, Column], parent: _Parent
    ) -> Ints:
        """Lay a group out; give the borders of its repetitions."""
        count = self.repetitions(group, row) if group.is_repeated else 1
        matrix = self.flat_lengths(group, row, count) if group.is_repeated else None
        if matrix is not None:
            return self.place_flat(group, at, matrix, parent)
        self.groups += count
        if self.groups > MAX_GROUPS:
            raise DatasetError(
                f"segment `{self.segment}`: nested groups repeat more than {MAX_GROUPS:_} times; "
                f"split the sample"
            )
        bounds = [at]
        names = layout_columns(group) if group.is_repeated else []
        for index in range(count):
            inner_row = {**row, **{name: row[name][index] for name in names}}
            inner = parent if group.name is None else _Parent()
            bounds.append(self.walk(group.parts, bounds[-1], inner_row, inner))
            if group.name is not None:
                inner.close(self.found)
        borders = np.array(bounds, np.int64)
        if group.name is not None:
            parent.add(group.name.text, borders[:-1], borders[1:])
        return borders

    def flat_lengths(self, group: ast.Group, row: Mapping[str, Column], count: int) -> Ints | None:
        """Give the lengths ``[repetitions, parts]`` of a group of plain leaves, else None."""
        columns = []
        for part in group.parts:
            if not isinstance(part, ast.Leaf) or part.is_repeated:
                return None
            if isinstance(part.length, ast.Name) and part.length.text != "len":
                columns.append(self.lengths(part.length.text, self.column(part.length.text, row)))
            elif isinstance(part.length, ast.Number):
                length = self.arithmetic(part.length, row) if count else 0
                columns.append(np.full(count, length))
            else:
                return None
        return np.column_stack(columns)

    def place_flat(self, group: ast.Group, at: int, matrix: Ints, parent: _Parent) -> Ints:
        """Lay all repetitions of a group of plain leaves at once."""
        bounds = at + np.concatenate([[0], np.cumsum(matrix.ravel())])
        width = matrix.shape[1]
        starts, ends = bounds[:-1].reshape(matrix.shape), bounds[1:].reshape(matrix.shape)
        if group.name is not None:
            parent.add(group.name.text, bounds[:-1:width], bounds[width::width])
        names = [part.name.text if part.name is not None else None for part in group.parts]
        for name in {n for n in names if n is not None}:
            which = [i for i, other in enumerate(names) if other == name]
            spans = starts[:, which], ends[:, which]
            if group.name is None:
                parent.add(name, spans[0].ravel(), spans[1].ravel())
                continue
            number = np.tile(np.arange(len(which)), len(matrix))
            self.found.setdefault(name, []).append(
                Instances(
                    spans[0].ravel(), spans[1].ravel(), number, np.full(len(number), len(which))
                )
            )
        return bounds[::width]

    # ---- columns ----

    def leaf_lengths(self, leaf: ast.Leaf, row: Mapping[str, Column]) -> Ints:
        if leaf.length is None:
            return np.array([self.rest])
        if leaf.is_repeated:
            assert isinstance(leaf.length, ast.Name), "checked: a repeated part has a column"
            return self.lengths(leaf.length.text, self.column(leaf.length.text, row))
        return np.array([self.arithmetic(leaf.length, row)])

    def column(self, name: str, row: Mapping[str, Column]) -> Column:
        if name not in row:
            known = ", ".join(f"`{c}`" for c in sorted(self.columns)) or "none"
            raise DatasetError(
                f"segment `{self.segment}` needs the column `{name}`; the sample has {known}"
            )
        return row[name]

    def lengths(self, name: str, value: Column) -> Ints:
        """Check a column to be a list of lengths."""
        array = np.asarray(value) if not _is_ragged(value) else None
        if array is None or array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise DatasetError(
                f"segment `{self.segment}`: expected column `{name}` to be a list of integers, got "
                f"{_shorten(value)}"
            )
        if array.size and array.min() < 0:
            raise DatasetError(
                f"segment `{self.segment}`: column `{name}` has the negative length {array.min()}"
            )
        if array.size and int(array.max()) > self.length:
            raise DatasetError(
                f"segment `{self.segment}`: column `{name}` has a part of {array.max()} "
                f"tokens, the "
                f"sample only {self.length}"
            )
        return array.astype(np.int64)

    def arithmetic(self, value: ast.Expr, row: Mapping[str, Column]) -> int:
        """Evaluate the length of a part that is not repeated."""
        result = self._number(value, row)
        if not 0 <= result <= self.length:
            raise DatasetError(
                f"segment `{self.segment}`: a part would have {result} tokens, the sample has "
                f"{self.length}"
            )
        return result

    def _number(self, value: ast.Expr, row: Mapping[str, Column]) -> int:
        match value:
            case ast.Number(number):
                return number
            case ast.Name("len"):
                return self.length
            case ast.Name(name):
                found = self.column(name, row)
                if isinstance(found, bool) or not isinstance(found, int | np.integer):
                    raise DatasetError(
                        f"segment `{self.segment}`: expected column `{name}` to be one "
                        f"integer, got "
                        f"{_shorten(found)}; a list of lengths needs a `*` behind its part"
                    )
                return int(found)
            case ast.Sign(op, inner):
                return -self._number(inner, row) if op == "-" else self._number(inner, row)
            case ast.Binary(op, left, right):
                return self._binary(op, self._number(left, row), self._number(right, row))
        raise AssertionError(f"checked: no {type(value).__name__} in a length")

    def _binary(self, op: ast.Arithmetic, a: int, b: int) -> int:
        if op in ("//", "%") and b == 0:
            raise DatasetError(f"segment `{self.segment}`: a length divides by zero")
        results = {"+": a + b, "-": a - b, "*": a * b}
        return results[op] if op in results else (a // b if op == "//" else a % b)

    def repetitions(self, group: ast.Group, row: Mapping[str, Column]) -> int:
        """Give how often a group repeats: all its columns have one element per repetition."""
        sizes: dict[str, int] = {}
        for name in layout_columns(group):
            value = self.column(name, row)
            if isinstance(value, int | np.integer | str | bytes) or not hasattr(value, "__len__"):
                raise DatasetError(
                    f"segment `{self.segment}`: column `{name}` stands in a repeated group, "
                    f"so it needs "
                    f"one element per repetition, got {_shorten(value)}"
                )
            sizes[name] = len(value)
        if len(set(sizes.values())) > 1:
            shown = ", ".join(f"`{n}` {s}" for n, s in sizes.items())
            raise DatasetError(
                f"segment `{self.segment}`: the columns of a repeated group must have equally many "
                f"elements, got {shown}"
            )
        return next(iter(sizes.values()), 0)


def _is_ragged(value: Column) -> bool:
    return not hasattr(value, "__len__") or any(hasattr(v, "__len__") for v in value)


def _shorten(value: Column) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
