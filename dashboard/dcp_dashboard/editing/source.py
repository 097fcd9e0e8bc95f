"""Reads text, mask and samples of a request from the editor, and checks their bounds.

A request that is wrong raises `DCPError`, whose message the page shows.
"""

import json
from collections.abc import Mapping
from typing import Any

from dcp_dashboard.library.folder import DashboardError
from dcp_dsl import DCPError, Mask, Sample, Spec, sample_from_argument
from dcp_dsl.language_server import example_call

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
    # One kind of line end: places count characters.
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
        sample = Sample(length=int(given[:12]))
    elif given:
        sample = spec.sample(given)
    else:
        raise DashboardError(
            "expected a sample: the name of one, its columns as JSON, or a number of tokens"
        )
    if mask.columns <= sample.columns.keys():
        sample = Sample({c: sample.columns[c] for c in mask.columns}, sample.length)
    if scale > 1:
        sample = _scaled(sample, scale)
    if not 0 < sample.length <= MAX_TOKENS:
        raise DashboardError(f"expected 1 to {MAX_TOKENS:,} tokens, got {sample.length:,}")
    return sample


def samples_of(spec: Spec, mask: Mask, request: Mapping[str, Any]) -> tuple[Sample, ...]:
    """Return the samples of a batch: ``request["samples"]``, else copies of the one sample.

    ``request["copies"]`` packs all of them so often; `Any`: JSON values.
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
    """Return a whole number of a request; `Any`: JSON values.

    Raises:
        DashboardError: if it is none, or out of its range.

    >>> whole({"nodes": 4}, "nodes", 1, 1, 64), whole({}, "nodes", 1, 1, 64)
    (4, 1)
    """
    value = request.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        shown = json.dumps(value)[:40]
        raise DashboardError(f"{name}: expected a whole number {low:,} to {high:,}, got {shown}")
    return value


def _outline_mask(spec: Spec, name: str) -> dict[str, Any]:  # Any: JSON values
    """Describe a mask: parameters, columns, arguments for a small sample, whether it needs some."""
    parameters = [p.name.text for p in spec.scope.masks[name].params]
    call = example_call(spec, name) if parameters else name
    found: dict[str, Any] = {
        "name": name,
        "parameters": parameters,
        "example": call.removeprefix(name),
        "columns": [],
        "wants": True,
    }
    # Without arguments a mask fails that has a parameter without a default.
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
