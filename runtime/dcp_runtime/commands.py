"""The commands `dcpm run`, `calibrate`, `top`, `probe`, `audit` and `trees`.

Each imports its libraries when it runs, so that `dcpm --help` does not wait for torch.
"""

import json
import math
import shlex
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dcp_runtime.transport.choice import GROUP_TRANSPORTS

if TYPE_CHECKING:
    from dcp_planner import Trace
    from dcp_planner.plan import PlanFile
    from dcp_runtime.launch.launcher import RunConfig, RunResult

TRACE_SUFFIXES = (".dcpplan", ".pftrace")
MAX_DEFAULT_RANKS = 16  # most processes that a run starts unless `--ranks` names the number


class DilationType(click.ParamType):  # type: ignore[type-arg]  # of one version of click
    """A number of real seconds for an emulated one, or ``auto``."""

    name = "dilation"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | None:
        """Return the number, ``None`` for ``auto``."""
        if value == "auto":
            return None
        try:
            return float(str(value))
        except ValueError:
            self.fail(f"expected a number such as 200, or auto, got {value!r}", param, ctx)


@click.command()
@click.argument("plan", type=click.Path())
@click.option("--ranks", type=click.IntRange(min=1),
              help="Number of ranks (processes). [default: devices of the plan]")  # fmt: skip
@click.option("--kernel", type=click.Choice(["triton", "flash4", "flash", "cpu", "reference"]),
              help="Attention kernel. [default: the fastest]")  # fmt: skip
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16", "float64"]),
              default="float32", show_default=True, help="Data type of the tensors.")  # fmt: skip
@click.option("--verify", is_flag=True,
              help="Compare with dense fp64 attention; exit with status 1 on failure.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True,
              help="Seed of the random tensors.")  # fmt: skip
@click.option("--timeout", type=click.FloatRange(0, 86_400, min_open=True), default=60.0,
              show_default=True, metavar="S",
              help="Seconds that other ranks wait for a rank before the run fails.")  # fmt: skip
@click.option("--trace", type=click.Path(),
              help="Write the measured trace to this file: .dcpplan (plan and trace) or .pftrace "
              "(for ui.perfetto.dev).")  # fmt: skip
@click.option("--transport", type=click.Choice([*GROUP_TRANSPORTS, "loopback"]), default="gloo",
              show_default=True, help="Transport of messages; loopback: all ranks are threads of "
              "one process.")  # fmt: skip
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    help="Device type to run on. [default: cpu; nccl: cuda]",
)
@click.option("--overlap/--no-overlap", default=True,
              help="Send messages during compute. [default: overlap]")  # fmt: skip
@click.option("--emulate", is_flag=True,
              help="Emulate the plan's cluster: real programs, predicted compute, shared "
              "links.")  # fmt: skip
