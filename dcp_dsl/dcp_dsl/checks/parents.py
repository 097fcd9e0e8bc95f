"""What segments are numbered in: the named group around them, or what tiles are cut from."""

from collections.abc import Mapping

from dcp_dsl.syntax import ast


def parent_of(name: str, statement: ast.Segment) -> str:
    """Give the name of the segment whose instances number those of a name; "" for the sample.

    Args:
        name: one of the names that the statement defines.
        statement: a `segment` statement.
    """
    match statement.source:
        case ast.Every(_, parent) if parent is not None:
            return parent.text
        case ast.Layout(parts) if name != statement.name.text:
            return _group_around(name, parts)
    return ""


def _group_around(name: str, parts: tuple[ast.Leaf | ast.Group, ...]) -> str:
    pending = [(part, "") for part in parts]
    while pending:
        part, around = pending.pop()
        own = "" if part.name is None else part.name.text
        if own == name:
            return around
        if isinstance(part, ast.Group):
            pending += [(inner, own or around) for inner in part.parts]
    return ""


def has_one_parent(
    cell: str, parent: str, local: Mapping[str, str], segments: Mapping[str, ast.Segment]
) -> bool:
    """Say whether an instance of one segment always lies in one instance of another.

    Args:
        cell: the segment that is asked about.
        parent: the other one.
        local: parents of the tiles behind `where`, by name.
        segments: the statements of the text, by every name that they define.
    """
    seen: set[str] = set()
    while cell not in seen and cell != parent:
        seen.add(cell)
        statement = segments.get(cell)
        if cell not in local and statement is not None and statement.name.text == parent:
            return True  # the statement's own name stands for the outermost parts
        if cell in local:
            cell = local[cell]
        else:
            cell = "" if statement is None else parent_of(cell, statement)
    return cell == parent
