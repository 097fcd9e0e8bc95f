"""Write and read the report of a planned data set: one JSON file, ``*.dcpbatches.json``.

The dashboard shows the report. The file lies beside the plans, if they are kept. Planning rewrites
it batch by batch, so that a person can watch a long run.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dcp_dsl.files import replacing
from dcp_planner.batches.batch import StackUse
from dcp_planner.batches.planning import BatchRow, PlanningChoices
from dcp_planner.errors import PlanFileError
from dcp_planner.jit import compile_seconds
from dcp_planner.report.figures import (
    BatchFigures,
    Scope,
    Spread,
    best_static,
    distribution_of,
    json_text,
    speedups_over,
    spread_of,
    spreads_over_best,
)

SCHEMA = "dcp.batches/1"
STACK_SCHEMA = "dcp.stack/1"
"""Schema of one document with the reports of all masks of a stack."""
SUFFIX = ".dcpbatches.json"
MOST_BATCHES = 4096
"""Batches of one report: some 2 kB each."""
LIMIT_BYTES = 1 << 26
"""Most bytes of a report that is read."""

REWRITE_S = 3.0  # seconds between rewrites: a report of thousands of batches is megabytes
_AGAIN = "write it again with `dcpm plan SPEC --dataset PATH --batches N --out FOLDER`"


@dataclass(frozen=True, slots=True)
class DatasetRun:
    """Command that a report answers: batches to plan, and choices of planning."""

    # spec, dataset: paths as the person gave them; `None`: samples of the command line
    spec: str
    dataset: str | None
    mask: str | None  # call that replaces the spec's `for ... use`, or `None`.
    token_budget: int  # most tokens of a batch
    # first_batch, num_wanted: range of batches
    first_batch: int
    num_wanted: int
    planning: PlanningChoices  # shape, cluster and choices
    use: StackUse | None = None  # where a stack uses the mask; `None` if all layers do

    def document(self, rows: Sequence[BatchRow], *, is_complete: bool) -> dict[str, Any]:
        """Return the report as a JSON object; `Any`: what JSON holds."""
        figures = [row.figures for row in rows]
        others = {name: [row.others[name] for row in rows] for name in self.planning.others()}
        return {
            "schema": SCHEMA,
            "spec": self.spec,
            "dataset": self.dataset,
            "mask": self.mask,
            "stack": asdict(self.use) if self.use else None,
            "token_budget": self.token_budget,
            "first_batch": self.first_batch,
            "num_wanted": self.num_wanted,
            # The same in all rows, as are the notes; a report without rows is of a run that begins.
            "num_available": rows[0].num_available if rows else None,
            "is_complete": is_complete,
            "compile_s": compile_seconds(),
            "cluster": asdict(self.planning.cluster),
            "shape": self.planning.shape.to_json(),
            "config": asdict(self.planning.config),
            "notes": list(rows[0].notes) if rows else [],
            "batches": [row.to_json() for row in rows],
            "distribution": _spreads(distribution_of(figures)) if rows else {},
            "speedup": _spreads(speedups_over(figures, others)) if rows else {},
            "speedup_over_best_static": _spreads(spreads_over_best(r.best_static for r in rows)),
        }


def _spreads(found: Any) -> dict[str, dict[str, float]]:  # Any: a mapping to Spread
    return {name: spread._asdict() for name, spread in found.items()}


SUMMED = ("predicted_forward_s", "predicted_backward_s", "forward_bytes", "backward_bytes")
"""Figures that add up over the layers of a stack."""


def _over_layers(uses: Sequence[StackUse], figures: Sequence[BatchFigures], name: str) -> float:
    """Add up a figure over the layers of one cycle, given the figures under each mask."""
    pairs = zip(uses, figures, strict=True)
    return sum(use.layers * float(getattr(one, name)) for use, one in pairs)


def stack_totals(uses: Sequence[StackUse], rows: Sequence[Sequence[BatchRow]]) -> dict[str, Spread]:
    """Add up the costs of all layers of one cycle of a stack, for each batch."""
    batches = [[row.figures for row in batch] for batch in zip(*rows, strict=True)]
    return {n: spread_of([_over_layers(uses, batch, n) for batch in batches]) for n in SUMMED}


def stack_speedups(
    uses: Sequence[StackUse], rows: Sequence[Sequence[BatchRow]]
) -> tuple[dict[str, Spread], dict[Scope, Spread]]:
    """Compute how many times faster all layers are predicted than with each other method.

    The second result is over the best static layout of each batch.
    """
    speedups: dict[str, list[float]] = {name: [] for name in rows[0][0].others}
    rivals = []
    for batch in zip(*rows, strict=True):
        ours = _over_layers(uses, [row.figures for row in batch], "predicted_s")
        theirs = {
            name: _over_layers(uses, [row.others[name] for row in batch], "predicted_s")
            for name in speedups
        }
        for name, seconds in theirs.items():
            speedups[name].append(seconds / (ours or 1.0))
        # A layout exceeds a cap if it does so under any mask.
        over = {name: {cap for row in batch for cap in row.over_caps[name]} for name in theirs}
        rivals.append(best_static(ours, theirs, over))
    return {name: spread_of(values) for name, values in speedups.items()}, spreads_over_best(rivals)


def stack_document(
    runs: Sequence[DatasetRun], rows: Sequence[Sequence[BatchRow]]
) -> dict[str, Any]:
    """Return the reports of all masks of a stack as one JSON object; `Any`: what JSON holds."""
    uses = [run.use for run in runs if run.use is not None]
    documents = [run.document(own, is_complete=True) for run, own in zip(runs, rows, strict=True)]
    speedups, over_best = stack_speedups(uses, rows)
    return {
        "schema": STACK_SCHEMA,
        "stack": uses[0].stack,
        "period": uses[0].period,
        "total": _spreads(stack_totals(uses, rows)),
        "speedup": _spreads(speedups),
        "speedup_over_best_static": _spreads(over_best),
        "masks": documents,
    }


class ReportWriter:
    """Writer of a report that grows batch by batch: the file is whole at any time."""

    def __init__(self, path: Path, run: DatasetRun) -> None:
        self._path, self._run, self._written = path, run, float("-inf")

    def write(self, rows: Sequence[BatchRow], *, is_complete: bool = False) -> None:
        """Write the batches so far, at most every `REWRITE_S` seconds but for the last time."""
        if not is_complete and time.monotonic() - self._written < REWRITE_S:
            return
        document = self._run.document(rows, is_complete=is_complete)
        for batch in document["batches"]:
            if batch["file"] is not None:
                batch["file"] = Path(batch["file"]).name  # it lies beside the report
        text = json_text(document) + "\n"
        with replacing(self._path, PlanFileError) as draft:
            draft.write_text(text, encoding="utf-8")
        # After the writing: however long that takes, most of the time goes to planning.
        self._written = time.monotonic()


def read_batches(path: str | Path) -> dict[str, Any]:
    """Read a report; `Any`: what JSON holds.

    The outer form is checked: schema, kinds of the main entries, number of batches. Code that reads
    single figures must expect missing ones.

    Raises:
        PlanFileError: if the file is missing, too large, no JSON, or no such report.
    """
    path = Path(path)
    try:
        document = json.loads(_read_text(path))
        _check(document)
    except PlanFileError as error:
        raise PlanFileError(f"report {path}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise PlanFileError(f"report {path}: expected JSON, got {error}; {_AGAIN}") from error
    found: dict[str, Any] = document
    return found


def _read_text(path: Path) -> str:
    # No pipe and no device, which might never end.
    if not path.is_file():
        raise PlanFileError(f"there is no such file; {_AGAIN}")
    try:
        if path.stat().st_size > LIMIT_BYTES:
            raise PlanFileError(f"expected at most {LIMIT_BYTES} bytes, got a larger file")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise PlanFileError(f"it cannot be read: {error.strerror or error}") from error


def _check(document: Any) -> None:  # Any: what JSON holds
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise PlanFileError(f"expected a JSON object of schema {SCHEMA!r}; {_AGAIN}")
    kinds = {"batches": list, "distribution": dict, "speedup": dict, "notes": list}
    for name, kind in kinds.items():
        if not isinstance(document.get(name), kind):
            raise PlanFileError(f"expected `{name}` to be a {kind.__name__}; {_AGAIN}")
    batches = document["batches"]
    if len(batches) > MOST_BATCHES or not all(isinstance(batch, dict) for batch in batches):
        raise PlanFileError(f"expected at most {MOST_BATCHES} batches, each an object; {_AGAIN}")
