"""`dcpm init`: a first file from the columns of a data set, which `dcpm check` accepts."""

import json
import re

import pytest
from click.testing import CliRunner

from dcp_dsl.cli import dcpm
from dcp_dsl.commands.exchange import init
from dcp_dsl.commands.texts import check


def write_rows(folder, *rows):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(
    ("rows", "statement"),
    [
        (
            [{"question_len": 3, "answer_lens": [2, 2], "len": 7},
             {"question_len": 1, "answer_lens": [4], "len": 5}],
            'for "*" having answer_lens, question_len use shared_question',
        ),
        (
            [{"prompt_len": 4, "chosen_len": 2, "rejected_len": 3}],
            'for "*" having chosen_len, prompt_len, rejected_len use dpo',
        ),
        (
            [{"tokens": [7, 8, 9, 7, 8], "pages": [3, 2]}],
            'for "*" having pages use document with doc_lens = pages',
        ),
    ],
)  # fmt: skip
def test_the_mask_that_fits_the_rows_is_proposed_and_checked(rows, statement, tmp_path):
    data, out = write_rows(tmp_path, *rows), str(tmp_path / "a.dcpm")
    made = CliRunner().invoke(init, [data, "--out", out])
    assert made.exit_code == 0, made.output
    text = (tmp_path / "a.dcpm").read_text()
    assert statement in text.splitlines()
    named = ", ".join(f"`{column}`" for column in rows[0])
    about = text.partition("# `dcpm show")[0].replace("\n# ", " ")
    assert about == f"# Masks for {data}, with columns {named}.\n"
    assert "sample first_row(" in text
    assert CliRunner().invoke(check, [out]).exit_code == 0
    checked = CliRunner().invoke(check, [out, "--dataset", data])
    assert checked.exit_code == 0, checked.output
    assert f"{len(rows)} of {len(rows)} rows accepted" in checked.stderr


def told(folder, *rows):
    """Return the file that is proposed for rows, and what is said about it."""
    made = CliRunner().invoke(init, [write_rows(folder, *rows), "--out", "-"])
    return made.stdout, made.stderr


def test_columns_whose_rows_do_not_fit_a_layout_propose_nothing(tmp_path):
    row = {"a\nmask b = causal": 1, "question_len": 3, "answer_lens": [2, 2], "len": 9}
    text, said = told(tmp_path, row)
    assert "0 masks of the library fit" in said
    written = [line for line in text.splitlines() if line.startswith(("for", "mask"))]
    assert written == ["mask document = paths", 'for "*" use causal']


def test_names_of_columns_cannot_command_a_terminal(tmp_path):
    text, said = told(tmp_path, {"a\x1b[2J": 1, "len": 9})
    assert "\\x1b[2J" in said
    assert "\x1b" not in text + said


def test_the_ids_of_tokens_are_no_lengths_of_documents(tmp_path):
    text, said = told(tmp_path, {"tokens": [1, 1, 1]}, {"tokens": [2, 1, 0]})
    assert "0 masks of the library fit" in said
    assert "doc_lens = tokens" not in text


def test_the_commands_that_the_file_names_run(tmp_path):
    data = write_rows(tmp_path, {"pages": [3, 2], "tokens": [7, 8, 9, 7, 8]})
    out = str(tmp_path / "a.dcpm")
    assert CliRunner().invoke(init, [data, "--out", out]).exit_code == 0
    named = re.findall(r"`dcpm (.*?)`", (tmp_path / "a.dcpm").read_text())
    assert [line.split()[0] for line in named] == ["show", "explain"]
    for line in named:
        done = CliRunner().invoke(dcpm, line.replace("FILE", out).split())
        assert done.exit_code == 0, done.output
