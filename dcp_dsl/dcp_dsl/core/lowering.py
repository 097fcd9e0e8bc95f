"""Evaluate a core program on one sample, symbolically: masks become regions.

A comparison becomes bounds of a number of the key by functions of the query, or the other way round
(`symbolic.comparison`). `and`, `or` and `not` are operations on regions. `per` evaluates its body
in the frame of the instances.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_

import numpy as np

from dcp_dsl.arrays import Ints, expand
from dcp_dsl.core.distances import by_distance
from dcp_dsl.core.frame import STEPS_PER_NODE, Frame
from dcp_dsl.core.instances import Instances, Tree
from dcp_dsl.elaboration import nodes
from dcp_dsl.errors import OverBudget
from dcp_dsl.symbolic.classes import Classes, MaskValue, num_slabs
from dcp_dsl.symbolic.comparison import MAX_JOBS, MIRRORED, Between, hull, listed
from dcp_dsl.symbolic.piecewise import MAX_VALUE, Bands, TooManyPieces, ValueTooLarge, limit_pieces
from dcp_dsl.symbolic.region import CELLS_PER_SLAB, MAX_PAIRS, Region
from dcp_dsl.symbolic.shortcuts import rows_of_keys
from dcp_dsl.symbolic.terms import (
    Cyclic,
    Extreme,
    NotSeparable,
    Quotient,
    Term,
    VaryingLength,
    add,
    as_term,
    scale,
)

JOBS_PER_INSTANCE = 2**3
MAX_NARROW_JOBS = 2**12  # a wider comparison waits until its neighbours in `and` have been found


class NoForm(Exception):
    """A mask without a symbolic form: the place of its innermost part without one, and why."""

    def __init__(self, place: nodes.Place, why: Exception) -> None:
        self.place, self.why = place, why
        super().__init__()


@dataclass(frozen=True, slots=True)
class Joined:
    """Two comparisons as one: the place of the first, and the bounds of both."""

    place: nodes.Place
    bounds: Between


class Lowering:
    """Evaluates masks in one frame, in the bands of rows and keys that matter.

    If `is_transposed`, regions have the keys as their rows. A comparison may take `max_jobs` pairs
    of pieces and runs: by default some for each instance that the sample lists, and `MAX_JOBS`
    more. `masks` are those already evaluated: an argument may be used several times. `among` asks
    `bounds` whether they stayed inside the bands.
    """

    def __init__(
        self, frame: Frame, *, is_transposed: bool, bands: Bands | None = None,
        max_jobs: int | None = None,
    ) -> None:  # fmt: skip
        self.frame, self.is_transposed = frame, is_transposed
        most = MAX_JOBS + JOBS_PER_INSTANCE * frame.num_listed
        self.max_jobs = most if max_jobs is None else max_jobs
        start, end = frame.cells.start, frame.cells.end
        self.bands = bands or Bands(start, end, start, end)  # each cell sees itself alone
        self.masks: dict[nodes.Mask, MaskValue] = {}
        self.bounds: list[Between] = []

    def mask(self, node: nodes.Mask) -> MaskValue:
        """Evaluate a mask.

        Raises:
            SpecError: for constants out of range.
            NoForm: if it has no (short) symbolic form.
        """
        if node not in self.masks:
            self.masks[node] = self.evaluate(node.place, lambda: self._mask(node))
        return self.masks[node]

    def evaluate(self, place: nodes.Place, make: Callable[[], MaskValue]) -> MaskValue:
        """Make a mask and charge the budget for it; name its place if it has no form."""
        try:
            self.frame.budget.spend(STEPS_PER_NODE)
            found = make()
            self.frame.budget.spend(num_slabs(found))
        except (TooManyPieces, OverBudget, NotSeparable) as error:
            raise NoForm(place, error) from None
        except ValueTooLarge:
            place.fail(
                "E192", f"a number here grows beyond {MAX_VALUE:_}",
                "lengths are in tokens; check the factors",
            )  # fmt: skip
        return found

    def _mask(self, node: nodes.Mask) -> MaskValue:
        match node:
            case nodes.Truth(flag):
                return self.everything() if flag else Region.empty(self.frame.num_tokens)
            case nodes.Not(item):
                return self.everything() - self.mask(item)
            case nodes.And(items):
                return self.conjunction(items)
            case nodes.Or(items):
                return reduce(or_, [self.mask(item) for item in items])
            case nodes.Per(segment, body):
                return self.inside(self.frame.cells_of(segment), body)
        return self.atom(node)

    def atom(self, node: nodes.Mask) -> MaskValue:
        """Evaluate a mask that is made of no other masks."""
        match node:
            case nodes.Compare():
                return self.comparison(node)
            case nodes.Within(segment, at):
                return self.membership(self.frame.instances(segment).filled(), at)
            case nodes.Same(segment):
                return self.same(self.frame.instances(segment).filled())
            case nodes.Listed():
                return self.listed(node)
            case nodes.Along(layout):
                tree = self.frame.tree(layout)
                return self.paths(tree, node)
        raise AssertionError(f"no mask on a sample: {type(node).__name__}")

    def conjunction(self, items: Sequence[nodes.Mask]) -> MaskValue:
        """Evaluate `and`: narrow items first, wide ones only where those leave something."""
        parts = self.joined(items)
        if len(parts) == 1:
            return self.narrowed(None, parts[0])
        narrow = Lowering(
            self.frame, is_transposed=self.is_transposed, bands=self.bands, max_jobs=MAX_NARROW_JOBS
        )
        # both evaluate in the same bands, so they share results; what was too wide is not kept
        narrow.masks = self.masks
        self.refuse_products(narrow, parts)
        found: MaskValue | None = None
        wide = []
        # `not` comes last: taken away from what others leave, it needs no complement
        for item in sorted(parts, key=lambda part: isinstance(part, nodes.Not)):
            try:
                found = narrow.narrowed(found, item)
            except NoForm as error:
                if not isinstance(error.why, TooManyPieces):
                    raise
                wide.append(item)
        for item in wide:
            found = self.among(found, item)
        assert found is not None, "`and` has operands"
        return found

    def refuse_products(self, narrow: "Lowering", parts: "Sequence[nodes.Mask | Joined]") -> None:
        """Refuse `q in a and k in b` before any piece is made, if both have too many stretches."""
        if self.frame.outer is not None:  # each cell has few of them
            return
        slab, bands = (0, self.frame.num_tokens, 0, self.frame.num_tokens, 0, 0), {}
        for item in parts:
            match item:
                case nodes.Within(segment, nodes.Pos(side)):
                    own = self.frame.instances(segment).filled()
                    is_of_keys = (side == "k") != self.is_transposed
                    if is_of_keys in bands or (own.start[1:] <= own.end[:-1]).any():
                        return
                    bands[is_of_keys] = own
                case nodes.Compare() if not bands and slab[1] == slab[3]:
                    try:
                        found = narrow.mask(item)
                    except NoForm:
                        return
                    if not isinstance(found, Region) or len(found.q_start) != 1:
                        return
                    top, bottom, start, end, low, high = (int(c[0]) for c in found.columns())
                    slab = top, bottom, start, end, low, high
                case _:
                    return
            if len(bands) == 2:
                rows, keys = bands[False], bands[True]
                begin, stop = rows_of_keys(slab, keys.start, keys.end)
                counts = np.searchsorted(rows.start, stop)
                counts -= np.searchsorted(rows.end, begin, side="right")
                size = 3 * (len(rows) + len(keys) + 1)  # an end cuts a piece into three at most
                most = MAX_PAIRS + CELLS_PER_SLAB * size
                limit_pieces(int(np.maximum(counts, 0).sum()), most, "pieces of slabs")
                return

    def among(self, found: MaskValue | None, item: "nodes.Mask | Joined") -> MaskValue:
        """Return the pairs that a mask and a wide item share.

        Next to a region the item is evaluated in the hull of the region alone.
        """
        if not isinstance(found, Region):
            return self.narrowed(found, item)
        inside = Lowering(self.frame, is_transposed=self.is_transposed, bands=hull(found))
        value = inside.narrowed(None, item)
        # A region of bands is its own hull. Bounds that stay inside it need no `and` with it.
        is_atom = isinstance(item, nodes.Compare | Joined) and isinstance(value, Region)
        if is_atom and found.is_of_bands and all(b.stays_in(inside.bands) for b in inside.bounds):
            return value
        return found & value

    def joined(self, items: Sequence[nodes.Mask]) -> "list[nodes.Mask | Joined]":
        """Join comparisons that bound the same number from below and from above."""
        bounds: dict[nodes.Mask, Between | None] = {
            item: self.bound(item) for item in items if isinstance(item, nodes.Compare)
        }
        parts: list[nodes.Mask | Joined] = []
        for item in items:
            own = bounds.get(item)
            for at, part in enumerate(parts):
                other = bounds.get(part) if isinstance(part, nodes.Compare) else None
                both = other.joined(own) if own is not None and other is not None else None
                if both is not None:
                    parts[at] = Joined(part.place, both)
                    break
            else:
                parts.append(item)
        return parts

    def bound(self, node: nodes.Compare) -> Between | None:
        """Return a comparison as bounds of a number of the key, if it is one of plain terms."""
        if node.op in ("==", "!="):
            return None
        try:
            a, b = self.frame.number(node.left), self.frame.number(node.right)
            term = add(a, scale(b, -1), self.frame.num_tokens)
            return self.between(term, node.op) if isinstance(term, Term) else None
        except (TooManyPieces, OverBudget, NotSeparable, ValueTooLarge):
            return None  # evaluating it fails again, and then the error names its place

    def narrowed(self, found: MaskValue | None, item: "nodes.Mask | Joined") -> MaskValue:
        """Return the pairs that a mask and an item share; None stands for all pairs."""
        if isinstance(item, nodes.Not):
            return (self.everything() if found is None else found) - self.mask(item.item)
        if isinstance(item, Joined):
            value = self.evaluate(item.place, lambda: self.within(item.bounds))
        else:
            value = self.mask(item)
        return value if found is None else found & value

    # ---- pairs ----

    def between(self, term: Term, op: str) -> Between:
        """Read ``term op 0`` as bounds of a number of the key, or of the query if transposed."""
        on_rows, on_keys = term.on_q, term.on_k
        if self.is_transposed:
            on_rows, on_keys = on_keys, on_rows
        return Between.of(on_rows, on_keys, op)

    def within(self, bounds: Between) -> Region:
        """Return the pairs inside some bounds."""
        self.bounds.append(bounds)
        return bounds.region(self.bands, max_jobs=self.max_jobs)

    def compare(self, term: Term, op: str) -> Region:
        """Return the pairs with ``term op 0``."""
        if op == "!=":
            return self.compare(term, "<") | self.compare(term, ">")
        return self.within(self.between(term, op))

    def everything(self) -> Region:
        """Return all pairs of each cell."""
        start, end = self.frame.cells.start, self.frame.cells.end
        return Region.rectangles(self.frame.num_tokens, start, end, start, end)

    def unary(self, own: Instances, *, is_of_k: bool) -> Region:
        """Return the pairs of a cell whose query (or key) lies in one of some filled instances."""
        cells = self.frame.cells
        cell = np.searchsorted(cells.end, own.start, side="right")
        whole, inside = (cells.start[cell], cells.end[cell]), (own.start, own.end)
        of_keys = is_of_k != self.is_transposed
        sides = (*whole, *inside) if of_keys else (*inside, *whole)
        return Region.rectangles(self.frame.num_tokens, *sides)

    def same(self, own: Instances) -> Region:
        """Return the pairs of tokens of the same instance."""
        n, start, end = self.frame.num_tokens, own.start, own.end
        if not own.is_split:
            return Region.rectangles(n, start, end, start, end)
        group = own.labels()
        ordered = np.sort(group)
        first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
        counts = np.diff(first, append=len(ordered))
        # each stretch of an id sees each: in float64, as squares may leave int64
        squares = float((counts.astype(np.float64) ** 2).sum())
        limit_pieces(squares, self.max_jobs, "pairs of stretches of the same id")
        order = np.argsort(group, kind="stable")
        size = np.repeat(counts, counts)
        left = np.repeat(order, size)
        right = order[expand(np.repeat(first, counts), size)[1]]
        return Region.rectangles(n, start[left], end[left], start[right], end[right])

    def paths(self, tree: Tree, node: nodes.Along) -> MaskValue:
        """Return the pairs of tokens with those on their paths."""
        in_order = np.array_equal(tree.ranks, tree.start)
        if not in_order or not self.is_transposed:
            with suppress(TooManyPieces):
                return self.along_each(tree)
        if in_order:
            with suppress(TooManyPieces):
                return self.along(tree)
        if len(tree.join):
            raise TooManyPieces("joins of branches in any order")
        return self.mask(node.by_rank())

    def along(self, tree: Tree) -> Region:
        """Return the pairs of tokens with those on their paths, in a tree written depth first.

        A stretch is seen from its own tokens causally, and by all of what goes on from it.
        """
        # written depth first, a subtree is one stretch of tokens, `sizes` of them
        start, end, last = tree.start, tree.end, tree.start + tree.sizes
        flat, rising = np.zeros(len(start), np.int64), np.ones(len(start), np.int64)
        # from the keys one slab: each token is seen by all that follows it in its subtree
        columns: tuple[Ints, ...] = (start, end, start, last, rising, flat)
        if not self.is_transposed:
            own = (start, end, start, start + 1, flat, rising)
            below = (end, last, start, end, flat, flat)
            columns = tuple(np.concatenate(pair) for pair in zip(own, below, strict=True))
        rows = start[tree.join], last[tree.join]
        return self.of_paths(columns, rows, (tree.since, tree.until))

    def of_paths(
        self, columns: tuple[Ints, ...], rows: tuple[Ints, Ints], keys: tuple[Ints, Ints]
    ) -> Region:
        """Return slabs, and rectangles of joins with what they join, as a region of this frame."""
        if len(rows[0]):
            rows, keys = (keys, rows) if self.is_transposed else (rows, keys)
            flat = np.zeros(len(rows[0]), np.int64)
            joined = (*rows, *keys, flat, flat)
            columns = tuple(np.concatenate(pair) for pair in zip(columns, joined, strict=True))
        found = Region.of(self.frame.num_tokens, columns)
        return found if self.frame.outer is None else found & self.everything()

    def along_each(self, tree: Tree) -> Region:
        """Return the same pairs in a tree written in any order: a rectangle for each ancestor."""
        own, above = tree.ancestors(self.max_jobs)
        # a join, and all that goes on from it, sees what it joins
        order = np.argsort(tree.join, kind="stable")
        below, join = (np.append(np.unique(tree.join), each) for each in (own, above))
        low, high = (np.searchsorted(tree.join[order], join, side) for side in ("left", "right"))
        which, at = expand(low, high - low)
        rows = tree.start[below[which]], tree.end[below[which]]
        keys = tree.since[order[at]], tree.until[order[at]]
        if not self.is_transposed:
            first, last = np.append(tree.start[above], keys[0]), np.append(tree.end[above], keys[1])
            return self.along_rows(tree, np.append(own, below[which]), first, last)
        ones, flat = np.ones(len(tree.start), np.int64), np.zeros(len(own), np.int64)
        triangles = tree.start, tree.end, tree.start, tree.end, ones, 0 * ones
        blocks = tree.start[above], tree.end[above], tree.start[own], tree.end[own], flat, flat
        columns = tuple(np.concatenate(pair) for pair in zip(triangles, blocks, strict=True))
        return self.of_paths(columns, rows, keys)

    def along_rows(self, tree: Tree, own: Ints, first: Ints, last: Ints) -> Region:
        """Return the pairs of stretches with ranges of earlier keys, and with themselves causally.

        Ranges that touch are joined, so that no rows need a sweep.
        """
        count, n = len(tree.start), self.frame.num_tokens
        own = np.append(own, np.arange(count))
        first, last = np.append(first, tree.start), np.append(last, tree.end)
        order = np.argsort(own * n + first, kind="stable")  # its own range is the last of each
        is_own = order >= len(order) - count
        own, first, last = own[order], first[order], last[order]
        is_new = np.append(True, (own[1:] != own[:-1]) | (first[1:] != last[:-1]))
        head, tail = np.flatnonzero(is_new), np.flatnonzero(np.append(is_new[1:], True))
        own, rising = own[head], is_own[tail].astype(np.int64)
        ends = np.where(rising, tree.start[own] + 1, last[tail])
        columns = tree.start[own], tree.end[own], first[head], ends, 0 * rising, rising
        found = Region.of(n, columns)
        return found if self.frame.outer is None else found & self.everything()

    def membership(self, own: Instances, at: nodes.Number) -> MaskValue:
        """Return the pairs for which a number points into one of some filled instances."""
        if isinstance(at, nodes.Pos):
            return self.unary(own, is_of_k=at.side == "k")
        function = own.function(self.frame.num_tokens, np.zeros(len(own), np.int64))
        return self.compare(self.frame.look_up(function, at), "==")

    def listed(self, node: nodes.Listed) -> Region:
        """Return the pairs for which a number of one token is in a list of the other."""
        index, values = self.frame.lists(node)
        rows, is_list_of_k = self.frame.look_up(index, node.at).single()
        numbers, is_item_of_k = self.frame.of_one_token(node.item)
        if rows.is_constant:  # a list or a number that all tokens share belongs to either side
            is_list_of_k = not is_item_of_k
        if is_list_of_k == is_item_of_k and not numbers.is_constant:
            raise NotSeparable
        found = listed(rows, values, numbers, self.max_jobs)
        if is_list_of_k != self.is_transposed:
            sides = found.kv_start, found.kv_end, found.q_start, found.q_end
            found = Region.rectangles(found.num_tokens, *sides)
        return found if self.frame.outer is None else found & self.everything()

    def inside(self, cells: Instances, body: nodes.Mask) -> MaskValue:
        """Evaluate a mask inside each cell, in its own coordinates."""
        if not len(cells):
            return Region.empty(self.frame.num_tokens)
        inner = self.frame.inside(cells)
        try:
            return Lowering(inner, is_transposed=self.is_transposed).mask(body)
        except VaryingLength as error:
            if error.frame is not inner:
                raise
        # Some number must be one constant. Cells of each length are evaluated apart; where lengths
        # are equal something else varies, such as the count of a segment: then each cell is.
        sizes = cells.end - cells.start
        which = sizes if len(np.unique(sizes)) > 1 else np.arange(len(sizes))
        parts = [self.inside(cells.select(which == one), body) for one in np.unique(which)]
        return reduce(or_, parts)

    # ---- comparisons ----

    def comparison(self, node: nodes.Compare) -> MaskValue:
        """Evaluate a comparison.

        Raises:
            NotSeparable: if the difference has no form that can be solved.
            TooManyPieces: if the answer is too wide.
        """
        if (runs := by_distance(node, self.frame)) is not None:
            at = self.frame.position()
            distance = Term(at, at.scale(-1))
            bands = [
                self.compare(distance.shift(-low), ">=") & self.compare(distance.shift(-high), "<")
                for low, high in runs
            ]
            return reduce(or_, bands, Region.empty(self.frame.num_tokens))
        shift = self.common_remainder(node)
        if shift is not None:
            return self.compare_remainder(shift, node.op)
        a, b, op = self.frame.number(node.left), self.frame.number(node.right), str(node.op)
        # a quotient of the distance has no sums: it is compared with a constant alone
        if isinstance(b, Quotient):
            a, b, op = b, a, MIRRORED[op]
        if isinstance(a, Quotient) and isinstance(b, int):
            return self.compare_quotient(a, b, op)
        difference = add(a, scale(b, -1), self.frame.num_tokens)
        match difference:
            case Cyclic():
                return self.compare_remainder(difference, op)
            case Extreme():
                return self.compare_extreme(difference, op)
        assert not isinstance(difference, Quotient), "a sum with a quotient is none"
        return self.compare(as_term(difference, self.frame.num_tokens), op)

    def common_remainder(self, node: nodes.Compare) -> Cyclic | None:
        """Read ``a % c == b % c`` as ``(a - b) % c == 0`` where a - b depends on q - k alone."""
        match node:
            case nodes.Compare(
                "==" | "!=", nodes.Arithmetic("%", a, c), nodes.Arithmetic("%", b, d)
            ) if self.frame.number(c) == self.frame.number(d):
                distance = nodes.Arithmetic("-", a, b, place=node.place)
                try:
                    number = self.frame.number(nodes.Arithmetic("%", distance, c, place=node.place))
                except NotSeparable:
                    return None
                return number if isinstance(number, Cyclic) else None
        return None

    def compare_remainder(self, value: Cyclic, op: str) -> MaskValue:
        """Return the pairs whose remainder of the distance ``value op 0``."""
        if self.is_transposed:  # `Classes` has remainders of row - key, which would be k - q
            raise TooManyPieces("remainders of a distance seen from the keys")
        return Classes.of_truth(value.compare(op), self.everything())

    def compare_quotient(self, value: Quotient, limit: int, op: str) -> Region:
        """Return the pairs with ``value op limit``."""
        at = self.frame.position()
        scaled = Term(at, at.scale(-1)).scale(value.factor)  # factor * (q - k)
        parts = [self.compare(scaled.shift(-bound), sign) for sign, bound in value.bound(op, limit)]
        if len(parts) == 1:
            return parts[0]
        return parts[0] & parts[1] if op == "==" else parts[0] | parts[1]

    def compare_extreme(self, value: Extreme, op: str) -> Region:
        """Return the pairs with ``value op 0``, from those of the terms.

        ``max(a, b) <= 0`` is `and`, ``max(a, b) >= 0`` is `or`; min the other way round.
        """
        if op == "==":
            return self.compare_extreme(value, "<=") & self.compare_extreme(value, ">=")
        if op == "!=":
            return self.compare_extreme(value, "<") | self.compare_extreme(value, ">")
        bounds = [self.between(term, op) for term in value.terms]
        # an `and` needs no more: where all terms compare true, all of them are defined
        if value.is_max == (op in ("<", "<=")):
            if len(bounds) == 2:
                both = bounds[0].joined(bounds[1])
                bounds = bounds if both is None else [both]
            return reduce(and_, map(self.within, bounds))
        result = reduce(or_, map(self.within, bounds))
        # One undefined term makes the extreme undefined, so `or` must not let another decide alone.
        for term in value.terms:
            if not (term.on_q.is_defined.all() and term.on_k.is_defined.all()):
                result = result & self.defined(term)
        return result

    def defined(self, term: Term) -> Region:
        """Return the pairs on which a term is defined."""
        # a function times 0 is 0 where it is defined, and nothing elsewhere
        on_q = Term.of(term.on_q.scale(0), is_of_k=False)
        on_k = Term.of(term.on_k.scale(0), is_of_k=True)
        return self.compare(on_q, "==") & self.compare(on_k, "==")
