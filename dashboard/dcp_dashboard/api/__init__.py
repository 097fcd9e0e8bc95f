"""The data that canvases ask the server for: binary columns and JSON."""
