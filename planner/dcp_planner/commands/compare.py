"""The command `dcpm compare`."""

import sys

import click

from dcp_planner.commands.output import print_json


@click.command()
@click.argument("first", type=click.Path(dir_okay=False))
@click.argument("second", type=click.Path(dir_okay=False))
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
    from dcp_planner.batch_report import figures_of
    from dcp_planner.comparison import compare_figures, parse_threshold, to_json
    from dcp_planner.plan_file import read_plan
    from dcp_planner.tables import show_comparison

    thresholds = [parse_threshold(text) for text in conditions]
    plans = [read_plan(path).plan for path in (first, second)]
    differences = compare_figures(*(figures_of(plan) for plan in plans))
    is_same_batch = plans[0].cu_seqlens.tolist() == plans[1].cu_seqlens.tolist()
    crossed = [t.text for t in thresholds if t.is_crossed(differences)]
    if as_json:
        print_json(
            {
                "schema": "dcp.compare/1",
                "first": first,
                "second": second,
                "same_lengths": is_same_batch,
                "figures": to_json(differences),
                "failed": crossed,
            }
        )
    else:
        show_comparison(first, second, differences)
        if not is_same_batch:
            click.echo("note: the two plans are for batches of other lengths", err=True)
        for what, of in (("model shapes", "shape"), ("clusters", "cluster")):
            first_value, second_value = (getattr(plan, of) for plan in plans)
            if first_value != second_value:
                click.echo(f"note: the two plans are for other {what}", err=True)
    for text in crossed:
        click.echo(f"{text} holds", err=True)
    sys.exit(1 if crossed else 0)
