"""Bound numbers on blocks of the attention matrix, for numbers that have no symbolic form.

Interval arithmetic over a grid of blocks, exact where blocks are single pairs, and the trees of
operations that are evaluated with it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from dcp_dsl.arrays import Bools, Ints
from dcp_dsl.symbolic.piecewise import Piecewise
from dcp_dsl.symbolic.terms import Cyclic, Extreme, Number, Quotient, Term

UNBOUNDED = 2**62


@dataclass(frozen=True, slots=True, eq=False)
class Interval:
    """Bounds of a number on each block, arrays that broadcast to ``[Nq, Nk]``.

    Attributes:
        low, high: int64, the number lies between them wherever it is defined.
        surely, possibly: bool, whether it is defined on the whole block, or anywhere on it.
    """

    low: Any  # Any: arrays that broadcast, int64 here and bool below
    high: Any
    surely: Any
    possibly: Any

    @classmethod
    def constant(cls, value: int) -> "Interval":
        """Return a number that is the same everywhere."""
        number, yes = np.full((1, 1), value, np.int64), np.ones((1, 1), np.bool_)
        return cls(number, number, yes, yes)

    def _with(self, other: "Interval", low: Any, high: Any) -> "Interval":
        return Interval(low, high, self.surely & other.surely, self.possibly & other.possibly)

    def __add__(self, other: "Interval") -> "Interval":
        return self._with(other, self.low + other.low, self.high + other.high)

    def __sub__(self, other: "Interval") -> "Interval":
        return self._with(other, self.low - other.high, self.high - other.low)

    def __mul__(self, other: "Interval") -> "Interval":
        return self._corners(other, np.multiply)

    def maximum(self, other: "Interval") -> "Interval":
        """Return the larger of two numbers."""
        low, high = np.maximum(self.low, other.low), np.maximum(self.high, other.high)
        return self._with(other, low, high)

    def minimum(self, other: "Interval") -> "Interval":
        """Return the smaller of two numbers."""
        low, high = np.minimum(self.low, other.low), np.minimum(self.high, other.high)
        return self._with(other, low, high)

    def _corners(self, other: "Interval", operation: Any) -> "Interval":
        corners = [operation(a, b) for a in (self.low, self.high) for b in (other.low, other.high)]
        low, high = corners[0], corners[0]
        for corner in corners[1:]:
            low, high = np.minimum(low, corner), np.maximum(high, corner)
        return self._with(other, low, high)

    def floor_divide(self, other: "Interval") -> "Interval":
        """Return the quotient rounded down; dividing by 0 is undefined."""
        safe, mixed, never = other._divisor()
        found = self._corners(safe, np.floor_divide)
        reach = np.maximum(np.abs(self.low), np.abs(self.high)) + 1
        return Interval(
            np.where(mixed, -reach, found.low), np.where(mixed, reach, found.high),
            found.surely & ~mixed & ~never, found.possibly & ~never,
        )  # fmt: skip

    def modulo(self, other: "Interval") -> "Interval":
        """Return the remainder, with the sign of the divisor; dividing by 0 is undefined."""
        safe, mixed, never = other._divisor()
        is_same = (safe.low == safe.high) & (
            self.low // safe.low == self.high // safe.low
        )  # the whole block lies between two multiples
        low = np.where(is_same, self.low % safe.low, np.minimum(safe.low + 1, 0))
        high = np.where(is_same, self.high % safe.low, np.maximum(safe.high - 1, 0))
        reach = np.maximum(np.abs(other.low), np.abs(other.high))
        return Interval(
            np.where(mixed, -reach, low), np.where(mixed, reach, high),
            self.surely & other.surely & ~mixed & ~never,
            self.possibly & other.possibly & ~never,
        )  # fmt: skip

    def _divisor(self) -> tuple["Interval", Bools, Bools]:
        """Return a divisor without 0, where it may be 0 or change its sign, where it is 0."""
        never = (self.low == 0) & (self.high == 0)
        mixed = (self.low <= 0) & (self.high >= 0)
        low, high = np.where(mixed, 1, self.low), np.where(mixed, 1, self.high)
        return Interval(low, high, self.surely, self.possibly), mixed, never

    def below(self, size: "Interval") -> "Interval":
        """Return the number where it is at least 0 and less than another one."""
        surely = (self.low >= 0) & (self.high < size.low)
        possibly = (self.high >= 0) & (self.low < size.high)
        found = self._with(size, self.low, self.high)
        return Interval(self.low, self.high, found.surely & surely, found.possibly & possibly)

    def look_up(self, values: Ints) -> "Interval":
        """Return ``values[number]`` for a number inside the array."""
        is_point = self.low == self.high
        at = np.clip(self.low, 0, len(values) - 1)
        low = np.where(is_point, values[at], values.min())
        high = np.where(is_point, values[at], values.max())
        return Interval(low, high, self.surely, self.possibly)

    def compare(self, op: str, other: "Interval") -> tuple[Bools, Bools]:
        """Return where ``self op other`` surely holds on the whole block, and where it may."""
        a, b = self, other
        always, ever = {
            "<=": (a.high <= b.low, a.low <= b.high),
            "<": (a.high < b.low, a.low < b.high),
            ">=": (a.low >= b.high, a.high >= b.low),
            ">": (a.low > b.high, a.high > b.low),
            "==": (
                (a.low == a.high) & (b.low == b.high) & (a.low == b.low),
                (a.low <= b.high) & (b.low <= a.high),
            ),
            "!=": (
                (a.high < b.low) | (b.high < a.low),
                (a.low != a.high) | (b.low != b.high) | (a.low != b.low),
            ),
        }[op]
        return always & a.surely & b.surely, ever & a.possibly & b.possibly


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Blocks given by their borders.

    Attributes:
        q_bounds: int64 ``[Nq+1]``, rising tokens; not all of a sample need be there.
        kv_bounds: int64 ``[Nk+1]``.
    """

    q_bounds: Ints
    kv_bounds: Ints

    @classmethod
    def of_pairs(cls, q_start: int, q_end: int, kv_start: int, kv_end: int) -> "Grid":
        """Return the grid whose blocks are single pairs."""
        return cls(np.arange(q_start, q_end + 1), np.arange(kv_start, kv_end + 1))

    @property
    def shape(self) -> tuple[int, int]:
        """Blocks: rows, columns."""
        return len(self.q_bounds) - 1, len(self.kv_bounds) - 1

    @property
    def is_of_pairs(self) -> bool:
        """True if every block is one pair, so that bounds are values."""
        rows, columns = self.shape
        return (
            int(self.q_bounds[-1] - self.q_bounds[0]) == rows
            and int(self.kv_bounds[-1] - self.kv_bounds[0]) == columns
        )

    def of_q(self, function: Piecewise) -> Interval:
        """Bound a function of the query."""
        return Interval(*(v[:, None] for v in _bounds(function, self.q_bounds)))

    def of_k(self, function: Piecewise) -> Interval:
        """Bound a function of the key."""
        return Interval(*(v[None, :] for v in _bounds(function, self.kv_bounds)))

    def distance(self) -> Interval:
        """Bound ``q - k``."""
        q, k = self.q_bounds, self.kv_bounds
        yes = np.ones((1, 1), np.bool_)
        low, high = q[:-1, None] - (k[None, 1:] - 1), (q[1:, None] - 1) - k[None, :-1]
        return Interval(low, high, yes, yes)

    def look_up(self, function: Piecewise, at: Interval) -> Interval:
        """Bound a function of the token that a number points at."""
        is_point = at.low == at.high
        inside = (at.low >= 0) & (at.high < function.num_tokens)
        where = np.clip(at.low, 0, function.num_tokens - 1)
        piece = np.searchsorted(function.starts, where, side="right") - 1
        values = function.values[piece] + function.slopes[piece] * (where - function.starts[piece])
        defined = function.is_defined[piece] & inside
        ends = function.values, function.last_values
        low, high = np.minimum(*ends).min(), np.maximum(*ends).max()
        touches = (at.high >= 0) & (at.low < function.num_tokens)
        return Interval(
            np.where(is_point, values, low), np.where(is_point, values, high),
            at.surely & is_point & defined, at.possibly & np.where(is_point, defined, touches),
        )  # fmt: skip


