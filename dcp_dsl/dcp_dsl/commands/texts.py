"""Work on .dcpm texts: `dcpm check` and `fmt`, and `lsp` for editors."""

import json
import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from dcp_dsl.commands.options import read_source, replace_source, show_changes

if TYPE_CHECKING:
    from dcp_dsl.coverage.dataset_checker import DatasetCoverage
    from dcp_dsl.specs.spec import Spec
    from dcp_dsl.syntax.diagnostics import Diagnostic, Verdict


def check_dataset_command(files: tuple[str, ...], dataset: str, *, as_json: bool) -> int:
    """Report what the spec does to a data set, and return the exit status."""
    from dcp_dsl.specs.spec import load
    from dcp_dsl.syntax.ast import Attach

    if len(files) != 1:
        raise click.UsageError("--dataset takes one spec: dcpm check SPEC --dataset PATH")
    spec = load(files[0])
    # Every row would be refused for want of a mask: one message says more.
    if not any(isinstance(s, Attach) for s in spec.scope.program.statements):
        masks = ", ".join(spec.masks) or "causal"
        raise click.UsageError(
            f'{spec.name} attaches no mask to data; add `for "*" use MASK` (masks: {masks})'
        )
    coverage = _check_rows(spec, dataset)
    click.echo(json.dumps(coverage.to_json()) if as_json else coverage.text())
    good = coverage.num_rows - coverage.num_refused
    click.echo(f"{good:,} of {coverage.num_rows:,} rows accepted", err=True)
    return int(coverage.num_refused > 0)


def _check_rows(spec: "Spec", dataset: str) -> "DatasetCoverage":
    """Check all rows; on a terminal, show the progress and the time left."""
    from dcp_dsl.coverage.dataset_checker import check_dataset

    if not sys.stderr.isatty():
        return check_dataset(spec, dataset)
    with click.progressbar(length=0, label="checking rows", show_pos=True, file=sys.stderr) as bar:

        def show(total: int, done: int) -> None:
            bar.length = total
            bar.update(done)

        return check_dataset(spec, dataset, show)


SCHEMA_CHECK = "dcp.check/1"
COLOURS = {"error": "red", "warning": "yellow"}
FORMATS = ("full", "concise", "json", "github", "sarif")


@dataclass(slots=True)
class _Checked:
    """The findings in all files so far."""

    findings: "list[Diagnostic]" = field(default_factory=list)
    unreadable: list[dict[str, str]] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    fixed: "dict[str, tuple[Diagnostic, ...]]" = field(default_factory=dict)
    verdicts: "dict[str, tuple[Verdict, ...]]" = field(default_factory=dict)

    @property
    def errors(self) -> int:
        return sum(d.severity == "error" for d in self.findings)

    @property
    def num_fixed(self) -> int:
        return sum(map(len, self.fixed.values()))


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILES...")
@click.option("--output-format", type=click.Choice(FORMATS), default="full", show_default=True,
              help="full shows the source, concise prints one line per finding, json and sarif one "
              "document, github annotations for GitHub Actions.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Same as --output-format json.")
@click.option("--fix", "fixes", is_flag=True, help="Apply all safe fixes.")
@click.option(
    "--diff", "diffs", is_flag=True, help="Show the changes of --fix without writing them."
)
@click.option("--verdicts", "lists", is_flag=True,
              help="List claims that are proved for every sample or only tested.")  # fmt: skip
@click.option("--strict", "is_strict", is_flag=True,
              help="Claims neither proved nor tested are errors: W290, W291, W293.")  # fmt: skip
@click.option("--dataset", metavar="PATH",
              help="Check the rows of a data set against the `for` statements of the file: "
              "Parquet, JSON Lines, a folder, a saved Hugging Face data set, hf:NAME.")  # fmt: skip
def check(files: tuple[str, ...], output_format: str, dataset: str | None, **flags: bool) -> None:
    """Report errors in .dcpm files: syntax, names, kinds, layouts, failed checks.

    `-` reads standard input; with --fix, the fixed text goes to standard output and the findings go
    to standard error.

    Exit status: 0 without errors (warnings are allowed), 1 with errors or if --diff shows a change,
    2 if a file cannot be read or written.
    """
    fixes, diffs, lists = flags["fixes"], flags["diffs"], flags["lists"]
    if flags["as_json"] and output_format not in ("full", "json"):
        raise click.UsageError("--json means --output-format json; use only one of them")
    output_format = "json" if flags["as_json"] else output_format
    if dataset is not None:
        if fixes or diffs or lists or flags["is_strict"] or output_format not in ("full", "json"):
            raise click.UsageError(
                "--dataset checks rows and reports text or --json; remove --fix, --diff, "
                "--verdicts, --strict and other formats"
            )
        sys.exit(check_dataset_command(files, dataset, as_json=output_format == "json"))
    from dcp_dsl.syntax.diagnostics import strict

    # A file that cannot be read does not keep the others from being checked.
    checked = _Checked()
    for name in files:
        _check_file(name, checked, fixes=fixes, diffs=diffs)
    if flags["is_strict"]:
        checked.findings = list(strict(checked.findings))
    if diffs:
        verb = "would be fixed"
    else:
        to_stderr = fixes and "-" in files
        _print(checked, files, output_format, to_stderr=to_stderr)
        if lists and output_format in ("full", "concise"):
            _list_verdicts(checked, to_stderr=to_stderr)
        verb = "fixed"
    _summarise(len(files), checked, verb if fixes or diffs else "")
    # `--diff` tells by its status whether it has something to show, as `diff` does.
    has_findings = checked.num_fixed > 0 if diffs else checked.errors > 0
    sys.exit(2 if checked.unreadable else int(has_findings))


