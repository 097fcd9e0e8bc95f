"""Check expressions: are the names known, do the kinds fit, do calls have the right arguments?"""

from itertools import pairwise
from typing import cast

from dcp_dsl.checks.calls import call_mask, check_call
from dcp_dsl.checks.findings import (
    INT,
    MASK,
    UNKNOWN,
    Checker,
    Function,
    Kind,
    KindName,
    Names,
    are_comparable,
    combine,
    has_one_parent,
)
from dcp_dsl.checks.functions import NUMBER_FUNCTIONS
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.nodes import LOST
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.ast import Span
from dcp_dsl.syntax.diagnostics import did_you_mean
from dcp_dsl.syntax.trees import walk

PLACES: dict[str, KindName] = {
    "start": "pos", "end": "pos", "len": "tokens", "pos": "tokens", "count": "int",
    "path": "tokens",
}  # fmt: skip

_LIST_HINT = "ask for one of its numbers: `k // 64 in q.name`"


class ExpressionChecker(Checker):
    """Checks the expressions of one text."""

    # ---- expectations ----

    def mask(self, value: ast.Expr, names: Names) -> nodes.Mask:
        """Check an expression that must be a mask."""
        kind = self.kind(value, names, is_mask=True)
        if kind.name not in ("mask", "unknown"):
            name = value.text if isinstance(value, ast.Name) else "segment"
            hint = {
                "segment": f"write `k in {name}`, `q in {name}` or `same({name})`",
                "list": _LIST_HINT,
            }.get(kind.name, "compare it: `q - k < 4`")
            self.report("E103", f"expected a mask, got {kind.described()}", value.span, hint)
        return cast("nodes.Mask", kind.node)

    def number(self, value: ast.Expr, names: Names) -> Kind:
        """Check an expression that must be a number."""
        kind = self.kind(value, names)
        if kind.is_number:
            return kind
        text, hint = self.program.text, "masks are joined with `and`, `or`, `not`, `minus`"
        if text[value.span.end :].lstrip().startswith("//"):
            hint += "; a comment begins with `#`"
        elif text[: value.span.start].rstrip().endswith("*"):
            hint += "; layers of a stack repeat with `of`: `5 of sliding(4k)`"
        if kind.name == "segment":
            word = value.text if isinstance(value, ast.Name) else "S"
            hint = f"its number at a token is `q.{word}` or `k.{word}`"
        elif kind.name == "list":
            hint = _LIST_HINT
        self.report("E103", f"expected a number, got {kind.described()}", value.span, hint)
        return UNKNOWN

    def constant(
        self, value: ast.Expr, names: Names, *, at_least: int | None = None
    ) -> nodes.Number:
        """Check a number that may not depend on a position."""
        kind = self.number(value, names)
        if kind.depends:
            self.report("E107", "this number may not depend on a position", value.span)
        elif at_least is not None and (known := _literal(value)) is not None and known < at_least:
            self.report(
                "E111", f"expected at least {at_least}, got {known}", value.span,
                "sizes and divisors are positive",
            )  # fmt: skip
        return cast("nodes.Number", kind.node)

    def segment(self, value: ast.Expr, names: Names) -> nodes.Segment:
        """Check an expression that must be a segment."""
        if isinstance(value, ast.Call) and value.name.text in ("first", "last"):
            return cast("nodes.Segment", check_call(value, names, self).node)
        if isinstance(value, ast.Name):
            return self.segment_name(ast.Ident(value.text, span=value.span), names)
        if isinstance(value, ast.Or):
            return self.union([self.segment(item, names) for item in value.items], value.span)
        self.report(
            "E103", "expected a segment", value.span,
            "write its name, `first(segment)`, `last(segment)` or `(a or b)`",
        )  # fmt: skip
        return LOST

    def condition(self, source: ast.Filter, columns: Names) -> nodes.Mask:
        """Check the condition of a filtered segment: comparisons of columns of its instances."""
        before = len(self.found)
        for node in walk(source.condition):
            match node:
                case ast.Name(text) if text not in columns and text != "row":
                    hint = did_you_mean(text, columns) or (
                        f"declare it: `column {text} in {source.base.text}`"
                    )
                    if text in ("q", "k"):
                        hint = (
                            "a condition reads columns of an instance by their names: `kind == 1`"
                        )
                    message = f"`{text}` is no column of `{source.base.text}`"
                    self.report("E102", message, node.span, hint)
                case ast.In() | ast.Per() | ast.Rules():
                    self.report(
                        "E103", "this asks about pairs of tokens, a condition about an instance",
                        node.span, "compare columns: `segment image = span where kind == 1`",
                    )  # fmt: skip
                case ast.Call(name) if name.text not in NUMBER_FUNCTIONS:
                    message = f"a condition of a segment cannot call `{name.text}`"
                    self.report("E103", message, node.span, "compare columns of its instances")
        return LOST if len(self.found) > before else self.mask(source.condition, columns)

    # ---- kinds ----

    def kind(self, value: ast.Expr, names: Names, *, is_mask: bool = False) -> Kind:
        """Return the kind of an expression; `is_mask` says that only a mask fits in its place."""
        place = self.place(value.span)
        match value:
            case ast.Number(number):
                return INT.of(nodes.Const(number, place=place))
            case ast.Name():
                return self.name(value, names, is_mask=is_mask)
            case ast.Attribute():
                return self.attribute(value, names)
            case ast.Call():
                return check_call(value, names, self)
            case ast.Sign(op, inner):
                kind = self.number(inner, names)
                if op == "+":
                    return kind
                # A position or an index with a minus in front is only an integer.
                node = nodes.negated(kind.node)
                return Kind(kind.name if kind.is_plain else "int", depends=kind.depends, node=node)
            case ast.Binary():
                return self.binary(value, names)
        return MASK.of(self.logic(value, names, place))

    def logic(self, value: ast.Expr, names: Names, place: nodes.Place) -> nodes.Mask:
        """Check a node whose result is a mask."""
        match value:
            case ast.Bool(flag):
                return nodes.Truth(flag, place=place)
            case ast.Not(inner):
                return nodes.Not(self.mask(inner, names), place=place)
            case ast.And(items):
                return nodes.And(tuple(self.mask(item, names) for item in items), place=place)
            case ast.Or(items):
                return self._or(items, names, place)
            case ast.Minus(left, right):
                whole, taken = self.mask(left, names), self.mask(right, names)
                return nodes.And((whole, nodes.Not(taken, place=place)), place=place)
            case ast.Compare():
                return self.compare(value, names, place)
            case ast.In():
                inside = self.membership(value, names, place)
                return nodes.Not(inside, place=place) if value.negated else inside
            case ast.Per(inner, segment):
                # Known while the body is read: `S.count` has one value in each instance around it.
                self.cells.append(segment.text)
                body = self.mask(inner, names)
                self.cells.pop()
                return nodes.Per(self.segment_name(segment, names), body, place=place)
            case ast.Rules(rules):
                return nodes.any_of([self.rule(rule, names) for rule in rules], place)
        raise AssertionError(f"no expression: {type(value).__name__}")

    def _or(self, items: tuple[ast.Expr, ...], names: Names, place: nodes.Place) -> nodes.Mask:
        """Check `or`; report `k in a or b`, where b is a segment: several stand in brackets."""
        for before, item in pairwise(items):
            last = before.items[-1] if isinstance(before, ast.And) else before
            is_either = isinstance(item, ast.Name) and self.is_segment(item.text, names)
            if isinstance(last, ast.In) and is_either:
                span = Span(last.container.span.start, item.span.end)
                either = f"({span.text(self.program.text)})"
                message, hint = "`in` takes the first segment alone", f"write `{either}` for both"
                self.report("E103", message, span, hint, fix=either)
                return LOST
        return nodes.Or(tuple(self.mask(item, names) for item in items), place=place)

    def name(self, value: ast.Name, names: Names, *, is_mask: bool) -> Kind:
        """Return the kind of a name."""
        text = value.text
        if text in names:
            known = names[text]
            if isinstance(known, Function):
                self.report("E106", f"`{text}` is a function; give it arguments", value.span)
                return UNKNOWN
            return known
        if (word := self._word(text, self.place(value.span))) is not None:
            return word
        if text in self.scope.segments:
            return self.named_segment(value, names)
        if (found := self.scope.find_mask(text)) is not None:
            return call_mask(*found, (), value.span, names, self)
        if self.scope.find_stack(text) is not None:
            self.report(
                "E103", f"expected a mask, `{text}` is a stack of masks", value.span,
                "a stack can only be attached with `for ... use`",
            )  # fmt: skip
            return UNKNOWN
        if text in self.scope.constants:  # of an expression from outside the text
            number = self.scope.constants[text]
            return INT.of(nodes.Const(number)) if isinstance(number, int) else UNKNOWN
        if text in self.lost:
            return UNKNOWN
        self.unknown(text, value.span, names, "mask" if is_mask else "")
        return UNKNOWN

    def _word(self, text: str, place: nodes.Place) -> Kind | None:
        """Return the kind of a word of the language that stands for a number or a mask."""
        match text:
            case "q" | "k":
                return Kind("pos", depends=frozenset(text), node=nodes.Pos(text, place=place))
            case "len":
                return Kind("tokens", node=nodes.Length(place=place))
            case "paths":
                return MASK.of(nodes.Along(self.the_tree(text, place.span), place=place))
        return None

    def attribute(self, value: ast.Attribute, names: Names) -> Kind:
        """Return the kind of `row.col`, `S.count`, `q.S`, `q.S.start`, `q.token`."""
        inner, name = value.value, value.name
        if inner == ast.Name("row"):
            return INT.of(nodes.RowColumn(name.text, place=self.place(value.span)))
        if isinstance(inner, ast.Name) and self.is_segment(inner.text, names):
            segment = self.named_segment(inner, names)
            if name.text != "count":
                self.report(
                    "E102", f"a segment has no `.{name.text}`", name.span,
                    f"`{inner.text}.count`, or of a token's instance `q.{inner.text}.{name.text}`",
                )  # fmt: skip
            else:
                self._count(value, inner.text, segment.segment, names)
            return INT.of(nodes.Count(segment.node, place=self.place(value.span)))
        kind = self.number(inner, names)
        if kind.name == "index":
            return self._place(value, kind)
        if kind.name == "unknown":
            return Kind("unknown", depends=kind.depends)
        if kind.name != "pos":
            hint = self.column_hint(value)
            self.report("E102", f"{kind.described()} has no `.{name.text}`", name.span, hint)
            return UNKNOWN
        return self._of_token(value, kind, names)

    def _of_token(self, value: ast.Attribute, kind: Kind, names: Names) -> Kind:
        """Return the kind of a value at a position: a segment's number, a column, a path."""
        inner, name, place = value.value, value.name, self.place(value.span)
        if self.is_segment(name.text, names):
            read = nodes.Lookup(self.segment_name(name, names), "number", kind.node, place=place)
            return Kind("index", name.text, kind.depends, read)
        if name.text in self.lost:
            return Kind("index", name.text, kind.depends)
        if (column := self.scope.tokens.get(name.text)) is not None:
            if column.segment is not None:
                where = f"{inner.span.text(self.program.text)}.{column.segment.text}.{name.text}"
                message = f"`{name.text}` is a column of `{column.segment.text}`, not of its tokens"
                self.report("E102", message, name.span, f"write `{where}`")
            return self._column(column, kind, kind.node, place)
        if name.text == "path":
            tree = self.the_tree(f".{name.text}", name.span)
            read = nodes.Lookup(tree, "path", kind.node, place=place)
            return Kind("tokens", depends=kind.depends, node=read)
        known = [*self.scope.segments, *self.scope.tokens, *names, *self.lost]
        hint = did_you_mean(name.text, known) or self.segments_hint(value)
        self.report("E102", f"a position has no `.{name.text}`", name.span, hint)
        return Kind("unknown", depends=kind.depends)

    def _place(self, value: ast.Attribute, index: Kind) -> Kind:
        """Return the kind of a property of the instance that holds a token."""
        name, segment = value.name, index.segment
        column = self.scope.tokens.get(name.text)
        is_own = column is not None and column.segment == ast.Ident(segment)
        if not is_own and name.text not in PLACES:
            own = (t for t, c in self.scope.tokens.items() if c.segment == ast.Ident(segment))
            hint = did_you_mean(name.text, (*PLACES, *own))
            hint = hint or "`.start`, `.end`, `.len`, `.pos`, `.path` or `.count`"
            self.report("E102", f"an instance has no `.{name.text}`", name.span, hint)
            return UNKNOWN
        if not isinstance(value.value, ast.Attribute):
            self.report(
                "E102", f"a `{segment}` number has no `.{name.text}`, a token's instance has",
                name.span, f"write `q.{segment}.{name.text}` or `k.{segment}.{name.text}`",
            )  # fmt: skip
        # With an error above, `index` may not come from a token; then the program is not used.
        place, number = self.place(value.span), index.node
        table, at = (number.table, number.at) if isinstance(number, nodes.Lookup) else (LOST, LOST)
        if column is not None and is_own:
            return self._column(column, index, at, place)
        if name.text == "path":
            self.tree(cast("nodes.Segment", table), segment, name.span)
        read = nodes.Lookup(table, cast("nodes.Fact", name.text), at, place=place)
        return Kind(PLACES[name.text], depends=index.depends, node=read)

    def _column(self, column: ast.Token, kind: Kind, at: nodes.Number, place: nodes.Place) -> Kind:
        """Return the kind of a column's value at a token or at an instance."""
        segment = None if column.segment is None else self.segment_name(column.segment, {})
        table = nodes.TokenColumn(
            column.name.text, column.column.text, column.size, segment, place=place
        )
        read = nodes.Lookup(table, "number", at, place=place)
        return Kind("int" if column.size is None else "list", depends=kind.depends, node=read)

    def _count(self, value: ast.Attribute, name: str, parent: str, names: Names) -> None:
        """Refuse a count of nested instances without a parent: each parent has its own count."""
        # Inside `per doc`, or per anything that lies in one doc, the parent is clear.
        local = {
            n: k.segment for n, k in names.items() if isinstance(k, Kind) and k.name == "segment"
        }
        segments = self.scope.segments
        if parent and not any(has_one_parent(c, parent, local, segments) for c in self.cells):
            self.report(
                "E124", f"every `{parent}` has its own `{name}.count`; this does not say whose",
                value.span,
                f"write `q.{name}.count` or `k.{name}.count`, or count in each: "
                f"`(...) per {parent}`",
            )  # fmt: skip

    def binary(self, value: ast.Binary, names: Names) -> Kind:
        """Return the kind of arithmetic."""
        left, right = self.number(value.left, names), self.number(value.right, names)
        divisor = _literal(value.right) if value.op in ("//", "%") else None
        if divisor is not None and divisor < 1:
            message = f"this divides by {divisor or 'zero'}"
            self.report("E111", message, value.right.span, "divide by at least 1")
        kind = combine(value.op, left, right)
        if kind is None:
            verb = {"+": "adds", "-": "subtracts"}[value.op]
            self.report(
                "E105", f"this {verb} {left.described()} and {right.described()}", value.span,
                "a distance is `q - k`; a position plus a number of tokens is a position",
            )  # fmt: skip
            return Kind("unknown", depends=left.depends | right.depends)
        place = self.place(value.span)
        return kind.of(nodes.Arithmetic(value.op, left.node, right.node, place=place))

    def compare(self, value: ast.Compare, names: Names, place: nodes.Place) -> nodes.Mask:
        """Check that neighbours of a chain of comparisons can be compared."""
        kinds = [self.number(operand, names) for operand in value.operands]
        spans = [operand.span for operand in value.operands]
        for i, (left, right) in enumerate(pairwise(kinds)):
            if are_comparable(left, right) or self._is_of_both(left, right):
                continue
            # One of them is an index: all other numbers can be compared.
            index, at = (left, i) if left.name == "index" else (right, i + 1)
            other = right if at == i else left
            segment = index.segment
            if other.name == "index":
                self._report_two_segments(value, i, left, right)
                continue
            self.report(
                "E104", f"this compares {other.described()} with a `{segment}` number", spans[at],
                f"for token positions use `.{segment}.start`, `.{segment}.end` or "
                f"`same({segment})`",
                f"`.{segment}` counts segments",
            )  # fmt: skip
        links = zip(value.ops, pairwise(kinds), strict=True)
        return nodes.all_of(
            [nodes.Compare(op, a.node, b.node, place=place) for op, (a, b) in links], place
        )

    def _is_of_both(self, left: Kind, right: Kind) -> bool:
        """Return whether one number counts instances of queries and one those of keys.

        With `@keys(S)` these are different sequences, whose n-th instances may belong together.
        """
        is_cross = self.keys is not None and not self.keys.alignment
        return is_cross and left.name == right.name == "index" and left.depends != right.depends

    def _report_two_segments(self, value: ast.Compare, i: int, left: Kind, right: Kind) -> None:
        """Report a comparison of the numbers of two segments."""
        sides = value.operands[i], value.operands[i + 1]
        texts = [side.span.text(self.program.text) for side in sides]
        both = f" {value.ops[i]} ".join(f"1 * {text}" for text in texts)
        self.report(
            "E104", f"this compares {left.described()} with {right.described()}",
            Span(sides[0].span.start, sides[1].span.end),
            f"if number n of `{left.segment}` belongs to number n of `{right.segment}`, write "
            f"`{both}`; `same({left.segment})` asks for one instance",
            "each counts its own instances",
        )  # fmt: skip

    def membership(self, value: ast.In, names: Names, place: nodes.Place) -> nodes.Mask:
        """Check that `in` asks for a position in a segment, or for a number in a list."""
        kind = self.number(value.item, names)
        if isinstance(value.container, ast.Attribute):
            found = self.kind(value.container, names)
            if found.name == "list":
                return nodes.Listed(kind.node, found.node.table, found.node.at, place=place)
            if found.name != "unknown":
                message = f"expected a segment or a list, got {found.described()}"
                name = value.container.name.text
                hint = "compare it with `==`"
                if name in self.scope.tokens:
                    hint += f"; for lists of three numbers declare `token {name}[3]`"
                self.report("E103", message, value.container.span, hint)
            return LOST
        if kind.name not in ("pos", "unknown"):
            message = f"`in` asks about a position, got {kind.described()}"
            self.report("E103", message, value.item.span, "write `q in ...` or `k in ...`")
        return nodes.within(self.segment(value.container, names), kind.node, place)

    def rule(self, rule: ast.Rule, names: Names) -> nodes.Mask:
        """Check ``subject sees target, target``."""
        place = self.place(rule.span)
        subject = self.segment_name(rule.subject, names)
        seen = nodes.any_of([self.target(each, subject, names) for each in rule.targets], place)
        own = nodes.within(subject, nodes.Pos("q", place=place), place)
        return nodes.And((own, seen), place=place)

    def target(self, target: ast.Target, subject: nodes.Segment, names: Names) -> nodes.Mask:
        """Check the keys that a rule shows, and how near they are."""
        place = self.place(target.span)
        q, k = nodes.Pos("q", place=place), nodes.Pos("k", place=place)
        conditions: list[nodes.Mask] = []
        if target.name.text == "self":
            conditions.append(nodes.same(subject, place))
        elif target.name.text != "all":
            seen = self.segment_name(target.name, names)
            conditions.append(nodes.within(seen, k, place))
        if target.is_causal:
            conditions.append(nodes.Compare("<=", k, q, place=place))
        if target.within is not None:
            width = self.constant(target.within, names, at_least=1)
            for a, b in ((q, k), (k, q)):  # near on both sides; `causally` takes one away
                distance = nodes.Arithmetic("-", a, b, place=place)
                conditions.append(nodes.Compare("<", distance, width, place=place))
        return nodes.all_of(conditions or [nodes.Truth(True, place=place)], place)


def _literal(value: ast.Expr) -> int | None:
    """Return the value of a number with or without a sign in front; None for anything else."""
    match value:
        case ast.Number(value=number):
            return number
        case ast.Sign(op=sign, value=ast.Number(value=number)):
            return -number if sign == "-" else number
    return None
