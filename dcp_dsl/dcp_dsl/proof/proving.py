"""Prove statements about masks for every sample at once.

Two tokens can lie in finitely many ways in the layouts that a mask reads (`worlds`). In each world
the mask is evaluated to true, false or a formula over unknowns, and the statement holds if no case
of the unknowns contradicts it. A statement that is not proved this way may still be true; the
caller then searches for a sample that refutes it.

A parameter without a value stands for every mask or position, or every number of at least 1.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, TypeVar

from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.programs import condition_at, show_mask
from dcp_dsl.elaboration.rising import RISING_FUNCTIONS
from dcp_dsl.errors import Budget, OverBudget
from dcp_dsl.proof.numbers import (
    Facts,
    Sum,
    TokenRef,
    View,
    divide,
    tokens_of,
    view_columns,
    view_layout,
    view_tiles,
    view_union,
)
from dcp_dsl.proof.worlds import (
    INFINITE,
    MAX_WORLDS,
    Formula,
    Range,
    Relation,
    Undecided,
    Var,
    World,
    all_of,
    any_of,
    count_worlds,
    find_level,
    has_case,
    is_along,
    negate,
    worlds,
)
from dcp_dsl.syntax import ast

_Made = TypeVar("_Made")
_NODE = TypeVar("_NODE", bound=nodes.Node)


@dataclass(frozen=True, slots=True)
class PartialNumber:
    """A number, and when it is defined: `q.doc` is undefined outside all documents."""

    value: Sum
    is_defined: Formula = True


@dataclass(slots=True)
class Evaluation:
    """Evaluates nodes in one world, with the facts about numbers there.

    `budget` is for all worlds of one statement. `frame` names the coordinates: () for the sample;
    inside `per` also the segments around. `known` has the values of nodes, by node and frame.
    """

    world: World
    facts: Facts
    budget: Budget
    frame: tuple[Hashable, ...] = ()
    known: dict[Hashable, Any] = field(default_factory=dict)

    def once(self, make: Callable[[_NODE], _Made], node: _NODE) -> _Made:
        """Evaluate a node once in each frame; masks share nodes, so a tree walk could explode."""
        key = node, self.frame
        if key not in self.known:
            self.budget.spend(1)
            self.known[key] = make(node)
        found: _Made = self.known[key]
        return found

    # ---- masks ----

    def mask(self, node: nodes.Mask) -> Formula:
        """Evaluate a mask."""
        return self.once(self._mask, node)

    def _mask(self, node: nodes.Mask) -> Formula:
        try:
            match node:
                case nodes.Truth(flag):
                    return flag
                case nodes.Not(item):
                    return negate(self.mask(item))
                case nodes.And(items):
                    return all_of(self.mask(item) for item in items)
                case nodes.Or(items):
                    return any_of(self.mask(item) for item in items)
                case nodes.Per(segment, body):
                    view = self.view(segment)
                    if view.same is False:
                        return False
                    # Both tokens lie in one instance and get coordinates that start there.
                    inside = replace(self, frame=(*self.frame, view.key))
                    return all_of([view.same, inside.mask(body)])
            return self.atom(node)
        except Undecided:  # may hold or not; the other parts of the mask can still decide
            # The key is equal to no other, since two undecided parts need not agree.
            return Var(object())

    def atom(self, node: nodes.Mask) -> Formula:
        """Evaluate a comparison, a membership or a parameter."""
        match node:
            case nodes.Compare(op, left, right):
                a, b = self.number(left), self.number(right)
                truth = self.facts.compare(a.value, op, b.value)
                return all_of([a.is_defined, b.is_defined, truth])
            case nodes.Within(segment, at):
                return self.view(segment).inside[self.place(at)]
            case nodes.Same(segment):
                return self.view(segment).same
            case nodes.Listed():  # the contents of lists are known only to the data
                return Var((node, self.frame))
            case nodes.Along(layout):
                return self.along(layout.statement)
            case nodes.Free(name):  # in other coordinates, an unknown mask gives other answers
                return Var(("parameter", name, self.frame))
        raise AssertionError(f"no mask: {type(node).__name__}")

    def along(self, statement: ast.Segment) -> Formula:
        """Return whether the key is the query or stands before it on the query's path."""
        placing = self.world.placing(statement)
        found = is_along(statement, placing, self.world.relation)
        if found is None:  # a column of parents decides
            return Var(("along", self.world.layouts[id(statement)]))
        return found

    def place(self, at: nodes.Number) -> TokenRef:
        """Return the token at a position.

        Raises:
            Undecided: if it is not exactly the position of the query or of the key, as in `q - 1`.
        """
        number = self.number(at)
        value = number.value
        if number.is_defined is True and len(value.terms) == 1 and not value.constant:
            unknown, factor = value.terms[0]
            if unknown.family == ("position", self.frame) and factor == 1:
                return unknown.place
        raise Undecided

    # ---- numbers ----

    def number(self, node: nodes.Number) -> PartialNumber:
        """Evaluate a number."""
        return self.once(self._number, node)

    def _number(self, node: nodes.Number) -> PartialNumber:
        match node:
            case nodes.Const(value):
                return PartialNumber(Sum((), value))
            case nodes.Pos(side):
                return PartialNumber(self.position("t" if self.world.relation == "same" else side))
            case nodes.Outside(levels, value):
                return replace(self, frame=self.frame[:-levels]).number(value)
            case nodes.Arithmetic(op, left, right):
                a, b = self.number(left), self.number(right)
                result = self.arithmetic(op, a.value, b.value)
                defined = [a.is_defined, b.is_defined]
                # Dividing by 0 is undefined, not an error, so a comparison with it is false.
                if op in ("//", "%") and _may_be_zero(right):
                    defined.append(self.facts.compare(b.value, "!=", Sum((), 0)))
                return PartialNumber(result, all_of(defined))
            case nodes.Rising(name, inner):
                return self.rising(name, self.number(inner))
            case nodes.Lookup(table, fact, at):
                return self.look_up(table, fact, self.place(at))
        if isinstance(node, nodes.Free) and node.type == "pos":
            # The caller's: inside `per` another number, and perhaps undefined, as `q.doc.start`.
            key = ("parameter", node.name, self.frame)
            return PartialNumber(self.facts.add(key, ""), Var(key))
        return PartialNumber(self.unknown(node))

    def unknown(self, node: nodes.Number) -> Sum:
        """Return a number that is the same for all tokens of a frame."""
        match node:
            case nodes.Length():  # at least 1, because there is a query
                return self.facts.add(("len", self.frame), "", (1, INFINITE))
            case nodes.Count(segment):
                view = self.view(segment)
                if view.parent:
                    return view.count("", self.facts)
                return self.facts.add(("count", view.key), "", (0, INFINITE))
            case nodes.RowColumn(name):
                return self.facts.add(("row", name), "")
            case nodes.Free(name):
                # Without the frame: lengths and integers are the same in all coordinates.
                return self.facts.add(("parameter", name), "", (1, INFINITE))
        raise AssertionError(f"no number: {type(node).__name__}")

    def position(self, place: TokenRef) -> Sum:
        """Return the position of a token in the coordinates of the frame."""
        return self.facts.add(("position", self.frame), place, (0, INFINITE), step=1)

    def arithmetic(self, op: nodes.Operation, a: Sum, b: Sum) -> Sum:
        """Evaluate ``a op b``."""
        ranges = self.facts.range_of(a), self.facts.range_of(b)
        values: Range = (-INFINITE, INFINITE)
        match op:
            case "+" | "-":
                return a.plus(b, 1 if op == "+" else -1)
            case "min" | "max":
                return self.extreme(op, a, b)
            case "//":
                return divide(a, b, self.facts)
            case "*" if a.is_number or b.is_number:
                factor, other = (a.constant, b) if a.is_number else (b.constant, a)
                return Sum((), 0).plus(other, factor)
            case "%" if a.is_number and a.constant == 0:
                return a
            case "%" if a.is_number and b.is_number and b.constant > 0:
                return Sum((), a.constant % b.constant)
            case "*" if min(ranges[0][0], ranges[1][0]) >= 1:
                values = (1, INFINITE)
            case "%" if ranges[1][0] >= 1:
                values = (0, ranges[1][1] - 1)
        return self.facts.opaque(op, (a, b), values)

    def rising(self, name: str, of: PartialNumber) -> PartialNumber:
        """Return a rising function of a number, which is defined where the function is."""
        function, value = RISING_FUNCTIONS[name], of.value
        values = function.of(function.least), function.of(function.most)
        is_rising = self.facts.is_rising(value)
        result = self.facts.opaque(name, (value,), values, is_rising=is_rising)
        inside = (
            self.facts.compare(value, ">=", Sum((), function.least)),
            self.facts.compare(value, "<=", Sum((), function.most)),
        )
        return PartialNumber(result, all_of([of.is_defined, *inside]))

    def extreme(self, op: nodes.Operation, a: Sum, b: Sum) -> Sum:
        """Return the smaller or the larger of two sums."""
        low, high = self.facts.range_of(a.plus(b, -1))
        if low >= 0 or high <= 0:
            return a if (low >= 0) == (op == "max") else b
        choose = min if op == "min" else max
        (low_a, high_a), (low_b, high_b) = self.facts.range_of(a), self.facts.range_of(b)
        lows, highs = choose(low_a, low_b), choose(high_a, high_b)
        both = a.plus(b)
        if both.is_number:  # as in x and c - x: one is at least half of c, the other at most
            if op == "max":
                lows = max(lows, ceil(both.constant / 2))
            else:
                highs = min(highs, both.constant // 2)
        is_rising = all(self.facts.is_rising(each) or not each.places() for each in (a, b))
        return self.facts.opaque(op, (a, b), (lows, highs), is_rising=is_rising)

    def look_up(
        self, table: nodes.Segment | nodes.TokenColumn, fact: nodes.Fact, place: TokenRef
    ) -> PartialNumber:
        """Evaluate a token column, or a fact about a token's instance."""
        if isinstance(table, nodes.TokenColumn):
            found = self.facts.add(("token", table.column, table.size is None), place)
            # an instance has a value, and nothing outside
            is_inside = True if table.segment is None else self.view(table.segment).inside[place]
            return PartialNumber(found, is_inside)
        if fact == "path":
            assert isinstance(table, nodes.Laid), "checked: a layout has paths"
            family = ("path", self.world.layouts[id(table.statement)], self.frame)
            # The path of the query continues that of the key, so the places on it rise.
            is_longer = self.along(table.statement) is True
            # Inside `per`, places count from its first token, which may lie on a longer path.
            values: Range = (-INFINITE, INFINITE) if self.frame else (0, INFINITE)
            found = self.facts.add(family, place, values, step=1 if is_longer else None)
            return PartialNumber(found, self.view(table).inside[place])
        view = self.view(table)
        if fact == "number":
            return PartialNumber(view.numbers[place], view.inside[place])
        if fact == "count":
            return PartialNumber(view.count(place, self.facts), view.inside[place])
        start = view.border("start", place, self.facts)
        if fact == "start":
            return PartialNumber(start, view.inside[place])
        if fact == "pos":
            return PartialNumber(self.position(place).plus(start, -1), view.inside[place])
        end = view.border("end", place, self.facts)
        return PartialNumber(end if fact == "end" else end.plus(start, -1), view.inside[place])

    # ---- segments ----

    def view(self, node: nodes.Segment) -> View:
        """Return a segment as the two tokens see it."""
        return self.once(self._view, node)

    def _view(self, node: nodes.Segment) -> View:
        position = ("position", self.frame)
        key: tuple[Hashable, ...]
        match node:
            case nodes.Chosen(is_first, segment, count):
                how_many = self.number(count).value
                return self.view(segment).select(how_many, self.facts, is_first=is_first)
            case nodes.Tiles(size, parent):
                tokens = self.number(size).value
                around = None if parent is None else self.view(parent)
                key = ("tiles", tokens, None if around is None else around.key, self.frame)
                return view_tiles(key, tokens, around, position, self.facts)
            case nodes.Filtered(segment, condition):
                holds = {p: self.condition(node, p) for p in tokens_of(self.facts)}
                return self.view(segment).filter(show_mask(condition), holds, self.facts)
            case nodes.Union(segments):
                return view_union([self.view(each) for each in segments], self.facts)
            case nodes.Laid(statement, name) if isinstance(statement.source, ast.Columns):
                key = ("columns", id(statement), name, self.frame)
                return view_columns(key, position, self.facts)
            case nodes.Laid(statement, name):
                placing = self.world.placing(statement)
                key = ("layout", self.world.layouts[id(statement)], name, self.frame)
                level = find_level(statement, name)
                return view_layout(key, level, placing, position, self.facts)

    def condition(self, node: nodes.Filtered, place: TokenRef) -> Formula:
        """Return whether the instance of a token fulfils the condition of a filtered segment."""
        # a condition is decided in the whole sample, and its columns have no coordinates
        return replace(self, frame=()).mask(condition_at(node, "q" if place == "q" else "k"))


def _may_be_zero(divisor: nodes.Number) -> bool:
    """Return whether a sample may divide by 0, which is undefined."""
    if isinstance(divisor, nodes.Lookup) and divisor.fact in ("len", "count"):
        return False  # the instance holds a token, and its parent holds the instance
    return not nodes.is_fixed(divisor)  # a fixed one below 1 is refused (E111)


MAX_STEPS = 60_000  # nodes evaluated for one statement; about a tenth of a second
MAX_TEXT_STEPS = 6 * MAX_STEPS  # for all statements of a text together

# Most masks show keys before the query, so a statement that fails mostly fails in `behind`.
_ALL: tuple[Relation, ...] = ("behind", "before", "same")


def never(
    mask: nodes.Mask, relations: Iterable[Relation] = _ALL, budget: Budget | None = None
) -> bool:
    """Return whether a proof shows that a mask has no pair in these relations, in any sample.

    Parameters left in it stand for every value. At most `MAX_STEPS` of the budget are spent.
    """
    return _hold_everywhere([mask], relations, budget, lambda formulas: not has_case(*formulas))


def is_total(mask: nodes.Mask, budget: Budget | None = None) -> bool:
    """Return whether every token sees itself, in every sample; then no row is empty."""
    return never(nodes.Not(mask), ("same",), budget)


def find_redundant(items: Sequence[nodes.Mask], budget: Budget, *, is_and: bool) -> int | None:
    """Return the first item that the others make redundant, if a proof finds any.

    In a conjunction the others imply such an item. In a disjunction it implies that one of the
    others holds, which is the first case again for the negated items.
    """
    candidates = set(range(len(items)))  # those that no world has refuted so far

    def are_left(formulas: list[Formula]) -> bool:
        signed = formulas if is_and else [negate(formula) for formula in formulas]
        for index in sorted(candidates):
            others = [f for i, f in enumerate(signed) if i != index]
            if has_case(all_of([*others, negate(signed[index])])):
                candidates.discard(index)
        return bool(candidates)

    return min(candidates) if _hold_everywhere(items, _ALL, budget, are_left) else None


def _hold_everywhere(
    masks: Sequence[nodes.Mask],
    relations: Iterable[Relation],
    budget: Budget | None,
    holds: Callable[[list[Formula]], bool],
) -> bool:
    """Return whether something holds for the formulas of masks in every world.

    False if a limit is met: then nothing is proved.
    """
    laid = [node.statement for node in nodes.walk(*masks) if isinstance(node, nodes.Laid)]
    layouts = [statement for statement in laid if isinstance(statement.source, ast.Layout)]
    if count_worlds(layouts) > MAX_WORLDS:
        return False
    # One statement must not use up the budget that all statements of a text share.
    shared = budget or Budget(MAX_STEPS)
    own = Budget(min(MAX_STEPS, max(0, shared.left)))
    before = own.left
    try:
        for relation in relations:
            for world in worlds(layouts, relation):
                evaluation = Evaluation(world, Facts(relation), own)
                if not holds([evaluation.mask(mask) for mask in masks]):
                    return False
    except (Undecided, OverBudget):
        return False
    finally:
        shared.left -= before - max(0, own.left)
    return True
