"""Specs as values: loading, names, attachments to data sets, samples."""

from pathlib import Path

import pytest

from dcp_dsl import (
    DatasetError,
    DCPError,
    Sample,
    Spec,
    SpecError,
    check,
    dense_mask,
    load,
    read_dataset,
)
from dcp_dsl.coverage.dataset_checker import check_dataset

SPECS = Path(__file__).parents[1] / "fixtures" / "specs"


def test_the_specs_of_real_masks_are_clean():
    found = {
        path.stem: [d.code for d in check(path.read_text(encoding="utf-8"))]
        for path in SPECS.glob("*.dcpm")
    }
    assert {name: codes for name, codes in found.items() if codes} == {}


def test_a_spec_lists_its_masks_and_samples_in_order():
    spec = load(SPECS / "04_shared_question.dcpm")
    assert (spec.masks, spec.samples) == (("shared_question", "as_rules"), ("tiny",))
    assert "shared_question" in repr(spec)
    assert spec.source.startswith("# Wang")


@pytest.mark.parametrize(
    ("path", "having", "expected"),
    [
        ("longalign/train.parquet", ["prompt_tokens", "answer_lens"], "dcp_shared_question"),
        ("/data/longalign/train.parquet", ["prompt_tokens", "answer_lens"], "dcp_shared_question"),
        ("longalign/train.parquet", ["text"], "dcp_causal"),
        ("other.jsonl", ["prompt_tokens", "answer_lens"], "dcp_causal"),
    ],
)
def test_the_first_matching_for_wins(path, having, expected):
    attachment = load(SPECS / "00_paper4.dcpm").attachment(path, having)
    assert attachment.mask.name == expected


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*/rows.parquet", "rows.parquet", True),
        ("*/rows.parquet", "./rows.parquet", True),
        ("*/rows.parquet", "/data/rows.parquet", True),
        ("*/rows.parquet", "data/rows.parquet", True),
        ("**/rows.parquet", "rows.parquet", True),
        ("rows.parquet", "rows.parquet", True),
        ("rows.parquet", "/data/rows.parquet", True),
        ("data/*", "/home/data/rows.parquet", True),
        ("/data/*", "/data/a/rows.parquet", True),
        ("*", "rows.parquet", True),
        ("*/rows.parquet", "other_rows.parquet", False),
        ("rows.parquet", "other_rows.parquet", False),
        ("*/data/rows.parquet", "rows.parquet", False),
        ("/data/*", "home/data/rows.parquet", False),
        ("rows", "rows.parquet", False),
        ("Rows.parquet", "rows.parquet", False),
    ],
)  # fmt: skip
def test_a_pattern_matches_the_path_or_a_part_that_begins_at_a_folder(pattern, path, matches):
    spec = Spec.from_text(f'for "{pattern}" use causal')
    if matches:
        assert spec.attachment(path, ["len"]).mask.name == "causal"
    else:
        with pytest.raises(DatasetError, match="no `for` statement matches"):
            spec.attachment(path, ["len"])


CHAT = """
segment part = question[question_len] branch answer[answer_lens]*
for "chat/*" having answer_lens use shared_question
for "*" use causal
"""


def test_a_file_takes_the_same_mask_however_its_path_is_typed(tmp_path, monkeypatch):
    spec, folder = Spec.from_text(CHAT), tmp_path / "chat" / "deep"
    folder.mkdir(parents=True)
    (folder / "answers.jsonl").write_text('{"question_len": 1, "answer_lens": [1]}\n')
    places = {
        tmp_path: ("chat/deep/answers.jsonl", str(folder / "answers.jsonl")),
        folder.parent: ("deep/answers.jsonl", "./deep/../deep/answers.jsonl"),
        folder: ("answers.jsonl", "../deep/answers.jsonl", "."),
    }
    for place, paths in places.items():
        monkeypatch.chdir(place)
        for path in paths:
            attachment = spec.attachment_of(read_dataset(path))
            assert attachment.mask.name == "shared_question", (place, path)
            (statement,) = check_dataset(spec, path).statements
            assert "shared_question" in statement.statement
    # Names of other data sets, and of files that do not exist, are matched as they are given.
    for name in ("hf:answers", "other.jsonl"):
        assert spec.attachment(name, ["question_len", "answer_lens"]).mask.name == "causal"


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("", 'add `for "*" use causal`'),
        (
            "mask near = sliding(4)",
            'use near`, or choose it for all rows (`--mask`, or `spec.mask("near")` in Python)',
        ),
        ("mask near(w: tokens) = sliding(w)", 'add `for "*" use near(w = ...)`, or choose'),
        ("stack s = causal, sliding(4)", '`spec.stack("s")` in Python'),
        ("mask a = causal  mask b = full", "with a mask of the text (`a`, `b`), or choose one"),
    ],
)
def test_a_spec_without_a_statement_for_a_data_set_names_its_own_masks(text, advice):
    with pytest.raises(DatasetError) as refused:
        Spec.from_text(text).attachment("a.jsonl", ["len"])
    assert advice in str(refused.value)


