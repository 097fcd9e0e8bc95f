"""Masks restricted to the first tokens of a sample, for rows longer than the token budget."""

from dataclasses import replace

import numpy as np

from dcp_dsl import Form, Slabs
from dcp_dsl.forms import Parts, RegionPart, Rows


def truncate(form: Form, num_tokens: int) -> Form:
    """Restrict an exact mask to its first rows and keys, in the form it has.

    >>> truncate(Rows(3, [0, 1, 2, 3], [0, 1, 0], [3, 3, 1]), 2).tile(0, 2, 0, 2).tolist()
    [[True, True], [False, True]]
    """
    if isinstance(form, Slabs | Rows):
        return _truncate_region(form, num_tokens)
    assert isinstance(form, Parts), f"no form: {type(form).__name__}"
    cut = (  # labels and predicates are told where to end when they are asked
        replace(part, region=_truncate_region(part.region, num_tokens))
        if isinstance(part, RegionPart)
        else part
        for part in form.parts
    )
    return Parts(num_tokens, tuple(cut))


def _truncate_region(region: Slabs | Rows, num_tokens: int) -> Slabs | Rows:
    if isinstance(region, Slabs):
        return truncate_slabs(region, num_tokens)
    return _truncate_rows(region, num_tokens)


def _truncate_rows(rows: Rows, num_tokens: int) -> Rows:
    row_ptr, start, end = rows.row_ranges(0, num_tokens)
    kept = start < num_tokens
    counts = np.append(0, np.cumsum(kept))[row_ptr]
    return Rows(num_tokens, counts, start[kept], np.minimum(end[kept], num_tokens))


def truncate_slabs(slabs: Slabs, num_tokens: int) -> Slabs:
    """Restrict a mask to its first rows and keys.

    A slab whose moving end passes the border is cut where it does; O(slabs).

    >>> causal = Slabs(4, [0], [4], [0], [1], [0], [1])
    >>> truncate_slabs(causal, 3).num_pairs
    6
    """
    parts = []
    for q0, q1, k0, k1, a, b in slabs.table().tolist():
        stop = min(q1, num_tokens)
        if a:  # rows whose first key is inside
            stop = min(stop, q0 + max(0, num_tokens - k0))
        if stop <= q0 or k0 >= num_tokens:
            continue
        inside = stop if k1 + b * (stop - 1 - q0) <= num_tokens else q0
        if b and inside == q0:
            inside = q0 + max(0, num_tokens - k1 + 1)
        inside = min(max(inside, q0), stop)
        if inside > q0:
            parts.append((q0, inside, k0, k1, a, b))
        if inside < stop:  # from here on the last key is the border
            parts.append((inside, stop, k0 + a * (inside - q0), num_tokens, a, 0))
    parts.sort(key=lambda slab: (slab[0], slab[2]))
    table = np.asarray(parts, np.int64).reshape(-1, 6)
    ends, slopes = table[:, :4].T, table[:, 4:].T.astype(np.uint8)
    return Slabs(num_tokens, *ends, *slopes)
