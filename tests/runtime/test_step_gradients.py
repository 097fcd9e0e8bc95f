"""Gradients of global batches on eight processes, policy by policy, against dense attention."""

import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("step_scenarios.py")
EXACT = 1e-5
"""Relative, float32."""


def run(folder, start_python, *arguments):
    fork = start_python(SCRIPT, folder, *arguments, folder=folder)
    assert fork.wait(280 if not arguments else 1200) == 0, fork.err.read_text()[-3000:]
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


def check(result):
    for name, case in result.items():
        rows = [row for _, own in case["errors"] for row in own]
        assert sorted(rows) == list(range(case["rows"])), name
        assert len(set(case["counts"])) == 1, name
        for error, _ in case["errors"]:
            assert error < EXACT, name


@pytest.mark.dist
def test_summed_gradients_of_a_global_batch_are_those_of_dense_attention(tmp_path, start_python):
    result = run(tmp_path, start_python)
    assert len(result) == 6
    check(result)
    assert result["4x2, work, empty ranks"]["empty"] >= 8
    moved = [own for _, own in result["2x4, window, stack"]["errors"]]
    assert len(moved) == 2
    assert sorted(moved[0] + moved[1]) != moved[0] + moved[1]  # rows changed their global batch


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.timeout(1300)
def test_every_policy_under_every_mask_has_the_gradients_of_dense_attention(tmp_path, start_python):
    result = run(tmp_path, start_python, "all")
    assert len(result) == 2 * 6 * 4
    check(result)
