"""Write and read one planned step: a JSON file, ``*.dcpstep.json``, that the dashboard shows.

```
{"schema": "dcp.step/1", "policy": name, "step_s": seconds, "over_balance": ratio,
 "max_tokens": ratio, "replicas": n, "context_ranks": n, "stages": n, "micro_batches": n,
 "groups": [{"micro_batch": n, "first": device, "width": devices, "linear_s": seconds,
             "attention_s": seconds, "documents": [number, ...], "tokens": [n, ...]}, ...]}
```

Times of a group are those of all layers and stages on each of its devices. Documents are numbered
in the order of the data set, from 0 for the first of the step.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcp_dsl.files import replacing
from dcp_planner.errors import PlanFileError
from dcp_planner.step.plan_step import StepPlan
from dcp_planner.step.setting import Documents

SCHEMA = "dcp.step/1"
SUFFIX = ".dcpstep.json"
LIMIT_BYTES = 1 << 26
"""Most bytes of a file that is read."""
MOST_DEVICES = 1 << 16
MOST_MICRO_BATCHES = 1 << 12
_AGAIN = "write it again with `dcpm step SPEC --lengths FILE --out FILE.dcpstep.json`"


@dataclass(frozen=True, slots=True)
class StepGroup:
    """Documents that a group of devices computes together in one micro-batch."""

    # micro_batch, first, width: the micro-batch and the devices `first` to `first + width - 1`
    micro_batch: int
    first: int
    width: int
    # linear_s, attention_s: seconds on each of these devices
    linear_s: float
    attention_s: float
    # documents, tokens: numbers of the documents, and their lengths
    documents: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepFile:
    """A planned step as its file holds it."""

    policy: str  # name of the chosen level
    # step_s, over_balance, max_tokens: as of `StepTime`
    step_s: float
    over_balance: float
    max_tokens: float
    # replicas, context_ranks, stages, micro_batches: of the mesh
    replicas: int
    context_ranks: int
    stages: int
    micro_batches: int
    groups: tuple[StepGroup, ...]  # by micro-batch, then by first device, wide ones first

    @property
    def devices(self) -> int:
        """Devices of one stage."""
        return self.replicas * self.context_ranks


def write_step(path: Path, plan: StepPlan, documents: Documents) -> None:
    """Write a planned step; an older file of this name stays until the new one is whole."""
    mesh = plan.assignment.mesh
    groups = [
        {
            "micro_batch": micro_batch, "first": first, "width": width, "linear_s": linear,
            "attention_s": attention, "documents": rows.tolist(),
            "tokens": documents.tokens[rows].tolist(),
        }
        for (micro_batch, first, width, rows), (linear, attention) in zip(
            plan.assignment.groups(), plan.group_seconds, strict=True
        )
    ]  # fmt: skip
    document = {
        "schema": SCHEMA, "policy": plan.policy, "step_s": plan.time.seconds,
        "over_balance": plan.time.balance, "max_tokens": plan.time.max_tokens,
        "replicas": mesh.replicas, "context_ranks": mesh.context_ranks, "stages": mesh.stages,
        "micro_batches": mesh.micro_batches, "groups": groups,
    }  # fmt: skip
    with replacing(path, PlanFileError) as draft:
        draft.write_text(json.dumps(document), encoding="utf-8")


def read_step(path: Path) -> StepFile:
    """Read a planned step."""
    try:
        # One byte more tells a larger file; a size asked before could have changed since.
        with path.open("rb") as file:
            content = file.read(LIMIT_BYTES + 1)
    except OSError as error:
        raise PlanFileError(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > LIMIT_BYTES:
        raise PlanFileError(f"{path}: expected at most {LIMIT_BYTES} bytes; plan a smaller step")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise PlanFileError(f"{path}: expected JSON, got {error}; {_AGAIN}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise PlanFileError(f"{path}: expected a step of schema {SCHEMA}; {_AGAIN}")
    try:
        return _step(document)
    except PlanFileError as error:
        raise PlanFileError(f"{path}: {error}; {_AGAIN}") from error


def _step(document: Mapping[str, Any]) -> StepFile:
    """Check a document; `Any`: JSON values."""
    micro_batches = _whole(document, "micro_batches", 1, MOST_MICRO_BATCHES)
    replicas = _whole(document, "replicas", 1, MOST_DEVICES)
    ranks = _whole(document, "context_ranks", 1, MOST_DEVICES // replicas)
    groups = document.get("groups")
    if not isinstance(groups, list):
        raise PlanFileError("groups: expected a list")
    return StepFile(
        policy=str(document.get("policy"))[:200],  # a name, only shown
        step_s=_number(document, "step_s"),
        over_balance=_number(document, "over_balance"),
        max_tokens=_number(document, "max_tokens"),
        replicas=replicas,
        context_ranks=ranks,
        stages=_whole(document, "stages", 1, MOST_DEVICES),
        micro_batches=micro_batches,
        groups=tuple(_group(entry, micro_batches, replicas * ranks) for entry in groups),
    )


def _group(entry: Any, micro_batches: int, devices: int) -> StepGroup:  # Any: a JSON value
    if not isinstance(entry, dict):
        raise PlanFileError(f"groups: expected objects, got {entry!r:.40}")
    first = _whole(entry, "first", 0, devices - 1)
    documents, tokens = _wholes(entry, "documents"), _wholes(entry, "tokens")
    if len(documents) != len(tokens):
        raise PlanFileError(f"a group has {len(documents)} documents and {len(tokens)} tokens")
    return StepGroup(
        micro_batch=_whole(entry, "micro_batch", 0, micro_batches - 1),
        first=first,
        width=_whole(entry, "width", 1, devices - first),
        linear_s=_number(entry, "linear_s"),
        attention_s=_number(entry, "attention_s"),
        documents=documents,
        tokens=tokens,
    )


def _whole(entry: Mapping[str, Any], name: str, least: int, most: int) -> int:
    value = entry.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise PlanFileError(
            f"{name}: expected a whole number of {least} to {most}, got {value!r:.40}"
        )
    return value


def _number(entry: Mapping[str, Any], name: str) -> float:
    value = entry.get(name)
    # Python's JSON knows NaN and Infinity, for which the range does not hold.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e300:
        raise PlanFileError(f"{name}: expected a number of 0 or more, got {value!r:.40}")
    return float(value)


def _wholes(entry: Mapping[str, Any], name: str) -> tuple[int, ...]:
    values = entry.get(name)
    if not isinstance(values, list):
        raise PlanFileError(f"{name}: expected a list")
    return tuple(_whole({name: value}, name, 0, 1 << 40) for value in values)
