"""`dcpm import`: read an exported mask back, draw it, compare it with a mask of a text."""

import json
import sys
from typing import TYPE_CHECKING

import click

from dcp_dsl.commands import options

if TYPE_CHECKING:
    from dcp_dsl.forms.algebra import MaskComparison
    from dcp_dsl.forms.slabs import Slabs

SCHEMA = "dcp.import/1"


@click.command("import")
@click.argument("file")
@click.option("--format", "name", type=click.Choice(options.READABLE),
              help="Needed where the file does not say.")  # fmt: skip
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

    FILE is an .npz or .json that `dcpm export` wrote, or an .npy or .npz with the arrays of the
    format. With --equals or --mask the exit status is 1 if the masks differ.
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
        "schema": SCHEMA, "file": file, "format": name, "tokens": found.num_tokens,
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
