"""The page of the timeline: pixels, numbers and addresses against values of the trace."""

import base64
import io
import re
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree

import numpy as np
import pytest
from canvases import READ, longest, place
from PIL import Image

from dcp_dashboard.api.encoding import KIND_COLOURS
from dcp_dashboard.facts.traces import EventFilter, matching
from dcp_dashboard.library.folder import plan_key
from dcp_dsl import Slabs, block_sparsity
from dcp_planner import (
    LANES,
    Cluster,
    ModelShape,
    PlanConfig,
    Trace,
    build_plan,
    write_plan,
)
from dcp_planner.simulation import EVENT_KINDS
from dcp_planner.tables import measure_memory

HOST = ".dcp-timeline"


def open_timeline(visit, query="", name="small.dcpplan"):
    page = visit.open(f"plan/{plan_key(name)}/timeline{query}")
    page.wait_for_selector(f"{HOST}[data-state=drawn]", state="attached")
    return page


def payload_rows(trace):
    """Events in the order that documented payloads have: device, lane, start."""
    return np.lexsort((trace.start_ns, trace.lane, trace.device))


def press_at(visit, x, y):
    """Click at a point of the canvas given in shares."""
    box = visit.page.locator(f"{HOST} .dcp-pixels").bounding_box()
    visit.page.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])


def state(page):
    """Return the URL once the frame after the last input has written it."""
    page.evaluate(
        "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        ".then(() => dcp.state.flush())"
    )
    return {key: values[0] for key, values in parse_qs(urlsplit(page.url).query).items()}


def test_predicted_and_measured_share_an_axis_in_the_colours_of_their_kinds(visit, traces):
    page = open_timeline(visit)
    chosen = [(s, longest(traces[s], lane)) for s in (0, 1) for lane in LANES]
    points = [place(traces, source, event) for source, event in chosen]
    kinds = [EVENT_KINDS[traces[source].kind[event]] for source, event in chosen]
    assert visit.colours_at(HOST, points) == [KIND_COLOURS[kind] for kind in kinds]
    page.click("button >> text=wait")
    page.wait_for_selector("button[aria-pressed=false] >> text=wait")
    assert state(page)["kinds"] == "attention,reduction,copy,send,receive"
    shown = visit.colours_at(HOST, points)
    waits = [i for i, kind in enumerate(kinds) if kind == "wait"]
    assert all((shown[i] == KIND_COLOURS[kinds[i]]) == (i not in waits) for i in range(len(kinds)))
    page.click("button >> text=Measured")
    page.wait_for_selector("button[aria-pressed=true] >> text=Measured")
    alone = [place(traces[1:], 0, event) for source, event in chosen if source == 1]
    assert visit.colours_at(HOST, alone)[1] == KIND_COLOURS["send"]


def test_a_click_selects_an_event_with_its_other_end_and_the_url_keeps_it(visit, traces):
    page = open_timeline(visit)
    rows = payload_rows(traces[0])
    event = longest(traces[0], "send")
    press_at(visit, *place(traces, 0, event))
    title = f"Send of {traces[0].name_of(event)} on device {traces[0].device[event]}"
    page.locator(".dcp-inspector h3", has_text=title).wait_for()
    number = int(np.flatnonzero(rows == event)[0])
    facts = dict(part.split(".") for part in state(page)["sel"].split("~"))
    assert facts == {
        "event": str(number), "source": "simulated", "device": str(traces[0].device[event]),
        "division": str(traces[0].division[event]), "peer": str(traces[0].peer[event]),
        "backward": str(int(traces[0].is_backward[event])),
        "block": traces[0].name_of(event).split()[1],
    }  # fmt: skip
    page.click("dt:text-is('Matching receive') + dd button")
    page.wait_for_selector("dt:text-is('Matching send')")
    facts = dict(part.split(".") for part in state(page)["sel"].split("~"))
    other = rows[int(facts["event"])]
    assert LANES[traces[0].lane[other]] == "receive"
    assert traces[0].name_of(other) == traces[0].name_of(event)
    assert traces[0].device[other] == traces[0].peer[event]
    chosen = visit.page.url
    page.reload()
    page.wait_for_selector(f"{HOST}[data-state=drawn]")
    page.wait_for_selector("dt:text-is('Matching send')")
    assert page.url == chosen


