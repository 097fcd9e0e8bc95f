"""The commands `dcpm dashboard` (serve a folder), `dcpm view` (a plan as files), `dcpm demo`.

Each imports its libraries when it runs, so that `dcpm --help` does not wait for dash or torch.
"""

from functools import partial
from pathlib import Path

import click

FILE = click.Path(path_type=Path)
option = partial(click.option, show_default=True)


@click.command()
@click.argument("folder", metavar="DIR", type=FILE, default=Path())
@option(
    "--host",
    default="127.0.0.1",
    help="Address to listen on; beyond loopback, the URL contains a random token.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=None,
    help="Port to listen on.  [default: 8050 or the next free one]",
)
@click.option("--open/--no-open", "opens", default=False, help="Open the address in a web browser.")
def dashboard(folder: Path, host: str, port: int | None, *, opens: bool) -> None:
    """Show the plans (.dcpplan files) below DIR in a browser, until Ctrl-C.

    The command prints the address on standard output. The server opens only files below DIR, and no
    data leaves this machine.
    """
    import webbrowser

    from dcp_dashboard import serve

    def ready(url: str) -> None:
        click.echo(url)
        click.echo("Press Ctrl-C to stop.", err=True)
        if opens:
            webbrowser.open(url)

    serve(folder, host, port, on_ready=ready)


@click.command()
@option("--out", type=FILE, default=Path("dcp-demo"), help="Folder for the data sets and plans.")
@option(
    "--ranks", type=click.IntRange(1, 64), default=4, help="Number of processes of the real run."
)
@option(
    "--tokens",
    type=click.IntRange(256, 65_536),
    default=6144,
    help="Tokens in the batch that is run and verified.",
)
@option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, help="Seed of all random choices.")
@click.option("--serve/--no-serve", "serves", default=True, help="Start the dashboard at the end.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
def demo(*, out: Path, ranks: int, tokens: int, seed: int, serves: bool, as_json: bool) -> None:
    """Run the whole workflow once: documents, masks, plans, a verified run, the dashboard.

    The command makes data sets from the source files of the Python standard library, compiles the
    paper's four masks, plans 131,072 tokens for 32 simulated devices, runs a small batch on real
    processes, and compares the results with dense fp64 attention.

    Exit status: 1 if a mask is not verified.
    """
    import json
    import os
    import sys

    from rich.console import Console

    from dcp_dashboard import DashboardError, serve
    from dcp_dashboard.demo.pipeline import DemoConfig, run_demo
    from dcp_dashboard.demo.report import introduction, print_report, summary

    err = Console(stderr=True)
    click.echo(click.wrap_text(introduction(tokens, ranks)), err=True)
    with err.status("") as status:

        def progress(text: str) -> None:
            if err.is_terminal:
                status.update(text)
            else:  # a status line that moves would leave nothing in a log
                err.print(text, highlight=False)

        report = run_demo(DemoConfig(out, ranks, tokens, seed), progress)

    # With the server: once its port is bound, as the document and the text name its address.
    def show(url: str | None) -> None:
        if as_json:
            click.echo(json.dumps(report.to_json(url), indent=1))
            return
        print_report(report, Console())
        said = summary(report, len(os.sched_getaffinity(0)))
        click.echo(click.wrap_text(said, preserve_paragraphs=True))
        where = url or f"dcpm dashboard {report.folder}"
        if report.compile_s:
            click.echo(
                f"Compiling the planner once took {report.compile_s:.0f} s, not counted below."
            )
        click.echo(f"Took {report.seconds:.0f} s. See the plans in {report.folder}: {where}")
        if url:
            click.echo("Press Ctrl-C to stop.", err=True)

    if serves and report.verified:
        try:
            serve(report.folder, on_ready=show)
        except DashboardError:
            show(None)  # the results must not be lost with the page
            raise
    else:
        show(None)
    if not report.verified:
        click.echo("dcpm: a run is not within twice the error of eager attention", err=True)
        sys.exit(1)


@click.command()
@click.argument("plan", metavar="PLAN", type=FILE)
@click.option("--png", type=FILE, help="Write a picture of the overview.")
@click.option("--html", type=FILE, help="Write the overview as one page that needs no server.")
@click.option("--svg", type=FILE, help="Write a drawing of the mask.")
@click.option("--devices", type=FILE, help="Write a CSV file with one line per device.")
@click.option("--tiles", type=FILE, help="Write a CSV file with one line per tile.")
@option(
    "--theme", type=click.Choice(["light", "dark"]), default="light", help="Colours of the PNG."
)
@option(
    "--scale", type=click.IntRange(1, 4), default=2, help="Pixels of the PNG per unit of the page."
)
def view(  # noqa: PLR0913 - one parameter per option of the command
    *,
    plan: Path,
    png: Path | None,
    html: Path | None,
    svg: Path | None,
    devices: Path | None,
    tiles: Path | None,
    theme: str,
    scale: int,
) -> None:
    """Export PLAN (a .dcpplan file) as pictures, a page or tables that need no dashboard.

    Example: `dcpm view batch.dcpplan --png batch.png --html batch.html`. The command prints the
    names of the files. For an interactive view in a browser, use `dcpm dashboard FOLDER`.
    """
    from dcp_dashboard import DashboardError
    from dcp_dashboard.exports.files import devices_csv, tiles_csv
    from dcp_dashboard.exports.overview import standalone_page, still
    from dcp_dashboard.exports.pictures import mask_svg
    from dcp_dashboard.library.plans import load_file
    from dcp_dsl.files import check_writable, replacing

    if not any((png, html, svg, devices, tiles)):
        raise click.UsageError(
            "expected at least one of --png, --html, --svg, --devices, --tiles; for a browser: "
            f"dcpm dashboard {plan.parent}"
        )
    loaded = load_file(plan)
    wanted = (
        (png, lambda: still(loaded, "dark" if theme == "dark" else "light", scale)),
        (html, lambda: standalone_page(loaded).encode()),
        (svg, lambda: mask_svg(loaded).encode()),
        (devices, lambda: devices_csv(loaded)),
        (tiles, lambda: tiles_csv(loaded)),
    )
    asked = [(path, make) for path, make in wanted if path is not None]
    # All are checked before the first is drawn, which takes seconds.
    for path, _make in asked:
        check_writable(path, DashboardError)
    for path, make in asked:
        with replacing(path, DashboardError) as draft:
            draft.write_bytes(make())  # type: ignore[no-untyped-call]
        click.echo(path)
