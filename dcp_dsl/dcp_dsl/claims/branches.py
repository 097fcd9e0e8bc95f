"""Say which masks on a layout with branches mean the same in a packed sample and in each path."""

from collections.abc import Iterator

from dcp_dsl.elaboration import nodes
from dcp_dsl.syntax import ast


def layouts_of_paths(core: nodes.Mask) -> list[nodes.Laid]:
    """Return the layouts whose paths a mask speaks of, each once."""
    found = {id(layout.statement): layout for layout in _path_readers(core)}
    return list(found.values())


def _path_readers(core: nodes.Mask) -> Iterator[nodes.Laid]:
    for node in nodes.walk(core):
        match node:
            case nodes.Along(layout) | nodes.Lookup(nodes.Laid() as layout, "path"):
                yield layout


def is_same_alone(core: nodes.Mask) -> bool:
    """Return whether a mask asks only what a token of a path also has in a sequence of its own.

    That is its place on the path, the values of its token columns, and the parts that it lies in;
    and of two tokens which one comes first, and whether they share a part.
    """
    match core:
        case nodes.Truth() | nodes.Along():
            return True
        case nodes.Not(item):
            return is_same_alone(item)
        case nodes.And(items) | nodes.Or(items):
            return all(map(is_same_alone, items))
        case nodes.Within(nodes.Laid(), nodes.Pos()):
            return True
        case nodes.Same(nodes.Laid(statement)):  # runs of a column may join where branches are cut
            return isinstance(statement.source, ast.Layout)
        case nodes.Compare(_, nodes.Pos(), nodes.Pos()):
            return True
        case nodes.Compare(_, left, right):
            return _is_number_alone(left) and _is_number_alone(right)
    return False


def _is_number_alone(number: nodes.Number) -> bool:
    match number:
        case nodes.Const() | nodes.RowColumn():
            return True
        case nodes.Lookup(nodes.Laid(), "path", nodes.Pos()):
            return True
        case nodes.Lookup(nodes.TokenColumn(segment=None), _, nodes.Pos()):
            return True
        case nodes.Arithmetic(_, left, right):
            return _is_number_alone(left) and _is_number_alone(right)
    return False