def test_keys_go_to_neighbours_zoom_to_them_and_let_go(visit, traces):
    rows = payload_rows(traces[0])
    event = longest(traces[0], "send")
    number = int(np.flatnonzero(rows == event)[0])
    sends = (traces[0].device == traces[0].device[event]) & (traces[0].lane == 1)
    track = np.flatnonzero(sends[rows]).tolist()
    page = open_timeline(visit, f"?sel=event.{track[0]}~source.simulated~device.0")
    page.focus(f"{HOST} .dcp-marks")
    for _ in range(track.index(number)):
        page.keyboard.press("]")
    assert state(page)["sel"].startswith(f"event.{number}~")
    page.keyboard.press("Enter")
    begin, end = (float(ns) for ns in state(page)["time"].split("-"))
    both = np.flatnonzero(traces[0].transfer == traces[0].transfer[event])  # and its receive
    assert len(both) == 2
    first, last = traces[0].start_ns[both].min(), traces[0].end_ns[both].max()
    margin = 0.1 * (last - first)
    assert begin == pytest.approx(max(0, first - margin), abs=2)
    assert end == pytest.approx(last + margin, abs=2)
    point = place(traces, 0, event, (begin, end))
    assert visit.colours_at(HOST, [point]) == [KIND_COLOURS["send"]]
    page.keyboard.press("[")
    expected = track[max(0, track.index(number) - 1)]
    assert state(page)["sel"].startswith(f"event.{expected}~")


def test_a_search_counts_steps_and_exports_what_it_finds(visit, traces):
    page = open_timeline(visit)
    page.keyboard.press("/")
    page.keyboard.type("gpu 2 kv 1")
    found = [matching(trace, EventFilter(find="gpu 2 kv 1")) for trace in traces]
    total = sum(len(rows) for rows in found)
    assert total > 2
    page.wait_for_selector(f".dcp-found >> text=/\\/{total}$/")
    page.keyboard.press("Enter")
    page.wait_for_selector(f".dcp-found >> text=1/{total}")
    rank = np.argsort(payload_rows(traces[0]))
    assert state(page)["sel"].startswith(f"event.{rank[found[0][0]]}~source.simulated")
    page.keyboard.press("Shift+Enter")
    page.wait_for_selector(f".dcp-found >> text={total}/{total}")
    assert f"event.{rank[found[1][-1]]}~source.measured" in state(page)["sel"]
    with page.expect_download() as download:
        page.click('text="CSV"')
    text = download.value.path().read_text()
    assert download.value.suggested_filename == "small.csv"
    assert len(text.splitlines()) == 1 + total


def overlap(trace, kind, t0, t1, devices):
    """Covered ns and number of a kind's events in an area, one event at a time."""
    time = count = 0
    for i in range(len(trace)):
        inside = min(trace.end_ns[i], t1) - max(trace.start_ns[i], t0)
        if EVENT_KINDS[trace.kind[i]] == kind and trace.device[i] in devices and inside > 0:
            time, count = time + int(inside), count + 1
    return time, count


