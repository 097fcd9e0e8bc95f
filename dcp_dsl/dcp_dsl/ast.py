"""The syntax tree: what a .dcpm text says, statement by statement, and where it says it.

Every node is immutable and carries its `span`; spans take no part in comparing, so two texts that
differ only in layout give equal trees. Nothing here knows what a mask means.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Comparison: TypeAlias = Literal["<=", ">=", "==", "!=", "<", ">"]
Arithmetic: TypeAlias = Literal["+", "-", "*", "//", "%"]
ColumnKind: TypeAlias = Literal["spans", "ids", "flags", "positions"]


@dataclass(frozen=True, slots=True)
class Span:
    """Half-open range of characters in a text.

    >>> Span(2, 5).text("a bcd e")
    'bcd'
    """

    start: int
    end: int

    def text(self, source: str) -> str:
        """Give the characters it covers."""
        return source[self.start : self.end]


def _span() -> Span:
    return field(compare=False, repr=False, kw_only=True, default=Span(0, 0))


@dataclass(frozen=True, slots=True)
class Ident:
    """A name where it is defined or used as a bare word."""

    text: str
    span: Span = _span()


# ---- expressions ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Number:
    """An integer; ``4k`` and ``4096`` are equal."""

    value: int
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Bool:
    """`true` or `false`."""

    value: bool
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Name:
    """A name used as a value: `q`, `k`, `len`, a parameter, a mask, a segment, a column."""

    text: str
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Attribute:
    """``value.name``, for example ``q.doc`` or ``q.doc.start``."""

    value: "Expr"
    name: Ident
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a call, by position (`name` is None) or by name."""

    name: Ident | None
    value: "Expr"
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Call:
    """``name(arguments)``: a mask, a function or a builtin."""

    name: Ident
    arguments: tuple[Argument, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Sign:
    """``-value`` or ``+value``."""

    op: Literal["+", "-"]
    value: "Expr"
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Binary:
    """Arithmetic on two numbers."""

    op: Arithmetic
    left: "Expr"
    right: "Expr"
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Compare:
    """A chain ``operands[0] ops[0] operands[1] ...``: all neighbours must compare true."""

    operands: tuple["Expr", ...]
    ops: tuple[Comparison, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class In:
    """``item in container`` or ``item not in container``."""

    item: "Expr"
    container: "Expr"
    negated: bool
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Not:
    """``not value``."""

    value: "Expr"
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class And:
    """``a and b and ...``."""

    items: tuple["Expr", ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Or:
    """``a or b or ...``."""

    items: tuple["Expr", ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Minus:
    """``left minus right``: pairs of the one that are not in the other."""

    left: "Expr"
    right: "Expr"
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Per:
    """``value per segment``: `value` in the coordinates of each instance of the segment."""

    value: "Expr"
    segment: Ident
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Target:
    """What a rule's queries see: a segment, `self` or `all`, perhaps causally or within a distance."""

    name: Ident
    is_causal: bool
    within: "Expr | None"
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Rule:
    """``subject sees target, target``."""

    subject: Ident
    targets: tuple[Target, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Rules:
    """``{ rule rule }``: a pair is visible if any rule allows it."""

    rules: tuple[Rule, ...]
    span: Span = _span()


Expr: TypeAlias = (
    Number | Bool | Name | Attribute | Call | Sign | Binary | Compare | In | Not | And | Or | Minus
    | Per | Rules
)  # fmt: skip


# ---- data ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leaf:
    """``name[length]``, ``name[column]*`` or ``name[..]``; `length` is None for the remaining tokens."""

    name: Ident | None
    length: "Expr | None"
    is_repeated: bool
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Group:
    """``name(parts)`` or ``name(parts)*``: parts that repeat together."""

    name: Ident | None
    parts: tuple["Leaf | Group", ...]
    is_repeated: bool
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Layout:
    """Parts that fill a sample from left to right."""

    parts: tuple[Leaf | Group, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Every:
    """``every size`` or ``every size in parent``: fixed tiles."""

    size: "Expr"
    parent: Ident | None
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Columns:
    """``ids(column) as a, b``: segments that a column of the data set spells out."""

    kind: Ident
    column: Ident
    names: tuple[Ident, ...]
    span: Span = _span()


SegmentSource: TypeAlias = Layout | Every | Columns


@dataclass(frozen=True, slots=True)
class Segment:
    """``segment name = source``."""

    name: Ident
    source: SegmentSource
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Token:
    """``token name = column``: one integer per token."""

    name: Ident
    column: Ident
    span: Span = _span()


# ---- masks ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Decorator:
    """``@ahead``, ``@ahead(segment)``, ``@partial``."""

    name: Ident
    arguments: tuple[Ident, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Param:
    """``name: type = default``."""

    name: Ident
    type: Ident
    default: Expr | None
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class BindSegment:
    """``where name = every ...``."""

    name: Ident
    source: Every
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class BindValue:
    """``where name = expr``."""

    name: Ident
    value: Expr
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class BindFunction:
    """``where name(a, b) = expr``."""

    name: Ident
    params: tuple[Ident, ...]
    value: Expr
    span: Span = _span()


Binding: TypeAlias = BindSegment | BindValue | BindFunction


@dataclass(frozen=True, slots=True)
class MaskDef:
    """``mask name(params) = value where bindings``."""

    name: Ident
    params: tuple[Param, ...]
    value: Expr
    bindings: tuple[Binding, ...]
    decorators: tuple[Decorator, ...]
    span: Span = _span()


# ---- models, data sets, tests --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeadGroup:
    """KV heads ``first..last``; both None for the rest."""

    first: int | None
    last: int | None
    value: Expr
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Layer:
    """``count of mask`` or ``heads {...}``: one entry of a layer cycle."""

    count: int
    value: Expr | None
    heads: tuple[HeadGroup, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Stack:
    """``stack name = layer, layer``."""

    name: Ident
    layers: tuple[Layer, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Rename:
    """``new = column``."""

    new: Ident
    column: Ident
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Attach:
    """``for pattern having columns use value with renames``."""

    pattern: Ident
    having: tuple[Ident, ...]
    value: Expr
    renames: tuple[Rename, ...]
    span: Span = _span()


Literals: TypeAlias = int | bool | tuple["Literals", ...]


@dataclass(frozen=True, slots=True)
class Field:
    """``column = value`` of a sample; lists are tuples."""

    name: Ident
    value: Literals
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class SampleDef:
    """``sample name(fields)``."""

    name: Ident
    fields: tuple[Field, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Check:
    """``check left implies right`` (or `equals`), ``check left total`` (or `lookback`)."""

    left: Expr
    claim: Literal["implies", "equals", "total", "lookback"]
    right: Expr | None
    sample: Ident | None
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Import:
    """``import a, b from "file.dcpm"``."""

    names: tuple[Ident, ...]
    path: Ident
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Version:
    """``dcpm 1``."""

    number: int
    span: Span = _span()


Statement: TypeAlias = (
    Version | Import | Segment | Token | MaskDef | Stack | SampleDef | Check | Attach
)


@dataclass(frozen=True, slots=True)
class Program:
    """A whole text: its statements in order.

    Attributes:
        statements: what it says.
        text: the source that spans point into.
        name: what diagnostics call it, usually a path.
    """

    statements: tuple[Statement, ...]
    text: str = field(compare=False, repr=False, default="")
    name: str = field(compare=False, default="<text>")
