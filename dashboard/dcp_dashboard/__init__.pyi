from .library.folder import DashboardError
from .web.app import create_app
from .web.server import RunningServer, serve, start_server

__all__ = ["DashboardError", "RunningServer", "create_app", "serve", "start_server"]
