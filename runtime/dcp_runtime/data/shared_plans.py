"""Shared plans: one rank plans for all, and each rank gets its part through the group's store."""

import time
import warnings
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from time import perf_counter

import torch.distributed as dist

from dcp_dsl import DatasetError, DCPError
from dcp_planner.workers import WorkerLost
from dcp_runtime.data.look_ahead import OwnPlanner, PendingPlan, PlanSource
from dcp_runtime.data.make_plans import plan_request
from dcp_runtime.data.plan_reply import PlanReply, decode_reply, encode_reply
from dcp_runtime.data.plan_request import PlanRequest
from dcp_runtime.data.planner_pool import PlannerPool
from dcp_runtime.errors import RunError
from dcp_runtime.transport.group_store import SERVER, open_store

FALLBACK = "static:contiguous"
"""Placement of a batch whose planner was lost: planned in milliseconds, valid, not the fastest."""

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

    def take(self, number: int) -> PlanReply:
        """Wait for this rank's part of a batch."""
        key = f"{number}/{self.rank}"
        deadline, nap_s = time.monotonic() + self._timeout_s, FIRST_NAP_S
        try:
            # Not wait(): it keeps the store's client to itself, and others publish through it.
            while not self._store.check([key]):
                if time.monotonic() > deadline:
                    raise RunError(
                        f"rank {self.rank} got no plan of batch {number} from rank 0 within "
                        f"{self._timeout_s:g} s; rank 0 may have failed, its message says why",
                        rank=0,
                    )
                time.sleep(nap_s)
                nap_s = min(2 * nap_s, LONGEST_NAP_S)
            message = self._store.get(key)
            self._store.delete_key(key)
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
    """Rank 0 plans ahead and publishes; every rank, rank 0 among them, takes its part.

    Since one rank decides for all, a planner process that is lost is no reason to wait: its batch
    gets a static placement.
    """

    def __init__(self, pool: PlannerPool | None, exchange: PlanExchange) -> None:
        super().__init__(pool)
        self._exchange = exchange
        self._started = 0
        self._lost: dict[int, str] = {}
        self._seconds: dict[int, float] = {}

    def start(self, request: PlanRequest, in_own_process: OwnPlanner) -> PendingPlan:
        """Begin with a plan on rank 0; on other ranks only count it."""
        number, self._started = self._started, self._started + 1
        if self.pool is None:
            return PendingPlan(request, in_own_process, None, number)
        future = self.pool.submit_parts(request)
        future.add_done_callback(partial(self._publish, number, request))
        return PendingPlan(request, in_own_process, future, number)

    def _result(self, pending: PendingPlan) -> tuple[PlanReply, float | None]:
        if self._exchange.rank == 0 and self.pool is None:
            self._plan_here(pending.number, pending.request, pending.in_own_process)
        batch = self._exchange.take(pending.number)
        if (lost := self._lost.pop(pending.number, None)) is not None:
            self.metrics.lost += 1
            warnings.warn(lost, RuntimeWarning, stacklevel=4)
        return batch, self._seconds.pop(pending.number, None)

    def _plan_here(self, number: int, request: PlanRequest, plan: OwnPlanner) -> None:
        try:
            parts = encode_reply(plan(), request.own_devices)
        except DCPError as error:
            self._exchange.fail(number, error)
        else:
            self._exchange.publish(number, parts)

    def _publish(
        self, number: int, request: PlanRequest, done: "Future[tuple[list[bytes], float]]"
    ) -> None:
        """Publish what a planner process made, on the thread that waited for it."""
        pool = self.pool
        if done.cancelled() or pool is None or pool.is_closed:
            return  # rank 0 plans it if it is taken all the same
        started = perf_counter()
        try:
            parts, self._seconds[number] = done.result()
        except WorkerLost as error:
            if pool.cannot_start:  # the next ones will not be there either
                self._lost[number] = f"{error}; rank 0 plans"
            else:
                self._lost[number] = f"{error}; the batch is placed by {FALLBACK!r}"
                request = replace(request, config=replace(request.config, partitioner=FALLBACK))
            self._plan_here(number, request, partial(plan_request, request))
            self._seconds[number] = perf_counter() - started
            return
        except DCPError as error:
            self._exchange.fail(number, error)
            return
        self._exchange.publish(number, parts)
