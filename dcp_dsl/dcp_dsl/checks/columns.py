"""Find the columns that a layout reads."""

from functools import lru_cache

from dcp_dsl.syntax import ast
from dcp_dsl.syntax.walk import walk


@lru_cache(1024)
def reads_length(layout: ast.Layout) -> bool:
    """Return whether a layout depends on the sample's length: by `len` or by `[..]`."""
    return any(
        isinstance(node, ast.Leaf) and (node.length is None or ast.Name("len") in walk(node.length))
        for node in walk(layout)
    )


@lru_cache(1024)
def has_branches(layout: ast.Layout) -> bool:
    """Return whether parts of a layout go on from the same place."""
    return any(isinstance(node, ast.Leaf | ast.Group) and node.is_branch for node in walk(layout))


@lru_cache(1024)
def parent_columns(layout: ast.Layout) -> tuple[str, ...]:
    """Return the columns behind `from`, which hold branches and -1, not lengths."""
    parts = (node for node in walk(layout) if isinstance(node, ast.Leaf | ast.Group))
    return tuple(part.parents.text for part in parts if part.parents is not None)


@lru_cache(1024)
def layout_columns(layout: ast.Layout | ast.Group) -> tuple[str, ...]:
    """Return the columns that a layout, or a group of one, reads; in the order of the text."""
    names = (node.text for node in walk(layout.parts) if isinstance(node, ast.Name))
    return tuple(dict.fromkeys(name for name in names if name != "len"))