@click.option("--dilation", type=DilationType(), default="auto", show_default=True,
              metavar="D|auto",
              help="With --emulate: real seconds for an emulated one.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def run(  # noqa: PLR0913 - one argument per option
    context: click.Context,
    plan: str,
    ranks: int | None,
    kernel: str | None,
    dtype: str,
    verify: bool,
    seed: int,
    timeout: float,
    trace: str | None,
    transport: str,
    device: str | None,
    overlap: bool,
    emulate: bool,
    dilation: float | None,
    as_json: bool,
) -> None:
    """Run PLAN, a .dcpplan file, forward and backward on processes of this machine.

    The tensors are random. Every rank is a process with one thread. Ranks exchange blocks over gloo
    unless --transport names another transport. With --emulate nothing is computed or sent: devices
    and links of the plan's cluster take the time that they would, slowed down.
    """
    from dcp_planner import read_plan
    from dcp_runtime.errors import RunError
    from dcp_runtime.launch.launcher import RunConfig, check_ranks, run_plan

    _check_trace(trace)
    content = read_plan(plan)
    _check_emulation(context, emulate=emulate)
    if emulate:
        _emulate(content, dilation, overlap=overlap, trace=trace, as_json=as_json)
        return
    is_many = content.plan.num_devices > MAX_DEFAULT_RANKS
    if ranks is None and is_many and transport != "loopback":
        raise RunError(
            f"{plan} is for {content.plan.num_devices} devices, each a process with some 400 MB of "
            f"its own; say --ranks {content.plan.num_devices} if this machine holds them, or plan "
            "for fewer devices"
        )
    config = RunConfig(
        ranks=ranks or content.plan.num_devices,
        kernel=kernel,
        dtype=dtype,  # type: ignore[arg-type]  # click has checked the choice
        seed=seed,
        verify=verify,
        timeout_s=timeout,
        transport=transport,  # type: ignore[arg-type]
        device=device or ("cuda" if transport == "nccl" else "cpu"),  # type: ignore[arg-type]
        overlap=overlap,
        warmup=1,  # the first pass of a process pays for what later ones do not
    )
    check_ranks(content.plan, config.ranks)
    where = "threads of one process" if transport == "loopback" else "processes"
    click.echo(f"running on {config.ranks} {where}", err=True)
    result = run_plan(content.plan, config)
    if trace is not None:
        # A file holds one trace of each source: the new run takes the place of an older one.
        others = (each for each in content.traces if each.source != "measured")
        _write_trace(trace, content, (*others, result.trace))
        click.echo(f"wrote {trace}", err=True)
    click.echo(json.dumps(to_json(config, result)) if as_json else to_text(config, result))
    if result.verified is False:
        sys.exit(1)


def _check_trace(trace: str | None) -> None:
    """Refuse a file for the trace before the run: it may take minutes, and all would be lost."""
    from dcp_dsl.files import check_writable
    from dcp_runtime.errors import RunError

    if trace is None:
        return
    if Path(trace).suffix not in TRACE_SUFFIXES:
        raise click.BadParameter(
            f"expected a name that ends in {' or '.join(TRACE_SUFFIXES)}, got {trace!r}; "
            ".dcpplan holds the plan and the trace, .pftrace is for ui.perfetto.dev",
            param_hint="--trace",
        )
    check_writable(trace, RunError)


_WITH_EMULATE = ("plan", "emulate", "dilation", "overlap", "trace", "as_json")


def _check_emulation(context: click.Context, *, emulate: bool) -> None:
    """Refuse options that would change nothing."""
    given = [
        name
        for name in context.params
        if context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE
    ]
    other = [name for name in given if name not in _WITH_EMULATE]
    if emulate and other:
        raise click.UsageError(
            f"--emulate computes and sends nothing, so --{other[0]} changes nothing; leave it out"
        )
    if not emulate and "dilation" in given:
        raise click.UsageError("--dilation slows an emulated cluster down: say --emulate, too")


def _emulate(
    content: "PlanFile", dilation: float | None, *, overlap: bool, trace: str | None, as_json: bool
) -> None:
    from dcp_planner import simulate
    from dcp_runtime.emulation.emulate import emulate_plan
    from dcp_runtime.emulation.report import to_json, to_text

    found = emulate_plan(
        content.plan, dilation, overlap=overlap, say=lambda text: click.echo(text, err=True)
    )
    if trace is not None:
        # Beside the prediction, so that the dashboard draws both.
        _write_trace(trace, content, (simulate(content.plan), found.trace))
        click.echo(f"wrote {trace}", err=True)
    click.echo(json.dumps(to_json(found)) if as_json else to_text(found))


def _write_trace(path: str, content: "PlanFile", traces: "tuple[Trace, ...]") -> None:
    """Write the last trace for Perfetto, or the plan and all traces."""
    from dcp_dsl.files import replacing
    from dcp_planner import to_perfetto, write_plan
    from dcp_runtime.errors import RunError

    if path.endswith(".pftrace"):
        with replacing(path, RunError) as draft:
            draft.write_bytes(to_perfetto(traces[-1]))
    else:
        write_plan(path, content.plan, traces, against=content.meta.get("against"))


