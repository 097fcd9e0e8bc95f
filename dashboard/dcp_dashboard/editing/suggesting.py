"""Plans the batch of a plan file again, with changes against what costs it most time."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dcp_planner import read_plan, simulate
from dcp_planner.causes import diagnose, suggest
from dcp_planner.plan import encode_plan

MOST_SUGGESTIONS = 3
WORTH_TRYING = 0.01
"""Changes that save a smaller share of the time are not shown."""


def suggest_plans(
    request: Mapping[str, Any], tell: Callable[[str], None]
) -> tuple[dict[str, Any], bytes]:
    """Plan what may help, and return the best changes with the files of their plans.

    Args:
        request: ``path`` of a plan file; `Any`: JSON values.
        tell: called with the name of each stage as it begins.

    Returns:
        ``plans``, most saved first, each with its predicted gain and the bytes of its file
        (``size_bytes``), which lie behind one another.

    Raises:
        DCPError: if the file is no readable plan.
    """
    tell("finding what costs most")
    plan = read_plan(request["path"]).plan
    found = diagnose(plan)
    tell("planning changes")
    least = WORTH_TRYING * found.seconds
    best = [s for s in suggest(plan, found) if s.saves_s >= least][:MOST_SUGGESTIONS]
    files, plans = [], []
    for suggestion in best:
        made = replace(suggestion.plan, provenance=plan.provenance)
        files.append(encode_plan(made, [simulate(made)]))
        share = suggestion.saves_s / found.seconds
        plans.append(suggestion.to_json() | {"share": share, "size_bytes": len(files[-1])})
    return {"schema": "dcp.suggestions/1", "plans": plans}, b"".join(files)
