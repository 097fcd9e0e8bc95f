"""The overview of a plan as one file: a picture, or a page that zooms and selects without a server.

The page is the overview itself, written as HTML; its scripts and styles are inlined, and the data
that its canvases would ask the server for lies in the page as `data:` addresses.
"""

import base64
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal

from dash import html
from PIL import Image, ImageDraw, ImageFont

from dcp_dashboard.api.devices import devices_payload, path_payload, timeline_payload
from dcp_dashboard.api.encoding import KIND_COLOURS, NEUTRAL, cluster_colours
from dcp_dashboard.api.mask import mask_payload
from dcp_dashboard.exports.pictures import Pixels, mask_pixels, timeline_pixels
from dcp_dashboard.facts import quantities
from dcp_dashboard.facts.devices import device_facts, division_facts
from dcp_dashboard.facts.findings import (
    balance,
    metric_cards,
    plan_caption,
)
from dcp_dashboard.facts.text import DIRECTIONS, EVENT_WORDS, SOURCE_LABELS
from dcp_dashboard.facts.traces import length_ns
from dcp_dashboard.library.folder import DashboardError
from dcp_dashboard.library.plans import LoadedPlan
from dcp_dashboard.library.summary import caption_of_first_group, count_divisions
from dcp_dashboard.pages.layout import FONT, attributes, markup
from dcp_dashboard.pages.plan import overview
from dcp_planner import Source
from dcp_planner.simulation import EVENT_KINDS

MISSING = str.maketrans({"\u00d7": "x", "\u00b5": "u", "\u00a0": " "})
"""Replacements of signs that Pillow's own font lacks; it has Latin letters only."""

Theme = Literal["light", "dark"]
WIDTH, MARGIN, GUTTER = 1440, 32, 48

HEAD, SIDE, ROW_HEAD = 116, 560, 54
"""Heights: title and figures; the mask, a square; label, legend and times above a timeline."""


class Sheet:
    """A picture measured in units of 1/96 inch."""

    def __init__(self, background: str, width: int, height: int, scale: int) -> None:
        self.scale = scale
        self._image = Image.new("RGB", (width * scale, height * scale), background)
        self._pen = ImageDraw.Draw(self._image)

    def box(self, corner: tuple[float, float], size: tuple[float, float], colour: str) -> None:
        """Fill a rectangle, at least one pixel wide and high."""
        left, top = (round(value * self.scale) for value in corner)
        # Both edges are rounded, not the size, so that boxes which touch leave no seam.
        right, bottom = (
            max(start + 1, round((value + extent) * self.scale))
            for start, value, extent in zip((left, top), corner, size, strict=True)
        )
        self._pen.rectangle((left, top, right - 1, bottom - 1), fill=colour)

    def text(
        self,
        at: tuple[float, float],
        text: str,
        colour: str,
        *,
        size: int = 12,
        anchor: Literal["ls", "rs"] = "ls",
    ) -> None:
        """Write one line, with the left or the right end of its baseline at a point."""
        font = ImageFont.load_default(size * self.scale)
        place = (at[0] * self.scale, at[1] * self.scale)
        known = text.translate(MISSING).encode("latin-1", "replace").decode("latin-1")
        self._pen.text(place, known, fill=colour, font=font, anchor=anchor)

    def paste(self, corner: tuple[float, float], pixels: Pixels) -> None:
        """Copy pixels into the sheet, one to one."""
        left, top = (round(value * self.scale) for value in corner)
        self._image.paste(Image.fromarray(pixels), (left, top))

    def png(self) -> bytes:
        """Encode the sheet as a PNG file."""
        buffer = io.BytesIO()
        self._image.save(buffer, "PNG", optimize=True)
        return buffer.getvalue()


@dataclass(frozen=True, slots=True)
class ThemeColours:
    """Colours of a theme, as in `assets/tokens.css`."""

    panel: str
    canvas: str
    ink: str
    muted: str
    line: str


THEMES: Mapping[Theme, ThemeColours] = {
    "light": ThemeColours("#ffffff", "#f3f4f7", "#1b2027", "#59636f", "#dde1e6"),
    "dark": ThemeColours("#171b20", "#1e2329", "#e6eaef", "#9aa5b1", "#2c333b"),
}


def still(loaded: LoadedPlan, theme: Theme = "light", scale: int = 2) -> bytes:
    """Draw the overview of a plan as a PNG, 1,440 units of `scale` pixels wide."""
    colours, rows = THEMES[theme], timeline_height(loaded.plan.num_devices)
    height = MARGIN + HEAD + SIDE + 40 + len(loaded.traces) * (ROW_HEAD + rows) + MARGIN
    sheet = Sheet(colours.panel, WIDTH, height, scale)
    _draw_head(sheet, loaded, colours)
    _draw_mask(sheet, loaded, colours)
    _draw_balance(sheet, loaded, colours)
    top = MARGIN + HEAD + SIDE + 40
    for source in SOURCE_LABELS:
        if source in loaded.traces:
            _draw_timeline(sheet, loaded, source, colours, top)
            top += ROW_HEAD + rows
    return sheet.png()


