"""Lists per token and per instance, and columns of instances: exact, or refused."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from dcp_dsl import DatasetError, Sample, Spec, SpecError, block_sparsity, dense_mask
from dcp_dsl.commands.texts import check

FOUR_LISTS = "expected 4 lists of 3 integers, one per token, got"
TEXT = """
segment run = every 4
segment doc = [doc_lens]*
token chosen[3]
token label
column shared[2] in run
column weight in doc = w
mask router = causal and k // 2 in q.chosen
mask keys = k in q.chosen
mask experts = q // 2 in k.chosen and k <= q
mask runs = causal and (q - k < 3 or k // 4 in q.run.shared)
mask labels = k.label in q.chosen
mask heavy = q.doc.weight < k.doc.weight or k - q == q.doc.weight
mask inside = (k in q.chosen) per doc
"""


def expected(c, n):
    """Return the masks of `TEXT` pair by pair, as their lines say it."""
    q, k = np.arange(n)[:, None], np.arange(n)[None, :]
    chosen, label = np.array(c["chosen"]).reshape(n, 3), np.array(c["label"])
    shared = np.array(c["shared"])[np.arange(n) // 4]
    doc = np.repeat(np.arange(len(c["doc_lens"])), c["doc_lens"])
    first = (np.cumsum(c["doc_lens"]) - c["doc_lens"])[doc]
    weight = np.array(c["w"])[doc]
    causal, same = k <= q, doc[:, None] == doc

    def member(number, lists):
        return ((number[..., None] == lists[:, None, :]) & (number[..., None] >= 0)).any(axis=2)

    return {
        "router": causal & member(k // 2, chosen),
        "keys": member(k, chosen),
        "experts": member(np.arange(n)[None, :] // 2, chosen).T & causal,
        "runs": causal & ((q - k < 3) | member(k // 4, shared)),
        "labels": member(label[None, :], chosen),
        "heavy": (weight[:, None] < weight) | (k - q == weight[:, None]),
        "inside": same & member(np.broadcast_to(k - first[:, None], (n, n)), chosen),
    }


def columns(rng, n):
    cuts = np.sort(rng.integers(0, n + 1, 2))
    return {
        "chosen": rng.integers(-1, max(1, n // 2), (n, 3)).tolist(),
        "label": rng.integers(-2, 4, n).tolist(),
        "shared": rng.integers(-1, -(-n // 4), (-(-n // 4), 2)).tolist(),
        "doc_lens": np.diff([0, *cuts, n]).tolist(),
        "w": rng.integers(-3, 4, 3).tolist(),
    }


@pytest.mark.parametrize("name", ["router", "keys", "experts", "runs", "labels", "heavy", "inside"])
def test_masks_of_lists_are_exact_pair_by_pair_and_block_by_block(name):
    rng = np.random.default_rng(len(name))
    mask = Spec.from_text(TEXT).mask(name)
    for n in (1, 2, 3, *rng.integers(4, 40, 20).tolist()):
        drawn = columns(rng, n)
        seen = expected(drawn, n)[name]
        sample = Sample({c: drawn[c] for c in mask.columns}, n)
        form = mask.compile(sample)
        np.testing.assert_array_equal(form.tile(0, n, 0, n), seen)
        np.testing.assert_array_equal(dense_mask(mask, sample), seen)
        blocks = block_sparsity([form], 5, 3)
        counts = np.zeros((len(blocks.q_bounds) - 1, len(blocks.kv_bounds) - 1), np.int64)
        counts[blocks.row_idx, blocks.col_idx] = blocks.pairs
        rows = np.add.reduceat(seen.astype(np.int64), blocks.q_bounds[:-1], axis=0)
        np.testing.assert_array_equal(counts, np.add.reduceat(rows, blocks.kv_bounds[:-1], axis=1))


def test_a_million_tokens_with_sixteen_blocks_per_64_queries():
    n, size, block = 2**20, 64, 4096
    runs = np.arange(n // size)
    rng = np.random.default_rng(3)
    chosen = (rng.random((len(runs), 16)) * (runs[:, None] + 1)).astype(np.int64)
    text = "segment s = every 64 column chosen[16] in s mask a = causal and k // 64 in q.s.chosen"
    form = Spec.from_text(text).mask("a").compile(Sample({"chosen": chosen}, n))
    found = block_sparsity([form], block, block)
    chosen = np.sort(chosen, axis=1)
    pairs = np.where(chosen == runs[:, None], size * (size + 1) // 2, size * size)
    pairs[:, 1:][chosen[:, 1:] == chosen[:, :-1]] = 0  # twice in a list counts once
    row, col = np.broadcast_to(runs[:, None], chosen.shape) * size // block, chosen * size // block
    wide = n // block
    counts = np.bincount((row * wide + col).ravel(), pairs.ravel(), wide * wide)
    at = np.flatnonzero(counts)
    np.testing.assert_array_equal(found.row_idx * wide + found.col_idx, at)
    np.testing.assert_array_equal(found.pairs, counts[at])


def test_nested_columns_are_those_of_the_instances_in_order():
    text = (
        "segment s = book(doc(img[lens]*)*)* column w in img column near[2] in img "
        "mask a = (q.img.w > 5 or k in q.img.near) and k <= q"
    )
    mask = Spec.from_text(text).mask("a")
    lens, near = [[[]], [[1, 2], [], [0, 1]]], [[0, 3], [1, 1], [2, 2], [0, 3]]
    flat = Sample({"lens": lens, "w": [9, 1, 9, 7], "near": near}, 4)
    values = {"w": [[[]], [[9, 1], [], [9, 7]]], "near": [[[]], [near[:2], [], near[2:]]]}
    nested = Sample({"lens": lens, **values}, 4)
    assert mask.bind(nested).digest == mask.bind(flat).digest
    assert [int(row.sum()) for row in dense_mask(mask, nested)] == [1, 1, 1, 4]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "needs the column `chosen`; the sample has no columns"),
        ({"chosen": [[0, 1, 1]] * 3}, f"{FOUR_LISTS} an array of shape (3, 3)"),
        ({"chosen": [[0, 1]] * 4}, f"{FOUR_LISTS} an array of shape (4, 2)"),
        ({"chosen": [[0, 1, 1]] * 3 + [[0]]}, f"{FOUR_LISTS} something else"),
        ({"chosen": [[0, 1, -2]] * 4}, "expected numbers from 0, or -1 for none, got -2"),
        ({"chosen": [[0, 1, 4]] * 4}, "column `chosen`: expected numbers below 4"),
    ],
)  # fmt: skip
def test_columns_of_lists_that_cannot_be_are_refused(columns, message):
    mask = Spec.from_text(TEXT).mask("router")
    for use in (mask.compile, lambda sample: dense_mask(mask, sample)):
        with pytest.raises(DatasetError) as caught:
            use(Sample(columns, 4))
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("token c[2] mask a = q.c == 3", "E103", "expected a number, got a list of integers"),
        ("token c[2] mask a = q.c", "E103", "expected a mask, got a list of integers"),
        ("token c mask a = k in q.c", "E103", "expected a segment or a list, got an integer"),
        ("token c[0] mask a = k in q.c", "E111", "expected lists of 1 to 16_384 integers, got 0"),
        ("column c in t mask a = q.t.c == 1", "E101", "unknown segment `t`"),
        ("segment t = every 2 column c in t mask a = q.c == 1", "E102", "`c` is a column of `t`"),
        ("segment t = every 2 column len in t mask a = causal", "E109", "word of the language"),
        ("segment t = every 2 column end in t mask a = q.t.end > k", "E109", "meaning of its own"),
        ("token c[2] mask a = causal in q.c", "E103", "expected a number, got a mask"),
    ],
)  # fmt: skip
def test_lists_and_columns_are_checked(text, code, words):
    with pytest.raises(SpecError) as caught:
        Spec.from_text(text)
    assert any(d.code == code and words in d.message for d in caught.value.diagnostics), caught


def test_rows_of_a_data_set_hold_lists(tmp_path):
    (tmp_path / "s.dcpm").write_text('token chosen[3]\nfor "*" use moba(2)\n')
    rows = [{"len": 5, "chosen": lists} for lists in ([[0, -1, -1]] * 5, [[9, 0, 0]] * 5)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = [str(tmp_path / "s.dcpm"), "--dataset", str(tmp_path), "--json"]
    result = CliRunner().invoke(check, arguments)
    found = json.loads(result.stdout)
    assert (found["rows"], found["refused"]) == (2, 1)
    assert "expected numbers below 5" in found["statements"][0]["refused_rows"][0]["reason"]
