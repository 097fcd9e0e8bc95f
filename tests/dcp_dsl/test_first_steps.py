"""Messages that newcomers meet: what they suggest is what was meant, and it works."""

import re

import numpy as np
import pytest
from click.testing import CliRunner

from dcp_dsl import Sample, Spec, check, dense_mask
from dcp_dsl.cli import dcpm
from dcp_dsl.syntax.diagnostics import fix_text

IMAGES = "segment pack = branch doc(text[text_lens] image[image_lens])*\n"


def codes(text):
    """Return what is found, without redundant parts of an `or` (W206)."""
    return [found.code for found in check(text) if found.code != "W206"]


def test_packed_images_of_the_library():
    texts, images = [[2, 1], [3], []], [[3, 2], [2], []]
    sample = Sample({"text_lens": texts, "image_lens": images}, 13)
    documents, parts = [], []
    for number, (own, seen) in enumerate(zip(texts, images, strict=True)):
        for at, (text, image) in enumerate(zip(own, seen, strict=True)):
            documents += [number] * (text + image)
            parts += [None] * text + [(number, at)] * image
    expected = [
        [
            documents[q] == documents[k]
            and (k <= q or (parts[q] is not None and parts[q] == parts[k]))
            for k in range(13)
        ]
        for q in range(13)
    ]
    found = dense_mask(Spec.from_text("").mask("multimodal_packed"), sample)
    np.testing.assert_array_equal(found, np.array(expected))


def mended(text):
    (found,) = [d for d in check(text) if d.code == "E101"]
    for edit in reversed(found.fix.edits):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


@pytest.mark.parametrize(
    ("wrote", "meant"),
    [
        ("window(4k)", "sliding(4k)"), ("sliding_window(4096)", "sliding(4096)"),
        ("sliding_window(window = 8)", "sliding(window = 8)"), ("slidng(8)", "sliding(8)"),
        ("fa_windw(4, 0)", "fa_window(4, 0)"),
    ],
)  # fmt: skip
def test_a_suggested_mask_takes_the_arguments(wrote, meant):
    text = f"mask m = {wrote}"
    assert mended(text) == f"mask m = {meant}"
    assert not [found for found in check(mended(text)) if found.severity == "error"]


def test_two_arguments_are_a_window_of_flash_attention():
    (found,) = check("mask m = windows(4095, 0)")
    assert found.hint == "did you mean `fa_window`?"


def test_an_own_mask_with_fitting_arguments_comes_first():
    (found,) = check("mask windowed(w: tokens) = causal and q - k < w  mask m = windowd(4)")
    assert found.hint == "did you mean `windowed`?"


@pytest.mark.parametrize("kind", ["cu_seqlens", "offsets", "boundaries", "starts"])
def test_borders_are_told_what_reads_them(kind):
    (found,) = check(f"segment doc = {kind}(c)\nmask m = causal per doc")
    assert found.code == "E020"
    for source in ("positions(position_ids)", "spans(col)", "[doc_lens]*"):
        assert f"`{source}`" in found.hint
        rest = "@partial " if "spans" in source else ""
        text = f"segment doc = {source}\n{rest}mask m = causal per doc"
        assert not [d for d in check(text) if d.severity == "error"], source


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "segment part = prefix[n] body[..]\nmask m = causal or k in prefix and q in prefix",
            "prefix",
        ),
        ("segment part = prefix[n] body[..]\nmask m = causal or k in prefix", "prefix"),
        (IMAGES + "mask m = paths or same(image)", "image"),
        (IMAGES + "mask m = paths or same(doc)", "doc"),
        ("mask m = causal or q == 0", ""),
        (IMAGES + "@ahead(text) mask m = paths or same(image) or same(text)", "text, image"),
    ],
)
def test_look_ahead_names_the_segment_that_holds_it(text, name):
    (found,) = [d for d in check(text) if d.code == "E120"]
    allowed = re.search("`(@ahead[^`]*)`", found.hint)[1]
    assert allowed == (f"@ahead({name})" if name else "@ahead")
    assert codes(re.sub("(@ahead.*)?mask m", f"{allowed} mask m", text)) == []


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        ("@ahead mask m = True", "True", "true"),
        ("segment doc = [l]*\nmask m = causal and q.doc.pos < len(doc)", "len(doc)", "q.doc.len"),
        ("segment doc = [l]*\nmask m = causal and (doc(q) == 1 or q == k)", "doc(q)", "q.doc"),
        ("// note\nmask m = causal", "//", "#"),
        ("segment doc = [l]*\nmask m = causal and same(q.doc, k.doc)", "same(q.doc, k.doc)",
         "same(doc)"),
        ("mask m = causal and q - k < clamp(q, 3, 1)", "clamp(q, 3, 1)", "clamp(q, 1, 3)"),
        ("segment doc = [l]*\n@ahead(doc) @partial mask m = not causal per doc",
         "not causal per doc", "(not causal) per doc"),
        ("segment doc = [l]*\n@ahead @partial mask m = not causal per doc",
         "not causal per doc", "not (causal per doc)"),
    ],
)  # fmt: skip
def test_what_a_hint_writes_has_no_error(text, old, new):
    found = check(text)
    assert any(f"`{new}`" in each.hint for each in found), found
    mended = text.replace(old, new)
    assert not [each for each in check(mended) if each.severity == "error" or each.code == "W214"]


