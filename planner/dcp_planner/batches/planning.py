"""Plan one batch under every mask, compare it with other partitioners, and keep its figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dcp_dsl import BlockSparsity, Form
from dcp_planner.batches.batch import Batch, BlockSize, StackUse
from dcp_planner.jit import stopwatch
from dcp_planner.model.cluster import Cluster, ModelShape
from dcp_planner.model.config import PlanConfig
from dcp_planner.model.cuts import cut_stack
from dcp_planner.plan.block_size import fastest_block_size
from dcp_planner.plan.build import build_plan, build_stack
from dcp_planner.plan.file import write_plan
from dcp_planner.report.figures import (
    BatchFigures,
    Rival,
    Scope,
    Spread,
    best_static,
    figures_of,
    over_caps,
    spread_of,
)
from dcp_planner.search.partitioners import check_installed, find_partitioner, static_layouts
from dcp_planner.simulation.simulator import simulate
from dcp_planner.simulation.trace import Trace
from dcp_planner.tables.metrics import measure
from dcp_planner.tables.plan import Plan
from dcp_planner.tables.programs import digest

STATIC = "static"
"""Every static layout, in `PlanningChoices.against`."""


# Attributes of `BatchRow` that a report holds as they are.
_TOLD = (
    "index", "rows", "length_counts", "density", "mask", "origin", "digest", "file", "warnings",
)  # fmt: skip
# Figures of the other partitioners that a report holds.
_COMPARED = (
    "predicted_forward_s", "predicted_backward_s", "plan_s", "compute_imbalance", "token_imbalance",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlanningChoices:
    """Choices for planning batches."""

    # shape, cluster, config: as `build_plan` takes them
    shape: ModelShape
    cluster: Cluster
    config: PlanConfig
    # tokens per block; `None`: cut at the mask's breakpoints, into blocks that suit the cluster
    block: int | None
    # partitioners to compare with; `STATIC` for every static layout that heads and devices allow
    against: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        named = (name for name in self.against if name != STATIC)
        for name in (self.config.partitioner, *named):
            check_installed(find_partitioner(name))

    @property
    def block_size(self) -> BlockSize:
        """Block size, or a function that cuts the sequences of all masks at common places."""
        return self._cut if self.block is None else self.block

    def _cut(self, masks: Sequence[Sequence[Form]]) -> tuple[BlockSparsity, ...]:
        return cut_stack(masks, fastest_block_size(masks, self.shape, self.cluster, self.config))

    def others(self) -> tuple[str, ...]:
        """List the names of the partitioners to compare with, each once."""
        static = static_layouts(self.shape, self.cluster)
        named = (static if name == STATIC else [name] for name in self.against)
        return tuple(dict.fromkeys(name for names in named for name in names))


@dataclass(frozen=True, slots=True)
class BatchRow:
    """Summary of one batch planned under one mask."""

    # figures, digest: of its plan
    figures: BatchFigures
    # mask, origin: the mask's call, and where the batch comes from
    mask: str
    origin: str
    digest: str
    others: Mapping[str, BatchFigures]  # figures of the other partitioners, by name
    # caps that each of them exceeds, with the most over the mean that it reaches
    over_caps: Mapping[str, Mapping[str, float]]
    # notes, warnings: as sentences for people
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    # index, num_available, rows: as of the `Batch`
    index: int
    num_available: int | None
    rows: tuple[int, int] | None
    lengths: Spread  # of its sequences, in tokens
    length_counts: tuple[int, ...]  # number of sequences with `2**i` to `2**(i+1) - 1` tokens, by i
    density: float  # visible pairs over those of a causal mask
    file: str | None = None  # path of the written plan, or `None`

    @property
    def best_static(self) -> dict[Scope, Rival]:
        """The fastest static layouts among the other backends."""
        seconds = {name: theirs.predicted_s for name, theirs in self.others.items()}
        return best_static(self.figures.predicted_s, seconds, self.over_caps)

    @property
    def against(self) -> dict[str, Any]:
        """The other backends' figures, and the caps that each exceeds; `Any`: JSON values."""
        return {
            name: {figure: getattr(theirs, figure) for figure in _COMPARED}
            | {"over_caps": list(self.over_caps[name])}
            for name, theirs in self.others.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; `Any`: what JSON holds."""
        return (
            self.figures.to_json()
            | {name: getattr(self, name) for name in _TOLD}
            | {
                "lengths": self.lengths._asdict(),
                "against": self.against,
                "best_static": {scope: r._asdict() for scope, r in self.best_static.items()},
            }
        )


@dataclass(frozen=True, slots=True, eq=False)
class PlannedMask:
    """One batch planned under one mask."""

    # plan, trace: the plan and its predicted timeline
    plan: Plan
    trace: Trace
    row: BatchRow  # its summary
    use: StackUse | None = None  # where a stack uses the mask; `None` if all layers do

    def written(self, path: Path) -> "PlannedMask":
        """Write plan and trace, and return a copy whose row names the file."""
        write_plan(path, self.plan, [self.trace], against=self.row.against)
        return replace(self, row=replace(self.row, file=str(path)))


def plan_batch(masks: Sequence[Batch], planning: PlanningChoices) -> tuple[PlannedMask, ...]:
    """Plan one batch, under its mask or all of a stack, with the chosen partitioner and its rivals.

    Masks of a stack are planned over one ownership, and each reports the planning time of all.
    """
    ours = _planned(masks, planning, planning.config)
    # "auto" has chosen a type for our plan. The others get the same, so that bytes compare.
    partials = ours[0][0].shape.partials
    others: dict[str, list[BatchFigures]] = {}
    for name in planning.others():
        # A static layout knows no stack: it is planned under each mask alone, as it is.
        is_static = name.startswith(f"{STATIC}:")
        parts = [[replace(batch, use=None)] for batch in masks] if is_static else [masks]
        config = replace(planning.config, partitioner=name, partials=partials)
        others[name] = [f for part in parts for _, f in _planned(part, planning, config)]
    return tuple(
        _summed_up(batch, plan, figures, {name: theirs[at] for name, theirs in others.items()},
                   planning.config)
        for at, (batch, (plan, figures)) in enumerate(zip(masks, ours, strict=True))
    )  # fmt: skip


def _planned(
    masks: Sequence[Batch], planning: PlanningChoices, config: PlanConfig
) -> list[tuple[Plan, BatchFigures]]:
    shape, cluster = planning.shape, planning.cluster
    layers = [(batch.sparsity, batch.use.layers) for batch in masks if batch.use is not None]
    with stopwatch() as watch:
        if layers:
            plans = build_stack(layers, shape, cluster, config).plans
        else:
            plans = (build_plan(masks[0].sparsity, shape, cluster, config),)
    named = [
        replace(plan, provenance=batch.provenance, sequence_names=batch.names)
        for plan, batch in zip(plans, masks, strict=True)
    ]
    return [(plan, figures_of(plan, watch.seconds)) for plan in named]


def _summed_up(
    batch: Batch,
    plan: Plan,
    figures: BatchFigures,
    others: Mapping[str, BatchFigures],
    config: PlanConfig,
) -> PlannedMask:
    lengths = np.diff(plan.cu_seqlens).tolist()
    row = BatchRow(
        figures=figures,
        mask=batch.provenance.mask,
        origin=batch.provenance.origin,
        digest=digest(plan),
        others=others,
        over_caps={name: over_caps(theirs, config) for name, theirs in others.items()},
        notes=batch.notes,
        warnings=tuple(map(str, plan.warnings)),
        index=batch.index,
        num_available=batch.num_available,
        rows=batch.rows,
        lengths=spread_of(lengths),
        length_counts=_length_counts(lengths),
        density=measure(plan).density,
    )
    return PlannedMask(plan, simulate(plan), row, batch.use)


def _length_counts(lengths: Sequence[int]) -> tuple[int, ...]:
    """Count sequences by the power of two below their length.

    >>> _length_counts([1, 2, 3, 0, 9])
    (1, 2, 0, 1)
    """
    powers = [length.bit_length() - 1 for length in lengths if length > 0]
    return tuple(np.bincount(powers).tolist()) if powers else ()
