"""Plans that take longer than a request: one at a time in a process that can be ended."""

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dcp_dashboard.editing.tasks import loss_message
from dcp_dashboard.library.folder import DashboardError
from dcp_dashboard.library.plans import PlanLibrary
from dcp_dsl import DCPError
from dcp_planner.workers import Worker, WorkerLost

MAX_WAITING = 4
MAX_REMEMBERED = 64
DEFAULT_LIMIT_S = 60.0

State = Literal["waiting", "running", "done", "failed", "cancelled"]


@dataclass(slots=True)
class Job:
    """A plan in the making.

    Attributes:
        number: 16 hexadecimal digits that nobody guesses.
        state: where it is; the last three are final.
        stage: what it does now, for people.
        message: why it failed.
        key: of the plan, once done.
        figures: of the plan, once done; `Any`: JSON values.
        began_s, ended_s: on the clock of ``time.monotonic``.
    """

    number: str
    state: State = "waiting"
    stage: str = "waiting for the plan before it"
    message: str = ""
    key: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    began_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the state as the page reads it; `Any`: JSON values."""
        end = time.monotonic() if self.ended_s is None else self.ended_s
        return {
            "schema": "dcp.edit_job/1",
            "job": self.number,
            "state": self.state,
            "stage": self.stage,
            "message": self.message,
            "key": self.key,
            "figures": self.figures,
            "seconds": end - self.began_s,
        }


class Jobs:
    """The plans of this session that are being made, and the worker that makes them."""

    def __init__(self, library: PlanLibrary, worker: Worker) -> None:
        self._library, self._worker = library, worker
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._turn, self._lock = threading.Lock(), threading.Lock()

    def start(self, request: Mapping[str, Any], limit_s: float, name: str) -> Job:
        """Start planning in a new thread.

        Args:
            request: for the worker; `Any`: JSON values.
            limit_s: seconds after which it is given up.
            name: of the plan, shown to people.

        Raises:
            DashboardError: if too many are waiting.
        """
        with self._lock:
            open_jobs = [job for job in self._jobs.values() if job.ended_s is None]
            if len(open_jobs) > MAX_WAITING:
                raise DashboardError(
                    f"expected at most {MAX_WAITING} plans to wait, got one more; wait for one of "
                    "them or cancel it"
                )
            job = Job(secrets.token_hex(8))
            self._jobs[job.number] = job
            while len(self._jobs) > MAX_REMEMBERED:
                self._jobs.popitem(last=False)
        thread = threading.Thread(
            target=self._run, args=(job, request, limit_s, name), name="dcp-plan", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # too many threads: it must not wait for ever
            self._fail(job, f"{error}; try again when other plans are done")
        return job

    def find(self, number: str) -> Job:
        """Find a job by its number.

        Raises:
            DashboardError: if it is not known any more.
        """
        with self._lock:
            job = self._jobs.get(number)
        if job is None:
            raise DashboardError("expected a plan that was started here; start it again")
        return job

    def cancel(self, number: str) -> Job:
        """End a job: its process is killed if it runs. What has ended stays as it is."""
        job = self.find(number)
        with self._lock:
            if job.ended_s is None:
                if job.state == "running":  # under the lock, so that no other job runs
                    self._worker.end()
                self._end(job, "cancelled", "cancelled")
        return job

    def _run(self, job: Job, request: Mapping[str, Any], limit_s: float, name: str) -> None:
        with self._turn:
            with self._lock:
                if job.ended_s is not None:
                    return
                job.state, job.stage, job.began_s = "running", "starting", time.monotonic()
            try:
                figures, content = self._worker.call(
                    request, limit_s, on_note=lambda stage: setattr(job, "stage", str(stage))
                )
                key = self._keep(figures, content, name)
            except WorkerLost as error:
                self._fail(job, loss_message(error))
            except DCPError as error:
                self._fail(job, str(error))
            else:
                with self._lock:
                    if job.ended_s is None:
                        job.key, job.figures = key, figures
                        self._end(job, "done", "done")

    def _keep(self, figures: dict[str, Any], content: bytes, name: str) -> str:
        """Keep the plan of an answer and return its key; of several plans, each has its own."""
        if "plans" not in figures:
            return self._library.keep(content, name).entry.key
        for plan in figures["plans"]:
            file, content = content[: plan["size_bytes"]], content[plan["size_bytes"] :]
            plan["key"] = self._library.keep(file, f"{name}, {plan['change']}").entry.key
        return ""

    def _fail(self, job: Job, message: str) -> None:
        with self._lock:
            if job.ended_s is None:  # a cancelled job ends its worker too
                job.message = message
                self._end(job, "failed", "failed")

    def _end(self, job: Job, state: State, stage: str) -> None:
        job.state, job.stage, job.ended_s = state, stage, time.monotonic()
