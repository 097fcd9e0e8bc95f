"""Answer the playground's page: check a text, draw one of its masks on a sample, count.

The page sends texts and gets JSON; nothing here knows about browsers.
"""

import importlib.util
import json
import re
from typing import Any

import numpy_free
from plain_layout import Refused

HAS_NUMPY = importlib.util.find_spec("numpy") is not None
if not HAS_NUMPY:
    numpy_free.install()

from reference import Reference  # noqa: E402  # imports what was just replaced

from dcp_dsl.checks.scope import library_names  # noqa: E402
from dcp_dsl.core.mask import Mask  # noqa: E402
from dcp_dsl.core.per_token import dense_mask  # noqa: E402
from dcp_dsl.core.sample import Sample  # noqa: E402
from dcp_dsl.elaboration import nodes  # noqa: E402
from dcp_dsl.errors import DatasetError, DCPError  # noqa: E402
from dcp_dsl.language_server.hover import example_call  # noqa: E402
from dcp_dsl.pictures.picture import example_samples  # noqa: E402
from dcp_dsl.specs.spec import (  # noqa: E402
    Spec,
    check_report,
    sample_from_argument,
)
from dcp_dsl.syntax import ast  # noqa: E402
from dcp_dsl.syntax.diagnostics import Diagnostic, SpecError  # noqa: E402
from dcp_dsl.syntax.source import format_source  # noqa: E402
from dcp_grammar import MASKS  # noqa: E402

MAX_TOKENS = 4096 if HAS_NUMPY else 512
MAX_TEXT = 100_000  # characters
BLOCKS = (4, 16, 64)  # sizes to count blocks of, the largest with at least four a side
_FAILING = re.compile(r"at q = (\d+)(?:, k = (\d+))? of the sample (\{.*\})")


def answer(text: str, sample: str = "", call: str = "") -> str:
    """Return JSON about a text: findings, verdicts, its masks, and a picture of one.

    Args:
        text: of a .dcpm file.
        sample: as `dcpm show --sample` takes it; empty for one that fits.
        call: the mask to draw; empty for the last one of the text.
    """
    if len(text) > MAX_TEXT:
        return json.dumps({"problem": f"The text is longer than {MAX_TEXT:,} characters."})
    report = check_report(text, "mask.dcpm")
    found: dict[str, Any] = {  # Any: JSON
        "findings": [_finding(each) for each in report.diagnostics],
        "verdicts": [verdict.to_json() for verdict in report.verdicts],
        "summary": report.summary(),
        "masks": [],
    }
    try:
        spec = Spec.from_text(text, "mask.dcpm")
        found["masks"] = list(spec.masks)
        found |= _drawn(spec, sample.strip(), call.strip())
    except SpecError as error:
        if not report.diagnostics:  # of the call, not of the text
            found["problem"] = str(error)
    except (DCPError, Refused) as error:
        found["problem"] = str(error)
    return json.dumps(found)


def formatted(text: str) -> str:
    """Return a text in the one layout, or as it is if it does not parse."""
    try:
        return format_source(text)
    except SpecError:
        return text


def library() -> str:
    """Return JSON: the name and the text of every mask of the standard library."""
    return json.dumps(
        {name: (MASKS / f"{name}.dcpm").read_text("utf-8") for name in sorted(library_names())}
    )


def _finding(found: Diagnostic) -> dict[str, Any]:  # Any: JSON
    """Return a finding; of a failing sample also the columns and the pair."""
    failing = _FAILING.search(f"{found.message} {found.hint}")
    return {
        "code": found.code, "severity": found.severity, "message": found.message,
        "hint": found.hint, "line": found.line, "column": found.column,
        "start": found.start, "end": found.end,
        "fix": None if found.fix is None else {
            "title": found.fix.title, "edits": [[e.start, e.end, e.text] for e in found.fix.edits],
        },
        "failing": None if failing is None else {
            "q": int(failing[1]), "k": failing[2] and int(failing[2]), "sample": failing[3],
        },
    }  # fmt: skip


