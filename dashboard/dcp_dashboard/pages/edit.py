"""The page `/edit`: texts to start from, and a text with its findings, its picture and its cost."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from dash import html
from dash.development.base_component import Component

from dcp_dashboard.editing.planning import BUDGETS, methods
from dcp_dashboard.library.folder import SPEC_SUFFIX, DashboardError
from dcp_dashboard.library.plans import PlanLibrary
from dcp_dashboard.pages.layout import attributes, panel
from dcp_grammar import MASKS, patterns
from dcp_planner import Plan, Provenance
from dcp_planner.model import PRESETS

MAX_FILES = 200
MAX_BYTES = 200_000

START = """\
# Which keys does each token see? Edit a line: findings, picture and prediction update.
segment part = question[question_len] branch answer[answer_lens]*

mask shared_question = causal and (k in question or same(answer))

sample tiny(question_len = 4, answer_lens = [3, 3, 2])
check shared_question implies causal
"""


@dataclass(frozen=True, slots=True)
class Start:
    """A text to begin with; its settings are the page's, by name, as the address writes them."""

    name: str
    text: str
    home: str = ""  # key of the file it comes from, empty if it lies in no served folder
    batch: str = ""  # key of the plan it comes from, empty if it comes from none
    settings: Mapping[str, str] = field(default_factory=dict)


def library_texts() -> dict[str, str]:
    """Read the files of the standard library, by the name of their mask."""
    files = sorted(MASKS.iterdir(), key=lambda item: item.name)
    return {
        item.name.removesuffix(SPEC_SUFFIX): item.read_text(encoding="utf-8")
        for item in files
        if item.name.endswith(SPEC_SUFFIX)
    }


def folder_files(library: PlanLibrary) -> dict[str, str]:
    """Return the names of the first `.dcpm` files below the served folder, by their key."""
    found = library.folder.files(SPEC_SUFFIX)[:MAX_FILES]
    return {entry.key: entry.relative for entry in found}


def start_of(library: PlanLibrary, query: str) -> Start:
    """Return the text that a URL asks for.

    ``?spec=`` is ``std:NAME`` for a mask of the standard library, the key of a `.dcpm` file of the
    folder or of a plan, whose text it is then, or a text itself.
    """
    wanted = parse_qs(query.removeprefix("?")).get("spec", [""])[0]
    if not wanted:
        return Start("shared_question.dcpm", START)
    if wanted.startswith("std:"):
        name, texts = wanted.removeprefix("std:"), library_texts()
        if name not in texts:
            raise DashboardError(
                f"expected a mask of the standard library, got {name[:40]!r}; there are "
                f"{', '.join(texts)}"
            )
        return Start(f"{name}.dcpm", texts[name])
    # A text of the language has spaces; a key has none.
    if any(c in wanted for c in " =\n"):
        return Start("shared.dcpm", wanted[:MAX_BYTES])
    entry = library.folder.find(wanted, SPEC_SUFFIX)
    if entry is not None:
        return Start(entry.relative, _read(entry.path), wanted)
    loaded = library.load(wanted)
    name, provenance = loaded.entry.relative, loaded.provenance
    if provenance is None:
        raise DashboardError(
            f"{name} does not hold the text it was planned from; open a .dcpm file"
        )
    settings = plan_settings(loaded.plan, provenance, wanted)
    return Start(f"{name} (its text)", provenance.spec, batch=wanted, settings=settings)


def plan_settings(plan: Plan, provenance: Provenance, key: str) -> dict[str, str]:
    """Return the settings that plan this batch again for the same cluster, beside the plan."""
    cluster, shape = plan.cluster, plan.shape
    # Names and values as `web/src/edit/` keeps them in the address; `b` is the pinned plan.
    found = {
        "expression": provenance.mask,
        "mask": "other",
        "sample": "batch",
        "scale": "1",
        "nodes": str(cluster.nodes),
        "per": str(cluster.devices_per_node),
        "heads": f"{shape.q_heads}/{shape.kv_heads}/{shape.head_dim}",
        "dtype": str(shape.dtype_bytes),
        "b": key,
    }
    # A cluster of a file has no name that the page could offer; the page keeps its own default.
    return found | ({"cluster": cluster.name} if cluster.name in PRESETS else {})


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)  # one more shows that there is more
        if len(data) > MAX_BYTES:
            raise DashboardError(
                f"{path.name}: expected at most {MAX_BYTES:,} bytes, got more; check it with: "
                f"dcpm check {path.name}"
            )
        return data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DashboardError(f"{path.name}: cannot be read as text: {error}") from error


BUNDLE = Path(__file__).parents[1] / "assets" / "codemirror.bundle.js"

KEYS = (
    "Tab leaves the editor; Ctrl ] and Ctrl [ change the indentation. Ctrl . fixes the finding "
    "under the cursor, F8 goes to the next finding, Ctrl Space completes words, Ctrl F searches. "
    "Hover over a word to see its explanation."
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
    # The script of this page takes all that it needs from attributes, and imports the text editor,
    # `data-bundle`, which no other page loads.
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
        "Predicted cost",
        [
            html.Div(**_part("settings"), className="dcp-fields"),
            html.Dl(**_part("cards"), className="dcp-metrics dcp-edit-cards"),
            told,
            html.Div(**_part("bars")),
            html.Div(**_part("plan"), className="dcp-edit-plan"),
        ],
    )


def _patterns() -> str:
    """Return the language's token patterns as JSON; the browser reads the same expressions."""
    return json.dumps([{"regex": p.regex, "types": p.pygments} for p in patterns()])


def _choices() -> str:
    return json.dumps({"clusters": PRESETS, "methods": methods(), "efforts": BUDGETS})


@cache
def _bundle_mark() -> str:
    """Return a mark of the script's content, so that a browser never keeps an older one."""
    return hashlib.sha256(BUNDLE.read_bytes()).hexdigest()[:12]
