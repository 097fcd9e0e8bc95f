"""Files of a plan as texts: tables whole, pictures as what is drawn where, pixels as letters."""

import hashlib
import io
import re
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from PIL.ImageColor import getrgb
from shown_texts import columns_text, html_elements

from dcp_dashboard.api.encoding import KIND_COLOURS, cluster_colours
from dcp_dashboard.commands import view
from dcp_dashboard.exports import overview
from dcp_dashboard.exports.files import devices_csv, events_csv, tiles_csv
from dcp_dashboard.exports.overview import THEMES, Sheet, standalone_page, still, timeline_height
from dcp_dashboard.exports.pictures import (
    mask_pixels,
    mask_svg,
    pair_shares,
    thumbnail,
    timeline_pixels,
)
from dcp_dashboard.facts.traces import EventFilter
from dcp_dashboard.library.folder import plan_key
from dcp_dsl import DCPError
from dcp_planner.simulation import EVENT_KINDS


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
