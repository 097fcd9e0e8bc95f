"""The command `dcpm plan`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from dcp_planner.commands.output import check_folder_of, print_json, say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dcp_dsl import Spec
    from dcp_planner.batch import Batch
    from dcp_planner.cluster import Cluster, ModelShape
    from dcp_planner.planning import BatchRow, PlannedBatch, Planning

MOST_BLOCK = 1 << 32
MOST_DIVISIONS = 1024
_COUNT = click.IntRange(min=1)


def _option(*names: str, default: Any, text: str, kind: Any = _COUNT) -> Callable[..., Any]:
    """Give an option that shows its default; `Any`: whatever click takes."""
    return click.option(*names, type=kind, default=default, show_default=True, help=text)


def _block(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    """Give the tokens per block, ``None`` for ``auto``."""
    if value == "auto":
        return None
    if not value.isdecimal() or not 1 <= int(value) <= MOST_BLOCK:
        raise click.BadParameter(f"expected 1 to {MOST_BLOCK} tokens or auto, got {value!r}")
    return int(value)


def _divisions(ctx: click.Context, param: click.Parameter, value: str) -> int | str:
    """Give the number of divisions, or ``auto``."""
    if value == "auto":
        return value
    if not value.isdecimal() or not 2 <= int(value) <= MOST_DIVISIONS:
        raise click.BadParameter(f"expected 2 to {MOST_DIVISIONS} or auto, got {value!r}")
    return int(value)


def _heads(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[int, int, int] | None:
    """Give the three numbers of Q/KV/D."""
    if value is None:
        return None
    parts = value.split("/")
    if len(parts) != 3 or not all(part.isdecimal() and len(part) < 10 for part in parts):
        raise click.BadParameter(f"expected three numbers such as 8/2/128, got {value!r}")
    q_heads, kv_heads, head_dim = (int(part) for part in parts)
    return q_heads, kv_heads, head_dim


@click.command()
@click.argument("spec", type=click.Path(dir_okay=False))
@click.option("--dataset", metavar="PATH", help="Parquet or JSON lines file, or a folder of them.")
@click.option(
    "--sample",
    "samples",
    multiple=True,
    metavar="JSON|NAME",
    help="JSON object such as '{\"len\": 4096}', or a sample of SPEC; repeat to pack several.",
)
@click.option(
    "--mask", metavar="CALL", help="Mask by name or call.  [default: what `for ... use` says]"
)
@_option("--tokens", default=131_072, text="Most tokens of a batch of the data set.")
@_option(
    "--batch", default=0, text="First batch of the data set to plan.", kind=click.IntRange(min=0)
)
@_option("--batches", default=1, text="Batches to plan.")
@click.option(
    "--block", "--block-size", default="auto", show_default=True, callback=_block,
    metavar="N|auto", help="Tokens per block.",
)  # fmt: skip
@click.option(
    "--cluster",
    metavar="NxD|PRESET|FILE",
    help="Nodes x devices, a preset (h100-dgx, h200-dgx:8x8, ...) or a TOML file.  "
    "[default: a100-p4de:4x8]",
)
@click.option("--nodes", type=_COUNT, help="Nodes, instead of the cluster's own.")
@click.option("--devices-per-node", type=_COUNT, help="Devices of a node, likewise.")
@click.option(
    "--backend", "--partitioner", metavar="NAME", help="Who places the batch, for example kahypar."
)
@click.option(
    "--budget", type=click.Choice(["fast", "balanced", "best"]), default="balanced",
    show_default=True, help="How much the search may do.",
)  # fmt: skip
@click.option(
    "--routing", type=click.Choice(["direct", "node"]),
    help="From and to the owner, or once per node and on from there.",
)  # fmt: skip
@click.option(
    "--divisions", default="auto", show_default=True, callback=_divisions, metavar="N|auto",
    help="Most divisions per direction; auto: as many as are fastest.",
)  # fmt: skip
@click.option(
    "--memory-limit", type=click.IntRange(min=0), metavar="BYTES",
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
@_option("--seed", default=0, text="Of every random choice.", kind=click.IntRange(0, 2**31 - 1))
@_option(
    "--time-limit", default=60.0, text="Seconds for the partitioner.",
    kind=click.FloatRange(0, min_open=True),
)  # fmt: skip
@click.option(
    "--heads", metavar="Q/KV/D", callback=_heads,
    help="Query heads, key/value heads and elements per head, for example 8/2/128.",
)  # fmt: skip
@_option("--q-heads", default=8, text="Query heads of a device.")
@_option("--kv-heads", default=2, text="Key/value heads of a device.")
@_option("--head-dim", default=128, text="Elements per head.")
@_option("--dtype-bytes", default=2, text="Bytes per element.", kind=click.IntRange(1, 8))
@click.option(
    "--against",
    multiple=True,
    metavar="BACKEND",
    help="Plan with this one too and report how much slower it is; `static` for all of them.",
)
@click.option(
    "--out",
    type=click.Path(),
    help="The .dcpplan file to write; with --batches, the folder of files.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def plan(spec: str, as_json: bool, **options: Any) -> None:  # Any: click's values
    """Plan packed batches of SPEC, a .dcpm file, and report what they cost.

    A batch comes from a data set or from samples given here. With --out plan and predicted trace
    are written.
    """
    from dcp_planner.tables import show_batches, show_plan

    if bool(options["dataset"]) == bool(options["samples"]):
        raise click.UsageError("expected a batch: give either --dataset or --sample")
    if options["samples"] and options["batches"] > 1:
        raise click.UsageError("--sample gives one batch; leave --batches away or give --dataset")
    planning = _planning(options)
    folder = _output_folder(options)
    rows: list[BatchRow] = []
    single = None
    for made in _planned(planning, _batches(spec, planning, options), options["batches"]):
        single = made if options["batches"] == 1 else None
        if options["out"] is not None:
            file = f"batch-{options['batch'] + len(rows):05d}.dcpplan"
            made = made.written(folder / file if folder else Path(options["out"]))
        rows.append(made.row)
    if as_json:
        print_json(_document(spec, planning, rows))
    elif single is not None:
        show_plan(single.plan, single.trace, rows[0])
    else:
        show_batches(rows)


def _planned(
    planning: "Planning", batches: "Iterator[Batch]", count: int
) -> "Iterator[PlannedBatch]":
    """Plan batch after batch; a progress bar on a terminal, else a line each."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from dcp_planner.jit import announced

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(),
    )  # fmt: skip
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with bar, announced(lambda: say("compiling the planner (once per installation)")):
        from dcp_planner.planning import plan_batch

        task = bar.add_task("planning", total=count)
        for batch in batches:
            text = f"placing {batch.sparsity.num_blocks} tiles with {planning.config.partitioner}"
            bar.update(task, description=text)
            if not console.is_terminal:
                say(text)
            yield plan_batch(batch, planning)
            bar.advance(task)


