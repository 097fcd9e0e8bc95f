"""A plan as files: pictures, tables, traces, a page that needs no server."""
