"""What notebooks show of plans, traces and planned steps."""

import base64
import io
import re
import urllib.request
from html import unescape
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from shown_texts import html_elements

from dcp_dashboard import notebook
from dcp_dashboard.library.folder import plan_key
from dcp_dashboard.library.plans import load_file
from dcp_dashboard.notebook import html_of, show
from dcp_planner import PlanError, find_cluster
from dcp_planner.step import Documents, StepMesh, StepSetting, plan_step, step_model
from dcp_planner.tables import plan as plan_tables


@pytest.fixture(scope="module")
def loaded(served_folder):
    return load_file(served_folder / "small.dcpplan")


def test_a_plan_is_a_frame_that_asks_for_nothing(loaded):
    drawn = loaded.plan._repr_html_()
    (page,) = re.findall(r'srcdoc="([^"]*)"', drawn)
    page = unescape(page)
    assert page.startswith("<!DOCTYPE html>")
    assert "prefers-color-scheme: dark" in page
    assert not re.search(r"""(?:src|href|data-url)=["'](?!data:|#)""", page)
    assert f"<title>{loaded.summary.mask} · plan.dcpplan</title>" in page
    assert f"/plan/{plan_key('plan.dcpplan')}/" in page


def test_a_planned_step_has_a_bar_for_each_group_as_long_as_its_time():
    lengths = np.random.default_rng(1).integers(500, 9000, 24)
    mesh, cluster = StepMesh(2, 2, micro_batches=2), find_cluster("h100-dgx:1x4")
    setting = StepSetting(mesh, step_model("llama-8b"), cluster, token_budget=80_000, widths=(2,))
    step = plan_step(Documents.causal(lengths), setting)
    rows = step._repr_html_().split("<tr")[2:]
    assert [re.findall(">([^<]+)<", row)[:3] for row in rows] == [
        [str(batch), f"{first}-{first + width - 1}", str(len(documents))]
        for batch, first, width, documents in step.assignment.groups()
    ]
    longest = max(map(sum, step.group_seconds))
    for row, seconds in zip(rows, step.group_seconds, strict=True):
        widths = [float(width) for width in re.findall(r"width:([0-9.]+)px", row)]
        assert widths == pytest.approx([300 * s / longest for s in seconds], abs=0.051)


def test_drawings_of_traces_and_steps(shown, snapshots):
    """Pictures are words: the pixels of timelines are compared where they are drawn."""
    texts = {}
    for name, source in (("unequal", "measured"), ("empty", "simulated")):
        drawn = html_of(shown[name].traces[source])
        pictures = re.findall(r"data:image/png;base64,([^\"]+)", drawn)
        images = [Image.open(io.BytesIO(base64.b64decode(data))) for data in pictures]
        sizes = [(image.size, image.convert("RGB").getpixel((0, 0))) for image in images]
        drawn = re.sub(r"data:image/png;base64,[^\"]+", "PICTURE", drawn)
        texts[f"{name}, {source}"] = f"{html_elements(drawn)}\n{sizes}"
    for count in (0, 2, 64, 65, 66):
        groups = [(at // 2, 4 * (at % 2), 4, np.arange(at + 1)) for at in range(count)]
        step = SimpleNamespace(
            assignment=SimpleNamespace(first=np.arange(3), groups=lambda groups=groups: groups),
            group_seconds=[(0.5 + at, 0.25) for at in range(count)], policy="groups",
            time=SimpleNamespace(seconds=1.5, balance=1.25),
        )  # fmt: skip
        lines = html_elements(notebook._step(step)).split("\n")
        texts[f"a step of {count} groups"] = "\n".join([*lines[:9], "…", *lines[-4:]])
    snapshots.check("notebook", texts)


def test_show_serves_the_page_of_the_plan(loaded, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    with loaded.plan.show() as server:
        (address,) = opened
        assert address.startswith(server.url.split("?")[0])
        with urllib.request.urlopen(address) as answer:
            assert answer.status == 200
    show(loaded.plan, opens=False).close()
    assert len(opened) == 1


def test_without_the_dashboard_a_plan_is_text_and_says_what_shows_it(loaded, monkeypatch):
    monkeypatch.setattr(plan_tables, "entry_points", lambda **_: ())
    assert loaded.plan._repr_html_() is None
    with pytest.raises(PlanError, match=r"pip install 'dcp-dsl\[dashboard\]'"):
        loaded.plan.show()


def test_other_values_are_refused():
    with pytest.raises(TypeError, match="expected a Plan, a Trace or a StepPlan, got int"):
        html_of(3)
