"""What a plan gains: how many times faster attention is than with other layouts of the batch.

A layout that exceeds the cap on tokens needs memory that the plan does without, so the fastest one
within that cap is named beside the fastest of all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dcp_dashboard.library.index import DatasetReport
from dcp_dashboard.library.plans import LoadedPlan
from dcp_planner import PlanConfig, measure, predict
from dcp_planner.causes import static_plans
from dcp_planner.report import best_static, over_caps

SCOPES = {
    "within_token_cap": "fastest static layout within the token cap",
    "of_all": "fastest static layout",
}
"""Rows that name the strongest rival, the fair one first."""


@dataclass(frozen=True, slots=True)
class Gain:
    """How many times faster attention is than with another layout, in one batch or in several.

    Attributes:
        label: the layout, or what the layouts of the batches have in common.
        note: the caps that it exceeds.
        speedups: of every batch: predicted time of the layout over that of the plan.
    """

    label: str
    note: str
    speedups: Sequence[float]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; `Any`: texts and numbers."""
        return {"label": self.label, "note": self.note, "speedups": list(self.speedups)}


def gains_of_plan(loaded: LoadedPlan) -> list[Gain]:
    """Plan every static layout of the batch and predict its time; the strongest rival first.

    Costs some 0.3 s for a thousand tiles.

    Raises:
        PlanError: if the plan has too many tiles to plan them while somebody waits.
    """
    ours = loaded.predicted.diagnosis.seconds
    plans = static_plans(loaded.plan) if ours else {}
    seconds = {name: predict(plan).seconds for name, plan in plans.items()}
    over = {name: over_caps(measure(plan), PlanConfig()) for name, plan in plans.items()}
    best = best_static(ours, seconds, over)
    rows = [
        Gain(f"{label}: {best[scope].name}", _caps(over[best[scope].name]), [best[scope].speedup])
        for scope, label in SCOPES.items()
        if scope in best
    ]
    # Both rows are one if the fastest layout keeps the cap.
    if len({rival.name for rival in best.values()}) == 1:
        rows = rows[:1]
    named = sorted(seconds, key=lambda name: seconds[name])
    return [*rows, *(Gain(name, _caps(over[name]), [seconds[name] / ours]) for name in named)]


def gains_of_report(report: DatasetReport) -> list[Gain]:
    """Return the gains of a planned data set over its batches; the strongest rivals first."""
    rows = []
    for scope, label in SCOPES.items():
        found = [best[scope].speedup for batch in report.batches if scope in (best := batch.rivals)]
        if found:
            missing = len(report.batches) - len(found)
            rows.append(Gain(label, f"none in {missing} of the batches" if missing else "", found))
    methods = sorted(report.methods, key=lambda name: sorted(report.speedups(name)))
    for name in methods:
        over = sum(name in batch.over_tokens for batch in report.batches)
        note = f"exceeds the token cap in {over} of {len(report.batches)} batches" if over else ""
        rows.append(Gain(name, note, report.speedups(name).tolist()))
    return rows


def _caps(over: Mapping[str, float]) -> str:
    told = " and ".join(f"{most:.2f} times the mean {name}" for name, most in over.items())
    return f"exceeds a cap: {told}" if told else ""
