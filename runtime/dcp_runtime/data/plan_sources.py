"""Sources of plans: each rank plans for itself, or the first rank plans for all.

The next batches are planned while the present one trains.
"""

import math
import time
import warnings
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter

import torch.distributed as dist

from dcp_dsl import DatasetError, DCPError
from dcp_planner import stopwatch
from dcp_planner.workers import WorkerLost
from dcp_runtime.data.choices import LookAhead, Replicas
from dcp_runtime.data.make_plans import plan_request
from dcp_runtime.data.planner_pool import (
    PlannerPool,
    PlanReply,
    PlanRequest,
    decode_reply,
    encode_parts_of,
)
from dcp_runtime.errors import RunError
from dcp_runtime.transport.failure_registry import SAME_BATCHES
from dcp_runtime.transport.group_store import SERVER, open_store

MAX_CACHED_PLANS = 32
PLAN_TIME_LIMIT_S = 120.0


@dataclass(slots=True)
class PlanningMetrics:
    """The cost of planning so far.

    Attributes:
        plans: plans of global batches (windows of them) handed out.
        plan_s: seconds that planning them took, wherever it happened.
        waited_s: seconds that the training loop waited for them.
        cached: plans that had been made before.
        lost: planner processes that died or took too long; their batches were planned anew.
        compile_s: seconds that this process compiled the planner; no other figure holds them.
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
    """A plan that is being made; without a `future` for its parts, no process makes it."""

    request: PlanRequest
    future: "Future[tuple[PlanReply, float]] | Future[tuple[list[bytes], float]] | None"
    number: int = 0  # in the order in which all ranks start plans

    def cancel(self) -> None:
        """Cancel the plan if no worker has started it."""
        if self.future is not None:
            self.future.cancel()


class PlanSource(ABC):
    """Makes plans: starts them early and hands them out in the same order when they are needed.

    Without a pool of planner processes this process plans when a plan is taken. `iteration` is the
    number of the one that takes plans, `patience_s` how long other ranks wait for this one.
    """

    def __init__(self, pool: PlannerPool | None) -> None:
        self.pool = pool
        self.metrics = PlanningMetrics()
        self.iteration, self.patience_s = 0, math.inf

    @abstractmethod
    def start(self, request: PlanRequest) -> PendingPlan:
        """Start a plan, if a process can make it beside the training loop."""

    def take(self, pending: PendingPlan, queued: int) -> PlanReply:
        """Wait for a plan, or make it."""
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
        """Return the plan and the seconds that it took; ``None`` if it was made while waiting."""

    def end(self, iteration: int, why: str) -> None:  # noqa: B027 - most plan for nobody else
        """Note that an iteration over the data needs no further plan, and why."""

    def close(self) -> None:
        """End the planner processes; plan later batches in this process."""
        # Set to None before the processes end: their callbacks look at it.
        pool, self.pool = self.pool, None
        if pool is not None:
            pool.close()


class OwnPlans(PlanSource):
    """The plans that this rank makes for itself.

    If a process is lost, this process makes its plan again. Planning is deterministic, so this is
    the same plan, and the ranks, which all plan for themselves, still agree.
    """

    def __init__(self, pool: PlannerPool | None) -> None:
        super().__init__(pool)
        self._cache: OrderedDict[str, PlanReply] = OrderedDict()

    def start(self, request: PlanRequest) -> PendingPlan:
        """Start a plan if there are processes to make it."""
        if self.pool is None or request.key in self._cache:
            return PendingPlan(request, None)
        return PendingPlan(request, self.pool.submit(request))

    def _result(self, pending: PendingPlan) -> tuple[PlanReply, float | None]:
        key = pending.request.key
        if pending.future is None and key in self._cache:
            self.metrics.cached += 1
            made: tuple[PlanReply, float | None] = self._cache[key], 0.0
        else:
            made = self._made(pending)
        self._cache[key] = made[0]
        self._cache.move_to_end(key)
        if len(self._cache) > MAX_CACHED_PLANS:  # in a long run most plans never come again
            self._cache.popitem(last=False)
        return made

    def _made(self, pending: PendingPlan) -> tuple[PlanReply, float | None]:
        if pending.future is None:
            return plan_request(pending.request), None
        # Half of the others' time is left to plan here.
        limit_s = None if math.isinf(self.patience_s) else self.patience_s / 2
        try:
            plan, seconds = pending.future.result(limit_s)
        except TimeoutError:
            self.metrics.lost += 1
            warnings.warn(
                f"the planner gave no plan within {limit_s:g} s, half of the time that other ranks "
                "wait for this one (DCPExecutor.timeout_s); the batch is planned again here",
                RuntimeWarning,
                stacklevel=6,
            )
            return plan_request(pending.request), None
        except WorkerLost as error:
            if self.pool is not None:  # else `close` has ended the processes
                self.metrics.lost += 1
                what = "the batch is planned again here"
                if self.pool.cannot_start:
                    self.close()
                    what = "from now on this process plans, when a batch is needed"
                # Up through `_result`, both `take` and `_epoch` to the line of the training loop.
                warnings.warn(f"{error}; {what}", RuntimeWarning, stacklevel=6)
            return plan_request(pending.request), None
        assert isinstance(plan, PlanReply), "this pool was asked for whole plans"
        return plan, seconds


FALLBACK = "static:contiguous"
"""Placement of a batch whose planner was lost: made in milliseconds, valid, not the fastest."""

FIRST_NAP_S, LONGEST_NAP_S = 0.0005, 0.02

_PART, _FAILURE, _BAD_DATA = b"p", b"f", b"d"


class PlanExchange:
    """The exchange of planned batches: rank 0 stores the parts, every rank takes its own.

    Making one is collective: the n-th exchange of a rank is the n-th of all others.
    """

    def __init__(self, group: dist.ProcessGroup | None, timeout_s: float) -> None:
        if not dist.is_initialized():
            raise RunError(
                "planner='first' sends plans through a process group: call "
                "torch.distributed.init_process_group first, or choose planner='each'"
            )
        found = group or dist.group.WORLD
        assert found is not None, "torch.distributed is initialised"
        self.rank, self.size = found.rank(), found.size()
        self._store = open_store(group, "dcp-exchanges", timeout_s)
        self._timeout_s = timeout_s

    def publish(self, number: int, parts: Sequence[bytes]) -> None:
        """Leave the parts of a batch, in rank order."""
        for rank, part in enumerate(parts):
            self._set(number, rank, _PART + part)

    def fail(self, number: int, error: DCPError) -> None:
        """Tell all ranks why there will be no such batch."""
        kind = _BAD_DATA if isinstance(error, DatasetError) else _FAILURE
        for rank in range(self.size):
            self._set(number, rank, kind + str(error).encode())

    def end(self, iteration: int, why: str) -> None:
        """Tell the other ranks that no further batch of an iteration over the data is planned."""
        self._store.post(f"end/{iteration}", why)

    def take(self, number: int, iteration: int = 0) -> PlanReply:
        """Wait for this rank's part of a batch, which it needs in an iteration over its data."""
        key = f"{number}/{self.rank}"
        deadline, nap_s = time.monotonic() + self._timeout_s, FIRST_NAP_S
        try:
            # Not wait(): it keeps the store's client to itself, and others publish through it.
            while not self._store.check([key]):
                # Rank 0 leaves a batch before it says the end; it may have done both just now.
                if self._store.check([f"end/{iteration}"]) and not self._store.check([key]):
                    why = self._store.get(f"end/{iteration}").decode()
                    raise RunError(
                        f"rank 0, which plans for all, {why}; rank {self.rank} goes on; "
                        f"{SAME_BATCHES}",
                        rank=0,
                    )
                if time.monotonic() > deadline:
                    raise RunError(
                        f"rank {self.rank} got no plan of batch {number} from rank 0 within "
                        f"{self._timeout_s:g} s; rank 0 may have failed, its message says why",
                        rank=0,
                    )
                # Short at first, as most plans come soon; then longer, to spare the store.
                time.sleep(nap_s)
                nap_s = min(2 * nap_s, LONGEST_NAP_S)
            message = self._store.get(key)
            self._store.delete_key(key)  # else the store's memory would grow with every batch
        except RuntimeError as error:  # the process that serves the store is gone or stands still
            raise self._lost(number, error) from error
        if message[:1] == _FAILURE:
            raise RunError(message[1:].decode(), rank=0)
        if message[:1] == _BAD_DATA:
            raise DatasetError(message[1:].decode())
        return decode_reply(message[1:])

    def _lost(self, number: int, error: RuntimeError) -> RunError:
        return RunError(
            f"rank {self.rank} lost the store that brings the plan of batch {number}: "
            f"{str(error).splitlines()[0]}; the cause is {SERVER}",
            rank=0,
        )

    def _set(self, number: int, rank: int, message: bytes) -> None:
        try:
            self._store.set(f"{number}/{rank}", message)
        except RuntimeError as error:
            raise self._lost(number, error) from error


