"""The Dash application over one folder of plans, with the routes of its data, files and editor."""

import gzip
import hashlib
from pathlib import Path

from dash import Dash, Input, Output
from dash.development.base_component import Component
from flask import Flask, Response, request

from dcp_dashboard.api.routes import data_api
from dcp_dashboard.editing.routes import DESK, Desk, edit_api
from dcp_dashboard.exports.routes import export_api
from dcp_dashboard.library.folder import open_folder
from dcp_dashboard.library.plans import BoundedCache, PlanLibrary
from dcp_dashboard.pages.compare import add_compare_callbacks
from dcp_dashboard.pages.help import keyboard_dialog
from dcp_dashboard.pages.layout import INDEX, shell
from dcp_dashboard.pages.routes import render_page
from dcp_dashboard.pages.run import add_run_callbacks
from dcp_dashboard.web.installation import ASSETS, Installation
from dcp_dashboard.web.uploads import upload_api

CODE_TYPES = ("text/javascript", "application/javascript", "text/css", "image/svg+xml")
LEAST_COMPRESSED_BYTES = 1_000
COMPRESSION_LEVEL = 6
MOST_KEPT = 200
"""Texts whose compressed form is kept."""


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
    def show_page(path: object, query: object) -> Component:  # a client may send anything
        return installation.told(render_page(library, str(path or "/"), str(query or "")))

    add_compare_callbacks(app, library)
    add_run_callbacks(app, library)
    return app


def compress_code(server: Flask) -> None:
    """Compress scripts and styles for browsers that take gzip, each text once.

    Data of plans goes as it is: on loopback, compressing takes longer than sending.
    """
    kept = BoundedCache[bytes](MOST_KEPT)

    @server.after_request
    def compress(response: Response) -> Response:
        is_code = response.mimetype in CODE_TYPES and response.status_code == 200
        if not is_code or "Content-Encoding" in response.headers:
            return response
        response.vary.add("Accept-Encoding")
        if not request.accept_encodings["gzip"]:
            return response
        response.direct_passthrough = False
        data = response.get_data()
        if len(data) >= LEAST_COMPRESSED_BYTES:
            name = hashlib.blake2b(data, digest_size=16).digest()
            packed = kept.get(name, lambda: gzip.compress(data, COMPRESSION_LEVEL, mtime=0))
            response.set_data(packed)
            response.headers["Content-Encoding"] = "gzip"
        return response
