"""The pages of a training run that goes on and of a planned step."""

import json

import pytest

from dcp_dashboard.library.folder import plan_key
from dcp_planner import write_plan

STEPS = 3_000
TRACED = 1_500
RUN = f"run/{plan_key('today/run.dcprun.jsonl')}"


def line(step, **more):
    record = {"step": step, "name": f"batch {step}", "step_s": 1.0 + 0.001 * (step % 7)}
    record |= {"predicted_s": 0.4, "measured_s": 0.5, "exposed_share": 0.25, "slowest": step % 4}
    return json.dumps(record | {"queued": 2, "tokens": 4096, "why": "rank 1 is slow"} | more) + "\n"


@pytest.fixture
def log(tmp_path, small_plan):
    folder = tmp_path / "today"
    folder.mkdir()
    write_plan(folder / "kept.dcpplan", small_plan)
    path = folder / "run.dcprun.jsonl"
    lines = [line(step) for step in range(STEPS)]
    lines[TRACED] = line(TRACED, trace="kept.dcpplan")
    lines[700] = line(700, step_s=9.5)  # one slow step among thousands
    path.write_text("".join(lines))
    return path


@pytest.fixture
def page(visit, log):
    with visit.serving(log.parents[1]):
        yield opened(visit, RUN, "#run-chart .main-svg")


def opened(visit, address, drawn):
    page = visit.open(address)
    page.wait_for_selector(drawn)
    return page


DRAWN = """(field) => {
  const chart = document.querySelector('#run-chart .js-plotly-plot');
  return Array.from(chart._fullData[0][field]);
}"""
NEIGHBOURS = f"() => ({DRAWN})('x').every((x, n, all) => !n || x === all[n - 1] + 1)"


def test_a_run_is_followed_zoomed_exactly_and_a_step_opens_its_trace(visit, page, log):
    newest = page.locator("#run-now")
    newest.get_by_text("A step takes 1 s, the median of the last 100.").wait_for()
    page.click("text=The newest step in figures")
    newest = page.locator("#run-figures")
    newest.get_by_text("batch 2999").wait_for()
    assert "1.25 times the prediction" in newest.text_content()
    steps = page.evaluate(DRAWN, "x")
    assert len(steps) <= 800  # of 3,000
    assert max(page.evaluate(DRAWN, "y")) == 9.5  # and the slow one is among them

    chart = page.locator("#run-chart .xy .points path.point")
    before = page.locator("#run-chart").bounding_box()
    chart.click(force=True)
    panel = page.locator("#run-step")
    panel.get_by_text("Step 1,500 · batch 1500").wait_for()
    assert page.locator("#run-chart").bounding_box() == before  # a click moves no chart
    assert panel.bounding_box()["x"] > before["x"] + before["width"]
    assert "rank 1 is slow" in panel.text_content()
    link = panel.get_by_text("Plan and trace of this step")
    assert link.get_attribute("href") == f"/plan/{plan_key('today/kept.dcpplan')}/timeline"

    plot = page.locator("#run-chart .nsewdrag").first.bounding_box()
    middle = plot["y"] + plot["height"] / 2
    page.mouse.move(plot["x"] + 0.5 * plot["width"], middle)
    page.mouse.down()
    page.mouse.move(plot["x"] + 0.6 * plot["width"], middle, steps=4)
    page.mouse.up()
    page.wait_for_function(NEIGHBOURS)
    shown = page.evaluate(DRAWN, "x")
    assert 1_490 <= shown[0] <= 1_510
    assert len(shown) == pytest.approx(300, abs=15)

    with log.open("a") as file:
        file.write(line(STEPS))
    newest.get_by_text("batch 3000").wait_for()
    assert page.evaluate(DRAWN, "x") == shown  # still zoomed

    visit.leave()
    page.set_viewport_size({"width": 390, "height": 844})
    opened(visit, RUN, "#run-chart .main-svg")
    assert page.locator("#run-chart .nsewdrag").first.bounding_box()["width"] > 390 / 2


def test_bars_hovers_and_a_narrow_window_that_scrolls_only_the_table(visit, small_step):
    step, bars = f"step/{plan_key('a.dcpstep.json')}", "#step .bars .point"
    with visit.serving(small_step.parent):
        page = opened(visit, step, bars)
        named = page.locator("#step .legendtext").all_text_contents()
        assert named == ["linear part", "attention", "waiting"]
        page.locator(bars).first.hover(force=True)  # the layer above takes the pointer
        text = page.locator("#step .hoverlayer").text_content()
        assert "devices 0" in text
        assert "60,000 tokens on 8 devices" in text

        visit.leave()
        page.set_viewport_size({"width": 390, "height": 844})
        opened(visit, step, bars)
        assert page.locator("#step .nsewdrag").first.bounding_box()["width"] > 390 / 2
        scrolled = "(box) => box.scrollWidth > box.clientWidth"
        assert page.locator(".dcp-scroll").last.evaluate(scrolled)
