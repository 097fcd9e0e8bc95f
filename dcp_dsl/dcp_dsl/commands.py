"""`dcpm check` and `dcpm fmt`."""

import json
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dcp_dsl.diagnostics import Diagnostic

SCHEMA_CHECK = "dcp.check/1"
SCHEMA_FMT = "dcp.fmt/1"


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
        text = _read(name, unreadable)
        if text is None:
            continue
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


def _read(name: str, unreadable: list[dict[str, str]]) -> str | None:
    """Read a file or standard input; say why not, and remember it."""
    from dcp_dsl.spec import SpecFileError, decode_text, read_text

    try:
        return decode_text("-", sys.stdin.buffer.read()) if name == "-" else read_text(name)
    except SpecFileError as error:
        click.echo(f"dcpm: {error}", err=True)
        unreadable.append({"file": name, "message": str(error)})
        return None


def _summarise(files: int, unreadable: int, errors: int, warnings: int) -> None:
    read = f"{files - unreadable} file{'s' if files - unreadable != 1 else ''} checked"
    parts = [read, f"{errors} error{'s' if errors != 1 else ''}"]
    parts.append(f"{warnings} warning{'s' if warnings != 1 else ''}")
    if unreadable:
        parts.append(f"{unreadable} not readable")
    click.echo(", ".join(parts), err=True)


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILES...")
@click.option(
    "--check", "only_check", is_flag=True, help="Write nothing; exit 1 if a file would change."
)
@click.option("--diff", "show_diff", is_flag=True, help="Write nothing; show what would change.")
@click.option("--json", "as_json", is_flag=True, help="Report as one JSON document.")
def fmt(files: tuple[str, ...], only_check: bool, show_diff: bool, as_json: bool) -> None:
    """Lay out .dcpm files in the house style; comments and line breaks stay.

    `-` formats standard input to standard output. Exit status: 0, 1 if --check or --diff found
    something to change, 2 if a file cannot be read or does not parse (it is left as it is).
    """
    from dcp_dsl.errors import SpecError
    from dcp_dsl.formatter import format_source

    changed: list[str] = []
    unreadable: list[dict[str, str]] = []
    for name in files:
        text = _read(name, unreadable)
        if text is None:
            continue
        try:
            result = format_source(text)
        except SpecError as error:
            click.echo(_with_name(error, name), err=True)
            unreadable.append({"file": name, "message": "does not parse"})
            continue
        if result != text:
            changed.append(name)
        if show_diff:
            click.echo(_diff(name, text, result), nl=False)
        elif name == "-" and not only_check:
            click.echo(result, nl=False)
        elif result != text and not only_check:
            from dcp_dsl.text_file import replace_text

            replace_text(name, result)
    writes = not only_check and not show_diff
    if as_json:
        document = {
            "schema": SCHEMA_FMT, "changed": changed, "written": writes, "unreadable": unreadable,
        }  # fmt: skip
        click.echo(json.dumps(document, indent=2))
    verb = "changed" if writes else "would change"
    click.echo(f"{len(changed)} of {len(files)} files {verb}", err=True)
    sys.exit(2 if unreadable else int(bool(changed) and not writes))


def _with_name(error: Exception, name: str) -> str:
    return str(error).replace("--> <text>:", f"--> {name}:")


def _diff(name: str, before: str, after: str) -> str:
    from difflib import unified_diff

    lines = unified_diff(
        before.splitlines(keepends=True),
        after.splitlines(keepends=True),
        name,
        f"{name} (formatted)",
    )
    return "".join(line if line.endswith("\n") else line + "\n" for line in lines)
