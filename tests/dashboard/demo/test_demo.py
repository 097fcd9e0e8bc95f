"""The main job as its user runs it: one command, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from dcp_dashboard.demo.pipeline import methods
from dcp_dashboard.demo.report import BatchReport, DemoReport, MaskReport, MethodReport
from dcp_dashboard.demo.tables import print_report
from dcp_planner import read_plan, validate
from dcp_runtime import TensorError


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
    assert done.stderr == "dcpm: taken: cannot be written: File exists; choose another name\n"
    assert "Traceback" not in done.stderr


def test_demo_does_without_kahypar(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "kahypar", None)
    assert methods() == ("portfolio", "static:zigzag", "static:contiguous")


def test_no_figure_of_the_tables_is_cut_off_on_a_terminal_of_80_columns(
    capsys: pytest.CaptureFixture[str],
):
    names = ("portfolio", "kahypar", "static:zigzag", "static:contiguous")
    placed = tuple(
        MethodReport(name, 2_000_000_000, 1_440_000_000, 456_000_000, 2.6, 1.39, 1.234)
        for name in names
    )
    batch = BatchReport(
        "a.dcpplan", 131_072, 11, 1024, 4, 32, 2_262_199_011, 1.0, 0.5, 1092, 96, 18_348, 0.242,
        placed,
    )  # fmt: skip
    errors = tuple(TensorError(name, 2.8e-7, 2.8e-7, 2e-7, 2.2e-7, True) for name in ("out", "dq"))
    mask = MaskReport("causal", "pretrain.parquet", batch, batch, True, errors, 1.912, 0.1)
    print_report(DemoReport("plans", 4, 793, 76.0, (mask,)), Console(width=80))
    shown = capsys.readouterr().out
    assert "…" not in shown
    for figure in ("3.44 GB", "456 MB", "2,262,199,011", "1,234 ms", "1,912 ms", "18,348"):
        assert figure in shown
