"""Masks of attention-gym, FlashMask and MagiAttention: our texts against definitions in numpy.

Each definition is written from what the other project says about its mask, token by token, and
shares nothing with the language. `UNSAYABLE` lists their masks that have no text, and why.
"""

from pathlib import Path
from random import Random

import numpy as np
import pytest

from dcp_dsl import Sample, load

PORTS = Path(__file__).parents[1] / "fixtures" / "ports"
SPECS = {path.stem: load(path) for path in sorted(PORTS.glob("*.dcpm"))}
UNSAYABLE = {
    "attention-gym flamingo: vision cross attention":
        "queries (text) and keys (images) are two sequences; a text has one layout for both",
    "MagiAttention slices with as many keys as another range has queries, such as bi-causal":
        "causal counts from the last key there, which differs from the diagonal only where a "
        "query range and a key range have two lengths",
}  # fmt: skip


def lists(rng, parts, least=1):
    return [rng.randint(least, 9) for _ in range(parts)]


def number_of(lengths):
    """The number of the part each token lies in."""
    return np.repeat(np.arange(len(lengths)), lengths)


def ids(rng, n):
    """Numbers that grow now and then, as collators of packed rows write them."""
    return np.cumsum([rng.random() < 0.2 for _ in range(n)])


# ---- attention-gym -------------------------------------------------------------------------------


