"""Plan the editor's text, for a preview or a file, or plan the batch of a plan file again."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from dcp_dashboard.editing.texts import mask_of, samples_of, text_of, whole
from dcp_dashboard.facts.text import PLACER_WORDS
from dcp_dashboard.library.folder import DashboardError
from dcp_dashboard.library.summary import device_pairs
from dcp_dsl import BlockSparsity, DCPError, Spec, block_sparsity
from dcp_planner import (
    PARTITIONERS,
    Cluster,
    ModelShape,
    Plan,
    PlanConfig,
    Provenance,
    build_plan,
    cut_blocks,
    fastest_block_size,
    measure,
    preset,
    read_plan,
    simulate,
    stopwatch,
)
from dcp_planner.causes import diagnose, front_plans, suggest
from dcp_planner.model import PRESETS
from dcp_planner.plan import encode_plan
from dcp_planner.tables import PlanMetrics

Answer = tuple[dict[str, Any], bytes]  # Any: JSON values
"""Figures of the plans that were made, and the bytes of their files, behind one another."""

BUDGETS: tuple[Literal["fast", "balanced"], ...] = ("fast", "balanced")
"""Budgets of a search, smallest first."""

Known = TypeVar("Known", bound=str)

MAX_NODES, MAX_PER_NODE, MAX_DEVICES = 64, 64, 1024
MAX_BLOCK = 1 << 22
"""Most tokens of a block; a batch has no more."""

MAX_PREVIEW_TILES = 12_000
"""Most tiles that are planned while a person types."""

PREVIEW_METHODS = ("native", "portfolio")
"""Searches that are previewed with their smallest budget; other searches by the first of these."""


def methods() -> list[tuple[str, str]]:
    """List (name, reason against choosing it here) of every partitioner, searches first."""
    order = dict.fromkeys(("portfolio", "native", *PARTITIONERS))
    return [(name, PARTITIONERS[name].unavailable() or "") for name in order]


@dataclass(frozen=True, slots=True)
class EditedBatch:
    """A batch, cut into blocks, and its settings as the planner takes them, all checked."""

    sparsity: BlockSparsity
    shape: ModelShape
    cluster: Cluster
    config: PlanConfig
    provenance: Provenance


def read_batch(
    request: Mapping[str, Any], tell: Callable[[str], None] = lambda _stage: None
) -> EditedBatch:
    """Read a request and compile its masks; `Any`: JSON values.

    Without ``block`` the batch is cut where the mask changes, into blocks of a size that packs
    well. `tell` is called with the name of each stage as it begins.
    """
    tell("compiling the mask")
    text, name = text_of(request)
    spec = Spec.from_text(text, name)
    mask = mask_of(spec, request)
    samples = samples_of(spec, mask, request)
    texts = tuple(sample.to_json() for sample in samples)
    distinct = dict(zip(texts, samples, strict=True))  # copies of a sample are compiled once
    forms = {text: mask.compile(sample) for text, sample in distinct.items()}
    shape, cluster, config = _shape(request), _cluster(request), _config(request)
    tell("cutting blocks")
    every = [forms[text] for text in texts]
    if request.get("block") is None:
        sparsity = cut_blocks(every, fastest_block_size([every], shape, cluster, config))
    else:
        block = whole(request, "block", 1, 1, MAX_BLOCK)
        sparsity = block_sparsity(every, block, block)
    provenance = Provenance(spec.source, mask.call, texts, "written in the editor")
    return EditedBatch(sparsity, shape, cluster, config, provenance)


def _shape(request: Mapping[str, Any]) -> ModelShape:
    heads = str(request.get("heads", "8/2/128"))
    parts = heads.split("/")
    if len(parts) != 3 or not all(part.isdecimal() and len(part) < 6 for part in parts):
        raise DashboardError(
            f"heads: expected query heads / key-value heads / elements such as 8/2/128, got "
            f"{heads[:40]!r}"
        )
    q_heads, kv_heads, head_dim = (int(part) for part in parts)
    try:
        return ModelShape(q_heads, kv_heads, head_dim, whole(request, "dtype_bytes", 2, 1, 8))
    except ValueError as error:
        raise DashboardError(f"heads: {error}") from None


def _one_of(request: Mapping[str, Any], name: str, known: Sequence[Known], default: Known) -> Known:
    value = request.get(name, default)
    if not isinstance(value, str) or value not in known:
        raise DashboardError(f"{name}: expected one of {', '.join(known)}, got {str(value)[:40]!r}")
    return known[known.index(value)]  # the known text, whose type lists all of them


def _cluster(request: Mapping[str, Any]) -> Cluster:
    nodes = whole(request, "nodes", 1, 1, MAX_NODES)
    per_node = whole(request, "devices_per_node", 8, 1, MAX_PER_NODE)
    if nodes * per_node > MAX_DEVICES:
        raise DashboardError(
            f"expected at most {MAX_DEVICES:,} devices, got {nodes} x {per_node} = "
            f"{nodes * per_node:,}; plan for more with: dcpm plan"
        )
    name = _one_of(request, "cluster", PRESETS, PRESETS[0])
    return preset(name, nodes, per_node)


def _config(request: Mapping[str, Any]) -> PlanConfig:
    method = _one_of(request, "method", tuple(PARTITIONERS), "portfolio")
    budget = _one_of(request, "budget", BUDGETS, "balanced")
    tolerance = request.get("tolerance", 0.1)
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float):
        raise DashboardError(f"tolerance: expected a number, got {str(tolerance)[:40]!r}")
    # JSON holds whole numbers of any length, for which `float` would raise; both ends are refused.
    bounded = float(max(-1.0, min(tolerance, 1e9)))
    return PlanConfig(
        partitioner=method,
        budget=budget,
        token_tolerance=bounded,
        seed=whole(request, "seed", 0, 0, 2**31 - 1),
    )


def preview_config(config: PlanConfig) -> PlanConfig:
    """Return the configuration of a preview: a quick search; static layouts stay as they are."""
    if config.partitioner.startswith("static:"):
        return config
    method = config.partitioner if config.partitioner in PREVIEW_METHODS else PREVIEW_METHODS[0]
    return replace(config, partitioner=method, budget="fast")


def preview_plan(request: Mapping[str, Any]) -> dict[str, Any]:
    """Plan quickly and return the figures, without a file; `Any`: JSON values."""
    with stopwatch() as watch:
        asked = read_batch(request)
        tiles, config = asked.sparsity.num_blocks, preview_config(asked.config)
        # Refused before planning: a preview that runs out of time costs its process.
        if tiles > MAX_PREVIEW_TILES:
            raise DashboardError(
                f"{tiles:,} tiles are too many to be planned while you type (at most "
                f"{MAX_PREVIEW_TILES:,}); take larger blocks, or press Plan"
            )
        plan = build_plan(asked.sparsity, asked.shape, asked.cluster, config)
        shown = figures(plan, measure(plan), simulate(plan).seconds())
    return shown | {"placed_by": _told(config), "seconds": watch.seconds}


def _told(config: PlanConfig) -> str:
    """Return the name of a method and, for a search, its budget; a static layout has none."""
    name = config.partitioner
    is_fixed = name.startswith("static:")
    return name if is_fixed else f"{PLACER_WORDS.get(name, name)}, {config.budget}"


def figures(plan: Plan, metrics: PlanMetrics, predicted_s: float) -> dict[str, Any]:
    """Return the figures that the page shows of a plan; `Any`: JSON values."""
    forward, backward = metrics.forward, metrics.backward
    received = zip(forward.received_bytes, backward.received_bytes, strict=True)
    return {
        "schema": "dcp.edit_figures/1",
        "tokens": metrics.tokens,
        "pairs": metrics.pairs,
        "blocks": metrics.blocks,
        "tiles": metrics.tiles,
        "block": int(plan.blocks.num_tokens.max(initial=0)),
        "devices": plan.num_devices,
        "devices_per_node": plan.cluster.devices_per_node,
        "compute_imbalance": metrics.compute_imbalance,
        "token_imbalance": metrics.token_imbalance,
        "total_bytes": forward.total_bytes + backward.total_bytes,
        "inter_node_bytes": forward.inter_node_bytes + backward.inter_node_bytes,
        "predicted_s": predicted_s,
        "device_pairs": device_pairs(plan).tolist(),
        "device_tokens": list(metrics.owned_tokens),
        "device_bytes": [a + b for a, b in received],
        "warnings": [warning.message for warning in plan.warnings],
        "placed_by": PLACER_WORDS.get(metrics.partitioner, metrics.partitioner),
        "mask": plan.provenance.mask if plan.provenance else "unnamed mask",
    }


def make_plan(request: Mapping[str, Any], tell: Callable[[str], None]) -> Answer:
    """Plan fully; return the figures and the bytes of the plan file."""
    asked = read_batch(request, tell)
    sparsity, cluster, config = asked.sparsity, asked.cluster, asked.config
    devices = f"{sparsity.num_blocks:,} tiles on {cluster.num_devices:,} devices"
    tell(f"placing {devices} with {_told(config)}")
    plan = build_plan(sparsity, asked.shape, cluster, config, provenance=asked.provenance)
    tell("predicting and writing")
    trace = simulate(plan)
    shown = figures(plan, measure(plan), trace.seconds()) | {"placed_by": _told(config)}
    return shown, encode_plan(plan, [trace])


def warm_up() -> None:
    """Plan a tiny batch, so that the just-in-time compiler has run before the first request."""
    tiny = {"text": "mask warm = causal", "sample": "4096", "nodes": 2, "devices_per_node": 2}
    try:
        preview_plan(tiny)
    except DCPError as error:  # the first request fails for the same reason, and the page says so
        print(f"dcpm: the planner cannot warm up: {error}")


MOST_SUGGESTIONS = 3
MOST_OF_FRONT = 24
"""Most plans of a front that are written, the fastest ones."""
WORTH_TRYING = 0.01
"""Changes that save a smaller share of the time are not shown."""


def suggest_plans(request: Mapping[str, Any], tell: Callable[[str], None]) -> Answer:
    """Plan changes that may help; return the best with their predicted gain, most saved first.

    The request names the ``path`` of a plan file; `DCPError` if it is no readable plan.
    """
    tell("finding what costs most")
    plan = read_plan(request["path"]).plan
    found = diagnose(plan)
    tell("planning changes")
    # `suggest` has sorted them, the most saved first.
    least = WORTH_TRYING * found.seconds
    best = [s for s in suggest(plan, found) if s.saves_s >= least][:MOST_SUGGESTIONS]
    told = [s.to_json() | {"share": s.saves_s / found.seconds} for s in best]
    return _answer(plan, told, [s.plan for s in best])


def plan_front(request: Mapping[str, Any], tell: Callable[[str], None]) -> Answer:
    """Plan the Pareto front of the batch, fastest first; arguments and errors as above."""
    plan = read_plan(request["path"]).plan
    tell("searching under every cap")
    front = front_plans(plan)[:MOST_OF_FRONT]
    told = [{"change": f"front {number}"} for number in range(1, len(front) + 1)]
    return _answer(plan, told, front)


def _answer(origin: Plan, told: Sequence[dict[str, Any]], plans: Sequence[Plan]) -> Answer:
    """Return ``plans``, each with the bytes of its file (``size_bytes``), and all files."""
    # The planner leaves the provenance out. It is the same for all plans of one batch.
    made = [replace(plan, provenance=origin.provenance) for plan in plans]
    files = [encode_plan(plan, [simulate(plan)]) for plan in made]
    sizes = [one | {"size_bytes": len(file)} for one, file in zip(told, files, strict=True)]
    return {"schema": "dcp.suggestions/1", "plans": sizes}, b"".join(files)
