"""The command `dcpm validate`."""

import sys

import click

from dcp_planner.commands.output import print_json


@click.command()
@click.argument("plans", nargs=-1, required=True, metavar="PLAN...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def validate(plans: tuple[str, ...], as_json: bool) -> None:
    """Check every invariant of .dcpplan files; report a broken invariant and its place.

    A worker process decodes the files. A file that crashes the worker is reported as unreadable.

    Exit status: 0 if all invariants hold, 1 if one is broken, 2 if a file cannot be read.
    """
    from dcp_planner.plan.file_check import check_file

    verdicts = [check_file(path) for path in plans]
    if as_json:
        print_json({"schema": "dcp.validate/1", "files": [v.to_json() for v in verdicts]})
    else:
        for verdict in verdicts:
            click.echo(verdict.to_text())
    sys.exit(max(verdict.exit_code for verdict in verdicts))  # the worst of all files
