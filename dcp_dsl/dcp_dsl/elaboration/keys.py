"""Queries and keys of two sequences: how the keys lie, and which facts belong to which side.

`@keys(cache, bottom_right)` makes queries and keys tokens of one sequence, that of the keys: a core
program means there what it means anywhere. `@keys(source)` says nothing about where queries stand
among the keys, so a fact is either one of queries or one of keys, and nothing may compare places.
"""

from dataclasses import dataclass
from typing import Literal, NoReturn, TypeAlias

from dcp_dsl.elaboration import nodes
from dcp_dsl.syntax import ast

Alignment: TypeAlias = Literal["", "top_left", "bottom_right"]
ALIGNMENTS: tuple[Alignment, ...] = ("top_left", "bottom_right")


@dataclass(frozen=True, slots=True)
class KeySequence:
    """The sequence of the keys of a mask.

    Attributes:
        statement: its layout.
        alignment: which corner of the matrix is on the diagonal; "" if positions do not compare.
    """

    statement: ast.Segment
    alignment: Alignment


def facts_of_keys(core: nodes.Mask, keys: KeySequence) -> frozenset[object]:
    """Return the statements and token columns that a mask reads at keys.

    Equal statements of two texts, such as one of the library, lay out the same sequence.

    With an alignment all facts belong to the sequence of the keys.

    Raises:
        SpecError: E126 for what belongs to the other sequence, or compares places of both.
    """
    reader = _Facts(keys, {})
    if keys.alignment:
        for node in nodes.walk(core):
            if isinstance(node, nodes.Laid):
                reader.expect_keys(node)
    else:
        for node in nodes.walk(core):
            reader.look(node)
    return frozenset(fact for fact, side in reader.sides.items() if side == "k")


@dataclass(frozen=True, slots=True)
class _Facts:
    """Finds the side of every fact; `sides` holds those found so far."""

    keys: KeySequence
    sides: dict[object, nodes.Side]

    @property
    def name(self) -> str:
        return self.keys.statement.name.text

    def expect_keys(self, node: nodes.Laid) -> None:
        """Refuse a layout of the queries where both tokens are of the keys' sequence."""
        is_own = node.statement == self.keys.statement
        if isinstance(node.statement.source, ast.Layout) and not is_own:
            self.fail(
                node.place, f"`{node.name}` is no part of `{self.name}`, which lays the keys out",
                f"with `{self.keys.alignment}` queries are tokens of `{self.name}` too: ask about "
                f"its parts, or write `@keys({self.name})`",
            )  # fmt: skip

    def look(self, node: nodes.Node) -> None:
        """Note the sides of the facts that one node reads."""
        match node:
            case nodes.Lookup(table, _, at) | nodes.Within(table, at) | nodes.Listed(_, table, at):
                self.belongs(table, self.side_of(at), node.place)
            case nodes.Compare(_, left, right):
                if len(_places(left) | _places(right)) == 2:
                    self.unaligned(node.place, "this compares places of queries and of keys")
            case nodes.Same() | nodes.Along() | nodes.Per():
                words = {nodes.Same: "same", nodes.Along: "paths", nodes.Per: "per"}
                word = words[type(node)]
                self.unaligned(node.place, f"`{word}` needs two tokens of one sequence")
            case nodes.Length():
                self.fail(node.place, "`len` could be that of the queries or of the keys",
                          "count a part, or give the number a column: `row.name`")  # fmt: skip
            case nodes.Count(segment) if not _is_layout(segment):
                self.fail(node.place, "this counts instances of queries or of keys",
                          "read the count at a token: `q.S.count` or `k.S.count`")  # fmt: skip

    def side_of(self, at: nodes.Number) -> nodes.Side:
        """Return the side that a position belongs to."""
        sides = {node.side for node in nodes.walk(at) if isinstance(node, nodes.Pos)}
        if len(sides) != 1:
            self.unaligned(at.place, "this is no place of the queries, and none of the keys")
        return sides.pop()

    def belongs(
        self, table: nodes.Segment | nodes.TokenColumn, side: nodes.Side, place: nodes.Place
    ) -> None:
        """Note that a fact is read at one side; refuse the other one."""
        match table:
            case nodes.TokenColumn(name, column, segment=None):
                self.note(column, side, f"token column `{name}`", place)
            case nodes.TokenColumn(segment=nodes.Node() as segment) | nodes.Chosen(_, segment):
                self.belongs(segment, side, place)
            case nodes.Tiles(_, parent) if parent is not None:
                self.belongs(parent, side, place)
            case nodes.Tiles():
                hint = "divide the position: `k // 64`, or tile a part: `every 64 in S`"
                self.fail(place, "tiles could be cut from the queries or from the keys", hint)
            case nodes.Laid(statement, name):
                if isinstance(statement.source, ast.Layout):
                    is_key = statement == self.keys.statement
                    self.sides[statement] = "k" if is_key else "q"
                self.note(statement, side, f"`{name}`", place)

    def note(self, fact: object, side: nodes.Side, what: str, place: nodes.Place) -> None:
        """Refuse a fact that is read at both sides."""
        known = self.sides.setdefault(fact, side)
        if known != side:
            words = {"q": "queries", "k": "keys"}
            self.fail(
                place, f"{what} belongs to the {words[known]}, `{side}` to the {words[side]}",
                f"ask about `{known}`, or declare another one for the {words[side]}",
            )  # fmt: skip

    def unaligned(self, place: nodes.Place, message: str) -> NoReturn:
        """Fail for want of an alignment."""
        self.fail(
            place, f"{message}; `@keys({self.name})` does not say how the sequences lie",
            f"if queries are the last tokens of `{self.name}`, write "
            f"`@keys({self.name}, bottom_right)`; if the first ones, `top_left`",
        )  # fmt: skip

    def fail(self, place: nodes.Place, message: str, hint: str) -> NoReturn:
        """Raise E126."""
        place.fail("E126", message, hint)


def _is_layout(segment: nodes.Segment) -> bool:
    """Return whether a segment is made of parts of a layout."""
    match segment:
        case nodes.Laid(statement):
            return isinstance(statement.source, ast.Layout)
        case nodes.Chosen(_, inner):
            return _is_layout(inner)
        case nodes.Tiles(_, parent):
            return parent is not None and _is_layout(parent)


def _places(number: nodes.Number) -> set[nodes.Side]:
    """Return the sides whose positions a number is computed from; borders are positions."""
    match number:
        case nodes.Pos(side):
            return {side}
        case nodes.Lookup(_, "start" | "end", at):
            return _places(at)
        case nodes.Arithmetic(_, left, right):
            return _places(left) | _places(right)
    return set()
