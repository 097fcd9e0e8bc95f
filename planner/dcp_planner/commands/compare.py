"""The command `dcpm compare`."""

import sys
from typing import TYPE_CHECKING

import click

from dcp_planner.commands.output import print_json, say

if TYPE_CHECKING:
    from dcp_planner.tables.plan import Plan


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

    Exit status: 0, 1 if a condition of --fail-if holds, 2 if a file cannot be read.
    """
    from dcp_planner.commands.tables import show_comparison
    from dcp_planner.plan.file import read_plan
    from dcp_planner.report.comparison import compare_figures, parse_threshold, to_json
    from dcp_planner.report.figures import figures_of

    thresholds = [parse_threshold(text) for text in conditions]
    plans = [read_plan(path).plan for path in (first, second)]
    differences = compare_figures(*(figures_of(plan) for plan in plans))
    is_same_batch = plans[0].cu_seqlens.tolist() == plans[1].cu_seqlens.tolist()
    notes = _notes(*plans)
    crossed = [t.text for t in thresholds if t.is_crossed(differences)]
    if as_json:
        print_json(
            {
                "schema": "dcp.compare/1",
                "first": first,
                "second": second,
                "same_lengths": is_same_batch,
                "notes": notes,
                "figures": to_json(differences),
                "failed": crossed,
            }
        )
    else:
        show_comparison(first, second, differences)
        for note in notes:
            say(f"note: {note}")
    for text in crossed:
        say(f"{text} holds")
    sys.exit(1 if crossed else 0)


def _notes(first: "Plan", second: "Plan") -> list[str]:
    """Say what makes two plans unlike, so that their figures tell little."""
    from dcp_planner.tables.metrics import measure

    is_same_batch = first.cu_seqlens.tolist() == second.cu_seqlens.tolist()
    unlike = {
        "batches of other lengths": not is_same_batch,
        "other masks": is_same_batch and measure(first).pairs != measure(second).pairs,
        "other model shapes": first.shape != second.shape,
        "other clusters": first.cluster != second.cluster,
    }
    return [f"the two plans are for {what}" for what, is_so in unlike.items() if is_so]