def test_an_attachment_renames_columns_and_takes_the_length():
    attachment = load(SPECS / "00_paper4.dcpm").attachment(
        "longalign/a.parquet", ["prompt_tokens", "answer_lens", "len"]
    )
    row = {"prompt_tokens": 4, "answer_lens": [3, 2], "len": 9, "text": "x"}
    assert attachment.sample(row) == Sample({"question_len": 4, "answer_lens": [3, 2]}, 9)
    assert attachment.renames == {"question_len": "prompt_tokens"}


def test_an_attached_stack_gives_its_masks_and_no_single_one():
    attachment = load(SPECS / "06_gemma.dcpm").attachment("a.jsonl", ["len"])
    assert [mask.call for mask in attachment.masks] == ["sliding(window = 1k)", "causal"]
    assert attachment.stack.period == 6
    assert attachment.sample({"len": 3}) == Sample({}, 3)
    with pytest.raises(DCPError, match="one mask per layer"):
        _ = attachment.mask


def test_the_layers_of_a_stack_repeat():
    stack = load(SPECS / "06_gemma.dcpm").stack("gemma3")
    local, causal = stack.masks
    assert stack.layers_of(causal, 14) == (5, 11)
    assert stack.layers_of(local, 7) == (0, 1, 2, 3, 4, 6)
    assert stack.heads(6, kv_heads=4) == ((range(4), local),)


def test_linear_layers_of_a_stack_have_no_mask():
    stack = Spec.from_text("stack s = 2 of linear, causal, linear, local(4)").stack("s")
    assert stack.cycle() == (-1, -1, 0, -1, 1)
    assert (stack.period, [mask.call for mask in stack.masks]) == (
        5,
        ["causal", "local(window = 4)"],
    )
    assert stack.layers_of(stack.masks[0], 9) == (2, 7)
    with pytest.raises(DCPError, match="layer 8 is linear, it attends to nothing"):
        stack.heads(8, kv_heads=4)
    with pytest.raises(SpecError, match="no layer of this stack has a mask"):
        Spec.from_text("stack s = 3 of linear")


def test_head_groups_cover_every_kv_head_once():
    stack = load(SPECS / "18_dilated.dcpm").stack("longnet")
    found = [(heads, mask.call) for heads, mask in stack.heads(0, kv_heads=12)]
    assert found == [
        (range(4), "dilated_window(window = 2k, step = 1)"),
        (range(4, 8), "dilated_window(window = 4k)"),
        (range(8, 12), "dilated_window(window = 8k, step = 4)"),
    ]
    with pytest.raises(DCPError, match=r"names KV head 7, the model has 7 \(0\.\.6\)"):
        stack.heads(0, kv_heads=7)


def test_heads_without_a_mask_are_refused():
    stack = Spec.from_text("stack s = heads { 0..1: causal }").stack("s")
    with pytest.raises(DCPError, match="KV head 2 of 4 has no mask"):
        stack.heads(0, kv_heads=4)


@pytest.mark.parametrize(
    ("used", "call"),
    [
        ("sliding(window + 1)", "sliding(window = row.window + 1)"),
        ("causal and q - k < window", "causal and q - k < row.window"),
    ],
)
def test_a_column_behind_having_is_a_number_wherever_it_stands(used, call):
    text = f'for "*" having window use {used}'
    assert not [d for d in check(text) if d.severity == "error"]
    mask = Spec.from_text(text).attachment("rows", ["window"]).mask
    assert mask.call == call
    assert mask.bind(Sample({"window": 2}, length=4)).num_pairs == (9 if "+" in used else 7)


