"""Files of a plan: what they draw and say is held against the plan, and kept as texts."""

import csv
import hashlib
import io
import json
import os
import re
import shutil
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner
from dash import dcc, html
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from PIL.ImageColor import getrgb
from shown_texts import columns_text, html_elements

from dcp_dashboard import create_app
from dcp_dashboard.api.encoding import KIND_COLOURS, cluster_colours, device_colours
from dcp_dashboard.commands import view
from dcp_dashboard.exports import overview
from dcp_dashboard.exports import pictures as mask_svg_module
from dcp_dashboard.exports.files import devices_csv, events_csv, tiles_csv
from dcp_dashboard.exports.overview import THEMES, Sheet, standalone_page, still, timeline_height
from dcp_dashboard.exports.pictures import (
    covered,
    mask_pixels,
    mask_svg,
    pair_shares,
    thumbnail,
    tile_of_pixel,
    timeline_pixels,
)
from dcp_dashboard.facts import quantities
from dcp_dashboard.facts.traces import EventFilter
from dcp_dashboard.library.folder import DashboardError, plan_key
from dcp_dashboard.library.plans import LoadedPlan, load_file
from dcp_dashboard.library.summary import caption_of_first_group
from dcp_dashboard.pages.layout import markup
from dcp_dsl import DCPError
from dcp_planner.simulation import EVENT_KINDS


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
    colours = [KIND_COLOURS[kind] for kind in EVENT_KINDS]
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


def digest(pixels):
    return hashlib.blake2b(np.ascontiguousarray(pixels).tobytes(), digest_size=4).hexdigest()


class Noted:
    """A sheet that notes what is drawn on it."""

    def __init__(self, background, width, height, scale):
        self.scale = scale
        self.lines = [f"sheet {background} {width} x {height}, scale {scale}"]

    def box(self, corner, size, colour):
        self.lines.append(f"box {spot(corner)} {spot(size)} {colour}")

    def text(self, at, text, colour, *, size=12, anchor="ls"):
        shown = text.replace("\u00a0", "␣")
        self.lines.append(f"text {spot(at)} {colour} {size} {anchor} {shown}")

    def paste(self, corner, pixels):
        self.lines.append(f"paste {spot(corner)} {pixels.shape} {digest(pixels)}")

    def png(self):
        return "\n".join(self.lines)


def spot(place):
    return ",".join(f"{value:.6g}" for value in place)


def test_what_a_still_picture_draws(shown, monkeypatch, snapshots):
    monkeypatch.setattr(overview, "Sheet", Noted)
    drawn = (("unequal", "light", 1), ("lone", "dark", 3), ("empty", "light", 2))
    texts = {f"{name}, {theme}": still(shown[name], theme, scale) for name, theme, scale in drawn}
    grouped = still(shown["grouped"]).split("\n")
    texts["grouped, without boxes"] = "\n".join(x for x in grouped if not x.startswith("box"))
    sheet = Noted("#ffffff", 1440, 9, 1)
    many = SimpleNamespace(
        plan=SimpleNamespace(num_devices=200),
        traces={"simulated": shown["unequal"].traces["measured"]},
        summary=SimpleNamespace(seconds={"simulated": 0.5}),
    )
    overview._draw_timeline(sheet, many, "simulated", THEMES["dark"], 10)
    texts["a timeline of 200 devices"] = sheet.png()
    heights = ", ".join(f"{n}: {timeline_height(n)}" for n in (1, 16, 17, 32, 213, 320, 400))
    snapshots.check("still", texts | {"heights of timelines": heights})


