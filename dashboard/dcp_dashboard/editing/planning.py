"""Planning of the text in the editor: at once and roughly, or fully into a plan file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dcp_dashboard.editing.source import mask_of, samples_of, text_of, whole
from dcp_dashboard.library.folder import DashboardError
from dcp_dashboard.library.summary import device_pairs
from dcp_dsl import BlockSparsity, DCPError, Form, Sample, Spec, block_sparsity
from dcp_planner import (
    PARTITIONERS,
    PRESETS,
    Cluster,
    ModelShape,
    Plan,
    PlanConfig,
    PlanMetrics,
    Provenance,
    build_plan,
    choose_block_size,
    cut_blocks,
    encode_plan,
    measure,
    preset,
    simulate,
    stopwatch,
)

BUDGETS = ("fast", "balanced", "best")
"""Budgets of a search, smallest first."""

MAX_NODES = 64
MAX_PER_NODE = 64
MAX_DEVICES = 1024
MAX_BLOCK = 1 << 22

MAX_PREVIEW_TILES = 12_000
"""Most tiles that are planned while a person types."""

PREVIEW_METHODS = ("native", "portfolio")
"""Searches that are previewed with their smallest budget; other searches by the first of these."""


def methods() -> list[tuple[str, str, str]]:
    """List (name, label, reason against choosing it here) of every partitioner, searches first.

    >>> methods()[0][:2]
    ('portfolio', 'portfolio')
    """
    order = ["portfolio", "native", *(n for n in PARTITIONERS if n not in ("portfolio", "native"))]
    return [(name, name, PARTITIONERS[name].unavailable() or "") for name in order]


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A batch and its settings, read from a request and checked.

    Attributes:
        spec: the text.
        call: the mask, as `Spec.mask` takes it.
        samples: of the batch, one behind the other.
        forms: the mask of each.
        shape, cluster, config: as the planner takes them.
        block: tokens per block, ``None``: cut where the mask changes, in a size that packs well.
    """

    spec: Spec
    call: str
    samples: tuple[Sample, ...]
    forms: tuple[Form, ...]
    shape: ModelShape
    cluster: Cluster
    config: PlanConfig
    block: int | None

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> "PlanRequest":
        """Read a request; `Any`: JSON values.

        Raises:
            DCPError: if something in it is out of range or does not fit the text.
        """
        text, name = text_of(request)
        spec = Spec.from_text(text, name)
        mask = mask_of(spec, request)
        samples = samples_of(spec, mask, request)
        bound = {sample.to_json(): mask.compile(sample) for sample in samples}
        block = request.get("block")
        return cls(
            spec=spec,
            call=mask.call,
            samples=samples,
            forms=tuple(bound[sample.to_json()] for sample in samples),
            shape=_shape(request),
            cluster=_cluster(request),
            config=_config(request),
            block=None if block is None else whole(request, "block", 1, 1, MAX_BLOCK),
        )

    def cut(self) -> BlockSparsity:
        """Cut the batch into blocks."""
        if self.block is not None:
            return block_sparsity(self.forms, self.block, self.block)
        block = choose_block_size(self.forms, self.cluster, self.config)
        return cut_blocks(self.forms, block)

    @property
    def provenance(self) -> Provenance:
        """Text, mask and samples that the plan comes from."""
        samples = tuple(sample.to_json() for sample in self.samples)
        return Provenance(self.spec.source, self.call, samples, "written in the editor")


def _shape(request: Mapping[str, Any]) -> ModelShape:
    """Read ``heads``, for example ``"8/2/128"``, and ``dtype_bytes``."""
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


def _cluster(request: Mapping[str, Any]) -> Cluster:
    nodes = whole(request, "nodes", 1, 1, MAX_NODES)
    per_node = whole(request, "devices_per_node", 8, 1, MAX_PER_NODE)
    if nodes * per_node > MAX_DEVICES:
        raise DashboardError(
            f"expected at most {MAX_DEVICES:,} devices, got {nodes} x {per_node} = "
            f"{nodes * per_node:,}; plan for more with: dcpm plan"
        )
    name = request.get("cluster", PRESETS[0])
    if name not in PRESETS:  # the planner would look for a file of that name
        raise DashboardError(f"cluster: expected one of {', '.join(PRESETS)}, got {str(name)[:40]}")
    return preset(name, nodes, per_node)


