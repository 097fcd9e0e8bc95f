"""`dcpm export` and `dcpm import`, as typed."""

import json

import pytest
from click.testing import CliRunner

from dcp_dsl.cli import dcpm
from dcp_dsl.interchange.names import FORMATS, READABLE


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("suffix", [".npz", ".json"])
def test_every_format_is_written_and_read_back_if_it_can_be(tmp_path, monkeypatch, name, suffix):
    monkeypatch.chdir(tmp_path)

    def run(command):
        done = CliRunner().invoke(dcpm, [*command.split(), *mask, "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    mask = ["--mask", "shared_question", "--sample", "question_len = 4, answer_lens = [3, 3, 2]"]
    run(f"export --format {name} --out mask{suffix} --block 4x8")
    if name in READABLE:
        found = run(f"import mask{suffix}")
        assert (found["equal"], found["format"], found["pairs"]) == (True, name, 10 + 18 + 18 + 11)
