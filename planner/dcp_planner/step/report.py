"""Reports of steps: policies over the steps of a data set, and one planned batch in its step."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dcp_dsl import Attachment, Dataset, DatasetError, Mask, Sample, Spec, Stack, pack
from dcp_planner.batches.batch import find_masks
from dcp_planner.report.figures import BatchFigures, Difference, Spread, spread_of
from dcp_planner.step.iteration import StepTime, predict_step
from dcp_planner.step.plan_step import StepPlan, plan_step
from dcp_planner.step.policies import NamedPolicy, StepProblem, StepSetting
from dcp_planner.step.setting import Documents, StepModel

MOST_LENGTHS = 1 << 24
"""Lengths that a file may list."""
MOST_FILE_BYTES = 1 << 28
"""Bytes of a file of lengths."""


def read_lengths(path: str) -> list[int]:
    """Read a JSON list of document lengths."""
    file = Path(path)
    try:
        if file.stat().st_size > MOST_FILE_BYTES:
            raise DatasetError(f"{path}: expected at most {MOST_FILE_BYTES} bytes")
        found = json.loads(file.read_text())
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path}: expected a JSON list of lengths; {error}") from error
    if not isinstance(found, list) or not 0 < len(found) <= MOST_LENGTHS:
        raise DatasetError(f"{path}: expected a JSON list of 1 to {MOST_LENGTHS} lengths")
    for place, value in enumerate(found):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
            raise DatasetError(
                f"{path}: entry {place}: expected a whole number of tokens from 1 on, got {value!r}"
            )
    return found


def steps_of_lengths(
    lengths: Sequence[int], value: Mask | Stack, token_budget: int, packs: int
) -> Iterator[Documents]:
    """Cut documents into global batches of `packs` packs in order; the rest is left out."""
    counts = _PairCounts()
    for rows in _steps(lengths, token_budget, packs):
        yield _documents([(value, Sample({}, lengths[row])) for row in rows], counts)


def steps_of_dataset(
    spec: Spec, dataset: Dataset, call: str | None, token_budget: int, packs: int
) -> tuple[Iterator[Documents], int]:
    """Cut a data set into global batches of `packs` packs in order; the rest is left out.

    Each file has the mask of its `for` statement, or all that of `call`. The second result counts
    rows that are left out: longer than `token_budget`, or empty.
    """
    if call is None:
        attachments = spec.attachments_of(dataset)
    else:
        attachments = (Attachment(find_masks(spec, call), {}),) * len(dataset.parts)
    lengths = np.concatenate(
        [
            attachment.lengths(part)
            for attachment, part in zip(attachments, dataset.parts, strict=True)
        ]
    )
    # `pack` sees the kept rows only; `kept` leads from their places back to rows of the data set.
    kept = np.flatnonzero((lengths > 0) & (lengths <= token_budget))
    counts = _PairCounts()

    def bound(row: int) -> tuple[Mask | Stack, Sample]:
        attachment = attachments[dataset.part_of(row)]
        columns = {**dataset[row], "len": int(lengths[row])}
        return attachment.value, attachment.sample(columns)

    steps = (
        _documents([bound(int(kept[place])) for place in places], counts)
        for places in _steps(lengths[kept].tolist(), token_budget, packs)
    )
    return steps, len(lengths) - len(kept)


def _steps(lengths: Sequence[int], token_budget: int, packs: int) -> Iterator[list[int]]:
    """Yield the documents of each global batch.

    Policies deal the documents of a batch anew, so the packs only fix which documents belong to it.
    """
    batches = pack(lengths, token_budget)
    for start in range(0, len(batches) - packs + 1, packs):
        yield [row for batch in batches[start : start + packs] for row in batch]


def _documents(bound: Sequence[tuple[Mask | Stack, Sample]], counts: "_PairCounts") -> Documents:
    tokens = np.array([sample.length for _, sample in bound], np.int64)
    return Documents(tokens, np.array([counts.of(value, sample) for value, sample in bound]))


class _PairCounts:
    """Visible pairs of samples, the mean over a stack's layers; equal samples are counted once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], float] = {}

    def of(self, value: Mask | Stack, sample: Sample) -> float:
        # By identity: the caller keeps the masks alive, so no id is given twice.
        key = id(value), sample.to_json()
        if key not in self._known:
            stack = value if isinstance(value, Stack) else Stack.of(value)
            cycle = stack.cycle()
            pairs = [mask.compile(sample).num_pairs for mask in stack.masks]
            # -1 in the cycle: a layer of linear attention has no pairs, but counts in the mean.
            self._known[key] = sum(pairs[n] for n in cycle if n >= 0) / len(cycle)
        return self._known[key]


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
    """All policies over the same steps."""

    steps: int  # how many
    documents: int  # of all steps
    # `plan_step` first, then the levels that every step allows, then the others
    policies: tuple[PolicyReport, ...]
    levels: dict[str, int]  # how often each level was chosen
    # documents and plan of the first step; `None` if there is no step
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
        """Compute the geometric mean, over the steps, of a policy's time over `plan_step`'s."""
        ours, theirs = (
            next(policy for policy in self.policies if policy.name == wanted).times
            for wanted in (CHOSEN, name)
        )
        # Of ratios the geometric mean: it does not depend on which policy is divided by which.
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
    """Plan each step, and price other policies on the same documents."""
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
    # A level that some step does not allow has fewer times, which could not be compared.
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
    model: StepModel, masks: Sequence[BatchFigures], layers: Sequence[int] | None = None
) -> dict[str, float]:
    """Predict one batch: all devices wait for the attention and for the fullest device's tokens.

    `layers` of a cycle use each mask; the model's layers repeat the cycle. Seconds by `STEP`.
    """
    layer_s = float(np.average([figures.predicted_s for figures in masks], weights=layers))
    # All masks share their owners, so the first one's tokens are those of all.
    attention, first = model.layers * layer_s, masks[0]
    linear = model.linear_seconds(first.token_imbalance * first.tokens / first.devices)
    return dict(zip(STEP, (attention, linear, attention + linear), strict=True))


def batch_spreads(
    model: StepModel, masks: Sequence[Sequence[BatchFigures]], layers: Sequence[int] | None
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
