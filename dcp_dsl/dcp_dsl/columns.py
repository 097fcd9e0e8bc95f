"""Which columns of a sample a layout and a mask need."""

from collections.abc import Iterator
from typing import TypeAlias

from dcp_dsl import ast
from dcp_dsl.scope import Scope
from dcp_dsl.walk import mentioned_names, walk

Reader: TypeAlias = ast.Layout | ast.Columns | ast.Token | ast.Attribute


def needed_columns(expression: ast.Expr, scope: Scope) -> frozenset[str]:
    """Give the columns that evaluating a mask expression reads, through everything it calls."""
    return frozenset(column for column, _ in column_readers(expression, scope))


def ahead_columns(expression: ast.Expr, scope: Scope) -> frozenset[str]:
    """Give the columns of the segments in which `@ahead(segment)` lets a called mask look ahead.

    The mask itself may not read them; whether a pair looks ahead elsewhere cannot be decided
    without them.
    """
    if not isinstance(expression, ast.Name | ast.Call):
        return frozenset()
    name = expression.text if isinstance(expression, ast.Name) else expression.name.text
    found = scope.find_mask(name)
    if found is None:
        return frozenset()
    definition, at = found
    segments = [s for d in definition.decorators if d.name.text == "ahead" for s in d.arguments]
    return frozenset().union(*(needed_columns(ast.Name(s.text), at) for s in segments))


def column_readers(expression: object, scope: Scope) -> Iterator[tuple[str, Reader]]:
    """Give every column that an expression reads, with what reads it.

    That is a layout, the source of a segment such as ``flags(column)``, a `token` statement, or
    ``row.column``.
    """
    for node, at in reached(expression, scope):
        if isinstance(node, ast.Segment):
            if isinstance(node.source, ast.Layout):
                for column in layout_columns(node.source):
                    yield column, node.source
            elif isinstance(node.source, ast.Columns):
                yield node.source.column.text, node.source
        else:
            for attribute in _row_columns(node):
                yield attribute.name.text, attribute
            for name, is_attribute in mentioned_names(node):
                if is_attribute and name in at.tokens and name not in at.segments:
                    yield at.tokens[name].column.text, at.tokens[name]


def needed_segments(expression: object, scope: Scope) -> list[ast.Segment]:
    """Give the segment statements that evaluating expressions lays out."""
    return [node for node, _ in reached(expression, scope) if isinstance(node, ast.Segment)]


def reached(expression: object, scope: Scope) -> Iterator[tuple[object, Scope]]:
    """Give an expression and all masks and segments it comes to, each with its scope, once."""
    seen: set[tuple[int, str]] = set()
    statements: set[int] = set()
    pending: list[tuple[object, Scope]] = [(expression, scope)]
    while pending:
        node, at = pending.pop()
        yield node, at
        local = _local_names(node)
        for name, is_attribute in mentioned_names(node):
            if (id(at), name) in seen or name in local:
                continue
            if name in at.segments:  # which hides a mask of the library
                seen.add((id(at), name))
                if id(at.segments[name]) not in statements:
                    statements.add(id(at.segments[name]))
                    pending.append((at.segments[name], at))
            elif not is_attribute and (mask := at.find_mask(name)) is not None:
                seen.add((id(at), name))
                pending.append(mask)


def _local_names(node: object) -> set[str]:
    """Give the parameters and bindings of a mask, which hide masks of the library."""
    if not isinstance(node, ast.MaskDef):
        return set()
    return {part.name.text for part in (*node.params, *node.bindings)}


def reads_length(layout: ast.Layout) -> bool:
    """Whether a layout depends on the sample's length: by `len` or by `[..]`."""
    return any(
        isinstance(node, ast.Leaf) and (node.length is None or ast.Name("len") in walk(node.length))
        for node in walk(layout)
    )


def layout_columns(layout: ast.Layout | ast.Group) -> list[str]:
    """Give the columns that a layout, or a group of one, reads; in the order of the text."""
    names = (node.text for node in walk(layout.parts) if isinstance(node, ast.Name))
    return list(dict.fromkeys(name for name in names if name != "len"))


def _row_columns(node: object) -> Iterator[ast.Attribute]:
    for inner in walk(node):
        if isinstance(inner, ast.Attribute) and inner.value == ast.Name("row"):
            yield inner
