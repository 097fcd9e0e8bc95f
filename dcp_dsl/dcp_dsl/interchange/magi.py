"""Write slices with slanted ends: `q_ranges`, `k_ranges`, `attn_type_map` of MagiAttention.

A slice with R rows and K keys of type FULL sees everything; CAUSAL, aligned at the bottom right,
lets row r see its keys before ``K - R + r + 1``; INV_CAUSAL, aligned at the top left, those from r
on; BI_CAUSAL is both. A slab of the normal form is exactly one slice: its two slopes are the type.

Source: MagiAttention, documentation of flex_flash_attn_func.
"""

from enum import IntEnum

import numpy as np

from dcp_dsl.arrays import Ints
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
    """Read slices; those without a visible pair are dropped.

    Raises:
        ExchangeError: X303 if slices overlap: softmax would count the pair twice. Without a code
            for ranges outside the tokens, reversed ranges and unknown types.
    """
    q0, q1, k0, k1, kind = _checked(export)
    rows, keys = q1 - q0, k1 - k0
    a, b = kind >> 1, kind & 1
    # First row that sees a key, and the row behind the last one: causal types may lose some.
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
    if ((kind < 0) | (kind > 3)).any():
        index = int(np.argmax((kind < 0) | (kind > 3)))
        raise ExchangeError(
            f"magi: expected types 0 to 3 in `attn_type_map`, got {kind[index]} at {index}"
        )
    return (*q_ranges.T, *k_ranges.T, kind)


def _overlap(columns: tuple[Ints, ...], index: Ints, q: int, k: int) -> str:
    q0, q1, k0, k1, a, b = columns
    down = q - q0
    holds = (q0 <= q) & (q < q1) & (k0 + a * down <= k) & (k < k1 + b * down)
    first, second = index[holds][:2].tolist()
    return (
        f"magi: slices {first} and {second} both hold query {q} and key {k}: softmax would count "
        "that pair twice; cut one of them so that they do not overlap"
    )
