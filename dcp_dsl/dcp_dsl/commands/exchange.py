"""Convert masks to and from other files: `dcpm export`, `dcpm import`, `dcpm init`."""

import json
import sys
from itertools import groupby
from typing import TYPE_CHECKING

import click

from dcp_dsl.commands import options
from dcp_dsl.interchange.names import FORMATS, READABLE

if TYPE_CHECKING:
    from dcp_dsl.forms.algebra import MaskComparison
    from dcp_dsl.forms.slabs import Slabs


SCHEMA_EXPORT = "dcp.exported/1"
_FORMATS = ", ".join(
    f"{' and '.join(names)} ({meaning})"
    for meaning, names in groupby(FORMATS, lambda name: FORMATS[name].meaning)
)


@click.command(
    help=f"""Write a mask on a sample in the format of an attention kernel.

    Formats: {_FORMATS}.

    Exit status: 1 if the format cannot represent the mask (X3xx).
"""
)
@click.argument("spec", required=False)
@options.mask_options
@click.option("--format", "name", type=click.Choice(tuple(FORMATS)), required=True,
              help="Format to write; see above.")  # fmt: skip
@click.option(
    "--out",
    required=True,
    metavar="FILE",
    help="File to write; the name ends in .npz, .json or .py.",
)
@click.option("--block", default="128", show_default=True, metavar="B|QxK",
              help="Tokens per block, for flex and flash4.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Describe the written files as JSON.")
def export(  # noqa: PLR0913 - one argument per option
    spec: str | None,
    call: str | None,
    sample: str | None,
    length: str | None,
    name: str,
    out: str,
    block: str,
    as_json: bool,
) -> None:
    """Write a mask on a sample in the format of an attention kernel."""
    from dcp_dsl.interchange.export import ExportConfig, write_export
    from dcp_dsl.interchange.formats import export_mask

    loaded = options.load_spec(spec)
    mask = options.choose_mask(loaded, call)
    bound = mask.compile(options.choose_sample(loaded, mask, sample, length), may_cross=True)
    block_q, block_kv = _read_block(block)
    found = export_mask(bound, name, ExportConfig(block_q, block_kv, mask.call))
    files = [str(path) for path in write_export(out, found)]
    if as_json:
        arrays = {k: {"dtype": str(v.dtype), "shape": v.shape} for k, v in found.arrays.items()}
        document = {
            "schema": SCHEMA_EXPORT, "mask": mask.call, "format": name, "tokens": found.num_tokens,
            "pairs": bound.num_pairs, "values": dict(found.values), "arrays": arrays,
            "files": files,
        }  # fmt: skip
        click.echo(json.dumps(document))
        return
    shapes = ", ".join(f"{k} {list(v.shape)}" for k, v in found.arrays.items())
    click.echo(f"{name}: {mask.call} on {found.num_tokens:,} tokens; {shapes or 'no arrays'}")
    click.echo(f"wrote {' and '.join(files)}", err=True)


def _read_block(text: str) -> tuple[int, int]:
    first, mark, second = text.partition("x")
    try:
        return options.read_block(first), options.read_block(second if mark else first)
    except click.UsageError:
        raise click.UsageError(
            f"--block: expected tokens such as 128, or 128x64 for queries and keys, got {text!r}"
        ) from None


SCHEMA_IMPORT = "dcp.import/1"


@click.command("import")
@click.argument("file")
@click.option("--format", "name", type=click.Choice(READABLE),
              help="Format of FILE, if the file does not name the format.")  # fmt: skip
