"""Numbers that depend on q and k: a function of q plus one of k, or the larger of such sums."""

from dataclasses import dataclass
from typing import TypeAlias

from dcp_dsl.comparison import compare
from dcp_dsl.piecewise import Piecewise
from dcp_dsl.region import Region


class NotSeparable(Exception):
    """A number that is no function of q plus a function of k, such as ``(q - k) % 2``."""


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """``on_q(q) + on_k(k)``."""

    on_q: Piecewise
    on_k: Piecewise

    @classmethod
    def constant(cls, num_tokens: int, value: int) -> "Term":
        """Give a number that depends on nothing."""
        zero = Piecewise.constant(num_tokens, 0)
        return cls(Piecewise.constant(num_tokens, value), zero)

    @classmethod
    def of_q(cls, function: Piecewise) -> "Term":
        """Give a function of the query's position."""
        return cls(function, Piecewise.constant(function.num_tokens, 0))

    @classmethod
    def of_k(cls, function: Piecewise) -> "Term":
        """Give a function of the key's position."""
        return cls(Piecewise.constant(function.num_tokens, 0), function)

    def __add__(self, other: "Term") -> "Term":
        return Term(self.on_q + other.on_q, self.on_k + other.on_k)

    def scale(self, factor: int) -> "Term":
        """Give ``factor`` times the term."""
        return Term(self.on_q.scale(factor), self.on_k.scale(factor))

    def single(self) -> tuple[Piecewise, bool]:
        """Give the one function it is, and whether that is one of k.

        Raises:
            NotSeparable: if it depends on both positions.
        """
        if self.on_k.is_constant:
            return self.on_q.shift(int(self.on_k.values[0])), False
        if self.on_q.is_constant:
            return self.on_k.shift(int(self.on_q.values[0])), True
        raise NotSeparable

    def map(self, name: str, divisor: int) -> "Term":
        """Give ``term // divisor`` or ``term % divisor``, for a positive divisor."""
        function, is_of_k = self.single()
        mapped = function.floor_divide(divisor) if name == "//" else function.modulo(divisor)
        return Term.of_k(mapped) if is_of_k else Term.of_q(mapped)


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


Number: TypeAlias = int | Term | Extreme


def as_term(value: int | Term, num_tokens: int) -> Term:
    """Give a constant as a term."""
    return Term.constant(num_tokens, value) if isinstance(value, int) else value


def add(a: Number, b: Number, num_tokens: int) -> Number:
    """Add two numbers.

    Raises:
        NotSeparable: for the sum of two extremes.
    """
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if isinstance(a, Extreme):
        if isinstance(b, Extreme):
            raise NotSeparable
        return a.add(as_term(b, num_tokens))
    if isinstance(b, Extreme):
        return b.add(as_term(a, num_tokens))
    return as_term(a, num_tokens) + as_term(b, num_tokens)


def scale(a: Number, factor: int) -> Number:
    """Multiply a number by a constant."""
    return a * factor if isinstance(a, int) else a.scale(factor)


def extreme(a: Number, b: Number, *, is_max: bool, num_tokens: int) -> Number:
    """Give the larger or smaller of two numbers.

    Raises:
        NotSeparable: if one is itself an extreme of the other kind.
    """
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b) if is_max else min(a, b)
    terms: list[Term] = []
    for value in (a, b):
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
    """Give the extreme of two terms of the same single position as one term, if they are."""
    try:
        (f, f_is_of_k), (g, g_is_of_k) = a.single(), b.single()
    except NotSeparable:
        return None
    if f_is_of_k != g_is_of_k and not f.is_constant and not g.is_constant:
        return None
    is_of_k = f_is_of_k or g_is_of_k
    joined = f.maximum(g) if is_max else f.scale(-1).maximum(g.scale(-1)).scale(-1)
    return Term.of_k(joined) if is_of_k else Term.of_q(joined)


def compare_numbers(a: Number, b: Number, op: str, num_tokens: int) -> Region:
    """Give the pairs where ``a op b``.

    Raises:
        NotSeparable: if the difference cannot be written as extremes of terms.
    """
    difference = add(a, scale(b, -1), num_tokens)
    if isinstance(difference, Extreme):
        return _compare_extreme(difference, op)
    term = as_term(difference, num_tokens)
    return compare(term.on_q, term.on_k, op)


def _compare_extreme(value: Extreme, op: str) -> Region:
    """``max(a, b) <= 0`` is `and`, ``max(a, b) >= 0`` is `or`; min the other way round."""
    if op == "==":
        return _compare_extreme(value, "<=") & _compare_extreme(value, ">=")
    if op == "!=":
        return _compare_extreme(value, "<") | _compare_extreme(value, ">")
    # An undefined term makes the extreme undefined, so `or` must not let one term decide alone.
    defined = [compare(t.on_q, t.on_k, "<=") | compare(t.on_q, t.on_k, ">") for t in value.terms]
    regions = [compare(t.on_q, t.on_k, op) for t in value.terms]
    is_and = value.is_max == (op in ("<", "<="))
    result = regions[0]
    for region in regions[1:]:
        result = result & region if is_and else result | region
    for region in defined:
        result = result & region
    return result
