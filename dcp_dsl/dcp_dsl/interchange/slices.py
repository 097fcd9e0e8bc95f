"""Write slabs one by one: slices of MagiAttention, calls of a plain flash attention kernel.

A slice is a rectangle of R rows and K keys with a type. FULL shows all pairs. CAUSAL, aligned at
the bottom right, shows row r its keys before ``K - R + r + 1``; INV_CAUSAL, aligned at the top
left, those from r on; BI_CAUSAL is both. A slab of the normal form is exactly one slice: its two
slopes are the type.
Source: MagiAttention, documentation of flex_flash_attn_func.

A slab is also one segment of a variable-length call: rectangular, or causal aligned at the bottom
right, and where its start moves a row sees a limited number of keys back from its diagonal, the
window of FlashAttention. A call has one window, so segments are grouped by it; causal segments that
it does not cut join them. Within one call every row stands in at most one segment; rows that need
several calls merge their outputs by log-sum-exp.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from dcp_dsl.arrays import Indices, Ints, expand
from dcp_dsl.errors import ExchangeError
from dcp_dsl.forms.conversion import slabs_of
from dcp_dsl.forms.slabs import Slabs
from dcp_dsl.interchange.export import Export
from dcp_dsl.symbolic.piecewise import TooManyPieces
from dcp_dsl.symbolic.region import Region


class SliceType(IntEnum):
    """Values of `attn_type_map`; bit 0 says that the end moves, bit 1 that the start does."""

    FULL = 0
    CAUSAL = 1
    INV_CAUSAL = 2
    BI_CAUSAL = 3


def to_magi(slabs: Slabs) -> Export:
    """Write `q_ranges`, `k_ranges` (int32 ``[N, 2]``) and `attn_type_map` (int32 ``[N]``).

    Slices never overlap; every mask can be written.
    """
    q0, q1, k0, k1, a, b = slabs.table().T
    arrays = {
        "q_ranges": np.column_stack([q0, q1]),
        "k_ranges": np.column_stack([k0, k1 + b * (q1 - q0 - 1)]),
        "attn_type_map": 2 * a + b,
    }
    return Export("magi", slabs.num_tokens, {k: v.astype(np.int32) for k, v in arrays.items()})


def from_magi(export: Export) -> Slabs:
    """Read slices; those without a visible pair are dropped."""
    q0, q1, k0, k1, kind = _checked(export)
    rows, keys = q1 - q0, k1 - k0
    a, b = kind >> 1, kind & 1
    # With more rows than keys, the first rows of CAUSAL and the last of INV_CAUSAL see nothing, and
    # no row of BI_CAUSAL sees anything. From `skip` to `stop` every row sees a key.
    skip = np.where(kind == SliceType.CAUSAL, np.maximum(rows - keys, 0), 0)
    stop = np.where(kind == SliceType.INV_CAUSAL, np.minimum(rows, keys), rows)
    stop = np.where((kind == SliceType.BI_CAUSAL) & (keys < rows), 0, stop)
    first_end = np.where(b == 1, k0 + keys - rows + skip + 1, k1)
    kept = (skip < stop) & (keys > 0)
    columns = tuple(c[kept] for c in (q0 + skip, q0 + stop, k0 + a * skip, first_end, a, b))
    try:
        once, twice = Region.covered(export.num_tokens, columns)
    except TooManyPieces:
        raise ExchangeError(
            f"magi: {len(q0)} slices fall into more pieces than can be compared; import fewer",
            "X304",
        ) from None
    if len(twice.q_start):
        q, k = int(twice.q_start[0]), int(twice.kv_start[0])
        raise ExchangeError(_overlap(columns, np.flatnonzero(kept), q, k), "X303")
    return slabs_of(once)


def _checked(export: Export) -> tuple[Ints, ...]:
    """Return first and end rows, first and end keys, and types of slices, all in range."""
    n = export.num_tokens
    q_ranges = export.integers("q_ranges", None, 2)
    k_ranges = export.integers("k_ranges", len(q_ranges), 2)
    kind = export.integers("attn_type_map", len(q_ranges))
    for name, ranges in (("q_ranges", q_ranges), ("k_ranges", k_ranges)):
        wrong = (ranges[:, 0] < 0) | (ranges[:, 0] > ranges[:, 1]) | (ranges[:, 1] > n)
        if wrong.any():
            index = int(np.argmax(wrong))
            raise ExchangeError(
                f"magi: expected ranges within {n} tokens, got {ranges[index].tolist()} in "
                f"`{name}` at {index}"
            )
    unknown = (kind < 0) | (kind > 3)
    if unknown.any():
        index = int(np.argmax(unknown))
        raise ExchangeError(
            f"magi: expected types 0 to 3 in `attn_type_map`, got {kind[index]} at {index}"
        )
    return (*q_ranges.T, *k_ranges.T, kind)


def _overlap(columns: tuple[Ints, ...], index: Ints, q: int, k: int) -> str:
    """Write the message for a pair that two slices hold; `index` numbers slices as in the file."""
    q0, q1, k0, k1, a, b = columns
    down = q - q0
    holds = (q0 <= q) & (q < q1) & (k0 + a * down <= k) & (k < k1 + b * down)
    first, second = index[holds][:2].tolist()
    return (
        f"magi: slices {first} and {second} both hold query {q} and key {k}: softmax would count "
        "that pair twice; cut one of them so that they do not overlap"
    )


MAX_INDICES = 2**28  # rows and keys that all calls gather; 1 GiB


@dataclass(frozen=True, slots=True, eq=False)
class VarlenCall:
    """A call of a variable-length flash attention kernel.

    Attributes:
        causal: whether every segment is causal, aligned at the bottom right.
        window: keys that a row sees before that on its diagonal, which is aligned likewise; -1 for
            all. It is the left one of FlashAttention's `window_size`.
        q_idx, kv_idx: int32, the tokens to gather; results belong to the rows `q_idx`.
        cu_seqlens_q, cu_seqlens_k: int32 ``[S+1]``.

    To compute attention with `calls`::

        for call in calls:
            part = flash_varlen(q[call.q_idx], k[call.kv_idx], v[call.kv_idx], call.cu_seqlens_q,
                                call.cu_seqlens_k, causal=call.causal,
                                window_size=(call.window, -1))           # out and lse
            merge(out, lse, call.q_idx, *part)                           # by log-sum-exp
    """

    causal: bool
    window: int
    q_idx: Indices
    kv_idx: Indices
    cu_seqlens_q: Indices
    cu_seqlens_k: Indices


class _Segments(NamedTuple):
    """Segments by first row and first key, int64 each."""

    q_first: Ints
    rows: Ints
    k_first: Ints
    keys: Ints
    causal: Ints  # 0 or 1
    window: Ints  # as `VarlenCall.window`

    def select(self, index: Ints) -> "_Segments":
        return _Segments(*(column[index] for column in self))


def varlen_calls(slabs: Slabs, max_segments: int | None = None) -> tuple[VarlenCall, ...]:
    """Return calls that together see exactly the pairs of a mask, each once.

    Every mask can be written. A row that sees nothing is in no call: its output is 0.

    Args:
        slabs: the mask.
        max_segments: of a call; kernels take memory for whole tiles of each in backward.

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
    kinds = zip(segments.window.tolist(), segments.causal.tolist(), strict=True)
    for window, causal in sorted(set(kinds)):
        chosen = (segments.causal == causal) & (segments.window == window)
        group = segments.select(np.flatnonzero(chosen))
        # Sorted by their first rows, intervals need the fewest calls in first fit.
        group = group.select(np.lexsort((group.k_first, group.q_first)))
        which = _first_fit(group.q_first, group.rows)
        for number in range(int(which.max(initial=-1)) + 1):
            index = np.flatnonzero(which == number)
            step = max_segments or len(index)
            calls += [
                _call(group.select(index[first : first + step]), bool(causal), window)
                for first in range(0, len(index), step)
            ]
    return tuple(calls)