def test_a_sheet_is_measured_in_units():
    """By hand: edges are rounded to pixels, and a box is never nothing."""
    sheet = Sheet("#000000", 6, 4, 2)
    sheet.box((1.2, 0.5), (2, 1), "#ff0000")  # pixels 2 to 6 (6.4) and 1 to 3
    sheet.box((4, 3), (0.1, 0.1), "#00ff00")
    sheet.paste((4.3, 0), np.full((2, 1, 3), 7, np.uint8))
    image = np.asarray(Image.open(io.BytesIO(sheet.png())))
    names = {(0, 0, 0): ".", (255, 0, 0): "r", (0, 255, 0): "g", (7, 7, 7): "p"}
    assert ["".join(names[tuple(pixel)] for pixel in row) for row in image.tolist()] == [
        ".........p..",
        "..rrrr...p..",
        "..rrrr......",
        "............",
        "............",
        "............",
        "........g...",
        "............",
    ]
    halves = {"ls": slice(20, 40), "rs": slice(0, 20)}
    for anchor, half in halves.items():
        sheet = Sheet("#ffffff", 20, 10, 2)
        sheet.text((10, 8), "in", "#000000", size=5, anchor=anchor)
        ink = np.asarray(Image.open(io.BytesIO(sheet.png())).convert("L")) < 128
        rows, columns = np.nonzero(ink)
        assert 4 <= rows.min() < rows.max() < 17
        assert half.start <= columns.min() < columns.max() < half.stop


LETTERS = dict(zip(EVENT_KINDS, "arcsiw", strict=True))


def letters_of(pixels, colours):
    """A letter for each pixel of a colour, small where it is paler, a point for the background."""
    white, names = np.full(3, 255.0), list(colours)
    hues = np.array([getrgb(colours[name]) for name in names], float)

    def letter(pixel):
        if (pixel == white).all():
            return "."
        # Shades of a colour lie on the line from it to white.
        toward, away = white - hues, white - pixel
        share = (toward * away).sum(1) / (toward**2).sum(1)
        near = int(np.abs(away - share[:, None] * toward).sum(1).argmin())
        return names[near].upper() if share[near] > 0.99 else names[near]

    return "\n".join("".join(map(letter, row)) for row in pixels)


def test_pictures(shown, snapshots):
    texts = {}
    for name, side in (("unequal", 21), ("small", 32), ("grouped", 13), ("lone", 2), ("empty", 3)):
        plan = shown[name].plan
        colours = dict(zip("abcd", cluster_colours(plan.cluster), strict=False))
        pixels = mask_pixels(plan, side, list(colours.values()), "#ffffff")
        texts[f"{name}, mask"] = letters_of(pixels, colours)
        shares = pair_shares(plan)
        texts[f"{name}, thumbnail"] = (
            f"{shares.sum():.6g} of {(shares > 0).sum()} pixels, most {shares.max():.6g}; rows "
            + " ".join(f"{share:.4g}" for share in shares.sum(1)[:64:7])
        )
        image = np.asarray(Image.open(io.BytesIO(thumbnail(plan))).convert("RGBA"))
        texts[f"{name}, thumbnail"] += f"; {digest(image)}"
    kinds = {LETTERS[kind]: KIND_COLOURS[kind] for kind in EVENT_KINDS}
    for name, source in (("unequal", "measured"), ("small", "simulated"), ("empty", "simulated")):
        trace, devices = shown[name].traces[source], shown[name].plan.num_devices
        span = int(trace.end_ns.max(initial=0))
        size = (devices * 8, 72)
        pixels = timeline_pixels(trace, devices, size, span, list(kinds.values()), "#ffffff")
        texts[f"{name}, timeline {digest(pixels)}"] = letters_of(pixels, kinds)
    snapshots.check("pictures", texts)


def test_drawings_and_tables(shown, snapshots):
    texts = {}
    for name in ("unequal", "lone", "empty"):
        svg = mask_svg(shown[name])
        texts[f"{name}, drawing"] = re.sub(r"(?<=>)(?=<)", "\n", svg)
    for name in ("small", "grouped", "unequal", "empty"):
        lines = devices_csv(shown[name]).decode()
        texts[f"{name}, devices"] = re.sub(r"0\.\d+", lambda n: f"{float(n[0]):.5g}", lines)
    for name in ("unequal", "empty"):
        texts[f"{name}, tiles"] = tiles_csv(shown[name]).decode()
    lines = tiles_csv(shown["grouped"]).decode().split("\n")
    texts["grouped, some tiles"] = "\n".join([*lines[:3], *lines[-3:]])
    traces = list(shown["unequal"].traces.values())
    for chosen in (EventFilter(find="gpu 2 forward"), EventFilter(kinds=("wait",))):
        texts[f"{chosen}"] = b"".join(events_csv(traces, chosen)).decode()
    snapshots.check("tables", texts)


