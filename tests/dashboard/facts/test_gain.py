"""What a plan gains, against the figures that `dcpm plan --against static` prints."""

import json

import pytest
from click.testing import CliRunner

from dcp_dashboard import create_app
from dcp_dashboard.facts.gain import SCOPES
from dcp_dashboard.library.folder import plan_key
from dcp_dashboard.library.plans import PlanLibrary
from dcp_dashboard.pages.plan_list import plan_list_page
from dcp_dsl.cli import dcpm
from dcp_planner import PlanError, read_plan, write_plan
from dcp_planner.causes import static_plans, suggestions


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A folder with a plan, and what the command printed."""
    folder = tmp_path_factory.mktemp("planned")
    (folder / "m.dcpm").write_text("mask m = causal")
    lengths = [option for n in (5000, 2200, 700, 292) for option in ("--sample", f"len = {n}")]
    out = folder / "p.dcpplan"
    words = ["plan", str(folder / "m.dcpm"), *lengths, "--block", "256", "--cluster", "2x2"]
    done = CliRunner().invoke(
        dcpm, [*words, "--against", "static", "--out", str(out), "--json"], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    return folder, json.loads(done.stdout)["batches"][0]


def seconds(figures):
    return figures["predicted_forward_s"] + figures["predicted_backward_s"]


def test_the_page_names_the_gains_that_the_command_prints(planned):
    folder, printed = planned
    client = create_app(folder).server.test_client()
    found = client.get(f"/api/plan/{plan_key('p.dcpplan')}/gain").get_json()
    shown = {row["label"]: row for row in found}
    for name, theirs in printed["against"].items():
        assert shown[name]["speedups"] == [pytest.approx(seconds(theirs) / seconds(printed))]
        for cap in ("compute", "tokens"):
            assert (f"mean {cap}" in shown[name]["note"]) == (cap in theirs["over_caps"])
    best = {s: printed["best_static"][s] for s in SCOPES if s in printed["best_static"]}
    assert len({rival["name"] for rival in best.values()}) == 2  # the case has both
    for scope, rival in best.items():
        row = shown[rival["name"]]
        assert row["told"] == f"{rival['name']}, {SCOPES[scope]}"
        assert row["speedups"] == [pytest.approx(rival["speedup"])]


def test_the_list_has_the_gain_that_the_command_wrote(planned, tmp_path):
    folder, printed = planned
    (row,) = PlanLibrary(folder).index.rows()
    best = {scope: rival["speedup"] for scope, rival in printed["best_static"].items()}
    assert row.value.gains == pytest.approx(best)
    shown = str(plan_list_page(PlanLibrary(folder), ""))
    assert [scope for scope, gain in best.items() if f"{gain:.2f}\u00d7" not in shown] == []
    file = read_plan(folder / "p.dcpplan")
    for name, against in {
        "none": None, "wrong": {"static:ring": "fast"}, "no times": {"static:ring": {}},
        "texts": {"static:ring": {"predicted_forward_s": "1", "predicted_backward_s": None}},
        "caps": {n: f | {"over_caps": ["tokens"]} for n, f in printed["against"].items()},
    }.items():  # fmt: skip
        write_plan(tmp_path / f"{name}.dcpplan", file.plan, file.traces, against=against)
    found = {row.entry.relative: row.value.gains for row in PlanLibrary(tmp_path).index.rows()}
    over = found.pop("caps.dcpplan")  # every layout is above the cap on tokens
    assert over == pytest.approx({"of_all": best["of_all"]})
    assert [*found.values()] == [{}] * 4


def test_a_plan_of_too_many_tiles_says_which_command_compares(small_plan, monkeypatch):
    monkeypatch.setattr(suggestions, "_MOST_TILES", 10)
    with pytest.raises(PlanError, match=r"at most 10 tiles.*--against static"):
        static_plans(small_plan)
