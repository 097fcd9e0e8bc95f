"""Bound numbers on blocks of the attention matrix by interval arithmetic.

Exact where blocks are single pairs; then both bounds are the same array, and nothing is computed
twice.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, TypeVar

import numpy as np

from dcp_dsl.arrays import Bools, Ints
from dcp_dsl.elaboration.rising import RisingFunction
from dcp_dsl.errors import Budget
from dcp_dsl.symbolic.piecewise import Piecewise
from dcp_dsl.symbolic.terms import COMPARISONS, Cyclic, Extreme, NumberValue, Quotient, Term

UNBOUNDED = 2**62  # where nothing is defined; far above MAX_VALUE, and its negative is an int64
STEPS_PER_NODE = 2**13  # cost of bounding a number, beside that of its blocks

_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True, eq=False)
class Interval:
    """Bounds of a number on each block, arrays that broadcast to ``[Nq, Nk]``.

    A number of the query alone has arrays ``[Nq, 1]``, one of the key alone ``[1, Nk]``.

    Attributes:
        low, high: int64, the number lies between them wherever it is defined.
        surely, possibly: bool, whether it is defined on the whole block, or anywhere on it.
    """

    low: Any  # Any: arrays that broadcast, int64 here and bool below
    high: Any
    surely: Any
    possibly: Any

    @classmethod
    def exact(cls, values: Any, is_defined: Any) -> "Interval":
        """Return a number that has one value on each block."""
        return cls(values, values, is_defined, is_defined)

    @classmethod
    def constant(cls, value: int) -> "Interval":
        """Return a number that is the same everywhere."""
        return cls.exact(np.full((1, 1), value, np.int64), np.ones((1, 1), np.bool_))

    @property
    def is_exact(self) -> bool:
        """True if both bounds are the same array."""
        return self.low is self.high

    def combine(self, op: str, other: "Interval") -> "Interval":
        """Return ``self op other``; dividing by 0 is undefined."""
        match op:
            case "+":
                return self._rising(other, np.add)
            case "max":
                return self._rising(other, np.maximum)
            case "min":
                return self._rising(other, np.minimum)
            case "-":
                return self._rising(other._negated(), np.add)
            case "*":
                return self._corners(other, np.multiply)
        return self._divided(op, other)

    def _rising(self, other: "Interval", operation: Callable[[Any, Any], Any]) -> "Interval":
        """Apply an operation that grows with both numbers: it takes bounds to bounds."""
        surely = self.surely & other.surely
        low = operation(self.low, other.low)
        if self.is_exact and other.is_exact:
            return Interval.exact(low, surely)
        high = operation(self.high, other.high)
        return Interval(low, high, surely, self.possibly & other.possibly)

    def rise(self, function: RisingFunction) -> "Interval":
        """Return the function of the number, undefined where the function is."""
        least, most = function.least, function.most
        surely = self.surely & (self.low >= least) & (self.high <= most)
        low = function.of_all(np.clip(self.low, least, most))
        if self.is_exact:
            return Interval.exact(low, surely)
        possibly = self.possibly & (self.high >= least) & (self.low <= most)
        high = function.of_all(np.clip(self.high, least, most))
        return Interval(low, high, surely, possibly)

    def _negated(self) -> "Interval":
        low = -self.high
        return Interval(low, low if self.is_exact else -self.low, self.surely, self.possibly)

    def _corners(self, other: "Interval", operation: Callable[[Any, Any], Any]) -> "Interval":
        if self.is_exact and other.is_exact:
            return self._rising(other, operation)
        # products, and quotients by divisors of one sign, have their extremes at the corners
        corners = [operation(a, b) for a in (self.low, self.high) for b in (other.low, other.high)]
        low, high = reduce(np.minimum, corners), reduce(np.maximum, corners)
        return Interval(low, high, self.surely & other.surely, self.possibly & other.possibly)

    def _divided(self, op: str, other: "Interval") -> "Interval":
        """Return the quotient rounded down, or the remainder with the sign of the divisor."""
        never = (other.low == 0) & (other.high == 0)
        mixed = (other.low <= 0) & (other.high >= 0)  # may be 0 or change its sign
        # 1 spares numpy's warning of a division by 0; quotients by it are replaced by `reach` below
        low = np.where(mixed, 1, other.low)
        high = low if other.is_exact else np.where(mixed, 1, other.high)
        safe = Interval(low, high, other.surely & ~mixed, other.possibly & ~never)
        if self.is_exact and other.is_exact:
            operation = np.floor_divide if op == "//" else np.remainder
            return self._rising(safe, operation)
        found = self._corners(safe, np.floor_divide) if op == "//" else self._remainder(safe)
        sides = (self.low, self.high) if op == "//" else (other.low, other.high)
        # |a // b| <= |a| + 1 and |a % b| < |b| for every b but 0
        reach = np.maximum(np.abs(sides[0]), np.abs(sides[1])) + 1
        return Interval(
            np.where(mixed, -reach, found.low), np.where(mixed, reach, found.high),
            found.surely, found.possibly,
        )  # fmt: skip

    def _remainder(self, other: "Interval") -> "Interval":
        divisor = other.low
        is_same = (divisor == other.high) & (
            self.low // divisor == self.high // divisor
        )  # the whole block lies between two multiples
        # a remainder lies in [0, d) if d > 0, and in (d, 0] if d < 0
        low = np.where(is_same, self.low % divisor, np.minimum(divisor + 1, 0))
        high = np.where(is_same, self.high % divisor, np.maximum(other.high - 1, 0))
        return Interval(low, high, self.surely & other.surely, self.possibly & other.possibly)

    def below(self, size: "Interval") -> "Interval":
        """Return the number where it is at least 0 and less than another one."""
        surely = self.surely & size.surely & (self.low >= 0) & (self.high < size.low)
        if self.is_exact and size.is_exact:
            return Interval.exact(self.low, surely)
        possibly = self.possibly & size.possibly & (self.high >= 0) & (self.low < size.high)
        return Interval(self.low, self.high, surely, possibly)

    def look_up(self, values: Ints) -> "Interval":
        """Return ``values[number]`` for a number inside the array."""
        is_point = self.low == self.high
        at = np.clip(self.low, 0, len(values) - 1)
        low = np.where(is_point, values[at], values.min())
        high = np.where(is_point, values[at], values.max())
        return Interval(low, high, self.surely, self.possibly)

    def compare(self, op: str, other: "Interval") -> tuple[Bools, Bools]:
        """Return where ``self op other`` surely holds on the whole block, and where it may."""
        a, b, surely = self, other, self.surely & other.surely
        if a.is_exact and b.is_exact:
            seen = COMPARISONS[op](a.low, b.low) & surely
            return seen, seen
        if op in ("==", "!="):
            # surely equal only where both have one value; maybe equal where the intervals meet
            always = (a.low == a.high) & (b.low == b.high) & (a.low == b.low)
            ever = (a.low <= b.high) & (b.low <= a.high)
            if op == "!=":
                always, ever = ~ever, ~always
        else:
            if op in (">", ">="):
                a, b, op = b, a, {">": "<", ">=": "<="}[op]
            always, ever = COMPARISONS[op](a.high, b.low), COMPARISONS[op](a.low, b.high)
        return always & surely, ever & a.possibly & b.possibly


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Blocks given by their borders.

    Attributes:
        q_bounds: int64 ``[Nq+1]``, rising tokens; not all of a sample need be there.
        kv_bounds: int64 ``[Nk+1]``.
        budget: for the work on it, if that is limited.
        known: results by node, so that nodes which several parts share are bounded once.
    """

    q_bounds: Ints
    kv_bounds: Ints
    budget: Budget | None = None
    known: dict[Hashable, Any] = field(default_factory=dict)

    @classmethod
    def of_pairs(
        cls, rows: tuple[int, int], keys: tuple[int, int], budget: Budget | None = None
    ) -> "Grid":
        """Return the grid of single pairs."""
        q_bounds, kv_bounds = (np.arange(start, end + 1) for start, end in (rows, keys))
        return cls(q_bounds, kv_bounds, budget)

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

    def once(self, key: Hashable, make: "Callable[[Grid], _Made]") -> _Made:
        """Return the kept result of `make` on this grid; make it at the first call."""
        if key not in self.known:
            if self.budget is not None:
                rows, columns = self.shape
                self.budget.spend(STEPS_PER_NODE + rows * columns)
            self.known[key] = make(self)
        found: _Made = self.known[key]
        return found

    def bound(self, number: NumberValue) -> Interval:
        """Bound a number."""
        match number:
            case int():
                return Interval.constant(number)
            case Term():
                return self._term(number)
            case Extreme(is_max, terms):
                op = "max" if is_max else "min"
                return reduce(lambda a, b: a.combine(op, b), map(self._term, terms))
            case Cyclic(values):
                return self.distance().combine("%", Interval.constant(len(values))).look_up(values)
            case Quotient(factor, offset, divisor):
                scaled = self.distance().combine("*", Interval.constant(factor))
                shifted = scaled.combine("+", Interval.constant(offset))
                return shifted.combine("//", Interval.constant(divisor))
        raise AssertionError(f"no number: {number}")

    def _term(self, term: Term) -> Interval:
        # a function of one token stays a column or a row: adding both makes a full matrix
        if term.on_k.is_constant:
            found, other = self.of_q(term.on_q), int(term.on_k.values[0])
        elif term.on_q.is_constant:
            found, other = self.of_k(term.on_k), int(term.on_q.values[0])
        else:
            return self.of_q(term.on_q).combine("+", self.of_k(term.on_k))
        return found.combine("+", Interval.constant(other)) if other else found

    def of_q(self, function: Piecewise) -> Interval:
        """Bound a function of the query."""
        return _bounds(function, self.q_bounds, (slice(None), None))

    def of_k(self, function: Piecewise) -> Interval:
        """Bound a function of the key."""
        return _bounds(function, self.kv_bounds, (None, slice(None)))

    def distance(self) -> Interval:
        """Bound ``q - k``."""
        position = Piecewise.position(int(max(self.q_bounds[-1], self.kv_bounds[-1])))
        return self.of_q(position).combine("-", self.of_k(position))

    def look_up(self, function: Piecewise, at: Interval) -> Interval:
        """Bound a function of the token that a number points at."""
        inside = (at.low >= 0) & (at.high < function.num_tokens)
        # clipped positions give some value; `inside` and `is_point` say where it counts
        values, is_defined = function.at(np.clip(at.low, 0, function.num_tokens - 1))
        defined = is_defined & inside
        if at.is_exact:
            return Interval.exact(values, at.surely & defined)
        is_point = at.low == at.high
        ends = function.values, function.last_values
        low, high = np.minimum(*ends).min(), np.maximum(*ends).max()
        touches = (at.high >= 0) & (at.low < function.num_tokens)
        return Interval(
            np.where(is_point, values, low), np.where(is_point, values, high),
            at.surely & is_point & defined, at.possibly & np.where(is_point, defined, touches),
        )  # fmt: skip


