"""Plans that one rank makes for all: only its part travels to each rank."""

import warnings
from concurrent.futures import Future
from dataclasses import replace
from time import perf_counter

from dcp_dsl import DCPError
from dcp_planner import stopwatch
from dcp_runtime.data.look_ahead import OwnPlanner, PendingPlan, PlanningMetrics
from dcp_runtime.data.plan_exchange import PlanExchange
from dcp_runtime.data.plan_request import PlanRequest, plan_request
from dcp_runtime.data.planned_batch import PlannedBatch, encode_batch
from dcp_runtime.data.planner_pool import PlannerLostError, PlannerPool

FALLBACK = "static:contiguous"
"""Placement of a batch whose planner was lost: planned in milliseconds, valid, not the fastest."""


class SharedPlans:
    """Rank 0 plans ahead and publishes; every rank, rank 0 among them, takes its part.

    Since one rank decides for all, a planner process that is lost is no reason to wait: its batch
    gets a static placement.

    Args:
        pool: planner processes of rank 0; ``None`` plans there when a plan is taken.
        exchange: how parts travel.
    """

    def __init__(self, pool: PlannerPool | None, exchange: PlanExchange) -> None:
        self.metrics = PlanningMetrics()
        self._pool = pool
        self._exchange = exchange
        self._started = 0
        self._lost: dict[int, str] = {}
        self._seconds: dict[int, float] = {}

    def start(self, request: PlanRequest, in_own_process: OwnPlanner) -> PendingPlan:
        """Begin with a plan on rank 0; on other ranks only count it."""
        pending = PendingPlan(request, in_own_process, None, self._started)
        self._started += 1
        if self._pool is not None:
            pending.future = self._pool.submit_parts(request)
            number = pending.number
            pending.future.add_done_callback(lambda done: self._publish(number, request, done))
        return pending

    def take(self, pending: PendingPlan, queued: int) -> PlannedBatch:
        """Wait for this rank's part.

        Raises:
            RunError: if rank 0 cannot plan the batch, or is gone.
        """
        with stopwatch() as watch:
            if self._exchange.rank == 0 and self._pool is None:
                self._plan_here(pending)
            batch = self._exchange.take(pending.number)
        waited = watch.seconds
        lost = self._lost.pop(pending.number, None)
        if lost is not None:
            self.metrics.lost += 1
            warnings.warn(lost, RuntimeWarning, stacklevel=3)
        self.metrics.plans += 1
        self.metrics.plan_s += self._seconds.pop(pending.number, waited)
        self.metrics.waited_s += waited
        self.metrics.compile_s += watch.compile_s
        self.metrics.queued = queued
        return batch

    def close(self) -> None:
        """End the planner processes; from now on rank 0 plans when a plan is taken."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def _plan_here(self, pending: PendingPlan) -> None:
        try:
            parts = encode_batch(pending.in_own_process(), self._exchange.size)
        except DCPError as error:
            self._exchange.fail(pending.number, error)
        else:
            self._exchange.publish(pending.number, parts)

    def _publish(
        self, number: int, request: PlanRequest, done: "Future[tuple[list[bytes], float]]"
    ) -> None:
        """Publish what a planner process made, on the thread that waited for it."""
        pool = self._pool
        if done.cancelled() or pool is None or pool.is_closed:
            return  # rank 0 plans it if it is taken all the same
        started = perf_counter()
        try:
            parts, self._seconds[number] = done.result()
        except PlannerLostError as error:
            if pool.cannot_start:  # the next ones will not be there either
                self._lost[number] = f"{error}; rank 0 plans"
            else:
                self._lost[number] = f"{error}; the batch is placed by {FALLBACK!r}"
                request = replace(request, config=replace(request.config, partitioner=FALLBACK))
            self._publish_own(number, request)
            self._seconds[number] = perf_counter() - started
            return
        except DCPError as error:
            self._exchange.fail(number, error)
            return
        self._exchange.publish(number, parts)

    def _publish_own(self, number: int, request: PlanRequest) -> None:
        """Plan a batch on this thread and publish it."""
        try:
            batch = plan_request(request)
        except DCPError as error:
            self._exchange.fail(number, error)
        else:
            self._exchange.publish(number, encode_batch(batch, self._exchange.size))
