"""The command `dcpm why` and its output."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from dcp_planner.commands.output import print_json

if TYPE_CHECKING:
    from rich.console import Console

    from dcp_planner.causes.diagnosis import Why
    from dcp_planner.causes.explanation import Explanation, PathLine
    from dcp_planner.causes.suggestions import Suggestion
    from dcp_planner.tables.plan import Plan

SCHEMA = 1
MOST_LINES = 8
"""Most steps of the critical path that are printed; the others are only counted."""


@click.command()
@click.argument("plan", type=click.Path())
@click.option(
    "--against", type=click.Path(), help="Also explain why PLAN is faster or slower than this plan."
)
@click.option(
    "--try/--no-try", "is_trying", default=True, show_default=True,
    help="Plan the changes that may help; this takes a few times as long as planning.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def why(plan: str, against: str | None, is_trying: bool, as_json: bool) -> None:
    """Explain the predicted time of PLAN, a .dcpplan file, and list changes to try.

    The simulator predicts the plan again without each cause: with infinitely fast links, without
    message latency, without host work, with compute shared evenly. The command plans every
    change before it lists the change.
    """
    from dcp_planner.causes.diagnosis import find_causes
    from dcp_planner.causes.explanation import explain
    from dcp_planner.causes.suggestions import suggest
    from dcp_planner.plan.file import read_plan

    # Both files are read before the causes are searched: a missing one is reported at once.
    made = read_plan(plan).plan
    other = None if against is None else read_plan(against).plan
    found = find_causes(made)
    # The diagnosis of PLAN is used twice: it takes a dozen predictions.
    compared = None if other is None else explain(made, other, known=found.diagnosis)
    tried = suggest(made, found.diagnosis) if is_trying else ()
    if as_json:
        print_json(_document(plan, made, found, tried, compared))
    else:
        _show_why(found, made, tried, compared)


def _document(
    file: str,
    plan: "Plan",
    found: "Why",
    tried: "tuple[Suggestion, ...]",
    compared: "Explanation | None",
) -> dict[str, Any]:
    """Write a JSON document; `Any`: what JSON holds."""
    from dcp_planner.causes.explanation import path_lines
    from dcp_planner.causes.path import ACCOUNTS
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


def _show_why(
    found: "Why", plan: "Plan", tried: "Sequence[Suggestion]", compared: "Explanation | None"
) -> None:
    from rich.text import Text

    from dcp_planner.causes.explanation import explain_difference, path_lines, three_sentences
    from dcp_planner.commands.tables import console_of_tables, place_text, sums_text, time_text

    console = console_of_tables()
    console.print(Text(f"Predicted for {place_text(plan.cluster)}."))
    for sentence in three_sentences(found, time_text):
        console.print(Text(sentence))
    console.print(Text(f"Sums of parts travel {sums_text(plan)}."))
    if compared is not None:
        names = ("this plan", "the other")
        console.print(Text(explain_difference(compared, names, time_text)))
    _show_path(console, path_lines(found))
    _show_tried(console, tried, found.diagnosis.seconds)


def _show_path(console: "Console", lines: "Sequence[PathLine]") -> None:
    from dcp_planner.causes.explanation import percent
    from dcp_planner.commands.tables import print_table, time_text

    if not lines:
        return
    # The longest steps, but in the order of time.
    longest = sorted(lines, key=lambda line: -line.share)[:MOST_LINES]
    shown = sorted(longest, key=lambda line: line.start_s)
    rows = [
        (time_text(line.start_s), time_text(line.seconds), percent(line.share), line.text)
        for line in shown
    ]
    print_table(console, ("from", "takes", "share", "critical path"), rows, (3,))
    rest = len(lines) - len(shown)
    if rest:
        share = 1 - sum(line.share for line in shown)
        console.print(f"and {rest} shorter step{'s' * (rest > 1)}, {percent(share)} in total")


def _show_tried(console: "Console", tried: "Sequence[Suggestion]", seconds: float) -> None:
    from rich.text import Text

    from dcp_planner.causes.explanation import percent
    from dcp_planner.causes.suggestions import worth_saying
    from dcp_planner.commands.tables import print_table, time_text

    if not tried:
        return
    # Changes without a gain are named too, so that nobody tries them again.
    better = worth_saying(tried, seconds)
    if not better:
        told = ", ".join(suggestion.change for suggestion in tried)
        console.print(Text(f"Tried, but saves less than 1%: {told}."))
        return
    rows = [
        (
            one.change,
            time_text(one.seconds),
            f"{time_text(one.saves_s)} ({percent(one.saves_s / seconds)})",
            one.option,
        )
        for one in better
    ]
    print_table(console, ("what to try", "takes", "saves", "option"), rows, (0, 3))
