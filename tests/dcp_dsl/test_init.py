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
        (
            [{"prompt_len": 2, "answer_lens": [3, 2], "ids": [4, 5], "len": 7},
             {"prompt_len": 6, "answer_lens": [], "ids": [], "len": 6}],
            'for "*" having prompt_len, answer_lens use shared_question '
            "with question_len = prompt_len",
        ),
        (
            [{"asked": [2, 1], "said": [[3, 1], [2]], "len": 9},
             {"asked": [2], "said": [[2]], "len": 4}],
            'for "*" having asked, said use grpo with prompt_lens = asked, rollout_lens = said',
        ),
        (
            [{"pieces": [3, 1, 2], "up": [-1, 0, 0], "len": 6},
             {"pieces": [3], "up": [-1], "len": 3}],
            'for "*" having pieces, up use prompt_tree with node_lens = pieces, node_parents = up',
        ),
        (
            [{"pieces": [3, 1, 2], "at": [-1, 0, 0], "len": 6},
             {"pieces": [3, 2], "at": [-1, 2], "len": 5}],
            'for "*" having pieces, at use rollout_tree with branch_lens = pieces, '
            "branch_forks = at",
        ),
        (
            [{"n": 2, "tries": [3, 1, 2], "up": [-1, 0, 0], "len": 8}],
            'for "*" having n, tries, up use forks(window = 1024M) with prompt_len = n, '
            "rollout_lens = tries, rollout_parents = up",
        ),
        (
            [{"tokens": [7] * 60, "who": [0] * 13 + [1] * 17 + [2] * 15 + [3] * 15},
             {"tokens": [7] * 5, "who": [0, 0, 0, 1, 1]}],
            'for "*" having who use documents',
        ),
        (
            [{"tokens": [7] * 6, "segment_ids": [1, 1, 1, 2, 2, 2]}],
            'for "*" having segment_ids use documents',
        ),
        (
            [{"tokens": [7] * 7, "at": [0, 1, 2, 0, 1, 2, 3]}],
            'for "*" having at use documents',
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
    assert "sample first_row(" in text or "segment doc = " in text
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
    assert written == []  # causal would train answers on each other
    assert '# for "*" use causal' in text.splitlines()


CHOICES = {
    "two lists": ([{"asked": [2, 3], "said": [1, 4], "len": 10}], 1),
    "nested lists": ([{"asked": [[2, 3], [1, 4]], "len": 10}], 1),
    "a list in front": ([{"parts": [2, 3], "rest": 4, "len": 9}], 2),
    "turns": ([{"turn_lens": [2, 3, 4], "len": 9}], 1),
    "masks with the same columns": ([{"text_lens": [2, 3], "image_lens": [1, 2], "len": 8}], 3),
    "two lists that both fit": ([{"pages": [2, 3], "parts": [4, 1], "len": 5}], 2),
    "numbers": ([{"prompt_len": 2, "answer_len": 3, "len": 5}], 0),
    "tokens alone": ([{"tokens": [1, 2, 3]}], 0),
    "no length": ([{"scores": [1, 2, 3]}], 1),
}


@pytest.mark.parametrize("case", CHOICES)
def test_where_nothing_decides_no_mask_is_attached_and_every_choice_works(case, tmp_path):
    rows, number = CHOICES[case]
    text, said = told(tmp_path, *rows)
    assert not [line for line in text.splitlines() if line and not line.startswith("#")]
    assert "none is attached" in said
    choices = [line for line in text.splitlines() if " use " in line and line.startswith("# ")]
    assert len(choices) == number + 1
    assert choices[-1] == '# for "*" use causal'
    for at, line in enumerate(choices[: -1 if "scores" in rows[0] else None]):
        chosen = text.replace(line, line.removeprefix("# "))
        (tmp_path / f"{at}.dcpm").write_text(chosen)
        done = CliRunner().invoke(
            check, [str(tmp_path / f"{at}.dcpm"), "--dataset", str(tmp_path / "rows.jsonl")]
        )
        assert done.exit_code == 0, line + done.output


def test_a_data_set_without_the_columns_is_refused_by_the_file_for_another(tmp_path):
    data = write_rows(tmp_path, {"prompt_len": 4, "answer_lens": [2, 3], "len": 9})
    out = str(tmp_path / "a.dcpm")
    CliRunner().invoke(init, [data, "--out", out])
    write_rows(tmp_path, {"len": 9})
    checked = CliRunner().invoke(check, [out, "--dataset", data])
    assert "no statement matches" in checked.output
    assert checked.exit_code == 1


def rows_with_answers(count=40):
    found = []
    for number in range(count):
        answers = [2 + (number * at) % 7 for at in range(1, 2 + number % 4)]
        prompt = 3 + number % 11
        found.append({"tokens": [1] * (prompt + sum(answers)), "prompt_len": prompt,
                      "answer_lens": answers})  # fmt: skip
    return found


def warnings_of(folder, text, *rows):
    (folder / "a.dcpm").write_text(text)
    data = write_rows(folder, *rows)
    done = CliRunner().invoke(check, [str(folder / "a.dcpm"), "--dataset", data])
    assert done.exit_code == 0, done.output
    assert f"{len(rows)} of {len(rows)} rows accepted" in done.stderr
    return [line for line in done.output.splitlines() if line.startswith("  warning")]


def test_check_warns_of_columns_that_add_up_and_that_no_mask_reads(tmp_path):
    rows = rows_with_answers()
    (said,) = warnings_of(tmp_path, 'for "*" use causal', *rows)
    assert "columns `prompt_len` and `answer_lens` add up to the tokens of every row" in said
    statement = re.search(r"`(for .*?)` keeps them apart", said)[1]
    assert warnings_of(tmp_path, statement, *rows) == []
    for read in (
        "segment p = a[prompt_len] b[answer_lens]*  mask m = causal and (k in a or same(b))",
        "segment p = a[prompt_len] branch b[answer_lens]*  mask m = paths",
    ):
        assert warnings_of(tmp_path, f'{read} for "*" use m', *rows) == []


@pytest.mark.parametrize("name", ["seq_lens", "segment_ids", "cu_seqlens", "position_ids"])
def test_check_warns_of_documents_that_no_mask_reads(name, tmp_path):
    row = {"seq_lens": [3, 2, 1], "segment_ids": [1, 1, 1, 2, 2, 3],
           "cu_seqlens": [0, 3, 5, 6], "position_ids": [0, 1, 2, 0, 1, 0]}  # fmt: skip
    rows = [{"tokens": [1] * 6, name: row[name]}]
    (said,) = warnings_of(tmp_path, 'for "*" use causal', *rows)
    assert f"column `{name}` holds" in said
    read = [{**rows[0], "doc_lens": [3, 2, 1]}]
    assert warnings_of(tmp_path, 'for "*" use document', *read) == []


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