def test_an_area_is_summed_by_kind_and_device(visit, traces):
    page = open_timeline(visit)
    box = page.locator(f"{HOST} .dcp-pixels").bounding_box()
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + 0.1 * box["width"], box["y"] + 0.3 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.7 * box["height"], steps=3)
    page.mouse.up()
    page.keyboard.up("Shift")
    t0, t1, first, last = (int(n) for n in state(page)["area"].split("-"))
    span = max(int(trace.end_ns.max()) for trace in traces)
    assert (t0 / span, t1 / span) == pytest.approx((0.1, 0.6), abs=0.01)
    assert (first, last) == (1, 2)
    tables = page.locator(".dcp-area-table").all()
    assert len(tables) == 2
    for trace, shown in zip(traces, tables, strict=True):
        rows = [row.split("\t") for row in shown.locator("tbody").inner_text().splitlines()]
        for kind, time, share, count, *_ in rows:
            ns, number = overlap(trace, kind, t0, t1, (1, 2))
            assert int(count) == number
            value, unit = time.split()
            factor = {"ns": 1, "µs": 1e3, "ms": 1e6}[unit]
            assert float(value) * factor == pytest.approx(ns, rel=0.01)
            percent = 100 * ns / (2 * (t1 - t0))
            assert float(share.split()[0]) == pytest.approx(percent, rel=0.01)
        kinds = {row[0] for row in rows}
        assert kinds == {k for k in EVENT_KINDS if overlap(trace, k, t0, t1, (1, 2))[1]}
    page.focus(f"{HOST} .dcp-marks")
    page.keyboard.press("Escape")
    assert "area" not in state(page)


def test_the_table_holds_the_filtered_events_in_any_order(visit, traces):
    page = open_timeline(visit, "?view=table&kinds=send,receive&source=measured")
    page.click("th >> text=Duration")
    page.click("th >> text=Duration")
    page.wait_for_selector("th[aria-sort=descending] >> text=Duration")
    assert state(page)["order"] == "-duration_ns"
    wanted = matching(traces[1], EventFilter(kinds=("send", "receive"), sort="-duration_ns"))
    assert f"{len(wanted)} events" in page.locator(".dcp-event-table").inner_text()
    shown = [row.split("\t") for row in page.locator(".dcp-virtual tbody tr").all_inner_texts()]
    t = traces[1]
    expected = [[str(t.device[e]), LANES[t.lane[e]], t.name_of(e)] for e in wanted]
    assert len(shown) >= 10
    assert [row[1:4] for row in shown] == expected[: len(shown)]
    page.locator(".dcp-virtual-scroll").evaluate("(box) => { box.scrollTop = box.scrollHeight; }")
    last = page.locator(f".dcp-virtual tbody tr[aria-rowindex='{len(wanted) + 1}']")
    last.wait_for()
    last.click()
    page.wait_for_selector("tr.dcp-chosen")
    rank = np.argsort(payload_rows(traces[1]))
    assert state(page)["sel"].startswith(f"event.{rank[wanted[-1]]}~source.measured")
    page.click("button >> text=Table")
    page.wait_for_selector(f"{HOST} .dcp-pixels")
    assert visit.distinct(HOST) > 3


def test_divisions_are_stepped_and_the_others_pale(visit, traces):
    page = open_timeline(visit, "?source=simulated")
    page.focus(f"{HOST} .dcp-marks")
    page.keyboard.press(".")
    page.keyboard.press(".")
    assert state(page)["sel"] == "division.1~backward.0"
    page.wait_for_selector(".dcp-steps output >> text=forward 1")
    page.wait_for_selector(".dcp-inspector h3 >> text=Division 1, forward")
    trace = traces[0]
    of_it = (trace.division == 1) & ~trace.is_backward
    end = float(state(page)["time"].split("-")[1])
    margin = 0.1 * (trace.end_ns[of_it].max() - trace.start_ns[of_it].min())
    assert end == pytest.approx(trace.end_ns[of_it].max() + margin, abs=2)
    page.keyboard.press("0")
    visit.digest(HOST)
    waits = np.flatnonzero(trace.lane == LANES.index("wait"))
    waits = waits[(trace.end_ns - trace.start_ns)[waits] > 5_000]
    window = (0, max(int(t.end_ns.max()) for t in traces))
    points = [place([trace], 0, event, window) for event in waits]
    shown = visit.colours_at(HOST, points)
    bright = [colour == KIND_COLOURS["wait"] for colour in shown]
    assert bright == [bool(of_it[event]) for event in waits]
    assert 0 < sum(bright) < len(bright)
    page.keyboard.press(" ")  # scrolls the page, as everywhere
    assert state(page)["sel"] == "division.1~backward.0"
    page.keyboard.press("p")
    page.wait_for_selector(".dcp-steps output >> text=forward 2")
    page.keyboard.press("p")
    page.wait_for_selector(".dcp-steps [aria-label='Play all divisions']")


