"""The Dash application over one folder of plans: routing between pages, nothing else."""

from pathlib import Path
from typing import Any
from urllib.parse import unquote

from dash import ClientsideFunction, Dash, Input, Output, html
from dash.development.base_component import Component

from dcp_dashboard.api import data_api
from dcp_dashboard.folder import open_folder
from dcp_dashboard.library import PlanLibrary
from dcp_dashboard.plan_list_page import plan_list_page
from dcp_dashboard.plan_page import charts, plan_page
from dcp_dashboard.shell import INDEX, message, shell
from dcp_dsl import DCPError

ASSETS = Path(__file__).parent / "assets"


def create_app(folder: str | Path) -> Dash:
    """Make the application that shows the plans of a folder; `serve` runs it.

    The application alone checks no hosts and no token: `dcp_dashboard.serve` adds both.

    Raises:
        DashboardError: if the folder is missing.
    """
    library = PlanLibrary(open_folder(folder))
    app = Dash(
        __name__,
        assets_folder=str(ASSETS),
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
    app.layout = shell()
    app.server.register_blueprint(data_api(library))
    _add_callbacks(app, library)
    return app


def render_page(library: PlanLibrary, path: str, query: str) -> Component:
    """Give the content of a URL; whatever is wrong with it becomes a page that says so."""
    parts = [unquote(part) for part in path.strip("/").split("/") if part]
    try:
        if not parts:
            return plan_list_page(library, query)
        if len(parts) == 2 and parts[0] == "plan":
            return plan_page(library.load(parts[1]))
    except DCPError as error:
        return message("This plan cannot be shown", str(error), is_error=True)
    return message("No such page", f"expected / or /plan/<key>, got {path[:80]}", is_error=True)


def _add_callbacks(app: Dash, library: PlanLibrary) -> None:
    @app.callback(Output("page", "children"), Input("url", "pathname"), Input("url", "search"))
    def show_page(path: object, query: object) -> Component:  # a client may send anything
        return render_page(library, str(path or "/"), str(query or ""))

    @app.callback(
        Output("balance-slot", "children"), Output("traffic-slot", "children"),
        Input("plan-key", "data"),
    )  # fmt: skip
    def show_charts(key: object) -> tuple[Component, Component]:
        try:
            return charts(library.load(str(key)))
        except DCPError as error:  # the file changed or went away since the page was made
            return html.Div(str(error), role="alert"), html.Div()

    same = ClientsideFunction("dcp", "same")
    connect: Any = app.clientside_callback  # Any: Dash leaves it untyped
    connect(same, Output("mask", "data-mode"), Input("mask-mode", "value"))
    connect(same, Output("timelines", "data-show"), Input("timeline-source", "value"))
