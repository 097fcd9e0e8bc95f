"""Numbers that depend on q and k: sums, the larger of sums, remainders and quotients of q - k."""

from dataclasses import dataclass
from math import lcm
from typing import TypeAlias

import numpy as np

from dcp_dsl.arrays import Bools, Ints
from dcp_dsl.symbolic.piecewise import MAX_VALUE, Piecewise, ValueTooLarge, limit_pieces

MAX_PERIOD = 2**16  # remainders of a distance
COMPARISONS = {
    "<=": np.less_equal, "<": np.less, ">=": np.greater_equal, ">": np.greater,
    "==": np.equal, "!=": np.not_equal,
}  # fmt: skip


class NotSeparable(Exception):
    """A number that is no function of q plus a function of k, such as ``q * k``."""


class VaryingLength(Exception):
    """A number must be one constant, but differs from instance to instance of a frame."""

    def __init__(self, frame: object) -> None:
        self.frame = frame
        super().__init__()


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """``on_q(q) + on_k(k)``."""

    on_q: Piecewise
    on_k: Piecewise

    @classmethod
    def constant(cls, num_tokens: int, value: int) -> "Term":
        """Return a number that depends on nothing."""
        return cls.of(Piecewise.constant(num_tokens, value), is_of_k=False)

    @classmethod
    def of(cls, function: Piecewise, *, is_of_k: bool) -> "Term":
        """Return a function of the key's position, or of the query's."""
        zero = Piecewise.constant(function.num_tokens, 0)
        return cls(zero, function) if is_of_k else cls(function, zero)

    def __add__(self, other: "Term") -> "Term":
        return Term(self.on_q + other.on_q, self.on_k + other.on_k)

    def scale(self, factor: int) -> "Term":
        """Return ``factor`` times the term."""
        return Term(self.on_q.scale(factor), self.on_k.scale(factor))

    def shift(self, amount: int) -> "Term":
        """Return the term plus a constant."""
        return Term(self.on_q.shift(amount), self.on_k)

    def single(self) -> tuple[Piecewise, bool]:
        """Return the term as a function of one position, and whether that is the key's."""
        if self.on_k.is_constant:
            return self.on_q.shift(int(self.on_k.values[0])), False
        if self.on_q.is_constant:
            return self.on_k.shift(int(self.on_q.values[0])), True
        raise NotSeparable

    def difference(self, stretches: tuple[Ints, Ints]) -> tuple[int, int]:
        """Return (a, b) if the term is ``a * (q - k) + b`` for q and k in the same stretch."""
        starts, ends = stretches
        if not all(_is_straight(f, starts, ends) for f in (self.on_q, self.on_k)):
            raise NotSeparable
        total = self.on_q + self.on_k  # what the term is where q == k
        at = np.searchsorted(total.starts, starts, side="right") - 1
        left, steepness = total.values[at], total.slopes[at]
        # A flat sum means that the part of k falls as fast as that of q rises: the term depends on
        # q - k in each stretch. One factor and one offset for all stretches make it one quotient.
        factor = self.on_q.slopes[np.searchsorted(self.on_q.starts, starts, side="right") - 1]
        if not len(at) or steepness.any() or (left != left[0]).any() or (factor != factor[0]).any():
            raise NotSeparable
        return int(factor[0]), int(left[0])

    def divide(
        self, op: str, divisor: int, stretches: tuple[Ints, Ints]
    ) -> "Term | Cyclic | Quotient":
        """Return ``term // divisor`` or ``term % divisor``, for a positive divisor."""
        try:
            function, is_of_k = self.single()
        except NotSeparable:
            return Quotient(*self.difference(stretches), 1).divide(op, divisor)
        mapped = function.floor_divide(divisor) if op == "//" else function.modulo(divisor)
        return Term.of(mapped, is_of_k=is_of_k)


def divide_each(left: "NumberValue", op: str, right: "NumberValue", num_tokens: int) -> Term:
    """Return ``left // right`` or ``left % right`` for numbers of one token."""
    if not (isinstance(left, int | Term) and isinstance(right, Term)):
        raise NotSeparable
    number, is_of_k = as_term(left, num_tokens).single()
    divisor, is_right_of_k = right.single()
    # a constant belongs to either position
    if number.is_constant:
        is_of_k = is_right_of_k
    is_one_token = is_of_k == is_right_of_k or divisor.is_constant
    if not is_one_token or divisor.slopes[divisor.is_defined].any():
        raise NotSeparable
    found = number.divide(op, divisor)
    return Term.of(found, is_of_k=is_of_k)


