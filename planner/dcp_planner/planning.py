"""Batch in, plan, figures and file out: what `dcpm plan` does with each batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dcp_dsl import BlockSparsity, Form
from dcp_planner.batch import Batch, BlockSize, StackUse
from dcp_planner.batch_report import BatchFigures, Spread, figures_of, spread_of
from dcp_planner.build import build_plan
from dcp_planner.cluster import Cluster, ModelShape
from dcp_planner.compile_clock import stopwatch
from dcp_planner.config import PlanConfig
from dcp_planner.cuts import choose_block_size, cut_stack
from dcp_planner.fingerprint import digest
from dcp_planner.partitioning import check_installed, find_partitioner, static_layouts
from dcp_planner.plan import Plan
from dcp_planner.plan_file import write_plan
from dcp_planner.plan_stack import build_stack
from dcp_planner.report import measure
from dcp_planner.simulator import simulate
from dcp_planner.static_rivals import Rival, Scope, best_static, over_caps
from dcp_planner.trace import Trace

STATIC = "static"
"""Stands for every static layout in `Planning.against`."""


@dataclass(frozen=True, slots=True)
class Planning:
    """How batches are planned.

    Attributes:
        shape, cluster, config: as `build_plan` takes them.
        block: tokens per block; ``None``: cut at the mask's breakpoints into blocks that can be
            placed well.
        against: backends to compare with; `STATIC` for every static layout that heads and
            devices allow.

    Raises:
        PlanError: if there is no backend of a name, or it is not installed.
    """

    shape: ModelShape
    cluster: Cluster
    config: PlanConfig
    block: int | None
    against: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        named = (name for name in self.against if name != STATIC)
        for name in (self.config.partitioner, *named):
            check_installed(find_partitioner(name))

    @property
    def block_size(self) -> BlockSize:
        """Give the block size, or who cuts."""
        return self._cut if self.block is None else self.block

    def _cut(self, masks: Sequence[Sequence[Form]]) -> tuple[BlockSparsity, ...]:
        sizes = [choose_block_size(forms, self.cluster, self.config) for forms in masks]
        return cut_stack(masks, min(sizes))

    def others(self) -> tuple[str, ...]:
        """Give the backends to compare with, by name, each once."""
        static = static_layouts(self.shape, self.cluster)
        named = (static if name == STATIC else [name] for name in self.against)
        return tuple(dict.fromkeys(name for names in named for name in names))


@dataclass(frozen=True, slots=True)
class BatchRow:
    """What is told of one planned batch.

    Attributes:
        figures: of its plan.
        mask, origin: what was planned.
        digest: of the plan.
        others: figures of the other backends, by name.
        over_caps: caps that each of them exceeds, with the most over the mean that it reaches.
        notes, warnings: as sentences for people.
        index, num_available, rows: as of the `Batch`.
        lengths: of its sequences, in tokens.
        length_counts: how many sequences have ``2**i`` to ``2**(i+1) - 1`` tokens, by i.
        density: visible pairs over those of a causal mask.
        file: where the plan was written, or ``None``.
    """

    figures: BatchFigures
    mask: str
    origin: str
    digest: str
    others: Mapping[str, BatchFigures]
    over_caps: Mapping[str, Mapping[str, float]]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    index: int
    num_available: int | None
    rows: tuple[int, int] | None
    lengths: Spread
    length_counts: tuple[int, ...]
    density: float
    file: str | None = None

    @property
    def best_static(self) -> dict[Scope, Rival]:
        """The fastest static layouts among the other backends."""
        seconds = {name: theirs.predicted_s for name, theirs in self.others.items()}
        return best_static(self.figures.predicted_s, seconds, self.over_caps)

    def to_json(self) -> dict[str, Any]:
        """Give a JSON object; `Any`: what JSON holds."""
        others = {
            name: {
                "predicted_forward_s": theirs.predicted_forward_s,
                "predicted_backward_s": theirs.predicted_backward_s,
                "plan_s": theirs.plan_s,
                "compute_imbalance": theirs.compute_imbalance,
                "token_imbalance": theirs.token_imbalance,
                "over_caps": list(self.over_caps[name]),
            }
            for name, theirs in self.others.items()
        }
        return self.figures.to_json() | {
            "index": self.index,
            "rows": list(self.rows) if self.rows else None,
            "lengths": self.lengths.to_json(),
            "length_counts": list(self.length_counts),
            "density": self.density,
            "mask": self.mask,
            "origin": self.origin,
            "digest": self.digest,
            "file": self.file,
            "warnings": list(self.warnings),
            "against": others,
            "best_static": {scope: rival._asdict() for scope, rival in self.best_static.items()},
        }


@dataclass(frozen=True, slots=True, eq=False)
class PlannedBatch:
    """One batch under one mask, planned and predicted.

    Attributes:
        plan, trace: the plan and its predicted timeline.
        row: what is told of it.
        use: where a stack uses the mask; ``None`` if all layers do.
    """

    plan: Plan
    trace: Trace
    row: BatchRow
    use: StackUse | None = None

    def written(self, path: Path) -> "PlannedBatch":
        """Write plan and trace and remember where.

        Raises:
            PlanFileError: if the file cannot be written.
        """
        write_plan(path, self.plan, [self.trace])
        return replace(self, row=replace(self.row, file=str(path)))


def plan_batch(masks: Sequence[Batch], planning: Planning) -> tuple[PlannedBatch, ...]:
    """Plan one batch with the chosen backend and with those it is compared with.

    Args:
        masks: the batch under its mask, or under every mask of a stack: those are planned over one
            ownership of tokens, and the planning time of each is that of all.
        planning: how.

    Raises:
        PlanError: as `build_plan` and `build_stack`.
    """
    own = _planned(masks, planning, planning.config)
    others = {
        name: _compared(masks, planning, replace(planning.config, partitioner=name))
        for name in planning.others()
    }
    return tuple(
        PlannedBatch(
            plan,
            simulate(plan),
            _row(
                batch,
                plan,
                figures,
                {name: theirs[at] for name, theirs in others.items()},
                planning.config,
            ),
            batch.use,
        )
        for at, (batch, (plan, figures)) in enumerate(zip(masks, own, strict=True))
    )


def _row(
    batch: Batch,
    plan: Plan,
    figures: BatchFigures,
    others: Mapping[str, BatchFigures],
    config: PlanConfig,
) -> BatchRow:
    lengths = np.diff(plan.cu_seqlens).tolist()
    return BatchRow(
        figures=figures,
        mask=batch.provenance.mask,
        origin=batch.provenance.origin,
        digest=digest(plan),
        others=others,
        over_caps={name: over_caps(theirs, config) for name, theirs in others.items()},
        notes=batch.notes,
        warnings=plan.warnings,
        index=batch.index,
        num_available=batch.num_available,
        rows=batch.rows,
        lengths=spread_of(lengths),
        length_counts=_length_counts(lengths),
        density=measure(plan).density,
    )


def _compared(masks: Sequence[Batch], planning: Planning, config: PlanConfig) -> list[BatchFigures]:
    """Plan with another backend; a static layout stays as it is under every mask of a stack."""
    if config.partitioner.startswith(f"{STATIC}:"):
        alone = [replace(batch, use=None) for batch in masks]
        return [_planned([batch], planning, config)[0][1] for batch in alone]
    return [figures for _, figures in _planned(masks, planning, config)]


def _planned(
    masks: Sequence[Batch], planning: Planning, config: PlanConfig
) -> list[tuple[Plan, BatchFigures]]:
    shape, cluster = planning.shape, planning.cluster
    layers = [(batch.sparsity, batch.use.layers) for batch in masks if batch.use is not None]
    with stopwatch() as watch:
        if layers:
            plans = build_stack(layers, shape, cluster, config).plans
        else:
            plans = (build_plan(masks[0].sparsity, shape, cluster, config),)
    named = [
        replace(plan, provenance=batch.provenance) for plan, batch in zip(plans, masks, strict=True)
    ]
    return [(plan, figures_of(plan, watch.seconds)) for plan in named]


def _length_counts(lengths: Sequence[int]) -> tuple[int, ...]:
    """Count sequences by the power of two below their length.

    >>> _length_counts([1, 2, 3, 9])
    (1, 2, 0, 1)
    """
    powers = [length.bit_length() - 1 for length in lengths if length > 0]
    return tuple(int(count) for count in np.bincount(powers)) if powers else ()
