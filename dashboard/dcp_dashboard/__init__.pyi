from .app import create_app
from .server import DashboardError, serve
