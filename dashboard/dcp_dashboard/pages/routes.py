"""The paths of all pages; a new page is one line in `ROUTES`.

A page raises `DCPError` for what it cannot show; `render_page` turns it into a message.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from urllib.parse import unquote

from dash.development.base_component import Component

from dcp_dashboard.library.plans import LoadedPlan, PlanLibrary
from dcp_dashboard.pages.compare import compare_page
from dcp_dashboard.pages.dataset import dataset_page
from dcp_dashboard.pages.edit import edit_page
from dcp_dashboard.pages.front import front_page
from dcp_dashboard.pages.help import help_page
from dcp_dashboard.pages.layout import error_page
from dcp_dashboard.pages.plan import plan_page
from dcp_dashboard.pages.plan_list import plan_list_page
from dcp_dashboard.pages.plan_views import mask_page, timeline_page
from dcp_dashboard.pages.run import run_page
from dcp_dashboard.pages.step import step_page
from dcp_dsl import DCPError

PLAN_PAGES: Mapping[str, Callable[[LoadedPlan], Component]] = MappingProxyType(
    {"": plan_page, "mask": mask_page, "timeline": timeline_page}
)
"""Pages of a plan by the last part of `/plan/<key>/...`."""

Page = Callable[[PlanLibrary, str, tuple[str, ...]], Component | None]
"""Takes the library, the query and the later parts of the path; ``None`` means no such page."""


def _plan(library: PlanLibrary, _query: str, parts: tuple[str, ...]) -> Component | None:
    page = PLAN_PAGES.get("".join(parts[1:])) if len(parts) in (1, 2) else None
    return page(library.load(parts[0])) if page else None


def _alone(page: Callable[[PlanLibrary, str], Component]) -> Page:
    """Return a page that has no parts below its own path."""
    return lambda library, query, parts: None if parts else page(library, query)


ROUTES: Mapping[str, Page] = MappingProxyType(
    {
        "": _alone(plan_list_page),
        "compare": _alone(compare_page),
        "dataset": lambda library, query, parts: (
            dataset_page(library, parts[0], query) if len(parts) == 1 else None
        ),
        "edit": _alone(edit_page),
        "front": _alone(front_page),
        "help": _alone(lambda _library, _query: help_page()),
        "plan": _plan,
        "run": lambda library, _query, parts: (
            run_page(library, *parts) if 1 <= len(parts) <= 2 else None
        ),
        "step": lambda library, _query, parts: (
            step_page(library, parts[0]) if len(parts) == 1 else None
        ),
    }
)
"""Pages by the first part of the path."""


def render_page(library: PlanLibrary, path: str, query: str) -> Component:
    """Build the page of a URL; an error becomes a page with its message."""
    first, *rest = [unquote(part) for part in path.strip("/").split("/")]
    page = ROUTES.get(first)
    try:
        shown = page(library, query, tuple(rest)) if page else None
    except DCPError as error:
        return error_page("This cannot be shown", str(error))
    if shown is None:
        known = ", ".join(f"/{name}" for name in sorted(ROUTES))
        text = f"expected a path that begins with one of {known}; got {path[:80]}"
        return error_page("No such page", text)
    return shown
