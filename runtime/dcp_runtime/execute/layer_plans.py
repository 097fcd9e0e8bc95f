"""The plans of a batch, ready to run, layer by layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import Columns, Form, Rows, Slabs, Strided, StridedPart
from dcp_planner import Plan, PlanPart
from dcp_runtime.execute.executor import DCPExecutor, PreparedPlan
from dcp_runtime.plans.stacked_plans import BatchPlan, StackedPlans


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """What one layer runs; `DCPAttn.apply` takes it.

    Attributes:
        prepared: its plan.
        longest_look_back: the window that contains its mask, in tokens.
    """

    prepared: PreparedPlan
    longest_look_back: int


@dataclass(frozen=True, slots=True)
class LayerPlans:
    """The plans of one batch, layer by layer.

    In a model::

    layers = LayerPlans.prepare(executor, plan)
    out = DCPAttn.apply(layers.of(0), q, kv)  # layer 0
    """

    layers: tuple[LayerPlan, ...]
    cycle: tuple[int, ...]

    @classmethod
    def prepare(
        cls,
        executor: DCPExecutor,
        plans: BatchPlan | Sequence[Plan | PlanPart],
        cycle: Sequence[int] = (0,),
    ) -> "LayerPlans":
        """Make the plans of a batch ready; collective.

        Args:
            executor: of the ranks that share the batch.
            plans: what a `DCPDataloader` yields: one plan for all layers, or the plans of a stack,
                which bring their cycle along; or the distinct plans one by one, all with the same
                owners of tokens.
            cycle: which of the plans each layer runs, repeated over the layers: ``(0, 0, 0, 0, 0,
                1)`` for Gemma 3, whose plan 0 is the local mask and plan 1 the global one.

        Raises:
            RunError: if the plans place tokens differently, the cycle names one that is not there,
                or a plan is not the one of the other ranks.
        """
        if not isinstance(plans, StackedPlans):
            found = (plans,) if isinstance(plans, Plan | PlanPart) else tuple(plans)
            plans = StackedPlans(found, tuple(cycle))
        prepared = executor.prepare_stack(plans)
        layers = tuple(map(LayerPlan, prepared, map(look_back, plans.plans)))
        return cls(layers, plans.cycle)

    def of(self, layer: int) -> LayerPlan:
        """Give the plan that a layer runs, by its number from 0."""
        return self.layers[self.cycle[layer % len(self.cycle)]]


def look_back(plan: Plan | PlanPart) -> int:
    """Give the largest ``q - k + 1`` over all visible pairs: the window that contains the mask."""
    plan = plan.plan if isinstance(plan, PlanPart) else plan
    of_forms = (_look_back(placed.form) for placed in plan.forms)
    return max(_of_slabs(plan.slabs), *of_forms, 0)


def _look_back(form: Form) -> int:
    """As `look_back`; of tiles, which keep no ranges, all tokens."""
    match form:
        case Columns(Slabs() as keys):  # the last query of a key moves at most as the key does
            return int((keys.kv_end - keys.q_start).max(initial=0))
        case Columns(Rows() as keys):
            key = np.repeat(np.arange(keys.num_tokens), np.diff(keys.row_ptr))
            return int((keys.kv_end - key).max(initial=0))
        case Rows():
            row = np.repeat(np.arange(form.num_tokens), np.diff(form.row_ptr))
            return int((row - form.kv_start).max(initial=-1)) + 1
        case Strided(period=period, parts=parts):
            return max((_of_part(part, period) for part in parts), default=0)
    return form.num_tokens


def _of_part(part: StridedPart, period: int) -> int:
    """Of each slab and remainder the largest distance, if the slab, which has no gaps, has one."""
    far = _farthest(part.slabs)[:, None]
    near = (part.slabs.q_start - part.slabs.kv_end + 1)[:, None]
    distance = far - (far - part.remainders) % period
    return int(distance[distance >= near].max(initial=-1)) + 1


def _of_slabs(slabs: Slabs) -> int:
    return int(_farthest(slabs).max(initial=-1)) + 1


def _farthest(slabs: Slabs) -> NDArray[np.int64]:
    """Give the largest ``q - k`` of each slab, int64 ``[N]``."""
    rows = slabs.q_end - slabs.q_start - 1
    first = slabs.q_start.astype(np.int64) - slabs.kv_start
    last = first + rows * (1 - slabs.start_slope.astype(np.int64))
    farthest: NDArray[np.int64] = np.maximum(first, last)
    return farthest