def to_varlen(slabs: Slabs) -> Export:
    """Write the arrays of `varlen_calls` as ``N.q_idx`` and so on, and their number as `calls`."""
    calls = varlen_calls(slabs)
    names = ("q_idx", "kv_idx", "cu_seqlens_q", "cu_seqlens_k")
    arrays = {f"{i}.{name}": getattr(call, name) for i, call in enumerate(calls) for name in names}
    values: dict[str, int | bool | str] = {"calls": len(calls)}
    for i, call in enumerate(calls):
        values |= {f"{i}.causal": call.causal, f"{i}.window": call.window}
    return Export("varlen", slabs.num_tokens, arrays, values)


def _segments(slabs: Slabs) -> _Segments:
    """Return a segment per slab, or per two where a window continues a causal segment."""
    q0, q1, k0, k1, a, b = slabs.table().T
    rows = q1 - q0
    keys = k1 + b * (rows - 1) - k0
    # A single row sees all its keys either way; as causal it shares a call with triangles.
    is_single = rows == 1
    window = np.where((a == 1) & ~is_single, keys - rows, -1)
    found = _Segments(q0, rows, k0, keys, ((b == 1) | is_single).astype(np.int64), window)
    return _widened(_joined(found))


def _joined(segments: _Segments) -> _Segments:
    """Join causal segments with the windows that continue their diagonal: a sliding window is one.

    The first rows of a sliding window see all keys so far, so they are a slab of their own.
    """
    q_first, rows, k_first, keys, causal, window = segments
    heads = np.flatnonzero((causal == 1) & (window == -1))
    tails = np.flatnonzero((causal == 1) & (window >= 0))
    # The next row of a head, and the key on its diagonal, are those of the first row of a tail.
    end = np.stack([q_first[heads] + rows[heads], k_first[heads] + keys[heads]])
    begin = np.stack([q_first[tails], k_first[tails] + window[tails]])
    size = 1 + int(max(end.max(initial=0), begin.max(initial=0)))
    _, head, tail = np.intersect1d(
        end[0] * size + end[1], begin[0] * size + begin[1], return_indices=True
    )
    head, tail = heads[head], tails[tail]
    # The window cuts no row of the head, and its rows see no key before those of the head.
    fits = (keys[head] <= window[tail] + 1) & (k_first[head] <= k_first[tail])
    head, tail = head[fits], tail[fits]
    rows, keys, window = rows.copy(), keys.copy(), window.copy()
    keys[head] = k_first[tail] + keys[tail] - k_first[head]
    rows[head] += rows[tail]
    window[head] = window[tail]
    joined = _Segments(q_first, rows, k_first, keys, causal, window)
    return joined.select(np.setdiff1d(np.arange(len(rows)), tail))


