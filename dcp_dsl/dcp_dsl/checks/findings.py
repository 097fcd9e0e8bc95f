"""The base of all checks of expressions: kinds of values, segments by name, diagnostics so far.

`pos` is a token's position, `tokens` a length, `index` the number of a segment's instance.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, cast

from dcp_dsl.checks.functions import NUMBER_FUNCTIONS
from dcp_dsl.checks.scope import Body, Scope, known_masks
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.nodes import LOST
from dcp_dsl.elaboration.programs import KeySequence
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.ast import Program, Span
from dcp_dsl.syntax.diagnostics import (
    MAX_FINDINGS,
    Diagnostic,
    did_you_mean,
    make_diagnostic,
    replace_span,
)
from dcp_dsl.syntax.habits import FIXES, FOREIGN_NAMES
from dcp_dsl.syntax.mistakes import FUNCTIONS, POSITIONS, position_hint, segment_hint
from dcp_dsl.syntax.trees import walk_parts

KindName: TypeAlias = Literal["pos", "tokens", "int", "index", "list", "mask", "segment", "unknown"]

# Functions of segments, with the fewest and the most arguments they take.
SEGMENT_FUNCTIONS = {"same": (1, 1), "paths": (1, 1), "first": (1, 2), "last": (1, 2)}


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of an expression, with its core program.

    Attributes:
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


# Kinds of parameters by their declared types; a `bool` is a condition on q and k, so a mask.
PARAM_KINDS = {
    "tokens": Kind("tokens"), "int": INT, "bool": MASK, "pos": Kind("pos"), "mask": MASK,
}  # fmt: skip


def combine(op: str, left: Kind, right: Kind) -> Kind | None:
    """Return the kind of ``left op right``, or None if it means nothing."""
    depends = left.depends | right.depends
    names = left.name, right.name
    if "unknown" in names:  # of a name with an error, or a parameter without a type
        return Kind("unknown", depends=depends)
    is_plain = left.is_plain and right.is_plain
    if op in ("//", "%"):  # `len // 4` and `len % w` are lengths, `len // w` counts windows
        is_length = is_plain and left.name == "tokens" and (op == "%" or right == INT)
        return Kind("tokens" if is_length else "int", depends=depends)
    if is_plain or op == "*":  # a position or an index times a number is no place any more
        return Kind("tokens" if is_plain and "tokens" in names else "int", depends=depends)
    return _add_places(op, left, right)


def _add_places(op: str, left: Kind, right: Kind) -> Kind | None:
    """Return the kind of a sum or difference with a position or a segment's number."""
    depends = left.depends | right.depends
    # A distance is a length, a place plus a length a place. Numbers of a segment work alike, but
    # the difference of two is a count of instances.
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
    if names == {"index"}:
        return left.segment == right.segment
    # `q.doc < 3` compares, `q.doc < q` does not; positions and lengths are both counted in tokens.
    return "index" not in names or not names.isdisjoint({"int", "unknown"})


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
        case ast.Filter(base):  # an instance of it is one of the base
            return base.text
        case ast.Layout(parts) if name != statement.name.text:
            wanted = ast.Ident(name)
            return next((p.around[0] for p in walk_parts(parts) if p.part.name == wanted), "")
    return ""


def has_one_parent(
    cell: str, parent: str, local: Mapping[str, str], segments: Mapping[str, ast.Segment]
) -> bool:
    """Return whether an instance of `cell` always lies in one instance of `parent`.

    `local` are the parents of the tiles behind `where`, by name.
    """
    # From the inside out; tiles that, wrongly, lie in each other would go round for ever.
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


UNKNOWN_HINT = "columns are read as `row.column`; masks and segments must be defined"

_BRANCH_HINT = (
    "write `branch` in front of parts that go on from the same place: "
    "`question[question_len] branch answer[answer_lens]*`"
)


