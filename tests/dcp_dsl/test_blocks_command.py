"""`dcpm blocks`, on every mask of the real specs."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dcp_dsl import Sample, dense_mask, load
from dcp_dsl.commands.masks import blocks

SPECS = Path(__file__).parents[1] / "fixtures" / "specs"
COLUMNS = {
    "question_len": 4, "answer_lens": [3, 0, 1, 2], "demo_lens": [3, 4, 3],
    "doc_lens": [5, 1, 0, 4], "prefix_len": 3, "text_lens": [3, 1, 0], "image_lens": [2, 0, 4],
    "prompt_lens": [2, 1], "rollout_lens": [[2, 3], [0, 2]], "prompt_len": 2, "chosen_len": 5,
    "rejected_len": 3, "passage_lens": [2, 5], "system_len": 3, "chat_lens": [4, 3],
    "evict": [3, 5, 9, 4, 5, 9, 8, 10, 10, 10],
    "question length": 3, "文档长度": [4, 3], "for": [-1, 0],
    "größe": [3, 1, 0, 2, 2, 5, 4, 1, 0, 9], "max distance": 6, "top k": [[0, -1]] * 10,
    "patch width": [3, 1], "größe # 2": [0, 0, 1, 1, -1, 0, 0, 1, 0, 0],
}  # fmt: skip
MASKS = [(path.name, name) for path in sorted(SPECS.glob("*.dcpm")) for name in load(path).masks]


@pytest.mark.parametrize(("file", "name"), MASKS)
def test_blocks_of_every_mask_of_the_specs_add_up(file, name):
    mask = load(SPECS / file).mask(name)
    columns = {c: COLUMNS[c] for c in mask.columns}
    given = json.dumps({**columns, "len": 10})
    arguments = [str(SPECS / file), "--mask", name, "--sample", given, "--block", "3", "--json"]
    document = json.loads(CliRunner().invoke(blocks, arguments).stdout)
    dense = dense_mask(mask, Sample(columns, 10))
    borders = [0, 3, 6, 9]
    counts = np.add.reduceat(np.add.reduceat(dense.astype(int), borders, axis=0), borders, axis=1)
    expected = [[i, j, int(counts[i, j])] for i, j in np.argwhere(counts).tolist()]
    assert document["blocks"] == expected
    assert document["pairs"] == dense.sum()
