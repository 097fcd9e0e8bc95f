"""Resolve names at one place of a mask, and hold the coordinates it is evaluated in.

Names are looked up in three steps: parameters and `where` bindings, then the text, then the
standard library. Bindings are evaluated where they are used, in the coordinates of that place,
which is what `per` needs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn, TypeAlias

import numpy as np

from dcp_dsl.budget import Budget
from dcp_dsl.checks.scope import Scope
from dcp_dsl.core.instances import Instances
from dcp_dsl.core.layout import Column
from dcp_dsl.symbolic.comparison import MAX_JOBS, compare
from dcp_dsl.symbolic.number_trees import NumberTree
from dcp_dsl.symbolic.piecewise import Bands, Piecewise, expand, sorted_unique
from dcp_dsl.symbolic.region import Region
from dcp_dsl.symbolic.terms import Number, Term
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.ast import Program, Span


class LoweringError(Exception):
    """A mask that cannot be bound: too large for every form, or a constant out of range."""

    def __init__(
        self, code: str, message: str, program: Program, span: Span, hint: str = ""
    ) -> None:
        self.code, self.message, self.program = code, message, program
        self.span, self.hint = span, hint
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Closure:
    """An expression with the environment it is read in: an argument or a `where` binding."""

    value: "ast.Expr | ast.Every | ast.BindFunction"
    env: "Env"


Value: TypeAlias = Number | bool | Closure | NumberTree


@dataclass(frozen=True, slots=True, eq=False)
class Env:
    """The meaning of names at one place.

    Attributes:
        scope: definitions.
        program: the text that spans point into.
        names: parameters and bindings.
    """

    scope: Scope
    program: Program
    names: Mapping[str, Value] = field(default_factory=dict)

    def fail(self, code: str, message: str, span: Span, hint: str = "") -> NoReturn:
        """Raise for something at this place."""
        raise LoweringError(code, message, self.program, span, hint)


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """The coordinates an expression is evaluated in: a sample, or the instances inside `per`.

    Positions count from the start of their cell: the whole sample, or an instance. Tokens outside
    all cells have none.

    Attributes:
        num_tokens: tokens of the sample, at least 1.
        columns: of the sample.
        budget: shared by all frames of a sample.
        cells: the whole sample, or the instances of the innermost `per`; none of them is empty.
        bands: rows and keys that matter.
        is_transposed: whether regions have the keys as their rows.
        max_jobs: how wide a comparison may grow.
        outer: the frame around, None for the whole sample.
        segments: instances already found, by text and statement.
        tokens: token columns already read, by name.
    """

    num_tokens: int
    columns: Mapping[str, Column]
    budget: Budget
    cells: Instances
    bands: Bands
    is_transposed: bool = False
    max_jobs: int = MAX_JOBS
    outer: "Frame | None" = None
    segments: dict[tuple[int, str], dict[str, Instances]] = field(default_factory=dict)
    tokens: dict[str, Piecewise] = field(default_factory=dict)

    @classmethod
    def of(
        cls, num_tokens: int, columns: Mapping[str, Column], budget: Budget, *, is_transposed: bool
    ) -> "Frame":
        """Return the frame of a whole sample."""
        cells = Instances.of(np.zeros(1, np.int64), np.full(1, num_tokens, np.int64))
        bands = Bands.whole(num_tokens)
        return cls(num_tokens, columns, budget, cells, bands, is_transposed)

    @property
    def is_whole(self) -> bool:
        """True if the frame is the whole sample, not a part inside `per`."""
        return self.outer is None

    def inside(self, cells: Instances) -> "Frame":
        """Return the frame of instances, with coordinates of their own."""
        bands = Bands.square(cells.start, cells.end)
        return Frame(
            self.num_tokens, self.columns, self.budget, cells, bands, self.is_transposed,
            self.max_jobs, self, tokens=self.tokens,
        )  # fmt: skip

    def within(self, region: Region) -> "Frame":
        """Return the same coordinates, looking only at what a region may hold."""
        return replace(self, bands=hull(region), max_jobs=MAX_JOBS)

    def narrow(self, max_jobs: int) -> "Frame":
        """Return the same frame with less patience for wide comparisons."""
        return replace(self, max_jobs=max_jobs)

    def compare(self, term: Term, op: str) -> Region:
        """Return the pairs with ``term op 0``."""
        on_rows, on_keys = term.on_q, term.on_k
        if self.is_transposed:
            on_rows, on_keys = on_keys, on_rows
        return compare(on_rows, on_keys, op, self.bands, max_jobs=self.max_jobs)

    def distance(self) -> Term:
        """Return ``q - k``."""
        at = self.cells.function(self.num_tokens, np.zeros(len(self.cells), np.int64), slope=1)
        return Term(at, at.scale(-1))

    def everything(self) -> Region:
        """Return all pairs of each cell."""
        start, end = self.cells.start, self.cells.end
        return Region.rectangles(self.num_tokens, start, end, start, end)

    def unary(self, instances: Instances, *, is_of_k: bool) -> Region:
        """Return the pairs of a cell whose query (or key) lies in one of the instances."""
        own = instances.filled()
        cell = np.searchsorted(self.cells.end, own.start, side="right")
        whole = self.cells.start[cell], self.cells.end[cell]
        inside = own.start, own.end
        of_keys = is_of_k != self.is_transposed
        return Region.rectangles(
            self.num_tokens, *((*whole, *inside) if of_keys else (*inside, *whole))
        )


def hull(region: Region) -> Bands:
    """Return bands that hold a region: for each run of rows the keys between the outermost ones."""
    if len(region.q_start) == 0:
        none = np.empty(0, np.int64)
        return Bands(none, none, none, none)
    knots = sorted_unique(np.concatenate([region.q_start, region.q_end]))
    low, high = (np.searchsorted(knots, v) for v in (region.q_start, region.q_end))
    slab, cell = expand(low, high - low)
    down = knots[cell] - region.q_start[slab]
    rows = knots[cell + 1] - knots[cell] - 1
    first = region.kv_start[slab] + region.start_slope[slab] * down
    last = region.kv_end[slab] + region.end_slope[slab] * (down + rows)
    start = np.full(len(knots), region.num_tokens)
    end = np.zeros(len(knots), np.int64)
    np.minimum.at(start, cell, first)
    np.maximum.at(end, cell, last)
    used = np.flatnonzero(end > start)
    return Bands(knots[used], knots[used + 1], start[used], end[used])