def accent_rows(page):
    """Shares of the height at which the strip beside the rows has the colour of the selection."""
    page.wait_for_timeout(50)
    left, top, rows, width, height, accent = page.evaluate("""() => {
      const [pixels, marks] = ['.dcp-pixels', '.dcp-marks'].map((s) => document.querySelector(s));
      const style = getComputedStyle(document.documentElement);
      return [pixels.offsetLeft, pixels.offsetTop, pixels.clientHeight, marks.clientWidth,
        marks.clientHeight, style.getPropertyValue('--accent').trim()];
    }""")
    points = [((left - 2) / width, (top + (i + 0.5) / 8 * rows) / height) for i in range(8)]
    shown = page.eval_on_selector(".dcp-marks", READ, points)
    return [i for i, colour in enumerate(shown) if colour == accent]


def test_what_other_views_select_is_marked(visit, traces):
    page = open_timeline(visit, "?sel=device.2")
    assert accent_rows(page) == [4, 5]
    message = {"type": "transfer", "transfer": 3, "device": 1, "peer": 3}
    page.evaluate("(sel) => dcp.state.set({ sel })", message)
    assert accent_rows(page) == [2, 3, 6, 7]
    page.wait_for_selector(".dcp-inspector h4 >> text=Tiles of this message")
    page.evaluate("() => window.dcp.state.set({ time: [1000, 2000] })")
    assert state(page)["time"] == "1000-2000"
    t = traces[0]
    inside = np.flatnonzero((t.start_ns <= 1100) & (t.end_ns >= 1900) & (t.lane == 1))[0]
    page.evaluate("() => window.dcp.state.set({ sel: null })")
    visit.digest(HOST)
    middle = (0.5, place(traces, 0, inside)[1])
    assert visit.colours_at(HOST, [middle]) == [KIND_COLOURS["send"]]


def test_nodes_close_where_rows_would_be_thin_and_open_by_click(visit):
    visit.page.set_viewport_size({"width": 1200, "height": 400})
    page = open_timeline(visit, name="deep/large.dcpplan")
    page.evaluate("() => window.dcp.state.set({ open: 'none' })")
    closed = visit.digest(HOST)
    text = visit.hover_at(HOST, 0.5, 0.6)
    assert text.startswith("Node 2: devices 16 to 23")
    assert re.search(r"attention [\d.]+ %", text)
    press_at(visit, 0.5, 0.1)
    assert state(page)["open"] == "0"
    assert visit.digest(HOST) != closed
    # Eleven rows of one height now: eight devices and three nodes.
    rows = page.evaluate("document.querySelector('.dcp-pixels').clientHeight")
    assert rows > 11 * 14 - 1
    page.keyboard.press("o")
    assert state(page)["open"] == "none"


def test_nodes_of_unequal_size_have_their_own_devices(visit, tmp_path, unequal_plan):
    write_plan(tmp_path / "unequal.dcpplan", unequal_plan)
    with visit.serving(tmp_path):
        open_timeline(visit, "?open=none", name="unequal.dcpplan")
        assert visit.hover_at(HOST, 0.5, 0.2).startswith("Node 0: devices 0 to 1")
        assert visit.hover_at(HOST, 0.5, 0.7).startswith("Node 1: devices 2 to 2")
        page = visit.open_plan("unequal.dcpplan")
        page.wait_for_selector("#traffic[data-state=drawn]")
        page.click("#traffic-level >> text=Nodes")
        # The one device of node 1 has nobody there to send to.
        alone = visit.hover_at("#traffic", 0.75, 0.75)
        assert alone.startswith("node 1 sends node 1")
        assert "nothing" in alone
        assert "nothing" not in visit.hover_at("#traffic", 0.25, 0.25)


