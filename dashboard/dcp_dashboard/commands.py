"""`dcpm dashboard`: serve a folder of plans; `dcpm demo`: the whole way once."""

import webbrowser
from pathlib import Path

import click


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path), default=Path())
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; beyond loopback the URL carries a random token.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=None,
    help="Port to listen on.  [default: 8050 or the next free one]",
)
@click.option("--open/--no-open", "opens", default=False, help="Open the page in a web browser.")
def dashboard(folder: Path, host: str, port: int | None, *, opens: bool) -> None:
    """Show the plans (.dcpplan files) below DIR in a browser, until Ctrl-C.

    Prints the address on standard output. Only files below DIR are ever opened; nothing leaves this
    machine.
    """
    from dcp_dashboard import serve

    def ready(url: str) -> None:
        click.echo(url)
        click.echo("Press Ctrl-C to stop.", err=True)
        if opens:
            webbrowser.open(url)

    serve(folder, host, port, on_ready=ready)


# The `demo` command follows here.
