"""Choose the length of blocks with which the plan of a batch is predicted to be fastest.

Longer blocks are fewer messages and fewer, larger launches of kernels; shorter ones spread the work
more evenly and wait less for what they read. Which is worth more depends on the mask and on the
machine, so a quick search tries a few lengths.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from dcp_dsl import BlockSparsity, Form
from dcp_planner.model.cluster import Cluster, ModelShape
from dcp_planner.model.config import PlanConfig
from dcp_planner.model.cuts import choose_block_size, cut_stack, level_block_sizes
from dcp_planner.model.problem import Workload
from dcp_planner.plan.assembly import workload_of
from dcp_planner.search.partitioners import layouts_seconds, place_apart, quick_seconds

Estimate: TypeAlias = Callable[[Workload, Cluster, PlanConfig], float]

MOST_WORK = 4_000_000
"""Most tiles times devices of a batch for which several lengths are tried."""
_FINER = 0.6  # a shorter length that is tried has at most so much of the usual one
_LEAST_GAIN = 0.01  # of the time, for which the usual length is left
_SEARCHED = 0.93  # of a quick search's time, about what the full search needs (0.87 to 0.91 median)


def fastest_block_size(
    masks: Sequence[Sequence[Form]],
    shape: ModelShape,
    cluster: Cluster,
    config: PlanConfig = PlanConfig(),  # noqa: B008 - frozen
    *,
    layers: Sequence[int] | None = None,
) -> int:
    """Choose the block length of the shortest predicted time, for `cut_blocks` or `cut_stack`.

    Tried are the length of `choose_block_size` and, where blocks still pack evenly, two that are
    longer and one that is shorter. Static layouts, ``budget="fast"``, other objectives than time,
    limits of memory and batches above `MOST_WORK` take the usual length without a try.

    Args:
        masks: of each distinct mask of a stack, the sequences; one for a single mask.
        shape: heads and element size.
        cluster: the machine.
        config: as for `build_plan`.
        layers: number of layers that run each mask; 1 each by default.

    Returns:
        Most tokens of a block. Costs up to four quick searches, about half of the search itself.

    >>> from dcp_dsl import Slabs
    >>> from dcp_planner import find_cluster
    >>> causal = Slabs(8192, [0], [8192], [0], [1], [0], [1])
    >>> fastest_block_size([[causal]], ModelShape(8, 2, 128), find_cluster("h100-dgx:1x4"))
    2048
    """
    # The mask that needs the shortest blocks decides.
    usual = min(choose_block_size(forms, cluster, config) for forms in masks)
    if not _is_worth_trying(config) or cluster.num_devices == 1:
        return usual
    weights = layers or [1] * len(masks)
    first = cut_stack(masks, usual)
    if any(len(cut.pairs) * cluster.num_devices > MOST_WORK for cut in first):
        return usual
    if all(_is_settled(cut, shape, cluster, config) for cut in first):
        return usual

    quick = replace(config, budget="fast")

    def seconds(cuts: Sequence[BlockSparsity], estimate: Estimate) -> float:
        works = (workload_of(cut, shape, config) for cut in cuts)
        timed = (estimate(work, cluster, quick) for work in works)
        return sum(n * found for n, found in zip(weights, timed, strict=True))

    best, least = usual, (1 - _LEAST_GAIN) * seconds(first, quick_seconds)
    for block in _others(masks, usual, cluster, config):
        found = seconds(cut_stack(masks, block), quick_seconds)
        if found < least:
            best, least = block, found
    # A layout may be hard to beat, as for one long document.
    if best != usual and seconds(first, layouts_seconds) < _SEARCHED * least:
        return usual
    return best


def _is_worth_trying(config: PlanConfig) -> bool:
    is_searched = config.partitioner in ("portfolio", "native") and config.objective == "time"
    return is_searched and config.budget != "fast" and config.memory_limit_bytes is None


def _is_settled(
    cut: BlockSparsity, shape: ModelShape, cluster: Cluster, config: PlanConfig
) -> bool:
    """Check that dealing out whole sequences leaves nothing to search for."""
    return place_apart(workload_of(cut, shape, config), cluster, config) is not None


def _others(
    masks: Sequence[Sequence[Form]], usual: int, cluster: Cluster, config: PlanConfig
) -> list[int]:
    """List the lengths to try beside the usual one."""
    level = set.intersection(*(set(level_block_sizes(m, cluster, config)) for m in masks))
    longer = sorted(block for block in level if block > usual)
    shorter = sorted(block for block in level if block < _FINER * usual)
    return [*longer[-2:], *shorter[-1:]]