def test_a_plan_that_does_nothing_says_so(visit, tmp_path, small_plan):
    nothing = Trace.of_rows("simulated", np.empty((0, 10), int), ())
    write_plan(tmp_path / "still.dcpplan", small_plan, (nothing,))
    with visit.serving(tmp_path):
        page = visit.open(f"plan/{plan_key('still.dcpplan')}/timeline")
        page.wait_for_selector(".dcp-timeline-empty")
        assert "no events" in page.locator(".dcp-timeline-empty").inner_text()


def test_a_laptop_shows_the_sums_and_every_column(visit):
    visit.page.set_viewport_size({"width": 1280, "height": 720})
    page = open_timeline(visit, "?sel=division.1~backward.0~device.0&area=0-20000-0-3")
    page.wait_for_selector(".dcp-inspector[data-state=shown]")
    table = page.locator(".dcp-area-table").first.bounding_box()
    assert table["y"] + 28 < 720  # at least its heading is in sight below all of the selection
    page.click("button >> text=Table")
    page.wait_for_selector(".dcp-virtual tbody tr")
    box = page.locator(".dcp-virtual-scroll")
    assert box.evaluate("(box) => box.scrollWidth - box.clientWidth") <= 0
    cut = "(all) => all.filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.innerText)"
    assert page.eval_on_selector_all(".dcp-virtual :is(th, td)", cut) == []


def test_memory_lies_under_the_same_axis_and_states_the_peak(visit, small_plan, small_trace):
    page = open_timeline(visit, "?source=simulated")
    memory = page.locator(".dcp-memory")
    memory.scroll_into_view_if_needed()
    page.wait_for_selector(".dcp-memory[data-state=drawn]")
    pixels = memory.locator(".dcp-pixels")
    axis, box = page.locator(f"{HOST} .dcp-pixels").bounding_box(), pixels.bounding_box()
    assert (box["x"], box["width"]) == (axis["x"], axis["width"])
    peaks, rows = measure_memory(small_plan).peak, small_plan.num_devices
    most, least = int(peaks.argmax()), int(peaks.argmin())
    assert (
        f"Device {most} needs most memory" in page.locator(".dcp-memory + .dcp-hint").inner_text()
    )
    # In backward, the device that holds most fills its row to the top; the other one does not.
    start = small_trace.start_ns[small_trace.is_backward]
    share = (start.min() + start.max()) / 2 / small_trace.end_ns.max()
    top, above = pixels.evaluate(READ, [[share, (row + 0.03) / rows] for row in (most, least)])
    assert top != above == pixels.evaluate(READ, [[0.001, 0.03 / rows]])[0]
    memory.locator(".dcp-marks").hover(position={"x": box["width"] / 2, "y": 10})
    assert memory.locator(".dcp-tooltip").inner_text().startswith("device 0 holds")
    page.mouse.wheel(0, -200)
    page.wait_for_url("**time=**")
    shown = page.evaluate("dcp.state.get().time")
    assert 0 <= shown[0] < shown[1] < small_trace.end_ns.max() * 5 / 4


def test_pinned_devices_stay_at_the_top_wherever_one_scrolls(visit, tmp_path):
    sparsity = block_sparsity([Slabs(8192, [0], [8192], [0], [1], [0], [1])], 128, 128)
    config = PlanConfig("static:zigzag", divisions=2)
    # 64 devices, whose rows are as thin as they get in a low window
    plan = build_plan(sparsity, ModelShape(), Cluster(8, 8), config)
    write_plan(tmp_path / "many.dcpplan", plan)
    visit.page.set_viewport_size({"width": 1440, "height": 500})
    with visit.serving(tmp_path):
        page = open_timeline(visit, "?pins=17,3&open=all&sel=device.17", "many.dcpplan")
        pixels, high = page.locator(f"{HOST} .dcp-pixels"), 6

        def rows(first, count):
            read = """(canvas, [y, count]) => [...canvas.getContext('2d')
              .getImageData(0, y, canvas.width, count).data].join()"""
            return pixels.evaluate(read, [first * high, count * high])

        before = rows(0, 2), rows(2, 8)
        assert before[0] != rows(2, 2)
        page.locator(f"{HOST} .dcp-marks").hover(position={"x": 400, "y": 200})
        page.keyboard.down("Shift")
        page.mouse.wheel(0, 300)
        page.keyboard.up("Shift")
        visit.digest(HOST)  # a frame later
        assert rows(0, 2) == before[0]
        assert rows(2, 8) != before[1]
        page.get_by_role("button", name="Unpin device 17").click()
        page.wait_for_url("**pins=3")
        page.get_by_role("link", name="Overview").click()
        first = page.locator(".dcp-device-table tbody tr").first
        first.wait_for()
        assert first.get_attribute("data-device") == "3"


