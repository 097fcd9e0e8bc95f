"""Decide a mask block by block: exact parts where they exist, bounds of numbers elsewhere.

A core program becomes functions of a grid of blocks. For each block they say whether all of its
pairs are visible, and whether any may be. On a grid of single pairs both answers are the same and
exact: `dense_mask` asks there, and takes no symbolic form of any part.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TypeAlias

import numpy as np

from dcp_dsl.core.frame import Frame
from dcp_dsl.core.instances import Instances
from dcp_dsl.core.lowering import Lowering, NoForm
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.rising import RISING_FUNCTIONS
from dcp_dsl.errors import OverBudget
from dcp_dsl.forms.conversion import to_form
from dcp_dsl.forms.form import Form
from dcp_dsl.forms.parts import BlockDecision, decide_form
from dcp_dsl.symbolic.classes import num_slabs
from dcp_dsl.symbolic.intervals import UNBOUNDED, Grid, Interval
from dcp_dsl.symbolic.piecewise import Piecewise, TooManyPieces
from dcp_dsl.symbolic.region import Region
from dcp_dsl.symbolic.terms import NotSeparable, NumberValue, VaryingLength

MAX_SLABS = 2**12  # of a part; with more slabs, bounds decide its blocks in less time
Decide: TypeAlias = Callable[[Grid], BlockDecision]
Enclosure: TypeAlias = Callable[[Grid], Interval]


class Predicate:
    """Turns the nodes of one frame into functions of a grid.

    Attributes:
        frame: the coordinates.
        is_symbolic: whether parts with an exact form are decided by that form.
        outer: the predicate of the frame around, None for the whole sample.
    """

    def __init__(
        self, frame: Frame, *, is_symbolic: bool, outer: "Predicate | None" = None
    ) -> None:
        self.frame, self.is_symbolic, self.outer = frame, is_symbolic, outer
        self.lowering = Lowering(frame, is_transposed=False)
        self.masks: dict[nodes.Mask, Decide] = {}
        self.numbers: dict[nodes.Number, Enclosure] = {}

    @classmethod
    def of(cls, core: nodes.Mask, frame: Frame, *, is_symbolic: bool) -> Decide:
        """Return a function that decides a mask on a whole sample, for each block of a grid."""
        decide = cls(frame, is_symbolic=is_symbolic).mask(core)

        # a mask of the query alone decides a column, [Nq, 1]
        def on(grid: Grid) -> BlockDecision:
            always, ever = decide(grid)
            return np.broadcast_to(always, grid.shape), np.broadcast_to(ever, grid.shape)

        return on

    def mask(self, node: nodes.Mask) -> Decide:
        """Return a function that decides a mask, by its form or by its parts."""
        if node not in self.masks:
            decide = self._known(node) or self._parts(node)
            # a node means something else in each frame, so the key has the predicate of the frame
            self.masks[node] = lambda grid: grid.once((node, self), decide)
        return self.masks[node]

    def _known(self, node: nodes.Mask) -> Decide | None:
        """Return a function that decides a mask by its form; None if it has no short one."""
        if not self.is_symbolic:
            return None
        try:
            found = self.lowering.mask(node)
            if num_slabs(found) > MAX_SLABS:
                return None
            form: Form = to_form(found, is_transposed=False)
        except NoForm as error:
            # all parts share the budget: once it is used up, every other part fails, too
            if isinstance(error.why, OverBudget):
                raise
            return None
        return lambda grid: decide_form(form, grid)

    def _parts(self, node: nodes.Mask) -> Decide:
        match node:
            case nodes.Truth(flag):
                zero = _constant(0)
                return _compared("==" if flag else "!=", zero, zero)
            case nodes.Not(item):
                return _inverted(self.mask(item))
            case nodes.And(items) | nodes.Or(items):
                return _joined(list(map(self.mask, items)), is_and=isinstance(node, nodes.And))
            case nodes.Per(segment, body):
                return self._per(self.frame.cells_of(segment), body)
            case nodes.Compare(op, left, right):
                return _compared(op, self.number(left), self.number(right))
            case nodes.Within(segment, at):
                own = self.frame.instances(segment).filled()
                function = own.function(self.frame.num_tokens, np.zeros(len(own), np.int64))
                return _defined(self._look_up(function, at))
            case nodes.Same(segment):
                return _same(self.frame.instances(segment).filled(), self.frame)
            case nodes.Listed():
                return self._listed(node)
            case nodes.Along():
                return self._along(node)
        raise AssertionError(f"no mask on a sample: {type(node).__name__}")

    def _along(self, node: nodes.Along) -> Decide:
        """Return a function that decides whether a key is on the path of a query."""
        if not len(self.frame.tree(node.layout).join):
            return self.mask(node.by_rank())
        found = self.lowering.mask(node)  # what joins see is no range of ranks
        assert isinstance(found, Region), "paths are runs of keys on each row"
        form = to_form(found, is_transposed=False)
        return lambda grid: decide_form(form, grid)

    def _per(self, cells: Instances, body: nodes.Mask) -> Decide:
        """Return a function that decides a mask inside each cell."""
        if not len(cells):
            return _compared("!=", _constant(0), _constant(0))
        frame = self.frame.inside(cells)
        try:
            inner = Predicate(frame, is_symbolic=self.is_symbolic, outer=self)
            return _joined([_same(cells, frame), inner.mask(body)], is_and=True)
        except VaryingLength as error:  # a size differs from cell to cell: each is decided alone
            if error.frame is not frame:
                raise
        alone = [cells.select(np.arange(len(cells)) == i) for i in range(len(cells))]
        return _joined([self._per(cell, body) for cell in alone], is_and=False)

    def _listed(self, node: nodes.Listed) -> Decide:
        """Return a function that decides whether a number is in a list: it compares every place."""
        index, values = self.frame.lists(node)
        row, item = self._look_up(index, node.at), self.number(node.item)
        most = Interval.constant(UNBOUNDED)
        places = values.T[(values >= 0).any(axis=0)] if len(values) else ()  # others name nothing

        def decide(grid: Grid) -> BlockDecision:
            rows, wanted = row(grid), item(grid)
            always = ever = np.zeros((1, 1), np.bool_)
            for place in places:
                # -1 stands for no number, and `below` leaves out what is negative
                found = wanted.compare("==", rows.look_up(place).below(most))
                always, ever = always | found[0], ever | found[1]
            return always, ever

        return decide

    # ---- numbers ----

    def number(self, node: nodes.Number) -> Enclosure:
        """Return a function that bounds a number, by its symbolic form or by its parts."""
        if node not in self.numbers:
            bound = self._plain(node) or self._pieces(node)
            self.numbers[node] = lambda grid: grid.once((node, self), bound)
        return self.numbers[node]

    def _plain(self, node: nodes.Number) -> Enclosure | None:
        """Return a function that bounds a number by its symbolic form; None if it has none."""
        if isinstance(node, nodes.Pos):
            return _of_token(self.frame.position(), node.side)
        has_parts = (nodes.Arithmetic, nodes.Rising, nodes.Lookup, nodes.Outside)
        is_leaf = not isinstance(node, has_parts)
        if not (self.is_symbolic or is_leaf):
            return None
        try:
            number: NumberValue = self.frame.number(node)
        except (NotSeparable, TooManyPieces):
            return None
        return lambda grid: grid.bound(number)

    def _pieces(self, node: nodes.Number) -> Enclosure:
        match node:
            case nodes.Arithmetic(op, left, right):
                # a divisor of the same value for all pairs must be at least 1, here as in `Frame`
                if op in ("//", "%") and nodes.is_fixed(right):
                    self.frame.divisor(right)
                a, b = self.number(left), self.number(right)
                return lambda grid: a(grid).combine(op, b(grid))
            case nodes.Rising(name, inner):
                if nodes.is_fixed(inner):
                    self.frame.constant(node)
                of = self.number(inner)
                return lambda grid: of(grid).rise(RISING_FUNCTIONS[name])
            case nodes.Outside(levels, inner):
                home = self
                for _ in range(levels):
                    assert home.outer is not None, "every frame but the sample has one around it"
                    home = home.outer
                return home.number(inner)
            case nodes.Lookup(table, fact, at):
                return self._look_up(self.frame.table(table, fact), at)
        raise AssertionError(f"no number on a sample: {type(node).__name__}")

    def _look_up(self, function: Piecewise, at: nodes.Number) -> Enclosure:
        """Return a function that bounds a function of the token that a number points at."""
        if isinstance(at, nodes.Pos):
            return _of_token(function, at.side)
        position = self.number(at)
        if self.frame.outer is None:
            return lambda grid: grid.look_up(function, position(grid))
        # a position in a cell is one of the sample only if it lies inside the cell
        cells = self.frame.cells
        start, size = (self.frame.per_cell(v) for v in (cells.start, cells.end - cells.start))

        def bound(grid: Grid) -> Interval:
            inside = position(grid).below(grid.of_q(size))
            return grid.look_up(function, inside.combine("+", grid.of_q(start)))

        return bound


def _constant(value: int) -> Enclosure:
    return lambda grid: Interval.constant(value)


def _of_token(function: Piecewise, side: nodes.Side) -> Enclosure:
    """Return a function that bounds a function of the query, or of the key."""
    if side == "q":
        return lambda grid: grid.of_q(function)
    return lambda grid: grid.of_k(function)


def _compared(op: str, left: Enclosure, right: Enclosure) -> Decide:
    return lambda grid: left(grid).compare(op, right(grid))


def _defined(number: Enclosure) -> Decide:
    def decide(grid: Grid) -> BlockDecision:
        found = number(grid)
        return found.surely, found.possibly

    return decide


def _inverted(inner: Decide) -> Decide:
    def decide(grid: Grid) -> BlockDecision:
        always, ever = inner(grid)
        never = ~ever
        # one array for both verdicts says that they are exact, as in `_joined`
        return never, never if always is ever else ~always

    return decide


def _joined(items: Sequence[Decide], *, is_and: bool) -> Decide:
    join = np.logical_and if is_and else np.logical_or

    def decide(grid: Grid) -> BlockDecision:
        verdicts = [item(grid) for item in items]
        ever = reduce(join, (b for _, b in verdicts))
        if all(a is b for a, b in verdicts):
            return ever, ever
        return reduce(join, (a for a, _ in verdicts)), ever

    return decide


def _same(own: Instances, frame: Frame) -> Decide:
    """Return a function that decides whether query and key lie in the same instance."""
    function = own.function(frame.num_tokens, own.labels())
    return _compared("==", _of_token(function, "q"), _of_token(function, "k"))
