"""Reads a text of the editor with its mask and samples; checks, describes and draws it.

A request that is wrong raises `DCPError`, whose message the page shows.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcp_dashboard.api.encoding import encode
from dcp_dashboard.library.folder import DashboardError
from dcp_dsl import (
    DCPError,
    Diagnostic,
    Form,
    Mask,
    Picture,
    Sample,
    Spec,
    SpecError,
    block_sparsity,
    check_report,
    format_source,
    sample_from_argument,
)
from dcp_dsl.language_server import complete_at, describe_at, example_call

MAX_TEXT = 200_000
MAX_TOKENS = 1 << 22
MAX_SCALE = 1 << 16
MAX_COPIES = 256
MAX_SAMPLES = 2_048


def text_of(request: Mapping[str, Any]) -> tuple[str, str]:
    """Return the text of a request and its name, where imports start; `Any`: JSON values."""
    text, home = request.get("text"), request.get("home")
    if not isinstance(text, str):
        raise DashboardError("expected a text of the language, got none")
    if len(text) > MAX_TEXT:
        raise DashboardError(
            f"expected at most {MAX_TEXT:,} characters, got {len(text):,}; check such a file with: "
            "dcpm check FILE"
        )
    # The editor counts every line end as one character, and places are counted in characters.
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    return plain, home if isinstance(home, str) else "<editor>"


def mask_of(spec: Spec, request: Mapping[str, Any]) -> Mask:
    """Return the mask that a request names, by name or call; the first one if it names none."""
    call = request.get("mask")
    if isinstance(call, str) and call.strip():
        return spec.mask(call)
    if not spec.masks:
        raise DashboardError("the text defines no mask yet; for example: mask mine = causal")
    return spec.mask(spec.masks[0])


def sample_of(spec: Spec, mask: Mask, request: Mapping[str, Any]) -> Sample:
    """Return the sample of a request, with the columns that the mask reads.

    ``request["sample"]`` is the name of one of the text, a JSON object of columns, or a number of
    tokens; ``request["scale"]`` multiplies all its lengths.
    """
    given = str(request.get("sample", "")).strip()
    scale = whole(request, "scale", 1, 1, MAX_SCALE)
    if given.startswith("{"):
        sample = sample_from_argument(spec, given)
    elif given.isdecimal():
        sample = Sample(length=int(given[:12]))  # Python reads no number of 4,301 digits
    elif given:
        sample = spec.sample(given)
    else:
        raise DashboardError(
            "expected a sample: the name of one, its columns as JSON, or a number of tokens"
        )
    # Columns that the mask does not read would be written into the plan, and could forbid scaling.
    if mask.columns <= sample.columns.keys():
        sample = Sample({c: sample.columns[c] for c in mask.columns}, sample.length)
    if scale > 1:
        sample = _scaled(sample, scale)
    if not 0 < sample.length <= MAX_TOKENS:
        raise DashboardError(f"expected 1 to {MAX_TOKENS:,} tokens, got {sample.length:,}")
    return sample


def samples_of(spec: Spec, mask: Mask, request: Mapping[str, Any]) -> tuple[Sample, ...]:
    """Return the samples of a batch: ``request["samples"]``, else copies of the one sample.

    ``request["copies"]`` is how often all of them are packed; `Any`: JSON values.
    """
    copies = whole(request, "copies", 1, 1, MAX_COPIES)
    texts = request.get("samples")
    if not isinstance(texts, list):
        found = [sample_of(spec, mask, request)]
    elif len(texts) > MAX_SAMPLES:
        raise DashboardError(
            f"expected at most {MAX_SAMPLES:,} sequences, got {len(texts):,}; plan such a batch "
            "with: dcpm plan"
        )
    else:
        found = [sample_of(spec, mask, {**request, "sample": text}) for text in texts]
    total = copies * sum(sample.length for sample in found)
    if total > MAX_TOKENS:
        raise DashboardError(
            f"expected a batch of at most {MAX_TOKENS:,} tokens, got {total:,}; plan longer ones "
            "with: dcpm plan"
        )
    return tuple(found) * copies


def _scaled(sample: Sample, scale: int) -> Sample:
    # A scaled sample has the same numbers of parts, each longer. Ids, one per token, would have to
    # become more.
    for name, column in sample.columns.items():
        if isinstance(column, list) and len(column) == sample.length and sample.length > 1:
            raise DashboardError(
                f"the column `{name}` has one number per token, so the sample cannot be scaled; "
                "write a longer one"
            )
    columns = {name: _times(column, scale) for name, column in sample.columns.items()}
    return Sample(columns, sample.length * scale)


def _times(value: Any, scale: int) -> Any:  # Any: integers in nested lists
    return [_times(v, scale) for v in value] if isinstance(value, list) else value * scale


def whole(request: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    """Return a whole number of a request; `Any`: JSON values."""
    value = request.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        shown = json.dumps(value)[:40]
        raise DashboardError(f"{name}: expected a whole number {low:,} to {high:,}, got {shown}")
    return value


def _outline_mask(spec: Spec, name: str) -> dict[str, Any]:  # Any: JSON values
    """Describe a mask: its parameters and columns, and arguments for a small sample if needed."""
    parameters = [p.name.text for p in spec.scope.masks[name].params]
    call = example_call(spec, name) if parameters else name
    found: dict[str, Any] = {
        "name": name,
        "parameters": parameters,
        "example": call.removeprefix(name),
        "columns": [],
        "wants": True,
    }
    # A mask with a parameter that has no default fails without arguments.
    for wanted, wants in ((name, False), (call, True)):
        try:
            return found | {"columns": sorted(spec.mask(wanted).columns), "wants": wants}
        except DCPError:
            continue
    return found | {"example": ""}


def outline(spec: Spec) -> dict[str, Any]:
    """List the masks and samples that a text defines; a sample that is wrong has an ``error``."""
    samples = []
    for name in spec.samples[:200]:
        try:
            sample = spec.sample(name)
        except DCPError as error:
            samples.append({"name": name, "tokens": 0, "columns": [], "error": str(error)})
        else:
            columns = sorted(sample.columns)
            samples.append({"name": name, "tokens": sample.length, "columns": columns})
    masks = [_outline_mask(spec, name) for name in spec.masks[:200]]
    return {"masks": masks, "samples": samples}


MAX_PROPOSALS = 200


def check_text(request: Mapping[str, Any]) -> dict[str, Any]:
    """Check a text: what `dcpm check` prints, with places in characters; `Any`: JSON values.

    A text without errors has its masks and samples; ``claims`` is one line on what was proved.
    """
    text, name = text_of(request)
    report = check_report(text, name)
    findings = [_finding(found, name) for found in report.diagnostics]
    answer: dict[str, Any] = {
        "schema": "dcp.edit_check/1",
        "findings": findings,
        "claims": report.summary() if report.verdicts else "",
        "is_usable": False,
    }
    try:
        spec = Spec.from_text(text, name)
    except SpecError:
        return answer
    return answer | outline(spec) | {"is_usable": True}


def _finding(found: Diagnostic, name: str) -> dict[str, Any]:
    # Places in an imported file mean nothing in the text that is shown.
    is_here, fix = found.name == name, found.fix or found.guess
    return found.to_json() | {
        "file": "" if is_here else found.name,
        "start": found.start if is_here else 0,
        "end": found.end if is_here else 0,
        "fix": asdict(fix) if fix is not None and is_here else None,
        "is_certain": found.fix is not None,
    }


def describe_word(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hover text of a place as Markdown, empty if there is none."""
    text, name = text_of(request)
    offset = whole(request, "offset", 0, 0, len(text))
    return {"markdown": describe_at(text, offset, name) or ""}


