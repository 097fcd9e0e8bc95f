"""Do the arithmetic of proofs: numbers as sums of unknowns with known ranges, and segments.

An unknown is a function of a token, its *family*, at one token, its *place*. So `q.doc` and `k.doc`
are one family at two places, and ``q.doc - k.doc`` may have a narrow range although neither has.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import floor, gcd
from typing import Literal, TypeAlias, cast

from dcp_dsl.proof.worlds import (
    INFINITE,
    Bound,
    Formula,
    Level,
    Placing,
    Range,
    Relation,
    Var,
    add_ranges,
    all_of,
    any_of,
    negate,
    scale_range,
)

TokenRef: TypeAlias = Literal["q", "k", "t", ""]  # t: query and key at once; "": of no token
Family: TypeAlias = tuple[Hashable, ...]  # a word, then all that the function depends on

_ANY: Range = (-INFINITE, INFINITE)
_TOKENS: tuple[TokenRef, ...] = ("q", "k")


@dataclass(frozen=True, slots=True)
class Unknown:
    """An integer that is not known: a function of a token, equal for equal families.

    `rank` is the place of the family in the order in which a proof met them.
    """

    family: Family
    place: TokenRef
    rank: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Sum:
    """``sum of factor * unknown, plus constant``; terms are ordered, so that equal sums are equal.

    No factor is 0.
    """

    terms: tuple[tuple[Unknown, int], ...]
    constant: int

    @classmethod
    def of(cls, terms: Mapping[Unknown, int], constant: int) -> "Sum":
        """Bring terms into order."""
        kept = [(unknown, factor) for unknown, factor in terms.items() if factor]
        # Not by hashes: these differ from run to run, and the strength of proofs with them.
        kept.sort(key=lambda term: (term[0].rank, term[0].place))
        return cls(tuple(kept), constant)

    def plus(self, other: "Sum", factor: int = 1) -> "Sum":
        """Return ``self + factor * other``."""
        terms = dict(self.terms)
        for unknown, own in other.terms:
            terms[unknown] = terms.get(unknown, 0) + factor * own
        return Sum.of(terms, self.constant + factor * other.constant)

    @property
    def is_number(self) -> bool:
        """True if nothing in it is unknown."""
        return not self.terms

    def family(self) -> Hashable:
        """Return the sum without its tokens: equal for equal functions of a token."""
        return tuple((u.family, factor) for u, factor in self.terms), self.constant

    def places(self) -> set[TokenRef]:
        """Return the tokens it depends on."""
        return {u.place for u, _ in self.terms if u.place}


@dataclass(slots=True)
class Facts:
    """Known facts about the unknowns of one world, such as the range of each family.

    `differences` is the range of a family's value at the query minus that at the key; `rising`
    families never fall from a token to a later one.
    """

    relation: Relation
    values: dict[Family, Range] = field(default_factory=dict)
    ranks: dict[Family, int] = field(default_factory=dict)
    differences: dict[Family, Range] = field(default_factory=dict)
    rising: set[Family] = field(default_factory=set)

    def add(
        self, family: Family, place: TokenRef, values: Range = _ANY, *, step: int | None = None
    ) -> Sum:
        """Return an unknown as a sum, and record its range; adding it again changes nothing.

        `step` is how much it rises at least from a token to a later one; None if it may fall.
        """
        self.values[family] = values
        if step is not None:
            self.rising.add(family)
            is_before = self.relation == "before"
            self.differences[family] = (-INFINITE, -step) if is_before else (step, INFINITE)
        rank = self.ranks.setdefault(family, len(self.ranks))
        return Sum.of({Unknown(family, place, rank): 1}, 0)

    def opaque(
        self, what: str, of: Sequence[Sum], values: Range, *, is_rising: bool = False
    ) -> Sum:
        """Return an unknown that is some function of sums, such as their product."""
        places = set().union(*(each.places() for each in of))
        family: Family = (what, *(each.family() for each in of))
        # A function of both tokens is a number of the world; its arguments keep their places.
        if len(places) > 1:
            family, places = (*family, *of), set()
        return self.add(family, next(iter(places), ""), values, step=0 if is_rising else None)

    def is_rising(self, value: Sum) -> bool:
        """Return whether a sum depends on one token and never falls from it to a later one."""
        if len(value.places()) != 1:
            return False
        return all(not u.place or (f > 0 and u.family in self.rising) for u, f in value.terms)

    def range_of(self, value: Sum) -> Range:
        """Return the range of a sum: narrow differences are taken out of it before the rest."""
        terms = dict(value.terms)
        parts: list[Range] = [(value.constant, value.constant)]
        for unknown, _ in value.terms:
            partner = Unknown(unknown.family, "k")
            if unknown.place != "q" or unknown.family not in self.differences:
                continue
            if terms.get(partner, 0) * terms[unknown] < 0:
                factor = _take_out(terms, unknown, partner)
                parts.append(scale_range(factor, self.differences[unknown.family]))
        found = _find_border(terms)
        if found is not None:
            position, border, difference = found
            parts.append(scale_range(_take_out(terms, position, border), difference))
        parts += [scale_range(factor, self.values[u.family]) for u, factor in terms.items()]
        return add_ranges(parts)

    def at_most_zero(self, value: Sum) -> Formula:
        """Return the formula of ``value <= 0``."""
        low, high = self.range_of(value)
        if high <= 0:
            return True
        if low > 0:
            return False
        # Here the sum has terms: the range of a number is one point. All multiples of a
        # combination share one key, so that questions about them meet:
        # d * key + c <= 0 is key <= floor(-c / d), and -d * key + c <= 0 is key >= ceil(c / d).
        divisor = gcd(*(factor for _, factor in value.terms))
        sign = 1 if value.terms[0][1] > 0 else -1
        key = tuple((unknown, sign * factor // divisor) for unknown, factor in value.terms)
        if sign > 0:
            return Bound(key, -value.constant // divisor)
        return negate(Bound(key, -(-value.constant // divisor) - 1))

    def compare(self, a: Sum, op: str, b: Sum) -> Formula:
        """Return the formula of a comparison."""
        difference = a.plus(b, -1)
        match op:
            case "<=":
                return self.at_most_zero(difference)
            case "<":
                return self.at_most_zero(difference.plus(Sum((), 1)))
            case ">=":
                return self.compare(b, "<=", a)
            case ">":
                return self.compare(b, "<", a)
            case "==":
                return all_of([self.compare(a, "<=", b), self.compare(b, "<=", a)])
        return negate(self.compare(a, "==", b))


def _take_out(terms: dict[Unknown, int], a: Unknown, b: Unknown) -> int:
    """Take ``factor * (a - b)`` out of terms with opposite signs, as often as both are there."""
    factor = min(abs(terms[a]), abs(terms[b])) * (1 if terms[a] > 0 else -1)
    terms[a] -= factor
    terms[b] += factor
    return factor


def _find_border(terms: Mapping[Unknown, int]) -> tuple[Unknown, Unknown, Range] | None:
    """Return a position, a border of its instance with the opposite sign, and their difference.

    A token lies at or behind the start of its own instance and before its end.
    """
    for border, factor in terms.items():
        which = border.family[0]
        if which not in ("start", "end"):
            continue
        # A border of the place "" is that of both tokens.
        for place in (border.place,) if border.place else _TOKENS:
            position = Unknown(cast("Family", border.family[1]), place)
            if terms.get(position, 0) * factor < 0:
                return position, border, (0, INFINITE) if which == "start" else (-INFINITE, -1)
    return None


def divide_range(given: Range, by: Range) -> Range:
    """Return the range of ``given // by`` for divisors of at least 1.

    >>> divide_range((-3, 8), (2, INFINITE))
    (-2, 4)
    """
    ends = [_divided(end, divisor) for end in given for divisor in by]
    return min(ends), max(ends)


def _divided(end: float, divisor: float) -> float:
    if abs(end) == INFINITE:
        return end
    # Rounding down keeps a negative number at -1, however large the divisor is.
    return (0 if end >= 0 else -1) if divisor == INFINITE else floor(end / divisor)


_COUNT: Range = (0, INFINITE)


@dataclass(frozen=True, slots=True)
class View:
    """A segment as two tokens see it.

    Attributes:
        key: names it; equal keys are the same segment in the same coordinates.
        inside: whether a token lies in it; by the tokens of `tokens_of`, as `numbers`.
        same: whether both tokens lie in one instance.
        numbers: the number of the token's instance.
        parent: whether both are known to be numbered in the same parent.
        position: family of the positions that its borders are compared with.
    """

    key: Hashable
    inside: dict[TokenRef, Formula]
    same: Formula
    numbers: dict[TokenRef, Sum]
    parent: bool
    position: Family

    def border(self, which: Literal["start", "end"], place: TokenRef, facts: Facts) -> Sum:
        """Return the `.start` or `.end` of a token's instance."""
        at: TokenRef = shared_place(facts) if self.same is True else place
        # An end lies behind the first token of its instance, so it is 1 at least.
        values: Range = (0 if which == "start" else 1, INFINITE)
        return facts.add((which, self.position, self.key), at, values, step=0)

    def count(self, place: TokenRef, facts: Facts) -> Sum:
        """Return the number of instances in the parent of a token's instance."""
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
                # The last instances are numbered from 0 again, less those before them.
                at = shared_place(facts) if self.parent else place
                numbers[place] = number.plus(facts.add(("left out", key), at, _COUNT), -1)
            inside[place] = all_of([is_inside, chosen])
        same = all_of([self.same, *inside.values()])
        return replace(self, key=key, inside=inside, same=same, numbers=numbers)

    def filter(self, what: str, holds: Mapping[TokenRef, Formula], facts: Facts) -> "View":
        """Return the instances that fulfil a condition, numbered anew within their parents."""
        inside = {place: all_of([own, holds[place]]) for place, own in self.inside.items()}
        key = ("filtered", self.key, what)
        # Two of one parent have different numbers, which rise with their tokens.
        step = 1 if self.parent and self.same is False else None
        at = {place: shared_place(facts) if self.same is True else place for place in inside}
        numbers = {
            place: facts.add(("number", key), at[place], _COUNT, step=step) for place in inside
        }
        same = all_of([self.same, *holds.values()])
        return replace(self, key=key, inside=inside, same=same, numbers=numbers)


