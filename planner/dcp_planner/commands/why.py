"""The command `dcpm why`."""

from typing import TYPE_CHECKING, Any

import click

from dcp_planner.commands.output import print_json

if TYPE_CHECKING:
    from dcp_planner.causes.diagnosis import Why
    from dcp_planner.causes.explanation import Explanation
    from dcp_planner.causes.suggestions import Suggestion
    from dcp_planner.tables.plan import Plan

SCHEMA = 1


@click.command()
@click.argument("plan", type=click.Path())
@click.option("--against", type=click.Path(), help="Explain why it is faster or slower than this.")
@click.option(
    "--try/--no-try", "is_trying", default=True, show_default=True,
    help="Plan the changes that may help, which takes a few times as long as planning.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def why(plan: str, against: str | None, is_trying: bool, as_json: bool) -> None:
    """Say why PLAN, a .dcpplan file, takes as long as its cluster predicts, and what to try.

    Each cause is imagined away and the plan predicted again: with infinitely fast links, without
    latency, without launches, with compute shared evenly. What to try has been planned.
    """
    from dcp_planner.causes.diagnosis import find_causes
    from dcp_planner.causes.explanation import explain
    from dcp_planner.causes.suggestions import suggest
    from dcp_planner.commands.why_text import show_why
    from dcp_planner.plan.file import read_plan

    made = read_plan(plan).plan
    other = None if against is None else read_plan(against).plan
    found = find_causes(made)
    compared = None if other is None else explain(made, other)
    tried = suggest(made, found.diagnosis) if is_trying else ()
    if as_json:
        print_json(_document(plan, made, found, tried, compared))
    else:
        show_why(found, made, tried, compared)


def _document(
    file: str,
    plan: "Plan",
    found: "Why",
    tried: "tuple[Suggestion, ...]",
    compared: "Explanation | None",
) -> dict[str, Any]:
    """Write a JSON document; `Any`: what JSON holds."""
    from dcp_planner.causes.path import ACCOUNTS
    from dcp_planner.causes.sentences import path_lines
    from dcp_planner.tables.programs import digest

    spent = found.accounting.spent_ns / 1e9
    sides = zip(("forward", "backward"), spent.tolist(), strict=True)
    return {
        "schema": SCHEMA,
        "file": file,
        "digest": digest(plan),
        "partials": plan.shape.partials,
        **found.diagnosis.to_json(),
        "hidden_share": found.hidden_share,
        "accounting": {
            side: [dict(zip(ACCOUNTS, device, strict=True)) for device in devices]
            for side, devices in sides
        },
        "path": {
            "shares": found.path.shares(),
            "steps": [line.to_json() for line in path_lines(found)],
        },
        "try": [suggestion.to_json() for suggestion in tried],
        "against": None if compared is None else compared.to_json(),
    }
