"""The syntax tree of a .dcpm text, statement by statement, each with its place in the text.

Every node is immutable and carries its `span`; spans take no part in comparing, so two texts that
differ only in layout give equal trees. Nothing here knows what a mask means.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Comparison: TypeAlias = Literal["<=", ">=", "==", "!=", "<", ">"]
Arithmetic: TypeAlias = Literal["+", "-", "*", "//", "%"]


@dataclass(frozen=True, slots=True)
class Span:
    """Half-open range of characters in a text."""

    start: int
    end: int

    def text(self, source: str) -> str:
        """Return the characters it covers."""
        return source[self.start : self.end]

    def line(self, source: str) -> int:
        """Return the line of a text that it begins on, from 1."""
        return source.count("\n", 0, self.start) + 1


# Of nodes that stand in no text, such as the call that a hover makes up to draw a mask.
NO_SPAN = Span(0, 0)


@dataclass(frozen=True, slots=True)
class Node:
    """Base of all nodes: where it stands in the text."""

    span: Span = field(compare=False, repr=False, kw_only=True, default=NO_SPAN)


@dataclass(frozen=True, slots=True)
class Ident(Node):
    """A name where it is defined or used as a bare word."""

    text: str


@dataclass(frozen=True, slots=True)
class Number(Node):
    """An integer; ``4k`` and ``4096`` are equal."""

    value: int


@dataclass(frozen=True, slots=True)
class Bool(Node):
    """`true` or `false`."""

    value: bool


@dataclass(frozen=True, slots=True)
class Name(Node):
    """A name used as a value: `q`, `k`, `len`, a parameter, a mask, a segment, a column."""

    text: str


@dataclass(frozen=True, slots=True)
class Attribute(Node):
    """``value.name``, for example ``q.doc`` or ``q.doc.start``."""

    value: "Expr"
    name: Ident


@dataclass(frozen=True, slots=True)
class Quoted(Attribute):
    """``"column"``, which means ``row."column"``; in the lengths of a layout it is a `Name`."""


@dataclass(frozen=True, slots=True)
class Argument(Node):
    """An argument of a call, by position (`name` is None) or by name."""

    name: Ident | None
    value: "Expr"


@dataclass(frozen=True, slots=True)
class Call(Node):
    """``name(arguments)``: a mask, a function or a builtin."""

    name: Ident
    arguments: tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class Sign(Node):
    """``-value`` or ``+value``."""

    op: Literal["+", "-"]
    value: "Expr"


@dataclass(frozen=True, slots=True)
class Binary(Node):
    """Arithmetic on two numbers."""

    op: Arithmetic
    left: "Expr"
    right: "Expr"


@dataclass(frozen=True, slots=True)
class Compare(Node):
    """A chain ``operands[0] ops[0] operands[1] ...``: all neighbours must compare true."""

    operands: tuple["Expr", ...]
    ops: tuple[Comparison, ...]


@dataclass(frozen=True, slots=True)
class In(Node):
    """``item in container`` or ``item not in container``."""

    item: "Expr"
    container: "Expr"
    negated: bool


@dataclass(frozen=True, slots=True)
class Not(Node):
    """``not value``."""

    value: "Expr"


@dataclass(frozen=True, slots=True)
class And(Node):
    """``a and b and ...``."""

    items: tuple["Expr", ...]


@dataclass(frozen=True, slots=True)
class Or(Node):
    """``a or b or ...``."""

    items: tuple["Expr", ...]


@dataclass(frozen=True, slots=True)
class Minus(Node):
    """``left minus right``: the pairs of `left` that `right` does not have."""

    left: "Expr"
    right: "Expr"


@dataclass(frozen=True, slots=True)
class Per(Node):
    """``value per segment``: `value` in the coordinates of each instance of the segment."""

    value: "Expr"
    segment: Ident


@dataclass(frozen=True, slots=True)
class Target(Node):
    """The keys a rule shows: a segment, `self` or `all`, causally or within a distance."""

    name: Ident
    is_causal: bool
    within: "Expr | None"


@dataclass(frozen=True, slots=True)
class Rule(Node):
    """``subject sees target, target``."""

    subject: Ident
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class Rules(Node):
    """``{ rule rule }``: a pair is visible if any rule allows it."""

    rules: tuple[Rule, ...]


# No node for brackets: `unparse` puts them where the tree needs them.
Expr: TypeAlias = (
    Number | Bool | Name | Attribute | Call | Sign | Binary | Compare | In | Not | And | Or | Minus
    | Per | Rules
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Leaf(Node):
    """``name[length]``, ``name[column]*`` or ``name[..]`` (the rest: `length` is None).

    `is_branch`: ``branch name[column]*``; `parents`: the column behind ``from``, of branches, or of
    tokens if `is_forked` (``from token``); `is_join`: ``join name[column]``.
    """

    name: Ident | None
    length: "Expr | None"
    is_repeated: bool
    is_branch: bool = False
    parents: Name | None = None
    is_forked: bool = False
    is_join: bool = False


@dataclass(frozen=True, slots=True)
class Group(Node):
    """``name(parts)`` or ``name(parts)*``: parts that repeat together; branches as in `Leaf`."""

    name: Ident | None
    parts: tuple["Leaf | Group", ...]
    is_repeated: bool
    is_branch: bool = False
    parents: Name | None = None
    is_forked: bool = False
    is_join: bool = False


@dataclass(frozen=True, slots=True)
class Layout(Node):
    """Parts that fill a sample from left to right."""

    parts: tuple[Leaf | Group, ...]


@dataclass(frozen=True, slots=True)
class Every(Node):
    """``every size`` or ``every size in parent``: fixed tiles."""

    size: "Expr"
    parent: Ident | None


@dataclass(frozen=True, slots=True)
class Columns(Node):
    """``ids(column) as a, b``: segments that a column of the data set spells out."""

    kind: Ident  # spans, ids, flags or positions
    column: Ident
    names: tuple[Ident, ...]  # of ids alone: the first one has the id 0


@dataclass(frozen=True, slots=True)
class Filter(Node):
    """``base where condition``: the instances of a segment whose columns fulfil a condition."""

    base: Ident
    condition: "Expr"


@dataclass(frozen=True, slots=True)
class Union(Node):
    """``a or b``: the instances of several segments."""

    bases: tuple[Ident, ...]


SegmentSource: TypeAlias = Layout | Every | Columns | Filter | Union


@dataclass(frozen=True, slots=True)
class Segment(Node):
    """``segment name = source``."""

    name: Ident
    source: SegmentSource


@dataclass(frozen=True, slots=True)
class Let(Node):
    """``let name = value``: a constant of the text."""

    name: Ident
    value: Expr


@dataclass(frozen=True, slots=True)
class Token(Node):
    """``token name = column``: one integer per token; with ``[size]`` a list of so many.

    ``column name in segment``: the same for each instance of a segment.
    """

    name: Ident
    column: Ident
    size: int | None = None
    segment: Ident | None = None


@dataclass(frozen=True, slots=True)
class Decorator(Node):
    """``@ahead``, ``@ahead(segment)``, ``@partial``, ``@keys(segment, corner)``."""

    name: Ident
    arguments: tuple[Ident, ...]

    @property
    def segments(self) -> tuple[Ident, ...]:
        """The arguments that name segments: all but a corner."""
        return self.arguments[:1] if self.name.text == "keys" else self.arguments


@dataclass(frozen=True, slots=True)
class Param(Node):
    """``name: type = default``."""

    name: Ident
    type: Ident
    default: Expr | None


@dataclass(frozen=True, slots=True)
class Binding(Node):
    """``where name = expr``, ``name = every ...``, or with parameters ``name(a, b) = expr``."""

    name: Ident
    params: tuple[Ident, ...]
    value: Expr | Every

    @property
    def body(self) -> "Expr | None":
        """The expression that a function stands for; None for other bindings."""
        return None if isinstance(self.value, Every) or not self.params else self.value


@dataclass(frozen=True, slots=True)
class MaskDef(Node):
    """``mask name(params) = value where bindings``."""

    name: Ident
    params: tuple[Param, ...]
    value: Expr
    bindings: tuple[Binding, ...]
    decorators: tuple[Decorator, ...]

    @property
    def locals(self) -> "tuple[Param | Binding, ...]":
        """Parameters and bindings: the names that its body alone knows."""
        return *self.params, *self.bindings


@dataclass(frozen=True, slots=True)
class HeadGroup(Node):
    """KV heads ``first..last``; both None for the rest."""

    first: int | None
    last: int | None
    value: Expr


@dataclass(frozen=True, slots=True)
class Layer(Node):
    """``count of mask``, ``heads {...}``, or ``linear`` without either: one entry of a cycle.

    `documents`: the segment of ``linear per segment``.
    """

    count: int
    value: Expr | None
    heads: tuple[HeadGroup, ...]
    documents: Ident | None = None


@dataclass(frozen=True, slots=True)
class StackDef(Node):
    """``stack name = layer, layer``; ``2 of (a, b)`` is four layers here."""

    name: Ident
    layers: tuple[Layer, ...]


Literals: TypeAlias = int | tuple["Literals", ...]


@dataclass(frozen=True, slots=True)
class Rename(Node):
    """``new = column or default``; ``new or default`` where both names are the same."""

    new: Ident
    column: Ident
    default: Literals | None = None


@dataclass(frozen=True, slots=True)
class Attach(Node):
    """``for pattern having columns use value with renames``."""

    pattern: Ident
    having: tuple[Ident, ...]
    value: Expr
    renames: tuple[Rename, ...]


@dataclass(frozen=True, slots=True)
class Field(Node):
    """``column = value`` of a sample; lists are tuples, `true` is 1 and `false` is 0."""

    name: Ident
    value: Literals


@dataclass(frozen=True, slots=True)
class SampleDef(Node):
    """``sample name(fields)``."""

    name: Ident
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Check(Node):
    """``check left implies right`` (or `equals`), ``check left total`` (or `lookback`)."""

    left: Expr
    claim: Literal["implies", "equals", "total", "lookback"]
    right: Expr | None
    sample: Ident | None


@dataclass(frozen=True, slots=True)
class Import(Node):
    """``import a, b from "file.dcpm"``."""

    names: tuple[Ident, ...]
    path: Ident


@dataclass(frozen=True, slots=True)
class Version(Node):
    """``dcpm 1``."""

    number: int


Statement: TypeAlias = (
    Version | Import | Let | Segment | Token | MaskDef | StackDef | SampleDef | Check | Attach
)


@dataclass(frozen=True, slots=True)
class Program:
    """A whole text: its statements in order, and its name in diagnostics, usually a path."""

    statements: tuple[Statement, ...]
    text: str = field(compare=False, repr=False, default="")
    name: str = field(compare=False, default="<text>")