def shared_place(facts: Facts) -> TokenRef:
    """Return the place of a fact that both tokens share."""
    return "t" if facts.relation == "same" else ""


def tokens_of(facts: Facts) -> tuple[TokenRef, ...]:
    """Return the tokens of a world: one if the query is the key."""
    return ("t",) if facts.relation == "same" else _TOKENS


def view_layout(
    key: Hashable, level: Level, placing: Placing, position: Family, facts: Facts
) -> View:
    """View a name of a layout: the placing decides who lies inside and who shares an instance."""
    depth = len(level.path)
    paths = {"q": placing.q, "k": placing.k, "t": placing.q}
    inside: dict[TokenRef, Formula] = {p: paths[p][:depth] == level.path for p in tokens_of(facts)}
    is_same = all(flag is True for flag in inside.values()) and placing.shared >= level.depth
    is_numbered_together = placing.shared >= level.parent
    numbers: dict[TokenRef, Sum] = {}
    for place in tokens_of(facts):
        at: TokenRef = shared_place(facts) if is_same else place
        # Two instances of one parent have different numbers, which rise with their tokens.
        step = 1 if is_numbered_together and not is_same else None
        numbers[place] = facts.add(("number", key), at, _COUNT, step=step)
    return View(key, inside, is_same, numbers, is_numbered_together, position)


