"""The page /compare in a real browser, held against values computed from the plans."""

import numpy as np
import pytest
from canvases import centres

from dcp_dashboard import start_server
from dcp_dashboard.api.encoding import KIND_COLOURS
from dcp_dashboard.api.mask import CHANGE_COLOURS
from dcp_dashboard.library.folder import plan_key
from dcp_planner import LANES, read_plan, simulate

TIMELINES = ("#compare-timeline-a", "#compare-timeline-b")


@pytest.fixture(scope="module")
def plans(paired_folder):
    return {n: read_plan(paired_folder / f"{n}.dcpplan").plan for n in ("zigzag", "contiguous")}


@pytest.fixture(scope="module")
def server(paired_folder):
    with start_server(paired_folder) as running:
        yield running


def opened(visit, query):
    page = visit.open(f"compare?{query}")
    for selector in TIMELINES:
        page.wait_for_selector(f"{selector}[data-state=drawn]")
    return page


def query_of(a="zigzag", b="contiguous"):
    return f"a={plan_key(f'{a}.dcpplan')}&b={plan_key(f'{b}.dcpplan')}"


def ends_of_longest(trace, until_ns):
    """Points near both ends of the longest computations, as shares of a timeline of 4 devices."""
    compute = np.flatnonzero(trace.lane == LANES.index("compute"))
    length = (trace.end_ns - trace.start_ns)[compute]
    points = []
    for event in compute[np.argsort(-length)[:3]]:
        start, end = int(trace.start_ns[event]), int(trace.end_ns[event])
        row = (int(trace.device[event]) + 0.48) / 4
        near = (0.9 * start + 0.1 * end, 0.1 * start + 0.9 * end)
        points.extend((at / until_ns, row) for at in near)
    return points


def test_two_plans_side_by_side(visit, plans):
    page = opened(visit, query_of())
    a, b = (simulate(plans[name]).seconds() for name in ("zigzag", "contiguous"))
    verdict = page.locator(".dcp-verdict").inner_text()
    assert verdict.startswith("B takes" if b < a else "A takes")
    cells = page.locator("tr[data-figure=time] td").all_inner_texts()
    assert cells[2].startswith("+" if b > a else "−")  # noqa: RUF001 - a minus
    assert cells[3].endswith("B worse" if b > a else "B better")
    page.wait_for_selector("#moves[data-state=drawn]")
    tiles, points = plans["zigzag"].tiles, centres(plans["zigzag"])
    moved = tiles.device != plans["contiguous"].tiles.device
    expected = [CHANGE_COLOURS[int(is_moved)] for is_moved in moved]
    assert len(set(expected)) == 2
    assert visit.colours_at("#moves", points) == expected
    traces = [simulate(plans[name]) for name in ("zigzag", "contiguous")]
    until = max(int(trace.end_ns.max()) for trace in traces)
    for selector, trace in zip(TIMELINES, traces, strict=True):  # one axis, though both also ran
        found = visit.colours_at(selector, ends_of_longest(trace, until))
        assert found == [KIND_COLOURS["attention"]] * 6
    whole = [visit.digest(selector) for selector in TIMELINES]
    visit.hover_at(TIMELINES[0], 0.02, 0.05)
    page.mouse.wheel(0, -400)
    zoomed = [visit.digest(selector) for selector in TIMELINES]
    assert all(one != other for one, other in zip(whole, zoomed, strict=True))  # one axis
    page.keyboard.press("0")
    text = visit.hover_at("#moves", *points[0])
    assert f"A: device {tiles.device[0]}" in text
    page.wait_for_selector("#deltas .bars .point path")
    assert page.locator("#deltas .bars .point").count() == 5 * 4


def test_pickers_and_swap_change_the_address(visit):
    page = opened(visit, query_of())
    first = page.locator(".dcp-verdict").inner_text()
    page.click("[aria-label='Swap A and B']")
    page.wait_for_function(
        "(text) => document.querySelector('.dcp-verdict')?.innerText !== text", arg=first
    )
    key = plan_key("contiguous.dcpplan")
    assert f"/compare?a={key}&as=simulated" in page.url
    visit.settle()  # answers that come later draw the pickers anew
    picker = page.get_by_role("textbox", name="B")
    picker.click()
    wanted = "contiguous.dcpplan · measured"
    # The answer to a search draws the options anew, and then none of them is marked.
    with page.expect_response(lambda answer: wanted in (answer.request.post_data or "")):
        picker.fill(wanted)
    page.get_by_role("option", name=wanted).click()
    page.wait_for_selector("text=/The prediction takes 20.? ?% less time than the run/")
    assert page.url.endswith(f"?a={key}&as=simulated&b={key}&bs=measured")
    page.go_back()
    page.wait_for_selector("#moves")


def test_pickers_are_alike_before_anything_is_chosen(visit):
    page = visit.open("compare")
    page.wait_for_selector("text=Choose two plans")
    boxes = [page.get_by_role("textbox", name=name).bounding_box() for name in "AB"]
    assert boxes[0]["width"] == boxes[1]["width"] > 400
    assert boxes[0]["y"] == boxes[1]["y"]
