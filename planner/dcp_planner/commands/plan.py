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
@click.option("--dataset", metavar="PATH", help="Parquet or JSON lines file, or a folder of them.")
@click.option(
    "--sample",
    "samples",
    multiple=True,
    metavar="SAMPLE",
    help="A sample of SPEC by name, or its columns: 'len = 4096', JSON or a JSON file; repeat to "
    "pack several.",
)
@click.option(
    "--mask",
    metavar="CALL",
    help="Mask by name or call, or stack by name.  [default: what `for ... use` says]",
)
@click.option(
    "--tokens", "token_budget", default="131072", show_default=True, callback=parse_tokens,
    metavar="N", help="Most tokens of a batch of the data set; 8k is 8192.",
)  # fmt: skip
@_option(
    "--batch", "first_batch", default=0, text="First batch of the data set to plan.",
    kind=click.IntRange(min=0),
)  # fmt: skip
@_option("--batches", "num_wanted", default=1, text="Batches to plan.")
@click.option(
    "--block", "--block-size", "block", default="auto", show_default=True,
    callback=or_auto(1, MOST_BLOCK, " tokens"), metavar="N|auto", help="Tokens per block.",
)  # fmt: skip
@click.option(
    "--cluster", default="a100-p4de:4x8", show_default=True, metavar="NxD|PRESET|FILE",
    help="Nodes x devices, a preset (h100-dgx, h200-dgx:8x8, ...) or a TOML file.",
)  # fmt: skip
@click.option(
    "--backend", "--partitioner", "partitioner", metavar="NAME",
    help="Partitioner that places the batch, for example kahypar.",
)  # fmt: skip
@click.option(
    "--budget", type=click.Choice(BUDGETS), default="balanced",
    show_default=True, help="How much the search may do.",
)  # fmt: skip
@click.option(
    "--objective", type=click.Choice(OBJECTIVES), default="time",
    show_default=True, help="What the plan has least of among those of the front.",
)  # fmt: skip
@click.option(
    "--front", "is_front", is_flag=True,
    help="List and draw plans of which none is beaten in time, bytes, balance and memory at once.",
)  # fmt: skip
@click.option(
    "--routing", type=click.Choice(get_args(Routing)),
    help="From and to the owner, or once per node and on from there.",
)  # fmt: skip
@click.option(
    "--divisions", default="auto", show_default=True, callback=or_auto(2, MOST_DIVISIONS),
    metavar="N|auto", help="Most divisions per direction; auto: as many as are fastest.",
)  # fmt: skip
@click.option(
    "--memory-limit", "memory_limit_bytes", type=click.IntRange(min=0), metavar="BYTES",
    help="Most bytes that a device may need for what it receives and for partial results.",
)  # fmt: skip
@_option(
    "--compute-tolerance", default=0.1, text="Most compute over the mean.",
    kind=click.FloatRange(min=0),
)  # fmt: skip
@_option(
    "--token-tolerance", default=0.1, text="Most tokens over the mean.",
    kind=click.FloatRange(min=0),
)  # fmt: skip
@click.option(
    "--partials", type=click.Choice(get_args(Partials)), default="auto",
    show_default=True,
    help="Type in which partial results travel; auto: float32 where it costs at most 3%.",
)  # fmt: skip
@_option("--seed", default=0, text="Of every random choice.", kind=click.IntRange(0, 2**31 - 1))
@_option(
    "--time-limit", "time_limit_s", default=60.0, text="Seconds for the partitioner.",
    kind=click.FloatRange(0, min_open=True),
)  # fmt: skip
@click.option(
    "--heads", metavar="Q/KV/D", callback=parse_heads,
    help="Query heads, key/value heads and elements per head.  [default: 8/2/128, or the model's]",
)  # fmt: skip
@click.option(
    "--head-groups", default="1", show_default=True, callback=or_auto(1, MOST_HEAD_GROUPS),
    metavar="N|auto",
    help="Groups of heads that are placed on their own; auto: as many as are fastest.",
)  # fmt: skip
@click.option(
    "--model", metavar="NAME",
    help="llama-8b, llama-70b or gemma-3-12b: plan for the shortest step, and print it.",
)  # fmt: skip
@_option("--dtype-bytes", default=2, text="Bytes per element.", kind=click.IntRange(1, 8))
@click.option(
    "--against",
    multiple=True,
    metavar="BACKEND",
    help="Plan with this one too and report the speedup over it; `static`: every static layout.",
)
@click.option(
    "--out",
    type=click.Path(),
    help="The .dcpplan file to write; with --batches, the folder of files and their report; or the "
    "report alone, NAME.dcpbatches.json.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def plan(spec: str, as_json: bool, **options: Any) -> None:  # Any: click's values
    """Plan packed batches of SPEC, a .dcpm file, and report what they cost.

    A batch comes from a data set or from samples given here. With --out plan and predicted trace
    are written. With --model the plan is that of the shortest step, linear part included. A stack
    gets a plan for each of its masks, over one ownership of tokens, and a file for each.
    """
    from dcp_planner.batches.report_file import DatasetRun, stack_document
    from dcp_planner.commands.tables import (
        show_batches,
        show_plan,
        show_stack,
        show_step,
        show_use,
    )
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
    if compile_seconds():
        say(f"compiled in {compile_seconds():.1f} s, which the planning time leaves out")
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
            show_batches(mask.rows)
        if mask.output.report is not None:
            report = mask.output.report
            say(f"wrote {report}; `dcpm dashboard {report.parent}` shows it")
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
            "--front lists plans of one batch; leave out --out, --against, --model and --batches, "
            "and write one of its plans with --objective and --out"
        )
    (batch, *others) = next(_batches(run, options["samples"]))
    if others:
        raise click.UsageError("--front takes one mask; name one of the stack's with --mask")
    planning = run.planning
    front = build_front(batch.sparsity, planning.shape, planning.cluster, planning.config)
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
    """Return the share of a model on a device with the heads of `shape`."""
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
                f"--sample gives one batch; leave --{option} out or give --dataset"
            )


def _plan_all(run: "DatasetRun", output: PlanOutput, options: dict[str, Any]) -> list[MaskOutput]:
    """Plan and write batch after batch; return the output of each mask (`Any`: click's values)."""
    masks: list[MaskOutput] = []
    for batch in _planned(run.planning, _batches(run, options["samples"]), run.num_wanted):
        # Every batch has the same masks; the first one tells which.
        masks = masks or [MaskOutput.of(run, output, made) for made in batch]
        for mask, made in zip(masks, batch, strict=True):
            mask.add(made)
    for mask in masks:
        mask.report(is_complete=True)
    return masks


def _planned(
    planning: "PlanningChoices", batches: "Iterator[tuple[Batch, ...]]", count: int
) -> "Iterator[tuple[PlannedMask, ...]]":
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
            tiles = sum(mask.sparsity.num_blocks for mask in batch)
            text = f"placing {tiles} tiles with {planning.config.partitioner}"
            bar.update(task, description=text)
            if not console.is_terminal:
                say(text)
            yield plan_batch(batch, planning)
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


def _planning(options: dict[str, Any]) -> "PlanningChoices":
    """Read the choices of the command line; `Any`: click's values."""
    from dataclasses import fields

    from dcp_planner.batches.planning import PlanningChoices
    from dcp_planner.model.cluster_file import find_cluster
    from dcp_planner.model.config import PlanConfig

    # Options with names of fields are these fields; one that was not given keeps the default.
    names = {field.name for field in fields(PlanConfig)}
    chosen = {name: v for name, v in options.items() if name in names and v is not None}
    cluster = find_cluster(options["cluster"])
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
