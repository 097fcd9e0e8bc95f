"""Bind a mask without a symbolic form: regions where they exist, comparisons of trees elsewhere."""

from collections.abc import Mapping
from typing import NoReturn

import numpy as np

from dcp_dsl.budget import Budget, OverBudget
from dcp_dsl.core.frame import Frame, VaryingLength
from dcp_dsl.core.instances import Instances
from dcp_dsl.core.layout import Column
from dcp_dsl.core.lowering import Lowering, NoForm
from dcp_dsl.elaboration import nodes
from dcp_dsl.forms.conversion import to_form
from dcp_dsl.forms.form import Form
from dcp_dsl.forms.tiles import Compared, Inverted, Joined, Known, Predicate, Tiles
from dcp_dsl.symbolic.number_trees import Combined, Grid, LookedUp, NumberTree, Plain
from dcp_dsl.symbolic.piecewise import Piecewise, TooManyPieces
from dcp_dsl.symbolic.terms import NotSeparable, Term

MAX_STEPS = 2**22  # of symbolic work on one part
MAX_UNDECIDED = 2**31  # pairs to look at one by one; some seconds
MAX_BLOCKS = 2**9  # per side, when deciding whether a mask is too large


def bind_tiles(
    core: nodes.Mask, columns: Mapping[str, Column], num_tokens: int, place: nodes.Place
) -> Form:
    """Return the mask as a predicate.

    Args:
        core: as for `bind_core`, like the next two.
        columns: of the sample.
        num_tokens: tokens of the sample.
        place: what had no symbolic form, for messages.

    Raises:
        SpecError: if too many pairs would have to be looked at one by one.
    """
    frame = Frame.of(num_tokens, columns, Budget(MAX_STEPS))
    try:
        predicate = _Tiling(frame).mask(core)
    except (NoForm, NotSeparable, TooManyPieces, OverBudget):
        _refuse(place)
    block = max(64, -(-num_tokens // MAX_BLOCKS))
    bounds = np.unique(np.append(np.arange(0, num_tokens, block), num_tokens))
    always, ever = predicate.on(Grid(bounds, bounds))
    if int((ever & ~always).sum()) * block**2 > MAX_UNDECIDED:
        _refuse(place)
    return Tiles(num_tokens, predicate)


def _refuse(place: nodes.Place) -> NoReturn:
    place.fail(
        "E191", "this falls into too many pieces on this sample",
        "use a shorter sample, or larger tiles",
    )  # fmt: skip


class _Tiling:
    """Builds the predicate of masks in one frame."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.lowering = Lowering(frame, is_transposed=False)

    def mask(self, node: nodes.Mask) -> Predicate:
        """Return a mask as a predicate: known as a whole, or made of its parts."""
        try:
            found = self.lowering.mask(node)
        except NoForm as error:
            if isinstance(error.why, OverBudget):
                raise
            return self.parts(node)
        return Known(to_form(found, is_transposed=False))

    def parts(self, node: nodes.Mask) -> Predicate:
        """Return a mask as a tree of its parts."""
        match node:
            case nodes.Not(item):
                return self.inside(Inverted(self.mask(item)))
            case nodes.And(items) | nodes.Or(items):
                return Joined(isinstance(node, nodes.And), tuple(map(self.mask, items)))
            case nodes.Frame(segment, body):
                return self.per(self.frame.instances(segment).filled(), body)
            case nodes.Compare(op, left, right):
                a, b = number_tree(left, self.frame), number_tree(right, self.frame)
                return self.inside(Compared(op, a, b))
            case nodes.Within(segment, at):
                own = self.frame.instances(segment).filled()
                function = own.function(self.frame.num_tokens, np.zeros(len(own), np.int64))
                return self.inside(Compared("==", _look_up(function, at, self.frame), Plain(0)))
            case nodes.Same(segment):
                own = self.frame.instances(segment).filled()
                function = own.function(self.frame.num_tokens, own.number)
                of_q, of_k = Plain(Term.of_q(function)), Plain(Term.of_k(function))
                return self.inside(Compared("==", of_q, of_k))
        raise AssertionError(f"this always has a form: {type(node).__name__}")

    def inside(self, predicate: Predicate) -> Predicate:
        """Leave out what lies outside all cells."""
        if self.frame.outer is None:
            return predicate
        everything = Known(to_form(self.lowering.everything(), is_transposed=False))
        return Joined(True, (everything, predicate))

    def per(self, cells: Instances, body: nodes.Mask) -> Predicate:
        """Return a mask inside each cell."""
        inner = _Tiling(self.frame.inside(cells))
        try:
            return inner.inside(inner.mask(body))
        except VaryingLength as error:  # a size depends on the instance: one by one
            if error.frame is not inner.frame:
                raise
        alone = [cells.select(np.arange(len(cells)) == i) for i in range(len(cells))]
        return Joined(False, tuple(self.per(cell, body) for cell in alone))


def number_tree(node: nodes.Number, frame: Frame) -> NumberTree:
    """Return a number: known as a whole, or made of its parts."""
    try:
        return Plain(frame.number(node))
    except (NotSeparable, TooManyPieces):
        match node:
            case nodes.Arithmetic(op, left, right):
                return Combined(op, number_tree(left, frame), number_tree(right, frame))
            case nodes.Outside(levels, inner):
                return number_tree(inner, frame.up(levels))
            case nodes.Lookup(table, fact, at):
                return _look_up(frame.table(table, fact), at, frame)
        raise


def _look_up(function: Piecewise, at: nodes.Number, frame: Frame) -> NumberTree:
    """Read a function of the token that a tree points at."""
    tree = number_tree(at, frame)
    if frame.outer is None:
        return LookedUp(function, tree)
    start, size = frame.per_cell(frame.cells.start), frame.cells.end - frame.cells.start
    return LookedUp(function, tree, start, frame.per_cell(size))