def to_json(config: "RunConfig", result: "RunResult") -> dict[str, object]:
    """Return the document that ``--json`` prints."""
    return {
        "schema": "dcp.run/1",
        "ranks": config.ranks,
        "transport": config.transport,
        "dtype": config.dtype,
        "kernels": result.kernels,
        "seed": config.seed,
        "verified": result.verified,
        "mask_source": result.mask_source,
        "errors": {
            e.tensor: {  # JSON cannot say NaN and infinity
                name: value if math.isfinite(value) else None
                for name, value in asdict(e).items()
                if name != "tensor"
            }
            for e in result.errors
        },
        "seconds": result.seconds,
        "forward_s": result.forward_s,
        "backward_s": result.backward_s,
        "exposed_s": result.exposed_s,
        "prepare_s": result.prepare_s,
        "bytes": result.sent_bytes,
        "clock_uncertainty_s": result.clock_uncertainty_s,
    }


def to_text(config: "RunConfig", result: "RunResult") -> str:
    """Return the result as text."""
    by_name = ", ".join(
        f"{name} kernel on {result.kernels.count(name)}" for name in dict.fromkeys(result.kernels)
    )
    lines = [
        f"{config.ranks} ranks ({by_name}), {config.dtype}: {result.seconds:.3f} s (forward "
        f"{result.forward_s:.3f}, backward {result.backward_s:.3f}), of which the rank that waited "
        f"longest waited {result.exposed_s:.3f} s for messages; {result.sent_bytes / 1e6:.1f} MB "
        "sent"
    ]
    for e in result.errors:
        judged = "ok" if e.ok else "TOO LARGE"
        lines.append(
            f"  {e.tensor:4} error {e.relative:.2e} ({e.eager:.2e}), worst element "
            f"{e.relative_max:.2e} ({e.eager_max:.2e})  {judged}"
        )
    if result.errors:
        lines.append(
            f"  in brackets the errors of ordinary attention in {config.dtype}; up to twice is ok"
        )
    if result.mask_source is not None:
        source = {
            "provenance": "the spec stored in the plan",
            "slabs": "the slabs of the plan, which stores no spec",
        }[result.mask_source]
        verdict = "verified" if result.verified else "NOT VERIFIED"
        lines.append(f"{verdict} against dense float64 attention; mask from {source}")
    return "\n".join(lines)


@click.command()
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True,
              help="Device type to measure.")  # fmt: skip
@click.option("--ranks", type=click.IntRange(1, 64), default=4, show_default=True,
              help="Processes on this machine; --device cuda uses one per GPU.")  # fmt: skip
