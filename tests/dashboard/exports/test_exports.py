"""Files of a plan: what they draw and say is held against the plan itself."""

import csv
import io
import json
import os
import re
import shutil
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner
from dash import dcc, html
from hypothesis import given
from hypothesis import strategies as st
from PIL.ImageColor import getrgb

from dcp_dashboard import create_app
from dcp_dashboard.api.encoding import KIND_COLOURS, device_colours
from dcp_dashboard.commands import view
from dcp_dashboard.exports import overview
from dcp_dashboard.exports import pictures as mask_svg_module
from dcp_dashboard.exports.files import devices_csv, tiles_csv
from dcp_dashboard.exports.overview import Sheet, standalone_page
from dcp_dashboard.exports.pictures import (
    covered,
    mask_pixels,
    mask_svg,
    tile_of_pixel,
    timeline_pixels,
)
from dcp_dashboard.facts import quantities
from dcp_dashboard.library.folder import DashboardError, plan_key
from dcp_dashboard.library.plans import LoadedPlan, load_file
from dcp_dashboard.library.summary import caption_of_first_group
from dcp_dashboard.pages.layout import markup
from dcp_planner.simulation import EVENT_KINDS as KINDS


@pytest.fixture(scope="module")
def loaded(served_folder) -> LoadedPlan:
    return load_file(served_folder / "small.dcpplan")


def test_every_tile_has_its_devices_colour_in_the_middle_of_its_pixels(loaded):
    plan, side = loaded.plan, 512
    colours = device_colours(plan.cluster.nodes, plan.cluster.devices_per_node)
    picture = mask_pixels(plan, side, colours, "#000000")
    middle = ((plan.blocks.start + plan.blocks.end) / 2 * side / plan.num_tokens).astype(int)
    for q, kv, device in zip(
        plan.tiles.q_block, plan.tiles.kv_block, plan.tiles.device, strict=True
    ):
        assert tuple(picture[middle[q], middle[kv]]) == getrgb(colours[device])
    assert tuple(picture[10, side - 10]) == (0, 0, 0)


def test_tiles_smaller_than_a_pixel_do_not_vanish(loaded):
    shown = tile_of_pixel(loaded.plan, 7)
    blocks = loaded.plan.blocks
    for tile in range(len(loaded.plan.tiles)):
        q = int(blocks.start[loaded.plan.tiles.q_block[tile]] * 7 / loaded.plan.num_tokens)
        kv = int(blocks.start[loaded.plan.tiles.kv_block[tile]] * 7 / loaded.plan.num_tokens)
        assert shown[q, kv] >= 0


@given(st.lists(st.tuples(st.floats(0, 12), st.floats(0, 12), st.integers(0, 2)), max_size=8))
def test_coverage_is_the_length_of_each_event_inside_each_pixel(events):
    start = np.array([min(a, b) for a, b, _ in events])
    end = np.array([max(a, b) for a, b, _ in events])
    row = np.array([r for *_, r in events], dtype=np.int64)
    expected = np.zeros((3, 12))
    for a, b, r in zip(start, end, row, strict=True):
        for pixel in range(12):
            expected[r, pixel] += max(0.0, min(b, pixel + 1) - max(a, pixel))
    np.testing.assert_allclose(covered(start, end, row, 3, 12), expected, atol=1e-9)


def test_a_timeline_shows_the_longest_event_of_every_kind_in_its_colour(loaded):
    trace, size = loaded.traces["simulated"], loaded.plan.num_devices
    span = int(trace.end_ns.max() - trace.start_ns.min())
    colours = [KIND_COLOURS[kind] for kind in KINDS]
    picture = timeline_pixels(trace, size, (size * 40, 900), span, colours, "#ffffff")
    for lane, height in ((0, 0.48), (1, 0.67), (2, 0.87), (3, 0.30)):
        events = np.flatnonzero(trace.lane == lane)
        event = events[(trace.end_ns - trace.start_ns)[events].argmax()]
        middle = (trace.start_ns[event] + trace.end_ns[event]) / 2 - trace.start_ns.min()
        x, y = int(middle * 900 / span), int((trace.device[event] + height) * 40)
        kind = ("attention", "send", "receive", "wait")[lane]
        assert tuple(picture[y, x]) == getrgb(KIND_COLOURS[kind])


@pytest.mark.parametrize("name", ["small", "grouped"])
def test_the_drawing_covers_exactly_the_tiles_of_the_first_group(shown, name):
    plan = shown[name].plan
    colours = device_colours(plan.cluster.nodes, plan.cluster.devices_per_node)
    root = ElementTree.fromstring(mask_svg(shown[name]))
    assert caption_of_first_group(plan) in "".join(root.itertext())
    style = root.find("{*}style").text
    fills = [f".dcp-k{i}{{fill:{colour}}}" in style for i, colour in enumerate(colours)]
    assert fills == [True] * 4
    area = np.full((plan.num_tokens, plan.num_tokens), -1)
    for shape in root.iterfind(".//{*}g[@shape-rendering]/{*}rect"):
        x, y, width, height = (int(shape.get(name)) for name in ("x", "y", "width", "height"))
        assert (area[y : y + height, x : x + width] == -1).all()
        area[y : y + height, x : x + width] = int(shape.get("class").removeprefix("dcp-k"))
    expected = np.full_like(area, -1)
    start, end = plan.blocks.start, plan.blocks.end
    for q, kv, device in zip(
        plan.tiles.q_block, plan.tiles.kv_block, plan.tiles.device, strict=True
    ):
        if expected[start[q], start[kv]] >= 0:
            continue  # tiles of the other groups come behind those of the first
        expected[start[q] : end[q], start[kv] : end[kv]] = device
    assert (area == expected).all()
    owners = [int(s.get("class").removeprefix("dcp-k")) for s in root.iterfind("{*}svg/{*}rect")]
    assert owners == plan.blocks.owner.tolist() * 2


