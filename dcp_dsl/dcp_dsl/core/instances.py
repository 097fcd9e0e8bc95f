"""Instances of segments, as arrays of first and last tokens; the tree of a layout's branches.

An instance is one question, one answer, one document. Its number counts within the nearest named
group around its segment, else within the sample. An instance without tokens still has a number and
still counts.

A layout without `branch` is one path of tokens. A branch goes on from the place where the parts in
front of it end; the part behind all branches goes on from there, too.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Bools, Ints, expand
from dcp_dsl.errors import DatasetError
from dcp_dsl.symbolic.piecewise import Piecewise, limit_pieces
from dcp_dsl.syntax import ast

MAX_INSTANCES = 2**22


@dataclass(frozen=True, slots=True, eq=False)
class Nesting:
    """Places of instances in their layout, which tell apart empty instances at the same token.

    A walk through the layout counts steps; each part opens at one step and closes at a later one.

    Attributes:
        layout: the statement.
        opens, closes: int64 ``[I]``, steps; a part lies in another if its steps do.
        end: int64 ``[I]``, where the tokens of the part end; of tiles, those of the part around.
    """

    layout: ast.Segment
    opens: Ints
    closes: Ints
    end: Ints

    def take(self, chosen: NDArray[np.bool_] | Ints) -> "Nesting":
        """Return the places of some of the instances."""
        return Nesting(self.layout, self.opens[chosen], self.closes[chosen], self.end[chosen])


@dataclass(frozen=True, eq=False)
class Instances:
    """The instances of one segment, in the order of their tokens; they never overlap.

    Attributes:
        start, end: int64 ``[I]``, tokens.
        number: int64 ``[I]``, from 0 within the parent.
        total: int64 ``[I]``, how many the parent has.
        parent: int64 ``[I]``, equal for instances of the same parent.
        num_ids: how many ids a column may have, where numbers are ids: several stretches may share
            one, and they keep their numbers inside `per`; None where they are not.
        cell: int64 ``[I]``, which cell of the frame each lies in; None in the whole sample.
        nesting: where they stand in their layout; None for instances of no layout.
    """

    start: Ints
    end: Ints
    number: Ints
    total: Ints
    parent: Ints
    num_ids: int | None = None
    cell: Ints | None = None
    nesting: Nesting | None = None

    @classmethod
    def of(cls, start: Ints, end: Ints, nesting: Nesting | None = None) -> "Instances":
        """Number instances that have the same parent."""
        size = len(start)
        flat = np.zeros(size, np.int64)
        return cls(start, end, np.arange(size), np.full(size, size), flat, nesting=nesting)

    def __len__(self) -> int:
        return len(self.start)

    @cached_property
    def is_split(self) -> bool:
        """True if one id names several stretches."""
        return self.num_ids is not None and len(np.unique(self.number)) < len(self.number)

    def select(self, chosen: NDArray[np.bool_] | Ints) -> "Instances":
        """Return some of the instances with their numbers unchanged."""
        return Instances(
            self.start[chosen], self.end[chosen], self.number[chosen], self.total[chosen],
            self.parent[chosen], self.num_ids, None if self.cell is None else self.cell[chosen],
            None if self.nesting is None else self.nesting.take(chosen),
        )  # fmt: skip

    def first(self, how_many: int) -> "Instances":
        """Return the first instances of every parent, numbered within them."""
        kept, ids = self.select(self.number < how_many), self._at_most(how_many)
        return replace(kept, total=np.minimum(kept.total, how_many), num_ids=ids)

    def last(self, how_many: int) -> "Instances":
        """Return the last instances of every parent, numbered within them."""
        left_out = np.maximum(self.total - how_many, 0)
        chosen = self.number >= self.total - how_many
        kept, left_out = self.select(chosen), left_out[chosen]
        number, total = kept.number - left_out, kept.total - left_out
        return replace(kept, number=number, total=total, num_ids=self._at_most(how_many))

    def _at_most(self, how_many: int) -> int | None:
        return None if self.num_ids is None else min(self.num_ids, max(how_many, 0))

    def keep(self, chosen: NDArray[np.bool_]) -> "Instances":
        """Return some of the instances, numbered anew within their parents."""
        kept = self.select(chosen)
        _, group, sizes = np.unique(kept.parent, return_inverse=True, return_counts=True)
        number = np.empty(len(kept), np.int64)
        number[np.argsort(group, kind="stable")] = expand(0, sizes)[1]
        return replace(kept, number=number, total=sizes[group])

    def as_parents(self) -> "Instances":
        """Return cells as parents of tiles: every cell lies in itself, and in no layout."""
        return replace(self, cell=np.arange(len(self)), nesting=None)

    @property
    def cells(self) -> Ints:
        """The cell of the frame that each instance lies in, int64 ``[I]``."""
        return np.zeros(len(self), np.int64) if self.cell is None else self.cell

    def labels(self) -> Ints:
        """Return an integer for each of some filled instances, equal for stretches of one id."""
        if not self.is_split:
            return np.arange(len(self))
        # inside `per` ids of different cells are different: their parents are the cells
        return self.parent * (int(self.number.max()) + 1) + self.number

    def filled(self) -> "Instances":
        """Return the instances that have tokens."""
        has_tokens = self.end > self.start
        return self if has_tokens.all() else self.select(has_tokens)

    def function(self, num_tokens: int, values: Ints, slope: int = 0) -> Piecewise:
        """Return ``values[i] + slope * (t - start[i])`` on instance i, undefined between them."""
        start, end, has_tokens = self.start, self.end, self.end > self.start
        if not has_tokens.all():
            start, end, values = start[has_tokens], end[has_tokens], values[has_tokens]
        # a gap, where the function is undefined, may precede the first instance and follow each
        before = np.concatenate([[0], end])
        has_gap = np.append(start, num_tokens) > before
        gaps = before[has_gap]
        if len(gaps) == 0:
            slopes = np.full(len(start), slope, np.int64)
            return Piecewise(num_tokens, start, values, slopes, np.ones(len(start), np.bool_))
        starts = np.concatenate([start, gaps])
        gap = np.zeros(len(gaps), np.int64)
        order = np.argsort(starts, kind="stable")
        return Piecewise(
            num_tokens,
            starts[order],
            np.concatenate([values, gap])[order],
            np.concatenate([np.full(len(start), slope, np.int64), gap])[order],
            np.concatenate([np.ones(len(start), np.bool_), np.zeros(len(gap), np.bool_)])[order],
        )

    def clip(self, cells: "Instances", outer: "Instances") -> "Instances":
        """Return the instances inside each cell, numbered within it; ids keep their numbers.

        An instance without tokens lies in the cell that its layout puts it in. If the cell is none
        of that layout, it lies with the token behind it; at the end of the frame around, with the
        token before it.
        """
        has_tokens = self.end > self.start
        index, cell = self.select(has_tokens)._cut(cells)
        if not has_tokens.all():
            empty, at = self.select(~has_tokens)._settle(cells, outer)
            index = np.append(np.flatnonzero(has_tokens)[index], np.flatnonzero(~has_tokens)[empty])
            cell = np.append(cell, at)
            order = np.lexsort((self.end[index], self.start[index]))
            index, cell = index[order], cell[order]
        own = self.select(index)
        inside = np.maximum(own.start, cells.start[cell]), np.minimum(own.end, cells.end[cell])
        nesting = own.nesting
        if nesting is not None:
            nesting = replace(nesting, end=np.minimum(nesting.end, cells.end[cell]))
        if self.num_ids is not None:
            return Instances(*inside, own.number, own.total, cell, self.num_ids, cell, nesting)
        base = int(own.parent.max(initial=0)) + 1
        _, group = np.unique(cell * base + own.parent, return_inverse=True)
        size = int(group.max(initial=-1)) + 1
        # a cell may cut off the first instances of a parent: numbers count from what is left
        first = np.full(size, np.iinfo(np.int64).max)
        np.minimum.at(first, group, own.number)
        members = np.bincount(group, minlength=size)
        number = own.number - first[group]
        return Instances(*inside, number, members[group], group, None, cell, nesting)

    def _cut(self, cells: "Instances") -> tuple[Ints, Ints]:
        """Return each instance with tokens once for each cell that holds some of them."""
        # from the first cell that ends behind the start to the last one that begins before the end
        low = np.searchsorted(cells.end, self.start, side="right")
        high = np.searchsorted(cells.start, self.end, side="left")
        return expand(low, np.maximum(high - low, 0))

    def _settle(self, cells: "Instances", outer: "Instances") -> tuple[Ints, Ints]:
        """Return instances without tokens, each with the cell that it lies in.

        At a border between two cells an empty instance could lie in either. Steps of one layout
        decide; without them it lies in the cell behind, and at the end of the frame in the one
        before.
        """
        own, around, limit = self.nesting, cells.nesting, outer.end[cells.cells]
        if own is not None and around is not None and own.layout == around.layout:
            limit = around.end
        else:
            around = None
        behind = np.searchsorted(cells.start, self.start, side="right") - 1
        is_behind = (behind >= 0) & (self.start < cells.end[behind])
        before = np.minimum(np.searchsorted(cells.end, self.start), len(cells) - 1)
        is_before = (cells.end[before] == self.start) & (limit[before] == self.start)
        found = []
        for cell, is_inside in ((behind, is_behind), (before, is_before)):
            is_inside = is_inside & (cells.cells[cell] == self.cells)
            if own is not None and around is not None:
                is_inside &= around.opens[cell] <= own.opens
                is_inside &= own.closes <= around.closes[cell]
            found.append((np.flatnonzero(is_inside), cell[is_inside]))
        index, cells_found = (np.concatenate(group) for group in zip(*found, strict=True))
        return index, cells_found


def tile(size: int, parents: Instances) -> Instances:
    """Cut every parent into tiles of `size` tokens; the last one may be short."""
    lengths = parents.end - parents.start
    counts = -(-lengths // size)
    if counts.sum() > MAX_INSTANCES:
        raise DatasetError(
            f"`every {size}` makes {counts.sum():_} tiles; at most {MAX_INSTANCES:_} are supported"
        )
    parent, number = expand(0, counts)
    start = parents.start[parent] + number * size
    end = np.minimum(start + size, parents.end[parent])
    nesting = None if parents.nesting is None else parents.nesting.take(parent)
    cell = parents.cells[parent]
    return Instances(start, end, number, counts[parent], parent, None, cell, nesting)


def unite(parts: list[Instances], names: list[str]) -> Instances:
    """Return the instances of several segments in the order of their tokens, numbered anew."""
    parts = [part for part in parts if len(part)] or parts[:1]
    layouts = [None if part.nesting is None else part.nesting.layout for part in parts]
    if None not in layouts and all(each is layouts[0] for each in layouts):
        found = join(parts)
    else:
        start, end = (
            np.concatenate([getattr(part, side) for part in parts]) for side in ("start", "end")
        )
        order = np.lexsort((end, start))
        found = Instances.of(start[order], end[order])
    filled = found.filled()
    shared = np.flatnonzero(filled.start[1:] < filled.end[:-1])
    if len(shared):
        shown, at = " or ".join(names), int(filled.start[shared[0] + 1])
        raise DatasetError(
            f"token {at} lies in two instances of `{shown}`; expected segments without common "
            f"tokens, where numbers, borders or `per` need single instances"
        )
    return Instances.of(found.start, found.end, found.nesting)


def join(parts: list[Instances]) -> Instances:
    """Join instances of different parents in one layout, in the order of their tokens."""
    if len(parts) == 1:
        return parts[0]
    nestings = [part.nesting for part in parts if part.nesting is not None]
    shift = np.cumsum([0, *(int(p.parent.max(initial=-1)) + 1 for p in parts[:-1])])
    start, end, number, total = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("start", "end", "number", "total")
    )
    parent = np.concatenate([part.parent + s for part, s in zip(parts, shift, strict=True)])
    opens, closes = (
        np.concatenate([getattr(n, name) for n in nestings]) for name in ("opens", "closes")
    )
    nesting = Nesting(nestings[0].layout, opens, closes, end)
    joined = Instances(start, end, number, total, parent, nesting=nesting)
    # steps, not tokens: instances without tokens share a token with their neighbours
    return joined.select(np.argsort(nesting.opens, kind="stable"))


@dataclass(frozen=True, eq=False)
class Tree:
    """Stretches of tokens that are each part of a path, in the order of their tokens.

    Attributes:
        start, end: int64 ``[P]``, tokens; the stretches fill the sample and none is empty.
        depth: int64 ``[P]``, tokens of the path in front of each.
        parent: int64 ``[P]``, the stretch that each goes on from, an earlier one; -1 for a root.
        join, since, until: int64 ``[J]``, a stretch goes on from all tokens of ``[since, until)``,
            too; its parent is what these go on from. A stretch may do so several times.
    """

    start: Ints
    end: Ints
    depth: Ints
    parent: Ints
    join: Ints
    since: Ints
    until: Ints

    @cached_property
    def joined(self) -> list[tuple[int, int, int]]:
        """Return each stretch that joins others, with the first of these and the one behind."""
        first, stop = (np.searchsorted(self.start, at) for at in (self.since, self.until))
        return list(zip(self.join.tolist(), first.tolist(), stop.tolist(), strict=True))

    @cached_property
    def sizes(self) -> Ints:
        """Tokens of each stretch and of all that goes on from it, int64 ``[P]``."""
        return self._added_up(self.end - self.start)

    @cached_property
    def paths(self) -> Ints:
        """Ends of paths to which each stretch leads, int64 ``[P]``."""
        found = self._added_up(self.is_leaf.astype(np.int64))
        for join, first, stop in self.joined:
            found[first:stop] += found[join]  # what is joined leads nowhere else
        return found

    @cached_property
    def is_leaf(self) -> Bools:
        """True for stretches without a successor, ``[P]``."""
        is_leaf = np.ones(len(self.start), np.bool_)
        is_leaf[self.parent[self.parent >= 0]] = False
        for _, first, stop in self.joined:
            is_leaf[first:stop] = False
        return is_leaf

    def _added_up(self, values: Ints) -> Ints:
        """Add the values of each stretch and of all that goes on from it; O(P)."""
        sums, parents = values.tolist(), self.parent.tolist()
        # parents are earlier, so a sum is complete before it is added to its parent
        for index in range(len(sums) - 1, -1, -1):
            if parents[index] >= 0:
                sums[parents[index]] += sums[index]
        return np.array(sums, np.int64)

    @cached_property
    def ranks(self) -> Ints:
        """Place of each stretch's first token if the tree is written depth first, int64 ``[P]``.

        Token a is on the path to token b if b's rank is at least a's and below the end of a's
        subtree. Layouts without a column of parents are written depth first already. O(P).
        """
        # Python's lists: each place depends on the one before, so numpy cannot do it at once.
        # `free[s]` is the place of the next stretch that goes on from stretch s.
        free, ranks = [0] * (len(self.start) + 1), []
        lengths, sizes = (self.end - self.start).tolist(), self.sizes.tolist()
        for index, parent in enumerate(self.parent.tolist()):
            rank = free[parent]  # roots have the parent -1: the last entry
            free[parent] += sizes[index]
            free[index] = rank + lengths[index]
            ranks.append(rank)
        return np.array(ranks, np.int64)

    def ancestors(self, most: int) -> tuple[Ints, Ints]:
        """Return each stretch with each one in front of it on its path, at most so many pairs."""
        own, above, total = np.arange(len(self.parent)), self.parent, 0
        found = [(own[:0], above[:0])]
        while len(own):
            own, above = own[above >= 0], above[above >= 0]
            found.append((own, above))
            total += len(own)
            limit_pieces(total, most, "branches in front of branches")
            above = self.parent[above]
        one, other = (np.concatenate(column) for column in zip(*found, strict=True))
        return one, other

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
    """A place on a path: the token before it (-1: none), and the tokens of the path up to it.

    Where a join begins, `joined` are the runs of tokens that it joins, and `last` is before them.
    """

    last: int = -1
    depth: int = 0
    joined: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class TreeBuilder:
    """Collects the stretches of a sample from left to right.

    Attributes:
        trunk: where the next part of the layout goes on.
        cuts: borders behind tokens at which branches fork; they may lie inside a stretch.
        joined: first tokens of stretches, each with a run of tokens that it joins.
        grown: the last stretches, as plain integers: arrays of one number cost ten times as much.
    """

    trunk: Trunk = Trunk()
    cuts: list[int] = field(default_factory=list)
    grown: list[tuple[int, int, int, int]] = field(default_factory=list)
    columns: list[tuple[Ints, ...]] = field(default_factory=list)
    joined: list[tuple[int, int, int]] = field(default_factory=list)

    def grow(self, start: int, end: int) -> None:
        """Let the trunk go on over some tokens."""
        if end > start:
            self.grown.append((start, end, self.trunk.depth, self.trunk.last))
            self.joined += [(start, *run) for run in self.trunk.joined]
            self.trunk = Trunk(end - 1, self.trunk.depth + end - start)

    def fork_behind(self, token: int) -> None:
        """Let the next stretch go on from a token; `finish` finds how deep it stands."""
        self.cuts.append(token + 1)
        self.trunk = Trunk(token)

    def join(self, base: Trunk, begin: int, at: int) -> None:
        """Let the trunk go on from all tokens of ``[begin, at)``, which go on from a base."""
        if begin < at:
            self.trunk = Trunk(base.last, base.depth, (*base.joined, (begin, at)))

    def fork(self, bounds: Ints) -> None:
        """Let stretches go on from the trunk side by side; ``[R + 1]`` borders between them."""
        self._settle()
        start, end = bounds[:-1], bounds[1:]
        has_tokens = end > start
        start, end = start[has_tokens], end[has_tokens]
        base = np.full(len(start), self.trunk.depth), np.full(len(start), self.trunk.last)
        self.columns.append((start, end, *base))
        self.joined += [(at, *run) for run in self.trunk.joined for at in start.tolist()]

    def _settle(self) -> None:
        if self.grown:
            self.columns.append(tuple(np.array(self.grown, np.int64).T))
            self.grown.clear()

    def finish(self) -> Tree:
        """Return the tree."""
        self._settle()
        none = np.empty(0, np.int64)
        columns = zip(*(self.columns or [(none,) * 4]), strict=True)
        start, end, depth, last = (np.concatenate(group) for group in columns)
        if not self.cuts and not self.joined:
            return Tree(start, end, depth, _stretch_of(last, end), none, none, none)
        at, since, until = np.array(self.joined, np.int64).reshape(-1, 3).T
        inside = np.setdiff1d(np.concatenate([np.array(self.cuts, np.int64), since]), [0, *end])
        starts, end = np.union1d(start, inside), np.union1d(end, inside)
        before = starts - 1  # what was one stretch goes on
        before[np.searchsorted(starts, start)] = last
        parent, join = _stretch_of(before, end), np.searchsorted(starts, at)
        tree = Tree(starts, end, starts, parent, join, since, until)
        return replace(tree, depth=_depths(tree))


def _depths(tree: Tree) -> Ints:
    """Return how many tokens the longest path in front of each stretch has."""
    joined: dict[int, list[tuple[int, int]]] = {}
    for join, first, stop in tree.joined:
        joined.setdefault(join, []).append((first, stop))
    known: dict[int, tuple[int, int]] = {}  # by the first one: the stretch behind, longest path
    depths, ends = list[int](), list[int]()
    lengths = (tree.end - tree.start).tolist()
    for index, (length, above) in enumerate(zip(lengths, tree.parent.tolist(), strict=True)):
        depth = 0 if above < 0 else ends[above]
        for first, stop in joined.get(index, ()):
            seen, longest = known.get(first, (first, 0))
            known[first] = max(seen, stop), max([longest, *ends[seen:stop]])
            depth = max(depth, known[first][1])
        depths.append(depth)
        ends.append(depth + length)
    return np.array(depths, np.int64)


def _stretch_of(last: Ints, end: Ints) -> Ints:
    """Return the stretches that end with some tokens; -1 for the token -1."""
    return np.where(last < 0, -1, np.searchsorted(end, last + 1))


@dataclass(slots=True)
class Places:
    """The places of a tree at which the repetitions of one part begin.

    Attributes:
        tree: the tree under construction.
        is_branch: whether repetitions stand side by side; else each follows the one before.
        is_forked: whether they go on from tokens.
        parents: of each repetition the one, or the token, that it goes on from; -1 for the place of
            the part.
        base: the place of the part: where the parts in front of it end.
        ends: where each repetition so far ends.
    """

    tree: TreeBuilder
    is_branch: bool
    is_forked: bool
    parents: Ints
    base: Trunk
    ends: list[Trunk] = field(default_factory=list)

    def go_to(self, index: int) -> None:
        """Let the tree grow where a repetition begins."""
        if self.is_branch:
            parent = int(self.parents[index])
            if parent >= 0 and self.is_forked:
                self.tree.fork_behind(parent)
            else:
                self.tree.trunk = self.base if parent < 0 else self.ends[parent]

    def leave(self) -> None:
        """Remember where a repetition ends; the part behind the branches goes on from the base."""
        if self.is_branch:
            self.ends.append(self.tree.trunk)
            self.tree.trunk = self.base
