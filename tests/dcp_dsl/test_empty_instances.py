"""An instance without tokens exists: it has a number, it counts, and it has no tokens.

Cases are written down by hand; the laws at the end hold for every mask, whatever engine and oracle
agree on.
"""

from functools import cache
from random import Random

import numpy as np
import pytest

from dcp_dsl import DatasetError, Sample, Spec, check, check_report, dense_mask
from dcp_dsl.claims.column_samples import draw_columns

PACK = "segment pack = doc(head[h] body[b]*)*\n"
LAYOUT = (
    "segment p = doc(a[x]*)*\n"
    "segment whole = [len]\n"
    "segment span = spans(borders)\n"
    "segment page = every 2 in doc\n"
    "token t\n"
)


@cache
def read(text, layout):
    return Spec.from_text(f"{layout}@ahead @partial mask m = {text}").mask("m")


def dense(text, columns, length, layout=LAYOUT):
    """Return a mask on a sample, the same from the engine and from the oracle."""
    mask = read(text, layout)
    sample = Sample({name: columns[name] for name in mask.columns}, length)
    seen = dense_mask(mask, sample)
    assert np.array_equal(mask.compile(sample).tile(0, length, 0, length), seen), (text, columns)
    return seen


def keys_of(text, columns, length, layout=LAYOUT):
    """Return the keys that each token sees."""
    return [np.flatnonzero(row).tolist() for row in dense(text, columns, length, layout)]


@pytest.mark.parametrize(
    ("text", "lens", "keys"),
    [
        ("k in last(a)", [2, 0, 2, 2], [4, 5]),
        ("k in last(a, 2)", [2, 0, 2, 2], [2, 3, 4, 5]),
        ("k in last(a, 2)", [2, 0, 0, 2], [2, 3]),
        ("k in last(a)", [2, 2, 0], []),
        ("k in first(a)", [0, 2, 2], []),
        ("k in first(a, 2)", [0, 2, 2], [0, 1]),
        ("k.a == 1", [0, 2, 2], [0, 1]),
        ("k.a == 2", [0, 2, 2], [2, 3]),
        ("k.a == k.a.count - 1", [2, 0, 2, 2], [4, 5]),
        ("k.a.count == 4", [0, 3, 0, 0], [0, 1, 2]),
        ("k in first(last(a, 2))", [2, 0, 2, 2], [2, 3]),
        ("k in first(last(a, 2))", [2, 2, 0, 2], []),
        ("k in last(first(a, 2))", [1, 2, 3], [1, 2]),
        ("k in last(first(a, 9))", [1, 2, 3], [3, 4, 5]),
    ],
)
def test_numbers_count_empty_parts_with_and_without_per(text, lens, keys):
    columns, length = {"x": [lens]}, sum(lens)
    for form in (text, f"({text}) per doc", f"({text}) and same(doc)", f"({text}) per whole"):
        assert keys_of(form, columns, length) == [keys] * length, form


def test_the_smaller_of_a_number_and_one_that_a_token_lacks_is_none():
    columns = {"borders": [[0, 2], [3, 4]], "t": [3, 1, 0, 2]}
    for text in ("min(k.span, q.t) <= 3", "max(k.span, q.t) >= 0"):
        assert keys_of(text, columns, 4) == [[0, 1, 3]] * 4


def test_an_empty_part_at_a_border_belongs_to_the_document_that_it_is_written_in():
    first = {"x": [[2, 0], [2]]}
    second = {"x": [[2], [0, 2]]}
    assert keys_of("k in last(a) per doc", first, 4) == [[], [], [2, 3], [2, 3]]
    assert keys_of("k in last(a) per doc", second, 4) == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert keys_of("k in first(a) per doc", first, 4) == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert keys_of("k in first(a) per doc", second, 4) == [[0, 1], [0, 1], [], []]


def test_an_empty_stretch_of_another_segment_lies_with_the_token_behind_it():
    columns = {"x": [[2], [2]], "borders": [[0, 2], [2, 2], [2, 4], [4, 4]]}
    # The span [2, 2) is the first of the second document; [4, 4) has no token behind it.
    assert keys_of("k in first(span) per doc", columns, 4) == [[0, 1], [0, 1], [], []]
    assert keys_of("k in last(span) per doc", columns, 4) == [[0, 1], [0, 1], [], []]
    assert keys_of("k in last(span, 2) per doc", columns, 4) == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert keys_of("span.count == 3 per doc", columns, 4) == [[], [], [2, 3], [2, 3]]


