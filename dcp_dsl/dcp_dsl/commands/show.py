"""`dcpm show`: draw a mask in the terminal, as SVG or as PNG."""

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from dcp_dsl.commands import options

if TYPE_CHECKING:
    from dcp_dsl.pictures.picture import Picture

SCHEMA_SHOW = "dcp.show/1"
MAX_COLUMNS = 96


@click.command()
@click.argument("spec", required=False)
@options.mask_options
@click.option("--svg", metavar="FILE", help="Draw into an SVG file, `-` for standard output.")
@click.option("--png", metavar="FILE", help="Draw into a PNG file.")
@click.option("--width", type=click.IntRange(8, 1000), help="Widest matrix, in characters.")
@click.option("--json", "as_json", is_flag=True, help="Print tokens, pairs and slabs; "
              "a line for each mask of a stack.")  # fmt: skip
def show(
    spec: str | None,
    call: str | None,
    sample: str | None,
    length: str | None,
    **drawing: str | int | bool | None,
) -> None:
    """Draw a mask on a sample: queries downwards, keys to the right.

    SPEC is a .dcpm file; without one the masks of the standard library are there:
    `dcpm show --mask "streaming(4, 16)" --len 64`. Without --sample the first one of the file that
    fits is drawn.
    """
    from dcp_dsl.pictures.picture import Picture

    loaded = options.load_spec(spec)
    chosen = [
        (used, Picture.of(mask, options.choose_sample(loaded, mask, sample, length)))
        for used, mask in options.choose_masks(loaded, call)
    ]
    svg, png = drawing["svg"], drawing["png"]
    if (svg or png) and len(chosen) > 1:
        calls = ", ".join(picture.title for _, picture in chosen)
        raise click.UsageError(f"a file holds one picture; name one of the stack's masks: {calls}")
    picture = chosen[0][1]
    if isinstance(svg, str):
        options.write_output(svg, picture.svg().encode() + b"\n")
    if isinstance(png, str):
        options.write_output(png, picture.png())
    if drawing["as_json"]:
        documents = [_document(picture, used) for used, picture in chosen]
        click.echo("\n".join(map(json.dumps, documents)))
    elif svg is None and png is None:
        width = drawing["width"]
        _print(chosen, width if isinstance(width, int) else None)


def _print(chosen: "list[tuple[str, Picture]]", width: int | None) -> None:
    for index, (used, picture) in enumerate(chosen):
        if index:
            click.echo()
        if used:
            click.echo(used)
        click.echo(_draw(picture, width))


def _draw(picture: "Picture", width: int | None) -> str:
    """Draw for the terminal at hand: its width, its letters, its colours."""
    from shutil import get_terminal_size

    if width is None:
        width = min(MAX_COLUMNS, max(8, get_terminal_size().columns - 6))
    wanted = click.get_current_context().color
    has_colour = sys.stdout.isatty() if wanted is None else wanted
    return picture.text(width, is_ascii=options.knows_ascii_only(), has_colour=has_colour)


def _document(picture: "Picture", used: str) -> dict[str, object]:
    from dcp_dsl.forms.cross import num_keys, square_slabs

    return {
        "schema": SCHEMA_SHOW,
        "mask": picture.title,
        "used": used,
        "form": picture.bound.form,
        "tokens": picture.bound.num_tokens,
        "keys": num_keys(picture.bound),
        "pairs": picture.bound.num_pairs,
        "slabs": square_slabs(picture.bound).table().tolist(),
        "stripes": [asdict(stripe) for stripe in picture.stripes],
    }