def _batches(path: str, planning: "Planning", options: dict[str, Any]) -> "Iterator[Batch]":
    """Compile the batches one after the other; `Any`: click's values."""
    from dcp_dsl import load
    from dcp_planner.batch import pack_dataset

    spec = load(path)
    if options["samples"]:
        yield _batch_of_samples(spec, planning, options)
        return
    say(f"reading {options['dataset']}")
    packed = pack_dataset(spec, options["dataset"], options["mask"], options["tokens"])
    for note in packed.notes:
        say(f"note: {note}")
    last = options["batch"] + options["batches"]
    if options["batch"] < len(packed) < last:
        say(f"note: only batches {options['batch']} to {len(packed) - 1} exist")
        last = len(packed)
    for index in range(options["batch"], last):
        yield packed.batch(index, planning.block_size)


def _batch_of_samples(spec: "Spec", planning: "Planning", options: dict[str, Any]) -> "Batch":
    from dcp_dsl import Sample
    from dcp_planner.batch import batch_of_samples

    call = options["mask"]
    if call is None:
        if len(spec.masks) != 1:
            known = ", ".join(spec.masks) or "none of its own"
            raise click.UsageError(f"choose a mask with --mask; {spec.name} has {known}")
        call = spec.masks[0]
    samples = [
        Sample.from_json(text) if text.lstrip().startswith("{") else spec.sample(text)
        for text in options["samples"]
    ]
    return batch_of_samples(spec, spec.mask(call), samples, planning.block_size)