@click.option("--out", type=click.Path(), help="Cluster file to write.  [default: print it]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def calibrate(device: str, ranks: int, out: str | None, as_json: bool) -> None:
    """Measure attention, messages and memory of this machine, and write a cluster file.

    Pass the file to `dcpm plan` and `dcpm simulate` with `--cluster FILE`.
    """
    from dcp_dsl.files import check_writable
    from dcp_planner import write_cluster
    from dcp_planner.model import format_cluster
    from dcp_runtime.errors import RunError
    from dcp_runtime.launch.calibration import calibrate_cpu, calibrate_cuda

    if out is not None:
        check_writable(out, RunError)

    def say(text: str) -> None:
        click.echo(f"measuring {text}", err=True)

    found = calibrate_cpu(ranks, say) if device == "cpu" else calibrate_cuda(say)
    if out is not None:
        write_cluster(out, found.cluster, found.sources)
        click.echo(f"wrote {out}", err=True)
    if as_json:
        click.echo(
            json.dumps({"schema": "dcp.calibrate/1", "file": out, **found.to_json()}, indent=1)
        )
    elif out is None:
        click.echo(format_cluster(found.cluster, found.sources), nl=False)
    # On standard error: standard output is the cluster file or the document alone.
    for check in found.checks:
        click.echo(
            f"check: {check.plan}: predicted {check.predicted_s * 1e3:.1f} ms, measured "
            f"{check.measured_s * 1e3:.1f} ms, {check.error:.0%} off",
            err=True,
        )
    if found.is_busy:
        click.echo(
            f"this machine is busy: repeated measurements differ by {found.noise:.0%} (median), so "
            "the constants are unreliable; stop other programs and repeat",
            err=True,
        )


PERIOD_S = 1.0  # seconds between two looks at the log of a run


@click.command()
@click.argument("folder", metavar="RUN_DIR", type=click.Path())
@click.option("--once", is_flag=True, help="Print the current state and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and exit.")
def top(folder: str, *, once: bool, as_json: bool) -> None:
    """Watch the latest step of a training run, from the log in RUN_DIR, until Ctrl-C.

    `DCPExecutor(run_log=RunLog(RUN_DIR))` writes the log.
    """
    from rich.console import Console, Group
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    from dcp_runtime.run_log.records import RunHistory, find_logs

    runs = {path: RunHistory(path) for path in find_logs(folder)}

    def show() -> Group:
        """Return a table for each replica's log."""
        parts = []
        for path, run in runs.items():
            run.update()
            # As `Text`, since rich would read brackets in a file's or a run's name as markup.
            lines = Table("", "", box=None, show_header=False, title=Text(path.name))
            for name, text in run.sentences():
                lines.add_row(name, Text(text))
            parts.append(lines)
        return Group(*parts)

    console = Console()
    if as_json:
        for run in runs.values():
            run.update()
        found = {path.name: run.summary() for path, run in runs.items()}
        click.echo(json.dumps({"schema": "dcp.top/1", "runs": found}, indent=1))
    elif once or not console.is_terminal:
        console.print(show())
    else:
        with Live(show(), console=console, auto_refresh=False) as live:
            while True:  # until Ctrl-C
                time.sleep(PERIOD_S)
                live.update(show(), refresh=True)


@click.command()
@click.argument("script", metavar="MODEL.PY|hf:CLASS")
@click.option("--mask", "written", required=True, metavar="FILE:NAME",
              help="Mask or stack of a .dcpm file; NAME alone is of the library.")  # fmt: skip
@click.option("--row", required=True, metavar="ROW",
              help="The row: name of a sample in the file, or columns: 'doc_lens = [9, 5]', JSON "
              "or a JSON file.")  # fmt: skip
@click.option("--layers", type=click.IntRange(min=1), default=1, show_default=True,
              help="Layers inside a model that is a single module for torch.")  # fmt: skip
@click.option("--config", "given", multiple=True, metavar="NAME=VALUE",
              help="A value of the config of hf:CLASS, as sliding_window=4.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def probe(
    script: str, written: str, row: str, layers: int, given: tuple[str, ...], as_json: bool
) -> None:
    """Find which keys each query sees in every layer of a model, and compare with a mask.

    MODEL.PY defines `model`, a torch module, or `make_model()`, and may define `batch(row)`, which
    returns what the model takes: a tensor, a tuple or a dict. The row has `columns` and `length`.
    Without it the model gets random `input_ids` and the row's `position_ids`. The file runs as a
    script of yours. hf:CLASS is a small model of a class of transformers, with random weights.

    Exit status: 0 if all layers see what is written, 1 if not.
    """
    from dcp_dsl import Spec, load, sample_from_argument
    from dcp_runtime.probing.probe import probe as find
    from dcp_runtime.probing.script import read_script

    if written.endswith(".dcpm"):
        has = ", ".join([*load(written).masks, *load(written).stacks])
        raise click.UsageError(f"--mask: name one of {has}, as in {written}:NAME")
    path, is_file, name = written.rpartition(".dcpm:")
    spec = load(f"{path}.dcpm") if is_file else Spec.from_text("", "<library>")
    mask = spec.stack(name) if name in spec.stacks else spec.mask(name)
    sample = sample_from_argument(spec, row)
    config = {}
    for each in given:
        key, _, value = each.partition("=")
        try:
            config[key] = json.loads(value)
        except ValueError:
            config[key] = value
    report = find(*read_script(script, mask, sample, config), mask, sample, layers=layers)
    if as_json:
        click.echo(json.dumps({"schema": "dcp.probe/1", **report.to_json()}))
    else:
        encoding, wanted = sys.stdout.encoding or "ascii", click.get_current_context().color
        has_colour = sys.stdout.isatty() if wanted is None else wanted
        is_ascii = not "█".encode(encoding, "ignore")
        click.echo(report.text(is_ascii=is_ascii, has_colour=has_colour))
    sys.exit(int(report.first_wrong is not None))


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--ranks", type=click.IntRange(2, MAX_DEFAULT_RANKS), default=2, show_default=True,
              help="Processes to compare with one.")  # fmt: skip
