"""Plans the batch of a plan file again: with changes against its costs, or its whole front."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dcp_planner import Plan, read_plan, simulate
from dcp_planner.causes import diagnose, front_plans, suggest
from dcp_planner.plan import encode_plan

MOST_SUGGESTIONS = 3
MOST_OF_FRONT = 24
"""Most plans of a front that are written, the fastest ones."""
WORTH_TRYING = 0.01
"""Changes that save a smaller share of the time are not shown."""

Answer = tuple[dict[str, Any], bytes]
"""``plans``, with the bytes of each file (``size_bytes``), and the files behind one another."""


def suggest_plans(request: Mapping[str, Any], tell: Callable[[str], None]) -> Answer:
    """Plan what may help; the best changes with their predicted gain, most saved first.

    Args:
        request: ``path`` of a plan file; `Any`: JSON values.
        tell: called with the name of each stage as it begins.

    Raises:
        DCPError: if the file is no readable plan.
    """
    tell("finding what costs most")
    plan = read_plan(request["path"]).plan
    found = diagnose(plan)
    tell("planning changes")
    least = WORTH_TRYING * found.seconds
    best = [s for s in suggest(plan, found) if s.saves_s >= least][:MOST_SUGGESTIONS]
    told = [s.to_json() | {"share": s.saves_s / found.seconds} for s in best]
    return _answer(plan, told, [s.plan for s in best])


def plan_front(request: Mapping[str, Any], tell: Callable[[str], None]) -> Answer:
    """Plan the Pareto front of the batch, fastest first; arguments and errors as above."""
    plan = read_plan(request["path"]).plan
    tell("searching under every cap")
    front = front_plans(plan)[:MOST_OF_FRONT]
    told = [{"change": f"front {number}"} for number in range(1, len(front) + 1)]
    return _answer(plan, told, front)


def _answer(origin: Plan, told: Sequence[dict[str, Any]], plans: Sequence[Plan]) -> Answer:
    made = [replace(plan, provenance=origin.provenance) for plan in plans]
    files = [encode_plan(plan, [simulate(plan)]) for plan in made]
    sizes = [one | {"size_bytes": len(file)} for one, file in zip(told, files, strict=True)]
    return {"schema": "dcp.suggestions/1", "plans": sizes}, b"".join(files)
