"""Find what layouts and core programs read of a sample: columns, and the statements laid out."""

from collections.abc import Iterator
from functools import lru_cache
from typing import TypeAlias

from dcp_dsl.elaboration import nodes
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.walk import walk, walk_parts

Reader: TypeAlias = ast.Layout | ast.Columns | nodes.TokenColumn | nodes.RowColumn


def column_readers(*roots: nodes.Node) -> Iterator[tuple[str, Reader]]:
    """Yield every column that programs read, with what reads it."""
    for node in nodes.walk(*roots):
        match node:
            case nodes.RowColumn(name) | nodes.TokenColumn(_, name):
                yield name, node
    for statement in laid_statements(*roots):
        if isinstance(statement.source, ast.Layout):
            for column in layout_columns(statement.source):
                yield column, statement.source
        elif isinstance(statement.source, ast.Columns):
            yield statement.source.column.text, statement.source


def laid_statements(*roots: nodes.Node) -> tuple[ast.Segment, ...]:
    """Return the segment statements that programs lay out, each once."""
    laid = (node.statement for node in nodes.walk(*roots) if isinstance(node, nodes.Laid))
    return tuple({id(statement): statement for statement in laid}.values())


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


def column_depths(layout: ast.Layout) -> dict[str, int]:
    """Return the depth of the lists of each column of a layout.

    >>> from dcp_dsl.syntax.parser import parse
    >>> layout = parse("segment p = doc(head[h] body[b]*)* tail[t]").statements[0].source
    >>> column_depths(layout)
    {'h': 1, 'b': 2, 't': 0}
    """
    found: dict[str, int] = {}
    for part, _, depth, _ in walk_parts(layout.parts):
        if isinstance(part, ast.Leaf) and part.length is not None:
            found |= dict.fromkeys(layout_columns(ast.Layout((part,))), depth + part.is_repeated)
        if part.parents is not None:
            found[part.parents.text] = depth + 1
    return found