def test_a_drawing_of_too_many_rectangles_is_refused_with_a_way_out(loaded, monkeypatch):
    monkeypatch.setattr(mask_svg_module, "MOST_RUNS", 3)
    with pytest.raises(DashboardError, match=r"at most 3 rectangles .* take the PNG instead"):
        mask_svg(loaded)


def test_tables_say_what_the_plan_says(loaded):
    plan = loaded.plan
    devices = list(csv.DictReader(io.StringIO(devices_csv(loaded).decode())))
    assert [int(row["tokens"]) for row in devices] == [
        int((plan.blocks.end - plan.blocks.start)[plan.blocks.owner == device].sum())
        for device in range(plan.num_devices)
    ]
    assert [row["node"] for row in devices] == ["0", "0", "1", "1"]
    sent = np.zeros(plan.num_devices, int)
    np.add.at(sent, plan.transfers.source, plan.transfers.size_bytes)
    assert [int(row["sent_bytes"]) for row in devices] == sent.tolist()
    tiles = list(csv.DictReader(io.StringIO(tiles_csv(loaded).decode())))
    assert len(tiles) == len(plan.tiles)
    last = tiles[-1]
    assert int(last["q_end"]) == plan.blocks.end[plan.tiles.q_block[-1]]
    assert last["kind"] == {1: "partial", 2: "full"}[int(plan.tiles.kind[-1])]


def test_texts_of_a_page_are_escaped_and_foreign_components_refused():
    tree = html.A(["<b>", html.Img(src='x"y')], href="?a&b", style={"backgroundColor": "red"})
    expected = '<a href="?a&amp;b" style="background-color:red">&lt;b&gt;<img src="x&quot;y"></a>'
    assert markup(tree) == expected
    names = [f"data-{letter}" for letter in "hgfedcba"]  # the order is the same in every process
    shown = markup(html.B(**dict.fromkeys(names, "")))
    assert re.findall(r"data-\w", shown) == sorted(names)
    with pytest.raises(TypeError, match="Link"):
        markup(html.Div(dcc.Link("x", href="/")))


def test_a_page_of_its_own_names_no_address_but_its_data(loaded):
    text = standalone_page(loaded)
    addresses = re.findall(r'(?:src|href|data-url)="([^"]{1,40})', text)
    assert addresses
    assert all(each.startswith("data:application/octet-stream;base64,") for each in addresses)
    assert "</script" not in re.sub(r"</script>\n", "", text)


def test_a_page_of_its_own_has_the_scripts_that_were_there_at_the_start(
    loaded, tmp_path, monkeypatch
):
    text = standalone_page(loaded)
    monkeypatch.setattr(overview, "ASSETS", tmp_path)  # an update that is under way
    assert standalone_page(loaded) == text


def test_the_data_of_a_page_cannot_end_or_open_its_script(loaded, monkeypatch):
    hostile = {"/api": "</script><!--<script>\u2028&"}
    monkeypatch.setattr(overview, "_facts", lambda _: hostile)
    text = standalone_page(loaded)
    ((bundle),) = re.findall(r'id="dcp-bundle">(.*)</script>', text)
    assert "<" not in bundle
    assert json.loads(bundle) == {"facts": hostile}


@pytest.mark.parametrize("name", [b"a\nb.dcpplan", b"\xff.dcpplan"])
def test_files_of_any_name_can_be_taken_away(served_folder, tmp_path, name):
    shutil.copy(served_folder / "small.dcpplan", os.fsencode(tmp_path) + b"/" + name)
    client, key = create_app(tmp_path).server.test_client(), plan_key(os.fsdecode(name))
    for file in ("file", "overview.html", "overview.png", "mask.svg", "events.csv"):
        with client.get(f"/api/plan/{key}/{file}") as found:
            assert found.status_code == 200, file


def test_the_space_within_a_quantity_is_drawn_as_a_space():
    def drawn(text):
        sheet = Sheet("#ffffff", 60, 20, 1)
        sheet.text((2, 14), text, "#000000")
        return sheet.png()

    assert drawn(quantities.size(2e6)) == drawn("2 MB") != drawn("2MB")


def test_view_writes_nothing_if_one_of_the_files_cannot_be_written(served_folder, tmp_path):
    plan, png = str(served_folder / "small.dcpplan"), tmp_path / "a.png"
    done = CliRunner().invoke(view, [plan, "--png", str(png), "--tiles", str(tmp_path / "no/a")])
    assert isinstance(done.exception, DashboardError)
    assert f"make the folder {tmp_path}/no first, or choose another" in str(done.exception)
    assert not png.exists()