# ---- habits of other mask languages --------------------------------------------------------------


N = 8
Q, K = np.ogrid[:N, :N]
DOC = "segment doc = [doc_lens]*\n"
IDS = np.repeat([0, 1, 2], [3, 1, 4])
SAME = IDS[:, None] == IDS[None, :]


def quoted(hint):
    """Return the texts that a hint tells to write."""
    return re.findall(r"`([^`]*)`", hint)


def pairs(text, **columns):
    """Evaluate mask `a` of a text that has no errors."""
    assert [d.render() for d in check(text) if d.severity == "error"] == []
    return dense_mask(Spec.from_text(text).mask("a"), Sample(columns, N))


@pytest.mark.parametrize(
    ("text", "mended", "meant"),
    [
        ("q_idx >= kv_idx", "q >= k", Q >= K),
        ("(query_idx >= key_idx) & (q_idx - kv_idx < 4)", "(q >= k) and (q - k < 4)",
         (Q >= K) & (Q - K < 4)),
        ("causal and q - k < seq_len", "causal and q - k < len", Q >= K),
        ("(q - k) in [1, 2]", "(q - k == 1 or q - k == 2)", np.isin(Q - K, [1, 2])),
        ("causal and (q - k) in [0, 3] and k < 5",
         "causal and (q - k == 0 or q - k == 3) and k < 5",
         np.isin(Q - K, [0, 3]) & (K < 5)),
        ("causal and q - k not in (1, 3)", "causal and (q - k != 1 and q - k != 3)",
         (Q >= K) & ~np.isin(Q - K, [1, 3])),
        ("abs(q - k) in {0, 2}", "(abs(q - k) == 0 or abs(q - k) == 2)",
         np.isin(abs(Q - K), [0, 2])),
        ("q - k in [0, 1, 2, 3]", "0 <= q - k <= 3", (Q >= K) & (Q - K <= 3)),
        ("causal&&q - k < 3", "causal and q - k < 3", (Q >= K) & (Q - K < 3)),
        ("causal and k in [0]", "causal and k == 0", (Q >= K) & (K == 0)),
        ("not k in [0, len - 1]", "not (k == 0 or k == len - 1)", (Q >= 0) & (K > 0) & (K < N - 1)),
        ("and_masks(causal, q - k < 3)", "(causal and q - k < 3)", (Q >= K) & (Q - K < 3)),
        ("or_masks(sliding(2), k < 2, q == k)", "(sliding(2) or k < 2 or q == k)",
         ((Q >= K) & (Q - K < 2)) | (K < 2) | (Q == K)),
    ],
)  # fmt: skip
def test_a_habit_is_mended_by_check_fix_and_means_the_same(text, mended, meant):
    text = f"@ahead @partial mask a = {text}"
    for finding in check(text):
        assert finding.fix is not None or finding.code == "E003"
    fixed = fix_text(text, "<text>", lambda t, _: check(t)).text
    assert fixed.endswith(f"= {mended}") or fixed.endswith(f"mask a = {mended}")
    assert np.array_equal(pairs(fixed), np.broadcast_to(meant, (N, N)))


@pytest.mark.parametrize("call", ["doc_id[q] == doc_id[k]", "doc_ids[q_idx] == doc_ids[kv_idx]",
                                  "document_id[k] == document_id[q]"])  # fmt: skip
def test_equal_ids_by_index_become_the_segment_of_that_name(call):
    (found,) = check(f"{DOC}mask a = causal and {call}")
    assert (found.code, found.hint) == ("E025", "write `same(doc)`")
    fixed = fix_text(f"{DOC}mask a = causal and {call}", "<text>", lambda t, _: check(t)).text
    assert np.array_equal(pairs(fixed, doc_lens=[3, 1, 4]), SAME & (Q >= K))


def test_equal_ids_by_index_become_a_token_column_where_no_segment_is_like_it():
    (found,) = check("mask a = causal and doc_id[q] == doc_id[k]")
    comparison, statement, layout, same = quoted(found.hint)
    assert found.fix is None
    written = pairs(f"{statement}\nmask a = causal and {comparison}", doc_id=IDS.tolist())
    assert np.array_equal(written, SAME & (Q >= K))
    written = pairs(f"{layout}\nmask a = causal and {same}", doc_lens=[3, 1, 4])
    assert np.array_equal(written, SAME & (Q >= K))


def test_one_column_with_an_index_is_read_by_name():
    (found,) = check("token evict\nmask a = causal and q < evict[kv_idx]")
    assert (found.code, found.hint) == ("E025", "write `k.evict`")
    (found,) = check("mask a = causal and q < evict[k]")
    assert quoted(found.hint) == ["k.evict", "token evict"]