@dataclass(slots=True)
class Checker(ABC):
    """Collects diagnostics about expressions of one text.

    `MaskChecker` is the only class that has all methods; three files share them.

    Attributes:
        lost: names that broken statements would have defined.
        places: codes and spans of the diagnostics so far.
        depth: how many `where` functions are being called inside each other.
        cells: segments of the `per` around the checked expression, from the outside in.
        segments: those of the text that were named so far.
        keys: the sequence of the keys of the mask that is read, if it has one of its own.
    """

    scope: Scope
    program: Program
    lost: frozenset[str] = frozenset()
    found: list[Diagnostic] = field(default_factory=list)
    places: set[tuple[str, Span]] = field(default_factory=set)
    depth: int = 0
    cells: list[str] = field(default_factory=list)
    segments: dict[str, Kind] = field(default_factory=dict)
    keys: KeySequence | None = None

    @property
    def is_full(self) -> bool:
        """True once the checker has found so much that it reports nothing more."""
        return len(self.found) >= MAX_FINDINGS

    def report(
        self,
        code: str,
        message: str,
        span: Span,
        hint: str = "",
        label: str = "",
        fix: str | None = None,
        is_unknown_name: bool = False,
    ) -> None:
        """Add a diagnostic, once per place and code; `fix` certainly belongs in that place."""
        if self.is_full or (code, span) in self.places:
            return
        self.places.add((code, span))
        self.found.append(
            make_diagnostic(
                code, message, self.program.text, span,
                name=self.program.name, hint=hint, label=label,
                fix=None if fix is None else replace_span(span, fix, self.program.text),
                is_unknown_name=is_unknown_name,
            )
        )  # fmt: skip

    def place(self, span: Span) -> nodes.Place:
        """Return a place of the text."""
        return nodes.Place(self.program, span)

    @abstractmethod
    def kind(self, value: ast.Expr, names: Names) -> Kind:
        """Check an expression of any kind."""

    @abstractmethod
    def number(self, value: ast.Expr, names: Names) -> Kind:
        """Check an expression that must be a number."""

    @abstractmethod
    def constant(
        self, value: ast.Expr, names: Names, *, at_least: int | None = None
    ) -> nodes.Number:
        """Check a number that may not depend on a position."""

    @abstractmethod
    def condition(self, source: ast.Filter, columns: Names) -> nodes.Mask:
        """Check the condition of a filtered segment, which reads these columns of its instances."""

    @abstractmethod
    def segment(self, value: ast.Expr, names: Names) -> nodes.Segment:
        """Check an expression that must be a segment."""

    @abstractmethod
    def body(self, mask: ast.MaskDef, scope: Scope) -> Body | None:
        """Return the body of a mask of a scope; None if it cannot be written out."""

    # ---- names ----

    def is_segment(self, name: str, names: Names) -> bool:
        """Return whether a name stands for a segment."""
        kind = names.get(name)
        if kind is None:
            return name in self.scope.segments
        return isinstance(kind, Kind) and kind.name == "segment"

    def segment_name(self, ident: ast.Ident, names: Names) -> nodes.Segment:
        """Check a bare word that must name a segment."""
        kind = names.get(ident.text)
        if self.is_segment(ident.text, names):
            return cast("nodes.Segment", self.named_segment(ident, names).node)
        if kind == UNKNOWN or (kind is None and ident.text in self.lost):
            return LOST
        # The name of something else is of a wrong kind (E103), that of nothing is unknown (E101).
        known = [*self.scope.segments, *(n for n in names if self.is_segment(n, names))]
        is_other = ident.text in ("q", "k", "len") or self.scope.find_mask(ident.text) is not None
        if kind is not None or is_other:
            hint = segment_hint(ident.text, known)
            self.report("E103", f"expected a segment, got `{ident.text}`", ident.span, hint)
        else:
            hint = segment_hint(ident.text, [*known, *self.lost])
            self.report("E101", f"unknown segment `{ident.text}`", ident.span, hint)
        return LOST

    def named_segment(self, ident: ast.Ident | ast.Name, names: Names) -> Kind:
        """Return the kind of a name that stands for a segment."""
        name = ident.text
        if isinstance(local := names.get(name), Kind):
            return local
        if name not in self.segments:
            statement = self.scope.segments[name]
            kind = self.segments[name] = Kind("segment", parent_of(name, statement))
            node: nodes.Segment = nodes.Laid(statement, name, place=self.place(ident.span))
            # The kind is known by now, since tiles may, wrongly, tile themselves. Errors in them
            # belong to the text that defines them, not to an argument such as `--mask`.
            if isinstance(statement.source, ast.Every | ast.Filter | ast.Union):
                is_own = self.program is self.scope.program
                text = self if is_own else type(self)(self.scope, self.scope.program)
                node = text.derived(statement.source)
            if isinstance(statement.source, ast.Filter) and self.is_segment(kind.segment, {}):
                kind = self.named_segment(statement.source.base, {})  # numbered where the base is
            self.segments[name] = kind.of(node)
        return self.segments[name]

    def derived(self, source: ast.Every | ast.Filter | ast.Union) -> nodes.Segment:
        """Check a segment that is made of others."""
        if isinstance(source, ast.Every):
            return self.every(source, {})
        if isinstance(source, ast.Union):
            return self.union([self.segment_name(base, {}) for base in source.bases], source.span)
        base = self.segment_name(source.base, {})
        self.expect_stretches(base, source.base.span)
        columns: dict[str, Kind | Function] = {}
        for name, token in self.scope.tokens.items():
            if token.segment == source.base and token.size is None:
                at = nodes.Pos("k", place=self.place(source.condition.span))
                table = nodes.TokenColumn(name, token.column.text, None, base, place=at.place)
                columns[name] = INT.of(nodes.Lookup(table, "number", at, place=at.place))
        condition = self.condition(source, columns)
        return nodes.Filtered(base, condition, place=self.place(source.span))

    def union(self, parts: list[nodes.Segment], span: Span) -> nodes.Segment:
        """Return several segments as one."""
        for part in parts:
            self.expect_stretches(part, span)
        return nodes.Union(tuple(parts), place=self.place(span))

    def expect_stretches(self, segment: nodes.Segment, span: Span) -> None:
        """Refuse a segment of ids, whose instances may be several stretches of tokens."""
        match segment:
            case nodes.Laid(ast.Segment(name, ast.Columns(ast.Ident("ids"))), own) if (
                own == name.text
            ):
                hint = f"name the ids and take these: `segment {own} = ids(column) as user, tool`"
                message = f"an id of `{own}` may come back after others"
                self.report("E103", message, span, hint)

    def every(self, every: ast.Every, names: Names) -> nodes.Tiles:
        """Check the size and the parent of tiles."""
        size = self.constant(every.size, names, at_least=1)
        parent = None if every.parent is None else self.segment_name(every.parent, names)
        return nodes.Tiles(size, parent, place=self.place(every.size.span))

    def unknown(
        self,
        text: str,
        span: Span,
        names: Names,
        wanted: Literal["mask", "call", ""] = "",
        unfit: Collection[str] = (),
        meant: str | None = None,
    ) -> None:
        """Report an unknown name with the closest one: a mask, a callable, or any name.

        `unfit` are masks that do not take the arguments, `meant` is the one that does, if known.
        """
        if self.is_full:  # finding the closest name is slow
            return
        scope = self.scope
        known = {*names, *known_masks(scope), *self.lost}
        if wanted == "call":
            known |= {*NUMBER_FUNCTIONS, *SEGMENT_FUNCTIONS}
        elif wanted == "":
            known |= {*scope.segments, *scope.constants, "q", "k", "len"}
        # A mask that takes other arguments is named only if no other is close.
        near = did_you_mean(text, known.difference(unfit)) or did_you_mean(text, known)
        hint = FUNCTIONS.get(text) or FOREIGN_NAMES.get(text) or near
        hint = f"write `{meant}`" if meant else position_hint(text) or hint
        if not hint and text in scope.tokens:
            hint = f"a token column is read as `q.{text}` or `k.{text}`"
        self.report(
            "E101", f"unknown name `{text}`", span, hint or UNKNOWN_HINT,
            fix=meant or POSITIONS.get(text) or FIXES.get(text), is_unknown_name=True,
        )  # fmt: skip

    def the_tree(self, word: str, span: Span) -> nodes.Laid:
        """Return the layout with branches, which `paths` or `q.path` needs; report several."""
        trees = self.scope.trees()
        if len(trees) > 1:
            shown = " or ".join(f"`{statement.name.text}`" for statement in trees)
            name = trees[0].name.text
            hint = f"write `paths({name})`, or `q.{name}.path` for a position on it"
            self.report("E125", f"`{word}` could be that of {shown}", span, hint)
        elif not trees:
            message = f"`{word}` needs a layout with branches; this text has none"
            self.report("E125", message, span, _BRANCH_HINT)
        else:
            return nodes.Laid(trees[0], trees[0].name.text, place=self.place(span))
        return LOST

    def tree(self, segment: nodes.Segment, name: str, span: Span) -> None:
        """Report a segment that is no name of a layout with branches."""
        is_tree = isinstance(segment, nodes.Laid) and segment.statement in self.scope.trees()
        if not is_tree and segment is not LOST:
            message = f"`{name}` is no name of a layout with branches"
            self.report("E125", message, span, _BRANCH_HINT)

    def segments_hint(self, value: ast.Attribute) -> str:
        """Explain how to read the segments around a token, and a column of integers per token."""
        item, name = value.value.span.text(self.program.text), value.name.text
        if name == "parent" and self.scope.segments:
            read = ", ".join(f"`{item}.{segment}`" for segment in sorted(self.scope.segments))
            return f"read the segment around a token by its name: {read}"
        hint = f"declare a column with one integer per token: `token {name}`"
        if name == "pos":
            hint = f"`{item}` is the position; in a segment it is `{item}.doc.pos`; or {hint}"
        return hint

    def column_hint(self, value: ast.Attribute) -> str:
        """Suggest what to write for `q.parent.parent` of a token column `parent`."""
        match value.value:
            case ast.Attribute(value=ast.Name("q" | "k" as item), name=outer):
                joined = f"{outer.text}_{value.name.text}"
                return (
                    "a column is read at `q` and `k` only; give the data set a column with both "
                    f"steps: `token {joined}` and `{item}.{joined}`"
                )
        return ""
