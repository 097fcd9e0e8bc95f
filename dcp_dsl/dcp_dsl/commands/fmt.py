"""`dcpm fmt`: lay texts out in the one style, or show what would change."""

import json
import sys

import click

from dcp_dsl.commands.options import read_source, replace_source, show_changes

SCHEMA_FMT = "dcp.fmt/1"


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
    changed: list[str] = []
    unreadable: list[dict[str, str]] = []
    diffs: dict[str, str] = {}
    writes = not only_check and not show_diff
    for name in files:
        found = _format(name, unreadable)
        if found is None:
            continue
        before, after = found
        if after != before:
            changed.append(name)
            diffs[name] = show_changes(before.decode(), after.decode(), name, "formatted")
        if show_diff and not as_json:
            click.echo(diffs.get(name, ""), nl=False)
        if writes and name != "-" and after != before:
            replace_source(name, after, unreadable)
        elif writes and name == "-" and not as_json:
            click.echo(after, nl=False)
    if as_json:
        document = {
            "schema": SCHEMA_FMT, "changed": changed, "written": writes, "unreadable": unreadable,
        }  # fmt: skip
        click.echo(json.dumps(document | ({"diffs": diffs} if show_diff else {}), indent=2))
    verb = "changed" if writes else "would change"
    click.echo(f"{len(changed)} of {len(files)} files {verb}", err=True)
    sys.exit(2 if unreadable else int(bool(changed) and not writes))


def _format(name: str, unreadable: list[dict[str, str]]) -> tuple[bytes, bytes] | None:
    """Return a text before and after formatting; if that fails, print why and remember it."""
    from dcp_dsl.syntax.diagnostics import SpecError
    from dcp_dsl.syntax.formatter import format_source
    from dcp_dsl.syntax.text_file import encode_text

    given = read_source(name, unreadable)
    if given is None:
        return None
    text, data = given
    try:
        result = format_source(text)
    except SpecError as error:
        click.echo(str(error).replace("--> <text>:", f"--> {name}:"), err=True)
        unreadable.append({"file": name, "message": "does not parse"})
        return None
    return data, encode_text(result, data)
