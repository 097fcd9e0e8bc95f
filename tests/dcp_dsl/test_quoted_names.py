"""Names of columns in quotes: words of the language, names with spaces, letters of all scripts."""

import json
import random
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from dcp_dsl import Sample, Spec, check, dense_mask, read_dataset
from dcp_dsl.commands.exchange import init
from dcp_dsl.commands.texts import check as check_command
from dcp_dsl.coverage.dataset_checker import check_dataset
from dcp_dsl.elaboration.programs import show_mask
from dcp_dsl.language_server import complete_at
from dcp_dsl.language_server.document import Document
from dcp_dsl.language_server.names import TYPES, coloured, rename
from dcp_dsl.specs.spec import sample_from_argument
from dcp_dsl.syntax.ast_builder import MAX_QUOTED
from dcp_dsl.syntax.parser import parse, parse_expression
from dcp_dsl.syntax.trees import unparse

NAMES = (
    "for",
    "größe",
    "文档长度",
    "my col",
    "sees",
    "3d",
    "a.b",
    "x # y",
    "len x",
    "-1",
    "x" * MAX_QUOTED,
)

# A text with @ in place of a column, and the columns of two rows. Every place that names a column.
PLACES = {
    "a layout": ("segment d = doc[@]*  mask m = causal and same(d)", [[2, 1], [3]]),
    "an arithmetic length": ("segment d = a[@ + 1] b[..]  mask m = causal and same(d)", [1, 2]),
    "parents": ("segment d = branch doc[lens]* from @  mask m = paths", [[-1, -1], [-1]]),
    "ids": ("segment r = ids(@) as a  mask m = q in a and causal or q == k", [[0, -1, 0], [0] * 3]),
    "spans": ("segment s = spans(@)  mask m = causal and same(s) or q == k", [[[0, 2]], [[1, 3]]]),
    "a token": ("token t = @  mask m = causal and k.t >= q.t", [[3, 1, 2], [1, 1, 1]]),
    "a list": ("token t[2] = @  mask m = causal and k in q.t or q == k", [[[0, 1]] * 3] * 2),
    "a token of its own name": ("token @  mask m = causal and k.@ >= q.@", [[3, 1, 2], [1, 1, 1]]),
    "instances": (
        "segment d = doc[lens]*  column w in doc = @  mask m = causal and q - k < q.doc.w",
        [[1, 2], [2]],
    ),
    "instances by their own name": (
        "segment d = doc[lens]*  column @ in doc  mask m = causal and q - k < q.doc.@",
        [[1, 2], [2]],
    ),
    "a row": ("mask m = causal and q - k < row.@", [1, 2]),
}  # fmt: skip


def plain_rows(values):
    return [{"len": 3, "lens": [2, 1], "x": values[0]}, {"len": 3, "lens": [3], "x": values[1]}]


def masks_of(text, rows):
    spec = Spec.from_text(text)
    attached = spec.attachment("rows", list(rows[0]))
    return [dense_mask(attached.mask, attached.sample(row)) for row in rows]


@pytest.mark.parametrize(("text", "values"), PLACES.values(), ids=PLACES)
def test_a_quoted_column_means_what_a_bare_one_does(text, values):
    """The oracle is the same text and the same rows with the bare name `x`."""
    rows = plain_rows(values)
    expected = masks_of(text.replace("@", "x") + '  for "*" use m', rows)
    for name in random.Random(text).sample(NAMES, 3):
        compare_places(text, rows, name, expected)


def compare_places(text, rows, name, expected):
    renamed = [{name if key == "x" else key: value for key, value in row.items()} for row in rows]
    quoted = text.replace("@", f'"{name}"')
    got = masks_of(f'{quoted}  for "*" having "{name}" use m', renamed)
    assert all(map(np.array_equal, got, expected))
    aliased = f'{text.replace("@", "x")}  for "*" use m with x = "{name}"'
    assert all(map(np.array_equal, masks_of(aliased, renamed), expected))
    other = f'{quoted}  for "*" use m with "{name}" = "its {name[:9]}"'
    again = [{f"its {name[:9]}" if k == name else k: v for k, v in row.items()} for row in renamed]
    assert all(map(np.array_equal, masks_of(other, again), expected))


