"""The page of a plan, served or as one file: pixels are held against values of the plan."""

import numpy as np
import pytest
from canvases import READ, centres, longest, place

from dcp_dashboard.api.encoding import KIND_COLOURS, device_colours
from dcp_dashboard.exports.overview import standalone_page
from dcp_dashboard.library.folder import plan_key
from dcp_dashboard.library.plans import load_file
from dcp_planner import LANES, simulate

TIMELINE = ".dcp-view-simulated .dcp-timeline"


def test_the_list_leads_to_every_plan_and_a_click_on_a_heading_sorts_it(visit):
    page = visit.open("")
    page.wait_for_selector("table.dcp-plans")
    assert page.locator("tbody tr").count() == 3
    assert "expected" in page.locator("tr.dcp-broken").inner_text()
    page.wait_for_function("() => [...document.images].every((i) => i.complete && i.naturalWidth)")
    page.click("text=deep/large.dcpplan")
    page.wait_for_selector(".dcp-mask[data-state=drawn]")
    assert page.title() == "causal · deep/large.dcpplan · dcp-dsl"
    page.go_back()
    page.wait_for_selector("table.dcp-plans")
    assert page.title() == "dcp-dsl"
    page.click("th >> text=Tokens")
    page.wait_for_selector("th[aria-sort=descending] >> text=Tokens")
    assert page.url.endswith("/?sort=tokens&desc=1")
    assert "large" in page.locator("tbody tr").first.inner_text()
    page.reload()
    page.wait_for_selector("th[aria-sort=descending] >> text=Tokens")
    page.click("th >> text=Tokens")
    page.wait_for_selector("th[aria-sort=ascending] >> text=Tokens")
    assert "small" in page.locator("tbody tr").first.inner_text()


def test_tiles_have_the_colour_of_their_device_and_events_that_of_their_kind(visit, large_plan):
    visit.open_plan("deep/large.dcpplan")
    colours = device_colours(4, 8)
    shown = visit.colours_at(".dcp-mask", centres(large_plan))
    assert shown == [colours[device] for device in large_plan.tiles.device]
    empty = visit.colours_at(".dcp-mask", [(0.9, 0.1), (0.6, 0.4)])
    assert set(empty).isdisjoint(colours)
    assert visit.distinct(".dcp-mask") == 32 + 1
    trace = simulate(large_plan)
    points = [place([trace], 0, longest(trace, lane), devices=32) for lane in LANES]
    expected = [KIND_COLOURS[{"compute": "attention"}.get(lane, lane)] for lane in LANES]
    assert visit.colours_at(TIMELINE, points) == expected
    assert visit.distinct(TIMELINE) > 20  # shades of coverage


def test_a_zoomed_mask_shows_the_tiles_of_its_range(visit, large_plan):
    page = visit.open_plan("deep/large.dcpplan")
    page.focus(".dcp-mask .dcp-marks")
    whole = visit.digest(".dcp-mask")
    for _ in range(3):
        page.keyboard.press("w")  # shows the middle 0.7 of what was shown
    visit.digest(".dcp-mask")
    begin, span = (1 - 0.7**3) / 2, 0.7**3
    moved = [((x - begin) / span, (y - begin) / span) for x, y in centres(large_plan)]
    inside = [tile for tile, at in enumerate(moved) if min(at) > 0.01 and max(at) < 0.99]
    colours = device_colours(4, 8)
    shown = visit.colours_at(".dcp-mask", [moved[tile] for tile in inside])
    assert len(inside) > 500
    assert shown == [colours[large_plan.tiles.device[tile]] for tile in inside]
    page.keyboard.press("Escape")
    assert visit.digest(".dcp-mask") == whole


def test_charts_come_with_the_page_and_colourings_have_their_own_palette(visit):
    page = visit.open_plan("small.dcpplan")
    page.wait_for_selector("#traffic[data-state=drawn]")
    page.wait_for_selector("#balance .dcp-bar")
    rows = ("Compute", "Tokens", "Bytes sent", "Bytes received", "Buffers", "Waiting, predicted")
    assert page.locator(".dcp-bars-title").all_inner_texts() == [*rows, "Waiting, measured"]
    assert page.locator("#balance .dcp-bar").count() == 7 * 4
    before = visit.digest(".dcp-mask")
    page.click("#mask-mode >> text=Division")
    page.wait_for_selector("#mask[data-mode=division]")
    assert visit.digest(".dcp-mask") != before
    assert "division 2" in page.locator(".dcp-mask + .dcp-legend").inner_text()
    page.click("#mask-mode >> text=Device")
    page.wait_for_selector("#mask[data-mode=device]")
    assert visit.digest(".dcp-mask") == before


