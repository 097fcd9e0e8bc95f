"""Masks of a plan file as dense matrices, written from docs/dcpplan.md alone."""

import numpy as np


def need(holds, sentence):
    if not holds:
        raise ValueError(sentence)


def paint_slabs(mask, values):
    """Set the pairs of slabs, six values each; a pair that is set twice breaks "disjoint"."""
    for q_start, q_end, kv_start, kv_end, *slopes in np.reshape(values, (-1, 6)).tolist():
        need(0 <= q_start < q_end <= len(mask) and {*slopes} <= {0, 1}, "slabs: ranges, slopes")
        for at in range(q_end - q_start):
            paint(mask, q_start + at, kv_start + slopes[0] * at, kv_end + slopes[1] * at)


def paint(mask, q, start, end):
    need(0 <= start < end <= len(mask), "mask: keys of the sequence")
    need(not mask[q, start:end].any(), "mask: disjoint")
    mask[q, start:end] = True


def paint_rows(mask, items):
    counts, total = items[: len(mask)], sum(items[: len(mask)])
    need(min(counts) >= 0 and len(items) == len(mask) + 2 * total, "rows: items")
    queries = np.repeat(np.arange(len(mask)), counts)
    last = {}
    for q, start, end in zip(queries, *np.reshape(items[len(mask) :], (2, -1)), strict=True):
        need(last.get(q, -1) < start, "rows: rising ranges apart")
        paint(mask, q, start, end)
        last[q] = end


def paint_strided(mask, items):
    tokens, at, seen = np.arange(len(mask)), 1, []
    need(2 <= items[0] <= 65536, "strided: period")
    while at < len(items):
        remainders, slabs = items[at : at + 2]
        middle, end = at + 2 + remainders, at + 2 + remainders + 6 * slabs
        need(min(remainders, slabs) >= 0 and end <= len(items), "strided: parts")
        part = np.zeros_like(mask)
        paint_slabs(part, items[middle:end])
        part &= np.isin(np.subtract.outer(tokens, tokens) % items[0], items[at + 2 : middle])
        seen += items[at + 2 : middle]
        mask |= part
        at = end
    need(len({*seen}) == len(seen) and {*seen} <= {*range(items[0])}, "strided: remainders")


PAINT = {"slabs": paint_slabs, "rows": paint_rows, "strided": paint_strided}
