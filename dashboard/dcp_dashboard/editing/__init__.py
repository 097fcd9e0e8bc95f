"""Worker tasks of the editor on the page `/edit`, by the names that requests use."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeAlias

from dcp_dashboard.library.folder import DashboardError

MAX_DATA_BYTES = 2 * 2**30
"""Memory of a worker: beyond it Python raises `MemoryError`, and the machine goes on."""

# Any, below: JSON values
Request: TypeAlias = dict[str, Any]
Answer: TypeAlias = tuple[dict[str, Any], bytes]


def start(kind: str) -> Callable[[Request, bytes, Callable[[str], None]], Answer]:
    """Import the modules of a kind of worker and return the function that answers its requests."""
    loaded = import_module(f"{__name__}.{_LOADED[kind]}")
    if kind == "plan":
        loaded.warm_up()
    return answer


def answer(request: Request, _blob: bytes, tell: Callable[[str], None]) -> Answer:
    """Answer a request; its key ``task`` names the task."""
    module, name, tells = _TASKS[request["task"]]
    # Neither error harms the process: it answers the next request.
    try:
        task = getattr(import_module(f"{__name__}.{module}"), name)
        found: Answer | Request = task(request, tell) if tells else task(request)
        return found if isinstance(found, tuple) else (found, b"")
    except RecursionError:
        message = "expected a shallower text: it is nested too deeply"
    except MemoryError:
        message = (
            f"expected a smaller batch: the worker's {MAX_DATA_BYTES >> 30} GiB of memory are "
            "full; plan larger ones with: dcpm plan"
        )
    raise DashboardError(message)


_LOADED = {"check": "texts", "plan": "planning"}
_TASKS = {
    "check": ("texts", "check_text", False),
    "hover": ("texts", "describe_word", False),
    "complete": ("texts", "propose", False),
    "format": ("texts", "format_text", False),
    "picture": ("texts", "draw_text", False),
    "svg": ("texts", "draw_svg", False),
    "preview": ("planning", "preview_plan", False),
    "plan": ("planning", "make_plan", True),
    "suggest": ("planning", "suggest_plans", True),
    "front": ("planning", "plan_front", True),
}
"""Module, function, whether it tells its stages. Modules load when a task first asks for them, so
that a checker does not wait for the planner."""