def _bounds(function: Piecewise, borders: Ints, shape: tuple[Any, ...]) -> Interval:
    """Return the smallest and largest value on each stretch, and whether it is defined there."""
    if int(borders[-1] - borders[0]) == len(borders) - 1:
        is_whole = len(borders) - 1 == function.num_tokens
        values, is_defined = function.on_all() if is_whole else function.at(borders[:-1])
        return Interval.exact(values[shape], is_defined[shape])
    # pieces end at borders, so the extremes of a stretch are those of the ends of its pieces
    cut = function.cut(borders[borders < function.num_tokens])
    index = np.searchsorted(cut.starts, borders[:-1])
    # reduceat runs its last stretch to the end of the array, so pieces behind it are cut off
    last = int(np.searchsorted(cut.starts, borders[-1]))
    ends = cut.values[:last], cut.last_values[:last]
    low = np.where(cut.is_defined[:last], np.minimum(*ends), UNBOUNDED)
    high = np.where(cut.is_defined[:last], np.maximum(*ends), -UNBOUNDED)
    surely = np.logical_and.reduceat(cut.is_defined[:last], index)
    possibly = np.logical_or.reduceat(cut.is_defined[:last], index)
    lows = np.where(possibly, np.minimum.reduceat(low, index), 0)
    highs = np.where(possibly, np.maximum.reduceat(high, index), 0)
    return Interval(lows[shape], highs[shape], surely[shape], possibly[shape])