def _bounds(function: Piecewise, borders: Ints) -> tuple[Ints, Ints, Bools, Bools]:
    """Return the smallest and largest value on each stretch, and whether it is defined there."""
    if int(borders[-1] - borders[0]) == len(borders) - 1:
        at = borders[:-1]
        piece = np.searchsorted(function.starts, at, side="right") - 1
        values = function.values[piece] + function.slopes[piece] * (at - function.starts[piece])
        return values, values, function.is_defined[piece], function.is_defined[piece]
    inner = borders[borders < function.num_tokens]
    cut = function.cut(inner) if inner[0] == 0 else function.cut(np.append(0, inner))
    index = np.searchsorted(cut.starts, borders[:-1])
    last = int(np.searchsorted(cut.starts, borders[-1]))
    ends = cut.values[:last], cut.last_values[:last]
    low = np.where(cut.is_defined[:last], np.minimum(*ends), UNBOUNDED)
    high = np.where(cut.is_defined[:last], np.maximum(*ends), -UNBOUNDED)
    surely = np.logical_and.reduceat(cut.is_defined[:last], index)
    possibly = np.logical_or.reduceat(cut.is_defined[:last], index)
    lows = np.where(possibly, np.minimum.reduceat(low, index), 0)
    return lows, np.where(possibly, np.maximum.reduceat(high, index), 0), surely, possibly


