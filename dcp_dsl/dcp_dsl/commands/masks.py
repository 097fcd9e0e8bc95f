"""Ask about masks on a sample: `dcpm show`, `explain`, `blocks` and `diff`."""

import json
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dcp_dsl.commands import options

if TYPE_CHECKING:
    from dcp_dsl.commands.mask_report import MaskReport
    from dcp_dsl.core.mask import Mask
    from dcp_dsl.core.sample import Sample
    from dcp_dsl.pictures.picture import Picture
    from dcp_dsl.syntax.diagnostic_formats import CodeExplanation


SCHEMA_SHOW = "dcp.show/1"
MAX_COLUMNS = 96


@click.command()
@click.argument("spec", required=False)
@options.mask_options
@click.option("--svg", metavar="FILE", help="Draw into an SVG file, `-` for standard output.")
@click.option("--png", metavar="FILE", help="Draw into a PNG file.")
@click.option(
    "--width", type=click.IntRange(8, 1000), help="Maximum width of the drawing, in characters."
)
@click.option("--json", "as_json", is_flag=True, help="Print tokens, pairs and slabs as "
              "JSON, one line for each mask of a stack.")  # fmt: skip
def show(  # noqa: PLR0913  # one parameter for each option
    spec: str | None,
    call: str | None,
    sample: str | None,
    length: str | None,
    svg: str | None,
    png: str | None,
    width: int | None,
    as_json: bool,
) -> None:
    """Draw a mask on a sample: queries downwards, keys to the right.

    SPEC is a .dcpm file. Without SPEC, the command draws masks of the standard library: `dcpm show
    --mask "streaming(4, 16)" --len 64`. Without --sample, the command takes the first sample of the
    file that fits the mask.
    """
    from dcp_dsl.pictures.picture import Picture

    loaded = options.load_spec(spec)
    chosen = [
        (used, Picture.of(mask, options.choose_sample(loaded, mask, sample, length)))
        for used, mask in options.choose_masks(loaded, call)
    ]
    if (svg or png) and len(chosen) > 1:
        calls = ", ".join(picture.title for _, picture in chosen)
        raise click.UsageError(f"a file holds one picture; name one of the stack's masks: {calls}")
    picture = chosen[0][1]
    if svg is not None:
        options.write_output(svg, picture.svg().encode() + b"\n")
    if png is not None:
        options.write_output(png, picture.png())
    if as_json:
        documents = [_document(picture, used) for used, picture in chosen]
        click.echo("\n".join(map(json.dumps, documents)))
    elif svg is None and png is None:
        for index, (used, picture) in enumerate(chosen):
            _print(index, used, _draw(picture, width))


def _print(index: int, used: str, text: str) -> None:
    """Print the text about one mask below where a stack uses it, with a blank line in between."""
    if index:
        click.echo()
    if used:
        click.echo(used)
    click.echo(text)


def _draw(picture: "Picture", width: int | None) -> str:
    """Draw for the terminal at hand: its width, its letters, its colours."""
    from shutil import get_terminal_size

    # The frame and the marks beside it take five columns; one stays free.
    if width is None:
        width = min(MAX_COLUMNS, max(8, get_terminal_size().columns - 6))
    wanted = click.get_current_context().color
    has_colour = sys.stdout.isatty() if wanted is None else wanted
    return picture.text(width, is_ascii=options.knows_ascii_only(), has_colour=has_colour)


def _document(picture: "Picture", used: str) -> dict[str, object]:
    from dcp_dsl.forms.conversion import square_slabs
    from dcp_dsl.forms.form import num_keys

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


SCHEMA_CODE = "dcp.code/1"
SCHEMA_MASK = "dcp.mask/1"
SCHEMA_CORE = "dcp.core/1"
# No mask of the library has such a name, so `dcpm explain E104` is no mask.
_CODE = re.compile(r"[A-Za-z]\d{3}")
MAX_SLABS = 12
FORMS = {
    "slabs": "slabs: {:,}",
    "cols": "cols: queries and keys swapped, {:,} slabs",
    "strided": "strided: {:,} slabs by the remainder of the distance",
    "rows": "rows: {:,} ranges of keys",
    "tiles": "tiles: a predicate, evaluated where bounds do not decide",
}


@click.command()
@click.argument("topic", required=False, metavar="[CODE | MASK | SPEC]")
@options.mask_options
@click.option("--block", default="128", show_default=True, metavar="TOKENS",
              help="Tokens per block in the counts.")  # fmt: skip