def _planning(options: dict[str, Any]) -> "Planning":
    """Read the choices of the command line; `Any`: click's values."""
    from dcp_planner.config import PlanConfig
    from dcp_planner.planning import Planning

    chosen = {
        "partitioner": options["backend"],
        "budget": options["budget"],
        "routing": options["routing"],
        "divisions": options["divisions"],
        "compute_tolerance": options["compute_tolerance"],
        "token_tolerance": options["token_tolerance"],
        "seed": options["seed"],
        "time_limit_s": options["time_limit"],
        "memory_limit_bytes": options["memory_limit"],
    }
    config = PlanConfig(**{name: value for name, value in chosen.items() if value is not None})
    shape, cluster = _shape(options), _cluster(options)
    return Planning(
        shape=shape,
        cluster=cluster,
        config=config,
        block=options["block"],
        against=options["against"],
    )


def _shape(options: dict[str, Any]) -> "ModelShape":
    from dcp_planner.cluster import ModelShape

    names = ("q_heads", "kv_heads", "head_dim")
    context = click.get_current_context()
    given = [n for n in names if context.get_parameter_source(n) is ParameterSource.COMMANDLINE]
    if options["heads"] and given:
        option = "--" + given[0].replace("_", "-")
        raise click.UsageError(f"--heads says all three numbers; leave {option} away")
    q_heads, kv_heads, head_dim = options["heads"] or (options[name] for name in names)
    try:
        return ModelShape(q_heads, kv_heads, head_dim, options["dtype_bytes"])
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _cluster(options: dict[str, Any]) -> "Cluster":
    from dataclasses import replace

    from dcp_planner.cluster_file import find_cluster

    found = find_cluster(options["cluster"] or "a100-p4de:4x8")
    given = {name: options[name] for name in ("nodes", "devices_per_node")}
    return replace(found, **{name: value for name, value in given.items() if value is not None})


def _output_folder(options: dict[str, Any]) -> "Path | None":
    """Give the folder that several plans go to, made if missing; ``None`` for one file or none."""
    if options["out"] is None:
        return None
    check_folder_of(options["out"])
    folder = Path(options["out"])
    if options["batches"] == 1:
        if not folder.name or (folder.exists() and not folder.is_file()):
            raise click.BadParameter(
                f"expected the name of a file to write, got {options['out']!r}, which is none; "
                "give a name such as batch.dcpplan",
                param_hint="--out",
            )
        return None
    if folder.exists() and not folder.is_dir():
        raise click.BadParameter(
            f"{folder} is no folder; with --batches every plan becomes a file of it",
            param_hint="--out",
        )
    folder.mkdir(exist_ok=True)
    return folder


def _document(spec: str, planning: "Planning", rows: "list[BatchRow]") -> dict[str, Any]:
    """Give the JSON document; `Any`: what JSON holds."""
    from dataclasses import asdict

    from dcp_planner.batch_report import distribution_of, speedups_over

    figures = [row.figures for row in rows]
    others = {name: [row.others[name] for row in rows] for name in planning.others()}
    return {
        "schema": "dcp.plan_report/2",
        "spec": spec,
        "cluster": asdict(planning.cluster),
        "shape": asdict(planning.shape),
        "config": asdict(planning.config),
        "notes": list(rows[0].notes) if rows else [],
        "batches": [row.to_json() for row in rows],
        "distribution": {name: s.to_json() for name, s in distribution_of(figures).items()},
        "speedup": {name: s.to_json() for name, s in speedups_over(figures, others).items()},
    }
