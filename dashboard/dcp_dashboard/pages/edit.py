"""The page `/edit`: a text of the language with its findings, its picture and its cost."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from dash import html
from dash.development.base_component import Component

from dcp_dashboard.editing.planning import BUDGETS, methods
from dcp_dashboard.editing.specs import folder_files, library_texts, start_of
from dcp_dashboard.library.plans import PlanLibrary
from dcp_dashboard.pages.layout import attributes, panel
from dcp_grammar import patterns
from dcp_planner import PRESETS

BUNDLE = Path(__file__).parents[1] / "assets" / "codemirror.bundle.js"

KEYS = (
    "Tab leaves the editor; Ctrl ] and Ctrl [ indent. Ctrl . makes the change that mends the "
    "finding under the cursor, F8 goes to the next one, Ctrl Space proposes words, Ctrl F "
    "searches. Pointing at a word explains it."
)


def edit_page(library: PlanLibrary, query: str) -> Component:
    """Build the frame of the editor; its script fills it. `query` may name a text: ``?spec=``.

    Raises:
        DCPError: if there is no such text.
    """
    start = start_of(library, query)
    title = html.Div(
        [
            html.H1("Edit"),
            html.Span(start.name, className="dcp-muted", id="edit-name"),
            html.Span(className="dcp-spring"),
            *_actions(library),
        ],
        className="dcp-title dcp-edit-title",
    )
    told = html.P(hidden=True, role="status", className="dcp-edit-notice", **_part("told"))
    text = panel(
        "Text",
        [html.Div(**_part("text"), className="dcp-edit-text"), html.Div(**_part("findings")),
         html.P(KEYS, id="edit-keys", className="dcp-hint")],
    )  # fmt: skip
    picture = panel(
        "Picture",
        [html.Div(**_part("chooser"), className="dcp-fields"), html.Div(**_part("picture"))],
        tools=html.Button("Save as SVG", type="button", className="dcp-button", **_part("svg")),
    )
    return html.Div(
        [title, told, html.Div([text, picture], className="dcp-columns"), _plan_panel()],
        id="edit",
        **attributes(data_title="Edit", data_bundle=f"/assets/{BUNDLE.name}?m={_bundle_mark()}",
                     data_start=json.dumps(asdict(start)),
                     data_patterns=_patterns(), data_choices=_choices()),
    )  # fmt: skip


def _part(name: str) -> dict[str, Any]:  # Any: Dash's keywords differ in type
    return attributes(data_part=name)


def _actions(library: PlanLibrary) -> Sequence[Component]:
    """Build the controls for the whole text: start from another, format, download."""
    standard = [html.Option(name, value=f"std:{name}") for name in library_texts()]
    files = [
        html.Option(path.relative_to(library.root).as_posix(), value=key)
        for key, path in folder_files(library.root).items()
    ]
    groups = [html.Optgroup(standard, label="Standard library")]
    if files:
        groups.insert(0, html.Optgroup(files, label="In the served folder"))
    chooser = html.Select(
        [html.Option("Start from …", value=""), *groups],
        **_part("start"),
        **attributes(aria_label="Start from another text"),
    )
    buttons = [
        html.Button(text, type="button", className="dcp-button", **_part(name))
        for name, text in (("format", "Format"), ("download", "Download .dcpm"))
    ]
    return [chooser, *buttons]


def _plan_panel() -> Component:
    told = html.P("starting the planner …", className="dcp-hint", role="status", **_part("preview"))
    return panel(
        "What it costs",
        [
            html.Div(**_part("settings"), className="dcp-fields"),
            html.Dl(**_part("cards"), className="dcp-metrics dcp-edit-cards"),
            told,
            html.Div(**_part("bars")),
            html.Div(**_part("plan"), className="dcp-edit-plan"),
        ],
    )


@cache
def _patterns() -> str:
    """Return the language's token patterns as JSON; the browser reads the same expressions."""
    return json.dumps([{"regex": p.regex, "types": p.pygments} for p in patterns()])


@cache
def _choices() -> str:
    return json.dumps({"clusters": PRESETS, "methods": methods(), "efforts": BUDGETS})


@cache
def _bundle_mark() -> str:
    """Return a mark of the script's content, so that a browser never keeps an older one."""
    return hashlib.sha256(BUNDLE.read_bytes()).hexdigest()[:12]
