"""`dcpm check`."""

import json
import sys
from typing import TYPE_CHECKING

import click

from dcp_dsl.commands.reading import read_source

if TYPE_CHECKING:
    from dcp_dsl.diagnostics import Diagnostic

SCHEMA_CHECK = "dcp.check/1"


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILES...")
@click.option(
    "--output-format",
    type=click.Choice(["full", "concise", "json"]),
    default="full",
    show_default=True,
    help="full shows the source, concise one line per finding, json one document.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --output-format json.")
def check(files: tuple[str, ...], output_format: str, as_json: bool) -> None:
    """Find what is wrong with .dcpm files: syntax, names, kinds, layouts, failed checks.

    `-` reads standard input. Exit status: 0 without errors (warnings may be shown), 1 with errors,
    2 if a file cannot be read.
    """
    from dcp_dsl.spec import check as check_text

    output_format = "json" if as_json else output_format
    findings: list[Diagnostic] = []
    unreadable: list[dict[str, str]] = []
    for name in files:
        data = read_source(name, unreadable)
        if data is None:
            continue
        text, _ = data
        found = check_text(text, name)
        findings += found
        if output_format != "json":
            for diagnostic in found:
                full = output_format == "full"
                click.echo(diagnostic.render() + "\n" if full else diagnostic.concise())
    errors = sum(d.severity == "error" for d in findings)
    if output_format == "json":
        document = {
            "schema": SCHEMA_CHECK,
            "files": list(files),
            "errors": errors,
            "warnings": len(findings) - errors,
            "unreadable": unreadable,
            "findings": [d.to_json() for d in findings],
        }
        click.echo(json.dumps(document, indent=2))
    _summarise(len(files), len(unreadable), errors, len(findings) - errors)
    sys.exit(2 if unreadable else int(errors > 0))


def _summarise(files: int, unreadable: int, errors: int, warnings: int) -> None:
    read = f"{files - unreadable} file{'s' if files - unreadable != 1 else ''} checked"
    parts = [read, f"{errors} error{'s' if errors != 1 else ''}"]
    parts.append(f"{warnings} warning{'s' if warnings != 1 else ''}")
    if unreadable:
        parts.append(f"{unreadable} not readable")
    click.echo(", ".join(parts), err=True)