def _config(request: Mapping[str, Any]) -> PlanConfig:
    method, budget = request.get("method", "portfolio"), request.get("budget", "balanced")
    if not isinstance(method, str) or method not in PARTITIONERS:
        known = ", ".join(PARTITIONERS)
        raise DashboardError(f"method: expected one of {known}, got {str(method)[:40]!r}")
    if budget not in BUDGETS:
        raise DashboardError(
            f"budget: expected one of {', '.join(BUDGETS)}, got {str(budget)[:40]!r}"
        )
    tolerance = request.get("tolerance", 0.1)
    # JSON holds whole numbers that no float can.
    is_number = isinstance(tolerance, int | float) and not isinstance(tolerance, bool)
    if not is_number or (isinstance(tolerance, int) and tolerance.bit_length() > 64):
        raise DashboardError(f"tolerance: expected a number, got {str(tolerance)[:40]!r}")
    return PlanConfig(
        partitioner=method,
        budget=budget,
        compute_tolerance=float(tolerance),
        token_tolerance=float(tolerance),
        seed=whole(request, "seed", 0, 0, 2**31 - 1),
    )


def preview_config(config: PlanConfig) -> PlanConfig:
    """Return the quick configuration that a preview plans with: static layouts stay as they are.

    >>> preview_config(PlanConfig(partitioner="kahypar")).partitioner
    'native'
    """
    if config.partitioner.startswith("static:"):
        return config
    method = config.partitioner if config.partitioner in PREVIEW_METHODS else PREVIEW_METHODS[0]
    return replace(config, partitioner=method, budget="fast")


def preview_plan(request: Mapping[str, Any]) -> dict[str, Any]:
    """Plan quickly and return the figures, without a file.

    Raises:
        DCPError: as `PlanRequest.of`, and for batches of too many tiles.
    """
    with stopwatch() as watch:
        shown = _preview(PlanRequest.of(request))
    return shown | {"seconds": watch.seconds}


def _preview(asked: PlanRequest) -> dict[str, Any]:
    """Plan roughly and give the figures; `Any`: JSON values."""
    sparsity = asked.cut()
    if sparsity.num_blocks > MAX_PREVIEW_TILES:
        raise DashboardError(
            f"{sparsity.num_blocks:,} tiles are too many to be planned while you type (at most "
            f"{MAX_PREVIEW_TILES:,}); take larger blocks, or press Plan"
        )
    config = preview_config(asked.config)
    plan = build_plan(sparsity, asked.shape, asked.cluster, config)
    shown = figures(plan, measure(plan), simulate(plan).seconds())
    return shown | {"placed_by": _told(config)}


def _told(config: PlanConfig) -> str:
    """Return the name of a method and, for a search, its budget."""
    is_fixed = config.partitioner.startswith("static:")
    return config.partitioner if is_fixed else f"{config.partitioner}, {config.budget}"


def figures(plan: Plan, metrics: PlanMetrics, predicted_s: float) -> dict[str, Any]:
    """Return the figures that the page shows of a plan; `Any`: JSON values."""
    forward, backward = metrics.forward, metrics.backward
    total = forward.total_bytes + backward.total_bytes
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
        "total_bytes": total,
        "inter_node_bytes": forward.inter_node_bytes + backward.inter_node_bytes,
        "predicted_s": predicted_s,
        "device_pairs": device_pairs(plan).tolist(),
        "device_tokens": list(metrics.owned_tokens),
        "device_bytes": [a + b for a, b in zip(forward.received_bytes, backward.received_bytes,
                                               strict=True)],
        "warnings": [warning.message for warning in plan.warnings],
        "placed_by": metrics.partitioner,
        "mask": plan.provenance.mask if plan.provenance else "unnamed mask",
    }  # fmt: skip


def make_plan(
    request: Mapping[str, Any], tell: Callable[[str], None]
) -> tuple[dict[str, Any], bytes]:
    """Plan fully and return the figures and the bytes of the plan file.

    Args:
        request: as `PlanRequest.of` takes it; `Any`: JSON values.
        tell: told each stage as it begins.

    Raises:
        DCPError: as `PlanRequest.of` and `build_plan`.
    """
    tell("compiling the mask")
    asked = PlanRequest.of(request)
    tell("cutting blocks")
    sparsity = asked.cut()
    tell(
        f"placing {sparsity.num_blocks:,} tiles on {asked.cluster.num_devices:,} devices with "
        f"{_told(asked.config)}"
    )
    plan = build_plan(
        sparsity, asked.shape, asked.cluster, asked.config, provenance=asked.provenance
    )
    tell("predicting and writing")
    trace = simulate(plan)
    shown = figures(plan, measure(plan), trace.seconds()) | {
        "placed_by": _told(asked.config),
        "mask": asked.call,
    }
    return shown, encode_plan(plan, [trace])


def warm_up() -> None:
    """Plan a tiny batch, so that the just-in-time compiler has run before the first request."""
    tiny = {"text": "mask warm = causal", "sample": "4096", "nodes": 2, "devices_per_node": 2}
    try:
        preview_plan(tiny)
    except DCPError as error:  # the first real request says it to somebody
        print(f"dcpm: the planner cannot warm up: {error}")