def test_notes_live_in_the_address_and_stay_text(visit):
    page = open_timeline(visit, "?sel=device.2")
    plain = visit.digest(HOST, "marks")
    page.get_by_label("Text of the note").fill("<img src=x onerror=alert(1)> & late")
    page.get_by_role("button", name="Add note").click()
    page.wait_for_url("**notes=**")
    told = page.locator(".dcp-notes li button").first
    assert told.inner_text() == "device 2: <img src=x onerror=alert(1)> & late"
    assert visit.digest(HOST, "marks") != plain
    page.reload()
    page.wait_for_selector(f"{HOST}[data-state=drawn]")
    assert told.inner_text() == "device 2: <img src=x onerror=alert(1)> & late"
    assert page.locator(".dcp-notes img").count() == 0
    page.get_by_role("button", name="Remove note 1").click()
    page.wait_for_url(re.compile(r"sel=device\.2$"))
    assert visit.digest(HOST, "marks") == plain


@pytest.mark.parametrize(("view", "scheme"), [("timeline", "dark"), ("mask", "light")])
def test_what_is_shown_can_be_saved(visit, view, scheme, small_trace, tmp_path):
    visit.page.emulate_media(color_scheme=scheme)
    third = int(small_trace.end_ns.max()) // 3
    query = {"timeline": f"?time={third}-{2 * third}", "mask": "?tokens=256-768-256-768"}[view]
    page = visit.open(f"plan/{plan_key('small.dcpplan')}/{view}{query}")
    page.wait_for_selector(f"html[data-mantine-color-scheme={scheme}]")
    page.wait_for_selector(f".dcp-{view}[data-state=drawn]")
    page.wait_for_load_state("networkidle")
    files = {}
    for kind in ("PNG", "SVG"):
        with page.expect_download() as found:
            page.get_by_role("button", name=kind, exact=True).click()
        assert found.value.suggested_filename == f"{view}.{kind.lower()}"
        files[kind] = tmp_path / kind
        found.value.save_as(files[kind])
    canvas = page.locator(f".dcp-{view} .dcp-marks")
    size = canvas.evaluate("canvas => [canvas.width, canvas.height]")
    picture = Image.open(files["PNG"]).convert("RGB")
    assert list(picture.size) == size
    drawing = ElementTree.parse(files["SVG"]).getroot()
    assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
    inner = drawing.find("{*}image")
    pixels = Image.open(io.BytesIO(base64.b64decode(inner.get("href").split(",")[1])))
    ground = drawing.find("{*}rect").get("fill")
    assert bytes(picture.getpixel((0, size[1] - 1))).hex() == ground.removeprefix("#")
    shares = [(x / 7, y / 9) for x in range(1, 7) for y in range(1, 9)]
    shown = page.locator(f".dcp-{view} .dcp-pixels").evaluate(READ, shares)
    at = [(int(x * pixels.width), int(y * pixels.height)) for x, y in shares]
    saved = [bytes(pixels.convert("RGB").getpixel(place)).hex() for place in at]
    assert shown == [f"#{colour}" for colour in saved]
    assert len(set(shown)) > 2
    assert drawing.findall(".//{*}text")
    outside = [e for e in drawing.iter() if "http" in str(e.get("href"))]
    assert not outside
