"""The command `dcpm plan`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_args

import click
from click.core import ParameterSource

from dcp_planner.commands.options import chosen_masks, or_auto, parse_heads, parse_tokens
from dcp_planner.commands.output import MaskOutput, PlanOutput, open_output, print_json, say
from dcp_planner.model.config import (
    BUDGETS,
    MOST_DIVISIONS,
    MOST_HEAD_GROUPS,
    OBJECTIVES,
    Partials,
    Routing,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dcp_planner.batches.batch import Batch
    from dcp_planner.batches.planning import PlannedMask, PlanningChoices
    from dcp_planner.batches.report_file import DatasetRun
    from dcp_planner.model.cluster import Cluster, ModelShape
    from dcp_planner.report.figures import Spread
    from dcp_planner.step.setting import StepModel

MOST_BLOCK = 1 << 32
_COUNT = click.IntRange(min=1)


def _option(*names: str, default: Any, text: str, kind: Any = _COUNT) -> Callable[..., Any]:
    """Declare an option that shows its default; `Any`: whatever click takes."""
    return click.option(*names, type=kind, default=default, show_default=True, help=text)


@click.command()
@click.argument("spec", type=click.Path())
@click.option(
    "--dataset", metavar="PATH", help="Parquet or JSON Lines file, or a folder of such files."
)
@click.option(
    "--sample",
    "samples",
    multiple=True,
    metavar="SAMPLE",
    help="Name of a sample in SPEC, or columns: 'len = 4096', JSON or a JSON file. Repeat to pack "
    "several samples.",
)
@click.option(
    "--mask",
    metavar="CALL",
    help="Name or call of a mask, or name of a stack.  [default: from `for ... use`]",
)
@click.option(
    "--tokens", "token_budget", default="131072", show_default=True, callback=parse_tokens,
    metavar="N", help="Maximum tokens in a batch of the data set; 8k is 8192.",
)  # fmt: skip
@_option(
    "--batch", "first_batch", default=0, text="Number of the first batch to plan, from 0.",
    kind=click.IntRange(min=0),
)  # fmt: skip
@_option("--batches", "num_wanted", default=1, text="Number of batches to plan.")
@click.option(
    "--block", "--block-size", "block", default="auto", show_default=True,
    callback=or_auto(1, MOST_BLOCK, " tokens"), metavar="N|auto", help="Tokens per block.",
)  # fmt: skip
@click.option(
    "--cluster", metavar="NxD|PRESET|FILE",
    help="A preset (h100-dgx, h200-dgx:8x8, ...), a TOML file, or nodes x devices per node of the "
    "preset a100-p4de.  [default: this machine]",
)  # fmt: skip
@click.option(
    "--backend", "--partitioner", "partitioner", metavar="NAME",
    help="Partitioner that places blocks and tiles on devices, for example kahypar.",
)  # fmt: skip
@click.option(
    "--budget", type=click.Choice(BUDGETS), default="balanced",
    show_default=True, help="Effort of the search.",
)  # fmt: skip
@click.option(
    "--objective", type=click.Choice(OBJECTIVES), default="time",
    show_default=True, help="Quantity to minimise among the plans of the Pareto front.",
)  # fmt: skip
@click.option(
    "--front", "is_front", is_flag=True,
    help="List and draw the Pareto front of time, bytes, balance and memory.",
)  # fmt: skip
@click.option(
    "--routing", type=click.Choice(get_args(Routing)),
    help="direct: between owner and device; node: once per node, then forwarded within it.",
)  # fmt: skip
@click.option(
    "--divisions", default="auto", show_default=True, callback=or_auto(2, MOST_DIVISIONS),
    metavar="N|auto", help="Maximum divisions in forward and backward; auto: the fastest number.",
)  # fmt: skip
@click.option(
    "--memory-limit", "memory_limit_bytes", type=click.IntRange(min=0), metavar="BYTES",
    help="Maximum bytes on a device for received data and partial results.",
)  # fmt: skip
@click.option(
    "--compute-tolerance", type=click.FloatRange(min=0),
    help="Allowed excess of compute over the mean, as a fraction.  [default: time decides]",
)  # fmt: skip
@_option(
    "--token-tolerance", default=0.1, text="Allowed excess of tokens over the mean, as a fraction.",
    kind=click.FloatRange(min=0),
)  # fmt: skip
@click.option(
    "--partials", type=click.Choice(get_args(Partials)), default="auto",
    show_default=True,
    help="Data type of partial results in messages; auto: float32 if that costs at most 3%.",
)  # fmt: skip
@click.option(
    "--reproducible", is_flag=True,
    help="Same bits of out and gradients on any number of devices, in any plan, beside any rows.",
)  # fmt: skip
@_option(
    "--seed", default=0, text="Seed of every random choice.", kind=click.IntRange(0, 2**31 - 1)
)
@_option(
    "--time-limit", "time_limit_s", default=60.0, text="Time limit of the partitioner, in seconds.",
    kind=click.FloatRange(0, min_open=True),
)  # fmt: skip
@click.option(
    "--heads", metavar="Q/KV/D", callback=parse_heads,
    help="Query heads, key/value heads, elements per head.  [default: 8/2/128, or the model's]",
)  # fmt: skip
@click.option(
    "--head-groups", default="1", show_default=True, callback=or_auto(1, MOST_HEAD_GROUPS),
    metavar="N|auto",
    help="Number of head groups that are placed separately; auto: the fastest number.",
)  # fmt: skip
@click.option(
    "--model", metavar="NAME",
    help="llama-8b, llama-70b or gemma-3-12b: minimise the step time of this model, and print it.",
)  # fmt: skip
@_option(
    "--dtype-bytes", default=2, text="Bytes per element of the tensors.", kind=click.IntRange(1, 8)
)
@click.option(
    "--against",
    multiple=True,
    metavar="BACKEND",
    help="Also plan with this partitioner, and report the speedup over it. `static`: every static "
    "layout. Repeatable.",
)
@click.option(
    "--out",
    type=click.Path(),
    help="The .dcpplan file to write; with --batches, a folder for the plans and their report; or "
    "NAME.dcpbatches.json for the report alone.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def plan(spec: str, as_json: bool, **options: Any) -> None:  # Any: click's values
    """Plan packed batches with the masks of SPEC, a .dcpm file, and report the predicted cost.

    A batch comes from a data set (--dataset) or from samples (--sample). --out writes the plan and
    its predicted trace. --model minimises the time of a whole step, including the linear part. A
    stack gets one plan and one file for each of its masks; all these plans share the same owners of
    tokens.
    """
    from dcp_planner.batches.report_file import DatasetRun, stack_document
    from dcp_planner.commands.tables import show_batches, show_plan, show_stack, show_step, show_use
    from dcp_planner.jit import compile_seconds

    _check_batch(options)
    # Names of these options are fields of `DatasetRun`; the other fields have defaults.
    named = ("dataset", "mask", "token_budget", "first_batch", "num_wanted")
    run = DatasetRun(spec, planning=_planning(options), **{name: options[name] for name in named})
    if options["is_front"]:
        _print_front(run, options, as_json=as_json)
        return
    output = open_output(options["out"], run.num_wanted)  # refuses before the work begins
    masks = _plan_all(run, output, options)
    _tell_own_cluster(options, run.planning.cluster)
    if compile_seconds():
        say(f"compiled the planner in {compile_seconds():.1f} s; the planning time excludes this")
    runs, rows = [mask.run for mask in masks], [mask.rows for mask in masks]
    uses = [run.use for run in runs if run.use is not None]
    times = _step_times(masks, options)
    if as_json:
        document = (
            stack_document(runs, rows) if uses else runs[0].document(rows[0], is_complete=True)
        )
        step = {name: spread._asdict() for name, spread in times.items()}
        print_json(document | ({"step": {"model": options["model"], **step}} if step else {}))
        return
    for mask in masks:
        if mask.run.use is not None:
            show_use(mask.rows[0].mask, mask.run.use)
        if run.num_wanted == 1 and mask.last is not None:
            show_plan(mask.last.plan, mask.last.trace, mask.rows[0])
        else:
            show_batches(mask.rows, run.planning.cluster)
        if mask.output.report is not None:
            report = mask.output.report
            say(f"wrote {report}; to view: dcpm dashboard {report.parent}")
    if uses:
        show_stack(uses, rows)
    if times:
        show_step(options["model"], times)


def _print_front(run: "DatasetRun", options: dict[str, Any], *, as_json: bool) -> None:
    """Print the front of the batch (`Any`: click's values)."""
    from dcp_planner.commands.tables import show_front
    from dcp_planner.plan.build import build_front

    if options["out"] or options["against"] or options["model"] or run.num_wanted > 1:
        raise click.UsageError(
            "--front lists plans of one batch; remove --out, --against, --model and --batches. To "
            "write a plan of the front, use --objective and --out without --front"
        )
    (batch, *others) = next(_batches(run, options["samples"]))
    if others:
        raise click.UsageError("--front takes one mask; choose a mask of the stack with --mask")
    planning = run.planning
    front = build_front(batch.sparsity, planning.shape, planning.cluster, planning.config)
    _tell_own_cluster(options, planning.cluster)
    if as_json:
        print_json({"front": [point.figures() for point in front]})
    else:
        show_front(front)


def _step_times(masks: list[MaskOutput], options: dict[str, Any]) -> "dict[str, Spread]":
    """Predict the step of each batch, if a model is given; `Any`: click's values."""
    from dcp_planner.step.report import batch_spreads

    if options["model"] is None:
        return {}
    figures = [[row.figures for row in mask.rows] for mask in masks]
    layers = [mask.run.use.layers for mask in masks if mask.run.use] or None
    planning = masks[0].run.planning
    model = _model(options["model"], planning.cluster, planning.shape)
    return batch_spreads(model, figures, layers)


def _model(name: str, cluster: "Cluster", shape: "ModelShape") -> "StepModel":
    from dcp_planner.step.setting import step_model

    return step_model(name, cluster.name).with_heads(shape)


def _check_batch(options: dict[str, Any]) -> None:
    """Refuse options that name no batch, or two (`Any`: click's values)."""
    if bool(options["dataset"]) == bool(options["samples"]):
        raise click.UsageError("expected a batch: give either --dataset or --sample")
    if not options["samples"]:
        return
    # These options have defaults: only those that were typed contradict a sample.
    context = click.get_current_context()
    names = {"batches": "num_wanted", "batch": "first_batch", "tokens": "token_budget"}
    for option, name in names.items():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"--sample defines one batch; remove --{option}, or use --dataset"
            )