def _drawn(spec: Spec, given: str, call: str) -> dict[str, Any]:  # Any: JSON
    """Return the picture of a mask, its sample and its figures."""
    mask = spec.mask(call or (example_call(spec, spec.masks[-1]) if spec.masks else "causal"))
    sample = sample_from_argument(spec, given) if given else _example(mask)
    if sample.length > MAX_TOKENS:
        return {"problem": f"The sample has {sample.length:,} tokens; at most {MAX_TOKENS} here."}
    mask.require(sample)
    reference = Reference.of_mask(mask, sample)
    found = reference.rectangle
    n, keys, shift = (
        (sample.length, sample.length, 0) if found is None
        else (found.num_q, found.num_kv, found.first_row)
    )  # fmt: skip
    if max(n, keys) > MAX_TOKENS:
        return {"problem": f"The mask has {n:,} queries and {keys:,} keys; at most {MAX_TOKENS}."}
    if HAS_NUMPY:
        rows = [int.from_bytes(row.tobytes(), "little") for row in dense_mask(mask, sample)]
    else:
        rows = reference.rows(mask.core)
    pairs = sum(row.bit_count() for row in rows)
    is_cross = found is not None and found.facts is not None
    whole, of_what = (n * keys, "all") if found else (n * (n + 1) // 2, "a causal mask's")
    return {
        "mask": mask.call,
        "sample": sample.to_json(),
        "tokens": n,
        "keys": keys,
        "rows": [row.to_bytes(keys, "little").translate(_LETTERS).decode() for row in rows],
        "parts": _parts(mask, reference),
        "pairs": pairs,
        "share": f"{100 * pairs / max(1, whole):.1f} % of {of_what}",
        "blind": sum(row == 0 for row in rows),
        "ahead": None if is_cross else sum(
            (row >> 8 * max(0, q + 1)).bit_count() for q, row in enumerate(rows, shift)
        ),
        "blocks": _blocks(rows, keys),
    }  # fmt: skip


_LETTERS = bytes.maketrans(b"\0\1", b".#")


def _example(mask: Mask) -> Sample:
    """Return a sample of the text, of the library, or one that is made up."""
    for sample in example_samples(mask):
        try:
            Reference.of_mask(mask, sample).row(mask.core, 0)
        except (DatasetError, Refused):
            continue
        return sample
    columns = ", ".join(f"{column} = ..." for column in sorted(mask.columns))
    raise Refused(f"give a sample: {columns}, len = ...")


def _parts(mask: Mask, reference: Reference) -> dict[str, list[dict[str, Any]]]:  # Any: JSON
    """Return names and tokens of the instances that segments have, of queries and of keys."""
    found = reference.rectangle
    sides: dict[str, list[dict[str, Any]]] = {"q": [], "k": []}
    laid = mask.segments if mask.keys is None else (mask.keys.statement, *mask.segments)
    for segment in laid:
        own = "qk"
        if found is not None and found.facts is not None:
            own = "k" if segment is laid[0] or segment in found.facts else "q"
        names = [segment.name.text]
        if isinstance(segment.source, ast.Layout):
            names = [part.name.text for part in segment.source.parts if part.name] or names
        for name in names:
            for each in reference.instances(nodes.Laid(segment, name)):
                title = f"{name} {each.number}" if each.count > 1 else name
                for side in own:
                    start, end = each.start, each.end
                    if found is not None and side == "q":
                        start = max(0, start - found.first_row)
                        end = min(end - found.first_row, found.num_q)
                    if end > start:
                        place = {"name": title, "start": start, "end": end}
                        sides[side].append(place | {"segment": segment.name.text})
    return sides


def _blocks(rows: list[int], keys: int) -> dict[str, int]:
    """Count full, partial and empty blocks of the largest size that leaves some of them."""
    n = len(rows)
    size = max((b for b in BLOCKS if 4 * b <= max(n, keys)), default=BLOCKS[0])
    places = [(q, k) for q in range(0, n, size) for k in range(0, keys, size)]
    full = partial = 0
    for q, k in places:
        width, height = min(size, keys - k), min(size, n - q)
        inside = (1 << 8 * width) - 1
        pairs = sum((row >> 8 * k & inside).bit_count() for row in rows[q : q + size])
        full += pairs == width * height
        partial += 0 < pairs < width * height
    return {"size": size, "full": full, "partial": partial, "all": len(places)}
