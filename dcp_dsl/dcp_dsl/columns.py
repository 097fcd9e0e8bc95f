"""Which columns of a sample a layout and a mask need."""

from dcp_dsl import ast
from dcp_dsl.scope import Scope
from dcp_dsl.walk import mentioned_names, walk


def needed_columns(expression: ast.Expr, scope: Scope) -> frozenset[str]:
    """Give the columns that evaluating a mask expression reads, through everything it calls."""
    found: set[str] = set()
    seen: set[tuple[int, str]] = set()
    pending: list[tuple[object, Scope]] = [(expression, scope)]
    while pending:
        node, at = pending.pop()
        for name, is_attribute in mentioned_names(node):
            if (id(at), name) in seen:
                continue
            if is_attribute:
                if name in at.tokens and name not in at.segments:
                    found.add(at.tokens[name].column.text)
            elif (mask := at.find_mask(name)) is not None:
                seen.add((id(at), name))
                pending.append(mask)
            if name in at.segments:
                seen.add((id(at), name))
                source = at.segments[name].source
                if isinstance(source, ast.Layout):
                    found.update(layout_columns(source))
                elif isinstance(source, ast.Columns):
                    found.add(source.column.text)
                else:
                    pending.append((source, at))
        found.update(_row_columns(node))
    return frozenset(found)


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


def _row_columns(node: object) -> set[str]:
    return {
        inner.name.text
        for inner in walk(node)
        if isinstance(inner, ast.Attribute) and inner.value == ast.Name("row")
    }
