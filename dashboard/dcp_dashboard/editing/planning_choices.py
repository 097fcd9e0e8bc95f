"""What can be chosen on the page `/edit` for a plan."""

from dcp_planner import PARTITIONERS

BUDGETS = ("fast", "balanced", "best")
"""How much a search may do, least first."""


def methods() -> list[tuple[str, str, str]]:
    """Give (name, label, reason it cannot be chosen here) of every partitioner, searches first.

    >>> methods()[0][:2]
    ('portfolio', 'portfolio')
    """
    order = ["portfolio", "native", *(n for n in PARTITIONERS if n not in ("portfolio", "native"))]
    return [(name, name, PARTITIONERS[name].unavailable() or "") for name in order]