def _plan_all(run: "DatasetRun", output: PlanOutput, options: dict[str, Any]) -> list[MaskOutput]:
    """Plan and write batch after batch; return the output of each mask (`Any`: click's values)."""
    from dcp_planner.batches.narrower import Comparison

    masks: list[MaskOutput] = []
    compared = Comparison(run.planning)
    for batch, planned in _planned(run.planning, _batches(run, options["samples"]), run.num_wanted):
        # Every batch has the same masks; the first one tells which.
        masks = masks or [MaskOutput.of(run, output, made) for made in planned]
        for mask, made in zip(masks, planned, strict=True):
            mask.add(made)
        if run.dataset is not None:
            compared.add(batch, planned)
    for mask in masks:
        mask.report(is_complete=True)
    if (narrower := compared.best()) is not None:
        say(f"note: {narrower}")
    return masks


def _planned(
    planning: "PlanningChoices", batches: "Iterator[tuple[Batch, ...]]", count: int
) -> "Iterator[tuple[tuple[Batch, ...], tuple[PlannedMask, ...]]]":
    """Plan batch after batch; a progress bar on a terminal, else a line each."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(),
    )  # fmt: skip
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with bar:
        # Imported under the bar, since the first import may compile the planner.
        from dcp_planner.batches.planning import plan_batch

        task = bar.add_task("planning", total=count)
        for batch in batches:
            tokens = batch[0].sparsity.batch.num_tokens
            masks = f" under {len(batch)} masks" * (len(batch) > 1)
            text = (
                f"planning {tokens:,} tokens{masks} for {planning.cluster.num_devices} devices of "
                f"{planning.cluster.name}"
            )
            bar.update(task, description=text)
            if not console.is_terminal:
                say(text)
            yield batch, plan_batch(batch, planning)
            bar.advance(task)


def _batches(run: "DatasetRun", samples: "tuple[str, ...]") -> "Iterator[tuple[Batch, ...]]":
    """Compile the batches one after the other, each once for every mask."""
    from dcp_dsl import load, sample_from_argument
    from dcp_planner.batches.batch import batch_of_samples, pack_dataset

    spec, block_size = load(run.spec), run.planning.block_size
    if run.dataset is None:
        masks = chosen_masks(spec, run.mask)
        given = [sample_from_argument(spec, text) for text in samples]
        yield batch_of_samples(spec, masks, given, block_size)
        return
    say(f"reading {run.dataset}")
    packed = pack_dataset(spec, run.dataset, run.mask, run.token_budget)
    for note in packed.notes:
        say(f"note: {note}")
    last = run.first_batch + run.num_wanted
    # A first batch beyond the end is an error, which `packed.batch` raises; fewer batches are not.
    if run.first_batch < len(packed) < last:
        say(f"note: the data set ends with batch {len(packed) - 1}")
        last = len(packed)
    for index in range(run.first_batch, last):
        yield packed.batch(index, block_size)


def _tell_own_cluster(options: dict[str, Any], cluster: "Cluster") -> None:
    """Print which cluster was taken, if none was named (`Any`: click's values)."""
    from dcp_planner.model.own_machine import describe_own

    if options["cluster"] is not None:
        return
    machine = describe_own()
    size = f"{cluster.nodes} x {cluster.devices_per_node} devices"
    as_what = "" if machine == cluster.name else f"; no preset describes its {machine}"
    say(
        f"note: no --cluster: planned for this machine, {size} of {cluster.name}{as_what}. Name "
        "another (--cluster h100-dgx:8x8), or measure this one (dcpm calibrate --out mine.toml)"
    )


def _planning(options: dict[str, Any]) -> "PlanningChoices":
    """Read the choices of the command line; `Any`: click's values."""
    from dataclasses import fields

    from dcp_planner.batches.planning import PlanningChoices
    from dcp_planner.model.cluster_file import find_cluster
    from dcp_planner.model.config import PlanConfig
    from dcp_planner.model.own_machine import own_cluster

    # Options with names of fields are these fields; one that was not given keeps the default.
    names = {field.name for field in fields(PlanConfig)}
    chosen = {name: v for name, v in options.items() if name in names and v is not None}
    cluster = own_cluster() if options["cluster"] is None else find_cluster(options["cluster"])
    shape = _shape(options, cluster)
    if options["model"] is not None:
        # The price of a token makes the search weigh the linear part against attention.
        chosen["token_seconds"] = _model(options["model"], cluster, shape).token_seconds
    return PlanningChoices(
        shape=shape,
        cluster=cluster,
        config=PlanConfig(**chosen),
        block=None if options["block"] == "auto" else options["block"],
        against=options["against"],
    )


def _shape(options: dict[str, Any], cluster: "Cluster") -> "ModelShape":
    """Return the heads that were given, the model's, or the default (`Any`: click's values)."""
    from dataclasses import replace

    from dcp_planner.model.cluster import ModelShape

    if options["model"] and not options["heads"]:
        from dcp_planner.step.setting import step_model

        shape = step_model(options["model"], cluster.name).shape
        return replace(shape, dtype_bytes=options["dtype_bytes"])
    try:
        q_heads, kv_heads, head_dim = options["heads"] or (8, 2, 128)
        return ModelShape(q_heads, kv_heads, head_dim, options["dtype_bytes"])
    except ValueError as error:
        raise click.UsageError(str(error)) from None
