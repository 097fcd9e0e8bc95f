"""The nodes of core programs: masks, numbers and segments without names, calls and parameters.

A node means the same wherever it stands in a frame: positions, `len`, counts and borders are those
of the frame around it, which is the whole sample or the instances of a `Per` node. Nodes may be
shared, so results are kept by node: nodes are equal only to themselves. `And`, `Or`, `Not`, `Per`,
`Compare` and `Number` have namesakes in the syntax tree, whose nodes are equal by value. So other
files write `nodes.And` for a node of a core program and `ast.And` for one of a syntax tree.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Never, NoReturn, TypeAlias, cast

from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import SpecError, make_diagnostic

Side: TypeAlias = Literal["q", "k"]
Operation: TypeAlias = Literal["+", "-", "*", "//", "%", "min", "max"]
Fact: TypeAlias = Literal[
    "number", "start", "end", "len", "pos", "count", "path", "rank", "last_rank"
]


@dataclass(frozen=True, slots=True)
class Place:
    """A span of a text: where a node comes from."""

    program: ast.Program
    span: ast.Span

    def fail(self, code: str, message: str, hint: str = "") -> NoReturn:
        """Raise a `SpecError` for something at this place."""
        text, name = self.program.text, self.program.name
        found = make_diagnostic(code, message, text, self.span, name=name, hint=hint)
        raise SpecError((found,))


NOWHERE = Place(ast.Program(()), ast.NO_SPAN)


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """Base of all nodes."""

    place: Place = field(repr=False, kw_only=True, default=NOWHERE)


@dataclass(frozen=True, slots=True, eq=False)
class Const(Node):
    """An integer."""

    value: int


@dataclass(frozen=True, slots=True, eq=False)
class Pos(Node):
    """The position of the query or of the key in the frame."""

    side: Side


@dataclass(frozen=True, slots=True, eq=False)
class Length(Node):
    """The tokens of the frame."""


@dataclass(frozen=True, slots=True, eq=False)
class Count(Node):
    """The instances of a segment in the frame."""

    segment: "Segment"


@dataclass(frozen=True, slots=True, eq=False)
class RowColumn(Node):
    """A column with one integer for the whole sample."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class TokenColumn(Node):
    """A column with one integer, or a list of `size` of them, per token or per instance.

    `name` is its name in the text, `segment` the one whose instances have it; None for tokens.
    """

    name: str
    column: str
    size: int | None = None
    segment: "Segment | None" = None


@dataclass(frozen=True, slots=True, eq=False)
class Lookup(Node):
    """A fact about the instance that the token at a position lies in, or its token column.

    `number` and `count` are the instance's number and how many its parent has; `pos` counts the
    token from the start of its instance, `path` from the start of its path in a layout with
    branches; `rank` and `last_rank` are the token's place in that tree and the last place behind
    it. Undefined outside the instances and outside the frame.
    """

    table: "Segment | TokenColumn"
    fact: Fact
    at: "Number"


@dataclass(frozen=True, slots=True, eq=False)
class Arithmetic(Node):
    """``left op right``, the smaller or the larger of both."""

    op: Operation
    left: "Number"
    right: "Number"


@dataclass(frozen=True, slots=True, eq=False)
class Rising(Node):
    """A function of a number, by its name in `RISING_FUNCTIONS`."""

    name: str
    of: "Number"


@dataclass(frozen=True, slots=True, eq=False)
class Outside(Node):
    """A number as it is some frames further out."""

    levels: int
    value: "Number"


@dataclass(frozen=True, slots=True, eq=False)
class Free(Node):
    """A free parameter: any mask, or any number of its type."""

    name: str
    type: str


Number: TypeAlias = (
    Const | Pos | Length | Count | RowColumn | Lookup | Arithmetic | Rising | Outside | Free
)


def negated(number: Number) -> Number:
    """Return a number times -1."""
    # There is no node for a sign: one kind of arithmetic less for all that read programs.
    if isinstance(number, Const):
        return Const(-number.value, place=number.place)
    minus = Const(-1, place=number.place)
    return Arithmetic("*", minus, number, place=number.place)


@dataclass(frozen=True, slots=True, eq=False)
class Truth(Node):
    """All pairs of the frame, or none."""

    value: bool


@dataclass(frozen=True, slots=True, eq=False)
class Compare(Node):
    """``left op right``; false where one of them is undefined."""

    op: ast.Comparison
    left: Number
    right: Number


@dataclass(frozen=True, slots=True, eq=False)
class Within(Node):
    """True where the token at a position lies in an instance of a segment."""

    segment: "Segment"
    at: Number


@dataclass(frozen=True, slots=True, eq=False)
class Same(Node):
    """True where query and key lie in the same instance of a segment."""

    segment: "Segment"


@dataclass(frozen=True, slots=True, eq=False)
class Listed(Node):
    """True where a number is in the list of the token at a position."""

    item: Number
    table: TokenColumn
    at: Number


