"""`dcpm step`: masks of documents, and what the columns of its report are made of."""

import json
import re
from types import SimpleNamespace

from command_runs import run

from dcp_planner import Cluster
from dcp_planner.commands.step import show_report, step


def test_masks_decide_the_work(tmp_path):
    (tmp_path / "a.dcpm").write_text("mask near = causal and q - k < 256\n")
    (tmp_path / "lengths.json").write_text(json.dumps([30_000, 20_000] * 2))
    asked = ("--lengths", tmp_path / "lengths.json", "--mesh", "1x8", "--tokens", "32k", "--json")
    whole, near = (
        json.loads(run(step, tmp_path / "a.dcpm", "--mask", mask, *asked).stdout)
        for mask in ("causal", "near")
    )
    assert near["policies"][0]["attention_s"] < 0.2 * whole["policies"][0]["attention_s"]


def test_the_rest_of_a_step_is_its_bubble_and_its_synchronisation(capsys):
    seconds = {"seconds": 0.1, "linear_s": 0.02, "attention_s": 0.03, "waiting_s": 0.01}
    means = seconds | {"bubble_s": 0.025, "synchronisation_s": 0.015, "max_tokens": 1.0}
    report = SimpleNamespace(
        shown=[SimpleNamespace(name="plan_step", mean=means.__getitem__)],
        steps=1, documents=2, levels={"2x8": 1}, rivals=[],
    )  # fmt: skip
    show_report(report, Cluster(1, 8), "llama-8b")
    shown = capsys.readouterr().out
    assert re.findall(r"(\d+) ms", shown) == ["100", "20", "30", "10", "40"]
    assert "1 step of 2 documents" in shown
