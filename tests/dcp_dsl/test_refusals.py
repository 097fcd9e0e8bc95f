"""What a spec says where it has no such mask, stack, sample or data set, word by word."""

from itertools import product

import pytest

from dcp_dsl import DCPError, Spec, Stack, pack, read_dataset, sample_from_argument
from dcp_dsl.checks.scope import matches
from dcp_dsl.claims.lints.statements import _takes_all
from dcp_dsl.data.sources import find_sources
from dcp_dsl.syntax.parser import parse

TEXT = """
segment doc = [lens]*
segment part = question[question_len] answer[answer_lens]*
mask shared = causal and (k in question or same(answer))
mask near(window: tokens) = causal and q - k < window
mask reached = causal and q - k < row.reach
stack layers = 2 of near(4), shared
sample tiny(question_len = 2, answer_lens = [1, 2])
sample both(lens = [2], question_len = 2, answer_lens = [1, 2])
for "chat/*" having answer_lens use shared with question_len = asked
for "*/more*.jsonl" use layers
for "sft/*.pq" having reach, lens use reached
"""
CALLS = {
    "mask": ["shard", "nothing", "near", "near(3)", "near(window = 3, 4)", "near(q)", "layers",
             "causal and", "causl", "same(dok)", "shared and sliding(4)", "full", "caus"],
    "stack": ["layers", "layer", "shared", ""],
    "sample": ["tiny", "both", "tin", "x"],
    "argument": ["tiny", "both", "tinny", "len = 3", "lens = [2, 3]", "len = 3, lens = [1]",
                 '{"len": 5}', '{"lens": [1, 2], "len": 4}', '{"len": -1}', '[3]', '{"len"',
                 "a.json", "b.json", "lens = 3", "len = 3, x = [[1], [2]]", "", "len = 2) for"],
    "attachment": [("chat/a.pq", ["answer_lens", "asked"]), ("chat/a.pq", ["answer_lens", "ask"]),
                   ("chat/a.pq", ["lens"]), ("a/more1.jsonl", []), ("more.jsonl", ["lens"]),
                   ("a/more1.jsonl", ["question_len", "answer_lens"]), ("x/sft/c.pq", ["lens"]),
                   ("x/sft/c.pq", ["lens", "reach", "z"]), ("sft/c.pq", ["reach"])],
    "own": ["tiny", "nothing"],
}  # fmt: skip


def said(act, *arguments):
    """Return what a call gives, or how it refuses."""
    try:
        return repr(act(*arguments))
    except DCPError as error:
        return f"{type(error).__name__}: {error}"


def told(calls, act):
    return "\n".join(
        f"{call!r}\n    " + said(act, *(call if isinstance(call, tuple) else (call,))).replace(
            "\n", "\n    "
        )
        for call in calls
    )  # fmt: skip


