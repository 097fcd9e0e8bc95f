"""What a worker can be asked: one function per task, a request in, a JSON object and bytes out."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from dcp_dashboard.editing import checking

Request = Mapping[str, Any]
"""A JSON object with the name of the ``task``."""
Task = Callable[[Request, Callable[[str], None]], tuple[dict[str, Any], bytes]]
"""Takes the request and whom to tell the stages of a long task."""


def _plain(task: Callable[[Request], dict[str, Any]]) -> Task:
    return lambda request, _: (task(request), b"")


def _picture(request: Request, _: Callable[[str], None]) -> tuple[dict[str, Any], bytes]:
    from dcp_dashboard.editing.pictures import draw_text  # numpy is not needed to find errors

    return draw_text(request)


def _svg(request: Request, _: Callable[[str], None]) -> tuple[dict[str, Any], bytes]:
    from dcp_dashboard.editing.pictures import draw_svg

    return draw_svg(request), b""


def _preview(request: Request, _: Callable[[str], None]) -> tuple[dict[str, Any], bytes]:
    from dcp_dashboard.editing.planning import preview_plan

    return preview_plan(request), b""


def _plan(request: Request, tell: Callable[[str], None]) -> tuple[dict[str, Any], bytes]:
    from dcp_dashboard.editing.planning import make_plan

    return make_plan(request, tell)


TASKS: Mapping[str, Task] = MappingProxyType(
    {
        "check": _plain(checking.check_text),
        "hover": _plain(checking.describe_word),
        "complete": _plain(checking.propose),
        "format": _plain(checking.format_text),
        "picture": _picture,
        "svg": _svg,
        "preview": _preview,
        "plan": _plan,
    }
)
