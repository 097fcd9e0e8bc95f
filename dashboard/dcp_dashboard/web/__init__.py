"""The application and its server: protection, routes, files that a browser sends."""