def _check_file(name: str, checked: _Checked, *, fixes: bool, diffs: bool) -> None:
    """Check one file, and mend it or show how."""
    from dcp_dsl.specs.spec import check_report

    given = read_source(name, checked.unreadable)
    if given is None:
        return
    text, data = given
    if not fixes and not diffs:
        checked.texts[name] = text
        report = check_report(text, name)
        checked.findings += report.diagnostics
        checked.verdicts[name] = report.verdicts
        return
    from dcp_dsl.syntax.diagnostics import fix_text
    from dcp_dsl.syntax.source import encode_text

    mended = fix_text(text, name, lambda text, name: check_report(text, name).diagnostics)
    checked.texts[name] = mended.text
    checked.findings += mended.remaining
    checked.fixed[name] = mended.fixed
    if diffs:
        click.echo(show_changes(text, mended.text, name, "fixed"), nl=False)
    elif name == "-":
        click.echo(encode_text(mended.text, data), nl=False)
    elif mended.fixed:
        replace_source(name, encode_text(mended.text, data), checked.unreadable)


def _print(checked: _Checked, files: tuple[str, ...], form: str, *, to_stderr: bool) -> None:
    """Print the findings in one of the `FORMATS`."""
    if form in ("full", "concise"):
        for found in checked.findings:
            headline, end, rest = found.render().partition("\n")
            coloured = click.style(headline, fg=COLOURS.get(found.severity), bold=True)
            shown = f"{coloured}{end}{rest}\n" if form == "full" else found.concise()
            click.echo(shown, err=to_stderr)
    elif form == "github":
        from dcp_dsl.syntax.diagnostic_formats import format_github

        for found in checked.findings:
            click.echo(format_github(found), err=to_stderr)
    elif form == "sarif":
        from importlib.metadata import version

        from dcp_dsl.syntax.diagnostic_formats import format_sarif

        document = format_sarif(checked.findings, checked.texts, version("dcp-dsl"))
        click.echo(json.dumps(document, indent=2), err=to_stderr)
    else:
        click.echo(json.dumps(_document(checked, files), indent=2), err=to_stderr)


def _document(checked: _Checked, files: tuple[str, ...]) -> dict[str, object]:
    return {
        "schema": SCHEMA_CHECK,
        "files": list(files),
        "errors": checked.errors,
        "warnings": len(checked.findings) - checked.errors,
        "unreadable": checked.unreadable,
        "findings": [d.to_json() for d in checked.findings],
        "fixed": [d.to_json() for found in checked.fixed.values() for d in found],
        "verdicts": [
            {"file": name, **verdict.to_json()}
            for name, verdicts in checked.verdicts.items()
            for verdict in verdicts
        ],
    }


def _list_verdicts(checked: _Checked, *, to_stderr: bool) -> None:
    for name, verdicts in checked.verdicts.items():
        for verdict in verdicts:
            told = {"tested": f" on {_count(verdict.samples, 'sample')}"}.get(verdict.outcome, "")
            why = f": {verdict.reason}" if verdict.reason else ""
            place = f"{name}:{verdict.line}"
            click.echo(f"{place}: {verdict.outcome}{told}  {verdict.what}{why}", err=to_stderr)


def _summarise(files: int, checked: _Checked, verb: str) -> None:
    from dcp_dsl.syntax.diagnostics import count_outcomes

    unreadable, errors = len(checked.unreadable), checked.errors
    parts = [
        f"{_count(files - unreadable, 'file')} checked", _count(errors, "error"),
        _count(len(checked.findings) - errors, "warning"),
    ]  # fmt: skip
    if verb:
        parts.append(f"{checked.num_fixed} {verb}")
    if unreadable:
        parts.append(f"{unreadable} not readable")
    claims = count_outcomes([v for found in checked.verdicts.values() for v in found], "claim")
    click.echo("; ".join(filter(None, [", ".join(parts), claims])), err=True)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


SCHEMA_FMT = "dcp.fmt/1"


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILES...")
@click.option(
    "--check",
    "only_check",
    is_flag=True,
    help="Write nothing; exit with status 1 if a file would change.",
)
@click.option("--diff", "show_diff", is_flag=True, help="Write nothing; show the changes.")
@click.option("--json", "as_json", is_flag=True, help="Report as one JSON document.")
def fmt(files: tuple[str, ...], only_check: bool, show_diff: bool, as_json: bool) -> None:
    """Format .dcpm files in the standard style; comments and line breaks stay.

    `-` formats standard input to standard output.

    Exit status: 0 success, 1 if --check or --diff finds a change, 2 if a file cannot be read or
    parsed (this file stays unchanged).
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
        # A file that stays the same is not written, so that its time of change tells something.
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
    from dcp_dsl.syntax.source import encode_text, format_source

    given = read_source(name, unreadable)
    if given is None:
        return None
    text, data = given
    try:
        result = format_source(text)
    except SpecError as error:
        # `format_source` parses a text without a name.
        click.echo(str(error).replace("--> <text>:", f"--> {name}:"), err=True)
        unreadable.append({"file": name, "message": "does not parse"})
        return None
    return data, encode_text(result, data)


@click.command()
def lsp() -> None:
    """Run the language server for editors on standard input and output.

    Editors start the server themselves; see docs/editors.md.
    """
    from dcp_dsl.language_server.server import make_server

    # A copy of standard output: the server closes what it writes to, and `dcpm` flushes standard
    # output at its end.
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as output:
        make_server().start_io(stdout=output)
