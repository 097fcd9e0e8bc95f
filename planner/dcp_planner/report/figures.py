"""Figures of one planned batch, beside those of static layouts, and their spread over many batches.

A static layout is taken as it is, so one device may own or compute more than the tolerances allow.
More tokens than the cap need memory that the tolerances exclude: such a layout is no fair rival,
but is named. More compute than the cap takes longer, and the predicted time shows that already:
such a layout is marked and stays a rival, although plans hold that cap.

Two plans are compared figure by figure; a threshold is a limit for a difference.
"""

import json
import math
import re
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from dcp_planner.errors import PlanError, nearest
from dcp_planner.model.config import PlanConfig
from dcp_planner.plan.columns import encode_parts
from dcp_planner.report.bounds import bound_ratios
from dcp_planner.simulation.simulator import predict
from dcp_planner.tables.metrics import PlanMetrics, measure
from dcp_planner.tables.plan import Plan


def json_text(document: Any) -> str:
    r"""Return the text of a JSON document; `Any`: what JSON holds.

    >>> json_text({"ratio": float("inf")})
    '{\n "ratio": null\n}'
    """
    return json.dumps(_finite(document), indent=1)


def _finite(value: Any) -> Any:
    # JSON has no Infinity and no NaN; Python writes them all the same, and other readers refuse.
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """Costs of the plan of one batch."""

    # tokens, sequences, devices: sizes
    tokens: int
    sequences: int
    devices: int
    # forward_bytes, forward_inter_bytes: sent between devices, and the part between nodes
    forward_bytes: int
    forward_inter_bytes: int
    # backward_bytes, backward_inter_bytes: the same in backward
    backward_bytes: int
    backward_inter_bytes: int
    # max_send_bytes, max_recv_bytes: of the device that sends, or receives, most in forward and
    # backward together
    max_send_bytes: int
    max_recv_bytes: int
    # compute_imbalance, token_imbalance: most over mean
    compute_imbalance: float
    token_imbalance: float
    peak_buffer_bytes: int  # largest buffers of any device in any direction
    # predicted_forward_s, predicted_backward_s: simulated
    predicted_forward_s: float
    predicted_backward_s: float
    # seconds that planning took, without compiling the planner; `None`: not measured
    plan_s: float | None
    backend: str  # name of the partitioner
    bound_ratios: Mapping[str, float]  # figure over its lower bound, by name; at least 1
    plan_bytes_per_rank: int  # most bytes that one rank has to be sent
    head_groups: int = 1  # groups of heads that are placed on their own
    partials: str = "input"  # `"float32"` or `"input"`: the type in which partial results travel

    @property
    def predicted_s(self) -> float:
        """Forward and backward together."""
        return self.predicted_forward_s + self.predicted_backward_s

    def to_json(self) -> dict[str, Any]:
        """Compute the figures as a JSON object; `Any`: numbers, a text, an object of numbers."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return values | {"bound_ratios": dict(self.bound_ratios)}


def figures_of(plan: Plan, plan_s: float | None = None) -> BatchFigures:
    """Compute the figures of a plan, predicted times included."""
    found, predicted = measure(plan), predict(plan)
    sides = (found.forward, found.backward)
    sent, received, peak = (
        [getattr(side, name) for side in sides]
        for name in ("sent_bytes", "received_bytes", "peak_buffer_bytes")
    )
    return BatchFigures(
        tokens=found.tokens,
        sequences=len(plan.cu_seqlens) - 1,
        devices=plan.num_devices,
        forward_bytes=found.forward.total_bytes,
        forward_inter_bytes=found.forward.inter_node_bytes,
        backward_bytes=found.backward.total_bytes,
        backward_inter_bytes=found.backward.inter_node_bytes,
        # Sums of both directions first: the device that sends most need not lead in either.
        max_send_bytes=max(map(sum, zip(*sent, strict=True))),
        max_recv_bytes=max(map(sum, zip(*received, strict=True))),
        compute_imbalance=found.compute_imbalance,
        token_imbalance=found.token_imbalance,
        peak_buffer_bytes=max(max(device) for device in peak),
        predicted_forward_s=predicted.forward_s,
        predicted_backward_s=predicted.backward_s,
        plan_s=plan_s,
        backend=found.partitioner,
        bound_ratios=bound_ratios(plan, (predicted.forward_s, predicted.backward_s)),
        plan_bytes_per_rank=max(map(len, encode_parts(plan))),
        head_groups=plan.head_groups,
        partials=plan.shape.partials,
    )


DISTRIBUTED = (
    "tokens", "sequences", "forward_bytes", "forward_inter_bytes", "backward_bytes",
    "backward_inter_bytes", "compute_imbalance", "token_imbalance", "peak_buffer_bytes",
    "predicted_forward_s", "predicted_backward_s", "plan_s",
)  # fmt: skip
"""Figures whose distribution over batches is reported."""


class Spread(NamedTuple):
    """Smallest, median, mean and largest of a figure over batches."""

    least: float
    median: float
    mean: float
    most: float


def spread_of(values: Sequence[float]) -> Spread:
    """Compute the spread of at least one value.

    >>> spread_of([3, 1, 8])
    Spread(least=1, median=3, mean=4, most=8)
    """
    return Spread(min(values), statistics.median(values), statistics.mean(values), max(values))


def distribution_of(batches: Sequence[BatchFigures]) -> dict[str, Spread]:
    """Compute the spread of every figure of `DISTRIBUTED` that all batches have."""
    columns = {name: [getattr(batch, name) for batch in batches] for name in DISTRIBUTED}
    # Planning time is None in plans without a measured time.
    return {name: spread_of(column) for name, column in columns.items() if None not in column}


def speedups_over(
    batches: Sequence[BatchFigures], others: Mapping[str, Sequence[BatchFigures]]
) -> dict[str, Spread]:
    """Compute how many times faster the batches are predicted than by each other method.

    >>> from types import SimpleNamespace
    >>> ours, theirs = SimpleNamespace(predicted_s=2.0), SimpleNamespace(predicted_s=3.0)
    >>> speedups_over([ours], {"ring": [theirs]})["ring"].mean
    1.5
    """
    return {
        name: spread_of(
            [
                theirs.predicted_s / ours.predicted_s if ours.predicted_s else 1.0
                for ours, theirs in zip(batches, rows, strict=True)
            ]
        )
        for name, rows in others.items()
    }


PREFIX = "static:"
"""Begin of the names of static layouts."""
Scope = Literal["within_token_cap", "of_all"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
_ROUNDING = 1e-9  # a ratio at its cap may come out a few last bits above


class Rival(NamedTuple):
    """The fastest static layout of a scope."""

    name: str  # of the layout
    speedup: float  # how many times faster our plan is predicted


def over_caps(figures: BatchFigures | PlanMetrics, config: PlanConfig) -> dict[str, float]:
    """Return the caps that a plan exceeds, each with the ratio of most to mean that it reaches."""
    reached = {"compute": figures.compute_imbalance, "tokens": figures.token_imbalance}
    caps = {"compute": config.compute_cap, "tokens": config.token_tolerance}
    return {name: most for name, most in reached.items() if most > 1 + caps[name] + _ROUNDING}


def best_static(
    our_s: float, their_s: Mapping[str, float], over: Mapping[str, Collection[str]]
) -> dict[Scope, Rival]:
    """Find the fastest static layout of every scope that has one."""
    names = [name for name in their_s if name.startswith(PREFIX)]
    chosen = {"within_token_cap": [n for n in names if "tokens" not in over.get(n, ())],
              "of_all": names}  # fmt: skip
    found: dict[Scope, Rival] = {}
    for scope in SCOPES:
        if chosen[scope]:
            name = min(chosen[scope], key=lambda n: their_s[n])
            found[scope] = Rival(name, their_s[name] / our_s if our_s else 1.0)
    return found


def spreads_over_best(batches: Iterable[Mapping[Scope, Rival]]) -> dict[Scope, Spread]:
    """Compute the spread of the speedup over the best static layout of each batch that has one."""
    batches = list(batches)
    values = {
        scope: [batch[scope].speedup for batch in batches if scope in batch] for scope in SCOPES
    }
    return {scope: spread_of(speedups) for scope, speedups in values.items() if speedups}


# Figures that are named as the attributes of `BatchFigures`; times have shorter names.
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

# A figure, a sign, a number, and perhaps a percent sign: `makespan>+2%`, `peak_buffer_bytes<1e9`.
_THRESHOLD = re.compile(r"\s*(\w+)\s*([<>])\s*([+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(%?)\s*")


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of two plans."""

    name: str  # key of `FIGURES`
    # first, second: its values
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
    """A condition on the second plan, such as ``makespan>+2%`` or ``compute_imbalance>1.1``."""

    name: str  # key of `FIGURES`
    is_above: bool  # whether more than `bound` fails; else less
    bound: float  # a share if `is_relative`, otherwise in the figure's own unit
    is_relative: bool  # whether the bound is on the change from the first plan, not on the value
    text: str  # the condition as it was written

    def is_crossed(self, differences: tuple[Difference, ...]) -> bool:
        """Tell whether the condition holds; a change from 0 counts as infinite."""
        found = next(d for d in differences if d.name == self.name)
        value = found.second
        if self.is_relative:
            value = float("inf") if found.change is None else found.change
        return value > self.bound if self.is_above else value < self.bound


def parse_threshold(text: str, more: Sequence[str]) -> Threshold:
    """Read a condition: a figure, ``<`` or ``>``, and a number; ``%`` makes it a change."""
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
