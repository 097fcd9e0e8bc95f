"""The editor of the page `/edit`: worker processes check, draw and plan texts from a browser."""
