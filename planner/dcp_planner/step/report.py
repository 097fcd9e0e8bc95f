"""Compare policies over the steps of a data set; the time of one planned batch in a step."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dcp_planner.report.comparison import Difference
from dcp_planner.report.figures import BatchFigures, Spread, spread_of
from dcp_planner.step.assignment import Documents
from dcp_planner.step.iteration import StepTime, predict_step
from dcp_planner.step.model import StepModel
from dcp_planner.step.plan_step import StepPlan, plan_step
from dcp_planner.step.problem import NamedPolicy, StepProblem, StepSetting

CHOSEN = "plan_step"
"""Name under which the plan of every step is listed."""
MOST_SHOWN = 5
"""Levels of a short table."""


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """Predicted times of one policy, one for each step; `is_rival`: no level of `plan_step`."""

    name: str
    times: tuple[StepTime, ...]
    is_rival: bool = False

    def mean(self, field: str) -> float:
        """Return the mean of a figure of `StepTime` over the steps."""
        return math.fsum(getattr(time, field) for time in self.times) / len(self.times)

    def to_json(self) -> dict[str, Any]:
        """Return the means as JSON (`Any`: a text and numbers)."""
        parts = ("linear_s", "attention_s", "waiting_s", "bubble_s", "synchronisation_s")
        return {
            "name": self.name,
            "step_s": self.mean("seconds"),
            "over_balance": self.mean("balance"),
            "max_tokens": self.mean("max_tokens"),
            **{part: self.mean(part) for part in parts},
        }


@dataclass(frozen=True, slots=True)
class StepReport:
    """All policies over the same steps.

    Attributes:
        steps: how many.
        documents: of all steps.
        policies: `plan_step` first, then the levels that every step allows, then the others.
        levels: how often each level was chosen.
        first: the documents of the first step, and its plan; ``None`` if there is no step.
    """

    steps: int
    documents: int
    policies: tuple[PolicyReport, ...]
    levels: dict[str, int]
    first: tuple[Documents, StepPlan] | None = None

    @property
    def rivals(self) -> tuple[str, ...]:
        """Return the names of the policies that `plan_step` does not choose from."""
        return tuple(policy.name for policy in self.policies if policy.is_rival)

    @property
    def shown(self) -> tuple[PolicyReport, ...]:
        """Return the policies for a short table: of the levels only the `MOST_SHOWN` fastest."""
        ours = [policy for policy in self.policies[1:] if not policy.is_rival]
        fastest = sorted(ours, key=lambda policy: policy.mean("seconds"))[:MOST_SHOWN]
        rivals = (policy for policy in self.policies if policy.is_rival)
        return (*self.policies[:1], *fastest, *rivals)

    @property
    def chosen(self) -> str:
        """Return the level that was chosen most often."""
        return max(self.levels, key=lambda name: (self.levels[name], name))

    def speedup_over(self, name: str) -> float:
        """Compute the geometric mean of a policy's times over those of `plan_step`."""
        ours, theirs = (
            next(policy for policy in self.policies if policy.name == wanted).times
            for wanted in (CHOSEN, name)
        )
        logs = [math.log(b.seconds / a.seconds) for a, b in zip(ours, theirs, strict=True)]
        return math.exp(math.fsum(logs) / len(logs))

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON (`Any`: what JSON holds)."""
        return {
            "schema": 1,
            "steps": self.steps,
            "documents": self.documents,
            "policies": [policy.to_json() for policy in self.policies],
            "chosen": self.chosen,
            "levels": self.levels,
        }


def compare_policies(
    steps: Iterable[Documents], setting: StepSetting, others: Sequence[NamedPolicy]
) -> StepReport:
    """Plan each step, and price other policies on the same documents.

    Raises:
        PlanError: if there is no step, or one cannot be run.
    """
    times: dict[str, list[StepTime]] = {}
    levels: dict[str, int] = {}
    count = documents = 0
    first = None
    for step in steps:
        plan = plan_step(step, setting)
        first = first or (step, plan)
        count, documents = count + 1, documents + len(step)
        levels[plan.policy] = levels.get(plan.policy, 0) + 1
        found = {CHOSEN: plan.time, **plan.considered, **_price(step, setting, others)}
        for name, time in found.items():
            times.setdefault(name, []).append(time)
    rivals = {other.name for other in others}
    policies = tuple(
        PolicyReport(name, tuple(found), is_rival=name in rivals)
        for name, found in times.items()
        if len(found) == count
    )
    return StepReport(count, documents, policies, levels, first)


def _price(
    step: Documents, setting: StepSetting, others: Sequence[NamedPolicy]
) -> dict[str, StepTime]:
    problem = StepProblem.of(step, setting)
    return {
        other.name: predict_step(
            step,
            other.assign(problem),
            setting.model,
            setting.cluster,
            synchronisation=setting.synchronisation,
            sharding=other.sharding,
        )
        for other in others
    }


STEP = ("attention_s", "linear_s", "step_s")
"""Times of a batch by name; the last is the sum."""


def batch_seconds(
    model: StepModel, masks: Sequence[BatchFigures], layers: Sequence[int] = (1,)
) -> dict[str, float]:
    """Predict one batch: all devices wait for the attention and for the fullest device's tokens.

    Args:
        model: layers, and the linear part of a token.
        masks: figures of the batch's plan under each mask.
        layers: of one cycle of a stack that use each mask; the model's layers repeat the cycle.

    Returns:
        Seconds by the names of `STEP`.
    """
    cycle = sum(n * figures.predicted_s for n, figures in zip(layers, masks, strict=True))
    attention = model.layers * cycle / sum(layers)
    first = masks[0]
    linear = model.linear_seconds(first.token_imbalance * first.tokens / first.devices)
    return dict(zip(STEP, (attention, linear, attention + linear), strict=True))


def batch_spreads(
    model: StepModel, masks: Sequence[Sequence[BatchFigures]], layers: Sequence[int]
) -> dict[str, Spread]:
    """Predict all batches, given their figures under each mask."""
    found = [batch_seconds(model, batch, layers) for batch in zip(*masks, strict=True)]
    return {name: spread_of([times[name] for times in found]) for name in STEP}


def step_differences(
    models: Sequence[StepModel], figures: Sequence[BatchFigures]
) -> tuple[Difference, ...]:
    """Return the times of two batches side by side, each with its device's share of the model."""
    first, second = (batch_seconds(m, [f]) for m, f in zip(models, figures, strict=True))
    return tuple(Difference(name, first[name], second[name]) for name in STEP)
