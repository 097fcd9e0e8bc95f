"""The tree that a layout makes of a sample: which stretch of tokens goes on from which.

Without `branch` all tokens are one path from the first to the last. A branch begins where the parts
in front of it end, and what follows the branches begins there too.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dcp_dsl.arrays import Bools, Ints


@dataclass(frozen=True, eq=False)
class Tree:
    """Stretches of tokens that are each part of a path, in the order of their tokens.

    Attributes:
        start, end: int64 ``[P]``, tokens; the stretches fill the sample and none is empty.
        depth: int64 ``[P]``, tokens of the path in front of each.
        parent: int64 ``[P]``, the stretch that each goes on from, an earlier one; -1 for a root.
    """

    start: Ints
    end: Ints
    depth: Ints
    parent: Ints

    @cached_property
    def sizes(self) -> Ints:
        """Tokens of each stretch and of all that goes on from it, int64 ``[P]``."""
        return self._added_up(self.end - self.start)

    @cached_property
    def paths(self) -> Ints:
        """Paths from a root to a leaf through each stretch, int64 ``[P]``."""
        return self._added_up(self.is_leaf.astype(np.int64))

    @cached_property
    def is_leaf(self) -> Bools:
        """True for stretches without a successor, ``[P]``."""
        is_leaf = np.ones(len(self.start), np.bool_)
        is_leaf[self.parent[self.parent >= 0]] = False
        return is_leaf

    def _added_up(self, values: Ints) -> Ints:
        """Add the values of each stretch and of all that goes on from it; O(P)."""
        sums, parents = values.tolist(), self.parent.tolist()
        for index in range(len(sums) - 1, -1, -1):
            if parents[index] >= 0:
                sums[parents[index]] += sums[index]
        return np.array(sums, np.int64)

    @cached_property
    def ranks(self) -> Ints:
        """Place of each stretch's first token if every subtree is written in one go, int64 ``[P]``.

        A token is on the path to another if that one's rank is at least its own and below the end
        of its subtree. Layouts without a column of parents are written so already. O(P).
        """
        free, ranks = [0] * (len(self.start) + 1), []
        lengths, sizes = (self.end - self.start).tolist(), self.sizes.tolist()
        for index, parent in enumerate(self.parent.tolist()):
            rank = free[parent]  # of a root the last entry
            free[parent] += sizes[index]
            free[index] = rank + lengths[index]
            ranks.append(rank)
        return np.array(ranks, np.int64)

    def per_token(self, values: Ints, slope: int) -> Ints:
        """Write one number per stretch on its tokens, rising by `slope` a token; int64 ``[n]``."""
        lengths = self.end - self.start
        risen = np.arange(int(lengths.sum())) - np.repeat(self.start, lengths)
        return np.repeat(values, lengths) + slope * risen

    def depth_at(self, tokens: Ints) -> Ints:
        """Return how many tokens stand in front of some tokens on their paths."""
        stretch = np.searchsorted(self.end, tokens, side="right")
        return self.depth[stretch] + tokens - self.start[stretch]


@dataclass(frozen=True, slots=True)
class Trunk:
    """A place on a path: the stretch before it (-1: none), and the tokens of the path up to it."""

    stretch: int = -1
    depth: int = 0


@dataclass(slots=True)
class TreeBuilder:
    """Collects the stretches of a sample from left to right.

    Attributes:
        trunk: where the next part of the layout goes on.
        size: stretches so far.
    """

    trunk: Trunk = Trunk()
    size: int = 0
    columns: list[tuple[Ints, Ints, Ints, Ints]] = field(default_factory=list)

    def grow(self, start: int, end: int) -> None:
        """Let the trunk go on over some tokens."""
        if end > start:
            place = self.trunk
            self._add(*(np.array([each]) for each in (start, end, place.depth, place.stretch)))
            self.trunk = Trunk(self.size - 1, place.depth + end - start)

    def fork(self, bounds: Ints) -> None:
        """Let stretches go on from the trunk side by side; ``[R + 1]`` borders between them."""
        start, end = bounds[:-1], bounds[1:]
        has_tokens = end > start
        start, end = start[has_tokens], end[has_tokens]
        base = np.full(len(start), self.trunk.depth), np.full(len(start), self.trunk.stretch)
        self._add(start, end, *base)

    def _add(self, start: Ints, end: Ints, depth: Ints, parent: Ints) -> None:
        self.columns.append((start, end, depth, parent))
        self.size += len(start)

    def finish(self) -> Tree:
        """Return the tree."""
        none = np.empty(0, np.int64)
        columns = zip(*(self.columns or [(none,) * 4]), strict=True)
        return Tree(*(np.concatenate(group) for group in columns))


@dataclass(slots=True)
class Places:
    """The places of a tree at which the repetitions of one part go on.

    Attributes:
        tree: what grows there.
        is_branch: whether they do so side by side; else one behind the other.
        parents: of each repetition the one that it goes on from, -1 for where the part stands.
        base: where the part stands.
        ends: where each repetition so far ends.
    """

    tree: TreeBuilder
    is_branch: bool
    parents: Ints
    base: Trunk
    ends: list[Trunk] = field(default_factory=list)

    def go_to(self, index: int) -> None:
        """Let the tree grow where a repetition goes on."""
        if self.is_branch:
            parent = self.parents[index]
            self.tree.trunk = self.base if parent < 0 else self.ends[parent]

    def leave(self) -> None:
        """Remember where a repetition ends; what follows branches goes on where they stand."""
        if self.is_branch:
            self.ends.append(self.tree.trunk)
            self.tree.trunk = self.base
