"""The command `dcpm compare`."""

import sys

import click

from dcp_planner.commands.output import print_json, say

NO_CAUSE = (
    "The plans compute different pairs. This command explains the faster plan only for two plans "
    "of one batch."
)


@click.command()
@click.argument("first", type=click.Path())
@click.argument("second", type=click.Path())
@click.option(
    "--fail-if",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help="Exit with status 1 if this holds: 'makespan>+2%' (change) or 'compute_imbalance>1.1' "
    "(value of SECOND). Repeatable.",
)
@click.option(
    "--model", metavar="NAME",
    help="Also compare the step of all layers of llama-8b, llama-70b or gemma-3-12b.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def compare(
    first: str, second: str, conditions: tuple[str, ...], model: str | None, as_json: bool
) -> None:
    """Compare two .dcpplan files figure by figure, each predicted on its own cluster.

    For two plans of one batch, the command also says which plan is faster, and why: the simulator
    predicts both plans again without each cause of their times. `dcpm why FIRST --against SECOND`
    shows the details.

    Exit status: 0 success, 1 if a condition of --fail-if holds, 2 if a file cannot be read.
    """
    from dcp_planner.causes.explanation import explain, explain_difference, unlike_batches
    from dcp_planner.commands.tables import place_text, show_comparison, time_text
    from dcp_planner.plan.file import read_plan
    from dcp_planner.report.figures import compare_figures, figures_of, parse_threshold, to_json
    from dcp_planner.step.report import STEP, step_differences
    from dcp_planner.step.setting import step_model

    # Conditions first: a mistyped one is refused before anything is read or predicted.
    thresholds = [parse_threshold(text, STEP if model else ()) for text in conditions]
    plans = [read_plan(path).plan for path in (first, second)]
    figures = [figures_of(plan) for plan in plans]
    differences = compare_figures(*figures)
    if model is not None:
        # Each plan runs the share of the model that belongs to its heads (tensor parallelism).
        models = [step_model(model, p.cluster.name).with_heads(p.shape) for p in plans]
        differences += step_differences(models, figures)
    is_same_batch = plans[0].cu_seqlens.tolist() == plans[1].cu_seqlens.tolist()
    # Plans of unlike batches, or on other clusters, are compared all the same, with a note. Only a
    # cause needs one batch.
    unlike = unlike_batches(*plans)
    others = ["other clusters"] if plans[0].cluster != plans[1].cluster else []
    notes = [f"the two plans are for {what}" for what in (*unlike, *others)]
    cause = None if unlike else explain(*plans)
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
        places = dict.fromkeys(place_text(plan.cluster) for plan in plans)
        click.echo(f"predicted for {' and '.join(places)}")
        show_comparison(first, second, differences, why)
        for note in notes:
            say(f"note: {note}")
    for text in crossed:
        say(f"{text} holds")
    sys.exit(1 if crossed else 0)
