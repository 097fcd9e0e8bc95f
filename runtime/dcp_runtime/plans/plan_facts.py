"""Plans in numbers, for the record of a step."""

import numpy as np

from dcp_planner import Plan
from dcp_planner.plan import PlanPart
from dcp_runtime.run_log.record import PlanFacts


def plan_facts(plan: Plan, predicted_s: tuple[float, ...] = ()) -> PlanFacts:
    """Return the numbers of a plan, with its predicted seconds where they are known; O(tiles)."""
    devices, transfers = plan.num_devices, plan.transfers
    work = np.bincount(plan.tiles.device, plan.tiles.pairs, devices) / plan.head_groups
    tokens = np.bincount(plan.blocks.owner, plan.blocks.num_tokens, devices)
    forward, total = (
        int(transfers.size_bytes[kept].sum()) for kept in (transfers.is_backward == 0, slice(None))
    )
    return PlanFacts(
        size_bytes=(forward, total - forward),
        most_work=int(work.max()),
        mean_work=float(work.mean()),
        most_tokens=int(tokens.max()),
        mean_tokens=float(tokens.mean()),
        predicted_s=predicted_s,
    )


def own_work(plan: Plan | PlanPart, device: int) -> int:
    """Count the visible pairs that a device computes forward."""
    whole = plan.plan if isinstance(plan, PlanPart) else plan
    tiles = whole.tiles
    return int(tiles.pairs[tiles.device == device].sum()) // whole.head_groups
