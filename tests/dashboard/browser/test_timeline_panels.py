"""Beside the timeline: memory, pinned devices, notes and saved pictures."""

import base64
import io
import re
from xml.etree import ElementTree

import pytest
from canvases import READ
from PIL import Image
from test_timeline_page import HOST, open_timeline

from dcp_dashboard.library.folder import plan_key
from dcp_dsl import Slabs, block_sparsity
from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan, write_plan
from dcp_planner.tables import measure_memory


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
