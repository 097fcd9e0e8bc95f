"""`dcpm blocks`: the visible pairs of every non-empty block of a mask."""

import json

import click

from dcp_dsl.commands import options

SCHEMA_BLOCKS = "dcp.blocks/1"
MAX_LINES = 24


@click.command()
@click.argument("spec_path", required=False, metavar="SPEC")
@options.mask_options
@click.option("--block", default="128", show_default=True, metavar="TOKENS",
              help="Tokens per block, of queries and of keys.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def blocks(
    spec_path: str | None,
    call: str | None,
    sample: str | None,
    length: str | None,
    block: str,
    as_json: bool,
) -> None:
    """Count the visible pairs of every block of a mask, exactly.

    --mask takes a name or a call such as `longformer(radius = 9)`; --sample the name of a `sample`
    of SPEC, JSON of its columns with an optional `len`, or a file of that. Only blocks that hold
    pairs are listed: [row, column, pairs].
    """
    from dcp_dsl.forms.cross import num_keys
    from dcp_dsl.forms.sparsity import block_sparsity

    spec = options.load_spec(spec_path)
    mask = options.choose_mask(spec, call)
    chosen = options.choose_sample(spec, mask, sample, length)
    form = mask.compile(chosen, may_cross=True)
    size = options.read_block(block)
    found = block_sparsity([form], size, size)
    rows = list(
        zip(found.row_idx.tolist(), found.col_idx.tolist(), found.pairs.tolist(), strict=True)
    )
    if as_json:
        document = {
            "schema": SCHEMA_BLOCKS, "form": form.form, "tokens": chosen.length,
            "keys": num_keys(form), "block": size, "pairs": found.num_pairs,
            "blocks": [list(row) for row in rows],
        }  # fmt: skip
        click.echo(json.dumps(document))
        return
    full = int((found.kind == 2).sum())
    tokens = f"{chosen.length:,} tokens"
    if mask.keys is not None:
        tokens = f"{chosen.length:,} queries and {num_keys(form):,} keys"
    click.echo(f"{mask.call} on {tokens}: form {form.form}, digest {form.digest}")
    count = f"{found.num_blocks:,} block{'s' if found.num_blocks != 1 else ''}"
    click.echo(f"{count} of {size} ({full:,} full), {found.num_pairs:,} pairs")
    for row, column, pairs in rows[:MAX_LINES]:
        click.echo(f"  ({row}, {column})  {pairs:,}")
    if len(rows) > MAX_LINES:
        click.echo(f"  ... and {len(rows) - MAX_LINES:,} more; --json prints all")