def test_a_document_without_parts_counts_among_documents_only():
    columns = {"h": [0, 2, 0], "b": [[], [1, 0], []]}
    assert keys_of("k.doc == 1 and k.doc.count == 3", columns, 3, PACK) == [[0, 1, 2]] * 3
    assert keys_of("k in last(doc)", columns, 3, PACK) == [[]] * 3
    assert keys_of("k.body.count == 2", columns, 3, PACK) == [[2]] * 3
    assert keys_of("body.count == 2 per doc", columns, 3, PACK) == [[0, 1, 2]] * 3
    assert keys_of("pack.count == 3", columns, 3, PACK) == [[0, 1, 2]] * 3


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("k + 1 in last(a, 2)", [[0, 1, 2]] * 4),  # token 4 is none
        ("k + 1 not in a", [[3]] * 4),
        ("(k + 1 in a) per doc", [[0], [0], [2], [2]]),
        ("(k - 1 not in a) per doc", [[0], [0], [2], [2]]),
        ("(k + 2).t == 7", [[1]] * 4),
        ("k.doc.end.t == 3", [[0, 1]] * 4),  # the second document ends the sample
        ("k.doc.start.t == 3 and q.doc.start.doc == 0", [[2, 3], [2, 3], [], []]),
        ("max(q, k) in doc", [[0, 1, 2, 3]] * 4),
        ("max((q + 2).t, k) >= 3", [[0, 1, 2, 3], [0, 1, 2, 3], [], []]),
        ("(max(q, k) in b) per doc where b = every 2", [[0, 1], [0, 1], [2, 3], [2, 3]]),
        ("(max(q, k) + 1 in b) per doc where b = every 2", [[0], [], [2], []]),
        ("(max(q, k) - 2 not in b) per doc where b = every 2", [[0, 1], [0, 1], [2, 3], [2, 3]]),
        ("(max(q, k).t == 9) per doc", [[1], [0, 1], [], []]),
    ],
)
def test_a_lookup_outside_the_sample_or_the_instance_finds_nothing(text, keys):
    assert keys_of(text, {"x": [[2, 0], [1, 1]], "t": [1, 9, 3, 7]}, 4) == keys


def test_a_lookup_behind_a_border_is_tested_and_drawn():
    found = check(
        "segment e = every 2  token t  @ahead @partial mask m = q.e.end.t < 7\n"
        "sample s(t = [1, 9, 3, 9])  check m implies full on s"
    )
    assert not found


def test_drawn_columns_hold_every_way_of_being_empty():
    spec = Spec.from_text("segment s = u[x] pack(v[y]*)* w[..]")
    (layout,) = (layout for _, layout in spec.scope.layouts())
    rng = Random(0)
    drawn = [draw_columns([layout], index, rng) for index in range(32)]
    nested = [columns["y"] for columns in drawn]
    assert {0, 1, 4} <= {columns["x"] for columns in drawn}
    assert [] in nested
    assert any([] in lists and any(lists) for lists in nested)
    assert any(lists and not any(lists) for lists in nested)
    assert all(any(size in lists for lists in nested) for size in ([0], [1]))


NUMBERED = (
    "k in first(a)", "k in last(a)", "k in last(a, 2)", "k in first(last(a, 2))", "k.a == 1",
    "q.a - k.a == 1", "k.a == k.a.count - 1", "q.a.count == 3", "same(a)", "k in last(page)",
    "k.page.count == 2", "k in first(span)", "span.count == 2", "k.doc == 0", "p.count == 1",
    "k + 1 in last(a)", "q.a.end.a == k.a", "max(q, k) in last(a)", "k in last(b) or k in first(b)",
)  # fmt: skip


def draw(rng):
    """Draw documents whose parts are often empty, and spans that may be empty too."""
    docs = [[rng.choice([0, 0, 1, 2]) for _ in range(rng.randint(0, 4))] for _ in range(3)]
    length = sum(map(sum, docs))
    ends = sorted(rng.randint(0, length) for _ in range(4))
    return docs, [ends[:2], ends[2:]], length


