"""One selection in all views, kept by the URL: colours and texts against values of the plan."""

import re

import numpy as np
from canvases import centres

from dcp_dashboard.api.encoding import KIND_COLOURS, device_colours
from dcp_dashboard.facts.findings import findings
from dcp_dashboard.facts.tiles import tile_facts
from dcp_dashboard.library.folder import open_folder, plan_key
from dcp_dashboard.library.plans import PlanLibrary

PANEL = {"light": "#f3f4f7", "dark": "#1e2329"}  # --canvas of tokens.css
DETAILED = ".dcp-mask[data-state=drawn][data-detail=shown]"
FAINT = 0.14
INKED = """(canvas) => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data
  .reduce((sum, value, at) => sum + (at % 4 === 3 && value > 0), 0)"""
KINDS = list(KIND_COLOURS)


def faint(colour, scheme="light"):
    """The colour of what is not selected: a seventh of the way from the background."""
    pairs = [(int(PANEL[scheme][i : i + 2], 16), int(colour[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{int(np.floor(a + (b - a) * FAINT + 0.5)):02x}" for a, b in pairs)


def expected_colours(plan, is_chosen, scheme="light"):
    colours = device_colours(plan.cluster.nodes, plan.cluster.devices_per_node)
    return [
        colours[device] if chosen else faint(colours[device], scheme)
        for device, chosen in zip(plan.tiles.device, is_chosen, strict=True)
    ]


def click_mask(visit, x, y):
    box = visit.page.locator(".dcp-mask .dcp-pixels").bounding_box()
    visit.page.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])


def rest(page, pattern):
    """Wait until the URL matches: it follows when things come to rest."""
    page.wait_for_url(re.compile(pattern), wait_until="commit")


def test_a_click_selects_a_tile_everywhere_and_its_links_go_on(visit, small_plan, served_folder):
    page = visit.open_plan("small.dcpplan")
    page.wait_for_selector("#balance .dcp-bar")
    page.wait_for_selector("#traffic[data-state=drawn]")
    whole = visit.digest(".dcp-mask")
    tile = len(small_plan.tiles) // 2
    device = int(small_plan.tiles.device[tile])
    spots = centres(small_plan)
    page.locator(".dcp-mask").scroll_into_view_if_needed()
    click_mask(visit, *spots[tile])
    rest(page, rf"sel=tile\.{tile}~device\.{device}~")
    numbers = np.arange(len(small_plan.tiles))
    # the frame of the selected tile lies on the layer above
    assert visit.colours_at(".dcp-mask", spots) == expected_colours(small_plan, numbers == tile)
    page.wait_for_selector(".dcp-inspector[data-state=shown]")
    said = page.locator(".dcp-inspector").inner_text()
    loaded = PlanLibrary(open_folder(served_folder)).load(plan_key("small.dcpplan"))
    assert tile_facts(loaded, tile).title in said
    assert f"{small_plan.tiles.pairs[tile]:,} of" in said
    chosen = page.locator(".dcp-device-table tr[aria-selected=true]")
    assert chosen.get_attribute("data-device") == str(device)
    assert page.locator("#balance .dcp-chosen").count() == 7

    page.click(f".dcp-inspector >> text=device {device} >> nth=0")
    rest(page, rf"sel=device\.{device}$")
    mine = small_plan.tiles.device == device
    assert visit.colours_at(".dcp-mask", spots) == expected_colours(small_plan, mine)
    page.wait_for_selector(f".dcp-inspector h3 >> text='Device {device}'")
    assert "for device" in page.locator(".dcp-inspector").inner_text()

    box = page.locator("#balance svg").first.bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.1, box["y"] + 30)
    rest(page, r"sel=device\.0$")
    page.keyboard.press("Escape")
    rest(page, r"/plan/\w+$")
    assert visit.digest(".dcp-mask") == whole
    assert page.locator("[aria-selected=true], .dcp-chosen").count() == 0


def test_traffic_selects_pairs_and_sums_nodes(visit, small_plan):
    page = visit.open_plan("small.dcpplan")
    page.wait_for_selector("#traffic[data-state=drawn]")
    labels = visit.digest("#traffic", "marks")
    table = small_plan.transfers
    moved = np.zeros((4, 4))
    np.add.at(moved, (table.source, table.target), table.size_bytes)
    cells = [((c + 0.5) / 4, (r + 0.5) / 4) for r in range(4) for c in range(4)]
    shown = np.array(visit.colours_at("#traffic", cells)).reshape(4, 4)
    assert (shown[moved == 0] == PANEL["light"]).all()
    assert (shown[moved == moved.max()] == KIND_COLOURS["send"]).all()
    source, target = np.unravel_index(int(moved.argmax()), (4, 4))
    assert f"device {source} sends device {target}" in visit.hover_at(
        "#traffic", (target + 0.5) / 4, (source + 0.5) / 4
    )
    page.mouse.down()
    page.mouse.up()
    rest(page, rf"sel=device\.{source}~peer\.{target}$")
    page.wait_for_selector(f".dcp-inspector h3 >> text='Device {source} → device {target}'")
    page.keyboard.press("ArrowRight" if target < 3 else "ArrowLeft")
    rest(page, rf"sel=device\.{source}(~peer\.\d)?$")
    page.keyboard.press("Escape")
    assert visit.digest("#traffic", "marks") == labels
    page.click("#traffic-level >> text=Nodes")
    rest(page, "traffic=node")
    nodes = moved.reshape(2, 2, 2, 2).sum((1, 3))
    quarters = [((c + 0.5) / 2, (r + 0.5) / 2) for r in range(2) for c in range(2)]
    shown = np.array(visit.colours_at("#traffic", quarters)).reshape(2, 2)
    assert (shown[nodes == nodes.max()] == KIND_COLOURS["send"]).all()


def test_a_finding_leads_to_its_device_and_time(visit, served_folder):
    page = visit.open_plan("small.dcpplan")
    before = visit.digest(".dcp-view-simulated .dcp-timeline")
    loaded = PlanLibrary(open_folder(served_folder)).load(plan_key("small.dcpplan"))
    found = findings(loaded, "simulated")
    finding = next(item for item in found if item.time_ns is not None)
    page.click(f"text={finding.text} >> nth=0")
    rest(page, rf"sel={finding.selected}&time=")
    start, end = (int(t) for t in re.search(r"time=(\d+)-(\d+)", page.url).groups())
    assert start <= finding.time_ns[0] < finding.time_ns[1] <= end
    assert visit.digest(".dcp-view-simulated .dcp-timeline") != before
    page.click(".dcp-findings .dcp-rule summary >> nth=0")
    assert found[0].rule in page.locator(".dcp-findings .dcp-rule >> nth=0").inner_text()


def test_the_url_restores_everything_and_history_stays_sane(visit, small_plan):
    key, tile = plan_key("small.dcpplan"), 3
    query = f"?sel=tile.{tile}~device.{small_plan.tiles.device[tile]}&tokens=0-1000-0-1000"
    page = visit.open(f"plan/{key}{query}&colour=division")
    page.wait_for_selector(DETAILED)
    page.wait_for_selector(".dcp-inspector[data-state=shown]")
    shared = visit.digest(".dcp-mask")
    assert page.locator("#mask-mode [aria-checked=true]").inner_text() == "Division"
    assert page.evaluate("document.getElementById('mask').dataset.mode") == "division"
    length = page.evaluate("history.length")
    page.click("#mask-mode >> text=Density")
    rest(page, "colour=density")
    assert visit.digest(".dcp-mask") != shared
    page.click("#mask-mode >> text=Division")
    rest(page, "colour=division")
    assert "tokens=0-1000-0-1000" in page.url
    assert page.evaluate("history.length") == length  # selecting is no place to go back to
    page.reload()
    page.wait_for_selector(DETAILED)
    assert visit.digest(".dcp-mask") == shared

    page.click(".dcp-tab >> text=Mask")
    page.wait_for_url(re.compile(rf"/plan/{key}/mask\?sel=tile\.{tile}"))
    page.wait_for_selector(".dcp-tile-table", state="attached")
    assert "tokens=0-1000-0-1000" in page.url
    page.keyboard.press("Escape")
    page.wait_for_function("() => !location.search.includes('sel=')")
    page.go_back()
    page.wait_for_selector("#balance .dcp-bar")
    rest(page, rf"/plan/{key}\?sel=tile\.{tile}")
    page.wait_for_selector(DETAILED)
    assert visit.digest(".dcp-mask") == shared
    page.go_forward()
    page.wait_for_selector(".dcp-tile-table", state="attached")
    assert "sel=" not in page.url


def test_keys_step_through_divisions_and_show_the_map(visit, small_plan):
    page = visit.open_plan("small.dcpplan")
    page.wait_for_selector(".dcp-steps[data-state=drawn]")
    spots, tiles = centres(small_plan), small_plan.tiles
    for division in (0, 1):
        page.keyboard.press(".")
        rest(page, rf"sel=division\.{division}~backward\.0$")
        chosen = tiles.division == division
        assert visit.colours_at(".dcp-mask", spots) == expected_colours(small_plan, chosen)
    page.keyboard.press(",")
    rest(page, r"sel=division\.0~backward\.0$")
    page.keyboard.press(",")  # there is none before the first
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open] >> text=play all divisions")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog[open]", state="detached")
    assert "sel=division.0" in page.url
    page.evaluate("document.querySelector('.dcp-steps').dataset.pause = '60'")
    page.click(".dcp-steps [data-step=play]")
    last = int(tiles.backward_division.max())
    rest(page, rf"sel=division\.{last}~backward\.1$")  # plays forward, then backward
    page.focus("#balance")
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    rest(page, r"sel=device\.1$")
    page.keyboard.press(".")
    rest(page, r"sel=division\.0~backward\.0~device\.1$")
    both = (tiles.division == 0) & (tiles.device == 1)
    assert visit.colours_at(".dcp-mask", spots) == expected_colours(small_plan, both)


