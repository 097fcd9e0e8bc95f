"""`dcpm step`: its report, its first step as a file, and what it refuses."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from dcp_planner.commands.step import show_report
from dcp_planner.commands.step import step as step_command
from dcp_planner.step.file import read_step
from dcp_planner.step.policies import RIVALS


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(step_command, list(arguments))
    # Not `output`: messages, such as that the planner is compiled, are no part of a document.
    return result.exit_code, result.stdout or result.stderr or str(result.exception)


@pytest.fixture
def files(tmp_path):
    spec, lengths = tmp_path / "causal.dcpm", tmp_path / "lengths.json"
    spec.write_text("mask m = causal\n")
    rng = np.random.default_rng(2)
    lengths.write_text(json.dumps(rng.integers(500, 20_000, 60).tolist()))
    return str(spec), str(lengths)


def test_command_reports_policies(files: tuple[str, str]) -> None:
    spec, lengths = files
    common = (spec, "--lengths", lengths, "--mesh", "2x8", "--tokens", "65536")
    code, text = run(*common, "--against", "all", "--json")
    assert code == 0, text
    report = json.loads(text)
    assert report["schema"] == 1
    assert report["steps"] > 1
    names = [policy["name"] for policy in report["policies"]]
    assert names[0] == "plan_step"
    assert {rival.name for rival in RIVALS} < set(names)
    assert report["chosen"] in names
    steps = {policy["name"]: policy["step_s"] for policy in report["policies"]}
    fastest = min(steps[name] for name in names if "groups" in name)
    assert steps["plan_step"] <= 1.05 * fastest
    code, text = run(*common)
    assert code == 0
    speedup, hours = re.search(
        r"^([\d.]+) x round-robin: ([\d.]+) h of a day$", text, re.M
    ).groups()
    assert float(hours) == pytest.approx(24 - 24 / float(speedup), abs=0.2)
    (row,) = re.findall(r"^[ |│]*round-robin\b.*ms.*$", text, re.M)
    taken, *parts = map(int, re.findall(r"(\d+) ms", row))  # milliseconds, each rounded
    assert len(parts) == 4
    assert sum(parts) == pytest.approx(taken, abs=3)


def test_masks_decide_the_work(files: tuple[str, str], tmp_path) -> None:
    spec, lengths = files
    local = tmp_path / "local.dcpm"
    local.write_text("mask m = causal and q - k < 256\n")
    attention = []
    for path in (spec, str(local)):
        _, text = run(path, "--lengths", lengths, "--mesh", "2x8", "--tokens", "65536", "--json")
        attention.append(json.loads(text)["policies"][0]["attention_s"])
    assert attention[1] < 0.2 * attention[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "JSON list"),
        ("[1, 0]", "entry 1"),
        ("[1, true]", "entry 1"),
        ("[1", "JSON list"),
        ("[]", "JSON list"),
    ],
)
def test_bad_lengths_are_named(files: tuple[str, str], tmp_path, text: str, words: str) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(text)
    code, said = run(files[0], "--lengths", str(bad))
    assert code != 0
    assert words in said


def test_command_writes_the_first_step(files: tuple[str, str], tmp_path) -> None:
    spec, lengths = files
    out = tmp_path / "first.dcpstep.json"
    common = (spec, "--lengths", lengths, "--mesh", "2x8", "--tokens", "65536", "--steps", "1")
    code, text = run(*common, "--out", str(out))
    assert code == 0, text
    assert read_step(out).devices == 16
    code, text = run(*common, "--out", str(tmp_path / "first.json"))
    assert code != 0
    assert "ends in .dcpstep.json" in text


def test_the_rest_of_a_step_is_its_bubble_and_its_synchronisation(capsys) -> None:
    seconds = {"seconds": 0.1, "linear_s": 0.02, "attention_s": 0.03, "waiting_s": 0.01}
    means = seconds | {"bubble_s": 0.025, "synchronisation_s": 0.015, "max_tokens": 1.0}
    report = SimpleNamespace(
        shown=[SimpleNamespace(name="plan_step", mean=means.__getitem__)],
        steps=1, documents=2, levels={"2x8": 1}, rivals=[],
    )  # fmt: skip
    show_report(report)
    shown = capsys.readouterr().out
    assert re.findall(r"(\d+) ms", shown) == ["100", "20", "30", "10", "40"]
    assert "1 step of 2 documents" in shown
