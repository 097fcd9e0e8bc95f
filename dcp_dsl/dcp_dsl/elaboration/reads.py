"""Find what core programs read of a sample: columns, and the segment statements laid out."""

from collections.abc import Iterator
from typing import TypeAlias

from dcp_dsl.checks.columns import layout_columns
from dcp_dsl.elaboration import nodes
from dcp_dsl.syntax import ast

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