@pytest.mark.parametrize("call", ["top_k(q, 16)", "topk(16)", "random(0.1)", "dropout(0.1, 2)"])
def test_what_no_mask_can_know_is_a_column_of_the_data(call):
    (found,) = check(f"mask a = causal and {call}")
    assert found.code == "E101"
    segment, expression = quoted(found.hint)
    flags = [1, 0, 0, 1, 0, 0, 1, 0]
    (column,) = re.findall(r"flags\((\w+)\)", segment)
    written = pairs(f"{segment}\nmask a = causal and {expression}", **{column: flags})
    assert np.array_equal(written, (Q >= K) & ((np.array(flags)[K] == 1) | (Q == K)))


def test_a_fraction_is_told_to_be_a_division():
    (found,) = check("mask a = causal and q - k < len * 0.1")
    assert (found.code, "`0.1`" in found.message) == ("E027", True)
    (division,) = quoted(found.hint)
    written = pairs(f"mask a = causal and (q - k < {division} or q == k)")
    assert np.array_equal(written, np.broadcast_to(Q == K, (N, N)))


@pytest.mark.parametrize("call", ["causal per document", "causal and same(document)"])
def test_a_mask_in_place_of_a_segment_gets_the_segment(call):
    (found,) = check(f"{DOC}mask a = {call}")
    assert (found.code, found.hint) == ("E103", "did you mean `doc`?")
    written = pairs(f"{DOC}mask a = {call.replace('document', 'doc')}", doc_lens=[3, 1, 4])
    assert np.array_equal(written, SAME & (Q >= K))


def test_without_a_segment_the_hint_defines_one():
    (found,) = check("mask a = causal per document")
    segment, tiles = quoted(found.hint)
    written = pairs(f"{segment}\nmask a = causal per document", document_lens=[3, 1, 4])
    assert np.array_equal(written, SAME & (Q >= K))
    assert check(f"mask a = causal and same(document) {tiles}") == ()


def test_a_segment_in_place_of_a_mask_is_told_how_to_ask_for_it():
    (found,) = check("segment document = [lens]*\nmask a = causal and document")
    assert quoted(found.hint)[-1] == "same(document)"
    text = f"segment document = [lens]*\nmask a = causal and {quoted(found.hint)[-1]}"
    assert np.array_equal(pairs(text, lens=[3, 1, 4]), SAME & (Q >= K))


def test_the_parent_of_a_token_is_read_by_its_name():
    text = "segment turn = (user[users] bot[bots])*\nmask a = causal and q.parent == k.turn"
    (found,) = check(text)
    assert (found.code, "q.turn" in quoted(found.hint)) == ("E102", True)
    assert check(text.replace("q.parent", "q.turn")) == ()


def test_a_step_behind_a_column_is_a_column_of_its_own():
    (found,) = check("token parent\nmask a = causal and (q == k or q.parent.parent == k)")
    assert found.code == "E102"
    statement, read = quoted(found.hint)[2:]
    above = [0, 0, 0, 1, 1, 3, 3, 5]
    written = pairs(
        f"{statement}\nmask a = causal and (q == k or {read} == k)",
        parent_parent=[above[above[i]] for i in range(N)],
    )
    meant = [[k <= q and (k == q or above[above[q]] == k) for k in range(N)] for q in range(N)]
    assert np.array_equal(written, meant)
    (found,) = check("mask a = causal and q.parent == k")
    assert quoted(found.hint) == ["token parent"]
    assert pairs("token parent\nmask a = causal and (q == k or q.parent == k)", parent=above).any()


def test_numbers_of_two_segments_are_compared_as_integers():
    layout = "segment half = noisy(nd[lens]*) clean(cd[lens]*)\n"
    (found,) = check(f"{layout}@ahead mask a = same(nd) or same(cd) or q.nd == k.cd")
    assert found.code == "E104"
    comparison = quoted(found.hint)[2]
    text = f"{layout}@ahead mask a = same(nd) or same(cd) or {comparison}"
    ids = np.repeat([0, 1], [3, 1])
    same = ids[:, None] == ids
    assert np.array_equal(
        pairs(text, lens=[3, 1]), np.block([[same, same], [np.zeros_like(same), same]])
    )


@pytest.fixture
def shared(tmp_path):
    path = tmp_path / "a.dcpm"
    path.write_text(
        "segment part = question[question_len] answer[answer_lens]*\n"
        "mask main = causal and (k in question or same(answer))\n"
    )
    return str(path)


@pytest.mark.parametrize("given", ["question_len=8", "question_len = 2, other = 3"])
def test_a_sample_without_a_column_gets_one_that_works(shared, given):
    result = CliRunner().invoke(dcpm, ["show", shared, "--sample", given])
    (written,) = re.findall(r"`answer_lens`, .*write --sample '(.*)'", str(result.exception))
    assert "other" not in written
    assert CliRunner().invoke(dcpm, ["show", shared, "--sample", written]).exit_code == 0
