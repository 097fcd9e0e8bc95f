"""The page `/edit`: a text of the language with its findings, its picture and its cost."""

import hashlib
import json
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
from dcp_planner.model import PRESETS

BUNDLE = Path(__file__).parents[1] / "assets" / "codemirror.bundle.js"

KEYS = (
    "Tab leaves the editor; Ctrl ] and Ctrl [ indent. Ctrl . makes the change that mends the "
    "finding under the cursor, F8 goes to the next one, Ctrl Space proposes words, Ctrl F "
    "searches. Pointing at a word explains it."
)


def edit_page(library: PlanLibrary, query: str) -> Component:
    """Build the frame of the editor; its script fills it. `query` may name a text: ``?spec=``."""
    start = start_of(library, query)
    name = html.Span(start.name, className="dcp-muted", id="edit-name")
    title = html.Div(
        [html.H1("Edit"), name, html.Span(className="dcp-spring"), *_actions(library)],
        className="dcp-title dcp-edit-title",
    )
    told = html.P(hidden=True, role="status", className="dcp-edit-notice", **_part("told"))
    keys = html.P(KEYS, id="edit-keys", className="dcp-hint")
    text = [html.Div(**_part("text"), className="dcp-edit-text"), html.Div(**_part("findings"))]
    fields = html.Div(**_part("chooser"), className="dcp-fields")
    picture = [fields, html.Div(**_part("picture"))]
    panels = [
        panel("Text", [*text, keys]),
        panel("Picture", picture, tools=_button("svg", "Save as SVG")),
    ]
    return html.Div(
        [title, told, html.Div(panels, className="dcp-columns"), _plan_panel()],
        id="edit",
        className="dcp-edit",
        **attributes(data_title="Edit", data_label="editor",
                     data_bundle=f"/assets/{BUNDLE.name}?m={_bundle_mark()}",
                     data_start=json.dumps(asdict(start)),
                     data_patterns=_patterns(), data_choices=_choices()),
    )  # fmt: skip


def _part(name: str) -> dict[str, Any]:  # Any: Dash's keywords differ in type
    return attributes(data_part=name)


def _button(name: str, text: str) -> Component:
    return html.Button(text, type="button", className="dcp-button", **_part(name))


def _actions(library: PlanLibrary) -> list[Component]:
    """Build the controls for the whole text: start from another, format, download."""
    groups = [
        ("In the served folder", folder_files(library)),
        ("Standard library", {f"std:{name}": name for name in library_texts()}),
    ]
    options = [
        html.Optgroup([html.Option(name, value=key) for key, name in names.items()], label=label)
        for label, names in groups
        if names
    ]
    chooser = html.Select(
        [html.Option("Start from …", value=""), *options],
        **attributes(data_part="start", aria_label="Start from another text"),
    )
    return [chooser, _button("format", "Format"), _button("download", "Download .dcpm")]


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
