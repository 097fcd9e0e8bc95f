"""A plan as files: a picture, a drawing, tables, a page that needs no server."""
