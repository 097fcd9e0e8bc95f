"""Keep the scripts and styles that a server started with, and tell when the code on disk changes.

A server keeps its Python in memory. After an update of its installation a browser would get the new
scripts, which read answers that the old code does not give, and worker processes would run the new
code. So the server sends the scripts that it started with, and its pages say that it is outdated.
"""

import mimetypes
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from dash import html
from dash.development.base_component import Component
from flask import Flask, abort
from werkzeug.wrappers import Response

import dcp_dsl
import dcp_grammar
import dcp_planner
import dcp_runtime
from dcp_dashboard.api.routes import answer

PACKAGE = Path(__file__).parents[1]
ASSETS = PACKAGE / "assets"
PACKAGES = (
    PACKAGE,
    *(Path(p.__path__[0]) for p in (dcp_grammar, dcp_dsl, dcp_planner, dcp_runtime)),
)
"""Folders whose code this server, its workers and its pages run."""


class Installation:
    """The files of some packages as they were when this was made.

    Args:
        packages: their folders.
        assets: the folder of the scripts and styles.
    """

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
        """Return whether a file of code is another by now."""
        return self._versions() != self._known

    def serve_assets(self, server: Flask) -> None:
        """Send the scripts and styles that were there at the start, whatever the disk holds now."""

        def asset(filename: str) -> Response:
            content = self._assets.get(filename)
            if content is None:
                abort(404)
            return answer(content, mimetypes.guess_type(filename)[0] or "text/plain")

        server.view_functions["_dash_assets.static"] = asset

    def told(self, page: Component) -> Component:
        """Put a notice above a page if the installation was updated meanwhile."""
        if not self.is_outdated:
            return page
        text = (
            "dcp-dsl was updated while this server runs. It shows plans with the code that it "
            "started with, but checks, draws and plans texts with the new one, which may fail: end "
            "it with Ctrl-C and start `dcpm dashboard` again."
        )
        return html.Div([html.Div(text, className="dcp-panel dcp-picked", role="status"), page])
