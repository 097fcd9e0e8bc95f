"""The paths of all pages; a new page is one line in `ROUTES`."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from urllib.parse import unquote

from dash.development.base_component import Component

from dcp_dashboard.library.plans import LoadedPlan, PlanLibrary
from dcp_dashboard.pages.compare import compare_page
from dcp_dashboard.pages.dataset import dataset_page
from dcp_dashboard.pages.edit import edit_page
from dcp_dashboard.pages.help import help_page
from dcp_dashboard.pages.layout import message
from dcp_dashboard.pages.plan import plan_page
from dcp_dashboard.pages.plan_list import plan_list_page
from dcp_dashboard.pages.plan_views import mask_page, timeline_page
from dcp_dsl import DCPError

Page = Callable[[PlanLibrary, tuple[str, ...], str], Component | None]
"""Takes the library, the later parts of the path and the query; ``None`` means no such page."""


def _plan_list(library: PlanLibrary, parts: tuple[str, ...], query: str) -> Component | None:
    return None if parts else plan_list_page(library, query)


def _compare(library: PlanLibrary, parts: tuple[str, ...], query: str) -> Component | None:
    return None if parts else compare_page(library, query)


def _help(_library: PlanLibrary, parts: tuple[str, ...], _query: str) -> Component | None:
    return None if parts else help_page()


def _dataset(library: PlanLibrary, parts: tuple[str, ...], query: str) -> Component | None:
    return dataset_page(library, parts[0], query) if len(parts) == 1 else None


def _plan(library: PlanLibrary, parts: tuple[str, ...], _query: str) -> Component | None:
    if len(parts) == 1:
        return plan_page(library.load(parts[0]))
    page = PLAN_PAGES.get(parts[1]) if len(parts) == 2 else None
    return page(library.load(parts[0])) if page else None


def _edit(library: PlanLibrary, parts: tuple[str, ...], query: str) -> Component | None:
    return None if parts else edit_page(library, query)


PLAN_PAGES: Mapping[str, Callable[[LoadedPlan], Component]] = MappingProxyType(
    {"mask": mask_page, "timeline": timeline_page}
)
"""Pages below `/plan/<key>/`, by their name."""

ROUTES: Mapping[str, Page] = MappingProxyType(
    {
        "": _plan_list,
        "compare": _compare,
        "dataset": _dataset,
        "edit": _edit,
        "help": _help,
        "plan": _plan,
    }
)
"""Pages by the first part of the path."""


def render_page(library: PlanLibrary, path: str, query: str) -> Component:
    """Build the page of a URL; an error becomes a page with its message."""
    first, *rest = [unquote(part) for part in path.strip("/").split("/")]
    page = ROUTES.get(first)
    try:
        shown = page(library, tuple(rest), query) if page else None
    except DCPError as error:
        return message("This cannot be shown", str(error), is_error=True)
    if shown is None:
        known = ", ".join(f"/{name}" for name in sorted(ROUTES))
        return message(
            "No such page",
            f"expected a path that begins with one of {known}; got {path[:80]}",
            is_error=True,
        )
    return shown
