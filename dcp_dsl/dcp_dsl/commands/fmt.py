"""`dcpm fmt`: lay texts out in the one style, or show what would change."""

import json
import sys
from dataclasses import dataclass

import click

from dcp_dsl.commands.options import read_source

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
        formatted = _format(name, unreadable)
        if formatted is None:
            continue
        if formatted.after != formatted.before:
            changed.append(name)
            diffs[name] = formatted.diff(name)
        if show_diff and not as_json:
            click.echo(diffs.get(name, ""), nl=False)
        if writes:
            _write(name, formatted, unreadable, is_quiet=as_json)
    if as_json:
        document = {
            "schema": SCHEMA_FMT, "changed": changed, "written": writes, "unreadable": unreadable,
        }  # fmt: skip
        click.echo(json.dumps(document | ({"diffs": diffs} if show_diff else {}), indent=2))
    verb = "changed" if writes else "would change"
    click.echo(f"{len(changed)} of {len(files)} files {verb}", err=True)
    sys.exit(2 if unreadable else int(bool(changed) and not writes))


@dataclass(frozen=True, slots=True)
class _Formatted:
    """The bytes of a file before and after; equal if there is nothing to do."""

    before: bytes
    after: bytes

    def diff(self, name: str) -> str:
        from difflib import unified_diff

        texts = [data.decode("utf-8") for data in (self.before, self.after)]
        before, after = (text.splitlines(keepends=True) for text in texts)
        lines = unified_diff(before, after, name, f"{name} (formatted)")
        return "".join(line if line.endswith("\n") else line + "\n" for line in lines)


def _format(name: str, unreadable: list[dict[str, str]]) -> _Formatted | None:
    """Format a file or standard input in memory; say why not, and remember it."""
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
        click.echo(_with_name(error, name), err=True)
        unreadable.append({"file": name, "message": "does not parse"})
        return None
    return _Formatted(data, encode_text(result, data))


def _write(
    name: str, formatted: _Formatted, unreadable: list[dict[str, str]], *, is_quiet: bool
) -> None:
    """Put a formatted text where it came from; say why not, and remember it."""
    from dcp_dsl.syntax.text_file import SpecFileError, replace_bytes

    if name == "-":
        if not is_quiet:
            click.echo(formatted.after, nl=False)
    elif formatted.after != formatted.before:
        try:
            replace_bytes(name, formatted.after)
        except SpecFileError as error:
            click.echo(f"dcpm: {error}", err=True)
            unreadable.append({"file": name, "message": str(error)})


def _with_name(error: Exception, name: str) -> str:
    return str(error).replace("--> <text>:", f"--> {name}:")