@dataclass(frozen=True, slots=True, eq=False)
class Along(Node):
    """True where the key is the query, or stands before it on its path in a layout's tree."""

    layout: "Laid"

    def by_rank(self) -> "And":
        """Return the same mask by places in the tree: the query is in the key's subtree."""
        # Places count in preorder, in which a subtree is a run: two comparisons decide.
        q, k = Pos("q", place=self.place), Pos("k", place=self.place)
        rank = Lookup(self.layout, "rank", q, place=self.place)
        first = Lookup(self.layout, "rank", k, place=self.place)
        last = Lookup(self.layout, "last_rank", k, place=self.place)
        after = Compare("<=", first, rank, place=self.place)
        return And((after, Compare("<=", rank, last, place=self.place)), place=self.place)


@dataclass(frozen=True, slots=True, eq=False)
class Not(Node):
    """The pairs of the frame that a mask does not show."""

    item: "Mask"


@dataclass(frozen=True, slots=True, eq=False)
class And(Node):
    """The pairs that all items show."""

    items: tuple["Mask", ...]


@dataclass(frozen=True, slots=True, eq=False)
class Or(Node):
    """The pairs that any item shows."""

    items: tuple["Mask", ...]


@dataclass(frozen=True, slots=True, eq=False)
class Per(Node):
    """A mask inside every instance of a segment, in coordinates that start there."""

    segment: "Segment"
    body: "Mask"


Mask: TypeAlias = Truth | Compare | Within | Same | Listed | Along | Not | And | Or | Per | Free

# Stands for any node with an error; its program is never used. `Never` fits every kind of node.
LOST: Never = cast("Never", Free("", ""))
AHEAD = Compare("<", Pos("q"), Pos("k"))  # the pairs of a query and a later key


@dataclass(frozen=True, slots=True, eq=False)
class Laid(Node):
    """The instances of a name of a `segment` statement: parts of a layout, or those of a column."""

    statement: ast.Segment
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Tiles(Node):
    """Tiles of a size, of the frame or of the instances of a parent."""

    size: Number
    parent: "Segment | None"


@dataclass(frozen=True, slots=True, eq=False)
class Chosen(Node):
    """The first, or the last, instances of every parent, numbered among themselves."""

    is_first: bool
    segment: "Segment"
    count: Number


@dataclass(frozen=True, slots=True, eq=False)
class Filtered(Node):
    """The instances of a segment in the whole sample whose columns fulfil a condition.

    The condition reads columns of the segment at the position of the key. Instances are numbered
    anew within their parents.
    """

    segment: "Segment"
    condition: "Mask"


@dataclass(frozen=True, slots=True, eq=False)
class Union(Node):
    """The instances of several segments, in the order of their tokens, of which they share none.

    They are numbered in the whole sample.
    """

    segments: tuple["Segment", ...]


Segment: TypeAlias = Laid | Tiles | Chosen | Filtered | Union


def children(node: Node) -> tuple[Node, ...]:
    """Return the nodes that a node is made of, in the order of the text."""
    match node:
        case (
            Count(segment) | Same(segment) | Along(segment) | TokenColumn(segment=Node() as segment)
        ):
            return (segment,)
        case Lookup(table, _, at) | Within(table, at):
            return at, table
        case Listed(item, table, at):
            return item, at, table
        case Arithmetic(_, left, right) | Compare(_, left, right):
            return left, right
        case Outside(_, inner) | Rising(_, inner) | Not(inner):
            return (inner,)
        case And(items) | Or(items):
            return items
        case Per(segment, body):
            return body, segment
        case Tiles() | Chosen() | Filtered() | Union():
            return _made_of(node)
    return ()


def _made_of(segment: Tiles | Chosen | Filtered | Union) -> tuple[Node, ...]:
    match segment:
        case Tiles(size, parent):
            return (size,) if parent is None else (size, parent)
        case Chosen(_, inner, count):
            return inner, count
        case Filtered(inner, condition):
            # only what the condition reads: its positions are none of the mask
            columns = (n for n in walk(condition) if isinstance(n, TokenColumn | RowColumn))
            return inner, *columns
        case Union(segments):
            return segments


def walk(*roots: Node) -> Iterator[Node]:
    """Yield nodes and all nodes below them, each once."""
    # Calls share their arguments: a node may be met along many ways, perhaps twice as many for each
    # call inside another.
    seen: set[Node] = set()
    stack: list[Node] = list(reversed(roots))
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            yield node
            stack.extend(reversed(children(node)))


def all_of(items: Sequence[Mask], place: Place) -> Mask:
    """Return the pairs that all of some masks show."""
    return items[0] if len(items) == 1 else And(tuple(items), place=place)


def any_of(items: Sequence[Mask], place: Place) -> Mask:
    """Return the pairs that any of some masks shows."""
    return items[0] if len(items) == 1 else Or(tuple(items), place=place)


def within(segment: Segment, at: Number, place: Place) -> Mask:
    """Return whether the token at a position lies in a segment."""
    return any_of([Within(part, at, place=place) for part in _parts(segment)], place)


def same(segment: Segment, place: Place) -> Mask:
    """Return whether query and key lie in one instance of a segment."""
    return any_of([Same(part, place=place) for part in _parts(segment)], place)


def _parts(segment: Segment) -> tuple[Segment, ...]:
    return segment.segments if isinstance(segment, Union) else (segment,)


def is_fixed(number: Number) -> bool:
    """Return whether a number is the same for all pairs of an instance of the frame."""
    return not any(isinstance(node, Pos | Lookup) for node in walk(number))
