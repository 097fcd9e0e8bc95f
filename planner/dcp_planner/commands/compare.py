"""The command `dcpm compare`."""

import sys
from typing import TYPE_CHECKING

import click

from dcp_planner.commands.output import print_json, say

if TYPE_CHECKING:
    from dcp_planner.report.causes import Explanation
    from dcp_planner.tables.plan import Plan

NO_CAUSE = "Which is faster, and why, is said of two plans of one batch; these compute other pairs."


@click.command()
@click.argument("first", type=click.Path())
@click.argument("second", type=click.Path())
@click.option(
    "--fail-if",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help="Such as 'makespan>+2%' (change) or 'compute_imbalance>1.1' (value of SECOND); repeat.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def compare(first: str, second: str, conditions: tuple[str, ...], as_json: bool) -> None:
    """Compare two .dcpplan files, figure by figure, as their clusters predict them.

    Of one batch, it also says which plan is faster and why: both are predicted again with
    infinitely fast links, with compute shared evenly, and with both.

    Exit status: 0, 1 if a condition of --fail-if holds, 2 if a file cannot be read.
    """
    from dcp_planner.commands.tables import show_comparison, time_text
    from dcp_planner.plan.file import read_plan
    from dcp_planner.report.causes import explain_difference
    from dcp_planner.report.comparison import compare_figures, parse_threshold, to_json
    from dcp_planner.report.figures import figures_of

    thresholds = [parse_threshold(text) for text in conditions]
    plans = [read_plan(path).plan for path in (first, second)]
    differences = compare_figures(*(figures_of(plan) for plan in plans))
    is_same_batch = plans[0].cu_seqlens.tolist() == plans[1].cu_seqlens.tolist()
    notes, cause = _notes(*plans), _cause(*plans)
    why = explain_difference(cause, ("the first", "the second"), time_text) if cause else NO_CAUSE
    crossed = [t.text for t in thresholds if t.is_crossed(differences)]
    if as_json:
        print_json(
            {
                "schema": "dcp.compare/1",
                "first": first,
                "second": second,
                "same_lengths": is_same_batch,
                "notes": notes,
                "cause": (cause.to_json() if cause else {"reason": None}) | {"text": why},
                "figures": to_json(differences),
                "failed": crossed,
            }
        )
    else:
        show_comparison(first, second, differences, why)
        for note in notes:
            say(f"note: {note}")
    for text in crossed:
        say(f"{text} holds")
    sys.exit(1 if crossed else 0)


def _cause(first: "Plan", second: "Plan") -> "Explanation | None":
    """Find out why two plans differ in time; ``None`` if they do not compute the same."""
    from dcp_planner.report.causes import Explanation, split_time

    unlike = _unlike_batches(first, second)
    return None if any(unlike.values()) else Explanation(split_time(first), split_time(second))


def _notes(first: "Plan", second: "Plan") -> list[str]:
    """Name the differences that make the figures of two plans hard to compare."""
    unlike = _unlike_batches(first, second) | {"other clusters": first.cluster != second.cluster}
    return [f"the two plans are for {what}" for what, is_so in unlike.items() if is_so]


def _unlike_batches(first: "Plan", second: "Plan") -> dict[str, bool]:
    """Find out how the batches of two plans differ."""
    from dcp_planner.tables.metrics import measure

    is_same_batch = first.cu_seqlens.tolist() == second.cu_seqlens.tolist()
    return {
        "batches of other lengths": not is_same_batch,
        "other masks": is_same_batch and measure(first).pairs != measure(second).pairs,
        "other model shapes": first.shape != second.shape,
    }
