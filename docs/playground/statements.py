"""Lay out the segments of a program, as the product's syntax tree has them, by `plain_layout`."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from plain_layout import Frame, Instance, Layout, Refused, columns_of

from dcp_dsl.syntax import ast


class PartialLayout(Layout):
    """A layout whose last repetition of a group may lack its last parts."""

    def repeats(self, part: Any, path: tuple[int, ...]) -> int:
        """Count repetitions; Any: a part of a layout."""
        sizes = {len(self.element(name, path)) for name in columns_of([part])}
        if len(sizes) > 2 or max(sizes) - min(sizes) > (part[0] == "group"):
            raise Refused("the columns of a repeated group must have equally many elements")
        return max(sizes)

    def walk(self, parts: Any, path: tuple[int, ...], within: Any, parent: Any) -> None:
        """Lay parts out, but for those that the columns no longer have."""
        kept = []
        for part in parts:
            try:
                for name in columns_of([part]):
                    self.element(name, path)
            except IndexError:
                break
            kept.append(part)
        super().walk(kept, path, within, parent)


class Statement:
    """A segment statement as the frames of `plain_layout` want it."""

    def __init__(self, segment: ast.Segment) -> None:
        self.segment, self.module = segment, self
        self.name, source = segment.name.text, segment.source
        self.is_ids = isinstance(source, ast.Columns) and source.kind.text == "ids"
        inner: list[str] = []
        if isinstance(source, ast.Layout):
            content: tuple[Any, ...] = ("layout", [_part(part, inner) for part in source.parts])
        else:
            assert isinstance(source, ast.Columns), "tiles are cut where they are used"
            inner += [ident.text for ident in source.names]
            content = (source.kind.text, source.column.text, list(inner))
        self.segments = {self.name: content}
        self.names = dict.fromkeys([self.name, *inner], self.name)


def _part(part: ast.Leaf | ast.Group, names: list[str]) -> tuple[Any, ...]:
    """Return a part of a layout as `plain_layout` reads it, and note its names."""
    name = part.name.text if part.name else None
    names += [name] if name else []
    parents = part.parents and part.parents.text
    rest = part.is_repeated, part.is_branch, parents, part.is_forked, part.is_join
    if isinstance(part, ast.Group):
        return ("group", name, [_part(inner, names) for inner in part.parts], *rest)
    return ("leaf", name, part.length and _length(part.length), *rest)


def _length(node: ast.Expr) -> tuple[Any, ...]:
    match node:
        case ast.Number(value):
            return ("number", value)
        case ast.Name(name):
            return ("name", name)
        case ast.Sign(op, inner):
            return ("arithmetic", op, ("number", 0), _length(inner))
        case ast.Binary(op, left, right):
            return ("arithmetic", op, _length(left), _length(right))
    raise AssertionError(node)


class SampleFrame(Frame):
    """A frame that lays statements out of the product's syntax tree.

    With keys of another sequence it holds both, which begin at 0.

    Attributes:
        sizes: tokens of the sequences of statements, where those are not the frame.
    """

    def __init__(self, columns: dict[str, Any], start: int, end: int) -> None:
        super().__init__(columns, start, end)
        self.sizes: dict[object, int] = {}

    def written(self, file: Any, name: str) -> list[Instance]:
        """Return the instances of a name; Any: a `Statement`."""
        source, size = file.segments[file.name], self.sizes.get(file, self.end)
        if not self.outer and (file, file.name) not in self.statements:
            for column in columns_of(source[1]) if source[0] == "layout" else {source[1]}:
                if column not in self.columns:
                    raise Refused(f"segment `{file.name}` needs the column `{column}`")
            if source[0] == "layout":
                laid = PartialLayout(source[1], file.name, self.columns, size)
                self.layouts[file, file.name] = laid
                self.statements[file, file.name] = laid.found
            elif source[0] != "spans" and len(self.columns[source[1]]) != size:
                raise Refused(f"column `{source[1]}`: expected {size} integers, one per token")
        return super().written(file, name)


@cache
def statement_of(segment: ast.Segment) -> Statement:
    """Return a statement; equal ones are one."""
    return Statement(segment)


def natural_length(segment: ast.Segment, columns: Mapping[str, Any]) -> int:
    """Add up the tokens of a layout without `len` and `[..]`.

    Raises:
        Refused: if its columns do not fit together.
    """
    layout = PartialLayout.__new__(PartialLayout)
    statement = statement_of(segment)
    layout.columns, layout.n, layout.top = dict(columns), 0, statement.name
    layout.parts = statement.segments[statement.name][1]
    try:
        layout.lay_out(rest=0)
    except (TypeError, KeyError, IndexError) as error:
        raise Refused(f"segment `{segment.name.text}`: its columns have other shapes") from error
    return layout.at
