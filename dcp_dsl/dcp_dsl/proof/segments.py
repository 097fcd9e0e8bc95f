"""Describe segments in one world of a proof: membership, shared instances, numbers."""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from dcp_dsl.proof.formula import INFINITE, Formula, Range, Var, all_of
from dcp_dsl.proof.numbers import Facts, Sum, TokenRef, divide_range
from dcp_dsl.proof.worlds import Level, Placing

_COUNT: Range = (0, INFINITE)


@dataclass(frozen=True, slots=True)
class View:
    """A segment as two tokens see it.

    Attributes:
        key: names it; equal keys are the same segment in the same coordinates.
        inside: for "q", "k" and "t" whether that token lies in it.
        same: whether both lie in one instance.
        numbers: for "q", "k" and "t" the number of the instance.
        parent: whether both are numbered in the same parent; None if nothing is known.
        position: family of the positions that its borders are compared with.
    """

    key: Hashable
    inside: dict[TokenRef, Formula]
    same: Formula
    numbers: dict[TokenRef, Sum]
    parent: bool | None
    position: Hashable
    borders: dict[tuple[str, TokenRef], Sum] = field(default_factory=dict)

    def border(self, which: str, place: TokenRef, facts: Facts) -> Sum:
        """Return the `.start` or `.end` of a token's instance."""
        known = self.borders.get((which, place))
        if known is None:
            at: TokenRef = shared_place(facts) if self.same is True else place
            low: Range = (0 if which == "start" else 1, INFINITE)
            family = (which, self.position, self.key)
            known = facts.add(family, at, low, step=0)
            self.borders[which, place] = known
        return known

    def count(self, place: TokenRef, facts: Facts) -> Sum:
        """Count the instances in the parent of a token's instance."""
        at = shared_place(facts) if self.parent else place
        return facts.add(("total", self.key), at, _COUNT)

    def select(self, count: Sum, facts: Facts, *, is_first: bool) -> "View":
        """Return the first or the last instances of every parent, numbered within them."""
        key = ("first" if is_first else "last", self.key, count)
        inside: dict[TokenRef, Formula] = {}
        numbers: dict[TokenRef, Sum] = {}
        for place, is_inside in self.inside.items():
            numbers[place] = number = self.numbers[place]
            if is_first:
                chosen = facts.compare(number, "<", count)
            else:
                chosen = facts.compare(number.plus(count), ">=", self.count(place, facts))
                at = shared_place(facts) if self.parent else place
                numbers[place] = number.plus(facts.add(("left out", key), at, _COUNT), -1)
            inside[place] = all_of([is_inside, chosen])
        same = all_of([self.same, *(inside[place] for place in inside)])
        return replace(self, key=key, inside=inside, same=same, numbers=numbers, borders={})


def shared_place(facts: Facts) -> TokenRef:
    """Return the place of what both tokens have in common."""
    return "t" if facts.relation == "same" else ""


def tokens_of(facts: Facts) -> tuple[TokenRef, ...]:
    """Return the tokens of a world: one if the query is the key."""
    return ("t",) if facts.relation == "same" else ("q", "k")


def view_layout(
    key: Hashable, level: Level, placing: Placing, position: Hashable, facts: Facts
) -> View:
    """View a name of a layout; everything about it is decided by where the tokens lie."""
    depth = len(level.path)
    paths = {"q": placing.q, "k": placing.k, "t": placing.q}
    inside: dict[TokenRef, Formula] = {p: paths[p][:depth] == level.path for p in tokens_of(facts)}
    is_same = all(flag is True for flag in inside.values()) and placing.shared >= level.depth
    is_numbered_together = placing.shared >= level.parent
    numbers: dict[TokenRef, Sum] = {}
    for place in tokens_of(facts):
        at: TokenRef = shared_place(facts) if is_same else place
        step = 1 if is_numbered_together and not is_same else None
        numbers[place] = facts.add(("number", key), at, _COUNT, step=step)
    return View(key, inside, is_same, numbers, is_numbered_together, position)


def view_tiles(
    key: Hashable, size: Sum, parent: View | None, position: Hashable, facts: Facts
) -> View:
    """View tiles of the sample, or of a parent's instances."""
    numbers: dict[TokenRef, Sum] = {}
    inside: dict[TokenRef, Formula] = {}
    for place in tokens_of(facts):
        begin = Sum((), 0) if parent is None else parent.border("start", place, facts)
        token = facts.add(position, place, _COUNT, step=1)
        inside[place] = True if parent is None else parent.inside[place]
        numbers[place] = divide(token.plus(begin, -1), size, facts)
    same: Formula = True
    if len(numbers) == 2:
        same = facts.compare(numbers["q"], "==", numbers["k"])
    together = parent is None or parent.same is True
    outer = True if parent is None else parent.same
    return View(key, inside, all_of([outer, same]), numbers, together or None, position)


def view_columns(key: Hashable, position: Hashable, facts: Facts) -> View:
    """View a segment that a column spells out: nothing is known but what `same` means."""
    tokens = tokens_of(facts)
    inside: dict[TokenRef, Formula] = {place: Var(("in", key, place)) for place in tokens}
    numbers = {place: facts.add(("number", key), place) for place in tokens}
    both = all_of(inside.values())
    same = both if len(tokens) == 1 else all_of([both, Var(("same", key))])
    return View(key, inside, same, numbers, None, position)


def divide(value: Sum, by: Sum, facts: Facts) -> Sum:
    """Return ``value // by``, rising if `value` is and `by` is the same for both tokens."""
    if value.is_number and by.is_number and by.constant > 0:
        return Sum((), value.constant // by.constant)
    low, high = facts.range_of(by)
    values: Range = (-INFINITE, INFINITE)
    is_positive = low >= 1
    if is_positive:
        values = divide_range(facts.range_of(value), (low, high))
    places = value.places() | by.places()
    family = ("divided", value.family(), by.family())
    if len(places) > 1:
        return facts.add((*family, value, by), "", values)
    place: TokenRef = next(iter(places), "")
    is_rising = is_positive and not by.places() and facts.is_rising(value)
    return facts.add(family, place, values, step=0 if is_rising else None)