def test_hovering_names_the_tile_and_the_event(visit, small_plan, traces):
    visit.open_plan("small.dcpplan")
    tile, tiles = len(small_plan.tiles) // 2, small_plan.tiles
    text = visit.hover_at(".dcp-mask", *centres(small_plan)[tile])
    q, kv = tiles.q_block[tile], tiles.kv_block[tile]
    assert f"Tile {q} \u00d7 {kv} on device {tiles.device[tile]}" in text
    assert f"{tiles.pairs[tile]:,} pairs" in text
    assert f"owned by device {small_plan.blocks.owner[kv]}" in text
    trace, event = traces[0], longest(traces[0], "send")
    text = visit.hover_at(TIMELINE, *place([trace], 0, event, (0, traces[1].end_ns.max())))
    assert f"send: {trace.name_of(event)}" in text
    assert f"device {trace.device[event]} to device {trace.peer[event]}" in text
    assert f"division {trace.division[event]}" in text


def test_wheel_drag_and_keys_move_the_timeline_and_escape_resets_it(visit):
    page = visit.open_plan("small.dcpplan")
    whole = visit.digest(TIMELINE)
    visit.hover_at(TIMELINE, 0.5, 0.05)
    page.mouse.wheel(0, -400)
    zoomed = visit.digest(TIMELINE)
    assert zoomed != whole
    page.mouse.down()
    box = page.locator(f"{TIMELINE} .dcp-pixels").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 20, steps=3)
    page.mouse.up()
    dragged = visit.digest(TIMELINE)
    assert dragged not in (whole, zoomed)
    page.keyboard.press("ArrowRight")
    assert visit.digest(TIMELINE) not in (whole, zoomed, dragged)
    page.keyboard.press("Escape")
    assert visit.digest(TIMELINE) == whole
    page.keyboard.press("w")
    assert visit.digest(TIMELINE) != whole
    page.keyboard.press("0")
    assert visit.digest(TIMELINE) == whole
    visit.hover_at(".dcp-mask", 0.1, 0.2)  # nothing is left to zoom out of: the page scrolls
    before = page.evaluate("scrollY")
    page.mouse.wheel(0, 200)
    page.wait_for_function(f"() => scrollY > {before}")


def test_predicted_and_measured_can_be_shown_alone_or_together(visit):
    page = visit.open_plan("small.dcpplan")
    measured, predicted = (page.locator(f".dcp-view-{s}") for s in ("measured", "simulated"))
    assert measured.is_visible()
    assert predicted.is_visible()
    page.click("#timeline-source >> text=Measured")
    predicted.wait_for(state="hidden")
    assert measured.is_visible()
    page.wait_for_url("**?source=measured")
    page.reload()
    measured.wait_for(state="visible")
    predicted.wait_for(state="hidden")
    page.click("#timeline-source >> text=Both")
    predicted.wait_for(state="visible")


BACKGROUND = "() => getComputedStyle(document.body).backgroundColor"
INK = "() => getComputedStyle(document.querySelector('.dcp-bars-title')).color"


@pytest.mark.parametrize("visit", ["dark"], indirect=True)  # the choice stays in its context
def test_the_theme_follows_the_system_until_it_is_toggled_everywhere(visit):
    page = visit.open(f"plan/{plan_key('small.dcpplan')}?sel=device.1&tokens=0-1000-0-1000")
    page.wait_for_selector("#balance .dcp-bar")
    page.wait_for_selector(".dcp-mask[data-state=drawn]")
    page.wait_for_selector(f"{TIMELINE}[data-state=drawn]")
    assert page.evaluate(BACKGROUND) == "rgb(16, 19, 23)"
    dark = (page.evaluate(BACKGROUND), page.evaluate(INK), visit.digest(TIMELINE))
    address, length = page.url, page.evaluate("history.length")
    page.click("#colour-scheme")
    page.wait_for_selector("html[data-mantine-color-scheme=light]")
    light = (page.evaluate(BACKGROUND), page.evaluate(INK), visit.digest(TIMELINE))
    assert all(a != b for a, b in zip(light, dark, strict=True))
    page.evaluate("dcp.state.flush()")
    assert (page.url, page.evaluate("history.length")) == (address, length)
    page.reload()
    page.wait_for_selector(".dcp-mask[data-state=drawn]")
    assert page.evaluate(BACKGROUND) == light[0]


def test_a_broken_plan_is_a_message_not_a_crash(visit):
    page = visit.open(f"plan/{plan_key('cut.dcpplan')}")
    page.wait_for_selector("[role=alert]")
    assert "cut.dcpplan" in page.locator("[role=alert]").inner_text()
    page.click("text=dcp-dsl")
    page.wait_for_selector("table.dcp-plans")


@pytest.mark.parametrize("visit", ["fresh"], indirect=True)  # nothing has the focus yet
def test_the_page_can_be_used_without_a_mouse(visit):
    page = visit.open_plan("small.dcpplan")
    assert page.evaluate("document.documentElement.lang") == "en"
    reached = set()
    for _ in range(70):
        page.keyboard.press("Tab")
        name, outline = page.evaluate("""() => {
          const e = document.activeElement;
          const name = e.getAttribute('aria-label') || e.name || e.innerText;
          return [name.slice(0, 40), getComputedStyle(e).outlineStyle];
        }""")
        reached.add(name)
        assert outline != ""
    assert any(text.startswith("Mask:") for text in reached)
    assert any(text.startswith("Predicted timeline:") for text in reached)
    assert "Switch between light and dark" in reached


