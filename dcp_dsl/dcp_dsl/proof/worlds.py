"""List every way in which a query and a key can lie in the layouts of a mask.

A token lies in one leaf of a layout, inside one repetition of each group around it. Where the two
tokens part company says which one comes first: at two different parts, the parts' order; at two
repetitions of the same part, either. So `answer sees question` is causal by the layout alone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Literal, TypeAlias

from dcp_dsl.syntax import ast
from dcp_dsl.syntax.walk import LayoutParts, walk_parts

MAX_WORLDS = 4096

Relation: TypeAlias = Literal["same", "before", "behind"]  # the query is the key, before, behind it
Path: TypeAlias = tuple[int, ...]  # index of the part at each level, from the outside in


@dataclass(frozen=True, slots=True)
class Placing:
    """The places of a query and a key in one layout.

    Attributes:
        q, k: paths of their leaves.
        shared: levels, from the outside, on which both lie in the same instance.
    """

    q: Path
    k: Path
    shared: int


@dataclass(frozen=True, slots=True)
class World:
    """A way in which a query and a key lie to each other, and in each layout.

    Attributes:
        relation: which one comes first.
        layouts: number of each layout by the id of its statement; equal statements of several
            files lay the same columns out, so they are one layout.
        placings: by number of the layout.
    """

    relation: Relation
    layouts: Mapping[int, int]
    placings: tuple[Placing, ...]

    def placing(self, statement: ast.Segment) -> Placing:
        """Return where the tokens lie in a layout."""
        return self.placings[self.layouts[id(statement)]]


def worlds(statements: list[ast.Segment], relation: Relation) -> Iterator[World]:
    """Yield every way two tokens in this relation can lie in these layouts."""
    numbers = {statement: index for index, statement in enumerate(dict.fromkeys(statements))}
    layouts = {id(statement): numbers[statement] for statement in statements}
    choices = [list(_placings(statement.source, relation)) for statement in numbers]
    for placings in product(*choices):
        yield World(relation, layouts, placings)


def count_worlds(statements: list[ast.Segment]) -> int:
    """Count the worlds there are at most, without making them."""
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


def _fits(
    q: Path,
    k: Path,
    shared: int,
    parts: LayoutParts,
    relation: Relation,
) -> bool:
    """Return whether tokens that share only `shared` levels can lie in this relation."""
    if shared == len(q):
        return q == k
    if q[shared] == k[shared]:
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
        path: of the part; empty for the statement's own name, which stands for all outer parts.
        depth: levels from the outside down to its instances.
        parent: levels down to the instances it is numbered in, 0 for the sample.
    """

    path: Path
    depth: int
    parent: int


def find_level(statement: ast.Segment, name: str) -> Level:
    """Return where a name of a layout stands."""
    if name == statement.name.text:
        return Level((), 1, 0)
    for part, path, _, (_, parent) in walk_parts(_parts(statement.source)):
        if part.name is not None and part.name.text == name:
            return Level(path, len(path), parent)
    raise AssertionError(f"checked: {name} is a name of the layout")


def is_along(statement: ast.Segment, placing: Placing, relation: Relation) -> bool | None:
    """Return whether the key is the query or stands before it on its path.

    Returns:
        None if a column of parents decides it.
    """
    if relation != "behind":
        return relation == "same"
    if placing.shared == len(placing.k):
        return True  # both in one repetition of a leaf
    parts = _parts(statement.source)
    below = range(placing.shared + 2, len(placing.k) + 1)
    if any(node_at(parts, placing.k[:depth]).is_branch for depth in below):
        return False  # a branch inside of where they part company ends there
    fork = node_at(parts, placing.k[: placing.shared + 1])
    if not fork.is_branch:
        return True
    is_other_part = placing.q[placing.shared] != placing.k[placing.shared]
    return False if is_other_part or fork.parents is None else None