CUT_OFF = """() => {
  const ask = window.fetch;
  window.fetch = async (url, options) => {
    if (!String(url).endsWith("/device/1")) return ask(url, options);
    window.fetch = ask;
    return { ok: true, json: () => Promise.reject(new DOMException("", "AbortError")) };
  };
}"""


def test_an_answer_that_was_cut_off_is_asked_for_again(visit):
    page = visit.open_plan("small.dcpplan")
    page.evaluate(CUT_OFF)
    for device in (1, 2, 1):
        page.evaluate("(device) => dcp.state.set({ sel: { type: 'device', device } })", device)
        if device == 2:  # before it, the first answer about device 1 was left half way
            page.wait_for_selector(".dcp-inspector h3 >> text='Device 2'")
    page.wait_for_selector(".dcp-inspector h3 >> text='Device 1'")


def test_a_sequence_is_found_by_its_number_in_every_view(visit, small_plan):
    page = visit.open_plan("small.dcpplan")
    before = visit.digest("#timelines .dcp-timeline")

    def find(text):
        page.fill(".dcp-finder", text)
        page.press(".dcp-finder", "Enter")

    find("nobody 7")
    page.wait_for_selector(".dcp-finder[aria-invalid=true]")
    find("Chat-9f3a")
    rest(page, r"sel=sequence\.2$")
    find("seq 0")
    rest(page, r"sel=sequence\.0$")
    find("row")
    page.wait_for_selector(".dcp-inspector h3 >> text=\"3 sequences have 'row' in their names\"")
    page.get_by_role("button", name="0, row 70").click()
    page.wait_for_selector(".dcp-inspector h3 >> text='Sequence 0'")
    rest(page, r"sel=sequence\.0$")
    find("Seq 1")
    page.wait_for_selector(".dcp-inspector h3 >> text='Sequence 1'")
    rest(page, r"sel=sequence\.1$")
    name = small_plan.sequence_names[1]
    assert "<script>" in name
    assert page.locator(".dcp-inspector dd").first.inner_text() == name
    assert page.locator(".dcp-inspector script").count() == 0
    assert page.get_attribute(".dcp-finder", "aria-invalid") == "false"
    mine = small_plan.blocks.sequence[small_plan.tiles.q_block] == 1
    shown = visit.colours_at(".dcp-mask", centres(small_plan))
    assert shown == expected_colours(small_plan, mine)
    assert visit.digest("#timelines .dcp-timeline") != before
    find("division 1 backward")
    rest(page, r"sel=division\.1~backward\.1$")
    box, edge = page.locator(".dcp-mask .dcp-marks").bounding_box(), ".dcp-mask .dcp-marks"
    page.click(edge, position={"x": 8, "y": 0.8 * box["height"]})  # the row of the third sequence
    rest(page, r"sel=sequence\.2$")
    page.click(edge, position={"x": 0.65 * box["width"], "y": box["height"] - 8})
    rest(page, r"sel=sequence\.1$")


