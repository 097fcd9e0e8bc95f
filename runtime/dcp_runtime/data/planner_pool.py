"""Planner processes: batches are planned there while this process trains.

The processes are started as programs of their own, not forked and not by importing the user's
script again, so that a training script needs no ``if __name__ == "__main__"``.
"""

from collections.abc import Callable
from concurrent.futures import Future
from itertools import accumulate, pairwise
from typing import Any, Literal, TypeVar

from dcp_dsl import DatasetError, DCPError
from dcp_planner import Plan
from dcp_planner.compile_clock import stopwatch
from dcp_planner.plan import decode_plan, encode_plan
from dcp_planner.workers import TaskError, Worker, WorkerLost, WorkerPool, WorkerProgram
from dcp_runtime.data.make_plans import plan_request
from dcp_runtime.data.plan_messages import (
    PlanReply,
    PlanRequest,
    decode_reply,
    encode_parts_of,
    encode_reply,
)
from dcp_runtime.errors import RunError

MOST_FAILED_STARTS = 2
"""Processes in a row that end before they are ready, after which none is started."""

_T = TypeVar("_T")


class PlannerPool:
    """Some planner processes, each planning one batch at a time; they start when first needed.

    They end with `close`, when the pool is no longer used, and when this process ends.

    Args:
        size: number of processes, at least 1.
        time_limit_s: how long one plan may take before its process is ended.
    """

    def __init__(self, size: int, time_limit_s: float) -> None:
        program = WorkerProgram(f"{__name__}:start")
        self._pool = WorkerPool(
            [Worker(program, "the planner", MOST_FAILED_STARTS) for _ in range(size)]
        )
        self._time_limit_s = time_limit_s

    def submit(self, request: PlanRequest) -> "Future[tuple[PlanReply, float]]":
        """Plan a batch in one of the processes; the result is its plans and the seconds it took.

        The future raises `WorkerLost` if the process is lost, and `DatasetError` or `RunError` with
        the planner's message if it refuses the batch.
        """

        def read(parts: list[bytes]) -> PlanReply:
            return decode_reply(parts[0], lambda data: decode_plan(data).plan)

        return self._submit(request, "plans", read)

    def submit_parts(self, request: PlanRequest) -> "Future[tuple[list[bytes], float]]":
        """Plan and cut the plans into one part per device of the replica, for `decode_reply`.

        The future raises as that of `submit` does.
        """
        return self._submit(request, "parts", lambda parts: parts)

    def _submit(
        self,
        request: PlanRequest,
        kind: Literal["plans", "parts"],
        read: Callable[[list[bytes]], _T],
    ) -> "Future[tuple[_T, float]]":
        message, limit_s = {"request": request.to_json(), "kind": kind}, self._time_limit_s

        def plan(worker: Worker) -> tuple[_T, float]:  # holds no pool: nobody may hold it but users
            try:
                answer, blob = worker.call(message, limit_s)
            except TaskError as error:
                refused = DatasetError if "DatasetError" in error.kinds else RunError
                raise refused(str(error)) from error
            try:
                ends = pairwise([0, *accumulate(answer["sizes"])])
                return read([blob[start:end] for start, end in ends]), answer["seconds"]
            except (DCPError, KeyError, TypeError, ValueError) as error:
                worker.end()
                raise WorkerLost(f"the planner's answer cannot be read: {error}") from error

        try:
            return self._pool.submit(plan)
        except RuntimeError as error:  # no thread can be started
            lost: Future[tuple[_T, float]] = Future()
            lost.set_exception(WorkerLost(f"the planner cannot be asked: {error}"))
            return lost

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        self._pool.close()

    @property
    def is_closed(self) -> bool:
        """Return whether its processes have been ended."""
        return self._pool.is_closed

    @property
    def cannot_start(self) -> bool:
        """Return whether processes end again and again before they are ready."""
        return any(worker.cannot_start for worker in self._pool.workers)

    @property
    def processes(self) -> tuple[int, ...]:
        """Process numbers of the planners that run."""
        pids = [worker.pid for worker in self._pool.workers]
        return tuple(pid for pid in pids if pid is not None)


def start() -> Callable[..., tuple[dict[str, Any], bytes]]:
    """Return what answers the requests in a planner process; see `WorkerProgram`."""
    return _answer


def _answer(message: dict[str, Any], *_: object) -> tuple[dict[str, Any], bytes]:
    request = PlanRequest.from_json(message["request"])
    with stopwatch() as watch:
        reply = plan_request(request)
        if message["kind"] == "parts":
            parts = encode_parts_of(reply, request.own_devices)
        else:  # planned here, they are whole
            plans = [plan for batch in reply.batches for plan in batch.plans]
            parts = [encode_reply(reply, [encode_plan(p) for p in plans if isinstance(p, Plan)])]
    return {"seconds": watch.seconds, "sizes": [*map(len, parts)]}, b"".join(parts)
