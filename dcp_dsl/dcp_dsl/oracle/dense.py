"""Evaluate a mask pair by pair with numpy: its slow, obvious meaning.

It shares with the compiler the core program, nothing else: layouts are laid out token by token
here, and every node is an array over queries and keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Bools
from dcp_dsl.budget import Budget
from dcp_dsl.core.mask import Mask
from dcp_dsl.core.sample import Sample
from dcp_dsl.elaboration import nodes
from dcp_dsl.errors import DatasetError
from dcp_dsl.oracle.layout import Instance, choose, cut_to, instances_of

MAX_TOKENS = 2**15  # 1 GiB of pairs
PAIRS_AT_ONCE = 2**21  # rows are evaluated in bunches of about so many pairs, to bound memory
STEPS_PER_NODE = 2**13  # what visiting a node costs beside its pairs


def dense_mask(mask: Mask, sample: Sample, *, budget: Budget | None = None) -> Bools:
    """Evaluate a mask on every pair of a sample.

    The reference for all other forms; O(n^2) time and result.

    Args:
        mask: any mask of a spec.
        sample: its columns and length n.
        budget: most steps (one numpy operation on one pair) to take; without it, any number.

    Returns:
        bool ``[n, n]``: entry (q, k) says whether query q sees key k.

    Raises:
        DatasetError: if the sample lacks a column, its layout does not fill it, or it is longer
            than `MAX_TOKENS`.
        SpecError: for constants out of range (E111).
        OverBudget: if the budget is used up.

    >>> from dcp_dsl import Spec
    >>> band = Spec.from_text("mask band = causal and q - k < 2").mask("band")
    >>> dense_mask(band, Sample(length=3)).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    missing = sorted(mask.columns - sample.columns.keys())
    if missing:
        raise DatasetError(f"mask `{mask.name}` needs the column `{missing[0]}`")
    length = sample.length
    if length > MAX_TOKENS:
        raise DatasetError(
            f"a dense mask of {length:_} tokens is too large; expected at most "
            f"{MAX_TOKENS:_}, or use `mask.bind(sample)`"
        )
    result = np.zeros((length, length), np.bool_)
    step = max(1, PAIRS_AT_ONCE // max(1, length))
    laid: dict[tuple[int, str], list[Instance]] = {}
    for begin in range(0, length, step):
        rows = np.arange(begin, min(begin + step, length))
        oracle = _Oracle(length, rows, sample.columns, length, 0, None, None, laid, budget)
        result[rows] = oracle.mask(mask.core)
    return result


_COMPARISONS = {
    "<=": np.less_equal, ">=": np.greater_equal, "==": np.equal, "!=": np.not_equal,
    "<": np.less, ">": np.greater,
}  # fmt: skip
_OPERATIONS = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "//": np.floor_divide, "%": np.remainder,
    "min": np.minimum, "max": np.maximum,
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class _Number:
    """Values over queries and keys (broadcastable to [rows, n]) and where they are defined."""

    values: Any  # Any: int64 array or Python integer, as broadcasting wants
    is_defined: Any  # Any: bool array or bool


@dataclass(frozen=True, slots=True, eq=False)
class _Oracle:
    """Evaluates nodes for some rows against all keys of a sample, or of an instance inside `per`.

    Attributes:
        n: tokens of the frame.
        rows: queries, counted in the frame.
        columns: see `Sample`.
        length: tokens of the sample.
        offset: of the frame in the sample.
        outer: the frame around this one, None outside `per`.
        cell: the instance that this frame is, as the frame around has it.
        laid: instances of names of statements on the whole sample.
        budget: steps left, if they are limited.
        seen: nodes already evaluated here: arguments that are used twice are shared.
    """

    n: int
    rows: NDArray[np.int64]
    columns: Mapping[str, Any]
    length: int
    offset: int
    outer: "_Oracle | None"
    cell: Instance | None
    laid: dict[tuple[int, str], list[Instance]]
    budget: Budget | None
    seen: dict[nodes.Node, Any] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        """Pairs that are evaluated: rows, keys."""
        return len(self.rows), self.n

    def mask(self, node: nodes.Mask) -> Bools:
        """Evaluate a mask to bool ``[rows, n]``."""
        if node not in self.seen:
            self.spend()
            self.seen[node] = np.broadcast_to(self._mask(node), self.shape)
        found: Bools = self.seen[node]
        return found

    def spend(self) -> None:
        """Pay for visiting one node."""
        if self.budget is not None:
            self.budget.spend(STEPS_PER_NODE + len(self.rows) * self.n)

    def _mask(self, node: nodes.Mask) -> Any:
        match node:
            case nodes.Truth(flag):
                return np.bool_(flag)
            case nodes.Not(item):
                return ~self.mask(item)
            case nodes.And(items):
                return np.logical_and.reduce([self.mask(item) for item in items])
            case nodes.Or(items):
                return np.logical_or.reduce([self.mask(item) for item in items])
            case nodes.Frame(segment, body):
                return self.frame(segment, body)
            case nodes.Compare(op, left, right):
                a, b = self.number(left), self.number(right)
                return _COMPARISONS[op](a.values, b.values) & a.is_defined & b.is_defined
            case nodes.Within(segment, at):
                inside = self.per_token([(i, 1) for i in self.instances(segment)])
                found = self.look_up(inside, at)
                return (found.values == 1) & found.is_defined
            case nodes.Same(segment):
                which = self.per_token([(i, 1 + i.name) for i in self.instances(segment)])
                at_q, at_k = which[self.rows][:, None], which[None, :]
                return (at_q == at_k) & (at_q > 0)
        raise AssertionError(f"no mask: {type(node).__name__}")

    def frame(self, segment: nodes.Segment, body: nodes.Mask) -> Bools:
        """Evaluate a mask in each instance of a segment."""
        result = np.zeros(self.shape, np.bool_)
        for instance in _whole_stretches(self.instances(segment)):
            mine = np.flatnonzero((self.rows >= instance.start) & (self.rows < instance.end))
            if len(mine):
                inner = _Oracle(
                    instance.end - instance.start, self.rows[mine] - instance.start, self.columns,
                    self.length, self.offset + instance.start, self, instance, self.laid,
                    self.budget,
                )  # fmt: skip
                result[mine, instance.start : instance.end] = inner.mask(body)
        return result

    # ---- numbers ----

    def number(self, node: nodes.Number) -> _Number:
        """Evaluate a number to arrays that broadcast to ``[rows, n]``."""
        if node not in self.seen:
            self.spend()
            self.seen[node] = self._number(node)
        found: _Number = self.seen[node]
        return found

    def _number(self, node: nodes.Number) -> _Number:
        match node:
            case nodes.Const(value):
                return _Number(value, True)
            case nodes.Pos(side):
                own = self.rows[:, None] if side == "q" else np.arange(self.n)[None, :]
                return _Number(own, True)
            case nodes.Length():
                return _Number(self.n, True)
            case nodes.Count() | nodes.RowColumn():
                return _Number(self.constant_of(node), True)
            case nodes.Outside(levels, value):
                return self.outside(levels, value)
            case nodes.Arithmetic():
                return self.arithmetic(node)
            case nodes.Lookup(nodes.TokenColumn() as column, _, at):
                return self.look_up(self.token_column(column), at)
            case nodes.Lookup(table, fact, at):
                assert not isinstance(table, nodes.TokenColumn), "handled above"
                return self.fact(table, fact, at)
        raise AssertionError(f"no number: {type(node).__name__}")

    def constant_of(self, node: nodes.Count | nodes.RowColumn) -> int:
        """Return how many instances there are, or the value of a column."""
        if isinstance(node, nodes.Count):
            counted = self.instances(node.segment)
            return max([i.total for i in counted if i.is_id], default=len(counted))
        value = self.columns[node.name]
        if not isinstance(value, int):
            raise DatasetError(f"`row.{node.name}`: expected one integer")
        return value

    def outside(self, levels: int, node: nodes.Number) -> _Number:
        """Evaluate a number further out, on the pairs inside this instance."""
        home = self
        for _ in range(levels):
            assert home.outer is not None, "every frame but the sample has one around it"
            home = home.outer
        found = home.number(node)
        rows = np.searchsorted(home.rows, self.rows + self.offset - home.offset)
        columns = np.arange(self.n) + self.offset - home.offset

        def cut(values: Any) -> Any:  # Any: see _Number
            if np.ndim(values) == 0:
                return values
            return np.broadcast_to(values, home.shape)[np.ix_(rows, columns)]

        return _Number(cut(found.values), cut(found.is_defined))

    def arithmetic(self, node: nodes.Arithmetic) -> _Number:
        """Evaluate ``left op right``."""
        a, b = self.number(node.left), self.number(node.right)
        is_defined = np.logical_and(a.is_defined, b.is_defined)
        divisor = b.values
        if node.op in ("//", "%"):
            if np.ndim(divisor) == 0 and divisor < 1:
                node.right.place.fail("E111", "this divides by a number below 1")
            is_defined = np.logical_and(is_defined, divisor != 0)
            divisor = np.where(divisor == 0, 1, divisor)
        values = _OPERATIONS[node.op](a.values, divisor)
        return _Number(int(values) if np.ndim(values) == 0 else values, is_defined)

    def fact(self, segment: nodes.Segment, fact: nodes.Fact, at: nodes.Number) -> _Number:
        """Look up a number of the instance that a token lies in."""
        instances = self.instances(segment)
        if fact in ("start", "end", "len", "pos"):
            _whole_stretches(instances)
        numbers = {
            "number": [i.number for i in instances], "count": [i.total for i in instances],
            "start": [i.start for i in instances], "end": [i.end for i in instances],
            "len": [i.end - i.start for i in instances], "pos": [i.start for i in instances],
        }[fact]  # fmt: skip
        labels = self.per_token(list(zip(instances, numbers, strict=True)))
        if fact == "pos":
            labels = np.arange(self.n) - labels
        inside = self.per_token([(i, 1) for i in instances]) == 1
        return self.look_up(labels, at, inside)

    def token_column(self, node: nodes.TokenColumn) -> NDArray[np.int64]:
        """Return the values of a column with one integer per token, for the tokens of the frame."""
        column = self.columns[node.column]
        if not isinstance(column, list) or len(column) != self.length:
            raise DatasetError(f"token column `{node.name}`: expected {self.length} integers")
        return np.asarray(column[self.offset : self.offset + self.n], np.int64)

    def look_up(
        self, labels: NDArray[np.int64], at: nodes.Number, is_defined: Bools | None = None
    ) -> _Number:
        """Read a value per token at a position."""
        position = self.number(at)
        token = np.clip(position.values, 0, self.n - 1)
        inside = (position.values >= 0) & (position.values < self.n) & position.is_defined
        if is_defined is not None:
            inside = inside & is_defined[token]
        return _Number(labels[token], inside)

    # ---- segments ----

    def per_token(self, instances: list[tuple[Instance, int]]) -> NDArray[np.int64]:
        """Write one number per instance on all its tokens; 0 stands outside."""
        labels = np.zeros(self.n, np.int64)
        for instance, number in instances:
            labels[instance.start : instance.end] = number
        return labels

    def instances(self, node: nodes.Segment) -> list[Instance]:
        """Return the instances of a segment in the frame."""
        if node not in self.seen:
            self.seen[node] = self._instances(node)
        found: list[Instance] = self.seen[node]
        return found

    def _instances(self, node: nodes.Segment) -> list[Instance]:
        match node:
            case nodes.Tiles(size, parent):
                return self.tiles(node, self.constant(size), parent)
            case nodes.Chosen(is_first, segment, count):
                which = "first" if is_first else "last"
                return choose(self.instances(segment), which, self.constant(count))
            case nodes.Laid(statement, name):
                if self.outer is not None and self.cell is not None:
                    return cut_to(self.outer.instances(node), self.cell, self.outer.n)
                key = id(statement), name
                if key not in self.laid:
                    self.laid[key] = instances_of(statement, name, self.columns, self.length)
                return self.laid[key]

    def constant(self, node: nodes.Number) -> int:
        """Evaluate a number that is the same for all pairs."""
        return int(self.number(node).values)

    def tiles(self, node: nodes.Tiles, size: int, parent: nodes.Segment | None) -> list[Instance]:
        """Cut the frame, or each instance of the parent, into tiles."""
        if size < 1:
            node.place.fail("E111", f"`every {size}` makes no tiles")
        parents: list[Instance | None] = [None]
        if parent is not None:
            parents = [*self.instances(parent)]
        found: list[Instance] = []
        for index, around in enumerate(parents):
            start, end = (0, self.n) if around is None else (around.start, around.end)
            starts = list(range(start, end, size))
            for number, at in enumerate(starts):
                stop, name = min(at + size, end), len(found)
                found.append(Instance(at, stop, number, len(starts), index, name, within=around))
        return found


def _whole_stretches(instances: list[Instance]) -> list[Instance]:
    """Refuse ids that come back after others."""
    filled = [i.name for i in instances if i.end > i.start and i.is_id]
    if len(set(filled)) < len(filled):
        raise DatasetError("an id comes back after others")
    return instances