@pytest.fixture
def spec(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.json").write_text('{"lens": [4, 4]}')
    (tmp_path / "b.json").write_bytes(b"\xff")
    return Spec.from_text(TEXT, "a.dcpm")


def test_a_spec_gives_what_is_asked_for_or_names_what_it_has(spec, snapshots):
    bare = Spec.from_text("", "bare.dcpm")
    asked = {
        "mask": lambda call: _calls(spec.mask(call)),
        "stack": lambda name: _calls(spec.stack(name)), "sample": spec.sample,
        "argument": lambda text: sample_from_argument(spec, text),
        "argument and a length": lambda text: sample_from_argument(spec, text, 7),
        "attachment": lambda name, columns: _shown(spec.attachment(name, columns)),
    }  # fmt: skip
    found = {name: told(CALLS[name.split(" and")[0]], act) for name, act in asked.items()}
    for name, act in {"mask": bare.mask, "stack": bare.stack, "sample": bare.sample}.items():
        found[f"{name} of an empty text"] = told(CALLS["own"], act)
    found["attachment of an empty text"] = told([("a", ["b"])], bare.attachment)
    found["a sample of an empty text"] = told(
        CALLS["own"], lambda text: sample_from_argument(bare, text)
    )
    snapshots.check("refusals_spec", found)


def _calls(value):
    """Return a mask or the masks of a stack as calls, with the columns that they need."""
    masks = value.masks if isinstance(value, Stack) else (value,)
    return [(mask.call, sorted(mask.columns)) for mask in masks]


def _shown(attached):
    return _calls(attached.value), attached.renames, attached.where, sorted(attached.columns)


def test_files_of_a_data_set_are_attached_each_or_all(tmp_path, monkeypatch, snapshots):
    monkeypatch.chdir(tmp_path)
    for name in ("a/1", "a/2", "a/3", "a/4", "b/1", "c/1", "c/2"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.jsonl").write_text('{"len": 3, "lens": [1, 2]}')
    texts = [
        'for "*" use causal', 'for "a/*" use causal', 'for "a/*" use causal  for "*" use full',
        'for "a/2*" use causal  for "*" having lens use full', 'for "*" having x use causal', "",
        'for "*" use document with doc_lens = lens', 'for "b/*" use document  for "*" use full',
        'for "*" use shared_question',
    ]  # fmt: skip
    found = {}
    for text in texts:
        spec, dataset = Spec.from_text(text, "a.dcpm"), read_dataset(".")
        each = said(lambda spec, rows: [*map(_shown, spec.attachments_of(rows))], spec, dataset)
        every = said(lambda spec, rows: _shown(spec.attachment_of(rows)), spec, dataset)
        found[text] = f"each: {each}\nall: {every}"
    snapshots.check("refusals_files", found)


PATTERNS = [
    "*", "a", "a/*", "*/a", "**/a", "a*", "*a*", "a?", "a.pq", "*.pq", "*/*.pq", "**/*.pq",
    "a/b/*", "[ab].pq", "[a*", "b/*/a.pq", "?",
]  # fmt: skip


def test_a_pattern_takes_all_files_of_another_as_paths_say(snapshots):
    names = ["a", "b", "ab", "a.pq", "[a"]
    paths = ["/".join(parts) for depth in (1, 2, 3) for parts in product(names, repeat=depth)]
    attached = [parse(f'for "{pattern}" use causal').statements[0] for pattern in PATTERNS]
    taken = [{path for path in paths if matches(pattern, path)} for pattern in PATTERNS]
    lines = []
    for i, first in enumerate(attached):
        row = ""
        for j, second in enumerate(attached):
            is_all = taken[i] >= taken[j]
            assert is_all or not _takes_all(first, second), (first.pattern, second.pattern)
            row += " =" if _takes_all(first, second) else " ?" if is_all else " ."
        lines.append(f"{PATTERNS[i]:10}{row}")
    snapshots.check("refusals_patterns", {"takes all of": "\n".join(lines)})


def test_a_stack_is_no_mask_and_a_mask_no_stack(snapshots):
    spec = Spec.from_text(TEXT, "a.dcpm")
    layers = spec.attachment("x/more.jsonl", ["question_len", "answer_lens"])
    alone = spec.attachment("sft/c.pq", ["reach", "lens"])
    rows = [{"len": 4, "reach": 2}, {"lens": [2, 1], "reach": 2}, {"len": 4}, {}]
    found = {
        "mask of a stack": said(lambda: layers.mask), "stack": said(lambda: _calls(layers.stack)),
        "mask": said(lambda: _calls(alone.mask)), "stack of a mask": said(lambda: alone.stack),
        "samples": "\n".join(said(alone.sample, row) for row in rows),
    }  # fmt: skip
    row = {"question_len": 1, "answer_lens": [2, 3]}
    for extra in ({}, {"len": 6}, {"len": 7}, {"length": 6}, {"tokens": [0] * 5}):
        found[f"layers with {extra}"] = said(layers.sample, row | extra)
    snapshots.check("refusals_stack", found)


def test_what_is_no_data_set_is_refused(tmp_path, monkeypatch, snapshots):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.jsonl").write_text('{"len": 3}')
    (tmp_path / "rows.txt").write_text("len")
    (tmp_path / "empty").mkdir()
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / ".rows.jsonl").write_text('{"len": 3}')
    (tmp_path / "hidden" / ".sub").mkdir()
    (tmp_path / "hidden" / ".sub" / "rows.jsonl").write_text('{"len": 3}')
    (tmp_path / "odd.parquet").write_bytes(b"PAR1")
    paths = [
        "train.jsonl", "trian.jsonl", "x/y.jsonl", "rows.txt", "rows", "empty", "hidden",
        "odd.parquet", "", "hf:", "train.jsonl/x",
    ]  # fmt: skip
    lines = told(
        paths, lambda path: [(s.name, s.num_rows, [*s.columns]) for s in find_sources(path)]
    )
    snapshots.check("refusals_data", {"paths": lines})


def test_samples_are_packed_first_fit():
    assert pack([], 4) == ()
    assert pack([4, 1, 3, 4, 0, 0], 4) == ((0,), (1, 2), (3, 4, 5))
    assert pack([0, 0], 0) == ((0, 1),)
    assert pack([1, 4, 3, 2, 2, 4, 0], 4, order="decreasing") == ((1, 6), (5,), (2, 0), (3, 4))
    assert pack([0, 5, 1], 5, order="decreasing") == ((1, 0), (2,))
    with pytest.raises(ValueError, match="order: expected 'in_order' or 'decreasing', got 'x'"):
        pack([1], 4, order="x")
