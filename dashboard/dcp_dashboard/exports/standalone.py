"""Write the overview of a plan as one HTML file that draws, zooms and selects without a server.

The page is the overview itself, written as HTML; its scripts and styles are inlined, and the data
that its canvases would ask the server for lies in the page as `data:` addresses.
"""

import base64
import json
import re
from html import escape
from pathlib import Path

from dash import html
from dash.development.base_component import Component

from dcp_dashboard.api.devices import devices_payload, path_payload, timeline_payload
from dcp_dashboard.api.mask import mask_payload
from dcp_dashboard.facts.devices import device_facts, division_facts
from dcp_dashboard.facts.metrics import plan_caption
from dcp_dashboard.facts.text import DIRECTIONS, SOURCE_LABELS
from dcp_dashboard.facts.traces import length_ns
from dcp_dashboard.library.folder import DashboardError
from dcp_dashboard.library.plans import LoadedPlan
from dcp_dashboard.library.summary import count_divisions
from dcp_dashboard.pages.layout import FONT, attributes
from dcp_dashboard.pages.markup import markup
from dcp_dashboard.pages.plan import overview

ASSETS = Path(__file__).parent.parent / "assets"

SCRIPT = "dashboard.bundle.js"
STYLES = ("tokens.css", "style.css", "timeline.css")
TEXTS = {name: (ASSETS / name).read_text(encoding="utf-8") for name in (SCRIPT, *STYLES)}
"""Scripts and styles as they were at the start: those that the code in memory was written for."""

MOST_BYTES = 200 * 2**20
"""Of the data in one page; browsers give up on much larger ones."""

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

    Selecting works on everything that is in the page: devices and divisions with all their facts,
    tiles and events by what their tooltips say.

    Raises:
        DashboardError: if mask and traces are larger than `MOST_BYTES`.
    """
    data = _data(loaded)
    size = sum(map(len, data.values()))
    if size > MOST_BYTES:
        raise DashboardError(
            f"{loaded.entry.relative}: expected at most {MOST_BYTES:,} bytes of mask and traces "
            f"for one page, got {size:,}; share the .dcpplan file and open it with dcpm dashboard"
        )
    body = markup(_page(loaded))
    for address, payload in data.items():
        url = f"data:application/octet-stream;base64,{base64.b64encode(payload).decode()}"
        body = body.replace(f'="{escape(address)}"', f'="{url}"')
    body = re.sub(r' data-pairs="[^"]*"', "", body)  # single pairs are the server's to tell
    # "</script" would end the element that holds the text, "<!--<script" keep it from ending.
    bundle = json.dumps({"facts": _facts(loaded)}, separators=(",", ":")).replace("<", "\\u003c")
    return PAGE.format(
        title=escape(_name(loaded)),
        style=f"body {{ font-family: {FONT}; }}\n" + "\n".join(TEXTS[name] for name in STYLES),
        body=body,
        bundle=bundle,
        script=re.sub(r"</(script)", r"<\\/\1", TEXTS[SCRIPT], flags=re.IGNORECASE),
    )


def _name(loaded: LoadedPlan) -> str:
    return f"{loaded.summary.mask} · {loaded.entry.relative}"


def _page(loaded: LoadedPlan) -> Component:
    title = html.Div(
        [
            html.H1(loaded.summary.mask),
            html.Span(plan_caption(loaded), className="dcp-muted dcp-facts"),
        ],
        className="dcp-title",
    )
    return html.Div([title, *overview(loaded)], **attributes(data_title=_name(loaded)))


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
    """Return the facts of all devices and divisions under the addresses that the inspector asks."""
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
