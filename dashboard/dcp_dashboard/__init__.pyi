from .app import create_app
from .folder import DashboardError
from .server import RunningServer, serve, start_server

__all__ = ["DashboardError", "RunningServer", "create_app", "serve", "start_server"]
