"""The page of a planned training step, as a person sees it."""

import pytest

from dcp_dashboard.library.folder import plan_key

STEP = f"step/{plan_key('a.dcpstep.json')}"


@pytest.fixture
def page(visit, small_step):
    with visit.serving(small_step.parent):
        yield opened(visit)


def opened(visit):
    page = visit.open(STEP)
    page.wait_for_selector("#step .bars .point")
    return page


def test_bars_hovers_and_a_narrow_window_that_scrolls_only_the_table(visit, page):
    assert page.locator("#step .legendtext").all_text_contents() == [
        "linear part", "attention", "waiting",
    ]  # fmt: skip
    page.locator("#step .bars .point").first.hover(force=True)  # the layer above takes the pointer
    text = page.locator("#step .hoverlayer").text_content()
    assert "devices 0" in text
    assert "60,000 tokens on 8 devices" in text

    visit.leave()
    page.set_viewport_size({"width": 390, "height": 844})
    opened(visit)
    assert page.locator("#step .nsewdrag").first.bounding_box()["width"] > 390 / 2
    assert page.locator(".dcp-scroll").last.evaluate("(box) => box.scrollWidth > box.clientWidth")
