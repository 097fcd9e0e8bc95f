"""`dcpm init`: a first .dcpm file, from the columns of a data set."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from dcp_dsl.commands.options import write_output

if TYPE_CHECKING:
    from dcp_dsl.data.sources import Source

ROWS = 8
"""Rows of each file that a mask has to fit."""

MOST_NAMED = 8
MOST_SHOWN = 64  # numbers of a sample that is written into the file


@dataclass(frozen=True, slots=True)
class Fit:
    """A mask of the library that fits the rows of a file.

    `columns` maps its own names to those of the data set; `row` is the first row, by its own names.
    """

    mask: str
    columns: Mapping[str, str]
    row: Mapping[str, Any]  # Any: what a column holds

    @property
    def statement(self) -> str:
        """The `for` statement that attaches the mask."""
        renamed = [f"{mine} = {its}" for mine, its in self.columns.items() if mine != its]
        having = ", ".join(self.columns.values())
        return f'for "*" having {having} use {self.mask}' + (
            f" with {', '.join(renamed)}" if renamed else ""
        )


@click.command()
@click.argument("dataset", required=False)
@click.option("--out", default="masks.dcpm", show_default=True, metavar="FILE",
              help="File to write, `-` for standard output.")  # fmt: skip
def init(dataset: str | None, out: str) -> None:
    """Write a first .dcpm file, with the masks of the library that fit DATASET.

    DATASET is a Parquet or JSON lines file, or a folder of them, of which the first is read.
    A mask fits if the data set has its columns, and the first rows lie in its layout. Without
    DATASET the file is about documents.
    """
    from pathlib import Path

    from dcp_dsl.errors import printable
    from dcp_dsl.specs.spec import check_report

    if out != "-" and Path(out).exists():
        raise click.UsageError(f"{out} is there already; name another file with --out")
    fits: list[Fit] = []
    seen = ""
    if dataset is not None:
        from dcp_dsl.data.sources import find_sources

        source = find_sources(dataset)[0]
        fits = sorted(_fits(source), key=lambda fit: (-len(fit.columns), fit.mask))
        seen = ", ".join(f"`{printable(column)}`" for column in list(source.columns)[:MOST_NAMED])
        click.echo(
            f"{printable(source.name)}: {seen}; {len(fits)} masks of the library fit", err=True
        )
    text = _text(dataset, seen, fits)
    errors = [d for d in check_report(text, out).diagnostics if d.severity == "error"]
    assert not errors, errors[0].render()
    write_output(out, text.encode())
    if out != "-":
        click.echo(f"next: dcpm check {out}" + (f" --dataset {dataset}" if dataset else ""))


def _fits(source: "Source") -> Iterator[Fit]:
    """Try every mask of the library that reads columns on the first rows of a file."""
    from dcp_dsl.checks.scope import library_names
    from dcp_dsl.data.dataset import TOKEN_COLUMNS
    from dcp_dsl.errors import DCPError
    from dcp_dsl.specs.spec import Spec

    table = next(iter(source.batches(source.columns)), None)
    rows = [] if table is None else table.slice(0, ROWS).to_pylist()
    if not rows:
        return
    library = Spec.from_text("")
    columns_of_lists = [name for name, value in rows[0].items() if isinstance(value, list)]
    lists = [name for name in columns_of_lists if name not in TOKEN_COLUMNS]
    for name in library_names():
        try:
            wanted = sorted(library.mask(name).columns)
        except DCPError:  # it has parameters without a default
            continue
        choices = [{column: column for column in wanted}]
        if name == "document":  # lengths of documents have many names
            choices += [{"doc_lens": column} for column in lists if column != "doc_lens"]
        for columns in choices:
            if not wanted or not set(columns.values()) <= source.columns.keys():
                continue
            fit = Fit(name, columns, {m: rows[0][c] for m, c in columns.items()})
            try:
                attached = Spec.from_text(fit.statement).attachment("rows", list(source.columns))
                for row in rows:
                    attached.mask.bind(attached.sample(row))
            except DCPError:
                continue
            yield fit


def _text(dataset: str | None, seen: str, fits: list[Fit]) -> str:
    """Return the file: the mask that fits best, its layout, sample and checks; then the others."""
    from dcp_grammar import MASKS

    chosen = fits[0].mask if fits else "document"
    words = f"Masks for {dataset}, with columns {seen}.".split()  # names may hold ends of lines
    about = [f"# {' '.join(words)}"] if dataset else []
    lines = [*about, f"# `dcpm show FILE --mask {chosen}` draws it,"]
    lines += [f"# `dcpm explain FILE --mask {chosen}` says what it costs.", ""]
    lines += [(MASKS / f"{chosen}.dcpm").read_text(encoding="utf-8").rstrip()]
    sample = _sample(fits[0]) if fits else ""
    if sample:
        lines += ["", "# The first row.", sample]
    lines += ["", "# The first statement that matches a file takes its rows."]
    lines += [fits[0].statement] if fits else []
    lines += [f"# {fit.statement}" for fit in fits[1:MOST_NAMED]]
    if dataset is not None and not fits:
        lines += ["# No mask of the library with a layout fits these columns. Write your own;"]
        lines += ["# docs/datasets.md says how rows get it."]
    lines += ['for "*" use causal', ""]
    return "\n".join(lines)


def _sample(fit: Fit) -> str:
    """Return the statement of the first row as a sample; nothing if it is long."""
    if len(str(fit.row)) > 4 * MOST_SHOWN:
        return ""
    return f"sample first_row({', '.join(f'{name} = {value}' for name, value in fit.row.items())})"
