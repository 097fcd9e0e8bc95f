"""`dcpm explain`: a mask in numbers, or the meaning of a code."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dcp_dsl.commands import options

if TYPE_CHECKING:
    from dcp_dsl.commands.mask_report import MaskReport
    from dcp_dsl.core.mask import Mask
    from dcp_dsl.core.sample import Sample
    from dcp_dsl.syntax.diagnostic_formats import CodeExplanation

SCHEMA_CODE = "dcp.code/1"
SCHEMA_MASK = "dcp.mask/1"
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
              help="Tokens per block of the counts.")  # fmt: skip
@click.option("--head-dim", type=click.IntRange(1), default=128, show_default=True,
              help="Size of a head, for the flops.")  # fmt: skip
@click.option("--core", "as_core", is_flag=True, help="Print the core program of the mask.")
@click.option("--json", "as_json", is_flag=True,
              help="Print one JSON document; a line for each mask of a stack.")  # fmt: skip
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
    """Explain a code, such as E104, or a mask: its form, slabs, pairs, blocks and cost.

    `dcpm explain E104` prints the documentation of a message. `dcpm explain SPEC --mask M` binds a
    mask of a .dcpm file to a sample and counts; `dcpm explain M` one of the standard library. With
    `--core` it prints the mask with all calls, rules and parameters written out; no sample is read.
    """
    if topic is not None and call is None and _CODE.fullmatch(topic):
        _explain_code(topic, as_json=as_json)
        return
    if topic is None and call is None:
        raise click.UsageError("name a code (dcpm explain E104), or a mask with --mask")
    from dcp_dsl.commands.mask_report import report_mask
    from dcp_dsl.forms.cross import square_slabs

    path, call = _tell_apart(topic, call)
    spec = options.load_spec(path)
    if as_core:
        from dcp_dsl.elaboration.programs import show_mask

        for used, mask in options.choose_masks(spec, call):
            click.echo("\n".join(filter(None, (used, show_mask(mask.core)))))
        return
    for index, (used, mask) in enumerate(options.choose_masks(spec, call)):
        chosen = options.choose_sample(spec, mask, sample, length)
        report = report_mask(mask, chosen, options.read_block(block), head_dim)
        if as_json:
            form = mask.compile(chosen, may_cross=True)
            table = square_slabs(form).table().tolist() if form.form == "slabs" else None
            document = {"schema": SCHEMA_MASK, "used": used, **asdict(report), "table": table}
            click.echo(json.dumps(document))
            continue
        if index:
            click.echo()
        if used:
            click.echo(used)
        click.echo("\n".join([*_facts(report, chosen), *_slab_table(mask, chosen)]))


def _tell_apart(topic: str | None, call: str | None) -> tuple[str | None, str | None]:
    """Return the file and the mask: what is no file is a mask of the library."""
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
        "cost": f"{_amount(report.flops_per_head)}FLOP forward for each query head of "
        f"{report.head_dim}, {_amount(round(2.5 * report.flops_per_head))}FLOP backward",
    }
    return [f"{name:8} {value}" for name, value in facts.items()]


def _slab_table(mask: "Mask", sample: "Sample") -> list[str]:
    """List the first slabs in words."""
    from dcp_dsl.commands.mask_report import SLOPES
    from dcp_dsl.forms.cross import square_slabs

    form = mask.compile(sample, may_cross=True)
    if form.form != "slabs" or not form.num_pairs:
        return []
    table = square_slabs(form).table()
    lines = ["", f"{'queries':>21}  {'keys of the first':>21}  shape"]
    for q0, q1, k0, k1, a, b in table[:MAX_SLABS].tolist():
        rows, keys = f"{q0:,} to {q1 - 1:,}", f"{k0:,} to {k1 - 1:,}"
        lines.append(f"{rows:>21}  {keys:>21}  {SLOPES[a, b]}")
    if len(table) > MAX_SLABS:
        lines.append(f"{'...':>21}  {len(table) - MAX_SLABS:,} more")
    return lines


def _percent(part: float) -> str:
    return f"{100 * part:.3g} %"


def _amount(value: int) -> str:
    """Return a number with a prefix of a thousand: 12.3 G, say."""
    size, prefixes = float(value), iter(" kMGTPE")
    prefix = next(prefixes)
    while size >= 1000 and prefix != "E":
        size, prefix = size / 1000, next(prefixes)
    return f"{size:.3g} {prefix.strip()}"


def _shorten(text: str) -> str:
    return text if len(text) <= 100 else text[:97] + "..."