def test_the_timeline_grows_with_the_window(visit):
    visit.page.set_viewport_size({"width": 820, "height": 900})
    page = visit.open_plan("small.dcpplan")
    page.set_viewport_size({"width": 1200, "height": 900})
    page.wait_for_function(
        "() => document.querySelector('.dcp-timeline .dcp-marks').clientWidth > 1000"
    )


def test_a_laptop_shows_all_that_is_said(visit):
    page = visit.page
    page.set_viewport_size({"width": 1280, "height": 720})
    visit.open(f"plan/{plan_key('small.dcpplan')}?sel=device.1")
    page.wait_for_selector(".dcp-inspector[data-state=shown]")
    hidden = "(box) => box.scrollWidth - box.clientWidth"
    assert page.eval_on_selector(".dcp-inspector", hidden) <= 0
    assert page.eval_on_selector(".dcp-inspector-scroll", hidden) <= 0
    assert page.eval_on_selector(".dcp-device-table", hidden) <= 0
    lines = page.eval_on_selector_all(
        ".dcp-inspector dd, .dcp-inspector h4",
        "(all) => all.map((e) => e.getClientRects()[0].right)",
    )
    edge = page.eval_on_selector(".dcp-inspector", "(box) => box.getBoundingClientRect().right")
    assert max(lines) <= edge
    tops = page.eval_on_selector_all(
        ".dcp-metrics .dcp-value", "(all) => all.map((e) => e.getBoundingClientRect().top)"
    )
    assert len(set(tops)) == 1
    # A long origin gives way to what stands beside it.
    page.eval_on_selector(".dcp-facts", "(e) => { e.textContent = 'rows 1, 2, 3 '.repeat(60); }")
    name, export = (page.locator(name).bounding_box() for name in ("h1", ".dcp-export"))
    assert abs(export["y"] - name["y"]) < 16
    assert export["x"] + export["width"] <= 1280


def test_findings_keep_their_rule_beside_them(visit):
    page = visit.page
    page.set_viewport_size({"width": 1000, "height": 720})
    visit.open(f"plan/{plan_key('small.dcpplan')}")
    page.wait_for_selector(".dcp-findings .dcp-rule")
    gaps = page.eval_on_selector_all(
        ".dcp-findings li:has(.dcp-finding)",
        "(all) => all.map((li) => li.querySelector('.dcp-rule').getBoundingClientRect().top"
        " - li.getBoundingClientRect().top)",
    )
    assert gaps
    assert max(gaps) < 8


@pytest.mark.parametrize("task", ["suggest", "front"])
def test_a_plan_is_planned_again_on_demand(visit, task):
    page, key = visit.open_plan("small.dcpplan"), plan_key("small.dcpplan")
    other = plan_key("deep/large.dcpplan")
    made = {"key": other, "change": "other blocks", "option": "", "saves_s": 1e-3, "share": 0.5}
    job = {"job": "0", "state": "done", "figures": {"plans": [made]}}
    page.route(f"**/api/edit/{task}", lambda route: route.fulfill(json=job))
    page.click(f"[data-task={task}]")
    if task == "front":
        page.wait_for_url(f"**/front?plan={key}&plan={other}")
        page.wait_for_selector("#front .textpoint, #front .point")
        assert page.locator("tbody tr").count() == 2
    else:
        link = page.wait_for_selector("#tried a")
        assert link.get_attribute("href").startswith(f"/compare?a={key}")


def test_the_file_draws_and_selects_on_its_own(browser, served_folder, small_plan, tmp_path):
    file = tmp_path / "small.html"
    file.write_text(standalone_page(load_file(served_folder / "small.dcpplan")), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    asked, errors = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(file.as_uri())
    page.wait_for_selector(".dcp-mask[data-state=drawn]")
    page.wait_for_selector(".dcp-view-simulated .dcp-timeline[data-state=drawn]")
    assert page.locator("canvas.dcp-pixels").count() == 4  # mask, predicted, measured, traffic
    assert page.title() == "causal · small.dcpplan · dcp-dsl"
    tiles, blocks = small_plan.tiles, small_plan.blocks
    shown = page.eval_on_selector(".dcp-mask .dcp-pixels", READ, centres(small_plan))
    assert shown == [device_colours(2, 2)[device] for device in tiles.device]
    page.click(".dcp-device-table button >> text=3")
    owned = int((blocks.end - blocks.start)[np.asarray(blocks.owner) == 3].sum())
    page.wait_for_selector(f".dcp-inspector >> text={owned:,}")
    assert [url for url in asked if not url.startswith("data:")] == [file.as_uri()]
    assert errors == []
    page.close()
