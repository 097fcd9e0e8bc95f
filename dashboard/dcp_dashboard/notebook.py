"""Plans, traces and planned steps in notebooks: self-contained HTML, light and dark.

`html_of` is the entry point ``html`` of the group `dcpm.notebook`, `show` the entry point ``show``.
`Plan._repr_html_` and `Plan.show` of the planner, which must not import this package, call them.
"""

import atexit
import base64
import io
import tempfile
import webbrowser
from functools import singledispatch
from html import escape
from pathlib import Path

from dash import html
from dash.development.base_component import Component
from PIL import Image

from dcp_dashboard.api.encoding import KIND_COLOURS
from dcp_dashboard.exports.overview import THEMES, Theme, standalone_page, timeline_height
from dcp_dashboard.exports.pictures import timeline_pixels
from dcp_dashboard.facts.quantities import count, counted, duration, ratio
from dcp_dashboard.facts.text import SOURCE_LABELS
from dcp_dashboard.facts.traces import length_ns
from dcp_dashboard.library.folder import PlanEntry, plan_key
from dcp_dashboard.library.plans import loaded_plan
from dcp_dashboard.pages.layout import markup
from dcp_dashboard.pages.reports import PARTS
from dcp_dashboard.web.server import RunningServer, start_server
from dcp_planner import Plan, Trace, write_plan
from dcp_planner.simulation import EVENT_KINDS
from dcp_planner.step import StepPlan

NAME = "plan.dcpplan"
HEIGHT = 900
WIDTH = 960
MOST_GROUPS = 64
"""Groups of a planned step that are drawn."""


@singledispatch
def html_of(value: object) -> str:
    """Write a value as HTML that needs no other file; O(size of the value).

    Raises:
        TypeError: if the value is no plan, trace or planned step.
        DashboardError: if a plan is too large for one page.
    """
    raise TypeError(f"expected a Plan, a Trace or a StepPlan, got {type(value).__name__}")


@html_of.register
def _plan(plan: Plan) -> str:
    """Put the page of a plan into a frame, which keeps its styles and scripts from the notebook."""
    # No file is read: the entry only gives the page a name.
    entry = PlanEntry(plan_key(NAME), NAME, Path(NAME), 0, 0)
    page = standalone_page(loaded_plan(entry, plan, ()))
    style = f"width: 100%; height: {HEIGHT}px; border: 0"
    return f'<iframe title="Plan" style="{style}" srcdoc="{escape(page)}"></iframe>'


@html_of.register
def _trace(trace: Trace) -> str:
    """Draw the timeline of a trace, a row for each device."""
    # A trace does not name its cluster: a device without events at the end has no row.
    devices, seconds = int(trace.device.max(initial=0)) + 1, trace.seconds()
    light, dark = (_timeline(trace, devices, theme) for theme in ("light", "dark"))
    label = f"{SOURCE_LABELS[trace.source]}: {counted(devices, 'device')}, {duration(seconds)}"
    legend = [
        part
        for kind in EVENT_KINDS
        for part in (html.Span("■ ", style={"color": KIND_COLOURS[kind]}), f"{kind} ")
    ]
    picture = (
        f'<picture><source srcset="{dark}" media="(prefers-color-scheme: dark)">'
        f'<img src="{light}" alt="{escape(label)}" style="width: 100%"></picture>'
    )
    return f"<figure>{picture}{markup(html.Figcaption([label, html.Br(), *legend]))}</figure>"


def _timeline(trace: Trace, devices: int, theme: Theme) -> str:
    """Draw a trace in the colours of a theme, as a `data:` address."""
    colours = [KIND_COLOURS[kind] for kind in EVENT_KINDS]
    size = (timeline_height(devices), WIDTH)
    span_ns, background = max(1, length_ns(trace)), THEMES[theme].canvas
    pixels = timeline_pixels(trace, devices, size, span_ns, colours, background)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


@html_of.register
def _step(step: StepPlan) -> str:
    """Draw a bar for each group of devices of each micro-batch, as long as its time."""
    told = (
        f"{count(len(step.assignment.first))} documents in {duration(step.time.seconds)}, "
        f"predicted: {ratio(step.time.balance)} times perfect balance; {step.policy}"
    )
    groups = list(zip(step.assignment.groups(), step.group_seconds, strict=True))
    # Bars are shares of the longest. A group has two of the three `PARTS`: it never waits.
    longest = max((sum(seconds) for _, seconds in groups), default=0.0) or 1.0
    rows = [
        html.Tr([
            html.Td(f"{micro_batch}"), html.Td(f"{first}-{first + width - 1}"),
            html.Td(count(len(documents))), html.Td(duration(sum(seconds))),
            html.Td([_bar(s / longest, c) for s, (_, c) in zip(seconds, PARTS, strict=False)]),
        ])
        for (micro_batch, first, width, documents), seconds in groups[:MOST_GROUPS]
    ]  # fmt: skip
    names = ("micro-batch", "devices", "documents", "time", "linear part, attention")
    head = html.Thead(html.Tr([html.Th(name) for name in names]))
    rest = [html.P(f"and {count(len(groups) - MOST_GROUPS)} more groups")]
    more = rest if len(groups) > MOST_GROUPS else []
    return markup(html.Div([html.P(told), html.Table([head, html.Tbody(rows)]), *more]))


def _bar(share: float, colour: str) -> Component:
    style = {"display": "inline-block", "height": "12px", "width": f"{300 * share:.1f}px",
             "background": colour}  # fmt: skip
    return html.Span(style=style)


def show(plan: Plan, *, opens: bool = True) -> RunningServer:
    """Serve the dashboard for one plan until the process or the returned server ends."""
    folder = tempfile.TemporaryDirectory(prefix="dcp-show-")
    write_plan(Path(folder.name) / NAME, plan)
    server = start_server(folder.name)
    # The last that is registered runs first: the server ends, then its folder goes.
    atexit.register(folder.cleanup)
    atexit.register(server.close)
    if opens:
        webbrowser.open(f"{server.url}plan/{plan_key(NAME)}")
    return server
