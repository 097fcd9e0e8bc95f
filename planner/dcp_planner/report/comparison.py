"""Two plans side by side, and thresholds that a difference must not cross."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dcp_planner.errors import PlanError, nearest
from dcp_planner.report.figures import BatchFigures

_SAME = (
    "forward_bytes", "forward_inter_bytes", "backward_bytes", "backward_inter_bytes",
    "max_send_bytes", "max_recv_bytes", "peak_buffer_bytes", "compute_imbalance",
    "token_imbalance", "head_groups",
)  # fmt: skip
FIGURES: Mapping[str, str] = {
    "makespan": "predicted_s", "forward_s": "predicted_forward_s",
    "backward_s": "predicted_backward_s", **dict(zip(_SAME, _SAME, strict=True)),
}  # fmt: skip
"""Compared figures by name: attributes of `BatchFigures`."""

_THRESHOLD = re.compile(r"\s*(\w+)\s*([<>])\s*([+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(%?)\s*")


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of two plans.

    Attributes:
        name: key of `FIGURES`.
        first, second: its values.
    """

    name: str
    first: float
    second: float

    @property
    def change(self) -> float | None:
        """Relative change from the first to the second, 0.02 for 2 % more; ``None`` from 0."""
        if self.first == self.second:
            return 0.0
        return self.second / self.first - 1 if self.first else None


@dataclass(frozen=True, slots=True)
class Threshold:
    """A condition on the second plan, such as ``makespan>+2%`` or ``compute_imbalance>1.1``.

    Attributes:
        name: key of `FIGURES`.
        is_above: whether more than `bound` fails; else less.
        bound: a share if `is_relative`, otherwise in the figure's own unit.
        is_relative: whether the change from the first plan counts, not the value.
        text: as it was written.
    """

    name: str
    is_above: bool
    bound: float
    is_relative: bool
    text: str

    def is_crossed(self, differences: tuple[Difference, ...]) -> bool:
        """Tell whether the condition holds; a change from 0 to more is without limit."""
        found = next(d for d in differences if d.name == self.name)
        value = found.second
        if self.is_relative:
            value = float("inf") if found.change is None else found.change
        return value > self.bound if self.is_above else value < self.bound


def parse_threshold(text: str, more: Sequence[str] = ()) -> Threshold:
    """Read a condition: a figure, ``<`` or ``>``, and a number; with ``%`` it is the change.

    Raises:
        PlanError: if it is none.

    >>> parse_threshold("makespan>+2%").bound
    0.02
    """
    match = _THRESHOLD.fullmatch(text)
    if not match:
        raise PlanError(
            f"expected a condition such as makespan>+2% or compute_imbalance>1.1, got {text!r}"
        )
    name, sign, number, percent = match.groups()
    known = (*FIGURES, *more)
    if name not in known:
        raise PlanError(
            f"unknown figure {name!r} in {text!r}; expected one of {', '.join(known)}"
            f"{nearest(name, known)}"
        )
    bound = float(number) / 100 if percent else float(number)
    return Threshold(name, sign == ">", bound, bool(percent), text)


def compare_figures(first: BatchFigures, second: BatchFigures) -> tuple[Difference, ...]:
    """Return every figure of two plans side by side."""
    return tuple(
        Difference(name, getattr(first, of), getattr(second, of)) for name, of in FIGURES.items()
    )


def to_json(differences: tuple[Difference, ...]) -> dict[str, Any]:
    """Return the figures as a JSON object by name; `Any`: numbers and ``None``."""
    return {d.name: {"first": d.first, "second": d.second, "change": d.change} for d in differences}
