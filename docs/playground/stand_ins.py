"""Stand-ins for functions of the language that need numpy, by module and name."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from plain_layout import Refused
from reference import Reference
from statements import natural_length

from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.programs import reads_length
from dcp_dsl.errors import DatasetError
from dcp_dsl.syntax import ast

MAX_TOKENS = 256  # of samples on which masks are looked at, not drawn
STEPS_PER_PAIR = 64  # of the budget for tests, a step of which is one of numpy on one pair

_Result = TypeVar("_Result")


def _refusing(run: Callable[[], _Result]) -> _Result:
    """Run something; what does not fit a sample is an error of its data."""
    try:
        return run()
    except Refused as error:
        raise DatasetError(str(error)) from None


class Dense:
    """The pairs of a mask on a sample, as far as the search for faults looks at them."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows

    def any(self, axis: int) -> "Dense":
        """Return which rows see something."""
        return Dense([int(row > 0) for row in self.rows])

    def __invert__(self) -> "Dense":
        return Dense([1 - flag for flag in self.rows])


class Pair(tuple[int, int]):
    """A query and a key."""

    def tolist(self) -> list[int]:
        """Return both."""
        return list(self)


def flatnonzero(flags: Dense) -> list[int]:
    """Return the rows that are set."""
    return [index for index, flag in enumerate(flags.rows) if flag]


def argwhere(dense: Dense) -> list[Pair]:
    """Return the first pair, with which the search is content."""
    for q, row in enumerate(dense.rows):
        if row:
            return [Pair((q, ((row & -row).bit_length() - 1) // 8))]
    return []


def dense_mask(mask: Any, sample: Any, *, budget: Any = None) -> Dense:
    """Evaluate a mask on every pair; Any: values of the language, from modules replaced here."""
    mask.require(sample)
    reference = _refusing(lambda: Reference.of_mask(mask, sample))
    if budget is not None:
        size = sum(1 for _ in nodes.walk(mask.core))
        budget.spend(STEPS_PER_PAIR * sample.length * (reference.size + size))
    return _refusing(lambda: Dense(reference.rows(mask.core)))


def first_pair(mask: Any, sample: Any) -> tuple[int, int] | None:
    """Return the first pair of a mask; None also for samples too long for plain Python."""
    pairs = argwhere(dense_mask(mask, sample)) if sample.length <= MAX_TOKENS else []
    return (pairs[0][0], pairs[0][1]) if pairs else None


def length_of(segment: ast.Segment, layout: ast.Layout, columns: Mapping[str, Any]) -> int | None:
    """Add up the tokens of the columns; Any: integers and lists of them."""
    return None if reads_length(layout) else _refusing(lambda: natural_length(segment, columns))


class Instances(list[int]):
    """The instances of a segment, to be counted."""

    num_ids = None


class Frame:
    """A sample of which segments are counted."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference

    @classmethod
    def of(cls, length: int, columns: Mapping[str, Any], budget: object) -> "Frame":
        """Return the frame of a sample; Any: as above."""
        return cls(Reference.of(columns, length))

    def instances(self, segment: nodes.Segment) -> Instances:
        """Return as many numbers as a segment has instances."""
        return _refusing(lambda: Instances(range(self.reference.count(segment))))


def bind_columns(
    segment: ast.Segment, source: ast.Columns, columns: Mapping[str, Any], length: int
) -> None:
    """Refuse a column that spells out no segments; Any: as above."""
    whole = nodes.Laid(segment, segment.name.text)
    _refusing(lambda: Reference.of(columns, length).instances(whole))


def integers(value: object, shape: tuple[int, ...], where: str) -> None:
    """Refuse a column that has not one value per token."""
    if not isinstance(value, list) or len(value) != shape[0]:
        raise DatasetError(f"{where}: expected {shape[0]} integers, one per token")


STAND_INS: Mapping[str, Mapping[str, Any]] = {  # Any: functions and classes
    "numpy": {"flatnonzero": flatnonzero, "argwhere": argwhere},
    "dcp_dsl.core.per_token": {"dense_mask": dense_mask, "first_pair": first_pair},
    "dcp_dsl.core.layout": {"natural_length": length_of},
    "dcp_dsl.core.frame": {"Frame": Frame},
    "dcp_dsl.core.columns": {"bind_columns": bind_columns, "integers": integers},
}
