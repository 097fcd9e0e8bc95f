"""Masks whose keys are another sequence, against definitions that others published."""

import importlib.util
from itertools import combinations, combinations_with_replacement

import numpy as np
import pytest

from dcp_dsl import (
    DatasetError,
    ExchangeError,
    Picture,
    Sample,
    Spec,
    block_sparsity,
    check_report,
    dense_mask,
    export_mask,
)
from dcp_dsl.forms import Rows
from dcp_dsl.forms.form import CrossForm
from dcp_dsl.interchange import ExportConfig, write_export

PREFILL = "segment cache = entry[kv_len] @keys(cache, {corner}) @partial mask m = {mask}"
FLAMINGO = """
segment chat = lead[lead_len] turn[turn_lens]*
segment media = image[image_lens]*
@keys(media) @partial mask m = q.turn == k.image
"""


def both(text: str, columns: dict, length: int, name: str = "m") -> np.ndarray:
    """Return the dense mask, which the form must equal, in tiles and by blocks."""
    mask, sample = Spec.from_text(text).mask(name), Sample(columns, length)
    dense, form = dense_mask(mask, sample), mask.compile(sample, may_cross=True)
    queries, keys = dense.shape
    np.testing.assert_array_equal(form.tile(0, queries, 0, keys), dense)
    blocks = block_sparsity([form, form], 3, 2)  # two of them in one batch
    twice = np.kron(np.eye(2, dtype=bool), dense)
    for index, pairs in enumerate(blocks.pairs):
        q, k = blocks.row_idx[index], blocks.col_idx[index]
        rows, columns_ = slice(*blocks.q_bounds[q : q + 2]), slice(*blocks.kv_bounds[k : k + 2])
        np.testing.assert_array_equal(blocks.tile(index), twice[rows, columns_])
        assert pairs == twice[rows, columns_].sum()
    assert blocks.num_pairs == twice.sum()
    return dense


def flash_attention(queries: int, keys: int, left: int = -1, right: int = 0) -> np.ndarray:
    """Window and causality as flash_attn 2.1 and later align them.

    "Query at position i will only attend to keys between [i + seqlen_k - seqlen_q - window_size[0],
    i + seqlen_k - seqlen_q + window_size[1]] inclusive"; causal is ``window_size = (-1, 0)``.
    Source: docstring of `flash_attn_func`.
    """
    seen = np.zeros((queries, keys), bool)
    for i in range(queries):
        for j in range(keys):
            low = 0 if left < 0 else i + keys - queries - left
            seen[i, j] = low <= j <= i + keys - queries + right
    return seen


@pytest.mark.parametrize("shape", [(2, 5), (5, 5), (5, 2), (1, 7), (0, 3), (3, 0)])
@pytest.mark.parametrize(
    ("mask", "left", "right"),
    [("causal", -1, 0), ("fa_window(2, 0)", 2, 0), ("fa_window(1, 2)", 1, 2)],
)
def test_bottom_right_is_the_alignment_of_flash_attention(shape, mask, left, right):
    text = PREFILL.format(corner="bottom_right", mask=mask)
    if "2)" in mask:
        text = text.replace("@partial", "@partial @ahead")
    expected = flash_attention(*shape, left, right)
    expected[: max(0, shape[0] - shape[1])] = False  # a query before the first key sees nothing
    np.testing.assert_array_equal(both(text, {"kv_len": shape[1]}, shape[0]), expected)


def test_top_left_refuses_queries_behind_all_keys():
    mask = Spec.from_text(PREFILL.format(corner="top_left", mask="causal")).mask("m")
    with pytest.raises(
        DatasetError, match=r"expected at most as many queries as keys, got 5 and 2"
    ):
        dense_mask(mask, Sample({"kv_len": 2}, 5))


def test_flamingo_sees_the_latest_image_as_its_authors_wrote_it():
    """Source: `MaskedCrossAttention` of flamingo-pytorch and OpenFlamingo.

    ``text_time = cumsum(media_locations)``, ``media_time = arange(images) + 1``, and a text token
    attends where ``text_time == media_time``, a time for each latent of an image.
    """
    latents, turns, lead = 3, [2, 1, 3], 2
    media_locations = np.zeros(lead + sum(turns), bool)
    media_locations[lead + np.cumsum([0, *turns[:-1]])] = True
    text_time = np.cumsum(media_locations)
    media_time = np.repeat(np.arange(len(turns)) + 1, latents)
    expected = text_time[:, None] == media_time[None, :]
    columns = {"lead_len": lead, "turn_lens": turns, "image_lens": [latents] * 3}
    np.testing.assert_array_equal(both(FLAMINGO, columns, len(media_locations)), expected)


