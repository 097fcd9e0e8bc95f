"""The tasks of the editor's worker processes, by the name that a request gives."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from dcp_dashboard.editing import checking
from dcp_dashboard.library.folder import DashboardError
from dcp_planner.workers import Worker, WorkerLost, WorkerOverdue, WorkerProgram

MAX_DATA_BYTES = 2 * 2**30
"""Memory of a worker: beyond it, Python raises, and the machine goes on."""

# Any, below: JSON values
Request: TypeAlias = dict[str, Any]
Answer: TypeAlias = tuple[dict[str, Any], bytes]


def make_worker(kind: Literal["check", "plan", "query"]) -> Worker:
    """Make a worker that loads what its kind needs in advance; each of them knows all tasks."""
    entry = f"{__name__}:start"
    name = {"check": "the checker", "plan": "the planner", "query": "the database"}[kind]
    return Worker(WorkerProgram(entry, (kind,), memory_bytes=MAX_DATA_BYTES), name)


def loss_message(error: WorkerLost) -> str:
    """Return why there is no answer, with the way out."""
    if isinstance(error, WorkerOverdue):
        return f"{error}; try a shorter sample, larger blocks or a simpler mask"
    return f"{error}; the next request starts another"


def start(kind: str) -> Callable[[Request, bytes, Callable[[str], None]], Answer]:
    """Load what a worker of this kind needs and return what answers its requests."""
    if kind == "plan":
        from dcp_dashboard.editing.planning import warm_up

        warm_up()
    return answer


def answer(request: Request, blob: bytes, tell: Callable[[str], None]) -> Answer:
    """Answer a request; its key ``task`` names the task, ``blob`` becomes a key of its own.

    Raises:
        DCPError: whatever a person can cause.
    """
    try:
        return _TASKS[request["task"]]({**request, "blob": blob}, tell)
    except RecursionError:
        message = "expected a shallower text: it is nested too deeply"
    except MemoryError:
        message = (
            f"expected a smaller batch: the worker's {MAX_DATA_BYTES >> 30} GiB of memory are "
            "full; plan larger ones with: dcpm plan"
        )
    raise DashboardError(message)


def _plain(task: Callable[[Request], dict[str, Any]]) -> "_Task":
    return lambda request, _: (task(request), b"")


def _picture(request: Request, _: object) -> Answer:
    from dcp_dashboard.editing.pictures import draw_text  # numpy is not needed to find errors

    return draw_text(request)


def _svg(request: Request, _: object) -> Answer:
    from dcp_dashboard.editing.pictures import draw_svg

    return draw_svg(request), b""


def _preview(request: Request, _: object) -> Answer:
    from dcp_dashboard.editing.planning import preview_plan

    return preview_plan(request), b""


def _suggest(request: Request, tell: Callable[[str], None]) -> Answer:
    from dcp_dashboard.editing.suggesting import suggest_plans

    return suggest_plans(request, tell)


def _front(request: Request, tell: Callable[[str], None]) -> Answer:
    from dcp_dashboard.editing.suggesting import plan_front

    return plan_front(request, tell)


def _plan(request: Request, tell: Callable[[str], None]) -> Answer:
    from dcp_dashboard.editing.planning import make_plan

    return make_plan(request, tell)


def _query(request: Request, _: object) -> Answer:
    from dcp_dashboard.editing.querying import run_query

    return run_query(request), b""


_Task: TypeAlias = Callable[[Request, Callable[[str], None]], Answer]
"""Takes the request and whom to tell the stages of a long task."""
_TASKS: dict[str, _Task] = {
    "check": _plain(checking.check_text),
    "hover": _plain(checking.describe_word),
    "complete": _plain(checking.propose),
    "format": _plain(checking.format_text),
    "picture": _picture,
    "svg": _svg,
    "preview": _preview,
    "plan": _plan,
    "suggest": _suggest,
    "front": _front,
    "query": _query,
}
