"""Values of columns that rows lack: `with reach or 128` reads rows as if they were written out."""

import json
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dcp_dsl import DatasetError, Spec, check, dense_mask, read_dataset
from dcp_dsl.coverage.dataset_checker import check_dataset
from dcp_dsl.language_server.document import Document
from dcp_dsl.language_server.names import references

TEXT = """
segment seq = (text[text_lens] image[image_lens])*
segment tile = every 2
segment role = ids(roles)
segment quiet = spans(quiets)
column kind in image
column picked[2] in tile
token evict
@partial mask near(w: tokens) =
  causal and q - k < w and (k not in image or k.image.kind == 1) and k.evict >= 0
  and (same(role) or q not in role) and k not in quiet and (q == k or k not in q.tile.picked)
"""
WITH = """for "*" use near(w = reach)
with reach = most or 3, kind or 1, evict or 0, image_lens or [], text_lens or [2],
roles or -1, quiets or [], picked = pick or [-1, 0]
"""
SPEC, PLAIN = (Spec.from_text(TEXT + f"{w}") for w in (WITH, 'for "*" having most use near(most)'))
ALL = ("most", "kind", "evict", "image_lens", "text_lens", "roles", "quiets", "pick")


def whole_row(rng):
    texts = [rng.randint(0, 3) for _ in range(rng.randint(0, 3))]
    images = [rng.randint(0, 3) for _ in texts]
    size = sum(texts) + sum(images)
    return {
        "text_lens": texts, "image_lens": images, "most": rng.randint(1, 4),
        "kind": [rng.randint(0, 1) for _ in images], "len": size,
        "evict": [rng.randint(-1, 1) for _ in range(size)],
        "roles": [rng.randint(-1, 1) for _ in range(size)],
        "quiets": [[0, 1]] if size else [],
        "pick": [[rng.randint(-1, size - 1), -1] for _ in range(-(-size // 2))],
    }  # fmt: skip


def without(row, names):
    return {name: value for name, value in row.items() if name not in names}


def written_out(row):
    """Return a row with the values of `WITH`, computed here from the lengths alone."""
    found = {"most": 3, "image_lens": [], "text_lens": [2], "quiets": [], **row}
    size = found["len"]
    found.setdefault("kind", [1] * len(found["image_lens"]))
    found.setdefault("evict", [0] * size)
    found.setdefault("roles", [-1] * size)
    found.setdefault("pick", [[-1, 0]] * -(-size // 2))
    return found


def lacking_rows(seed, count):
    """Return rows that lack some columns, and the same rows written out."""
    rng, found = Random(seed), []
    while len(found) < count:
        row = whole_row(rng)
        lost = set(rng.sample(ALL, rng.randint(0, 6)))
        if "text_lens" in lost or "image_lens" in lost:  # so that the layout fits
            lost |= {"text_lens", "image_lens", "kind", "evict", "roles", "quiets", "pick"}
            row["len"] = 2
        found.append(without(row, lost))
    return found, [written_out(row) for row in found]


def renamed(row):
    values = {("picked" if name == "pick" else name): value for name, value in row.items()}
    return values


@pytest.mark.parametrize("is_none", [True, False])
def test_a_row_without_columns_is_read_as_the_row_written_out(is_none):
    for row, whole in zip(*lacking_rows(1, 80), strict=True):
        given = {**dict.fromkeys(ALL), **row} if is_none else row
        attached = SPEC.attachment("a.jsonl", list(given))
        plain = PLAIN.attachment("a.jsonl", [*renamed(whole), "len"])
        found, wanted = attached.sample(given), plain.sample(renamed(whole))
        names = {"most": "reach"}
        assert found.columns == {names.get(n, n): v for n, v in wanted.columns.items()}
        assert found.length == wanted.length
        seen = dense_mask(plain.mask, wanted)
        assert np.array_equal(dense_mask(attached.mask, found), seen)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_data_set_is_checked_and_measured_as_if_written_out(tmp_path, kind):
    lacking, whole = lacking_rows(2, 60)
    for row in lacking[:5]:
        row["len"] += 1  # refused
    paths = tmp_path / f"lacking.{kind}", tmp_path / f"whole.{kind}"
    for row in whole[:5]:
        row["len"] += 1
    for path, rows in zip(paths, (lacking, [renamed(row) for row in whole]), strict=True):
        if kind == "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            pq.write_table(pa.Table.from_pylist(rows), path)
    found, wanted = (
        check_dataset(spec, str(path)) for spec, path in zip((SPEC, PLAIN), paths, strict=True)
    )
    ours, theirs = found.statements[0], wanted.statements[0]
    assert (ours.lengths, ours.num_refused) == (theirs.lengths, theirs.num_refused)
    assert [row.row for row in ours.refused] == [row.row for row in theirs.refused]
    assert [*ours.densities.values()] == [*theirs.densities.values()]


def test_lengths_add_up_where_columns_are_lost(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text_lens": [2, 1]}\n{"text_lens": [2], "image_lens": null}\n')
    spec = Spec.from_text(
        "segment seq = text[text_lens]* image[image_lens]*  mask m = causal and same(seq)"
        '  for "*" use m with image_lens or [4]'
    )
    data = read_dataset(path)
    assert spec.attachment_of(data).lengths(data.parts[0]).tolist() == [7, 6]
    assert check_dataset(spec, str(path)).statements[0].lengths.total == 13


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("doc_lens or 0", "the layout reads a list of integers from `doc_lens`; write one, such"),
        ("doc_lens or [-1]", "`doc_lens` holds lengths, which are at least 0; write `or []`"),
        ("w or [1]", "expected one integer for `w`, the value of the row"),
        ("t or [1]", "expected one integer for `t`, the value of every token or instance"),
        ("c or [1]", "expected a list of 2 integers for `c`, the value of every token"),
        ("s or 0", "`s` holds spans; write a list of them, such as `or []`"),
        ("other or 0", "no mask here reads a column `other`; leave it out"),
    ],
)
def test_a_value_that_does_not_fit_says_what_fits(written, said):
    text = (
        "segment doc = [doc_lens]*  segment out = spans(s)  token t  token c[2]\n"
        "@partial mask m = causal and same(doc) and k.t == 0 and k in q.c and k not in out\n"
        "  and q - k < row.w\n"
        f'for "*" use m with {written}'
    )
    (found,) = [d for d in check(text) if d.code == "E117"]
    assert said in found.message
    with pytest.raises(DatasetError) as refused:
        Spec.from_text(text, "a.dcpm").attachment("rows", ["doc_lens", "s", "t", "c", "w"])
    assert str(refused.value).startswith("a.dcpm:4: ")
    assert found.message in str(refused.value)


def test_the_remedies_that_messages_name_fit():
    text = 'for "*" use document with doc_lens or'
    for value, codes in (("0", ["E117"]), ("[-1]", ["E117"]), ("[]", [])):
        assert [d.code for d in check(f"{text} {value}")] == codes


def test_a_stack_takes_values_for_all_its_masks():
    text = 'stack s = document, document_streaming  for "*" use s with doc_lens or []'
    assert not check(text)
    assert not Spec.from_text(text).attachment("rows", []).sample({"len": 0}).columns["doc_lens"]
    assert [d.code for d in check(text.replace("doc_lens or", "lens or"))] == ["E117"]


def test_another_column_of_the_masks_name_is_not_taken():
    spec = Spec.from_text('mask m = causal and q - k < row.w  for "*" use m with w = far or 2')
    assert spec.attachment("rows", ["w", "len"]).sample({"w": 9, "len": 3}).columns == {"w": 2}


def test_a_name_alone_says_nothing_and_a_name_twice_is_refused():
    assert "E012" in {d.code for d in check('for "*" use causal with w')}
    assert "E108" in {d.code for d in check('for "*" use sliding(w) with w or 1, w or 2')}


def test_editors_find_them():
    text = 'for "*" use sliding(w) with w or 4k\n'
    document = Document(text, "<text>", "utf-32")
    assert len(references(document, text.rindex("w or"))) == 2
