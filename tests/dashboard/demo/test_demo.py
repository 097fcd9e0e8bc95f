"""The main job as its user runs it: one command, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dcp_planner import read_plan, validate


def dcpm(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from dcp_dsl.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=280,
        check=False,
    )


@pytest.mark.dist
def test_demo_verifies_four_masks_and_leaves_readable_plans(tmp_path: Path):
    done = dcpm("demo", "--no-serve", "--json", "--ranks", "2", "--tokens", "1024", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["schema"], report["verified"], report["url"]) == ("dcp.demo/1", True, None)
    assert [m["mask"].split("(")[0] for m in report["masks"]] == [
        "causal", "streaming_llm", "many_shot", "shared_question",
    ]  # fmt: skip
    for mask in report["masks"]:
        assert mask["verified"]
        assert {e["tensor"] for e in mask["errors"]} == {"out", "dq", "dk", "dv"}
        assert mask["planned"]["tokens"] == 131_072
        assert [m["method"] for m in mask["planned"]["methods"]] == [
            "portfolio", "kahypar", "static:zigzag", "static:contiguous",
        ]  # fmt: skip
        for batch, sources in (
            (mask["planned"], ["simulated"]),
            (mask["executed"], ["simulated", "measured"]),
        ):
            file = read_plan(tmp_path / report["folder"] / batch["plan"])
            validate(file.plan)
            assert [trace.source for trace in file.traces] == sources
            assert int(file.plan.tiles.pairs.sum()) == batch["pairs"]
    assert "causal: running on 2 processes" in done.stderr  # progress, not on standard output


def test_demo_says_what_is_wrong_with_its_folder(tmp_path: Path):
    (tmp_path / "taken").write_text("")
    done = dcpm("demo", "--no-serve", "--out", "taken", cwd=tmp_path)
    assert done.returncode == 2
    assert "taken" in done.stderr
    assert "Traceback" not in done.stderr