def test_a_wait_that_is_chosen_shows_its_chain_as_arrows(visit, small_trace):
    held = []
    wait = int(np.flatnonzero(small_trace.kind == KINDS.index("wait"))[-1])
    device = int(small_trace.device[wait])
    key = plan_key("small.dcpplan")
    visit.page.route("**/event/**", lambda route: held.append(route))
    page = visit.open(
        f"plan/{key}?source=simulated&path=off&sel=event.{wait}~source.simulated~device.{device}"
    )
    page.wait_for_selector(".dcp-view-simulated .dcp-timeline[data-state=drawn]")
    marks = ".dcp-view-simulated .dcp-marks"
    alone = page.eval_on_selector(marks, INKED)
    held[0].continue_()
    page.wait_for_selector(".dcp-inspector h4 >> text=Events that delayed its end")
    drawn = f"(least) => ({INKED})(document.querySelector('{marks}')) > least + 100"
    page.wait_for_function(drawn, arg=alone)


def test_the_critical_path_is_drawn_told_and_hidden(visit, small_trace):
    page = visit.open(f"plan/{plan_key('small.dcpplan')}/timeline?source=simulated")
    told = page.locator(".dcp-path p")
    told.first.wait_for()
    assert re.match(r"Predicted critical path: .+ [\d.]+\s%, .+ [\d.]+\s%\.$", told.inner_text())
    page.wait_for_timeout(50)  # the line is drawn in the next frame
    drawn = page.eval_on_selector(".dcp-timeline .dcp-marks", INKED)
    told.get_by_text("Predicted critical path").click()
    rest(page, "path=off")
    page.wait_for_timeout(50)
    plain = page.eval_on_selector(".dcp-timeline .dcp-marks", INKED)
    end = page.locator(".dcp-timeline .dcp-pixels").bounding_box()["width"]
    assert drawn > plain + end  # a line from the first moment to the last, thicker than a pixel
    told.get_by_text("compute").click()
    rest(page, r"sel=event\.")
    event = int(re.search(r"sel=event\.(\d+)", page.url)[1])
    assert small_trace.kind[event] == KINDS.index("attention")


