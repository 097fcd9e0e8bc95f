"""Suggest changes against the causes of a plan's time; each is planned and predicted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dcp_planner.causes.alternatives import (
    FREE,
    PlanInputs,
    coarser,
    divisions_of,
    finer,
    recut,
    workload_of,
)
from dcp_planner.causes.diagnosis import Diagnosis, Name
from dcp_planner.errors import PlanError
from dcp_planner.model.config import PlanConfig
from dcp_planner.model.problem import Workload
from dcp_planner.plan.assembly import Arranged, emit_plans
from dcp_planner.search.partitioners import PARTITIONERS, place, place_front, static_layouts
from dcp_planner.simulation.schedules import schedules_kept
from dcp_planner.simulation.simulator import predict
from dcp_planner.tables.plan import ComputeBlocks, Plan, columns_of

WORTH_TRYING = 0.01
"""Causes and changes that save a smaller share of the time are left out."""
_MOST_CAUSES = 3
_MOST_TILES = 40_000  # more take too long to plan for somebody who waits


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A change that was planned."""

    change: str  # the difference, for people
    option: str  # the option of `dcpm plan` that makes it
    seconds: float  # predicted time of the plan with the change
    saves_s: float  # seconds that the change saves; negative if it costs time
    plan: Plan  # the plan with the change

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object without the plan; `Any`: texts and numbers."""
        names = ("change", "option", "seconds", "saves_s")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True, eq=False)
class _Start:
    """Starting point of changes: a plan, its batch, and a configuration to plan it again."""

    plan: Plan
    workload: Workload
    config: PlanConfig

    @classmethod
    def of(cls, plan: Plan, memory_limit_bytes: int | None) -> "_Start":
        tiles = plan.tiles
        if tiles.group is not None:
            # Every group has the same tiles: those of group 0 are the workload before groups.
            chosen: dict[str, Any]  # Any: columns of several types
            chosen = {name: column[tiles.group == 0] for name, column in columns_of(tiles).items()}
            tiles = ComputeBlocks(**chosen | {"group": None})
        workload = workload_of(replace(plan, tiles=tiles))
        name = plan.partitioner
        # A file may come from a machine with other partitioners.
        known = name in PARTITIONERS and PARTITIONERS[name].unavailable() is None
        config = PlanConfig(
            partitioner=name if known else "portfolio", budget="fast",
            routing=PlanInputs.of(plan).config.routing, head_groups=plan.head_groups,
            memory_limit_bytes=memory_limit_bytes, reproducible=plan.is_reproducible,
        )  # fmt: skip
        return cls(plan, workload, config)

    def planned(self, workload: Workload | None = None, **choices: Any) -> Plan:
        """Plan the batch, or another cut of it, with other choices; `Any`: of `PlanConfig`."""
        work, config = workload or self.workload, replace(self.config, **choices)
        cluster = self.plan.cluster
        return Arranged.of(work, place(work, cluster, config), cluster, config).emit(cluster)


@schedules_kept()
def front_plans(plan: Plan) -> tuple[Plan, ...]:
    """Plan the batch of a plan again: every plan of its Pareto front, fastest first.

    The caps are the defaults. Takes as long as `build_front`.
    """
    if plan.head_groups != 1:
        raise PlanError(f"a front has one head group, got a plan of {plan.head_groups}")
    config, cluster = PlanConfig(), plan.cluster
    shape = replace(plan.shape, float32_partials=False)  # `emit_plans` decides anew
    workload = replace(workload_of(plan), shape=shape)
    plans: list[Plan] = []
    for point in place_front(workload, cluster, config):
        found = Arranged.of(workload, point.placement, cluster, config)
        plans += emit_plans([found], [1], cluster, config)
    return tuple(plans)


@schedules_kept()
def static_plans(plan: Plan) -> dict[str, Plan]:
    """Plan the batch of a plan by every static layout that its heads and devices allow.

    Each layout is taken as it is, whatever caps it exceeds. The plans are those that `dcpm plan
    --against static` compares with, if the batch was planned without a memory limit.
    """
    if len(plan.tiles) > _MOST_TILES:
        raise PlanError(
            f"expected at most {_MOST_TILES:,} tiles, got {len(plan.tiles):,}; compare with "
            "`dcpm plan ... --against static`, or plan with larger blocks"
        )
    start, found = replace(_Start.of(plan, None), config=PlanConfig()), {}
    for name in static_layouts(start.workload.shape, plan.cluster):
        try:
            found[name] = start.planned(partitioner=name)
        except PlanError:  # this layout cannot place this batch
            continue
    return found


@dataclass(frozen=True, slots=True)
class _Change:
    """A change, the causes that it is tried against, and a function that plans it.

    `make` returns text, option and plan, or ``None`` where the change is impossible.
    """

    causes: tuple[Name, ...]
    make: Callable[[_Start], tuple[str, str, Plan] | None]


@schedules_kept()
def suggest(plan: Plan, diagnosis: Diagnosis) -> tuple[Suggestion, ...]:
    """Plan every change that may help against the three largest causes; most saved first.

    Searches get the smallest budget. Changes to a plan that gives buffers back early keep to its
    size of buffers, except the change that lifts that limit. Takes as long as planning the batch
    some three to eight times. Changes that cannot be planned are left out, and a plan that takes no
    time has none.
    """
    if not diagnosis.seconds:  # a batch without tokens, or whose tokens see nothing
        return ()
    least = WORTH_TRYING * diagnosis.seconds
    causes = {cause.name for cause in diagnosis.causes[:_MOST_CAUSES] if cause.saves_s >= least}
    # The plan's own buffers stand for the limit, which a plan does not hold.
    memory = diagnosis.of("memory")
    limit = None if memory is None else int(memory.where["buffer_bytes"])
    start, found = _Start.of(plan, limit), []
    for change in _CHANGES:
        if not causes & set(change.causes):
            continue
        try:
            made = change.make(start)
        except PlanError:  # this batch cannot be planned so: nothing to suggest
            continue
        if made is not None:
            text, option, other = made
            seconds = predict(other).seconds
            found.append(Suggestion(text, option, seconds, diagnosis.seconds - seconds, other))
    return tuple(sorted(found, key=lambda suggestion: -suggestion.saves_s))


def worth_saying(found: Sequence[Suggestion], seconds: float) -> tuple[Suggestion, ...]:
    """Keep the suggestions that save at least `WORTH_TRYING` of a time."""
    return tuple(s for s in found if s.saves_s >= WORTH_TRYING * seconds)


def _divided(start: _Start, more: int, least: int) -> tuple[str, str, Plan] | None:
    divisions = divisions_of(start.plan) + more
    if divisions < least or start.config.memory_limit_bytes is not None:
        return None  # all tiles are local, or other divisions may not fit
    planned = PlanInputs.of(start.plan).divided(divisions)
    return f"{divisions} divisions", f"--divisions {divisions}", planned


def _unlimited(start: _Start) -> tuple[str, str, Plan] | None:
    return "no memory limit", "without --memory-limit", PlanInputs.of(start.plan).unlimited()


def _recut(start: _Start, borders: Any, size: str) -> tuple[str, str, Plan] | None:
    work = recut(start.workload, borders)
    if work.num_tiles > _MOST_TILES or work.num_blocks == start.workload.num_blocks:
        return None
    block = int(work.block_tokens.max())
    return f"{size} blocks, at most {block:,} tokens", f"--block {block}", start.planned(work)


def _rerouted(start: _Start) -> tuple[str, str, Plan] | None:
    if start.plan.cluster.nodes == 1:
        return None
    routing = "direct" if start.config.routing == "node" else "node"
    told = {"direct": "blocks directly from their owners", "node": "blocks once per node"}
    return told[routing], f"--routing {routing}", start.planned(routing=routing)


def _searched(start: _Start) -> tuple[str, str, Plan] | None:
    if start.config.partitioner == "portfolio":
        return None
    return "the default partitioner", "--backend portfolio", start.planned(partitioner="portfolio")


def _grouped(start: _Start) -> tuple[str, str, Plan] | None:
    if start.plan.head_groups > 1 or start.plan.shape.q_heads == 1:
        return None
    return "heads placed in groups", "--head-groups auto", start.planned(head_groups="auto")


def _rounded(start: _Start) -> tuple[str, str, Plan] | None:
    if not start.plan.shape.float32_partials or start.config.memory_limit_bytes is not None:
        return None
    planned = PlanInputs.of(start.plan).rounded_partials()
    return "partial results in the type of the inputs", "--partials input", planned


def _tolerant(start: _Start) -> tuple[str, str, Plan] | None:
    planned = start.planned(token_tolerance=0.3)
    return "up to 30% more tokens on a device", "--token-tolerance 0.3", planned


_ANY: tuple[Name, ...] = (*FREE, "order")
# Fewer divisions and larger blocks make fewer kernels and messages; more divisions hide more bytes,
# smaller blocks balance better, a larger token tolerance leaves more owners to choose from.
_CHANGES = (
    _Change(("memory",), _unlimited),
    _Change(("launches", "latency", "waves"), lambda start: _divided(start, -1, 2)),
    _Change(("links", "order"), lambda start: _divided(start, 1, 3)),
    _Change(("launches", "latency", "waves", "tiles"),
            lambda start: _recut(start, coarser(start.workload), "larger")),
    _Change(("balance", "idle"), lambda start: _recut(start, finer(start.workload), "smaller")),
    _Change(("links", "latency"), _rerouted),
    _Change(("balance", "links"), _tolerant),
    _Change(("links",), _grouped),
    _Change(("links",), _rounded),
    _Change(_ANY, _searched),
)  # fmt: skip