@click.option("--head-dim", type=click.IntRange(1), default=128, show_default=True,
              help="Elements per head, for the FLOP count.")  # fmt: skip
@click.option("--core", "as_core", is_flag=True, help="Print the core program of the mask.")
@click.option("--json", "as_json", is_flag=True,
              help="Print one JSON document, or one line for each mask of a stack.")  # fmt: skip
def explain(  # noqa: PLR0913  # one parameter for each option
    topic: str | None,
    call: str | None,
    sample: str | None,
    length: str | None,
    block: str,
    head_dim: int,
    as_core: bool,
    as_json: bool,
) -> None:
    """Explain a message code such as E104, or the form, slabs, pairs, blocks and cost of a mask.

    `dcpm explain E104` prints the documentation of a message. `dcpm explain SPEC --mask M` binds a
    mask of a .dcpm file to a sample and counts its pairs and blocks; `dcpm explain M` does the same
    for a mask of the standard library. `--core` prints the mask with all calls, rules and
    parameters expanded, and reads no sample.
    """
    if topic is not None and call is None and _CODE.fullmatch(topic):
        _explain_code(topic, as_json=as_json)
        return
    if topic is None and call is None:
        raise click.UsageError("name a code (dcpm explain E104), or a mask with --mask")
    from dcp_dsl.commands.mask_report import report_mask

    path, call = _tell_apart(topic, call)
    spec = options.load_spec(path)
    if as_core:
        from dcp_dsl.elaboration.programs import show_mask

        for used, mask in options.choose_masks(spec, call):
            core = show_mask(mask.core)
            if as_json:
                told = {"schema": SCHEMA_CORE, "used": used, "mask": mask.call, "core": core}
                click.echo(json.dumps(told))
            else:
                click.echo("\n".join(filter(None, (used, core))))
        return
    for index, (used, mask) in enumerate(options.choose_masks(spec, call)):
        chosen = options.choose_sample(spec, mask, sample, length)
        report = report_mask(mask, chosen, options.read_block(block), head_dim)
        table = _slab_table(report, mask, chosen)
        if as_json:
            document = {"schema": SCHEMA_MASK, "used": used, **asdict(report), "table": table}
            click.echo(json.dumps(document))
            continue
        _print(index, used, "\n".join([*_facts(report, chosen), *_slab_lines(table or [])]))


def _tell_apart(topic: str | None, call: str | None) -> tuple[str | None, str | None]:
    """Return the file and the mask: a topic that is no file names a mask of the library."""
    if topic is None or "." in topic or topic == "-" or Path(topic).exists():
        return topic, call
    if call is not None:
        raise click.UsageError(
            f"no file `{topic}`; of a mask of the library: dcpm explain --mask '{call}'"
        )
    return None, topic


def _explain_code(code: str, *, as_json: bool) -> None:
    from dcp_dsl.syntax.diagnostic_formats import explain_code

    found = explain_code(code)
    if as_json:
        click.echo(json.dumps({"schema": SCHEMA_CODE, **asdict(found)}))
    else:
        click.echo(_render(found))


def _render(found: "CodeExplanation") -> str:
    """Lay Markdown out for a terminal: examples indented, under what they are."""
    lines = [f"{found.code}: {found.title}", ""]
    is_code = False
    # An opening fence such as "```dcpm bad" becomes a heading, a closing one nothing.
    for line in found.body.splitlines():
        if line.startswith("```"):
            is_code = not is_code
            if is_code:
                words = line.removeprefix("```").split()
                verdict = {"bad": "wrong:", "good": "right:"}.get(words[1] if words[1:] else "", "")
                lines += ([""] if lines[-1] else []) + ([f"  {verdict}"] if verdict else [])
            continue
        lines.append(f"    {line}" if is_code and line else line)
    return "\n".join(lines)


def _facts(report: "MaskReport", sample: "Sample") -> list[str]:
    shapes = ", ".join(f"{count:,} {name}" for name, count in report.shapes.items())
    visited = report.full_blocks + report.partial_blocks
    facts = {
        "mask": report.mask,
        "columns": ", ".join(report.columns) or "none",
        "sample": _shorten(sample.to_json()),
        "form": f"{FORMS[report.form].format(report.slabs)}" + (f" ({shapes})" if shapes else ""),
        "pairs": f"{report.pairs:,} of {report.tokens * report.keys:,}, {_percent(report.density)}"
        + ("" if report.of_causal is None else f"; {_percent(report.of_causal)} of causal"),
        "rows": "a query sees at most "
        + ("?" if report.widest_row is None else f"{report.widest_row:,}")
        + " keys",
        "blocks": f"{visited:,} of {report.blocks:,} blocks of {report.block} tokens are visited: "
        f"{report.full_blocks:,} full, {report.partial_blocks:,} partial; "
        f"{_percent(report.fill)} of their pairs are visible",
        # Forward has two products of matrices, backward five: it computes q k once more.
        "cost": f"{_amount(report.flops_per_head)}FLOP forward for each query head of "
        f"{report.head_dim}, {_amount(round(2.5 * report.flops_per_head))}FLOP backward",
    }
    return [f"{name:8} {value}" for name, value in facts.items()]


