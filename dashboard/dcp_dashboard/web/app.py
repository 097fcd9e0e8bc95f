"""The Dash application over one folder of plans: its pages by path, its routes, its scripts.

A page that cannot be shown raises `DCPError`; `render_page` returns a page with its message.

A server keeps its Python in memory. After an update of its installation a browser would get the new
scripts, which read answers that the old code does not give, and worker processes would run the new
code. So the server sends the scripts that it started with, and its pages say that it is outdated.
"""

import gzip
import hashlib
import mimetypes
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from dash import Dash, Input, Output, html
from dash.development.base_component import Component
from flask import Flask, Response, abort, request
from werkzeug.wrappers import Response as WSGIResponse

import dcp_dsl
import dcp_grammar
import dcp_planner
import dcp_runtime
from dcp_dashboard.api.routes import answer, data_api, upload_api
from dcp_dashboard.editing.routes import DESK, Desk, edit_api
from dcp_dashboard.exports.files import export_api
from dcp_dashboard.library.folder import open_folder
from dcp_dashboard.library.plans import BoundedCache, LoadedPlan, PlanLibrary
from dcp_dashboard.pages.compare import add_compare_callbacks, compare_page, front_page
from dcp_dashboard.pages.edit import edit_page
from dcp_dashboard.pages.help import help_page, keyboard_dialog
from dcp_dashboard.pages.layout import INDEX, error_page, shell
from dcp_dashboard.pages.plan import plan_page
from dcp_dashboard.pages.plan_list import plan_list_page
from dcp_dashboard.pages.plan_views import mask_page, timeline_page
from dcp_dashboard.pages.reports import dataset_page, step_page
from dcp_dashboard.pages.run import add_run_callbacks, run_page
from dcp_dsl import DCPError

CODE_TYPES = ("text/javascript", "application/javascript", "text/css", "image/svg+xml")
LEAST_COMPRESSED_BYTES = 1_000
COMPRESSION_LEVEL = 6
MOST_KEPT = 200
"""Most texts whose compressed form is kept."""


def create_app(folder: str | Path) -> Dash:
    """Build the application that shows the plans of a folder; `serve` runs it.

    Its worker processes start with the first request for them and end with
    ``app.server.extensions["dcp_desk"].close()``. The application alone checks no
    hosts and no token: `dcp_dashboard.serve` adds both.

    Raises:
        DashboardError: if the folder is missing.
    """
    library = PlanLibrary(open_folder(folder))
    app = Dash(
        __name__,
        assets_folder=str(ASSETS),
        assets_ignore=r"^codemirror\.bundle\.js$",  # loaded by the page that needs it
        add_log_handler=False,
        compress=False,
        enable_mcp=False,
        include_pages_meta=False,
        index_string=INDEX,
        serve_locally=True,
        suppress_callback_exceptions=True,  # the controls of a page exist only while it is shown
        title="dcp-dsl",
        update_title="",
        use_pages=False,
    )
    app.layout = shell(keyboard_dialog())
    app.server.register_blueprint(data_api(library))
    desk = Desk(library)
    app.server.extensions[DESK] = desk
    for blueprint in (edit_api(library, desk), upload_api(library), export_api(library)):
        app.server.register_blueprint(blueprint)
    compress_code(app.server)
    installation = Installation()
    installation.serve_assets(app.server)

    @app.callback(Output("page", "children"), Input("url", "pathname"), Input("url", "search"))
    def show_page(path: object, query: object) -> Component:  # object: a client may send anything
        return installation.told(render_page(library, str(path or "/"), str(query or "")))

    add_compare_callbacks(app, library)
    add_run_callbacks(app, library)
    return app


def compress_code(server: Flask) -> None:
    """Compress scripts and styles for browsers that accept gzip, each text once.

    Data of plans is sent as it is: on loopback, compressing takes longer than sending.
    """
    kept = BoundedCache[bytes](MOST_KEPT)

    @server.after_request
    def compress(response: Response) -> Response:
        is_code = response.mimetype in CODE_TYPES and response.status_code == 200
        if not is_code or "Content-Encoding" in response.headers:
            return response
        # Caches must not send a compressed answer to a browser that asks for another.
        response.vary.add("Accept-Encoding")
        if not request.accept_encodings["gzip"]:
            return response
        # Flask sends files piece by piece; their data is here only without that.
        response.direct_passthrough = False
        data = response.get_data()
        if len(data) >= LEAST_COMPRESSED_BYTES:
            # By content: one path may have other content after an update.
            name = hashlib.blake2b(data, digest_size=16).digest()
            packed = kept.get(name, lambda: gzip.compress(data, COMPRESSION_LEVEL, mtime=0))
            response.set_data(packed)
            response.headers["Content-Encoding"] = "gzip"
        return response