def with_tiles(text, columns, length):
    return dense(f"{text} where b = every 3, c = every 2", columns, length)


def drawn(seed, count):
    rng = Random(seed)
    samples = [draw(rng) for _ in range(count)]
    return [({"x": docs, "borders": spans}, n) for docs, spans, n in samples if n]


def test_per_one_instance_that_holds_all_tokens_changes_nothing():
    for columns, length in drawn(1, 8):
        for text in NUMBERED:
            outside = with_tiles(text, columns, length)
            assert np.array_equal(with_tiles(f"({text}) per whole", columns, length), outside), text


def test_per_a_document_is_the_mask_of_that_document_alone():
    for columns, length in drawn(2, 6):
        for text in NUMBERED:
            if "span" in text or "doc" in text or "p." in text or "page" in text:
                continue  # what crosses documents has other numbers alone
            together = with_tiles(f"({text}) per doc", columns, length)
            expected, at = np.zeros_like(together), 0
            for parts in columns["x"]:
                size = sum(parts)
                if size:
                    alone = with_tiles(text, {"x": [parts]}, size)
                    expected[at : at + size, at : at + size] = alone
                at += size
            assert np.array_equal(together, expected), (text, columns)


def test_per_a_tile_of_a_document_is_per_the_tile_per_the_document():
    for columns, length in drawn(3, 6):
        for text in NUMBERED:
            inner = with_tiles(f"({text}) per page", columns, length)
            both = with_tiles(f"(({text}) per c) per doc", columns, length)
            assert np.array_equal(inner, both), (text, columns)


def test_a_claim_that_fails_on_three_tokens_alone_is_not_called_tested():
    text = (
        "segment doc = [d]*\n"
        "@ahead @partial mask a = k.doc.end == q\n"
        "@ahead @partial mask b = k.doc + 1 == q.doc or k.doc.len == 1\n"
        "check a implies b\n"
    )
    (verdict,) = check_report(text).verdicts
    assert verdict.outcome == "failed"


@pytest.mark.parametrize(("body", "pairs"), [("q < b.count", 2 * 6), ("k in last(b)", 6 * 1)])
def test_a_part_that_the_last_repetition_lacks_is_no_instance(body, pairs):
    text = f"segment s = (a[x] b[y])*  @ahead @partial mask m = {body}"
    sample = Sample({"x": [1, 2, 1], "y": [1, 1]}, length=6)  # a b a a b a
    assert Spec.from_text(text).mask("m").bind(sample).num_pairs == pairs


@pytest.mark.parametrize("ids", [[0, 1], [0, -1], [1, -1], [-1, -1]])
@pytest.mark.parametrize("names", ["", " as a, b"])
def test_ids_with_names_have_as_many_instances_as_names(ids, names):
    """The number of names, whatever ids a sample has; without names the largest id plus 1."""
    count = 2 if names else max(ids) + 1
    head = f"segment r = ids(c){names}\ncolumn w in r\n"
    for told in ("k == r.count", "(k == r.count) per doc", "k in first(r, 9) or k == r.count"):
        text = f"{head}segment doc = [d]\n@ahead @partial mask m = {told}"
        own = Sample({"c": ids, "d": 2}, 2)
        mask = Spec.from_text(text).mask("m")
        own = Sample({name: own.columns[name] for name in mask.columns}, 2)
        seen = dense_mask(mask, own)[0].tolist()
        chosen = [i >= 0 for i in ids] if "first" in told else [False, False]
        assert seen == [chosen[k] or k == count for k in range(2)]
        assert np.array_equal(mask.compile(own).tile(0, 2, 0, 2), dense_mask(mask, own))
    mask = Spec.from_text(f"{head}@ahead @partial mask m = q.r.w == 7").mask("m")
    rows = dense_mask(mask, Sample({"c": ids, "w": list(range(7, 7 + count))}, 2))[:, 0].tolist()
    assert rows == [i == 0 for i in ids]
    with pytest.raises(DatasetError, match=f"expected {count} integers, one per r"):
        mask.compile(Sample({"c": ids, "w": list(range(count + 1))}, 2))
