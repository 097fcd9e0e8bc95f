"""Suggestions: plans that a worker made, with the gain that the simulator gives each of them."""

import time
from dataclasses import replace

import pytest

from dcp_dashboard import create_app
from dcp_dashboard.editing import answer
from dcp_dashboard.editing.routes import DESK
from dcp_dashboard.library.folder import plan_key
from dcp_planner import digest, predict, read_plan
from dcp_planner.plan import decode_plan

LOCAL = "http://127.0.0.1:8050"


def parted(figures, content):
    """The plans that a worker made, which its answer holds one behind the other."""
    for told in figures["plans"]:
        yield told, decode_plan(content[: told["size_bytes"]]).plan
        content = content[told["size_bytes"] :]
    assert content == b""


def test_every_suggestion_is_a_plan_of_the_batch_that_is_as_fast_as_said(paired_folder):
    path, stages = paired_folder / "contiguous.dcpplan", []
    figures, content = answer({"task": "suggest", "path": str(path)}, b"", stages.append)
    before = read_plan(path).plan
    now = predict(before).seconds
    gains = [plan["saves_s"] for plan in figures["plans"]]
    assert 0 < len(gains) <= 3
    assert gains == sorted(gains, reverse=True)
    assert stages == ["finding what costs most", "planning changes"]
    for told, plan in parted(figures, content):
        assert plan.cu_seqlens.tolist() == before.cu_seqlens.tolist()
        assert plan.tiles.pairs.sum() / plan.head_groups == before.tiles.pairs.sum()
        assert plan.provenance == before.provenance
        assert now - predict(plan).seconds == pytest.approx(told["saves_s"])
        assert told["share"] == pytest.approx(told["saves_s"] / now)
        assert told["share"] >= 0.01


def test_the_front_of_a_plan_is_that_of_its_batch(paired_folder, small_choices):
    before = read_plan(paired_folder / "contiguous.dcpplan").plan
    asked = {"task": "front", "path": str(paired_folder / "contiguous.dcpplan")}
    made = [plan for _, plan in parted(*answer(asked, b"", lambda _stage: None))]
    bare = {digest(replace(plan, provenance=None)) for plan in made}
    assert len(bare) == len(made) > 1
    assert {digest(plan) for plan in small_choices} <= bare
    assert all(plan.provenance == before.provenance for plan in made)


def test_a_page_asks_for_suggestions_and_each_is_kept_for_the_session(paired_folder):
    app = create_app(paired_folder)
    client, desk = app.server.test_client(), app.server.extensions[DESK]
    key = plan_key("contiguous.dcpplan")
    try:
        job = client.post("/api/edit/suggest", base_url=LOCAL, json={"plan": key}).json
        end = time.monotonic() + 240
        while job["state"] in ("waiting", "running") and time.monotonic() < end:
            time.sleep(0.2)
            job = client.get(f"/api/edit/plan/{job['job']}", base_url=LOCAL).json
        assert (job["state"], job["message"]) == ("done", "")
        made = job["figures"]["plans"][0]
        shown = client.get(f"/api/edit/figures/{made['key']}", base_url=LOCAL).json
        assert shown["predicted_s"] == pytest.approx(made["seconds"])
    finally:
        desk.close()