def _is_straight(function: Piecewise, starts: Ints, ends: Ints) -> bool:
    """Return whether a function is defined and affine on each of the stretches."""
    # value of each piece one position behind its end, where the next one begins
    last = function.last_values + function.slopes
    is_broken = np.ones(len(function.starts), np.bool_)
    is_broken[1:] = (
        (function.values[1:] != last[:-1])
        | (function.slopes[1:] != function.slopes[:-1])
        | (function.is_defined[1:] != function.is_defined[:-1])
    )
    breaks = function.starts[is_broken]
    inside = np.searchsorted(breaks, ends, side="left") - np.searchsorted(breaks, starts, "right")
    at = np.searchsorted(function.starts, starts, side="right") - 1
    return not inside.any() and bool(function.is_defined[at].all())


@dataclass(frozen=True, slots=True)
class Quotient:
    """``(factor * (q - k) + offset) // divisor``."""

    factor: int
    offset: int
    divisor: int

    def shift(self, amount: int) -> "Quotient":
        """Return the number plus a constant."""
        return _checked(Quotient(self.factor, self.offset + amount * self.divisor, self.divisor))

    def divide(self, op: str, divisor: int) -> "Quotient | Cyclic":
        """Return ``number // divisor`` or ``number % divisor``, for a positive divisor."""
        period = self.divisor * divisor
        if op == "//":
            return _checked(Quotient(self.factor, self.offset, period))
        if period > MAX_PERIOD:
            raise NotSeparable
        # a distance of one period more adds factor * divisor to the quotient: the same remainder
        values = (self.factor * np.arange(period) + self.offset) // self.divisor
        return Cyclic(values % divisor)

    def bound(self, op: str, limit: int) -> list[tuple[str, int]]:
        """Return comparisons of ``factor * (q - k)`` that mean ``number op limit`` together.

        Both hold for `==`, either of them for `!=`.
        """
        # (x + offset) // divisor >= limit holds exactly for x >= limit * divisor - offset
        low = limit * self.divisor - self.offset  # number >= limit
        high = low + self.divisor  # number > limit
        return {
            "<=": [("<", high)], "<": [("<", low)], ">=": [(">=", low)], ">": [(">=", high)],
            "==": [(">=", low), ("<", high)], "!=": [(">=", high), ("<", low)],
        }[op]  # fmt: skip


def _checked(value: Quotient) -> Quotient:
    if max(abs(value.offset), value.divisor) > MAX_VALUE:
        raise ValueTooLarge
    return value


