"""The live picture: the visible share of every cell of a mask, and the kinds of its tokens."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcp_dashboard.api.columns import encode
from dcp_dashboard.editing.source import mask_of, sample_of, text_of
from dcp_dsl import DCPError, Form, Picture, Spec, block_sparsity

MAX_CELLS = 512
"""Cells along a side; up to so many tokens a cell is one pair."""
MAX_ROWS_COUNTED = 1 << 17
MAX_STRIPES = 512


def draw_text(request: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Draw a mask of a text on a sample; `Any`: JSON values.

    Returns:
        An empty object, and columns as `api.columns` packs them: ``share``, u1 ``[C * C]``
        row by row, the visible pairs of a cell over all of its pairs, 255 only if all and 0 only if
        none is visible; stripes of the kinds along the axes as ``stripe_start``, ``stripe_end``,
        ``stripe_kind``, ``stripe_number``.

    Raises:
        DCPError: if mask or sample are not right.
    """
    picture = picture_of(request)
    form = picture.bound
    cell = -(-form.num_tokens // MAX_CELLS)
    stripes = picture.stripes[:MAX_STRIPES] if len(picture.stripes) <= MAX_STRIPES else ()
    kinds = list(dict.fromkeys(stripe.kind for stripe in stripes))
    header = {
        "title": picture.title,
        "tokens": form.num_tokens,
        "cell": cell,
        "pairs": form.num_pairs,
        "form": form.form,
        "empty_rows": count_empty_rows(form),
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


def count_empty_rows(form: Form) -> int | None:
    """Count queries that see no key; ``None`` where that takes long."""
    if form.num_tokens > MAX_ROWS_COUNTED:
        return None
    try:
        blocks = block_sparsity([form], 1, form.num_tokens)
    except DCPError:  # a form that is counted slowly at such blocks refuses it
        return None
    return int((np.diff(blocks.row_ptr) == 0).sum())
