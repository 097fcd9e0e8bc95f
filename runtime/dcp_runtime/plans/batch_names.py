"""Which batch of a data loader a plan was made for, so that ranks can compare it.

Batches of equal lengths have equal plans: the digest of a plan cannot tell them apart.
"""

from copy import copy
from weakref import WeakKeyDictionary

from dcp_planner import Plan, PlanPart
from dcp_runtime.plans.stacked_plans import BatchPlan, StackedPlans

_names: "WeakKeyDictionary[BatchPlan, str]" = WeakKeyDictionary()


def name_batch(plan: BatchPlan, epoch: int, batch: int) -> BatchPlan:
    """Note the batch of a plan, both numbers from 0.

    Returns:
        The plan, or a shallow copy if it has a name already: batches may share a cached plan.
    """
    if plan in _names:
        plan = copy(plan)
    _names[plan] = f"epoch {epoch}, batch {batch}"
    return plan


def batch_name(plan: object) -> str:
    """Give the name of a plan's batch; empty if no data loader yielded the plan."""
    if not isinstance(plan, Plan | PlanPart | StackedPlans):
        return ""
    own = _names.get(plan, "")
    return own or batch_name(plan.plans[0]) if isinstance(plan, StackedPlans) else own