def _widened(segments: _Segments) -> _Segments:
    """Move causal segments without a window to the widest one, if it cuts none of their rows."""
    widest = int(segments.window[segments.causal == 1].max(initial=-1))
    is_uncut = (segments.causal == 1) & (segments.window == -1) & (segments.keys <= widest + 1)
    return segments._replace(window=np.where(is_uncut, widest, segments.window))


def _first_fit(start: Ints, length: Ints) -> Ints:
    """Return for each segment the first call that has none of its rows; they come by first row."""
    ends: list[int] = []
    which = np.empty(len(start), np.int64)
    for i, (a, n) in enumerate(zip(start.tolist(), length.tolist(), strict=True)):
        call = next((c for c, end in enumerate(ends) if end <= a), len(ends))
        ends[call : call + 1] = [a + n]
        which[i] = call
    return which


def _call(segments: _Segments, causal: bool, window: int) -> VarlenCall:
    def gather(first: Ints, size: Ints) -> Indices:
        segment, place = expand(0, size)
        return (first[segment] + place).astype(np.int32)

    def cumulate(size: Ints) -> Indices:
        return np.concatenate([[0], np.cumsum(size)]).astype(np.int32)

    return VarlenCall(
        causal,
        window,
        gather(segments.q_first, segments.rows),
        gather(segments.k_first, segments.keys),
        cumulate(segments.rows),
        cumulate(segments.keys),
    )
