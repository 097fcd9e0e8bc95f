"""`dcpm export`: write a mask for another attention kernel."""

import json

import click

from dcp_dsl.commands import options

SCHEMA = "dcp.exported/1"


@click.command()
@click.argument("spec", required=False)
@options.mask_options
@click.option("--format", "name", type=click.Choice(options.FORMATS), required=True,
              help="Whose format to write.")  # fmt: skip
@click.option("--out", required=True, metavar="FILE", help="Ends in .npz, .json or .py.")
@click.option("--block", default="128", show_default=True, metavar="B|QxK",
              help="Tokens per block, for flex and flash4.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
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
    """Write a mask on a sample in the format of an attention kernel.

    dense: booleans. dcp: ranges per row. flashmask: hidden rows per key. magi: slices with slanted
    ends. varlen: calls of a plain flash kernel. flex, flash4: block tables and a mask_mod, as .py
    with an .npz beside it.

    Exit status 1 if the format cannot hold the mask (X3xx).
    """
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
            "schema": SCHEMA, "mask": mask.call, "format": name, "tokens": found.num_tokens,
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
