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

import demo_table
import pytest
from click.testing import CliRunner

from dcp_dashboard.demo import pipeline
from dcp_dashboard.demo.pipeline import methods, planned_setting, read_documents
from dcp_dsl.cli import dcpm
from dcp_planner import preset, read_plan, validate

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
            assert m["over_caps"] == (["tokens"] if m["token_imbalance"] > 1.1 else [])
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
def test_the_table_of_the_readme_names_the_best_layouts(best: dict[str, str], rows: list[str]):
    layouts = ("contiguous", "zigzag", "ring", "documents", "grid")
    method = {"bytes_forward": 2_000_000_000, "bytes_backward": 1_440_000_000,
              "bytes_between_nodes": 456_000_000, "predicted_s": 1.234, "compute_imbalance": 2.6,
              "token_imbalance": 1.39, "over_caps": ("compute", "tokens")}  # fmt: skip
    methods = [
        {"method": name, **method}
        for name in ("portfolio", "kahypar", *(f"static:{name}" for name in layouts))
    ]
    mask = {"mask": "causal(w = 4)", "errors": [], "executed": {"tokens": 8192},
            "planned": {"best_static": best, "density": 1, "methods": methods}}  # fmt: skip
    text = demo_table.table({"ranks": 4, "masks": [mask]}).partition("Then")[0]
    cells = [line.split(" | ") for line in text.splitlines()[2:-1]]
    assert [row[2] for row in cells] == ["dcp-dsl", "KaHyPar, refined", *rows]
    causal = "| `causal` | 100.0% | dcp-dsl | 3,440 MB | 456 MB | 2.60\\* | 1.39\\* | 1234.0 ms |"
    assert text.splitlines()[2] == causal
