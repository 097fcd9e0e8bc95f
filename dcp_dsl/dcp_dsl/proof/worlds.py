"""List the cases of a proof: relative places of two tokens in the layouts; open formulas.

A token lies in one leaf of a layout, inside one repetition of each group around it. Two tokens
share some levels from the outside. At the first level that they do not share, they lie either in
two different parts, which come in the order of the layout, or in two repetitions of one part, in
either order. So `answer sees question` is causal by the layout alone.

A formula is True, False or built from two kinds of leaves. `Var` is a fact that holds or not;
`Bound` says that an unknown integer is at most a number. `has_case` tries the cases leaf by leaf;
comparisons of the same integer narrow one range, so ``x < 3 and x >= 5`` has no case.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Literal, TypeAlias

from dcp_dsl.syntax import ast
from dcp_dsl.syntax.trees import LayoutParts, walk_parts

MAX_WORLDS = 4096
MAX_SIZE = 5_000  # leaves and operators of a formula
MAX_CASES = 300  # of one formula that are tried

Relation: TypeAlias = Literal["same", "before", "behind"]  # the query is the key, before, behind it
Path: TypeAlias = tuple[int, ...]  # index of the part at each level, from the outside in


@dataclass(frozen=True, slots=True)
class Placing:
    """The leaves of a query and a key in one layout, and how many outer instances they share."""

    q: Path
    k: Path
    shared: int


@dataclass(frozen=True, slots=True)
class World:
    """The order of a query and a key, and their places in each layout.

    Equal statements of several files lay out the same columns, so they have one number in
    `layouts`.
    """

    relation: Relation
    layouts: Mapping[int, int]
    placings: tuple[Placing, ...]

    def placing(self, statement: ast.Segment) -> Placing:
        """Return where the tokens lie in a layout."""
        return self.placings[self.layouts[id(statement)]]


def worlds(statements: list[ast.Segment], relation: Relation) -> Iterator[World]:
    """Yield every way in which two tokens in this relation can lie in these layouts."""
    numbers = {statement: index for index, statement in enumerate(dict.fromkeys(statements))}
    layouts = {id(statement): numbers[statement] for statement in statements}
    # Layouts are independent: each lays the sample out in its own way.
    choices = [list(_placings(statement.source, relation)) for statement in numbers]
    for placings in product(*choices):
        yield World(relation, layouts, placings)


def count_worlds(statements: list[ast.Segment]) -> int:
    """Estimate the number of worlds from above, without making them.

    Two leaves share 0 to 3 levels where parts nest up to three deep; deeper layouts are rare.
    """
    total = 1
    for statement in dict.fromkeys(statements):
        leaves = len(_leaves(statement.source))
        total *= leaves * leaves * 4
    return total


def _parts(source: ast.SegmentSource) -> LayoutParts:
    assert isinstance(source, ast.Layout), "only layouts are placed"
    return source.parts


def _leaves(source: ast.SegmentSource) -> list[Path]:
    return [p.path for p in walk_parts(_parts(source)) if isinstance(p.part, ast.Leaf)]


def _placings(source: ast.SegmentSource, relation: Relation) -> Iterator[Placing]:
    parts = _parts(source)
    leaves = _leaves(source)
    if relation == "same":
        yield from (Placing(leaf, leaf, len(leaf)) for leaf in leaves)
        return
    for q, k in product(leaves, repeat=2):
        for shared in range(min(len(q), len(k)) + 1):
            if q[:shared] != k[:shared]:
                break
            if _fits(q, k, shared, parts, relation):
                yield Placing(q, k, shared)


def _fits(q: Path, k: Path, shared: int, parts: LayoutParts, relation: Relation) -> bool:
    """Return whether tokens that share only `shared` levels can lie in this relation."""
    if shared == len(q):
        return q == k
    if q[shared] == k[shared]:
        # Two repetitions of the same part, of which either may come first.
        return node_at(parts, q[: shared + 1]).is_repeated
    return (q[shared] < k[shared]) == (relation == "before")


def node_at(parts: LayoutParts, path: Path) -> ast.Leaf | ast.Group:
    """Return the part of a layout at a path."""
    node = parts[path[0]]
    for index in path[1:]:
        assert isinstance(node, ast.Group), "a path ends at a leaf"
        node = node.parts[index]
    return node


@dataclass(frozen=True, slots=True)
class Level:
    """The place of a segment's name in a layout.

    Attributes:
        path: path of the part; empty for the statement's own name, which stands for all outer
            parts.
        depth: levels from the outside down to the part's instances.
        parent: levels down to the instances within which they are numbered; 0 for the sample.
    """

    path: Path
    depth: int
    parent: int


def find_level(statement: ast.Segment, name: str) -> Level:
    """Return the place of a name in a layout."""
    if name == statement.name.text:
        return Level((), 1, 0)
    for part, path, _, (_, parent) in walk_parts(_parts(statement.source)):
        if part.name is not None and part.name.text == name:
            return Level(path, len(path), parent)
    raise AssertionError(f"checked: {name} is a name of the layout")


def is_along(statement: ast.Segment, placing: Placing, relation: Relation) -> bool | None:
    """Return whether the key is the query or stands before it on the query's path.

    None if a column of parents, or of forks, decides.
    """
    if relation != "behind":
        return relation == "same"
    if placing.shared == len(placing.k):
        return True  # both in one repetition of a leaf
    # The tokens part in `fork`, the key's part below the shared levels. What follows a branch goes
    # on from where the branch began, so no branch around the key inside `fork` leads to the query.
    parts = _parts(statement.source)
    if node_at(parts, placing.q[: placing.shared + 1]).is_forked:
        return None  # it may go on from any token before it in the same repetition of the group
    fork_depth = placing.shared + 1
    fork, may_lack = node_at(parts, placing.k[:fork_depth]), False
    is_other_part = placing.q[placing.shared] != placing.k[placing.shared]
    if joins_behind(parts, placing.k[:fork_depth], placing.q[placing.shared] + 1):
        return True  # a join goes on from all that is in front of it
    for depth in range(fork_depth + 1, len(placing.k) + 1):
        if joins_behind(parts, placing.k[:depth]):
            # of repeated parts only the last repetition may lack the join
            is_early = depth == fork_depth + 1 and not is_other_part
            may_lack = not is_early and node_at(parts, placing.k[: depth - 1]).is_repeated
            break
        if node_at(parts, placing.k[:depth]).is_branch:
            return False
    if not fork.is_branch:
        return None if may_lack else True
    # Nor does `fork` itself, unless a column of parents says that a repetition goes on from it.
    return False if is_other_part or fork.parents is None else None


def joins_behind(parts: LayoutParts, path: Path, until: int | None = None) -> bool:
    """Return whether a join stands behind a part, among the parts around it."""
    around = node_at(parts, path[:-1]) if path[:-1] else None
    beside = around.parts if isinstance(around, ast.Group) else parts
    return any(part.is_join for part in beside[path[-1] + 1 : until])


INFINITE = float("inf")  # an end of a range; all other ends are integers

Range: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Var:
    """An unknown fact, which holds or not; equal keys mean the same fact."""

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
    return _joined(items, All, neutral=True)


def any_of(items: Iterable[Formula]) -> Formula:
    """Return the disjunction."""
    return _joined(items, AnyOf, neutral=False)


def _joined(items: Iterable[Formula], kind: type[All | AnyOf], *, neutral: bool) -> Formula:
    kept = []
    for item in items:
        if item is (not neutral):
            return item
        if item is not neutral:
            kept.append(item)
    size = _size(kept)  # first, since comparing items takes as long as they are large
    kept = list(dict.fromkeys(kept))
    return neutral if not kept else kept[0] if len(kept) == 1 else kind(tuple(kept), size)


def negate(item: Formula) -> Formula:
    """Return the negation."""
    if isinstance(item, bool):
        return not item
    return item.item if isinstance(item, Negation) else Negation(item, _size([item]))


def has_case(formula: Formula) -> bool:
    """Return whether any case makes a formula true, taking its leaves as independent.

    A depth-first search: it decides the first leaf both ways, simplifies, and goes on. Dependent
    leaves only add cases that cannot be, so False is certain and True is not.

    Raises:
        Undecided: if there are more than `MAX_CASES` cases to try.
    """
    # What is left of the formula, the ranges of its integers, and the facts chosen so far.
    pending: list[tuple[Formula, dict[Hashable, Range], dict[Hashable, bool]]] = [(formula, {}, {})]
    tried = 0
    while pending:
        rest, known, chosen = pending.pop()
        rest = _simplify(rest, known, chosen)
        if rest is True:
            return True
        if rest is False:
            continue
        tried += 1
        if tried > MAX_CASES:
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


def add_ranges(ranges: Iterable[Range]) -> Range:
    """Return the range of a sum.

    >>> add_ranges([(1, 2), (-1, INFINITE)])
    (0, inf)
    """
    # The zeros are the sum of no ranges.
    lows, highs = zip((0, 0), *ranges, strict=True)
    return sum(lows), sum(highs)


def scale_range(factor: int, given: Range) -> Range:
    """Return the range of a multiple.

    >>> scale_range(-2, (1, INFINITE))
    (-inf, -2)
    """
    # Python makes 0 times infinity no number; here it is 0.
    ends = [factor * end for end in given] if factor else [0, 0]
    return min(ends), max(ends)
