"""Evaluate a mask in one world of a proof: to true, false, or a formula over what is not known."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from dcp_dsl.budget import Budget
from dcp_dsl.checks.scope import Scope
from dcp_dsl.proof.formula import (
    INFINITE,
    Formula,
    Range,
    Undecided,
    Var,
    all_of,
    any_of,
    negate,
)
from dcp_dsl.proof.numbers import Facts, Place, Sum
from dcp_dsl.proof.segments import (
    View,
    divide,
    tokens_of,
    view_columns,
    view_layout,
    view_tiles,
)
from dcp_dsl.proof.worlds import World, find_level
from dcp_dsl.syntax import ast


@dataclass(frozen=True, slots=True, eq=False)
class Later:
    """An expression, or what stands behind `where`, with the names it is read with."""

    value: "ast.Expr | ast.Every | ast.BindFunction"
    names: "Names"


@dataclass(frozen=True, slots=True)
class Number:
    """A number, and where it is one: `q.doc` is nothing outside all documents."""

    value: Sum
    is_defined: Formula = True


Local: TypeAlias = Number | Later | Var


@dataclass(frozen=True, slots=True, eq=False)
class Names:
    """The names at a place: parameters and bindings, then the text's and the library's."""

    scope: Scope
    local: Mapping[str, Local] = field(default_factory=dict)


@dataclass(slots=True)
class Evaluation:
    """Evaluates masks in one world.

    Attributes:
        world: where the two tokens lie.
        facts: what is known about numbers there.
        budget: shared by all worlds of a text.
        frame: names the coordinates: () for the sample, longer inside `per`.
    """

    world: World
    facts: Facts
    budget: Budget
    frame: tuple[Hashable, ...] = ()
    seen: dict[tuple[int, tuple[Hashable, ...]], tuple[Later, Formula]] = field(
        default_factory=dict
    )
    views: dict[Hashable, View] = field(default_factory=dict)

    # ---- masks ----

    def mask(self, value: ast.Expr, names: Names) -> Formula:
        """Evaluate an expression of kind mask."""
        self.budget.spend(1)
        match value:
            case ast.Bool(flag):
                return flag
            case ast.Not(inner):
                return negate(self.mask(inner, names))
            case ast.And(items):
                return all_of(self.mask(item, names) for item in items)
            case ast.Or(items):
                return any_of(self.mask(item, names) for item in items)
            case ast.Minus(left, right):
                return all_of([self.mask(left, names), negate(self.mask(right, names))])
            case ast.Per(inner, segment):
                view = self.view(segment.text, names)
                if view.same is False:
                    return False
                inside = replace(self, frame=(*self.frame, view.key))
                return all_of([view.same, inside.mask(inner, names)])
            case ast.Rules(rules):
                return any_of(self.rule(rule, names) for rule in rules)
        try:
            return self.atom(value, names)
        except Undecided:  # may hold or not; what stands beside it can still decide
            return Var(object())

    def atom(self, value: ast.Expr, names: Names) -> Formula:
        """Evaluate a comparison, a membership or a mask by name."""
        match value:
            case ast.Compare(operands, ops):
                numbers = [self.number(operand, names) for operand in operands]
                links = zip(numbers, ops, numbers[1:], strict=False)
                truths = [self.facts.compare(a.value, op, b.value) for a, op, b in links]
                return all_of([*(n.is_defined for n in numbers), *truths])
            case ast.In(item, container, negated):
                place = self.place(item, names)
                if place is None:
                    raise Undecided
                inside = self.segment(container, names).inside[place]
                return negate(inside) if negated else inside
            case ast.Call(name, arguments) if name.text == "same":
                return self.segment(arguments[0].value, names).same
            case ast.Name(text):
                return self.named(text, (), names)
            case ast.Call(name, arguments):
                return self.named(name.text, arguments, names)
        raise Undecided

    def place(self, item: ast.Expr, names: Names) -> Place | None:
        """Return the token that an expression stands for; None for other expressions."""
        number = self.number(item, names)
        value = number.value
        if number.is_defined is True and len(value.terms) == 1 and not value.constant:
            unknown, factor = value.terms[0]
            if unknown.family == ("position", self.frame) and factor == 1:
                return unknown.place
        return None

    def named(self, name: str, arguments: tuple[ast.Argument, ...], names: Names) -> Formula:
        """Evaluate a mask by name: a parameter, a binding or a definition."""
        local = names.local.get(name)
        if isinstance(local, Var):  # an unknown mask is another one in other coordinates
            return Var((local.key, self.frame))
        if isinstance(local, Later):
            if isinstance(local.value, ast.BindFunction):
                return self.mask(local.value.value, self.function(local, arguments, names))
            if isinstance(local.value, ast.Every):
                raise Undecided
            key = id(local), self.frame
            if key not in self.seen:
                self.seen[key] = local, self.mask(local.value, local.names)
            return self.seen[key][1]
        found = names.scope.find_mask(name)
        if local is not None or found is None:
            raise Undecided
        definition, scope = found
        inner = self.call(definition, scope, arguments, names)
        return self.mask(definition.value, inner)

    def function(self, local: Later, arguments: tuple[ast.Argument, ...], names: Names) -> Names:
        """Return the names that the body of a `where` function is read with."""
        assert isinstance(local.value, ast.BindFunction), "only functions have a body"
        params = [p.text for p in local.value.params]
        values = [self.number(a.value, names) for a in arguments]
        return Names(
            local.names.scope, {**local.names.local, **dict(zip(params, values, strict=True))}
        )

    def call(
        self,
        definition: ast.MaskDef,
        scope: Scope,
        arguments: tuple[ast.Argument, ...],
        names: Names,
    ) -> Names:
        """Return the names that the body of a mask is read with."""
        given: dict[str, ast.Expr] = {}
        for param, argument in zip(definition.params, arguments, strict=False):
            given[param.name.text if argument.name is None else argument.name.text] = argument.value
        for argument in arguments:
            if argument.name is not None:
                given[argument.name.text] = argument.value
        local: dict[str, Local] = {}
        inner = Names(scope, local)
        for param in definition.params:
            name, is_mask = param.name.text, param.type.text in ("mask", "bool")
            value, at = (given[name], names) if name in given else (param.default, inner)
            if value is None:
                local[name] = self.symbol(param)
            else:
                local[name] = Later(value, at) if is_mask else self.number(value, at)
        bind(definition, local, inner)
        return inner

    def parameters(self, definition: ast.MaskDef, scope: Scope) -> Names:
        """Return the names inside a mask whose parameters stand for every value."""
        local = {param.name.text: self.symbol(param) for param in definition.params}
        inner = Names(scope, local)
        bind(definition, local, inner)
        return inner

    def symbol(self, param: ast.Param) -> Local:
        """Return the meaning of a parameter without a value: any mask, any number of at least 1."""
        key = ("parameter", param.name.text)
        if param.type.text in ("mask", "bool"):
            return Var(key)
        lowest = 1 if param.type.text in ("tokens", "int") else -INFINITE
        return Number(self.facts.add(key, "", (lowest, INFINITE)))

    def rule(self, rule: ast.Rule, names: Names) -> Formula:
        """Evaluate ``subject sees target, target``."""
        tokens = tokens_of(self.facts)
        subject = self.view(rule.subject.text, names)
        distance = self.position(tokens[0]).plus(self.position(tokens[-1]), -1)
        seen: list[Formula] = []
        for target in rule.targets:
            conditions: list[Formula] = []
            if target.name.text == "self":
                conditions.append(subject.same)
            elif target.name.text != "all":
                conditions.append(self.view(target.name.text, names).inside[tokens[-1]])
            if target.is_causal:
                conditions.append(self.facts.compare(distance, ">=", Sum((), 0)))
            if target.within is not None:
                width = self.number(target.within, names).value
                conditions.append(self.facts.compare(distance, "<", width))
                conditions.append(self.facts.compare(Sum((), 0).plus(distance, -1), "<", width))
            seen.append(all_of(conditions))
        return all_of([subject.inside[tokens[0]], any_of(seen)])

    # ---- numbers ----

    def position(self, place: Place) -> Sum:
        """Return the position of a token in the present coordinates."""
        return self.facts.add(("position", self.frame), place, (0, INFINITE), step=1)

    def number(self, value: ast.Expr, names: Names) -> Number:
        """Evaluate an expression of a number kind."""
        self.budget.spend(1)
        match value:
            case ast.Number(number):
                return Number(Sum((), number))
            case ast.Name(text):
                return self.named_number(text, names)
            case ast.Sign(op, inner):
                got = self.number(inner, names)
                return got if op == "+" else Number(Sum((), 0).plus(got.value, -1), got.is_defined)
            case ast.Binary(op, left, right):
                a, b = self.number(left, names), self.number(right, names)
                result = self.arithmetic(op, a.value, b.value)
                return Number(result, all_of([a.is_defined, b.is_defined]))
            case ast.Attribute():
                return self.attribute(value, names)
            case ast.Call(name, arguments):
                local = names.local.get(name.text)
                if isinstance(local, Later) and isinstance(local.value, ast.BindFunction):
                    return self.number(local.value.value, self.function(local, arguments, names))
                return self.builtin(name.text, [self.number(a.value, names) for a in arguments])
        raise Undecided

    def named_number(self, text: str, names: Names) -> Number:
        """Evaluate a parameter, a binding, `q`, `k` or `len`."""
        local = names.local.get(text)
        if isinstance(local, Number):
            return local
        if isinstance(local, Later) and not isinstance(local.value, ast.Every | ast.BindFunction):
            return self.number(local.value, local.names)
        if local is None and text in ("q", "k"):
            place: Place = "t" if self.world.relation == "same" else "q" if text == "q" else "k"
            return Number(self.position(place))
        if local is None and text == "len":
            return Number(self.facts.add(("len", self.frame), "", (1, INFINITE)))
        raise Undecided

    def arithmetic(self, op: ast.Arithmetic, a: Sum, b: Sum) -> Sum:
        """Evaluate ``a op b``."""
        if op in ("+", "-"):
            return a.plus(b, 1 if op == "+" else -1)
        if op == "*" and (a.is_number or b.is_number):
            factor, other = (a.constant, b) if a.is_number else (b.constant, a)
            return Sum((), 0).plus(other, factor)
        if op == "//":
            return divide(a, b, self.facts)
        if op == "%" and a.is_number and (b.is_number or a.constant == 0):
            if a.constant == 0:
                return a
            if b.constant > 0:
                return Sum((), a.constant % b.constant)
        ranges = self.facts.range_of(a), self.facts.range_of(b)
        values: Range = (-INFINITE, INFINITE)
        if op == "*" and min(ranges[0][0], ranges[1][0]) >= 1:
            values = (1, INFINITE)
        if op == "%" and ranges[1][0] >= 1:
            values = (0, ranges[1][1] - 1)
        return self.opaque(op, [a, b], values)

    def opaque(self, what: str, of: list[Sum], values: Range) -> Sum:
        """Return an unknown that is some function of sums."""
        places = set().union(*(each.places() for each in of))
        family = (what, *(each.family() for each in of))
        if len(places) > 1:
            return self.facts.add((*family, *of), "", values)
        return self.facts.add(family, next(iter(places), ""), values)

    def attribute(self, value: ast.Attribute, names: Names) -> Number:
        """Evaluate `row.col`, `S.count`, `q.S`, `q.S.start`, `q.token`."""
        inner, name = value.value, value.name.text
        if inner == ast.Name("row"):
            return Number(self.facts.add(("row", name), ""))
        if isinstance(inner, ast.Name) and inner.text not in ("q", "k") and name == "count":
            view = self.view(inner.text, names)
            if view.parent:
                return Number(view.count("", self.facts))
            return Number(self.facts.add(("count", view.key), "", (0, INFINITE)))
        if isinstance(inner, ast.Attribute) and (at := self.place(inner.value, names)) is not None:
            return self.instance(self.view(inner.name.text, names), name, at)
        place = self.place(inner, names)
        if place is None:
            raise Undecided
        if self.is_segment(name, names):
            view = self.view(name, names)
            return Number(view.numbers[place], view.inside[place])
        return Number(self.facts.add(("token", name), place))

    def instance(self, view: View, name: str, place: Place) -> Number:
        """Evaluate `.start`, `.end`, `.len`, `.pos` or `.count` of a token's instance."""
        if name == "count":
            return Number(view.count(place, self.facts), view.inside[place])
        start = view.border("start", place, self.facts)
        if name == "start":
            return Number(start, view.inside[place])
        if name == "pos":
            return Number(self.position(place).plus(start, -1), view.inside[place])
        end = view.border("end", place, self.facts)
        return Number(end if name == "end" else end.plus(start, -1), view.inside[place])

    def builtin(self, name: str, of: list[Number]) -> Number:
        """Evaluate `abs`, `min`, `max`, `clamp`."""
        values = [each.value for each in of]
        ranges = [self.facts.range_of(value) for value in values]
        is_defined = all_of(each.is_defined for each in of)
        if name == "abs":
            low, high = ranges[0]
            if low >= 0:
                return Number(values[0], is_defined)
            if high <= 0:
                return Number(Sum((), 0).plus(values[0], -1), is_defined)
            result = self.opaque(name, values, (0, max(-low, high)))
        elif name == "clamp" and not values[1].places() | values[2].places():
            rising = self.facts.is_rising(values[0])
            result = self.opaque(name, values, (-INFINITE, INFINITE))
            (unknown, _), *_ = result.terms
            if rising:
                self.facts.add(unknown.family, unknown.place, step=0)
        elif name in ("min", "max"):
            choose = min if name == "min" else max
            ends = choose(low for low, _ in ranges), choose(high for _, high in ranges)
            result = self.opaque(name, values, ends)
        else:
            result = self.opaque(name, values, (-INFINITE, INFINITE))
        return Number(result, is_defined)

    # ---- segments ----

    def is_segment(self, name: str, names: Names) -> bool:
        """Return whether a name behind `q.` or `k.` is a segment."""
        local = names.local.get(name)
        return (
            isinstance(local, Later) and isinstance(local.value, ast.Every)
        ) or name in names.scope.segments

    def segment(self, value: ast.Expr, names: Names) -> View:
        """Evaluate a segment: by name, or `first(S, m)`, `last(S, m)`."""
        if isinstance(value, ast.Name):
            return self.view(value.text, names)
        if not isinstance(value, ast.Call):
            raise Undecided
        count = Sum((), 1)
        if len(value.arguments) > 1:
            count = self.number(value.arguments[1].value, names).value
        inner = self.segment(value.arguments[0].value, names)
        return inner.select(value.name.text, count, self.facts)

    def view(self, name: str, names: Names) -> View:
        """Return a segment by name."""
        self.budget.spend(4)
        local = names.local.get(name)
        if isinstance(local, Later) and isinstance(local.value, ast.Every):
            return self.tiles(local.value, local.names)
        statement = names.scope.segments.get(name)
        if local is not None or statement is None:
            raise Undecided
        key = (id(statement), name, self.frame)
        if key not in self.views:
            self.views[key] = self.make_view(statement, name, names)
        return self.views[key]

    def make_view(self, statement: ast.Segment, name: str, names: Names) -> View:
        """View a segment of the text."""
        position = ("position", self.frame)
        key: tuple[Hashable, ...]
        match statement.source:
            case ast.Every() as every:
                return self.tiles(every, Names(names.scope))
            case ast.Columns():
                key = ("columns", id(statement), name, self.frame)
                return view_columns(key, position, self.facts)
        placing = self.world.placing(statement)  # the worlds place all that is reached
        key = ("layout", self.world.layouts[id(statement)], name, self.frame)
        return view_layout(key, find_level(statement, name), placing, position, self.facts)

    def tiles(self, every: ast.Every, names: Names) -> View:
        """View the tiles of an `every`."""
        size = self.number(every.size, names).value
        parent = None if every.parent is None else self.view(every.parent.text, names)
        key = ("tiles", size, None if parent is None else parent.key, self.frame)
        return view_tiles(key, size, parent, ("position", self.frame), self.facts)


def bind(definition: ast.MaskDef, local: dict[str, Local], inner: Names) -> None:
    """Add the `where` bindings of a mask to its names."""
    for binding in definition.bindings:
        match binding:
            case ast.BindSegment(name, source):
                local[name.text] = Later(source, inner)
            case ast.BindValue(name, value):
                local[name.text] = Later(value, inner)
            case ast.BindFunction(name):
                local[name.text] = Later(binding, inner)
