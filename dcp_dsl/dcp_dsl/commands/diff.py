"""`dcpm diff`: compare two masks on samples and show the first difference."""

import json
import sys
from dataclasses import replace

import click

from dcp_dsl.commands.options import choose_sample, load_spec, sample_options

SCHEMA_DIFF = "dcp.diff/1"


@click.command()
@click.argument("left", metavar="A")
@click.argument("right", metavar="B")
@click.option("--spec", "spec_path", metavar="FILE", help="The .dcpm file that A and B speak of.")
@sample_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def diff(
    left: str,
    right: str,
    spec_path: str | None,
    sample: str | None,
    length: str | None,
    as_json: bool,
) -> None:
    """Compare two masks on a sample, exactly: equal, one within the other, or where they differ.

    A and B are names or calls, such as `causal` or `"sliding(4k) per doc"`. Exit status: 0 if they
    see the same pairs, 1 if they do not.
    """
    from dcp_dsl.forms.algebra import compare_masks

    for name in (left, right):
        if name.endswith(".dcpm"):
            raise click.UsageError(
                f"A and B are masks, `{name}` is a file: dcpm diff MASK MASK --spec {name}"
            )
    spec = load_spec(spec_path)
    masks = [spec.mask(left), spec.mask(right)]
    if masks[0].keys != masks[1].keys:
        raise click.UsageError("A and B look at keys of different sequences; see `@keys`")
    both = replace(masks[0], columns=masks[0].columns | masks[1].columns)
    chosen = choose_sample(spec, both, sample, length)
    forms = [mask.compile(chosen, may_cross=True) for mask in masks]
    found = compare_masks(*forms)
    if as_json:
        document = {
            "schema": SCHEMA_DIFF, "tokens": chosen.length, "equal": found.is_equal,
            "left_implies_right": found.only_left == 0,
            "right_implies_left": found.only_right == 0,
            "only_left": found.only_left, "only_right": found.only_right,
            "forms": [form.form for form in forms], "digests": [form.digest for form in forms],
            "first": None if found.first is None else list(found.first),
        }  # fmt: skip
        click.echo(json.dumps(document))
    else:
        click.echo(_sentence(left, right, found.only_left, found.only_right, chosen.length))
        if found.first is not None:
            q, k = found.first
            seen_by = left if found.first_is_left else right
            click.echo(f"first at q = {q}, k = {k}: only `{seen_by}` sees it")
    sys.exit(0 if found.is_equal else 1)


def _sentence(left: str, right: str, only_left: int, only_right: int, tokens: int) -> str:
    on = f"on {tokens:,} tokens"
    if not only_left and not only_right:
        return f"equal {on}: `{left}` and `{right}` see the same pairs"
    if not only_left:
        return f"`{left}` implies `{right}` {on}; `{right}` sees {only_right:,} pairs more"
    if not only_right:
        return f"`{right}` implies `{left}` {on}; `{left}` sees {only_left:,} pairs more"
    return f"differ {on}: {only_left:,} pairs only in `{left}`, {only_right:,} only in `{right}`"
