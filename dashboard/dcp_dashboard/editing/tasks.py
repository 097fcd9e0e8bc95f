"""The tasks of the editor's worker processes, by the name that a request gives."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal, TypeAlias

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
    loaded = import_module(f"{__package__}.{_LOADED[kind]}")
    if kind == "plan":
        loaded.warm_up()
    return answer


def answer(request: Request, blob: bytes, tell: Callable[[str], None]) -> Answer:
    """Answer a request; its key ``task`` names the task, ``blob`` becomes a key of its own.

    Raises:
        DCPError: whatever a person can cause.
    """
    module, name, tells = _TASKS[request["task"]]
    asked = {**request, "blob": blob}
    try:
        task = getattr(import_module(f"{__package__}.{module}"), name)
        found: Answer | Request = task(asked, tell) if tells else task(asked)
        return found if isinstance(found, tuple) else (found, b"")
    except RecursionError:
        message = "expected a shallower text: it is nested too deeply"
    except MemoryError:
        message = (
            f"expected a smaller batch: the worker's {MAX_DATA_BYTES >> 30} GiB of memory are "
            "full; plan larger ones with: dcpm plan"
        )
    raise DashboardError(message)


_LOADED = {"check": "checking", "plan": "planning", "query": "querying"}
_TASKS = {
    "check": ("checking", "check_text", False),
    "hover": ("checking", "describe_word", False),
    "complete": ("checking", "propose", False),
    "format": ("checking", "format_text", False),
    "picture": ("pictures", "draw_text", False),
    "svg": ("pictures", "draw_svg", False),
    "preview": ("planning", "preview_plan", False),
    "plan": ("planning", "make_plan", True),
    "suggest": ("suggesting", "suggest_plans", True),
    "front": ("suggesting", "plan_front", True),
    "query": ("querying", "run_query", False),
}
"""Module, function, whether it tells its stages. Loaded when asked: a checker needs no numpy."""
