"""Bind layouts to a sample: find the tokens of each `question`, `answer`, `doc`.

``question[question_len] answer[answer_lens]*`` is walked from left to right, with the columns of
the sample. The result has arrays of instances, never labels per token.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_dsl.checks.scope import part_names
from dcp_dsl.core.columns import Column, LayoutColumns
from dcp_dsl.core.instances import Instances, Nesting, Places, Tree, TreeBuilder, join
from dcp_dsl.elaboration.programs import layout_columns, reads_length
from dcp_dsl.errors import MAX_TOKENS, list_names
from dcp_dsl.syntax import ast

MAX_GROUPS = 2**16  # repetitions of groups with groups or lists inside, each laid out in Python


def bind_layout(
    segment: ast.Segment, layout: ast.Layout, columns: Mapping[str, Column], length: int
) -> tuple[dict[str, Instances], Tree]:
    """Return the instances of every name of a layout, and the tree that its branches make.

    The statement's own name stands for the outermost parts: each repetition is an instance.
    """
    binder = _LayoutBinder(segment, columns, length)
    binder.rest = binder.find_rest(layout.parts)
    top = _Parent()
    end = binder.walk(layout.parts, 0, columns, top, is_top=True)
    top.close(binder.found)
    if end != length:
        needed = list_names(sorted(layout_columns(layout)), "the layout")
        binder.fail(
            f"the layout has {end} tokens, the sample {length}; the lengths in {needed} must add "
            f"up to the sample's length"
        )
    # a part may not occur in this sample, as in a group that repeats 0 times
    empty = np.empty(0, np.int64)
    for name in (segment.name, *part_names(layout.parts)):
        binder.found.setdefault(name.text, [Instances(empty, empty, empty, empty, empty)])
    return {name: join(parts) for name, parts in binder.found.items()}, binder.tree.finish()


def natural_length(
    segment: ast.Segment, layout: ast.Layout, columns: Mapping[str, Column]
) -> int | None:
    """Add up the tokens of the columns; None if the layout asks for the sample's length."""
    if reads_length(layout):
        return None
    binder = _LayoutBinder(segment, columns, MAX_TOKENS)
    return binder.walk(layout.parts, 0, columns, _Parent())


@dataclass(slots=True)
class _Parent:
    """Instances found so far inside one named group (or the sample), waiting for their total."""

    waiting: dict[str, list[Instances]] = field(default_factory=dict)

    def add(self, name: str, spans: Instances) -> None:
        self.waiting.setdefault(name, []).append(spans)

    def close(self, found: dict[str, list[Instances]]) -> None:
        """Number the instances found and return them."""
        for name, several in self.waiting.items():
            spans = join(several)
            numbered = Instances.of(spans.start, spans.end, spans.nesting)
            found.setdefault(name, []).append(numbered)


