"""What a plan gains: how many times faster attention is than with other layouts, and a whole step.

A layout that exceeds the cap on tokens needs memory that the plan does without, so the fastest one
within that cap is named beside the fastest of all. The step is that of a model whose heads the
plan has: attention of all layers, and the linear part of the device with most tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from dcp_dashboard.library.index import BatchLine, DatasetReport
from dcp_dashboard.library.plans import LoadedPlan
from dcp_planner import ModelShape, Plan, PlanConfig, PlanError, measure, predict
from dcp_planner.causes import static_plans
from dcp_planner.report import best_static, over_caps
from dcp_planner.step import MODELS, StepModel, step_model

SCOPES = {
    "of_all": "the fastest static layout",
    "within_token_cap": "the fastest static layout within the token cap",
}
"""Names of the strongest rivals, the strongest first."""

Rivals: TypeAlias = Sequence[tuple[BatchLine, str]]
"""Batches, each with the name of another method that it was planned with."""
GAIN = "Predicted speed-up of attention over the fastest static layout (dcpm plan --against static)"
GAIN_IN_CAP = f"{GAIN}, of those within the token cap"
"""Meanings of two columns of tables."""


@dataclass(frozen=True, slots=True)
class Gain:
    """How many times faster attention of every batch is than with a layout, and steps of models.

    `note` names caps that the layout exceeds, `told` what a sentence calls a strongest rival.
    """

    label: str
    note: str
    speedups: Sequence[float]
    steps: Mapping[str, Sequence[float]]
    told: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; `Any`: texts, numbers and lists of them."""
        return {
            "label": self.label, "note": self.note, "speedups": list(self.speedups),
            "steps": {name: list(found) for name, found in self.steps.items()}, "told": self.told,
        }  # fmt: skip


def models_of(cluster: str, shape: ModelShape) -> dict[str, StepModel]:
    """Return, by name, the share of a device of each preset whose heads are like those of a plan.

    There is none for a cluster whose name tells no rate of matrix products, such as CPUs.
    """
    found = {}
    for name in MODELS:
        try:
            model = step_model(name, cluster)
        except PlanError:
            return {}
        heads = model.shape
        is_like = heads.q_heads * shape.kv_heads == heads.kv_heads * shape.q_heads
        if is_like and heads.head_dim == shape.head_dim:
            found[name] = model.with_heads(shape)
    return found


def gains_of_plan(loaded: LoadedPlan) -> list[Gain]:
    """Plan every static layout of the batch and predict its time, the fastest first.

    Costs some 0.3 s for a thousand tiles.
    """
    ours = loaded.predicted.diagnosis.seconds
    plans = static_plans(loaded.plan) if ours else {}
    seconds = {name: predict(plan).seconds for name, plan in plans.items()}
    over = {name: over_caps(measure(plan), PlanConfig()) for name, plan in plans.items()}
    best = best_static(ours, seconds, over)
    models = models_of(loaded.plan.cluster.name, loaded.plan.shape)

    def steps(theirs: Plan, their_s: float) -> dict[str, list[float]]:
        sides = ((their_s, _fullest(theirs)), (ours, _fullest(loaded.plan)))
        return {name: [_ratio(model, *sides)] for name, model in models.items()}

    found = []
    for name in sorted(seconds, key=lambda name: seconds[name]):
        ranks = [
            text for scope, text in SCOPES.items() if scope in best and best[scope].name == name
        ]
        told = f"{name}, {ranks[0]}" if ranks else ""  # the fastest of all, if it is both
        caps, of_step = _caps(over[name]), steps(plans[name], seconds[name])
        found.append(Gain(name, caps, [seconds[name] / ours], of_step, told))
    return found


def gains_of_report(report: DatasetReport) -> list[Gain]:
    """Return the gains of a planned data set over its batches; the strongest rivals first."""
    models = models_of(report.cluster_name, report.shape) if report.shape else {}

    def gain(label: str, note: str, rivals: Rivals, told: str = "") -> Gain:
        of_steps = {
            name: found
            for name, model in models.items()
            if len(found := _steps_of(model, rivals)) == len(rivals)
        }
        return Gain(label, note, [b.speedups[name] for b, name in rivals], of_steps, told)

    rows = []
    for scope, label in SCOPES.items():
        found = [(b, best[scope].name) for b in report.batches if scope in (best := b.rivals)]
        if found:
            missing = len(report.batches) - len(found)
            note = f"none in {missing} of the batches" if missing else ""
            told = f"{label}, batch by batch"
            rows.append(gain(label.removeprefix("the "), note, found, told))
    methods = sorted(report.methods, key=lambda name: sorted(report.speedups(name)))
    for name in methods:
        over = sum(name in batch.over_tokens for batch in report.batches)
        note = f"exceeds the token cap in {over} of {len(report.batches)} batches" if over else ""
        rows.append(gain(name, note, [(b, name) for b in report.batches if name in b.speedups]))
    return rows


def _steps_of(model: StepModel, rivals: Rivals) -> list[float]:
    """Compute the speed-up of each batch's step; batches without the figures are left out."""
    found = []
    for batch, name in rivals:
        ours, most = batch.figures.get("seconds"), batch.fullest()
        theirs = batch.fullest(name)
        if ours and most and theirs:
            sides = ((batch.speedups[name] * ours, theirs), (ours, most))
            found.append(_ratio(model, *sides))
    return found


def _ratio(model: StepModel, theirs: tuple[float, float], ours: tuple[float, float]) -> float:
    """Divide two steps; each side: seconds of attention in a layer, most tokens of a device."""
    their_s, our_s = (
        model.layers * layer_s + model.linear_seconds(tokens) for layer_s, tokens in (theirs, ours)
    )
    return their_s / our_s


def _fullest(plan: Plan) -> float:
    return float(max(measure(plan).owned_tokens))


def _caps(over: Mapping[str, float]) -> str:
    # Two decimals would write 1.104 as 1.10, which is no more than the cap.
    texts = (f"{most:.2f}" if most >= 1.2 else f"{most:.3f}" for most in over.values())
    pairs = zip(texts, over, strict=True)
    told = ", ".join(f"{text}\u00d7 the mean {name}" for text, name in pairs)
    if not told:
        return ""
    # Compute above its cap is in the predicted time; tokens above theirs need memory.
    return f"above the cap: {told}" if "tokens" in over else f"within the token cap; {told}"
