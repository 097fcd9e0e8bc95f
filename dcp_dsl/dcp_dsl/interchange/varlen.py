"""Plan calls of a plain flash attention kernel: gathered rows, ``cu_seqlens``, a causal flag.

A slab whose start stands still is one segment of a variable-length call: rectangular, or causal
aligned at the bottom right. A slab whose start moves hides a triangle at its lower left; read with
rows and keys in reverse order that is a causal segment too, and attention does not mind the order,
because rows and keys are gathered by index anyway. A window is cut into runs of rows no longer than
itself, each a reversed and an ordinary triangle.

Within one call every row stands in at most one segment; rows that need several calls merge their
outputs by log-sum-exp.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dcp_dsl.arrays import Indices, Ints
from dcp_dsl.errors import ExchangeError
from dcp_dsl.forms.slabs import Slabs
from dcp_dsl.interchange.export import Export
from dcp_dsl.symbolic.piecewise import expand

MAX_INDICES = 2**28


@dataclass(frozen=True, slots=True, eq=False)
class VarlenCall:
    """A call of a variable-length flash attention kernel.

    Attributes:
        causal: whether every segment is causal, aligned at the bottom right.
        q_idx, kv_idx: int32, the tokens to gather; results belong to the rows `q_idx`.
        cu_seqlens_q, cu_seqlens_k: int32 ``[S+1]``.

    To compute attention with `calls`::

        for call in calls:
            part = flash_varlen(q[call.q_idx], k[call.kv_idx], v[call.kv_idx], call.cu_seqlens_q,
                                call.cu_seqlens_k, causal=call.causal)   # out and lse
            merge(out, lse, call.q_idx, *part)                           # by log-sum-exp
    """

    causal: bool
    q_idx: Indices
    kv_idx: Indices
    cu_seqlens_q: Indices
    cu_seqlens_k: Indices


class _Segments(NamedTuple):
    """Segments by first row and first key, int64 each; reversed ones count down from there."""

    q_first: Ints
    rows: Ints
    k_first: Ints
    keys: Ints
    step: Ints  # 1 or -1
    causal: Ints  # 0 or 1

    def select(self, index: Ints) -> "_Segments":
        return _Segments(*(column[index] for column in self))


def varlen_calls(slabs: Slabs) -> tuple[VarlenCall, ...]:
    """Return calls that together see exactly the pairs of a mask, each once.

    Every mask can be written. A row that sees nothing is in no call: its output is 0.

    Raises:
        ExchangeError: X304 if more than `MAX_INDICES` rows and keys would have to be gathered.

    >>> (call,) = varlen_calls(Slabs(4, [0], [4], [0], [1], [0], [1]))
    >>> call.causal, call.cu_seqlens_q.tolist()
    (True, [0, 4])
    """
    segments = _segments(slabs)
    total = int(segments.rows.sum() + segments.keys.sum())
    if total > MAX_INDICES:
        raise ExchangeError(
            f"varlen: {len(segments.rows):_} segments gather {total:_} rows and keys; at most "
            f"{MAX_INDICES:_} are written, use `flex`, `flash4` or `magi`",
            "X304",
        )
    calls = []
    for causal in (True, False):
        chosen = segments.select(np.flatnonzero(segments.causal == causal))
        chosen = chosen.select(np.lexsort((chosen.k_first, _top(chosen))))
        which = _first_fit(_top(chosen), chosen.rows)
        calls += [
            _call(chosen.select(np.flatnonzero(which == number)), causal)
            for number in range(int(which.max(initial=-1)) + 1)
        ]
    return tuple(calls)


def to_varlen(slabs: Slabs) -> Export:
    """Write the arrays of `varlen_calls` as ``N.q_idx`` and so on, and their number as `calls`."""
    calls = varlen_calls(slabs)
    names = ("q_idx", "kv_idx", "cu_seqlens_q", "cu_seqlens_k")
    arrays = {f"{i}.{name}": getattr(call, name) for i, call in enumerate(calls) for name in names}
    values: dict[str, int | bool | str] = {f"{i}.causal": c.causal for i, c in enumerate(calls)}
    return Export("varlen", slabs.num_tokens, arrays, {"calls": len(calls), **values})


def _segments(slabs: Slabs) -> _Segments:
    q0, q1, k0, k1, a, b = _cut_windows(slabs).T
    rows = q1 - q0
    is_window = (a == 1) & (b == 1) & (rows > 1)
    still, left = (a == 0) | (rows == 1), (a == 1) & (rows > 1)
    up, down = np.ones(len(q0), np.int64), np.full(len(q0), -1)
    # A window's left part ends before the last key of its first row; the right part begins there.
    left_end, right_start = np.where(is_window, k1 - 1, k1), np.where(is_window, k1 - 1, k0)
    last = k1 + b * (rows - 1)
    # A single row sees all its keys either way; as causal it shares a call with triangles.
    bent = ((b == 1) | (rows == 1)).astype(np.int64)
    forward = _Segments(q0, rows, right_start, last - right_start, up, bent)
    backward = _Segments(q1 - 1, rows, left_end - 1, left_end - k0, down, left.astype(np.int64))
    parts = forward.select(np.flatnonzero(still | is_window)), backward.select(np.flatnonzero(left))
    return _Segments(*(np.concatenate(group) for group in zip(*parts, strict=True)))


def _cut_windows(slabs: Slabs) -> Ints:
    """Cut slabs with two moving ends into runs of fewer rows than they have keys per row."""
    table = slabs.table()
    rows, width = table[:, 1] - table[:, 0], table[:, 3] - table[:, 2]
    is_window = (table[:, 4] == 1) & (table[:, 5] == 1)
    height = np.where(is_window, np.maximum(width - 1, 1), np.maximum(rows, 1))
    counts = -(-rows // height)
    slab, number = expand(np.zeros(len(table), np.int64), counts)
    down, cut = number * height[slab], table[slab]
    cut[:, 0] += down
    cut[:, 1] = np.minimum(cut[:, 0] + height[slab], cut[:, 1])
    cut[:, 2] += down * cut[:, 4]
    cut[:, 3] += down * cut[:, 5]
    return cut


def _top(segments: _Segments) -> Ints:
    return np.where(segments.step > 0, segments.q_first, segments.q_first - segments.rows + 1)


def _first_fit(start: Ints, length: Ints) -> Ints:
    """Return the first call whose rows each segment does not meet; segments come by first row."""
    ends: list[int] = []
    which = np.empty(len(start), np.int64)
    for i, (a, n) in enumerate(zip(start.tolist(), length.tolist(), strict=True)):
        call = next((c for c, end in enumerate(ends) if end <= a), len(ends))
        ends[call : call + 1] = [a + n]
        which[i] = call
    return which


def _call(segments: _Segments, causal: bool) -> VarlenCall:
    def gather(first: Ints, size: Ints) -> Indices:
        segment, place = expand(np.zeros(len(size), np.int64), size)
        return (first[segment] + place * segments.step[segment]).astype(np.int32)

    def cumulate(size: Ints) -> Indices:
        return np.concatenate([[0], np.cumsum(size)]).astype(np.int32)

    return VarlenCall(
        bool(causal),
        gather(segments.q_first, segments.rows),
        gather(segments.k_first, segments.keys),
        cumulate(segments.rows),
        cumulate(segments.keys),
    )
