"""The data that the canvases draw: binary columns, JSON facts, and their routes."""