class SharedPlans(PlanSource):
    """Rank 0 plans ahead and publishes; every rank, also rank 0, takes its part.

    One rank decides for all, so a batch whose planner process is lost needs no second search: it
    gets a static placement, and no rank waits for long.
    """

    def __init__(self, pool: PlannerPool | None, exchange: PlanExchange) -> None:
        super().__init__(pool)
        self._exchange = exchange
        self._started = 0
        # By the number of a plan: a warning, and the seconds that it took. A thread of the pool
        # writes them before it publishes the plan.
        self._lost: dict[int, str] = {}
        self._seconds: dict[int, float] = {}

    def start(self, request: PlanRequest) -> PendingPlan:
        """Start a plan on rank 0; on other ranks only count it."""
        # All ranks start the same batches in the same order: the count names a batch everywhere.
        number, self._started = self._started, self._started + 1
        if self.pool is None:
            return PendingPlan(request, None, number)
        future = self.pool.submit_parts(request)
        future.add_done_callback(partial(self._publish, number, request))
        return PendingPlan(request, future, number)

    def end(self, iteration: int, why: str) -> None:
        """Tell the other ranks that the first one needs no further batch of an iteration."""
        if self._exchange.rank == 0:
            self._exchange.end(iteration, why)

    def _result(self, pending: PendingPlan) -> tuple[PlanReply, float | None]:
        if self._exchange.rank == 0 and self.pool is None:
            self._plan_here(pending.number, pending.request)
        batch = self._exchange.take(pending.number, self.iteration)
        if (lost := self._lost.pop(pending.number, None)) is not None:
            self.metrics.lost += 1
            warnings.warn(lost, RuntimeWarning, stacklevel=5)
        return batch, self._seconds.pop(pending.number, None)

    def _plan_here(self, number: int, request: PlanRequest, started_s: float | None = None) -> None:
        """Plan in this process and publish; with `started_s` note the seconds since then."""
        try:
            parts = encode_parts_of(plan_request(request), request.own_devices)
            if started_s is not None:
                self._seconds[number] = perf_counter() - started_s
        except DCPError as error:
            self._exchange.fail(number, error)
        else:
            self._exchange.publish(number, parts)

    def _publish(
        self, number: int, request: PlanRequest, done: "Future[tuple[list[bytes], float]]"
    ) -> None:
        """Publish the plan of a planner process; runs on the thread that waited for it."""
        pool = self.pool
        if done.cancelled() or pool is None or pool.is_closed:
            return  # if it is needed after all, rank 0 plans it in `_result`
        started_s = perf_counter()
        try:
            parts, self._seconds[number] = done.result()
        except WorkerLost as error:
            if pool.cannot_start:  # every batch would get a static placement: rank 0 searches here
                self._lost[number] = f"{error}; rank 0 plans"
            else:
                self._lost[number] = f"{error}; the batch is placed by {FALLBACK!r}"
                request = replace(request, config=replace(request.config, partitioner=FALLBACK))
            self._plan_here(number, request, started_s)
        except DCPError as error:
            self._exchange.fail(number, error)
        else:
            self._exchange.publish(number, parts)


def make_plan_source(look_ahead: LookAhead, replicas: Replicas) -> PlanSource:
    """Return the source that a user's choices ask for; collective where one rank plans for all."""
    processes = look_ahead.num_processes
    if look_ahead.planner == "each":
        return OwnPlans(PlannerPool(processes, PLAN_TIME_LIMIT_S) if processes else None)
    if replicas.count > 1 and replicas.group is None:
        raise RunError(
            f"planner='first': which ranks are one of the {replicas.count} replicas? Give "
            "Planning.group the DeviceMesh of all of them, with dims named dp and cp"
        )
    # Twice the limit: if a planner is lost at its limit, the first rank still makes a static plan.
    exchange = PlanExchange(replicas.group, 2 * PLAN_TIME_LIMIT_S)
    if exchange.size != replicas.context_ranks:
        raise RunError(
            f"planner='first': a replica has {replicas.context_ranks} devices, the group "
            f"{exchange.size} ranks; give the group of the ranks that share a batch"
        )
    is_planner = processes and exchange.rank == 0
    return SharedPlans(PlannerPool(processes, PLAN_TIME_LIMIT_S) if is_planner else None, exchange)