def _slab_table(report: "MaskReport", mask: "Mask", sample: "Sample") -> list[list[int]] | None:
    """Return the slabs of a mask on a sample; None for a mask of another form."""
    from dcp_dsl.forms.conversion import square_slabs

    if report.form != "slabs":  # other forms are not kept: binding one again may take seconds
        return None
    table: list[list[int]] = square_slabs(mask.compile(sample, may_cross=True)).table().tolist()
    return table


def _slab_lines(table: list[list[int]]) -> list[str]:
    """List the first slabs in words."""
    from dcp_dsl.commands.mask_report import SLOPES

    if not table:
        return []
    lines = ["", f"{'queries':>21}  {'keys of the first':>21}  shape"]
    for q0, q1, k0, k1, a, b in table[:MAX_SLABS]:
        rows, keys = f"{q0:,} to {q1 - 1:,}", f"{k0:,} to {k1 - 1:,}"
        lines.append(f"{rows:>21}  {keys:>21}  {SLOPES[a, b]}")
    if len(table) > MAX_SLABS:
        lines.append(f"{'...':>21}  {len(table) - MAX_SLABS:,} more")
    return lines


def _percent(part: float) -> str:
    return f"{100 * part:.3g} %"


def _amount(value: int) -> str:
    """Return a number with a metric prefix, for example 12.3 G."""
    # Powers of a thousand, not of 1024 as in lengths: flops are compared with data sheets.
    size, prefixes = float(value), iter(" kMGTPE")
    prefix = next(prefixes)
    while size >= 1000 and prefix != "E":
        size, prefix = size / 1000, next(prefixes)
    return f"{size:.3g} {prefix.strip()}"


def _shorten(text: str) -> str:
    return text if len(text) <= 100 else text[:97] + "..."


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
    """Count exactly the visible pairs in every block of a mask.

    --mask takes a name or a call such as `longformer(radius = 9)`. --sample takes the name of a
    sample of SPEC, its columns as JSON with an optional `len`, or a file with this JSON. The output
    lists only blocks with visible pairs: row, column, pairs.
    """
    from dcp_dsl.forms.form import num_keys
    from dcp_dsl.forms.sparsity import BlockKind, block_sparsity

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
    full = int((found.kind == BlockKind.FULL).sum())
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


SCHEMA_DIFF = "dcp.diff/1"


@click.command()
@click.argument("left", metavar="A")
@click.argument("right", metavar="B")
@click.option("--spec", "spec_path", metavar="FILE", help="The .dcpm file that defines A and B.")
@options.sample_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def diff(
    left: str,
    right: str,
    spec_path: str | None,
    sample: str | None,
    length: str | None,
    as_json: bool,
) -> None:
    """Compare two masks exactly on a sample: equal, one within the other, or different.

    A and B are names or calls, such as `causal` or `"sliding(4k) per doc"`.

    Exit status: 0 if both masks have the same visible pairs, 1 if not.
    """
    from dcp_dsl.forms.algebra import compare_masks

    for name in (left, right):
        if name.endswith(".dcpm"):
            raise click.UsageError(
                f"A and B are masks, but `{name}` is a file: dcpm diff MASK MASK --spec {name}"
            )
    spec = options.load_spec(spec_path)
    masks = [spec.mask(left), spec.mask(right)]
    if masks[0].keys != masks[1].keys:
        raise click.UsageError("A and B have keys of different sequences; see `@keys`")
    # One sample for both: with the columns of either mask.
    both = replace(masks[0], columns=masks[0].columns | masks[1].columns)
    chosen = options.choose_sample(spec, both, sample, length)
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
        return f"`{left}` implies `{right}` {on}; `{right}` sees {only_right:,} more pairs"
    if not only_right:
        return f"`{right}` implies `{left}` {on}; `{left}` sees {only_left:,} more pairs"
    return f"differ {on}: {only_left:,} pairs only in `{left}`, {only_right:,} only in `{right}`"