def timeline_height(num_devices: int) -> int:
    """Return the height of a timeline: rows of 2 to 40 units."""
    return num_devices * max(2, min(40, 640 // num_devices))


def _draw_head(sheet: Sheet, loaded: LoadedPlan, colours: ThemeColours) -> None:
    summary = loaded.summary
    sheet.text((MARGIN, MARGIN + 14), summary.mask, colours.ink, size=20)
    sheet.text((WIDTH - MARGIN, MARGIN + 14), plan_caption(loaded), colours.muted, anchor="rs")
    cards = metric_cards(loaded)
    step = (WIDTH - 2 * MARGIN) / len(cards)
    for place, (name, value, meaning) in enumerate(cards):
        left = MARGIN + place * step
        sheet.text((left, MARGIN + 44), name, colours.muted)
        sheet.text((left, MARGIN + 68), value, colours.ink, size=20)
        sheet.text((left, MARGIN + 88), meaning, colours.muted, size=11)


def _draw_mask(sheet: Sheet, loaded: LoadedPlan, colours: ThemeColours) -> None:
    plan, top, left = loaded.plan, MARGIN + HEAD, MARGIN + GUTTER
    devices = cluster_colours(plan.cluster)
    sheet.paste((left, top), mask_pixels(plan, SIDE * sheet.scale, devices, colours.canvas))
    # Owners of the tokens: below the mask for keys, to its left for queries.
    blocks, unit = plan.blocks, SIDE / max(1, plan.num_tokens)
    for start, end, owner in zip(blocks.start, blocks.end, blocks.owner, strict=True):
        extent = float(end - start) * unit
        sheet.box((left + start * unit, top + SIDE + 4), (extent, 8), devices[owner])
        sheet.box((left - 12, top + start * unit), (8, extent), devices[owner])
    for share in (0.0, 0.25, 0.5, 0.75):
        label = quantities.count(round(share * plan.num_tokens))
        sheet.text((left - 16, top + share * SIDE + 10), label, colours.muted, size=10, anchor="rs")
    sheet.text((left - 16, top + SIDE), "queries", colours.muted, size=10, anchor="rs")
    sheet.text((left + SIDE, top + SIDE + 26), "keys", colours.muted, size=10, anchor="rs")
    note = "every tile in the colour of its device; at the edges the owners of the tokens"
    note = "; ".join(filter(None, [note, caption_of_first_group(plan)]))
    sheet.text((left, top + SIDE + 26), note, colours.muted, size=10)


def _draw_balance(sheet: Sheet, loaded: LoadedPlan, colours: ThemeColours) -> None:
    left, top = MARGIN + GUTTER + SIDE + 40, MARGIN + HEAD
    width = WIDTH - MARGIN - left
    rows = balance(loaded)
    step = SIDE / len(rows)
    for place, row in enumerate(rows):
        # A row of bars, one per device, as high as its share of the largest; a line at the mean.
        values, base = row.values, top + (place + 1) * step - 10
        most = float(values.max())
        text = {"bytes": quantities.size, "seconds": quantities.duration}.get(
            row.unit, quantities.count
        )
        sheet.text((left, base - step + 24), row.label, colours.ink)
        where = f"most on device {int(values.argmax())} ({text(most)})"
        note = f"max/mean {quantities.ratio(row.ratio)} · {where}"
        sheet.text((left + width, base - step + 24), note, colours.muted, size=11, anchor="rs")
        space, bar = step - 34, width / len(values)
        for device, value in enumerate(values):
            high = space * float(value) / most if most else 0.0
            if high:
                at = (left + (device + 0.1) * bar, base - high)
                sheet.box(at, (0.8 * bar, high), KIND_COLOURS.get(row.kind, NEUTRAL))
        level = base - (space * row.mean / most if most else 0.0)
        sheet.box((left, level), (width, 0.5), colours.muted)
        sheet.box((left, base), (width, 0.5), colours.line)


def _draw_timeline(
    sheet: Sheet, loaded: LoadedPlan, source: Source, colours: ThemeColours, top: int
) -> None:
    devices, left = loaded.plan.num_devices, MARGIN + GUTTER
    width, height = WIDTH - MARGIN - left, timeline_height(devices)
    # One span for all traces: prediction and run are compared by their lengths.
    span = max(length_ns(trace) for trace in loaded.traces.values())
    length = quantities.duration(loaded.summary.seconds[source])
    sheet.text((left, top + 24), f"{SOURCE_LABELS[source]} · {length}", colours.ink)
    place = left + 240
    for kind in EVENT_KINDS:
        sheet.box((place, top + 15), (10, 10), KIND_COLOURS[kind])
        sheet.text((place + 16, top + 24), EVENT_WORDS.get(kind, kind), colours.muted, size=11)
        place += 84
    for share in (0.25, 0.5, 0.75, 1.0):
        label = quantities.duration(share * span / 1e9)
        sheet.text((left + share * width, top + 44), label, colours.muted, size=10, anchor="rs")
    size = (height * sheet.scale, width * sheet.scale)
    kinds = [KIND_COLOURS[kind] for kind in EVENT_KINDS]
    trace = loaded.traces[source]
    pixels = timeline_pixels(trace, devices, size, span, kinds, colours.canvas)
    sheet.paste((left, top + ROW_HEAD - 6), pixels)
    row = height / devices
    # Numbers closer than 14 units would overlap.
    for device in range(0, devices, max(1, round(14 / row))):
        at = (left - 8, top + ROW_HEAD - 6 + (device + 0.5) * row + 4)
        sheet.text(at, str(device), colours.muted, size=10, anchor="rs")


ASSETS = Path(__file__).parent.parent / "assets"

SCRIPT = "dashboard.bundle.js"
STYLES = ("tokens.css", "style.css", "timeline.css")
TEXTS = {name: (ASSETS / name).read_text(encoding="utf-8") for name in (SCRIPT, *STYLES)}
"""Scripts and styles, read at the start: later ones may not fit the code in memory."""

MOST_BYTES = 200 * 2**20
"""Most bytes of data in one page; browsers give up on much larger pages."""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline';
style-src 'unsafe-inline'; connect-src data:; img-src data:">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main class="dcp-page" id="page">{body}</main>
<script type="application/json" id="dcp-bundle">{bundle}</script>
<script>
const scheme = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.setAttribute(
  "data-mantine-color-scheme", scheme.matches ? "dark" : "light");
follow();
scheme.addEventListener("change", follow);
</script>
<script>{script}</script>
</body>
</html>
"""


def standalone_page(loaded: LoadedPlan) -> str:
    """Write the page of a plan as one HTML document that opens from a disk without a server.

    Everything in the page can be selected: devices and divisions with all their facts, tiles and
    events with the text of their tooltips.
    """
    data = _data(loaded)
    size = sum(map(len, data.values()))
    if size > MOST_BYTES:
        raise DashboardError(
            f"{loaded.entry.relative}: expected at most {MOST_BYTES:,} bytes of mask and traces "
            f"for one page, got {size:,}; share the .dcpplan file and open it with dcpm dashboard"
        )
    name = f"{loaded.summary.mask} · {loaded.entry.relative}"
    told = html.Span(plan_caption(loaded), className="dcp-muted dcp-facts")
    title = html.Div([html.H1(loaded.summary.mask), told], className="dcp-title")
    body = markup(html.Div([title, *overview(loaded)], **attributes(data_title=name)))
    for address, payload in data.items():
        # Whole values of attributes, since one address may be the beginning of another.
        url = f"data:application/octet-stream;base64,{base64.b64encode(payload).decode()}"
        body = body.replace(f'="{escape(address)}"', f'="{url}"')
    body = re.sub(r' data-pairs="[^"]*"', "", body)  # only a server answers about single pairs
    # "</script" would end the element that holds the text, "<!--<script" keep it from ending.
    bundle = json.dumps({"facts": _facts(loaded)}, separators=(",", ":")).replace("<", "\\u003c")
    page = PAGE.format(
        title=escape(name),
        style=f"body {{ font-family: {FONT}; }}\n" + "\n".join(TEXTS[name] for name in STYLES),
        body=body,
        bundle=bundle,
        script=re.sub(r"</(script)", r"<\\/\1", TEXTS[SCRIPT], flags=re.IGNORECASE),
    )
    # The name of a file may hold bytes that are no UTF-8; a page may not.
    return page.encode(errors="replace").decode()


def _data(loaded: LoadedPlan) -> dict[str, bytes]:
    """Return the data that the page would ask the server for, by address."""
    base, plan = f"/api/plan/{loaded.entry.key}", loaded.plan
    longest = max(length_ns(trace) for trace in loaded.traces.values())
    found = {f"{base}/mask": mask_payload(plan), f"{base}/devices": devices_payload(loaded)}
    for source in SOURCE_LABELS:
        if source in loaded.traces:
            payload = timeline_payload(loaded.traces[source], plan, longest)
            found[f"{base}/timeline?source={source}"] = payload
            found[f"{base}/path?source={source}"] = path_payload(loaded, source)
    return found


def _facts(loaded: LoadedPlan) -> dict[str, object]:
    """Return the facts of all devices and divisions, by the address at which the page asks."""
    base = f"/api/plan/{loaded.entry.key}"
    found: dict[str, object] = {
        f"{base}/device/{device}": device_facts(loaded, device).to_json()
        for device in range(loaded.plan.num_devices)
    }
    for direction in DIRECTIONS:
        for division in range(count_divisions(loaded.plan, direction)):
            facts = division_facts(loaded, division, direction, None)
            found[f"{base}/division/{direction}/{division}"] = facts.to_json()
    return found
