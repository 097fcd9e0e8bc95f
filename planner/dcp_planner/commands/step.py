"""The command `dcpm step`."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dcp_planner.commands.options import chosen_masks, parse_tokens
from dcp_planner.commands.output import print_json, say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dcp_planner.model.cluster import Cluster
    from dcp_planner.step.policies import NamedPolicy, StepSetting
    from dcp_planner.step.report import StepReport
    from dcp_planner.step.setting import Documents

HOURS_PER_DAY = 24


def _mesh(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, int]:
    """Parse REPLICASxRANKS."""
    found = re.fullmatch(r"(\d{1,5})x(\d{1,5})", value)
    if found is None or not int(found[1]) or not int(found[2]):
        raise click.BadParameter(f"expected replicas x context ranks, such as 8x8, got {value!r}")
    return int(found[1]), int(found[2])


@click.command()
@click.argument("spec", type=click.Path())
@click.option(
    "--dataset", metavar="PATH", help="Parquet or JSON Lines file, or a folder of such files."
)
@click.option(
    "--lengths", metavar="FILE", help="JSON list of document lengths, instead of a data set."
)
@click.option(
    "--mask",
    metavar="CALL",
    help="Name or call of a mask, or name of a stack.  [default: the only mask of SPEC]",
)
@click.option(
    "--mesh", default="8x8", show_default=True, callback=_mesh, metavar="RxC",
    help="Data-parallel replicas x context-parallel ranks per replica.",
)  # fmt: skip
@click.option(
    "--micro-batches", type=click.IntRange(1, 4096), default=1, show_default=True,
    help="Micro-batches per step.",
)  # fmt: skip
@click.option(
    "--stages",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    help="Number of pipeline stages.",
)
@click.option(
    "--model", default="llama-8b", show_default=True, metavar="NAME",
    help="Model: llama-8b, llama-70b or gemma-3-12b.",
)  # fmt: skip
@click.option(
    "--cluster", default="h100-dgx", show_default=True, metavar="PRESET|FILE",
    help="Constants of the machine; --mesh sets the number of devices.",
)  # fmt: skip
@click.option(
    "--tokens", default="128k", show_default=True, callback=parse_tokens, metavar="N",
    help="Maximum tokens of a replica in one micro-batch; 8k is 8192.",
)  # fmt: skip
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Number of steps to plan.",
)
@click.option(
    "--synchronise", type=click.Choice(["micro_batch", "step"]), default="micro_batch",
    show_default=True,
    help="When devices exchange parameters: each micro-batch (FSDP) or each step (ZeRO-1).",
)  # fmt: skip
@click.option(
    "--even-price", type=click.FloatRange(0, 1), default=0.05, show_default=True, metavar="SHARE",
    help="Share of the step time that an even spread of tokens may cost; 0: only time counts.",
)  # fmt: skip
@click.option(
    "--against", metavar="all|NAME", multiple=True, default=("round-robin",), show_default=True,
    help="Other policies to compare on the same documents. Repeatable.",
)  # fmt: skip
@click.option(
    "--out",
    metavar="FILE",
    help="Write the first step to FILE (*.dcpstep.json) for the dashboard.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def step(
    spec: str, against: tuple[str, ...], as_json: bool, out: str | None, **options: Any
) -> None:  # Any: click's values
    """Plan whole training steps: assign documents to devices, and predict the time of a step.

    The documents come from a data set with the masks of SPEC, or from a file of lengths. The
    planner assigns documents to micro-batches and groups of devices by predicted time: the time of
    the linear part, and of attention with the mask of each document. The report splits the time of
    a step into its parts and compares it with other policies, such as dealing finished packs in
    turn.
    """
    from itertools import islice

    from dcp_dsl.files import check_writable
    from dcp_planner.errors import PlanFileError
    from dcp_planner.step.file import SUFFIX, write_step
    from dcp_planner.step.report import compare_policies

    if out is not None:
        if not out.endswith(SUFFIX):
            raise click.UsageError(f"--out: expected a name that ends in {SUFFIX}, got {out!r}")
        check_writable(Path(out), PlanFileError)
    if bool(options["dataset"]) == bool(options["lengths"]):
        raise click.UsageError("expected documents: give either --dataset or --lengths")
    setting = _setting(options)
    packs = setting.mesh.replicas * setting.mesh.micro_batches
    # Lazily: no row behind the wanted steps is bound to its mask.
    steps = islice(_steps(spec, options, packs), options["steps"])
    report = compare_policies(steps, setting, _rivals(against))
    if not report.steps:
        raise click.UsageError(
            f"the documents fill no step of {packs} packs ({setting.mesh.replicas} replicas x "
            f"{setting.mesh.micro_batches} micro-batches) of {setting.token_budget} tokens; give "
            "more documents, a smaller --mesh or a smaller --tokens"
        )
    if out is not None and report.first is not None:
        write_step(Path(out), report.first[1], report.first[0])
        say(f"wrote {out}; to view: dcpm dashboard {Path(out).parent}")
    if as_json:
        print_json(report.to_json())
    else:
        show_report(report, setting.cluster, options["model"])


def _setting(options: dict[str, Any]) -> "StepSetting":
    """Read mesh, model and machine of the command line; `Any`: click's values."""
    from dcp_planner.step.policies import StepSetting
    from dcp_planner.step.setting import StepMesh, step_model

    replicas, ranks = options["mesh"]
    mesh = StepMesh(replicas, ranks, options["micro_batches"], options["stages"])
    cluster = _cluster(options["cluster"], mesh.devices)
    return StepSetting(
        mesh=mesh,
        model=step_model(options["model"], cluster.name),
        cluster=cluster,
        token_budget=options["tokens"],
        synchronisation=options["synchronise"],
        even_price=options["even_price"],
    )