def test_a_page_of_its_own(shown, snapshots):
    texts = {}
    for name in ("unequal", "empty"):
        loaded = shown[name]
        page = standalone_page(loaded)
        head, rest = page.split("<style>")
        body = re.search(r"<body>(.*?)<script", rest, re.S)[1]
        body = re.sub(r'="data:application/octet-stream;base64,[^"]*"', '="DATA"', body)
        outline = html_elements(body.replace(loaded.entry.key, "KEY")).split("\n")
        texts[f"{name}, head"] = head
        texts[f"{name}, body"] = "\n".join([*outline[:12], "…", *outline[-3:]])
        data = overview._data(loaded)
        texts[f"{name}, data"] = "\n".join(
            f"{address}: {' '.join(columns_text(payload).split(chr(10))[:4])[:300]}"
            for address, payload in data.items()
        ).replace(loaded.entry.key, "KEY")
        facts = overview._facts(loaded)
        texts[f"{name}, facts"] = "\n".join(f"{a}: {f['title']}" for a, f in facts.items()).replace(
            loaded.entry.key, "KEY"
        )
    snapshots.check("page", texts)


def test_a_page_has_so_many_bytes(shown, monkeypatch):
    size = sum(map(len, overview._data(shown["lone"]).values()))
    monkeypatch.setattr(overview, "MOST_BYTES", size)
    assert standalone_page(shown["lone"])
    monkeypatch.setattr(overview, "MOST_BYTES", size - 1)
    with pytest.raises(Exception, match=f"expected at most {size - 1:,} bytes .* got {size:,}"):
        standalone_page(shown["lone"])


FILES = (
    "overview.png", "overview.png?theme=dark", "mask.svg", "overview.html", "devices.csv",
    "tiles.csv", "events.csv?kinds=wait", "events.csv?source=measured&sort=x",
    "trace.pftrace?source=measured", "trace.pftrace?source=x", "thumbnail.png", "file", "nothing",
)  # fmt: skip


def test_addresses_of_files(client, snapshots):
    lines = []
    for name in FILES:
        with client.get(f"/api/plan/{plan_key('small.dcpplan')}/{name}") as answer:
            kind = answer.headers.get("Content-Disposition", "")
            lines.append(f"{name}: {answer.status_code} {answer.content_type} {kind}")
            if answer.mimetype == "image/png":
                image = Image.open(io.BytesIO(answer.data)).convert("RGBA")
                lines.append(f"  {image.size} {image.getpixel((0, 0))}")
    snapshots.check("addresses", {"small.dcpplan": "\n".join(lines)})


def test_files_that_view_writes(served_folder, tmp_path):
    plan = str(served_folder / "small.dcpplan")
    names = {"png": "a.png", "html": "a.html", "svg": "a.svg", "devices": "d.csv", "tiles": "t.csv"}
    asked = [
        part for option, name in names.items() for part in (f"--{option}", str(tmp_path / name))
    ]
    for more, width, pixel in (
        ([], 2880, (255, 255, 255)), (["--theme", "dark", "--scale", "1"], 1440, (0x17, 0x1B, 0x20))
    ):  # fmt: skip
        done = CliRunner().invoke(view, [plan, *asked, *more])
        assert done.output.split() == [str(tmp_path / name) for name in names.values()]
        assert {path.name for path in tmp_path.iterdir()} == set(names.values())
        image = Image.open(tmp_path / "a.png")
        assert (image.width, image.getpixel((0, 0))) == (width, pixel)
    starts = {"a.html": "<!DOCTYPE", "a.svg": "<svg", "d.csv": '"device",', "t.csv": '"tile",'}
    for name, start in starts.items():
        assert (tmp_path / name).read_text().startswith(start)
    bare = CliRunner().invoke(view, [plan])
    assert bare.exit_code == 2
    assert f"for a browser: dcpm dashboard {served_folder}" in " ".join(bare.output.split())
    broken = CliRunner().invoke(view, [str(tmp_path / "no.dcpplan"), *asked])
    assert isinstance(broken.exception, DCPError)
