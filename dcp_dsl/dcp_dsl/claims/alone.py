"""Rewrite a mask for sequences of their own: each path, or each packed document.

In a packed sample, positions count the tokens of other documents and branches. `alone` rewrites a
mask: it counts as the separate sequence does, and leaves everything else as it is. Where the
rewritten mask differs from the mask, packing changes what a token sees.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from dcp_dsl.claims.samples import claim_samples
from dcp_dsl.claims.testing import Failure, Testing
from dcp_dsl.core.columns import Column
from dcp_dsl.core.mask import Mask
from dcp_dsl.core.per_token import first_pair
from dcp_dsl.core.sample import Sample
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.programs import fork_columns, has_joins, layout_columns, parent_columns
from dcp_dsl.errors import DatasetError, OverBudget
from dcp_dsl.proof.worlds import find_level, joins_behind, node_at
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import SpecError
from dcp_dsl.syntax.trees import walk_parts


def packed_part(segment: nodes.Segment) -> ast.Leaf | ast.Group | None:
    """Return the part that a segment names, if it repeats and its layout has no other part.

    Such parts are packed documents: each is a sequence of its own.
    """
    if not isinstance(segment, nodes.Laid) or not isinstance(segment.statement.source, ast.Layout):
        return None
    statement, parts = segment.statement, segment.statement.source.parts
    names = {statement.name.text} | {part.name.text for part in parts if part.name is not None}
    is_packed = len(parts) == 1 and parts[0].is_repeated and segment.name in names
    return parts[0] if is_packed else None


def alone(core: nodes.Mask, whole: nodes.Laid, *, is_tree: bool) -> nodes.Mask | None:
    """Return a mask as the separate sequences have it, for pairs inside one of them.

    `whole` is a layout with branches, whose paths are the sequences, or packed documents. None if
    the mask reads a fact of which it is not known here what a separate sequence has, such as `len`.
    """
    try:
        return _Alone(whole, is_tree=is_tree).mask(core)
    except _UnknownError:
        return None


def difference(a: nodes.Mask, b: nodes.Mask, inside: nodes.Mask) -> nodes.Mask:
    """Return the pairs inside a relation that one mask shows and the other hides."""
    differ = (nodes.And((a, nodes.Not(b))), nodes.And((b, nodes.Not(a))))
    return nodes.And((inside, nodes.Or(differ)))


class _UnknownError(Exception):
    """A fact that a separate sequence may have in another way."""


@dataclass(frozen=True, slots=True)
class _Alone:
    """Rewrites a core program; what stays the same is returned as it is."""

    whole: nodes.Laid
    is_tree: bool

    def mask(self, node: nodes.Mask) -> nodes.Mask:
        """Rewrite a mask."""
        match node:
            case nodes.Truth():
                return node
            case nodes.Not(item):
                inner = self.mask(item)
                return node if inner is item else nodes.Not(inner)
            case nodes.And(items):
                kept, inside = self.masks(items)
                return node if kept else nodes.And(inside)
            case nodes.Or(items):
                kept, inside = self.masks(items)
                return node if kept else nodes.Or(inside)
        return self.atom(node)

    def atom(self, node: nodes.Mask) -> nodes.Mask:
        """Rewrite a mask that is not made of others in the same coordinates."""
        match node:
            # a path runs in the order of the row
            case nodes.Compare(_, nodes.Pos(), nodes.Pos()):
                return node
            case nodes.Compare(op, left, right):
                found = self.number(left), self.number(right)
                is_same = found == (left, right)
                # A token column may hold positions of the row, which would be others alone.
                if not is_same and any(
                    isinstance(n, nodes.TokenColumn) for n in nodes.walk(left, right)
                ):
                    raise _UnknownError
                return node if is_same else nodes.Compare(op, *found)
            case (
                nodes.Along(layout)
                | nodes.Same(nodes.Laid() | nodes.Filtered() as layout)
                | nodes.Within(nodes.Laid() | nodes.Filtered() as layout, nodes.Pos())
            ) if self.is_kept(layout, is_pair=isinstance(node, nodes.Same)):
                return node
            case nodes.Same(nodes.Tiles(size, None)) if nodes.is_fixed(self.number(size)):
                q, k = (self.number(nodes.Pos(side)) for side in ("q", "k"))
                tiles = (nodes.Arithmetic("//", at, size) for at in (q, k))
                return nodes.Compare("==", *tiles)
            case nodes.Same(nodes.Tiles(_, parent)) if parent and self.is_run(parent):
                return node
            case nodes.Per(segment, body) if (
                self.is_run(segment) and self.is_own(body) and not self.has_forks
            ):
                return node
        raise _UnknownError

    def masks(self, items: Iterable[nodes.Mask]) -> tuple[bool, tuple[nodes.Mask, ...]]:
        """Rewrite masks; the flag says that all stay the same."""
        pairs = [(item, self.mask(item)) for item in items]
        return all(a is b for a, b in pairs), tuple(b for _, b in pairs)

    def is_kept(self, segment: nodes.Segment, *, is_pair: bool) -> bool:
        """Return whether a token lies in a segment, or a pair in one instance, alone as packed."""
        while isinstance(segment, nodes.Filtered):  # an instance keeps its columns
            segment = segment.segment
        if not isinstance(segment, nodes.Laid):
            return False
        # a path keeps its tokens' parts; runs of a column may join where branches are cut out
        is_laid = isinstance(segment.statement.source, ast.Layout) or not is_pair
        return segment.statement is self.whole.statement or (self.is_tree and is_laid)

    @property
    def has_forks(self) -> bool:
        """Return whether a path may leave an instance before its last token."""
        layout = self.whole.statement.source
        return self.is_tree and isinstance(layout, ast.Layout) and bool(fork_columns(layout))

    @property
    def has_joins(self) -> bool:
        """Return whether a path may have several branches, so that `path` counts only one."""
        layout = self.whole.statement.source
        return self.is_tree and isinstance(layout, ast.Layout) and has_joins(layout)

    def is_run(self, segment: nodes.Segment) -> bool:
        """Return whether instances hold the same tokens, one after the other, alone as packed.

        With forks the last ones may lack.
        """
        if not isinstance(segment, nodes.Laid) or segment.statement is not self.whole.statement:
            return False
        if not self.is_tree:
            return True
        layout = segment.statement.source
        assert isinstance(layout, ast.Layout), "only layouts have branches"
        placed = [each.part for each in walk_parts(layout.parts)]
        named = [part for part in placed if part.name and part.name.text == segment.name]
        if segment.name == segment.statement.name.text:
            named += layout.parts
        return all(isinstance(part, ast.Leaf) for part in named)

    def is_own(self, body: nodes.Mask) -> bool:
        """Return whether the body of a `per` reads only what lies in the instance."""
        for node in nodes.walk(body):
            match node:
                case nodes.Outside() | nodes.Free():
                    return False
                case nodes.Laid(statement) if statement is not self.whole.statement:
                    return False
        return True

    def number(self, node: nodes.Number) -> nodes.Number:
        """Rewrite a number."""
        match node:
            case nodes.Const() | nodes.RowColumn() | nodes.Free(_, type="tokens" | "int"):
                return node
            case nodes.Pos() if not self.has_joins:
                return nodes.Lookup(self.whole, "path" if self.is_tree else "pos", node)
            case nodes.Arithmetic("-", nodes.Pos(), nodes.Pos()) if not self.is_tree:
                return node  # a document is a run of the row
            case nodes.Arithmetic(op, left, right):
                found = self.number(left), self.number(right)
                return node if found == (left, right) else nodes.Arithmetic(op, *found)
            case nodes.Rising(name, inner):
                number = self.number(inner)
                return node if number is inner else nodes.Rising(name, number)
            case nodes.Lookup(nodes.TokenColumn(segment=None), _, nodes.Pos()):
                return node
            case nodes.Lookup(nodes.Laid(statement), "path", nodes.Pos()) if self.is_tree:
                if statement is self.whole.statement:
                    return node
            case nodes.Lookup(nodes.Laid() as part, fact, nodes.Pos() as at):
                return self.fact(part, fact, at, node)
        raise _UnknownError

    def fact(
        self, part: nodes.Laid, fact: nodes.Fact, at: nodes.Pos, node: nodes.Lookup
    ) -> nodes.Number:
        """Return a fact about the instance of a token."""
        if fact in ("number", "count"):
            return self.counted(part, fact, node)
        if not self.is_run(part) or (self.has_forks and fact in ("len", "end")):
            raise _UnknownError
        if fact in ("pos", "len"):
            return node
        if fact in ("start", "end"):  # as far from the token as in the row
            return nodes.Arithmetic("+", self.number(at), nodes.Arithmetic("-", node, at))
        raise _UnknownError

    def counted(self, part: nodes.Laid, fact: nodes.Fact, node: nodes.Lookup) -> nodes.Number:
        """Return the number of an instance in its parent, or how many there are.

        A path has one of the branches that stand side by side, and a sequence is one document.
        """
        layout = part.statement.source
        if part.statement is not self.whole.statement or not isinstance(layout, ast.Layout):
            raise _UnknownError
        level = find_level(part.statement, part.name)
        # the nodes between the parent, in which instances are numbered, and the part
        depths = range(level.parent + 1, len(level.path) + 1)
        between = [node_at(layout.parts, level.path[:depth]) for depth in depths]
        if not level.path:  # the layout's own name numbers all outer parts together
            between = list(layout.parts)
            if len(between) > 1 and any(each.is_branch for each in between):
                raise _UnknownError
        repeated = [each for each in between if each.is_repeated]
        if self.is_tree:
            one = [each.is_branch for each in repeated]
            is_chained = any(each.parents is not None for each in repeated)
        else:
            one, is_chained = [packed_part(part) is not None] * len(repeated), False
        if self.has_forks and fact == "count":  # forks may leave out the last ones
            raise _UnknownError
        if not any(one):
            return node
        # what a join behind them goes on from is on one path, all of it
        prefixes = (level.path[:depth] for depth in range(1, len(level.path) + 1))
        is_joined = any(joins_behind(layout.parts, path) for path in prefixes)
        if is_chained or is_joined or not all(one):
            raise _UnknownError
        return nodes.Const(0 if fact == "number" else 1)


LARGEST_NUMBER = 2**20  # larger numbers in a mask bound no window
MAX_SAMPLES = 48  # long samples that a mask is compiled on
STEPS_PER_SAMPLE = 2**18  # what compiling a mask on one costs, of the steps for searches


def search_long(mask: Mask, testing: Testing) -> Failure | None:
    """Return a pair of a mask on a sample as long as the numbers in it, None if none is found.

    On small samples a window of 1k hides nothing. Their lengths are multiplied, and the mask is
    compiled, which costs as much as it has pieces.
    """
    numbers = [node.value for node in nodes.walk(mask.core) if isinstance(node, nodes.Const)]
    factor = max(numbers, default=0) + 1
    lengths = {column for _, layout in mask.layouts for column in layout_columns(layout)}
    parents = {column for _, layout in mask.layouts for column in parent_columns(layout)}
    forks = {column for _, layout in mask.layouts for column in fork_columns(layout)}
    if factor > LARGEST_NUMBER or not mask.columns <= lengths:
        return None
    try:
        samples = claim_samples(mask, None, testing.scope, testing.broken, testing.budget)
        for sample in islice(samples, MAX_SAMPLES):
            testing.budget.spend(STEPS_PER_SAMPLE)
            columns = {
                name: _forks_times(value, factor) if name in forks
                else value if name in parents else _times(value, factor)
                for name, value in sample.columns.items()
            }  # fmt: skip
            longer = Sample(columns, sample.length * factor)
            try:
                pair = first_pair(mask, longer)
            except (DatasetError, SpecError):  # its layout cannot be that long, or too many pieces
                continue
            if pair is not None:
                return Failure(longer, *pair)
    except OverBudget:
        pass
    return None


def _forks_times(value: Column, factor: int) -> Column:
    """Return the last tokens of what the tokens become."""
    if isinstance(value, list):
        return [_forks_times(item, factor) for item in value]
    return (value + 1) * factor - 1


def _times(value: Column, factor: int) -> Column:
    return [_times(item, factor) for item in value] if isinstance(value, list) else value * factor
