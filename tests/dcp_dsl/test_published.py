"""Published definitions, ported pair by pair, over random sizes.

Sources: transformers.masking_utils (causal_mask_function, sliding_window_overlay, chunked_overlay,
packed_sequence_mask_function, blockwise_overlay), BD3-LM's block_diff_mask, NATTEN's neighbourhood,
FlashMask's random eviction, Sparse Transformer's strided attention.
"""

from random import Random

import numpy as np
import pytest

from dcp_dsl import Sample, Spec

SPEC = Spec.from_text("""
segment word = ids(sequence_ids)
segment image = ids(image_ids)
segment half = noisy[len // 2] clean[..]
token evict
mask hf_sliding(w: tokens) = causal and k > q - w
mask hf_chunked(c: tokens) = causal and q // c == k // c
mask hf_packed = causal and same(word)
mask hf_images = causal or same(image)
mask bd3(b: tokens) =
  same(t) or (q in noisy and k in clean and k.t < q.t) or (q in clean and k in clean and k.t <= q.t)
  where t = every b in half
mask natten(w: tokens, h: tokens, r: int) =
  abs(clamp(q // w, r, h - 1 - r) - k // w) <= r and abs(clamp(q % w, r, w - 1 - r) - k % w) <= r
mask evicted = causal and q < k.evict
mask strided(s: tokens) = causal and (q - k < s or (q - k) % s == 0)
""")


def bd3(q, k, n, b):
    half = n // 2
    x0_q, x0_k = q >= half, k >= half
    block_q, block_k = (np.where(x, t - half, t) // b for x, t in ((x0_q, q), (x0_k, k)))
    diagonal = (block_q == block_k) & (x0_q == x0_k)
    offset = (block_q > block_k) & x0_k & ~x0_q
    return diagonal | offset | ((block_q >= block_k) & x0_k & x0_q)


def runs(rng, length, largest):
    found = []
    while len(found) < length:
        found += [rng.randint(-1, largest)] * rng.randint(1, 7)
    return found[:length]


def natten(q, k, w, h, r):
    y, x = q // w, q % w
    top = np.clip(y, r, h - 1 - r) - r
    left = np.clip(x, r, w - 1 - r) - r
    rows = (k // w >= top) & (k // w <= top + 2 * r)
    return rows & (k % w >= left) & (k % w <= left + 2 * r)


def draw(rng):
    """Return (call, length, columns, the published rule) of every mask at random sizes."""
    n, c = rng.randint(1, 90), rng.randint(1, 20)
    ids = sorted(runs(rng, n, 4))
    images = np.array(runs(rng, n, 3))
    evict = [rng.randint(0, n + 4) for _ in range(n)]
    r = rng.randint(0, 2)
    w, h = rng.randint(2 * r + 1, 9), rng.randint(2 * r + 1, 9)
    same_word = np.array([i if i >= 0 else -2 - t for t, i in enumerate(ids)])
    yield f"hf_sliding({c})", n, {}, lambda q, k: (k <= q) & (k > q - c)
    yield f"hf_chunked({c})", n, {}, lambda q, k: (k <= q) & (k // c == q // c)
    yield (
        "hf_packed", n, {"sequence_ids": ids},
        lambda q, k: (k <= q) & (same_word[q] == same_word[k]) & (same_word[q] >= 0),
    )  # fmt: skip
    yield (
        "hf_images", n, {"image_ids": images.tolist()},
        lambda q, k: (k <= q) | ((images[q] == images[k]) & (images[q] >= 0)),
    )  # fmt: skip
    yield f"bd3({c})", 2 * n, {}, lambda q, k: bd3(q, k, 2 * n, c)
    yield f"natten({w}, {h}, {r})", w * h, {}, lambda q, k: natten(q, k, w, h, r)
    yield (
        "evicted", n, {"evict": evict}, lambda q, k: (k <= q) & (q < np.array(evict)[k]),
    )  # fmt: skip
    yield f"strided({c})", n, {}, lambda q, k: (k <= q) & ((q - k < c) | ((q - k) % c == 0))


@pytest.mark.parametrize("seed", range(25))
def test_masks_equal_their_published_definitions(seed):
    for call, length, columns, rule in draw(Random(seed)):
        q, k = np.arange(length)[:, None], np.arange(length)[None, :]
        form = SPEC.mask(call).compile(Sample(columns, length))
        expected = np.broadcast_to(rule(q, k), (length, length))
        assert np.array_equal(form.tile(0, length, 0, length), expected), (call, length)
        assert form.num_pairs == expected.sum()