def test_what_cannot_be_shown_says_so(visit):
    key = plan_key("small.dcpplan")
    visit.page.route("**/devices", lambda route: route.abort())
    page = visit.open(f"plan/{key}?sel=tile.99999")
    page.wait_for_selector(".dcp-inspector [role=alert]")
    said = page.locator(".dcp-inspector").inner_text()
    assert "expected a tile from 0 to" in said
    page.wait_for_selector("#balance[role=alert] >> text=Cannot draw this")
    page.click(".dcp-inspector >> text=Clear")
    page.wait_for_selector(".dcp-inspector >> text=Nothing is selected")
    visit.open(f"plan/{key}/nonsense")
    page.wait_for_selector("[role=alert] >> text=No such page")
    assert all("Failed to load resource" in error for error in visit.errors)  # asked for above
    visit.errors.clear()


def test_dark_pages_dim_what_is_not_selected(visit, small_plan):
    page = visit.page
    page.emulate_media(color_scheme="dark")
    visit.open(f"plan/{plan_key('small.dcpplan')}?sel=device.2")
    page.wait_for_selector(".dcp-mask[data-state=drawn]")
    mine = small_plan.tiles.device == 2
    shown = visit.colours_at(".dcp-mask", centres(small_plan))
    assert shown == expected_colours(small_plan, mine, "dark")
    page.click("nav >> text=Help")
    page.wait_for_selector("#definitions")
    assert page.title() == "Help · dcp-dsl"
    assert page.locator(".dcp-nav [aria-current=page]").inner_text() == "Help"
