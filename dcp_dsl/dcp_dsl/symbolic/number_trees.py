"""Numbers without a symbolic form, as trees to bound on blocks and to evaluate on pairs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_dsl.symbolic.grid import Grid, Interval
from dcp_dsl.symbolic.piecewise import Piecewise
from dcp_dsl.symbolic.terms import Cyclic, Extreme, Number, Quotient, Term

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
        """Give what the number is made of, for a digest."""
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
    """Give what a function is made of, for a digest."""
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
        """Give what the number is made of, for a digest."""
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
        """Give what the number is made of, for a digest."""
        yield "at"
        for function in (self.function, self.start, self.size):
            if function is not None:
                yield from function_parts(function)
        yield from self.at.parts()


NumberTree: TypeAlias = Plain | Combined | LookedUp