def test_both_layouts_may_read_one_column():
    text = """segment a = x[lens]*  segment b = y[lens]* z[extra]
    @keys(b) mask m = q.x == k.y or k in z"""
    expected = [[1, 0, 0, 1], [0, 1, 1, 1], [0, 1, 1, 1]]
    assert both(text, {"lens": [1, 2], "extra": 1}, 3).astype(int).tolist() == expected


def test_a_sample_has_the_length_of_its_queries():
    spec = Spec.from_text(FLAMINGO + "sample s(lead_len = 1, turn_lens = [2], image_lens = [9])")
    assert spec.sample("s").length == 3


CACHE = "segment cache = entry[kv_len]  @keys(cache, {}) {} mask m = {}  "
FITTING = ", where no sample has more queries than keys"


@pytest.mark.parametrize("shown", ["causal", "causal and k <= q // 2"])  # proved, and tested
def test_rows_before_the_first_key_are_excluded_in_the_verdict_and_found_on_samples(shown):
    text = CACHE.format("bottom_right", "", shown)
    claims = ["m total" + FITTING, "mask m: every token sees something" + FITTING]
    fits = check_report(text + "sample s(kv_len = 4, len = 2)  check m total")
    assert {v.what: v.outcome for v in fits.verdicts if v.what in claims} == dict.fromkeys(
        claims, "proved" if shown == "causal" else "tested"
    )
    broken = check_report(text + "sample s(kv_len = 2, len = 4)  check m total")
    assert [v.outcome for v in broken.verdicts if v.what in claims] == ["failed"] * 2
    assert [d.code for d in broken.diagnostics] == ["E121", "C403"]
    # shrunk, as all counter-examples are
    shown = [f"{d.message} {d.hint}" for d in broken.diagnostics]
    assert all('at q = 0 of the sample {"kv_len": 0, "len": 1}' in each for each in shown)
    # the way out that E121 offers
    mended = check_report(text.replace(" mask", "@partial mask") + "sample s(kv_len = 2, len = 4)")
    assert not mended.diagnostics


@pytest.mark.parametrize("corner", ["bottom_right", "top_left"])
@pytest.mark.parametrize(
    "shown", ["causal", "streaming(1, 2)", "causal and k <= q // 2", "causal per entry"]
)
def test_what_is_proved_on_a_corner_holds_for_every_pair_of_lengths(corner, shown):
    """Proofs speak of the keys' sequence; here every claim is asked of rows by themselves."""
    text = CACHE.format(corner, "", shown) + "check m total  check m lookback  check m implies full"
    proved = {v.what for v in check_report(text).verdicts if v.outcome == "proved"}
    assert {"m lookback", "m implies full"} <= proved
    for kv_len, queries in ((a, b) for a in range(1, 6) for b in range(1, 7)):
        if corner == "top_left" and queries > kv_len:
            continue
        seen = both(text, {"kv_len": kv_len}, queries)
        first = kv_len - queries if corner == "bottom_right" else 0
        rows, keys = np.nonzero(seen)
        assert (keys <= rows + first).all()
        is_condition = queries <= kv_len or corner == "top_left"
        is_total = any(what.startswith("m total") for what in proved)
        assert not (is_total and is_condition) or seen.any(axis=1).all()


def test_a_layout_written_twice_is_one_sequence():
    """A text that says what the library's mask says may be compared with it, or call it."""
    text = """segment target = sentence[target_lens]*  segment source = phrase[source_lens]*
    @keys(source) @partial mask own = q.sentence == k.phrase
    @keys(source) @partial mask two = cross
    sample s(target_lens = [1, 2], source_lens = [2, 1])
    check own equals cross on s  check cross equals two on s"""
    assert [(v.outcome, v.samples) for v in check_report(text).verdicts] == [("tested", 1)] * 2
    columns = {"target_lens": [1, 2], "source_lens": [2, 1]}
    expected = [[1, 1, 0], [0, 0, 1], [0, 0, 1]]
    assert both(text, columns, 3, "two").astype(int).tolist() == expected


