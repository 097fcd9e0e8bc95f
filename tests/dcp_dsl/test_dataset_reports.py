"""Whole reports on data sets: rows of every kind, refused ones with the reason, distributions."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dcp_dsl import DatasetError, Spec, read_dataset
from dcp_dsl.coverage.dataset_checker import check_dataset

SPECS = {
    "parts": """
segment part = question[q] answer[a]*
mask shared = causal and (k in question or same(answer))
for "*" use shared with q = asked""",
    "nests": """
segment grp = group(prompt[p] rollout[r]*)*
mask m = causal and same(group) and (k in prompt or same(rollout))
for "*" use m""",
    "a rest": """
segment part = head[q] body[..]
mask prefix = causal and (k in head or same(body))
for "*" use prefix""",
    "arithmetic": """
segment part = noisy[len // 2] clean[q] tail[2]
mask halves = causal and same(part)
for "*" use halves""",
    "a tree": """
segment part = ask[q] branch try[a]* from up
for "*" use m  mask m = paths""",
    "tokens": """
token evict = e
mask kept = k <= q and q < k.evict
for "*" use kept""",
    "a row": """
mask near = causal and q - k < row.w
for "*" use near""",
    "a row ahead": """
mask ahead = q - k < row.w and k - q < row.v
@partial mask behind = k <= q + row.v
stack s = ahead, behind
for "*" use s with v = w""",
    "segments by columns": """
segment role = ids(r) as user, bot
segment span = spans(s)
segment mark = flags(f)
@ahead(mark) mask m = causal and (same(role) or k in span) or q == k or same(mark)
for "*" use m""",
    "lists and instances": """
segment doc = [lens]*
token sel[2]
column weight in doc
mask m = causal and (k in q.sel or q.doc.weight > 0 and same(doc) or q == k)
for "*" use m""",
    "lists alone": """
token sel[2]
mask m = causal and (k in q.sel or q == k)
for "*" use m""",
    "instances alone": """
segment doc = [lens]*
column weight in doc
mask m = causal and (q.doc.weight > k.doc.weight or q == k)
for "*" use m""",
    "layers": """
stack s = 2 of sliding(2), heads { 0..1: causal  rest: chunked(4) }
for "*" having long use s
for "b*" use causal""",
    "keys": """
segment cache = past[p] chunk[c]
@keys(cache) mask m = k in past
for "*" use m""",
}
TABLES = {
    "parts": {
        "asked": pa.array([2, 2, None, -1, 3, 0, 2, 1, 2**62, 5]),
        "a": pa.array([[1, 3], [1, 3], [1], [4], [None, 1], None, [], [-2, 6], [2**62], [2]],
                      pa.large_list(pa.int64())),
        "len": pa.array([6, 7, 2, 3, 5, 1, 2, 5, 10, 7], pa.int16()),
    },
    "nests": {
        "p": pa.array([[1, 2], [1], [0], None, [2, 1], [3, 3]], pa.list_(pa.int8())),
        "r": pa.array([[[1], [2, 2]], [[1], [1]], [[]], [[1]], [[1, None], []], [[1], [1]]],
                      pa.list_(pa.list_(pa.uint64()))),
    },
    "a rest": {
        "q": pa.array([2, 5, 0, 3, -1], pa.int8()),
        "tokens": pa.array([[1] * 4, [1] * 4, [], [7] * 3, [1]], pa.list_(pa.int32())),
    },
    "arithmetic": {
        "q": [2, 2, 1, 1, None], "length": pa.array([8, 9, 6, 5, 8], pa.uint64()),
        "input_ids": pa.array([b"12345678", b"123456789", b"1234567", b"12345", b"12345678"]),
    },
    "a tree": {
        "q": [1, 2, 1, 1], "a": [[2, 2], [1], [1, 1], [1]], "up": [[-1, 0], [0], [-1, -1], []],
        "len": [5, 3, 3, 2],
    },
    "tokens": {
        "e": [[3, 3, 3], [3, 1, 3], [9, 9], [1, 2, 3, 4], [0], [2**51, 5]],
        "len": [3, 3, 3, 4, 1, 2],
    },
    "a row": {"w": [3, 1, 0, 5, 2, 2, 2, 2, 2, 2], "len": [4, 3, 2, 0, 1, 1, 2, 2**31, -3, None]},
    "a row ahead": {"w": [1] * 9 + [2, 0], "len": [*range(11)]},
    "segments by columns": {
        "r": [[0, 0, 1], [0, 2, 1], [-1, -1, 1], [0, 0], [1, 1, 1], [0, 0, 1]],
        "s": [[[0, 2]], [], [[1, 5]], [[0, 1]], [[2, 1]], [[0, 1], [2, 3]]],
        "f": [[0, 1, 1], [1, 0, 1], [0, 0, 0], [0, 0, 0], [1, 1, 1], [0, 3, 0]],
        "len": [3, 3, 3, 3, 3, 3],
    },
    "lists and instances": {
        "lens": [[2, 1], [1, 2], [3], [2, 1], [2, 1]],
        "sel": [[[0, 1], [0, -1], [2, 0]], [[0, 3], [0, 0], [0, 0]], [[0, 1], [1, 1]],
                [[0, 1], [0, 1], [-1, -1]], [[0], [1], [1]]],
        "weight": [[1, 0], [1, 1], [4], [1], [0, 1]],
    },
    "lists alone": {"sel": [[[0, 1], [1, 1]], [[0], [1]], [[0, 5], [0, 0]]], "len": [2, 2, 2]},
    "instances alone": {"lens": [[2, 1], [2, 1], [1]], "weight": [[3, 4], [3], [1]]},
    "layers": {"long": [1] * 13, "len": [4 * 2**i for i in range(13)]},
    "keys": {"p": [1, 2], "c": [1, 1], "len": [1, 1]},
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # names in reports are relative
    return tmp_path


def told(spec, path):
    """Return the report on a data set, with the bins of its distributions."""
    coverage = check_dataset(spec, path)
    lines = [coverage.text()]
    for statement in coverage.to_json()["statements"]:
        for name, spread in {"lengths": statement["lengths"], **statement["densities"]}.items():
            values = (spread[key] for key in ("count", "min", "median", "mean", "max", "total"))
            edges = ", ".join(f"{edge:.4g}" for edge in spread["edges"])
            lines.append(f"{name}: {', '.join(f'{v:.6g}' for v in values)} in {spread['bins']}")
            lines.append(f"    by {edges}")
    return "\n".join(lines)


@pytest.mark.parametrize("name", SPECS)
def test_rows_of_every_kind_are_taken_or_refused_with_the_reason(name, folder, snapshots):
    spec = Spec.from_text(SPECS[name], "a.dcpm")
    pq.write_table(pa.table(TABLES[name]), "rows.parquet")
    first = check_dataset(spec, "rows.parquet")
    snapshots.check(f"dataset_{name.replace(' ', '_')}", {SPECS[name]: told(spec, "rows.parquet")})
    for size in (1, 3):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("dcp_dsl.data.sources.BATCH_ROWS", size)
            assert check_dataset(spec, "rows.parquet") == first


FILES = {
    "chat/a.jsonl": [{"q": 2, "a": [1, 1], "len": 4 + (i > 2)} for i in range(16)],
    "chat/b.jsonl": [{"q": 2, "a": [1, 1], "note": "x"}, {"q": 1, "a": [3], "note": None}],
    "chat/more/c.ndjson": [{"len": 7}],
    "chat/more/d.jsonl": [{"q": "two", "a": [1]}],
    "web/e.jsonl": [{"len": i} for i in range(0, 300, 3)],
    "web/f.jsonl": [{"len": 5, "tokens": [1, 2]}, {"len": 2, "tokens": [1, 2]}],
    "web/g.jsonl": [{"text": "abc"}, {"text": "d"}],
    "web/h.jsonl": [{"tokens": ["a"]}],
    "long/i.jsonl": [{"e": [9] * 40 + [0]}, {"e": [100] * 30}],
    "long/j.jsonl": [{"e": [[1, 2]]}],
    ".hidden/k.jsonl": [{"len": 3}],
    "other/l.jsonl": [{}],
}


def test_a_folder_is_told_statement_by_statement(folder, snapshots):
    for name, rows in FILES.items():
        (folder / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "data" / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    pq.write_table(pa.table({"len": pa.array([], pa.int64())}), "data/web/z.parquet")
    text = (
        "segment part = question[q] answer[a]*\ntoken e\n"
        "mask shared = causal and (k in question or same(answer))\n"
        "@partial mask kept = causal and k.e > q and row.n > 0\n"
        'for "chat/*" having q, a use shared\n'
        'for "long/*" use kept with n = e\nfor "long/*" use causal\n'
        'for  "web/*"  use\n    sliding(4)\n'
    )
    found = {text: told(Spec.from_text(text, "a.dcpm"), "data")}
    text = text.replace(" with n = e", "").replace(" and row.n > 0", "")
    found[text] = told(Spec.from_text(text, "a.dcpm"), "data/long")
    snapshots.check("dataset_folder", found)


INT = pa.int64()
LIST = pa.list_(INT)
SHAPES = {
    "segment part = a[x] b[ys]*  mask m = causal and same(part)": {"x": INT, "ys": LIST},
    "segment s = g(a[xs] b[yss]*)*  mask m = causal and same(a) or q == k": {
        "xs": LIST, "yss": pa.list_(LIST),
    },
    "segment s = g(h(b[ysss]*)*)*  mask m = causal and same(b)": {"ysss": pa.list_(pa.list_(LIST))},
    "token t  mask m = causal and q.t == k.t": {"t": LIST},
    "mask m = causal and q - k <= row.n": {"n": INT},
}  # fmt: skip
KINDS = [
    pa.int8(), pa.bool_(), pa.null(), pa.string(), pa.list_(INT), pa.list_(INT, 2),
    pa.list_(pa.float32()), pa.large_list(pa.list_(pa.null())), pa.list_(pa.list_(LIST)),
]  # fmt: skip


def test_columns_of_another_shape_are_refused_with_what_is_wanted(folder, snapshots):
    found = {}
    for text, right in SHAPES.items():
        spec = Spec.from_text(f'{text}  for "*" use m', "a.dcpm")
        for name in right:
            lines = []
            for kind in KINDS:
                kinds = {"len": INT} | right | {name: kind}
                table = {column: pa.array([], each) for column, each in kinds.items()}
                pq.write_table(pa.table(table), "a.parquet")
                (statement,) = check_dataset(spec, "a.parquet").statements
                problem = statement.problems[-1].split("; ")[0] if statement.problems else "taken"
                lines.append(f"{kind}: {problem}")
            found[f"{text}: {name}"] = "\n".join(lines)
    snapshots.check("dataset_shapes", found)


def refusal(act, *arguments):
    """Return what a call says where it refuses something, or what it gives."""
    try:
        return str(act(*arguments))
    except DatasetError as error:
        return f"refused: {error}"


LINES = {
    "a row": '{"len": 3}\n\n {"len": 4} \n',
    "nothing": "",
    "blank lines": "\n  \n",
    "null": '{"len": 1}\nnull',
    "a list": '{"len": 1}\n[1]',
    "a half": '{"len": 1}\n{"len": 2',
    "half a text": '{"len": 1}\n{"len": "x}',
    "two rows": '{"len": 1} {"len": 2}',
    "other kinds": '{"a": 1, "b": true}\n{"a": 2, "b": null}\n{"a": 3, "b": [1]}',
    "an object": '{"a": {"b": 1}}\n{"a": 1.5}',
    "a text": '{"a": "x"}\n{"a": {}}',
    "a null first": '{"a": null}\n{"a": 1}\n{"a": "x"}',
    "mixed lists": '{"a": [1]}\n{"a": ["x"]}',
    "numbers": '{"a": 1}\n{"a": 2.5}',
    "deep": '{"a": ' + "[" * 501 + "]" * 501 + "}",
    "not too deep": '{"a": ' + "[" * 99 + "]" * 99 + "}",
    "flat and wide": '{"a": [' + "[1]," * 600 + "[2]]}",
    "deep in a text": json.dumps({"a": "[{" * 501}),
    "deep and broken": '{"a": 1}\n{"b": "' + "[" * 501 + '"]}',
    "a mark": '\ufeff{"len": 1}',
    "a mark alone": "\ufeff\n",
    "null behind a mark": '\ufeffnull\n{"len": 1}',
    "null between rows": '{"len": 1} null {"len": 2}',
    "a row in two lines": '{"len": 1}\n{"len":\n2}',
    "a comment": '{"len": 1} //',
}


def test_lines_that_are_no_rows_are_named(folder, snapshots):
    found = {}
    for name, text in LINES.items():
        (folder / "a.jsonl").write_text(text, encoding="utf-8")
        shown = text if len(text) < 100 else f"{text[:30]}..."
        found[f"{name}: {shown!r}"] = refusal(read_dataset, "a.jsonl")
    snapshots.check("dataset_lines", {"": "\n".join(f"{k}\n    {v}" for k, v in found.items())})


COLUMNS = {
    "len": [3, 0], "length": [3, 0], "tokens": [[1, 2, 3], []], "input_ids": [b"abc", b""],
}  # fmt: skip
ODD = {
    "another length": {"length": [3, 1]},
    "other tokens": {"tokens": [[1, 2], []]},
    "a missing length": {"len": pa.array([None, 0], pa.int64())},
    "missing tokens": {"tokens": pa.array([[1, 2, 3], None], pa.list_(pa.int64()))},
    "a negative length": {"len": [0, -3], "length": [0, -3], "tokens": None, "input_ids": None},
    "a text as tokens": {"tokens": ["abc", ""]},
    "a float as length": {"length": [3.0, 0.0]},
    "texts in tokens": {"len": None, "tokens": [["a", "b", "c"], []]},
    "floats in tokens": {"tokens": [[1.5, 2, 3], []]},
    "a hole in tokens": {"tokens": [[1, None, 3], []]},
    "large tokens": {"tokens": pa.array([[1, 2, 2**64 - 1], []], pa.list_(pa.uint64()))},
    "a large length": {"len": pa.array([2**64 - 1, 0], pa.uint64())},
    "bytes alone": {"len": None, "length": None, "tokens": None},
    "no length": {"len": None, "length": None, "tokens": None, "input_ids": None, "x": [1, 2]},
    "no columns": {"len": None, "length": None, "tokens": None, "input_ids": None},
}


def test_lengths_and_tokens_are_given_or_refused(folder, snapshots):
    found = {}
    for name, changes in {"all": {}, **ODD}.items():
        columns = {key: v for key, v in (COLUMNS | changes).items() if v is not None}
        pq.write_table(pa.table(columns), "a.parquet")
        dataset = read_dataset("a.parquet")
        said = [repr(dataset), refusal(lambda dataset=dataset: dataset.lengths)]
        said += [refusal(dataset.tokens, row) for row in range(len(dataset))]
        found[name] = "\n".join(said)
    snapshots.check("dataset_lengths", found)