@dataclass(slots=True)
class _LayoutBinder(LayoutColumns):
    """Walks a layout from left to right, keeping the position in the sample.

    `begin` is the first token of the repetition around the part; `is_first_walk` says that `rest`
    is not known yet, so that positions are not those of the sample.
    """

    rest: int = 0
    begin: int = 0
    is_first_walk: bool = False
    groups: int = 0
    step: int = 0
    found: dict[str, list[Instances]] = field(default_factory=dict)
    tree: TreeBuilder = field(default_factory=TreeBuilder)

    def find_rest(self, parts: tuple[ast.Leaf | ast.Group, ...]) -> int:
        """Return the tokens of `[..]`: those that the other parts leave."""
        if not any(isinstance(p, ast.Leaf) and p.length is None for p in parts):
            return 0
        # A first walk gives `[..]` nothing, to learn what the other parts take. It is thrown away.
        self.is_first_walk = True
        used = self.walk(parts, 0, self.columns, _Parent(), is_top=True)
        self.is_first_walk = False
        self.found.clear()
        self.groups, self.step, self.tree = 0, 0, TreeBuilder()
        if used > self.length:
            self.fail(f"the parts before `[..]` have {used} tokens, the sample only {self.length}")
        return self.length - used

    def walk(
        self,
        parts: tuple[ast.Leaf | ast.Group, ...],
        at: int,
        row: Mapping[str, Column],
        parent: _Parent,
        *,
        is_top: bool = False,
    ) -> int:
        """Lay parts out from position `at`; give the position behind them."""
        begin, base = at, self.tree.trunk
        for part in parts:
            self.begin = begin  # a group has set it for its own parts
            if part.is_join:
                self.tree.join(base, begin, at)
            if isinstance(part, ast.Leaf):
                spans = self.place_leaf(part, at, row)
            else:
                spans = self.walk_group(part, at, row, parent)
            at = int(spans.end[-1]) if len(spans.end) else at
            if part.name is not None:
                parent.add(part.name.text, spans)
            if is_top:
                parent.add(self.statement.name.text, spans)
        return at

    def spans(self, start: Ints, end: Ints, opens: Ints, closes: Ints) -> Instances:
        """Return the repetitions of one part; their tokens, and the steps of the walk."""
        return Instances.of(start, end, Nesting(self.statement, opens, closes, end))

    def place_leaf(self, leaf: ast.Leaf, at: int, row: Mapping[str, Column]) -> Instances:
        """Lay out a part without parts, as often as it repeats."""
        bounds = at + np.concatenate([[0], np.cumsum(self.leaf_lengths(leaf, row))])
        # each repetition closes at the step at which the next one opens
        steps = self.step + np.arange(len(bounds))
        self.step += len(bounds) - 1
        if leaf.parents is not None:
            places = self.places(leaf, row, len(bounds) - 1)
            for index, (start, end) in enumerate(pairwise(bounds.tolist())):
                self.check_fork(leaf, places, index, self.begin, start)
                places.go_to(index)
                self.tree.grow(start, end)
                places.leave()
        elif leaf.is_branch:
            self.tree.fork(bounds)
        else:
            self.tree.grow(int(bounds[0]), int(bounds[-1]))
        return self.spans(bounds[:-1], bounds[1:], steps[:-1], steps[1:])

    def walk_group(
        self, group: ast.Group, at: int, row: Mapping[str, Column], parent: _Parent
    ) -> Instances:
        """Lay a group out; give its repetitions."""
        count, last_parts = self.repetitions(group, row) if group.is_repeated else (1, None)
        # A group of plain parts may repeat a million times: numpy lays all of them out at once.
        is_flat = group.is_repeated and group.parents is None
        matrix = self.flat_lengths(group, row, count) if is_flat else None
        if matrix is not None:
            return self.place_flat(group, at, matrix, parent, last_parts)
        self.groups += count
        if self.groups > MAX_GROUPS:
            self.fail(f"nested groups repeat more than {MAX_GROUPS:_} times; split the sample")
        bounds, opens, closes = [at], [], []
        names = layout_columns(group) if group.is_repeated else ()
        places, begin = self.places(group, row, count), self.begin
        for index in range(count):
            self.check_fork(group, places, index, begin, bounds[-1])
            places.go_to(index)
            opens.append(self.step)
            self.step += 1
            parts = group.parts[: last_parts if index == count - 1 else None]
            # the last repetition may end early: a short column has nothing for it
            own = {name: row[name][index] for name in names if index < len(row[name])}
            # numbers of the parts begin anew in each repetition of a named group
            inner = parent if group.name is None else _Parent()
            bounds.append(self.walk(parts, bounds[-1], {**row, **own}, inner))
            closes.append(self.step)
            places.leave()
            if group.name is not None:
                inner.close(self.found)
        borders = np.array(bounds, np.int64)
        steps = np.array(opens, np.int64), np.array(closes, np.int64)
        return self.spans(borders[:-1], borders[1:], *steps)

    def flat_lengths(self, group: ast.Group, row: Mapping[str, Column], count: int) -> Ints | None:
        """Return the lengths ``[repetitions, parts]`` of a group of plain leaves, else None.

        Parts that the last repetition lacks have length 0 there.
        """
        columns = []
        for part in group.parts:
            if not isinstance(part, ast.Leaf) or part.is_repeated or part.is_branch or part.is_join:
                return None
            if isinstance(part.length, ast.Name) and part.length.text != "len":
                lengths = self.lengths(part.length.text, self.column(part.length.text, row))
                columns.append(np.append(lengths, np.zeros(count - len(lengths), np.int64)))
            elif isinstance(part.length, ast.Number):
                length = self.arithmetic(part.length, row) if count else 0
                columns.append(np.full(count, length))
            else:
                return None
        return np.column_stack(columns)

    def place_flat(
        self, group: ast.Group, at: int, matrix: Ints, parent: _Parent, last_parts: int | None
    ) -> Instances:
        """Lay out all repetitions of a group of plain leaves at once."""
        width = matrix.shape[1]
        present = np.ones(matrix.shape, np.bool_)
        if last_parts is not None:
            present[-1, last_parts:] = False
            matrix = np.where(present, matrix, 0)
        # parts in the order of their tokens are the matrix row by row
        bounds = at + np.concatenate([[0], np.cumsum(matrix.ravel())])
        starts, ends = bounds[:-1].reshape(matrix.shape), bounds[1:].reshape(matrix.shape)
        # one step for the group and one for each of its parts, as `walk_group` counts them
        opens = self.step + np.arange(len(matrix)) * (width + 1)
        self.step += len(matrix) * (width + 1)
        spans = self.spans(bounds[:-1:width], bounds[width::width], opens, opens + width + 1)
        if group.is_branch:
            self.tree.fork(bounds[::width])
        else:
            self.tree.grow(int(bounds[0]), int(bounds[-1]))
        for index, part in enumerate(group.parts):
            if part.name is None:
                continue
            kept, step = present[:, index], opens + 1 + index
            own = self.spans(starts[:, index], ends[:, index], step, step + 1).select(kept)
            if group.name is None:
                parent.add(part.name.text, own)
                continue
            zero, one = np.zeros(kept.sum(), np.int64), np.ones(kept.sum(), np.int64)
            # in a named group every repetition is a parent of its own
            alone = replace(own, number=zero, total=one, parent=np.flatnonzero(kept))
            self.found.setdefault(part.name.text, []).append(alone)
        return spans

    def leaf_lengths(self, leaf: ast.Leaf, row: Mapping[str, Column]) -> Ints:
        """Return the tokens of each repetition of a leaf."""
        if leaf.length is None:
            return np.array([self.rest])
        if leaf.is_repeated:
            if isinstance(leaf.length, ast.Number):
                assert leaf.parents is not None, "checked: a column says how often it repeats"
                count = len(self.integers(leaf.parents.text, self.column(leaf.parents.text, row)))
                return np.full(count, self.arithmetic(leaf.length, row) if count else 0)
            assert isinstance(leaf.length, ast.Name), "checked: a repeated part has a column"
            return self.lengths(leaf.length.text, self.column(leaf.length.text, row))
        return np.array([self.arithmetic(leaf.length, row)])

    def places(self, part: ast.Leaf | ast.Group, row: Mapping[str, Column], size: int) -> Places:
        """Return the places in the tree at which the repetitions of a part begin."""
        parents = np.full(size, -1)
        if part.parents is not None:
            parents = self.parents(part.parents.text, row, size, is_forked=part.is_forked)
        return Places(self.tree, part.is_branch, part.is_forked, parents, self.tree.trunk)

    def check_fork(
        self, part: ast.Leaf | ast.Group, places: Places, index: int, begin: int, at: int
    ) -> None:
        """Refuse a branch that goes on from a token that does not lie in ``[begin, at)``."""
        fork = int(places.parents[index])
        is_fine = fork == -1 or begin <= fork < at
        if is_fine or not places.is_forked or self.is_first_walk or part.parents is None:
            return
        several = f"a token from {begin} to {at - 1}" if begin < at - 1 else f"token {begin}"
        earlier = f"{several}, or " if begin < at else ""
        self.fail(
            f"column `{part.parents.text}`: branch {index} goes on from token {fork}; expected "
            f"{earlier}-1 for the place where the part stands"
        )
