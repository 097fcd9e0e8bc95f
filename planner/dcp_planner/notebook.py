"""Values that a notebook draws: the dashboard does, where it is installed.

This package does not know the dashboard. It asks the entry points of the group `dcpm.notebook`, as
the command line asks those of `dcpm.commands`.
"""

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from dcp_planner.errors import PlanError


class Drawn:
    """Base of values that are pictures in notebooks; text without the dashboard."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        draw = find("html")
        return None if draw is None else str(draw(self))


def find(name: str) -> Callable[[Any], Any] | None:  # Any: a value, and what shows it
    """Return what shows a value, ``None`` where no installed package does."""
    found = entry_points(group="dcpm.notebook", name=name)
    return next((entry.load() for entry in found), None)


def show(value: Drawn) -> Any:  # Any: a server, in a package that this one does not know
    """Open a value on a page of its own and return the server; for `Plan.show`.

    Raises:
        PlanError: if no installed package shows it.
    """
    opens = find("show")
    if opens is None:
        raise PlanError("showing a plan needs the dashboard: pip install 'dcp-dsl[dashboard]'")
    return opens(value)
