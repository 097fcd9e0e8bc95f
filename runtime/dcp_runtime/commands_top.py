"""The command `dcpm top`."""

import json
import time

import click

SCHEMA = "dcp.top/1"
PERIOD_S = 1.0


@click.command()
@click.argument("folder", metavar="RUN_DIR", type=click.Path())
@click.option("--once", is_flag=True, help="Print the present state and end.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and end.")
def top(folder: str, *, once: bool, as_json: bool) -> None:
    """Watch a training run: its newest step, read from the log in RUN_DIR, until Ctrl-C.

    `DCPExecutor(run_log=RunLog(RUN_DIR))` writes the log.
    """
    from rich.console import Console, Group
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    from dcp_runtime.run_log.history import RunHistory, find_logs

    runs = {path: RunHistory(path) for path in find_logs(folder)}

    def show() -> Group:
        parts = []
        for path, run in runs.items():
            run.update()
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
        click.echo(json.dumps({"schema": SCHEMA, "runs": found}, indent=1))
    elif once or not console.is_terminal:
        console.print(show())
    else:
        with Live(show(), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(PERIOD_S)
                live.update(show(), refresh=True)