def test_a_column_named_behind_having_can_be_an_argument():
    spec = Spec.from_text('for "*" having window use sliding(window = window) with window = w')
    attachment = spec.attachment("a.jsonl", ["len", "window", "w"])
    sample = attachment.sample({"len": 9, "w": 3, "window": 5})
    assert attachment.columns == {"window"}
    assert attachment.mask.bind(sample).num_pairs == 9 * 3 - 3


def test_two_columns_may_be_exchanged():
    text = 'segment s = u[a] v[b]  mask m = k in u  for "*" use m with a = b, b = a'
    spec = Spec.from_text(text)
    sample = spec.attachment("a.jsonl", ["a", "b"]).sample({"a": 1, "b": 4, "len": 5})
    assert sample.columns == {"a": 4, "b": 1}


def test_an_own_mask_hides_that_of_the_library():
    spec = Spec.from_text("mask causal = k < q\nmask a = causal\nmask b = sliding(3)")
    assert spec.mask("a").bind(Sample(length=4)).num_pairs == 6
    assert spec.mask("b").bind(Sample(length=4)).num_pairs == 9, "the library keeps its own causal"


def test_samples_survive_json():
    sample = Sample({"b": [[1, 2], []], "a": 3}, 12)
    assert Sample.from_json(sample.to_json()) == sample


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "got no JSON"), ("[1]", "expected a JSON object"), ("{}", "with `len`"),
     ('{"len": -1}', "between 0"), ('{"len": "4"}', "to be an integer"), ('{"len": true}',
     "to be an integer"),
     ('{"len": 4, "a": "x"}', "expected integers"), ('{"len": 4, "a": [1.5]}', "expected integers"),
     ('{"len": 4, "len": 5}', "sample: `len` is given twice"), ("[" * 100_000, "JSON")],
)  # fmt: skip
def test_bad_json_samples_are_refused(text, says):
    with pytest.raises(DatasetError, match=says):
        Sample.from_json(text)


def test_a_row_without_length_or_with_two_is_refused():
    mask = Spec.from_text("").mask("causal")
    with pytest.raises(DatasetError, match="needs its length"):
        Sample.of({"a": 3}, mask)
    with pytest.raises(DatasetError, match="`len` says 3, `tokens` says 2"):
        Sample.of({"len": 3, "tokens": [1, 2]}, mask)
    assert Sample.of({"tokens": b"abc"}, mask).length == 3


@pytest.mark.parametrize(
    "fields",
    ["question_len = [4], answer_lens = 3", "question_len = 4, answer_lens = [[3]]",
     "question_len = true",
     "question_len = 4, answer_lens = [3], len = 4k",
     "question_len = 4, answer_lens = [3], len = [2]"],
)  # fmt: skip
def test_a_sample_of_the_wrong_shape_is_a_finding_not_a_crash(fields):
    text = (
        "segment part = question[question_len] answer[answer_lens]*\n"
        f"mask a = causal and (k in question or same(answer))\nsample s({fields})\n"
        "check a total on s"
    )
    assert [d.code for d in check(text)] == ["E117"]


@pytest.mark.parametrize(
    ("fields", "codes"),
    [("ids = [-1, 0], mark = [-3, 0], w = -2, len = 2", []), ("len = -2", ["E117"]),
     ("lens = [-1, 3]", ["E117"]), ("lens = [1, 1], parents = [-1, 0]", [])],
)  # fmt: skip
def test_only_the_lengths_of_a_sample_must_not_be_negative(fields, codes):
    text = "segment role = ids(ids)\ntoken mark\nsegment s = branch b[lens]* from parents\n"
    text += f"@partial mask m = causal and q.mark < row.w and same(role)\nsample s({fields})"
    assert [d.code for d in check(text) if d.code == "E117"] == codes


@pytest.mark.parametrize(
    ("mask", "columns"),
    [("q < k.mark", {"mark": [1, 2]}), ("q < k.mark", {"mark": 3}),
     ("q < row.limit", {"limit": [1]}),
     ("same(s)", {"n": 0, "m": [4]})],
)  # fmt: skip
def test_columns_of_the_wrong_shape_are_refused_in_both_forms(mask, columns):
    spec = Spec.from_text(f"token mark\nsegment s = x[len // n] y[..]\nmask a = {mask}")
    sample = Sample(columns, 4)
    for run in (spec.mask("a").bind, lambda s: dense_mask(spec.mask("a"), s)):
        with pytest.raises(DatasetError):
            run(sample)