PACKAGE = Path(__file__).parents[1]
ASSETS = PACKAGE / "assets"
PACKAGES = (
    PACKAGE,
    *(Path(p.__path__[0]) for p in (dcp_grammar, dcp_dsl, dcp_planner, dcp_runtime)),
)
"""Folders whose code this server, its workers and its pages run."""


class Installation:
    """The files of some packages, and scripts and styles, at the time when this object is made."""

    def __init__(self, packages: Iterable[Path] = PACKAGES, assets: Path = ASSETS) -> None:
        self._packages = tuple(packages)
        self._known = self._versions()
        self._assets = {path.name: path.read_bytes() for path in assets.iterdir()}

    def _versions(self) -> dict[Path, tuple[int, int]]:
        """Return size and time of change of every file of code; some 400 of them, 6 ms."""
        found = {}
        walks = (walk for package in self._packages for walk in os.walk(package))
        for file in (Path(folder, name) for folder, _, names in walks for name in names):
            if file.suffix in (".py", ".js", ".css"):
                with suppress(FileNotFoundError):  # an update is under way
                    status = file.stat()
                    found[file] = status.st_size, status.st_mtime_ns
        return found

    @property
    def is_outdated(self) -> bool:
        """Return whether a file of code has changed, appeared or gone since then."""
        return self._versions() != self._known

    def serve_assets(self, server: Flask) -> None:
        """Send the scripts and styles of the start, whatever the disk holds now."""

        def asset(filename: str) -> WSGIResponse:
            content = self._assets.get(filename)
            if content is None:
                abort(404)
            return answer(content, mimetypes.guess_type(filename)[0] or "text/plain")

        server.view_functions["_dash_assets.static"] = asset  # in the place of Dash's own

    def told(self, page: Component) -> Component:
        """Return a page, below a notice if the installation was updated meanwhile."""
        if not self.is_outdated:
            return page
        text = (
            "dcp-dsl was updated while this server runs. It shows plans with the code that it "
            "started with, but checks, draws and plans texts with the new one, which may fail: end "
            "it with Ctrl-C and start `dcpm dashboard` again."
        )
        return html.Div([html.Div(text, className="dcp-panel dcp-picked", role="status"), page])


PLAN_PAGES: Mapping[str, Callable[[LoadedPlan], Component]] = {
    "": plan_page,
    "mask": mask_page,
    "timeline": timeline_page,
}
"""Pages of a plan by the last part of `/plan/<key>/...`."""

Page = Callable[[PlanLibrary, str, tuple[str, ...]], Component | None]
"""Takes the library, the query and the later parts of the path; ``None`` means no such page."""


def _plan(library: PlanLibrary, _query: str, parts: tuple[str, ...]) -> Component | None:
    page = PLAN_PAGES.get("".join(parts[1:])) if len(parts) in (1, 2) else None
    return page(library.load(parts[0])) if page else None


def _alone(page: Callable[[PlanLibrary, str], Component]) -> Page:
    """Return a page that has no parts below its own path."""
    return lambda library, query, parts: None if parts else page(library, query)


ROUTES: Mapping[str, Page] = {
    "": _alone(plan_list_page),
    "compare": _alone(compare_page),
    "dataset": lambda library, query, parts: (
        dataset_page(library, parts[0], query) if len(parts) == 1 else None
    ),
    "edit": _alone(edit_page),
    "front": _alone(front_page),
    "help": _alone(lambda _library, _query: help_page()),
    "plan": _plan,
    "run": lambda library, _query, parts: (
        run_page(library, *parts) if 1 <= len(parts) <= 2 else None
    ),
    "step": lambda library, _query, parts: (
        step_page(library, parts[0]) if len(parts) == 1 else None
    ),
}
"""Pages by the first part of the path."""


def render_page(library: PlanLibrary, path: str, query: str) -> Component:
    """Build the page of a URL; an error becomes a page with its message."""
    first, *rest = [unquote(part) for part in path.strip("/").split("/")]
    page = ROUTES.get(first)
    try:
        shown = page(library, query, tuple(rest)) if page else None
    except DCPError as error:
        return error_page("This cannot be shown", str(error))
    if shown is None:
        known = ", ".join(f"/{name}" for name in sorted(ROUTES))
        text = f"expected a path that begins with one of {known}; got {path[:80]}"
        return error_page("No such page", text)
    return shown