@pytest.mark.parametrize("name", NAMES)
def test_a_quoted_column_is_an_argument_and_a_column_of_samples(name):
    for use in (f'sliding(window = "{name}")', f'sliding(row."{name}")'):
        spec = Spec.from_text(f'for "*" having "{name}" use {use}')
        attached = spec.attachment("rows", [name, "len"])
        expected = dense_mask(Spec.from_text("").mask("sliding(2)"), Sample({}, 4))
        got = dense_mask(attached.mask, attached.sample({name: 2, "len": 4}))
        assert np.array_equal(got, expected)
    spec = Spec.from_text(f'segment d = ["{name}"]*\nsample s("{name}" = [2, 1])')
    assert spec.sample("s") == Sample({name: [2, 1]}, 3)
    assert sample_from_argument(spec, f'"{name}" = [4]') == Sample({name: [4]}, 4)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_files_with_such_columns_are_checked_and_read(tmp_path, kind):
    rows = [{"größe": [2, 1], "for": 2}, {"größe": [3], "for": 1}, {"größe": [1], "for": None}]
    path = tmp_path / f"rows.{kind}"
    if kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    (tmp_path / "m.dcpm").write_text(
        'segment d = doc["größe"]*\nmask near = causal and same(d) and q - k < row.window\n'
        'for "*" having "größe" use near with window = "for"\n'
    )
    done = CliRunner().invoke(check_command, [str(tmp_path / "m.dcpm"), "--dataset", str(path)])
    assert "2 of 3 rows accepted" in done.output
    assert "column `for` has a missing value" in done.output
    dataset = read_dataset(path)
    attached = Spec.from_text((tmp_path / "m.dcpm").read_text()).attachment_of(dataset)
    assert attached.sample(dataset[0]) == Sample({"größe": [2, 1], "window": 2}, 3)
    report = check_dataset(
        Spec.from_text('for "*" use document with doc_lens = "größe"'), str(path)
    )
    assert (report.num_rows, report.num_refused) == (3, 0)


def test_quotes_that_are_not_needed_change_nothing():
    for text in ("segment d = a[@] b[@ // 2]", "token t = @", 'for "*" having @ use m with @ = @'):
        assert parse(text.replace("@", "lens")) == parse(text.replace("@", '"lens"'))
    assert unparse(parse_expression('row."lens" + q."t"')) == "row.lens + q.t"


def test_expressions_are_written_so_that_they_mean_the_same():
    for text in ('row."for" < 3', '"a b" < q."größe"', 'q - k < row."len"', 'f("a", b = "c d")'):
        tree = parse_expression(text)
        assert parse_expression(unparse(tree)) == tree
    mask = Spec.from_text('token "a b" = c  mask m = q."a b" < row."for" and causal').mask("m")
    assert 'q."a b" < row."for"' in show_mask(mask.core)


UNQUOTED = {
    "segment d = branch [größe]*": "größe", "segment d = branch [文档长度]*": "文档长度",
    "segment d = branch [my long col]*": "my long col", "segment d = branch [for]*": "for",
    "segment d = branch [a]* from per": "per", "segment d = x[3d]": "3d",
    "segment r = ids(my col) as a": "my col", "segment r = ids(mask) as a": "mask",
    "token for": "for", "token größe": "größe", "token my col": "my col", "token per": "per",
    "token len": "len", "token t = sees": "sees", "token t = my col": "my col",
    'for "*" use causal with lens = for': "for", 'for "*" use causal with my col = x': "my col",
    'for "*" use causal with for = x': "for", 'for "*" having my col use causal': "my col",
    'for "*" having in use causal': "in", "sample s(for = 3)": "for",
    "sample s(my col = 3)": "my col",
    "sample s(größe = 3)": "größe", "mask m = causal and q - k < row.my col": "my col",
    "mask m = (causal and q - k < row.mask)": "mask", "mask m = causal and q - k < row.für": "für",
}  # fmt: skip


@pytest.mark.parametrize(("text", "name"), UNQUOTED.items())
def test_a_name_without_quotes_is_told_them_and_with_them_it_is_read(text, name):
    (found,) = check(text)
    (shown,) = re.findall(r"a column of this name is written `(.*?)`", found.hint)
    assert shown == f'"{name}"'
    written = shown.join(text.rsplit(name, 1))
    assert not [d for d in check(written) if d.severity == "error"], written


