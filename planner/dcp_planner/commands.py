"""The commands `dcpm plan` and `dcpm simulate`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from dcp_planner.batch import Batch

_PARTITIONERS = ("kahypar", "static:zigzag", "static:contiguous")  # a test keeps it in step
_COUNT = click.IntRange(min=1)


def _option(name: str, default: Any, text: str, kind: Any = _COUNT) -> Callable[..., Any]:
    """Give an option that shows its default; `Any`: whatever click takes."""
    return click.option(name, type=kind, default=default, show_default=True, help=text)


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
@_option("--tokens", 131_072, "Most tokens of a batch of the data set.")
@_option("--batch", 0, "Which batch of the data set.", click.IntRange(min=0))
@_option("--block-size", 2048, "Tokens per block.")
@_option("--nodes", 4, "Nodes of the cluster.", click.IntRange(1, 4096))
@_option("--devices-per-node", 8, "Devices of a node.", click.IntRange(1, 64))
@_option("--partitioner", "kahypar", "Who places the batch.", click.Choice(_PARTITIONERS))
@_option("--divisions", 4, "Most divisions per direction.", click.IntRange(2, 64))
@_option("--compute-tolerance", 0.1, "Most compute over the mean.", click.FloatRange(min=0))
@_option("--token-tolerance", 0.1, "Most tokens over the mean.", click.FloatRange(min=0))
@_option("--seed", 0, "Of every random choice.", click.IntRange(0, 2**31 - 1))
@_option("--time-limit", 60.0, "Seconds for the partitioner.", click.FloatRange(0, min_open=True))
@_option("--q-heads", 8, "Query heads of a device.")
@_option("--kv-heads", 2, "Key/value heads of a device.")
@_option("--head-dim", 128, "Elements per head.")
@_option("--dtype-bytes", 2, "Bytes per element.", click.IntRange(1, 8))
@click.option(
    "--out", required=True, type=click.Path(dir_okay=False), help="The .dcpplan file to write."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def plan(spec: str, out: str, as_json: bool, **options: Any) -> None:  # Any: click's values
    """Plan one packed batch of SPEC, a .dcpm file, and write plan and predicted trace.

    The batch comes from a data set or from samples given here.
    """
    from dcp_planner.build import build_plan
    from dcp_planner.cluster import Cluster
    from dcp_planner.config import PlanConfig
    from dcp_planner.fingerprint import digest
    from dcp_planner.plan_file import write_plan
    from dcp_planner.report import measure
    from dcp_planner.simulator import simulate
    from dcp_planner.tables import show_plan
    from dcp_planner.timing import measure_trace

    config = PlanConfig(
        partitioner=options["partitioner"],
        divisions=options["divisions"],
        compute_tolerance=options["compute_tolerance"],
        token_tolerance=options["token_tolerance"],
        seed=options["seed"],
        time_limit_s=options["time_limit"],
    )
    shape = _shape(options)
    cluster = Cluster(nodes=options["nodes"], devices_per_node=options["devices_per_node"])
    _check_folder(out)
    batch = _batch(spec, options)
    for note in batch.notes:
        _say(f"note: {note}")
    _say(f"placing {batch.sparsity.num_blocks} tiles with {config.partitioner}")
    made = build_plan(batch.sparsity, shape, cluster, config, provenance=batch.provenance)
    trace = simulate(made)
    write_plan(out, made, [trace])
    metrics, timings = measure(made), measure_trace(trace, made.num_devices)
    if not as_json:
        show_plan(made, metrics, timings, out)
        return
    document = {
        "schema": "dcp.plan_report/1",
        "file": out,
        "digest": digest(made),
        "mask": batch.provenance.mask,
        "origin": batch.provenance.origin,
        "notes": list(batch.notes),
        "metrics": metrics.to_json(),
        "predicted": timings.to_json(),
    }
    click.echo(json.dumps(document, indent=1))


@click.command()
@click.argument("plan", type=click.Path(dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def simulate(plan: str, as_json: bool) -> None:
    """Predict how long PLAN, a .dcpplan file, takes on its cluster, device by device."""
    from dcp_planner.fingerprint import digest
    from dcp_planner.plan_file import read_plan
    from dcp_planner.report import measure
    from dcp_planner.simulator import simulate as run_simulation
    from dcp_planner.tables import show_simulation
    from dcp_planner.timing import measure_trace

    made = read_plan(plan).plan
    timings = measure_trace(run_simulation(made), made.num_devices)
    metrics = measure(made)
    if not as_json:
        show_simulation(made, metrics, timings)
        return
    document = {
        "schema": "dcp.simulate/1",
        "file": plan,
        "digest": digest(made),
        "cluster": {
            "name": made.cluster.name,
            "nodes": made.cluster.nodes,
            "devices_per_node": made.cluster.devices_per_node,
        },
        "predicted": timings.to_json(),
        "metrics": metrics.to_json(),
    }
    click.echo(json.dumps(document, indent=1))


def _say(text: str) -> None:
    click.echo(text, err=True)


def _shape(options: dict[str, Any]) -> Any:  # Any: a ModelShape, not imported up here
    from dcp_planner.cluster import ModelShape

    names = ("q_heads", "kv_heads", "head_dim", "dtype_bytes")
    try:
        return ModelShape(**{name: options[name] for name in names})
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _check_folder(out: str) -> None:
    folder = Path(out).absolute().parent
    if not folder.is_dir():
        raise click.BadParameter(
            f"{folder} is no folder; choose one that exists", param_hint="--out"
        )


def _batch(path: str, options: dict[str, Any]) -> "Batch":
    from dcp_dsl import Sample, load
    from dcp_planner.batch import batch_of_dataset, batch_of_samples

    if bool(options["dataset"]) == bool(options["samples"]):
        raise click.UsageError("expected a batch: give either --dataset or --sample")
    spec, block_size = load(path), options["block_size"]
    if options["dataset"]:
        return batch_of_dataset(
            spec,
            options["dataset"],
            options["mask"],
            tokens=options["tokens"],
            index=options["batch"],
            block_size=block_size,
            say=_say,
        )
    call = options["mask"]
    if call is None:
        if len(spec.masks) != 1:
            known = ", ".join(spec.masks) or "none of its own"
            raise click.UsageError(f"choose a mask with --mask; {path} has {known}")
        call = spec.masks[0]
    samples = [
        Sample.from_json(text) if text.lstrip().startswith("{") else spec.sample(text)
        for text in options["samples"]
    ]
    return batch_of_samples(spec, spec.mask(call), samples, block_size)
