"""Kinds of values, and the rules for arithmetic, comparisons and segment numbers.

`pos` is a token's position, `tokens` a length, `index` the number of a segment's instance.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from dcp_dsl.elaboration import nodes
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.walk import walk_parts

KindName: TypeAlias = Literal[
    "pos", "tokens", "int", "index", "list", "mask", "segment", "unknown"
]  # fmt: skip

# Functions of the language, with the fewest and the most arguments they take.
BUILTINS = {"abs": (1, 1), "min": (2, 9), "max": (2, 9), "clamp": (3, 3)}
SEGMENT_FUNCTIONS = {"same": (1, 1), "paths": (1, 1), "first": (1, 2), "last": (1, 2)}

PARAM_TYPES = ("tokens", "int", "bool", "pos", "mask")


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of an expression, and what it means.

    Attributes:
        name: which one.
        segment: of an index, the segment it counts; of a segment, its parent.
        depends: the positions (`q`, `k`) it depends on.
        node: the core program of the mask, number or segment.
    """

    name: KindName
    segment: str = ""
    depends: frozenset[str] = frozenset()
    node: Any = field(compare=False, repr=False, default=nodes.LOST)

    def of(self, node: nodes.Node) -> "Kind":
        """Return the kind with a meaning."""
        return replace(self, node=node)

    @property
    def is_number(self) -> bool:
        """True for numbers, which can be computed with."""
        return self.name in ("pos", "tokens", "int", "index", "unknown")

    @property
    def is_plain(self) -> bool:
        """True for numbers without a place: lengths and integers."""
        return self.name in ("tokens", "int")

    def described(self) -> str:
        """Return the kind in words."""
        words = {
            "pos": "a position",
            "tokens": "a number of tokens",
            "int": "an integer",
            "index": f"a `{self.segment}` number",
            "list": "a list of integers",
            "mask": "a mask",
            "segment": "a segment",
            "unknown": "a value",
        }
        return words[self.name]


UNKNOWN = Kind("unknown")
MASK = Kind("mask")
SEGMENT = Kind("segment")
INT = Kind("int")


def param_kind(type_name: str) -> Kind:
    """Return the kind of a parameter of a declared type."""
    kinds: dict[str, Kind] = {
        "tokens": Kind("tokens"), "int": INT, "pos": Kind("pos"), "bool": MASK, "mask": MASK,
    }  # fmt: skip
    return kinds.get(type_name, UNKNOWN)


def combine(op: str, left: Kind, right: Kind) -> Kind | None:
    """Return the kind of ``left op right``, or None if it means nothing."""
    depends = left.depends | right.depends
    if "unknown" in (left.name, right.name):
        return Kind("unknown", depends=depends)
    names = left.name, right.name
    if op == "*":
        plain = left.is_plain and right.is_plain
        return Kind("tokens" if plain and "tokens" in names else "int", depends=depends)
    if op in ("//", "%"):
        is_length = left.name == "tokens" and right.is_plain and (op == "%" or right == INT)
        return Kind("tokens" if is_length else "int", depends=depends)
    if left.is_plain and right.is_plain:
        return Kind("tokens" if "tokens" in names else "int", depends=depends)
    return _add_places(op, left, right)


def _add_places(op: str, left: Kind, right: Kind) -> Kind | None:
    """Return the kind of a sum or difference with a position or a segment's number."""
    depends = left.depends | right.depends
    if left.name == "pos":
        if right.name == "pos":
            return Kind("tokens", depends=depends) if op == "-" else None
        return Kind("pos", depends=depends) if right.is_plain else None
    if left.name == "index":
        if right.name == "index":
            is_same = op == "-" and left.segment == right.segment
            return Kind("int", depends=depends) if is_same else None
        return Kind("index", left.segment, depends) if right.name == "int" else None
    if right.name == "pos":
        return Kind("pos" if op == "+" else "int", depends=depends)
    if right.name == "index" and left.name == "int":
        return Kind("index" if op == "+" else "int", right.segment if op == "+" else "", depends)
    return None


def are_comparable(left: Kind, right: Kind) -> bool:
    """Return whether comparing two numbers means something."""
    names = {left.name, right.name}
    if "unknown" in names or names == {"pos"}:
        return True
    if names == {"index"}:
        return left.segment == right.segment
    if "index" in names:
        return names == {"index", "int"}
    return True


@dataclass(frozen=True, slots=True)
class Function:
    """A `where` function with the names its body sees."""

    params: tuple[ast.Ident, ...]
    value: ast.Expr
    names: "Names"


Names: TypeAlias = Mapping[str, Kind | Function]  # parameters and bindings around an expression


def parent_of(name: str, statement: ast.Segment) -> str:
    """Return the name of the segment whose instances number those of a name; "" for the sample."""
    match statement.source:
        case ast.Every(_, parent) if parent is not None:
            return parent.text
        case ast.Layout(parts) if name != statement.name.text:
            wanted = ast.Ident(name)
            return next((p.around[0] for p in walk_parts(parts) if p.part.name == wanted), "")
    return ""


def has_one_parent(
    cell: str, parent: str, local: Mapping[str, str], segments: Mapping[str, ast.Segment]
) -> bool:
    """Return whether an instance of one segment always lies in one instance of another.

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