def _cluster(name: str, devices: int) -> "Cluster":
    from dataclasses import replace

    from dcp_planner.model.cluster_file import find_cluster

    found = find_cluster(name)
    if found.slow_ports:
        raise click.UsageError(
            f"--cluster: expected nodes that are alike, got slow_ports in {name}; leave them out"
        )
    node = min(found.devices_per_node, devices)  # a small mesh takes a part of one node
    if devices % node:
        raise click.UsageError(
            f"--mesh: expected a multiple of the {node} devices of a node, got {devices}"
        )
    return replace(found, nodes=devices // node, devices_per_node=node)


def _steps(spec: str, options: dict[str, Any], packs: int) -> "Iterator[Documents]":
    """Yield the documents of global batches; `Any`: click's values."""
    from dcp_dsl import load, read_dataset
    from dcp_planner.step.report import read_lengths, steps_of_dataset, steps_of_lengths

    loaded, tokens = load(spec), options["tokens"]
    if options["lengths"]:
        masks = chosen_masks(loaded, options["mask"])
        yield from steps_of_lengths(read_lengths(options["lengths"]), masks, tokens, packs)
        return
    dataset = read_dataset(options["dataset"])
    steps, left_out = steps_of_dataset(loaded, dataset, options["mask"], tokens, packs)
    if left_out:
        say(f"note: {left_out} of {len(dataset)} rows are empty or longer than {tokens} tokens")
    yield from steps


def _rivals(names: tuple[str, ...]) -> "list[NamedPolicy]":
    from dcp_planner.step.policies import RIVALS

    known = {policy.name: policy for policy in RIVALS}
    unknown = [name for name in names if name not in (*known, "all")]
    if unknown:
        raise click.UsageError(
            f"--against: expected all or one of {', '.join(known)}, got {unknown[0]!r}"
        )
    return list(RIVALS) if "all" in names else [known[name] for name in dict.fromkeys(names)]


def show_report(report: "StepReport", cluster: "Cluster", model: str) -> None:
    """Print where the time of a step goes, by policy."""
    from dcp_planner.commands.tables import console_of_tables, place_text, print_table
    from dcp_planner.step.report import CHOSEN

    rows = []
    for policy in report.shown:
        parts = ("seconds", "linear_s", "attention_s", "waiting_s")
        rest = policy.mean("bubble_s") + policy.mean("synchronisation_s")
        # Waiting is a difference of sums, and rounding may leave a little less than 0.
        times = [f"{max(0.0, s) * 1e3:.0f} ms" for s in (*map(policy.mean, parts), rest)]
        rows.append((policy.name, *times, f"{policy.mean('max_tokens'):.2f}"))
    heads = ("mean over steps", "time", "linear", "attention", "waiting", "rest", "most tokens")
    console = console_of_tables()
    console.width = max(console.width, 80)
    console.print(
        f"{report.steps} step{'s' * (report.steps > 1)} of {report.documents} documents, predicted "
        f"for {model} on {place_text(cluster)}"
    )
    print_table(console, heads, rows)
    levels = "; ".join(f"{count} x {name}" for name, count in report.levels.items())
    console.print(f"{CHOSEN}, the planner of dcp-dsl, chose: {levels}")
    console.print(
        "waiting: for the slowest group; rest: idle in pipelines, and sums of gradients; most "
        "tokens: of a device, over the mean"
    )
    for name in report.rivals:
        speedup = report.speedup_over(name)
        saved = (1 - 1 / speedup) * HOURS_PER_DAY  # of a day of the other policy
        console.print(f"{speedup:.2f} times as fast as {name}: saves {saved:.1f} h of its day")