@pytest.mark.parametrize(
    "text", ["mask größe = causal", "mask for = causal", "segment my d = x[a]"]
)
def test_names_that_are_defined_here_have_no_quotes(text):
    assert check(text)
    assert check('mask "for" = causal')[0].code == "E017"


@pytest.mark.parametrize("name", ["", "a\tb", "a\x1bb", "a\u202eb", "x" * (MAX_QUOTED + 1)])
def test_names_in_quotes_are_bounded(name):
    for text in (f'token "{name}"', f'segment d = ["{name}"]*', f'for "*" use m with a = "{name}"'):
        assert check(text)[0].code == "E028"
    assert check('token "a\nb"')[0].code == "E018"


def test_an_instance_has_no_column_that_is_called_as_a_place():
    text = "segment d = doc[lens]*\ncolumn @ in doc\nmask m = causal and same(d)"
    (found, *_) = check(text.replace("@", '"len"'))
    assert found.code == "E109"
    other = re.search(r"`column (other) in S = (\"len\")`", found.hint)
    assert "E109" not in [
        d.code for d in check(text.replace("@ in doc", f"other in doc = {other[2]}"))
    ]


def test_programs_of_other_names_have_other_digests():
    texts = ('token "a b" = c', 'token a = "b c"')
    forms = []
    for text in texts:
        name = '"a b"' if "a b" in text else "a"
        mask = Spec.from_text(f"{text}  @ahead @partial mask m = q * k % 7 < q.{name}").mask("m")
        columns = {"c": [1, 2, 3], "b c": [1, 2, 3]}
        forms.append(mask.compile(Sample({c: columns[c] for c in mask.columns}, 3)))
    assert [form.form for form in forms] == ["tiles", "tiles"]
    assert forms[0].parts[0].name != forms[1].parts[0].name


# ---- editors and `dcpm init` ---------------------------------------------------------------------

EDITED = 'segment d = doc["my col"]*\ntoken "größe"\nmask m = causal and q."größe" < 3\n'


def test_completion_writes_quotes_where_names_need_them():
    columns = [p.text for p in complete_at(EDITED + 'for "*" having ', len(EDITED) + 15)]
    assert {'"my col"', '"größe"'} <= set(columns)
    assert '"größe"' in [p.text for p in complete_at(EDITED + "mask n = q.", len(EDITED) + 11)]


def test_a_quoted_name_is_coloured_and_renamed_as_a_whole():
    document = Document(EDITED, "a.dcpm", "utf-32")
    found = {EDITED[start:end]: TYPES[kind] for start, end, kind, _ in coloured(document)}
    assert found['"größe"'] == found['"my col"'] == "property"
    text, at = "", 0
    for span in rename(document, EDITED.index('"größe"') + 1, "size"):
        text, at = text + EDITED[at : span.start] + "size", span.end
    assert text + EDITED[at:] == EDITED.replace('"größe"', "size")


def test_the_first_file_of_a_data_set_has_quotes_where_names_need_them(tmp_path):
    path, out = tmp_path / "rows.jsonl", tmp_path / "a.dcpm"
    row = {"tokens": [7, 8, 9, 7, 8], "文档 lens": [3, 2], 'with "quotes"': [3, 2], "a\nb": [3, 2]}
    path.write_text(json.dumps(row))
    made = CliRunner().invoke(init, [str(path), "--out", str(out)])
    assert made.exit_code == 0, made.output
    statement = 'for "*" having "文档 lens" use document with doc_lens = "文档 lens"'
    assert statement in out.read_text().splitlines()
    done = CliRunner().invoke(check_command, [str(out), "--dataset", str(path)])
    assert "1 of 1 row" in done.output, done.output


def test_a_date_beyond_those_of_python_keeps_no_first_file_from_being_written(tmp_path):
    dates = pa.array([2**60], pa.timestamp("us"))
    path, out = tmp_path / "rows.parquet", tmp_path / "a.dcpm"
    pq.write_table(pa.table({"doc_lens": [[3, 2]], "at": dates}), path)
    made = CliRunner().invoke(init, [str(path), "--out", str(out)])
    assert made.exit_code == 0, made.output
    assert 'for "*" having doc_lens use document' in out.read_text()
