"""Look-ahead: the next batches are planned while the present one trains."""

import warnings
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeAlias

from dcp_planner.compile_clock import stopwatch
from dcp_planner.workers import WorkerLost
from dcp_runtime.data.plan_reply import PlanReply
from dcp_runtime.data.plan_request import PlanRequest
from dcp_runtime.data.planner_pool import PlannerPool

MAX_CACHED_PLANS = 32

OwnPlanner: TypeAlias = Callable[[], PlanReply]
"""Makes the same plans in this process."""


@dataclass(slots=True)
class PlanningMetrics:
    """The cost of planning so far.

    Attributes:
        plans: plans of global batches (windows of them) handed out.
        plan_s: seconds that planning them took, wherever it happened.
        waited_s: seconds that the training loop waited for them.
        cached: plans that had been made before.
        lost: planner processes that died or took too long; their batches were planned anew.
        compile_s: seconds that this process compiled the planner, in none of the others.
        queued: plans under way when the latest was handed out.
        latest_s: seconds that planning the latest took.
        latest_waited_s: seconds that the training loop waited for it.
    """

    plans: int = 0
    plan_s: float = 0.0
    waited_s: float = 0.0
    cached: int = 0
    lost: int = 0
    compile_s: float = 0.0
    queued: int = 0
    latest_s: float = 0.0
    latest_waited_s: float = 0.0

    @property
    def hidden_share(self) -> float:
        """Share of the planning time that the training loop did not wait for, 0 to 1."""
        return 1 - min(1.0, self.waited_s / self.plan_s) if self.plan_s else 1.0


@dataclass(frozen=True, slots=True)
class PendingPlan:
    """A plan that is being made; what started it waits for it."""

    request: PlanRequest
    in_own_process: OwnPlanner
    future: "Future[tuple[PlanReply, float]] | Future[tuple[list[bytes], float]] | None"
    number: int = 0

    def cancel(self) -> None:
        """Cancel the plan if no worker has started it."""
        if self.future is not None:
            self.future.cancel()


class PlanSource(ABC):
    """Makes plans: starts them early and hands them out when they are needed, in the same order.

    Args:
        pool: planner processes; ``None`` plans in this process when a plan is taken.
    """

    def __init__(self, pool: PlannerPool | None) -> None:
        self.pool = pool
        self.metrics = PlanningMetrics()

    @abstractmethod
    def start(self, request: PlanRequest, in_own_process: OwnPlanner) -> PendingPlan:
        """Begin with a plan, if something can make it beside the training loop."""

    def take(self, pending: PendingPlan, queued: int) -> PlanReply:
        """Wait for a plan, or make it.

        Raises:
            DCPError: if the batch cannot be planned, or the rank that plans for all is gone.
        """
        with stopwatch() as watch:
            plan, seconds = self._result(pending)
        metrics = self.metrics
        metrics.latest_s = watch.seconds if seconds is None else seconds
        metrics.latest_waited_s, metrics.queued = watch.seconds, queued
        metrics.plans += 1
        metrics.plan_s += metrics.latest_s
        metrics.waited_s += metrics.latest_waited_s
        metrics.compile_s += watch.compile_s
        return plan

    @abstractmethod
    def _result(self, pending: PendingPlan) -> tuple[PlanReply, float | None]:
        """Return the plan and how long making it took, ``None`` if it was made while waiting."""

    def close(self) -> None:
        """End the planner processes; plan later batches in this process."""
        pool, self.pool = self.pool, None
        if pool is not None:
            pool.close()


class OwnPlans(PlanSource):
    """Starts the plans of this rank and hands them out.

    A plan whose process is lost is made again in this process: the same plan, since planning is
    deterministic, so that ranks that plan for themselves stay in step.
    """

    def __init__(self, pool: PlannerPool | None) -> None:
        super().__init__(pool)
        self._cache: OrderedDict[str, PlanReply] = OrderedDict()

    def start(self, request: PlanRequest, in_own_process: OwnPlanner) -> PendingPlan:
        """Begin with a plan if there are processes to make it."""
        if self.pool is None or request.key in self._cache:
            return PendingPlan(request, in_own_process, None)
        return PendingPlan(request, in_own_process, self.pool.submit(request))

    def _result(self, pending: PendingPlan) -> tuple[PlanReply, float | None]:
        key = pending.request.key
        if pending.future is None and key in self._cache:
            self.metrics.cached += 1
            made: tuple[PlanReply, float | None] = self._cache[key], 0.0
        else:
            made = self._made(pending)
        self._cache[key] = made[0]
        self._cache.move_to_end(key)
        if len(self._cache) > MAX_CACHED_PLANS:
            self._cache.popitem(last=False)
        return made

    def _made(self, pending: PendingPlan) -> tuple[PlanReply, float | None]:
        if pending.future is None:
            return pending.in_own_process(), None
        try:
            plan, seconds = pending.future.result()
        except WorkerLost as error:
            if self.pool is not None:  # else they were given up
                self._lose(self.pool, error)
            return pending.in_own_process(), None
        assert isinstance(plan, PlanReply), "this pool was asked for whole plans"
        return plan, seconds

    def _lose(self, pool: PlannerPool, error: WorkerLost) -> None:
        """Count a lost process and say what comes of it; give up processes that never start."""
        self.metrics.lost += 1
        what = "the batch is planned again here"
        if pool.cannot_start:
            self.close()
            what = "from now on this process plans, when a batch is needed"
        warnings.warn(f"{error}; {what}", RuntimeWarning, stacklevel=6)
