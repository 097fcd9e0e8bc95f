"""The main job: one command, from documents to verified runs."""

import asyncio
import encodings
import importlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest
from click.testing import CliRunner
from rich.console import Console

from dcp_dashboard.demo import pipeline
from dcp_dashboard.demo.pipeline import methods, planned_setting, read_documents
from dcp_dashboard.demo.report import (
    BatchReport,
    DemoReport,
    MaskResult,
    MethodReport,
    print_report,
    summary,
)
from dcp_dsl.cli import dcpm
from dcp_planner import preset, read_plan, validate
from dcp_runtime import TensorError

DEMO = ("demo", "--no-serve", "--json", "--ranks", "2", "--tokens", "1024")


@pytest.mark.dist
def test_demo_verifies_four_masks_and_leaves_readable_plans(tmp_path: Path, monkeypatch):
    setting = planned_setting()
    assert (setting.tokens, setting.cluster.num_devices) == (131_072, 32)
    small = replace(setting, tokens=8192, cluster=preset("a100-p4de", 2, 4))
    monkeypatch.setattr(pipeline, "planned_setting", lambda: small)
    # Enough files that batches are filled, whichever files a Python has.
    few = [d for p in (asyncio, encodings, importlib) for d in read_documents(folder_of(p))]
    monkeypatch.setattr(pipeline, "read_documents", lambda: few)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(dcpm, DEMO, catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    check(done.stdout, done.stderr, tmp_path, small.tokens)


@pytest.mark.slow
@pytest.mark.dist
def test_demo_plans_131072_tokens_in_a_process_of_its_own(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", "from dcp_dsl.cli import main; main()", *DEMO],
        capture_output=True, text=True, cwd=tmp_path, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check(done.stdout, done.stderr, tmp_path, 131_072)


def folder_of(package: ModuleType) -> Path:
    return Path(cast(str, package.__file__)).parent


def check(out: str, err: str, folder: Path, tokens: int) -> None:
    """Judge what the demonstration printed and the plans that it left in a folder."""
    report = json.loads(out)
    assert (report["schema"], report["verified"], report["url"]) == ("dcp.demo/1", True, None)
    assert [m["mask"].split("(")[0] for m in report["masks"]] == [
        "causal", "streaming_llm", "many_shot", "shared_question",
    ]  # fmt: skip
    for mask in report["masks"]:
        assert mask["verified"]
        assert {e["tensor"] for e in mask["errors"]} == {"out", "dq", "dk", "dv"}
        assert 0.95 * tokens < mask["planned"]["tokens"] <= tokens
        planned = {m["method"]: m for m in mask["planned"]["methods"]}
        layouts = {name: m for name, m in planned.items() if name.startswith("static:")}
        assert list(planned)[:2] == ["portfolio", "kahypar"]
        assert len(layouts) >= 5
        for m in planned.values():
            assert ("tokens" in m["over_caps"]) == (m["token_imbalance"] > 1.1)
            assert ("compute" in m["over_caps"]) == (m["compute_imbalance"] > 1.1)
        held = {name: m for name, m in layouts.items() if m["token_imbalance"] <= 1.1}
        for scope, known in (("of_all", layouts), ("within_token_cap", held)):
            fastest = min(known, key=lambda name: known[name]["predicted_s"], default=None)
            assert mask["planned"]["best_static"].get(scope) == fastest
        for batch, sources in (
            (mask["planned"], ["simulated"]),
            (mask["executed"], ["simulated", "measured"]),
        ):
            file = read_plan(folder / report["folder"] / batch["plan"])
            validate(file.plan)
            assert [trace.source for trace in file.traces] == sources
            assert int(file.plan.tiles.pairs.sum()) == batch["pairs"]
    assert "causal: running on 2 processes" in err  # progress, not on standard output


def test_demo_says_what_is_wrong_with_its_folder(tmp_path: Path, monkeypatch):
    (tmp_path / "taken").write_text("")
    monkeypatch.chdir(tmp_path)
    error = CliRunner().invoke(dcpm, ["demo", "--no-serve", "--out", "taken"]).exception
    assert str(error) == "taken: cannot be written: File exists; choose another name"
    assert error.exit_code == 2


def test_demo_does_without_kahypar(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "kahypar", None)
    found = methods(planned_setting())
    assert found[0] == "portfolio"
    assert all(name.startswith("static:") for name in found[1:])


def small_report(best: dict[str, str]) -> DemoReport:
    """One mask, placed by both planners and five layouts, all of them over both caps."""
    names = (
        "portfolio", "kahypar", "static:contiguous", "static:zigzag", "static:ring",
        "static:documents", "static:grid",
    )  # fmt: skip
    placed = tuple(
        MethodReport(
            name, 2_000_000_000, 1_440_000_000, 456_000_000, 2.6, 1.39, ("compute", "tokens"), 1.234
        )
        for name in names
    )
    batch = BatchReport(
        "a.dcpplan", 131_072, 11, 1024, 4, 32, 2_262_199_011, 1.0, 0.5, 1092, 96, 18_348, 0.242,
        placed, best,
    )  # fmt: skip
    errors = tuple(TensorError(name, 2.8e-7, 2.8e-7, 2e-7, 2.2e-7, True) for name in ("out", "dq"))
    mask = MaskResult("causal", "pretrain.parquet", batch, batch, True, errors, 1.912, 0.1)
    return DemoReport("plans", 4, 793, 76.0, (mask,))


def test_no_figure_of_the_tables_is_cut_off_on_a_terminal_of_80_columns(
    capsys: pytest.CaptureFixture[str],
):
    best = {"of_all": "static:ring", "within_token_cap": "static:grid"}
    print_report(small_report(best), Console(width=80))
    shown = capsys.readouterr().out
    assert "…" not in shown
    for figure in ("131,072 tokens", "3.44 GB", "456 MB", "2,262,199,011", "1,234 ms", "18,348"):
        assert figure in shown
    assert "1,234 ms  1,912 ms" in shown
    assert shown.count("1,912 ms") == 2  # both batches are the one that ran, by our plan only
    assert "2.60*" in shown
    assert "1.39*" in shown
    assert "*: over its cap" in shown
    words = " ".join(shown.split())
    for row in ("static ring, best", "static grid,", "static zigzag"):
        assert row in words
    assert "documents" not in shown.partition("against dense")[0].partition("placement")[2]


def test_a_mask_that_is_not_verified_ends_with_status_1(monkeypatch):
    report = small_report({})
    (mask,) = report.masks
    failed = replace(report, masks=(replace(mask, verified=False),))
    monkeypatch.setattr(pipeline, "run_demo", lambda *_: failed)
    result = CliRunner().invoke(dcpm, ["demo"])
    said = "dcpm: a run is not within twice the error of eager attention\n"
    assert (result.exit_code, result.stderr) == (1, said)
    assert "dv are NOT all within" in result.stdout


def test_the_end_says_what_was_simulated_what_verified_means_and_why_times_differ():
    report = small_report({})
    said = summary(report, 2)
    assert said.startswith("The 32 GPUs are simulated: plans of 131,072 tokens ")
    assert "on 4 processes of this machine; out, dq, dk and dv are within twice" in said
    assert "measured times are 1.5 to 1.5 times the predicted" in said
    assert "this machine has 2," in said
    (mask,) = report.masks
    failed = replace(report, masks=(replace(mask, verified=False),))
    assert "dv are NOT all within" in summary(failed, 2)
    ours, *others = mask.executed.methods
    slower = replace(ours, predicted_s=2 * ours.predicted_s)
    other = replace(mask, executed=replace(mask.executed, methods=(slower, *others)))
    assert "times are 0.8 to 1.5 times" in summary(replace(report, masks=(mask, other)), 2)


@pytest.mark.parametrize(
    ("best", "rows"),
    [
        (
            {"of_all": "static:ring", "within_token_cap": "static:grid"},
            ["static contiguous", "static zigzag", "static ring, **best of all**",
             "static grid, **best within the token cap**"],
        ),
        (
            {"of_all": "static:zigzag", "within_token_cap": "static:zigzag"},
            ["static contiguous", "static zigzag, **best of all and within the token cap**"],
        ),
        (
            {"of_all": "static:ring"},
            ["static contiguous", "static zigzag", "static ring, **best of all**",
             "no static layout holds the token cap"],
        ),
    ],
)  # fmt: skip
def test_the_table_of_the_readme_names_the_best_layouts(
    tmp_path: Path, best: dict[str, str], rows: list[str]
):
    (tmp_path / "demo.json").write_text(json.dumps(small_report(best).to_json(None)))
    script = Path(__file__).parents[3] / "docs" / "demo_table.py"
    done = subprocess.run(
        [sys.executable, str(script), "--table", str(tmp_path / "demo.json")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    cells = [line.split(" | ") for line in done.stdout.partition("Then")[0].splitlines()[2:-1]]
    assert [row[2] for row in cells] == ["dcp-dsl", "KaHyPar, refined", *rows]
    assert cells[0][5:7] == [r"2.60\*", r"1.39\*"]