def window_2d(x, y, w, h, kw, kh):
    """A kernel around every query, moved inside the canvas."""
    centre_x = np.minimum(np.maximum(x, kw // 2), w - 1 - kw // 2)
    centre_y = np.minimum(np.maximum(y, kh // 2), h - 1 - kh // 2)
    near_x = np.abs(centre_x[:, None] - x[None, :]) <= kw // 2
    return near_x & (np.abs(centre_y[:, None] - y[None, :]) <= kh // 2)


def morton(n):
    """Coordinates of the points of the Z-order curve, bit by bit."""
    x, y = np.zeros(n, int), np.zeros(n, int)
    for t in range(n):
        for bit in range(8):
            x[t] |= (t >> 2 * bit & 1) << bit
            y[t] |= (t >> 2 * bit + 1 & 1) << bit
    return x, y


def tiled(w, h, tw, th):
    """Coordinates of the points of a canvas that is stored tile by tile."""
    points = [
        (left + i, top + j)
        for top in range(0, h, th) for left in range(0, w, tw)
        for j in range(th) for i in range(tw)
    ]  # fmt: skip
    return np.array(points).T


def tile_windows(canvas, kernel):
    """Return the tiles that each tile sees: `kernel` around it, moved inside the canvas."""
    seen = np.ones((1, 1), bool)
    for size, width in zip(canvas, kernel, strict=True):
        before, behind = width // 2, width - 1 - width // 2
        side = np.zeros((size, size), bool)
        for tile in range(size):
            centre = min(max(tile, before), size - 1 - behind)
            side[tile, max(0, centre - before) : centre + behind + 1] = True
        seen = np.kron(seen, side).astype(bool)
    return seen


def gym(rng):
    n = rng.randint(1, 60)
    q, k = np.arange(n)[:, None], np.arange(n)[None, :]
    w, step, sink = rng.randint(0, 12), rng.randint(1, 5), rng.randint(0, 6)
    yield "gym_causal", n, {}, q >= k
    yield f"gym_sliding_window({w})", n, {}, (q >= k) & (q - k <= w)
    prefix = rng.randint(0, n)
    yield "gym_prefix_lm", n, {"prefix_len": prefix}, (k < prefix) | (q >= k)
    doc = ids(rng, n)
    yield (
        "gym_document_causal", n, {"document_id": doc.tolist()},
        (doc[:, None] == doc[None, :]) & (q >= k),
    )  # fmt: skip
    yield f"gym_sink({w}, {sink})", n, {}, ((q - k <= w) | (k < sink)) & (q >= k)
    yield f"gym_dilated({w}, {step})", n, {}, (abs(q - k) <= w) & (abs(q - k) % step == 0)
    kernel = rng.choice([1, 2, 3])
    side = rng.randint(kernel, 7)
    x, y = np.arange(side * side) // side, np.arange(side * side) % side
    size = f"{side}, {side}, {kernel}, {kernel}"
    yield f"gym_natten({size})", side * side, {}, window_2d(x, y, side, side, kernel, kernel)
    tw, th = rng.randint(1, 3), rng.randint(1, 3)
    w2, h2 = tw * rng.randint(2, 3) + tw, th * rng.randint(2, 3) + th
    x, y = tiled(w2, h2, tw, th)
    size = f"{w2}, {h2}, {kernel}, {kernel}"
    yield (
        f"gym_tiled_natten({size}, {tw}, {th})", w2 * h2, {},
        window_2d(x, y, w2, h2, kernel, kernel),
    )  # fmt: skip
    side = rng.choice([4, 8])
    x, y = morton(side * side)
    yield (
        f"gym_morton_natten({side}, {side}, {kernel}, {kernel})", side * side,
        {"morton_x": x.tolist(), "morton_y": y.tolist()},
        window_2d(x, y, side, side, kernel, kernel),
    )  # fmt: skip
    yield from gym_video(rng)


def gym_video(rng):
    h, w, tile, texts = rng.randint(2, 4), rng.randint(2, 4), rng.randint(1, 3), rng.randint(0, 4)
    kh, kw = rng.randint(1, h), rng.randint(1, w)
    video = h * w * tile
    expected = np.ones((video + texts, video + texts), bool)
    expected[:video, :video] = np.kron(tile_windows((h, w), (kh, kw)), np.ones((tile, tile)))
    yield f"gym_sta_2d({h}, {w}, {kh}, {kw}, {tile}, {texts})", video + texts, {}, expected
    n, kn = 3, rng.randint(1, 3)
    expected = np.kron(tile_windows((n, h, w), (kn, kh, kw)), np.ones((tile, tile))).astype(bool)
    yield f"gym_sta_3d({n}, {h}, {w}, {kn}, {kh}, {kw}, {tile})", n * video, {}, expected
    prompt, frame, frames, width = (
        rng.randint(0, 4), rng.randint(2, 7), rng.randint(2, 6), rng.randint(1, 3)
    )  # fmt: skip
    rounding, total = rng.randint(1, 4), prompt + frame * frames
    q, k = np.arange(total)[:, None], np.arange(total)[None, :]
    reach = (width * frame) // rounding * rounding
    yield (
        f"gym_svg_spatial({prompt}, {frame}, {width}, {rounding})", total, {},
        (k < prompt + frame) | (q < prompt) | (np.abs(q - k) < reach),
    )  # fmt: skip
    place = (np.arange(total) - prompt) % frame
    near = np.abs(place[:, None] - place[None, :]) < width * frame // frames
    yield (
        f"gym_svg_temporal({prompt}, {frame}, {frames}, {width})", total, {},
        (k < prompt) | (q < prompt) | near,
    )  # fmt: skip


# ---- FlashMask -----------------------------------------------------------------------------------


def flashmask(rng):
    n, w, g = rng.randint(1, 60), rng.randint(1, 12), rng.randint(0, 5)
    q, k = np.arange(n)[:, None], np.arange(n)[None, :]
    yield "fm_full", n, {}, (q == q) & (k == k)
    yield "fm_causal", n, {}, q >= k
    yield f"fm_sliding_window({w})", n, {}, (q >= k) & (q - k < w)
    yield (
        f"fm_global_sliding_window({g}, {w})", n, {},
        (q < g) | (k < g) | (np.abs(q - k) < w),
    )  # fmt: skip
    prefix = rng.randint(0, n)
    yield "fm_prefix_lm_causal", n, {"prefix_len": prefix}, (q >= k) | (k < prefix)
    keep_q, keep_k = (np.array([int(rng.random() < 0.7) for _ in range(n)]) for _ in range(2))
    yield (
        "fm_qk_sparse", n, {"keep_q": keep_q.tolist(), "keep_k": keep_k.tolist()},
        (q >= k) & (keep_q[:, None] == 1) & (keep_k[None, :] == 1),
    )  # fmt: skip
    gone = np.array([rng.randint(t + 1, n + 1) for t in range(n)])
    yield "fm_random_eviction", n, {"evict": gone.tolist()}, (q >= k) & (q < gone[None, :])
    yield from flashmask_documents(rng)


def flashmask_documents(rng):
    lengths = lists(rng, rng.randint(1, 6))
    n, doc = sum(lengths), number_of(lengths)
    q, k = np.arange(n)[:, None], np.arange(n)[None, :]
    together = doc[:, None] == doc[None, :]
    yield "fm_causal_document", n, {"doc_lens": lengths}, (q >= k) & together
    yield "fm_document", n, {"doc_lens": lengths}, together
    is_last = (doc == len(lengths) - 1)[:, None]
    yield "fm_causal_blockwise", n, {"doc_lens": lengths}, (q >= k) & (together | is_last)
    question = rng.randint(1, 9)
    part = number_of([question, *lengths])
    n = len(part)
    q, k = np.arange(n)[:, None], np.arange(n)[None, :]
    yield (
        "fm_share_question", n, {"question_len": question, "answer_lens": lengths},
        (q >= k) & ((part == 0)[None, :] | (part[:, None] == part[None, :])),
    )  # fmt: skip
    heads = lists(rng, len(lengths), 0)
    doc = number_of([a + b for a, b in zip(heads, lengths, strict=True)])
    n = len(doc)
    starts = np.searchsorted(doc, np.arange(len(lengths)))
    in_head = np.arange(n) - starts[doc] < np.array(heads)[doc]
    q, k = np.arange(n)[:, None], np.arange(n)[None, :]
    yield (
        "fm_prefix_lm_document", n, {"head_lens": heads, "tail_lens": lengths},
        (doc[:, None] == doc[None, :]) & ((q >= k) | in_head[None, :]),
    )  # fmt: skip


# ---- MagiAttention -------------------------------------------------------------------------------


def magi(rng):
    lengths = lists(rng, rng.randint(1, 6))
    n, block, left, right = sum(lengths), rng.randint(1, 7), rng.randint(0, 9), rng.randint(0, 9)
    columns, doc = {"doc_lens": lengths}, number_of(lengths)
    q, k = np.arange(n)[:, None], np.arange(n)[None, :]
    together = doc[:, None] == doc[None, :]
    window = (q - k <= left) & (k - q <= right)
    yield "magi_full", n, {}, np.ones((n, n), bool)
    yield "magi_causal", n, {}, np.tri(n, dtype=bool)
    yield "magi_inverse_causal", n, {}, np.tri(n, dtype=bool).T
    yield "magi_varlen_full", n, columns, together
    yield "magi_varlen_causal", n, columns, together & (k <= q)
    yield f"magi_sliding_window({left}, {right})", n, {}, window
    yield f"magi_sliding_window_causal({left})", n, {}, (k <= q) & (k >= q - left)
    yield f"magi_varlen_sliding_window({left}, {right})", n, columns, window & together
    ends = np.zeros(n, int)  # of the keys a token sees: its block's end
    for t in range(n):
        ends[t] = min(n, (t // block + 1) * block)
    yield f"magi_uniform_block_causal({block})", n, {}, k < ends[:, None]
    expected, start = np.zeros((n, n), bool), 0
    for length in lengths:
        for t in range(length):
            end = min(length, (t // block + 1) * block)
            expected[start + t, start : start + end] = True
        start += length
    yield f"magi_varlen_block_causal({block})", n, columns, expected


DRAWN = {"attention_gym": gym, "flashmask": flashmask, "magi_attention": magi}


@pytest.mark.parametrize("project", DRAWN)
@pytest.mark.parametrize("seed", range(8))
def test_ports_equal_their_definitions_pair_by_pair(project, seed):
    for call, length, columns, expected in DRAWN[project](Random(seed)):
        form = SPECS[project].mask(call).compile(Sample(columns, length))
        wrong = np.argwhere(form.tile(0, length, 0, length) != expected)
        assert not len(wrong), (call, columns, length, wrong[:3].tolist())
        assert form.num_pairs == expected.sum(), call


@pytest.mark.parametrize("project", DRAWN)
def test_every_mask_of_a_text_has_a_definition(project):
    drawn = {call.split("(")[0] for call, *_ in DRAWN[project](Random(0))}
    assert drawn == set(SPECS[project].masks)


def test_the_ports_are_as_many_as_they_are_said_to_be():
    assert {name: len(spec.masks) for name, spec in SPECS.items()} == {
        "attention_gym": 13, "flashmask": 12, "magi_attention": 10,
    }  # fmt: skip
    assert len(UNSAYABLE) == 2