@click.option("--steps", type=click.IntRange(1, 8), default=2, show_default=True,
              help="Optimizer steps whose gradients are compared.")  # fmt: skip
@click.option("--alone", metavar="ARGS",
              help="Arguments of the run on one process.  [default: the same]")  # fmt: skip
@click.option("--timeout", type=click.FloatRange(1, 86_400), default=300.0, show_default=True,
              metavar="S", help="Seconds that a run may take.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def audit(
    script: str,
    arguments: tuple[str, ...],
    ranks: int,
    steps: int,
    alone: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Compare a training SCRIPT on ranks of this machine with itself on one process.

    Options of the script follow after --. Says of every parameter whether its gradient is right.
    Exits with status 1 on faults.
    """
    from dcp_runtime.auditing.findings import to_json, to_text
    from dcp_runtime.auditing.runs import AuditOrder, audit_script

    order = AuditOrder(
        (script, *arguments),
        ranks=ranks,
        steps=steps,
        alone=None if alone is None else (script, *shlex.split(alone)),
        timeout_s=timeout,
    )
    found = audit_script(order)
    title = f"{script} on {ranks} ranks against one process"
    shown = json.dumps(to_json(script, ranks, found)) if as_json else to_text(title, found)
    click.echo(shown)
    if any(each.is_fault for each in found):
        sys.exit(1)


@click.command()
@click.argument("data", metavar="DATA", type=click.Path())
@click.option("--by", default="tokens", show_default=True, metavar="COLUMNS",
              help="Column of the tokens, and others that must agree, such as hashes of images: "
              "tokens,image_hash.")  # fmt: skip
@click.option("--token-budget", type=click.IntRange(min=1),
              help="Most tokens of a tree.  [default: any number]")  # fmt: skip
@click.option("--min-gain", type=click.IntRange(min=1), default=1, show_default=True,
              help="Least tokens that a fork must save.")  # fmt: skip
@click.option("--out", type=click.Path(), help="Data set of trees to write: .parquet or .jsonl.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def trees(
    data: str, by: str, token_budget: int | None, min_gain: int, out: str | None, *, as_json: bool
) -> None:
    """Find the prefixes that rollouts in DATA share, and store each once.

    DATA is a file or folder of .parquet or .jsonl, a rollout in each row. Says what trees save;
    --out writes them, rows for the mask `rollout_tree` and for `DCPDataloader`.
    """
    from dcp_dsl import read_dataset
    from dcp_runtime.data.trees import check_name, group_rows, write_trees

    if out is not None:
        check_name(out)
    names = [name.strip() for name in by.split(",")]
    found = group_rows(read_dataset(data), names, token_budget=token_budget, min_gain=min_gain)
    if out is not None:
        write_trees(out, found)
        click.echo(f"wrote {out}", err=True)
    figures = found.figures()
    if as_json:
        click.echo(json.dumps({"schema": "dcp.trees/1", "file": out, **figures}))
        return
    click.echo(f"{found.num_rollouts:,} rollouts, {len(found):,} trees")
    for name in ("tokens", "pairs"):
        every, kept = figures[f"separate_{name}"], figures[name]
        click.echo(
            f"{name}  {every:,} separate, {kept:,} in trees, {every / max(1, kept):.2f} times"
        )