@pytest.mark.parametrize(("call", "shape"), [("k < 10 or k >= 4990", "<polygon"),
                                             ("(q - k) % 4 == 0", "<rect")])  # fmt: skip
def test_few_queries_of_many_keys_are_drawn(call, shape):
    text = f"segment source = [source_lens]*  @keys(source, bottom_right) mask m = {call}"
    picture = Picture.of(Spec.from_text(text).mask("m"), Sample({"source_lens": [5000]}, 100))
    seen = picture.svg().split('class="dcp-see"')[1]
    assert seen.split(">", 1)[1].lstrip().startswith(shape)


def test_flex_blocks_are_those_of_create_block_mask(tmp_path):
    torch = pytest.importorskip("torch")
    from torch.nn.attention.flex_attention import create_block_mask

    mask = Spec.from_text(PREFILL.format(corner="bottom_right", mask="sliding(70)")).mask("m")
    sample = Sample({"kv_len": 300}, 130)
    form, dense = mask.compile(sample, may_cross=True), dense_mask(mask, sample)
    export = export_mask(form, "flex", ExportConfig(32, 64))
    write_export(tmp_path / "m.py", export)
    spec = importlib.util.spec_from_file_location("m", tmp_path / "m.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.make_block_mask()
    seen = torch.from_numpy(dense)
    wanted = create_block_mask(
        lambda b, h, q, k: seen[q, k], None, None, 130, 300, "cpu", BLOCK_SIZE=(32, 64)
    )
    assert found.seq_lengths == wanted.seq_lengths == (130, 300)
    np.testing.assert_array_equal(found.to_dense(), wanted.to_dense())
    q, k = np.ogrid[:130, :300]
    predicate = module.make_mask_mod(module.load_tables())
    assert (predicate(0, 0, torch.from_numpy(q), torch.from_numpy(k)) == seen).all()


def test_exports_of_rectangles_hold_the_rectangle():
    sample = Sample({"lead_len": 2, "turn_lens": [2, 1, 3], "image_lens": [3, 3, 3]}, 8)
    mask = Spec.from_text(FLAMINGO).mask("m")
    form, dense = mask.compile(sample, may_cross=True), dense_mask(mask, sample)
    found = export_mask(form, "dense")
    np.testing.assert_array_equal(found.arrays["mask"], dense)
    assert (found.num_tokens, found.values["keys"]) == (8, 9)
    painted = np.zeros_like(dense)
    magi = export_mask(form, "magi").arrays
    for (q0, q1), (k0, k1) in zip(magi["q_ranges"], magi["k_ranges"], strict=True):
        painted[q0:q1, k0:k1] = True  # full slices alone
    np.testing.assert_array_equal(painted, dense)
    assert set(magi["attn_type_map"].tolist()) == {0}
    with pytest.raises(ExchangeError, match=r"flashmask: expected a mask of one sequence, got 8"):
        export_mask(form, "flashmask")


def test_varlen_of_packed_cross_attention_is_one_call_with_two_tables_of_lengths():
    form = (
        Spec.from_text("")
        .mask("cross")
        .compile(Sample({"target_lens": [3, 2, 4], "source_lens": [2, 4, 3]}, 9), may_cross=True)
    )
    varlen = export_mask(form, "varlen")
    assert varlen.values["calls"] == 1
    assert varlen.arrays["0.cu_seqlens_q"].tolist() == [0, 3, 5, 9]
    assert varlen.arrays["0.cu_seqlens_k"].tolist() == [0, 2, 6, 9]


def test_any_window_of_queries_and_keys_is_that_of_the_whole_mask():
    kept = [3, 1, 4, 2]  # keys that each row of the square sees
    square = Rows(4, list(range(5)), [0] * 4, kept)
    for first_row in (-3, 1):
        form = CrossForm(square, 3 - first_row, 4, first_row)
        queries = np.arange(3 - first_row) + first_row
        dense = (np.arange(4) < np.array(kept)[queries, None]) & (queries >= 0)[:, None]
        for start, end in combinations(range(len(queries) + 1), 2):
            for low, high in combinations_with_replacement(range(5), 2):
                window = form.tile(start, end, low, high)
                np.testing.assert_array_equal(window, dense[start:end, low:high], strict=True)
            row_ptr, _, _ = form.row_ranges(start, end)
            assert np.diff(row_ptr).tolist() == dense[start:end].any(1).astype(int).tolist()