def propose(request: Mapping[str, Any]) -> dict[str, Any]:
    """Propose words for a place."""
    text, name = text_of(request)
    offset = whole(request, "offset", 0, 0, len(text))
    found = complete_at(text, offset, name)[:MAX_PROPOSALS]
    return {"proposals": [asdict(proposal) for proposal in found]}


def format_text(request: Mapping[str, Any]) -> dict[str, Any]:
    """Format the text as `dcpm fmt` does."""
    return {"text": format_source(text_of(request)[0])}


MAX_CELLS = 512
"""Cells along a side; up to so many tokens a cell is one pair."""
MAX_ROWS_COUNTED = 1 << 17
"""Most tokens of a picture whose queries without a key are counted."""
MAX_STRIPES = 512
"""Most stripes along the axes, as many as cells: of more, some would be too narrow to be seen."""


def draw_text(request: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Draw a mask of a text on a sample: columns as `api.encoding` packs them; `Any`: JSON values.

    ``share``, u1 ``[C * C]`` row by row, is 255 only if all pairs of a cell and 0 only if none is
    visible. Stripes of the kinds along the axes have start, end, kind and number.
    """
    picture = picture_of(request)
    form = picture.bound
    cell = -(-form.num_tokens // MAX_CELLS)
    stripes = picture.stripes if len(picture.stripes) <= MAX_STRIPES else ()
    kinds = list(dict.fromkeys(stripe.kind for stripe in stripes))
    header = {
        "title": picture.title,
        "tokens": form.num_tokens,
        "cell": cell,
        "pairs": form.num_pairs,
        "form": form.form,
        "empty_rows": _empty_rows(form),
        "kinds": kinds,
    }
    columns: dict[str, NDArray[Any]] = {  # Any: one dtype each
        "share": picture.shares(cell).ravel(),
        "stripe_start": np.array([s.start for s in stripes], np.uint32),
        "stripe_end": np.array([s.end for s in stripes], np.uint32),
        "stripe_kind": np.array([kinds.index(s.kind) for s in stripes], np.uint16),
        "stripe_number": np.array([s.number for s in stripes], np.uint32),
    }
    return {}, encode("dcp.edit_picture/1", header, columns)


def draw_svg(request: Mapping[str, Any]) -> dict[str, Any]:
    """Draw the picture as `dcpm show --svg` does, with the name of a file; `Any`: JSON values."""
    picture = picture_of(request)
    words = "".join(c if c.isalnum() else " " for c in picture.title).split()
    return {"svg": picture.svg(), "name": "_".join(words)[:60] + ".svg"}


def picture_of(request: Mapping[str, Any]) -> Picture:
    """Bind the mask of a request to its sample, of a batch to the first one."""
    text, name = text_of(request)
    spec = Spec.from_text(text, name)
    mask = mask_of(spec, request)
    texts = request.get("samples")
    shown = {**request, "sample": texts[0]} if isinstance(texts, list) and texts else request
    return Picture.of(mask, sample_of(spec, mask, shown))


def _empty_rows(form: Form) -> int | None:
    """Count queries that see no key; ``None`` where that takes long."""
    if form.num_tokens > MAX_ROWS_COUNTED:
        return None
    try:
        # One block per query, one for all keys: a query that sees none has no block in its row.
        blocks = block_sparsity([form], 1, form.num_tokens)
    except DCPError:  # too slow for a form of this kind
        return None
    return int((np.diff(blocks.row_ptr) == 0).sum())
