"""The command `dcpm calibrate`."""

import json

import click

SCHEMA = "dcp.calibrate/1"


@click.command()
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True,
              help="What computes.")  # fmt: skip
@click.option("--ranks", type=click.IntRange(1, 64), default=4, show_default=True,
              help="Processes that share this machine; with --device cuda as many as there are "
              "devices.")  # fmt: skip
@click.option("--out", type=click.Path(), help="Write the cluster file here.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def calibrate(device: str, ranks: int, out: str | None, as_json: bool) -> None:
    """Measure attention, messages and memory of this machine; write a cluster file.

    The file is what `--cluster FILE` of `dcpm plan` and `dcpm simulate` takes.
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
        click.echo(json.dumps({"schema": SCHEMA, "file": out, **found.to_json()}, indent=1))
    elif out is None:
        click.echo(format_cluster(found.cluster, found.sources), nl=False)
    for check in found.checks:
        click.echo(
            f"check: {check.plan}: predicted {check.predicted_s * 1e3:.1f} ms, measured "
            f"{check.measured_s * 1e3:.1f} ms, {check.error:.0%} off",
            err=True,
        )
    if found.is_busy:
        click.echo(
            f"this machine is busy: repeated measurements differ by {found.noise:.0%} in the "
            "median, so the constants are worth little; end what else runs, and repeat",
            err=True,
        )
