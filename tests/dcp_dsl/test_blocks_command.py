"""`dcpm blocks` and `dcpm diff`, on every mask of the real specs."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dcp_dsl import Sample, dense_mask, load
from dcp_dsl.commands.masks import blocks, diff

SPECS = Path(__file__).parents[1] / "fixtures" / "specs"
COLUMNS = {
    "question_len": 4, "answer_lens": [3, 0, 1, 2], "demo_lens": [3, 4, 3],
    "doc_lens": [5, 1, 0, 4], "prefix_len": 3, "text_lens": [3, 1, 0], "image_lens": [2, 0, 4],
    "prompt_lens": [2, 1], "rollout_lens": [[2, 3], [0, 2]], "prompt_len": 2, "chosen_len": 5,
    "rejected_len": 3, "passage_lens": [2, 5], "system_len": 3, "chat_lens": [4, 3],
    "evict": [3, 5, 9, 4, 5, 9, 8, 10, 10, 10],
}  # fmt: skip
MASKS = [(path.name, name) for path in sorted(SPECS.glob("*.dcpm")) for name in load(path).masks]


def run(command, *arguments):
    result = CliRunner().invoke(command, list(arguments), catch_exceptions=False)
    return result.exit_code, result.stdout


@pytest.mark.parametrize(("file", "name"), MASKS)
def test_blocks_of_every_mask_of_the_specs_add_up(file, name):
    mask = load(SPECS / file).mask(name)
    columns = {c: COLUMNS[c] for c in mask.columns}
    given = json.dumps({**columns, "len": 10})
    code, out = run(
        blocks, str(SPECS / file), "--mask", name, "--sample", given, "--block", "3", "--json"
    )
    document = json.loads(out)
    dense = dense_mask(mask, Sample(columns, 10))
    assert (code, document["schema"], document["tokens"]) == (0, "dcp.blocks/1", 10)
    borders = [0, 3, 6, 9]
    counts = np.add.reduceat(np.add.reduceat(dense.astype(int), borders, axis=0), borders, axis=1)
    expected = [[i, j, int(counts[i, j])] for i, j in np.argwhere(counts).tolist()]
    assert document["blocks"] == expected
    assert document["pairs"] == dense.sum()


def test_blocks_takes_calls_names_of_samples_and_files(tmp_path):
    file = tmp_path / "sample.json"
    file.write_text('{"question_len": 4, "answer_lens": [3, 3, 2]}')
    spec = str(SPECS / "04_shared_question.dcpm")
    answers = [
        run(blocks, spec, "--mask", "shared_question", "--sample", sample, "--json")[1]
        for sample in ("tiny", str(file), file.read_text())
    ]
    assert len(set(answers)) == 1
    _, out = run(blocks, "--mask", "sliding(window = 9)", "--len", "4k", "--block", "512", "--json")
    assert json.loads(out)["pairs"] == 9 * 4096 - 36
    _, text = run(blocks, "--mask", "streaming(64, 1k)", "--len", "8k")
    assert "form slabs" in text


def test_diff_says_which_mask_holds_the_other():
    code, out = run(diff, "sliding(3)", "causal", "--sample", '{"len": 9}', "--json")
    document = json.loads(out)
    assert (code, document["equal"], document["left_implies_right"]) == (1, False, True)
    assert (document["only_right"], document["first"]) == (21, [3, 0])
    assert run(diff, "sliding(3)", "causal and q - k < 3", "--len", "9")[0] == 0
    assert "differ" in run(diff, "not causal", "sliding(2)", "--len", "9")[1]


def test_sizes_of_blocks_are_written_as_in_the_language():
    command = [str(SPECS / "01_causal.dcpm"), "--mask", "causal", "--len", "8k", "--json"]
    code, out = run(blocks, *command, "--block", "4k")
    assert (code, json.loads(out)["block"]) == (0, 4096)
    for wrong in ("0", "-1", "x", ""):
        result = CliRunner().invoke(blocks, [*command, "--block", wrong])
        assert (result.exit_code, result.stdout) == (2, "")
        assert "--block: expected" in result.stderr