def view_tiles(
    key: Hashable, size: Sum, parent: View | None, position: Family, facts: Facts
) -> View:
    """View tiles of the frame, or of a parent's instances: the tile's number is a quotient."""
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
    return View(key, inside, all_of([outer, same]), numbers, together, position)


def view_columns(key: Hashable, position: Family, facts: Facts) -> View:
    """View a segment that a column lists; only `same` implies `inside` is known."""
    tokens = tokens_of(facts)
    inside: dict[TokenRef, Formula] = {place: Var(("in", key, place)) for place in tokens}
    numbers = {place: facts.add(("number", key), place) for place in tokens}
    both = all_of(inside.values())
    same = both if len(tokens) == 1 else all_of([both, Var(("same", key))])
    return View(key, inside, same, numbers, False, position)


def view_union(views: Sequence[View], facts: Facts) -> View:
    """View the instances of several segments, which share no token."""
    tokens = tokens_of(facts)
    key = ("union", *(view.key for view in views))
    inside = {place: any_of(view.inside[place] for view in views) for place in tokens}
    numbers = {place: facts.add(("number", key), place, _COUNT) for place in tokens}
    same = any_of(view.same for view in views)
    return View(key, inside, same, numbers, True, views[0].position)


def divide(value: Sum, by: Sum, facts: Facts) -> Sum:
    """Return ``value // by``; the quotient rises if `value` does and no token changes `by`."""
    if value.is_number and by.is_number and by.constant > 0:
        return Sum((), value.constant // by.constant)
    low, high = facts.range_of(by)
    values = _ANY  # for divisors that may be negative
    is_positive = low >= 1
    if is_positive:
        values = divide_range(facts.range_of(value), (low, high))
    is_rising = is_positive and not by.places() and facts.is_rising(value)
    return facts.opaque("divided", (value, by), values, is_rising=is_rising)