@click.option("--equals", "spec", metavar="SPEC", help="Compare with a mask of this .dcpm file.")
@options.mask_options
@click.option("--svg", metavar="FILE", help="Draw the mask into an SVG file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def import_(  # noqa: PLR0913 - one argument per option
    file: str,
    name: str | None,
    spec: str | None,
    call: str | None,
    sample: str | None,
    length: str | None,
    svg: str | None,
    as_json: bool,
) -> None:
    """Read a mask from a kernel's format, draw it, and compare it with a .dcpm mask.

    FILE is an .npz or .json file written by `dcpm export`, or an .npy or .npz file with the arrays
    of the format.

    Exit status: with --equals or --mask, 1 if the masks differ.
    """
    from dcp_dsl.interchange.export import read_export
    from dcp_dsl.interchange.formats import import_mask
    from dcp_dsl.interchange.lines import find_difference
    from dcp_dsl.pictures.picture import Picture

    export = read_export(file, name)
    found = import_mask(export)
    picture = Picture(f"{file} ({export.format})", found)
    if svg is not None:
        options.write_output(svg, picture.svg().encode() + b"\n")
    difference, other = None, None
    if spec is not None or call is not None:
        loaded = options.load_spec(spec)
        mask = options.choose_mask(loaded, call)
        # A mask without columns is compared at the length of the file.
        if sample is None and length is None and not mask.columns:
            length = str(found.num_tokens)
        bound = mask.bind(options.choose_sample(loaded, mask, sample, length))
        difference, other = find_difference(found, bound), mask.call
    if as_json:
        click.echo(json.dumps(_document(file, export.format, found, other, difference)))
    else:
        if svg is None:
            click.echo(picture.text(is_ascii=options.knows_ascii_only()))
        if other is not None:
            click.echo(_verdict(other, difference))
    sys.exit(0 if difference is None else 1)


def _verdict(other: str, difference: "MaskComparison | None") -> str:
    if difference is None:
        return f"equal: the same pairs as {other}"
    # Only the first pair is named: one is enough to look at, and there may be millions.
    d = difference
    assert d.first is not None, "they differ"
    side = "only the file" if d.first_is_left else f"only {other}"
    return (
        f"different: {d.only_left:,} pairs only in the file, {d.only_right:,} only in {other}; "
        f"first: {side} lets query {d.first[0]} see key {d.first[1]}"
    )


def _document(
    file: str, name: str, found: "Slabs", other: str | None, difference: "MaskComparison | None"
) -> dict[str, object]:
    document: dict[str, object] = {
        "schema": SCHEMA_IMPORT, "file": file, "format": name, "tokens": found.num_tokens,
        "pairs": found.num_pairs, "slabs": found.table().tolist(),
    }  # fmt: skip
    if other is not None:
        document |= {"mask": other, "equal": difference is None}
    if difference is not None and difference.first is not None:
        query, key = difference.first
        document["difference"] = {
            "only_file": difference.only_left, "only_mask": difference.only_right,
            "query": query, "key": key,
        }  # fmt: skip
    return document


@click.command()
@click.argument("dataset", required=False)
@click.option("--out", default="masks.dcpm", show_default=True, metavar="FILE",
              help="File to write, `-` for standard output.")  # fmt: skip
def init(dataset: str | None, out: str) -> None:
    """Write a starter .dcpm file with the library masks that fit DATASET.

    DATASET is a Parquet or JSON Lines file, or a folder of such files; the command reads the first
    file. A mask fits if the data set has the columns of the mask, under any names, and the first
    rows match its layout. Where nothing decides, the file attaches no mask and lists the choices as
    comments. Without DATASET, the file has a mask for packed documents.
    """
    from pathlib import Path

    from dcp_dsl.commands.first_file import first_file
    from dcp_dsl.errors import printable
    from dcp_dsl.specs.spec import check_report

    if out != "-" and Path(out).exists():
        raise click.UsageError(f"{out} exists already; choose another file with --out")
    source = None
    if dataset is not None:
        from dcp_dsl.data.sources import find_sources

        source = find_sources(dataset)[0]
    found = first_file(dataset, source)
    text = found.text()
    if source is not None:
        click.echo(f"{printable(source.name)}: {found.seen}; {found.summary}", err=True)
    errors = [d for d in check_report(text, out).diagnostics if d.severity == "error"]
    assert not errors, errors[0].render()
    options.write_output(out, text.encode())
    if out != "-":
        choose = "" if dataset is None or found.chosen else f"choose a mask in {out}, then "
        click.echo(f"next: {choose}dcpm check {out}" + (f" --dataset {dataset}" if dataset else ""))
