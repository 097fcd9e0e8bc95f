"""The functions of numbers: how many arguments each takes, and the core program of a call."""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import NamedTuple

from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.rising import RISING_FUNCTIONS


class NumberFunction(NamedTuple):
    """A function of numbers: how many arguments it takes, and what makes its core program."""

    fewest: int
    most: int
    build: Callable[[Sequence[nodes.Number], nodes.Place], nodes.Number]


def _abs(numbers: Sequence[nodes.Number], place: nodes.Place) -> nodes.Number:
    (x,) = numbers
    return nodes.Arithmetic("max", x, nodes.negated(x), place=place)


def _extreme(
    op: nodes.Operation, numbers: Sequence[nodes.Number], place: nodes.Place
) -> nodes.Number:
    return reduce(lambda a, b: nodes.Arithmetic(op, a, b, place=place), numbers)


def _clamp(numbers: Sequence[nodes.Number], place: nodes.Place) -> nodes.Number:
    x, low, high = numbers
    return _extreme("min", (_extreme("max", (x, low), place), high), place)


def _rising(name: str, numbers: Sequence[nodes.Number], place: nodes.Place) -> nodes.Number:
    (x,) = numbers
    return nodes.Rising(name, x, place=place)


NUMBER_FUNCTIONS = {
    "abs": NumberFunction(1, 1, _abs),
    "min": NumberFunction(2, 9, partial(_extreme, "min")),
    "max": NumberFunction(2, 9, partial(_extreme, "max")),
    "clamp": NumberFunction(3, 3, _clamp),
    **{name: NumberFunction(1, 1, partial(_rising, name)) for name in RISING_FUNCTIONS},
}
"""Functions of numbers by name."""
