"""Formulas over things that are not known, and whether any case makes one true.

A formula is True, False or built from two kinds of leaves: `Var`, something that holds or not, and
`Bound`, that an unknown integer is at most a number. `find_case` tries the cases one leaf after the
other; comparisons of the same integer narrow one range, so ``x < 3 and x >= 5`` has no case.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

INFINITE = float("inf")  # an end of a range; all other ends are integers
MAX_SIZE = 5_000  # leaves and operators of a formula

Range: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Var:
    """Something unknown that holds or not; equal keys mean the same thing."""

    key: Hashable


@dataclass(frozen=True, slots=True)
class Bound:
    """An unknown integer, named by its key, is at most `most`."""

    key: Hashable
    most: int


@dataclass(frozen=True, slots=True)
class All:
    """All of the items hold; at least two."""

    items: tuple["Formula", ...]
    size: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one of the items holds; at least two."""

    items: tuple["Formula", ...]
    size: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Negation:
    """The item does not hold."""

    item: "Formula"
    size: int = field(compare=False)


Formula: TypeAlias = bool | Var | Bound | All | AnyOf | Negation


class Undecided(Exception):
    """Too many cases to try, or a formula too large to try them on."""


def _size(items: Iterable[Formula]) -> int:
    total = 1
    for item in items:
        total += item.size if isinstance(item, All | AnyOf | Negation) else 1
    if total > MAX_SIZE:
        raise Undecided
    return total


def all_of(items: Iterable[Formula]) -> Formula:
    """Return the conjunction."""
    kept = []
    for item in items:
        if item is False:
            return False
        if item is not True:
            kept.append(item)
    size = _size(kept)  # before comparing items, which takes as long as they are large
    kept = list(dict.fromkeys(kept))
    return True if not kept else kept[0] if len(kept) == 1 else All(tuple(kept), size)


def any_of(items: Iterable[Formula]) -> Formula:
    """Return the disjunction."""
    kept = []
    for item in items:
        if item is True:
            return True
        if item is not False:
            kept.append(item)
    size = _size(kept)
    kept = list(dict.fromkeys(kept))
    return False if not kept else kept[0] if len(kept) == 1 else AnyOf(tuple(kept), size)


def negate(item: Formula) -> Formula:
    """Return the negation."""
    if isinstance(item, bool):
        return not item
    return item.item if isinstance(item, Negation) else Negation(item, _size([item]))


def has_case(formula: Formula, ranges: Mapping[Hashable, Range], limit: int = 300) -> bool:
    """Return whether any case makes a formula true, as far as leaves are independent of each other.

    Raises:
        Undecided: if there are more than `limit` cases to try.
    """
    pending: list[tuple[Formula, dict[Hashable, Range], dict[Hashable, bool]]] = [
        (formula, dict(ranges), {})
    ]
    tried = 0
    while pending:
        rest, known, chosen = pending.pop()
        rest = _simplify(rest, known, chosen)
        if rest is True:
            return True
        if rest is False:
            continue
        tried += 1
        if tried > limit:
            raise Undecided
        leaf = _first_leaf(rest)
        if isinstance(leaf, Var):
            pending += [(rest, known, {**chosen, leaf.key: flag}) for flag in (False, True)]
        else:
            low, high = known.get(leaf.key, (-INFINITE, INFINITE))
            pending.append((rest, {**known, leaf.key: (low, leaf.most)}, chosen))
            pending.append((rest, {**known, leaf.key: (leaf.most + 1, high)}, chosen))
    return False


def _simplify(
    formula: Formula, known: Mapping[Hashable, Range], chosen: Mapping[Hashable, bool]
) -> Formula:
    match formula:
        case Var(key):
            return chosen.get(key, formula)
        case Bound(key, most):
            low, high = known.get(key, (-INFINITE, INFINITE))
            return True if high <= most else False if low > most else formula
        case All(items):
            return all_of(_simplify(item, known, chosen) for item in items)
        case AnyOf(items):
            return any_of(_simplify(item, known, chosen) for item in items)
        case Negation(item):
            return negate(_simplify(item, known, chosen))
    return formula


def _first_leaf(formula: Formula) -> Var | Bound:
    while not isinstance(formula, Var | Bound):
        match formula:
            case All(items) | AnyOf(items):
                formula = items[0]
            case Negation(item):
                formula = item
            case _:
                raise AssertionError("a simplified formula has leaves")
    return formula


# ---- ranges --------------------------------------------------------------------------------------


def add_ranges(ranges: Iterable[Range]) -> Range:
    """Return the range of a sum.

    >>> add_ranges([(1, 2), (-1, INFINITE)])
    (0, inf)
    """
    lows, highs = zip((0, 0), *ranges, strict=True)
    return sum(lows), sum(highs)


def scale_range(factor: int, given: Range) -> Range:
    """Return the range of a multiple.

    >>> scale_range(-2, (1, INFINITE))
    (-inf, -2)
    """
    ends = [factor * end for end in given] if factor else [0, 0]
    return min(ends), max(ends)