Operation: TypeAlias = Literal["+", "-", "*", "//", "%", "min", "max"]


@dataclass(frozen=True, slots=True, eq=False)
class Plain:
    """A number that has a symbolic form."""

    value: Number

    def on(self, grid: Grid) -> Interval:
        """Bound the number on every block of a grid."""
        match self.value:
            case int(number):
                return Interval.constant(number)
            case Term() as term:
                return _term(term, grid)
            case Extreme(is_max, terms):
                parts = [_term(term, grid) for term in terms]
                result = parts[0]
                for part in parts[1:]:
                    result = result.maximum(part) if is_max else result.minimum(part)
                return result
            case Cyclic(values):
                return grid.distance().modulo(Interval.constant(len(values))).look_up(values)
            case Quotient(factor, offset, divisor):
                scaled = grid.distance() * Interval.constant(factor) + Interval.constant(offset)
                return scaled.floor_divide(Interval.constant(divisor))
        raise AssertionError(f"no number: {self.value}")

    def parts(self) -> Iterator[Ints | str]:
        """Yield the parts of the number, for a digest."""
        match self.value:
            case Term() as term:
                yield from _term_parts(term)
            case Extreme(is_max, terms):
                yield f"extreme {is_max} {len(terms)}"
                for term in terms:
                    yield from _term_parts(term)
            case Cyclic(values):
                yield "cyclic"
                yield values
            case other:
                yield repr(other)


def _term(term: Term, grid: Grid) -> Interval:
    return grid.of_q(term.on_q) + grid.of_k(term.on_k)


def _term_parts(term: Term) -> Iterator[Ints | str]:
    yield "term"
    for function in (term.on_q, term.on_k):
        yield from function_parts(function)


def function_parts(function: Piecewise) -> Iterator[Ints]:
    """Yield the parts of a function, for a digest."""
    yield from (function.starts, function.values, function.slopes)
    yield function.is_defined.astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Combined:
    """``left op right``."""

    op: Operation
    left: "NumberTree"
    right: "NumberTree"

    def on(self, grid: Grid) -> Interval:
        """Bound the number on every block of a grid."""
        a, b = self.left.on(grid), self.right.on(grid)
        match self.op:
            case "+":
                return a + b
            case "-":
                return a - b
            case "*":
                return a * b
            case "//":
                return a.floor_divide(b)
            case "%":
                return a.modulo(b)
            case "max":
                return a.maximum(b)
            case "min":
                return a.minimum(b)

    def parts(self) -> Iterator[Ints | str]:
        """Yield the parts of the number, for a digest."""
        yield self.op
        yield from self.left.parts()
        yield from self.right.parts()


@dataclass(frozen=True, slots=True, eq=False)
class LookedUp:
    """A function of the token that a number points at; undefined outside the sample.

    Attributes:
        function: of tokens.
        at: counts tokens from the start of the sample, or of the cell that the query lies in.
        start, size: where the cell of each token begins and how long it is; then the number is
            undefined outside the cell.
    """

    function: Piecewise
    at: "NumberTree"
    start: Piecewise | None = None
    size: Piecewise | None = None

    def on(self, grid: Grid) -> Interval:
        """Bound the number on every block of a grid."""
        at = self.at.on(grid)
        if self.start is not None and self.size is not None:
            at = at.below(grid.of_q(self.size)) + grid.of_q(self.start)
        return grid.look_up(self.function, at)

    def parts(self) -> Iterator[Ints | str]:
        """Yield the parts of the number, for a digest."""
        yield "at"
        for function in (self.function, self.start, self.size):
            if function is not None:
                yield from function_parts(function)
        yield from self.at.parts()


NumberTree: TypeAlias = Plain | Combined | LookedUp