@dataclass(frozen=True, slots=True, eq=False)
class Cyclic:
    """``values[(q - k) % period]``, int64 ``[period]``."""

    values: Ints

    def __post_init__(self) -> None:
        if int(np.abs(self.values).max()) > MAX_VALUE:
            raise ValueTooLarge

    def __add__(self, other: "Cyclic") -> "Cyclic":
        a, b = self._align(other)
        return Cyclic(a + b)

    def _align(self, other: "Cyclic") -> tuple[Ints, Ints]:
        period = lcm(len(self.values), len(other.values))
        limit_pieces(period, MAX_PERIOD, "remainders of a distance")
        a, b = (np.tile(v, period // len(v)) for v in (self.values, other.values))
        return a, b

    def scale(self, factor: int) -> "Cyclic":
        """Return ``factor`` times the number."""
        # judged by division: the product may leave int64
        if abs(factor) > MAX_VALUE // max(1, int(np.abs(self.values).max())):
            raise ValueTooLarge
        return Cyclic(self.values * factor)

    def divide(self, op: str, divisor: int) -> "Cyclic":
        """Return ``number // divisor`` or ``number % divisor``."""
        return Cyclic(self.values // divisor if op == "//" else self.values % divisor)

    def extreme(self, other: "Cyclic", *, is_max: bool) -> "Cyclic":
        """Return the larger or smaller of two numbers."""
        return Cyclic((np.maximum if is_max else np.minimum)(*self._align(other)))

    def compare(self, op: str) -> Bools:
        """Return for each remainder whether ``number op 0``."""
        truth: Bools = COMPARISONS[op](self.values, 0)
        return truth


@dataclass(frozen=True, slots=True, eq=False)
class Extreme:
    """The largest (or smallest) of several terms that depend on different positions."""

    is_max: bool
    terms: tuple[Term, ...]

    def add(self, other: Term) -> "Extreme":
        """Add a term to all of them."""
        return Extreme(self.is_max, tuple(t + other for t in self.terms))

    def scale(self, factor: int) -> "Extreme":
        """Multiply by a constant; a negative one turns the largest into the smallest."""
        return Extreme(self.is_max == (factor >= 0), tuple(t.scale(factor) for t in self.terms))


NumberValue: TypeAlias = int | Term | Extreme | Cyclic | Quotient


def as_term(value: "int | Term", num_tokens: int) -> Term:
    """Return a constant as a term."""
    return Term.constant(num_tokens, value) if isinstance(value, int) else value


def bounded(value: NumberValue) -> NumberValue:
    """Refuse an integer that leaves the range that is computed with."""
    if isinstance(value, int) and abs(value) > MAX_VALUE:
        raise ValueTooLarge
    return value


def num_pieces(value: NumberValue) -> int:
    """Count the pieces of the functions in a number."""
    if not isinstance(value, Term | Extreme):
        return 0
    terms = value.terms if isinstance(value, Extreme) else (value,)
    return sum(len(term.on_q.starts) + len(term.on_k.starts) for term in terms)


def add(a: NumberValue, b: NumberValue, num_tokens: int) -> NumberValue:
    """Add two numbers."""
    if isinstance(a, int):
        if isinstance(b, int):
            return a + b
        a, b = b, a
    if isinstance(a, Term) and isinstance(b, Extreme):
        a, b = b, a
    match a:
        case Cyclic() if isinstance(b, int | Cyclic):
            return a + (Cyclic(np.full(1, b)) if isinstance(b, int) else b)
        case Quotient() if isinstance(b, int):
            return a.shift(b)
        case Term() if isinstance(b, int | Term):
            return a.shift(b) if isinstance(b, int) else a + b
        case Extreme() if isinstance(b, int | Term):
            return a.add(as_term(b, num_tokens))
    raise NotSeparable


def scale(a: NumberValue, factor: int) -> NumberValue:
    """Multiply a number by a constant."""
    if isinstance(a, int):
        return a * factor
    if factor == 1:
        return a
    if isinstance(a, Quotient):
        raise NotSeparable
    return a.scale(factor)


def extreme(a: NumberValue, b: NumberValue, *, is_max: bool, num_tokens: int) -> NumberValue:
    """Return the larger or smaller of two numbers."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b) if is_max else min(a, b)
    if isinstance(a, Cyclic) or isinstance(b, Cyclic):
        pair = [Cyclic(np.full(1, v)) if isinstance(v, int) else v for v in (a, b)]
        if isinstance(pair[0], Cyclic) and isinstance(pair[1], Cyclic):
            return pair[0].extreme(pair[1], is_max=is_max)
        raise NotSeparable
    terms: list[Term] = []
    for value in (a, b):
        if isinstance(value, Quotient | Cyclic):
            raise NotSeparable
        if isinstance(value, Extreme):
            if value.is_max != is_max:
                raise NotSeparable
            terms += value.terms
        else:
            terms.append(as_term(value, num_tokens))
    if len(terms) == 2:
        joined = _join(*terms, is_max=is_max)
        if joined is not None:
            return joined
    return Extreme(is_max, tuple(terms))


def _join(a: Term, b: Term, *, is_max: bool) -> Term | None:
    """Return the extreme of two terms as one term; None unless both read the same position."""
    try:
        (f, f_is_of_k), (g, g_is_of_k) = a.single(), b.single()
    except NotSeparable:
        return None
    if f_is_of_k != g_is_of_k and not f.is_constant and not g.is_constant:
        return None
    is_of_k = f_is_of_k if not f.is_constant else g_is_of_k
    # min(f, g) = -max(-f, -g)
    joined = f.maximum(g) if is_max else f.scale(-1).maximum(g.scale(-1)).scale(-1)
    return Term.of(joined, is_of_k=is_of_k)
