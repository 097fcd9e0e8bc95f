"""Evaluate the numbers and segments of a core program in a frame: a sample, or parts of it.

Numbers become functions of the query and the key (`symbolic.terms`), segments arrays of instances.
Inside ``per doc`` the frame is the documents: positions, `len` and counts are those of each one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_dsl.core.columns import Column, bind_columns, read_instances, read_row, read_tokens
from dcp_dsl.core.conditions import fulfil
from dcp_dsl.core.instances import Instances, Tree, tile, unite
from dcp_dsl.core.layout import bind_layout
from dcp_dsl.core.sample import Rectangle
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.programs import show_segment
from dcp_dsl.elaboration.rising import RISING_FUNCTIONS
from dcp_dsl.errors import Budget, DatasetError
from dcp_dsl.symbolic.intervals import UNBOUNDED, Interval
from dcp_dsl.symbolic.piecewise import Piecewise, limit_pieces
from dcp_dsl.symbolic.terms import (
    Cyclic,
    Extreme,
    NotSeparable,
    NumberValue,
    Quotient,
    Term,
    VaryingLength,
    add,
    as_term,
    bounded,
    divide_each,
    extreme,
    num_pieces,
    scale,
)
from dcp_dsl.syntax import ast

MAX_STEPS = 2**16  # different values of a rising function, token by token
STEPS_PER_NODE = 250  # cost of a node beside its pieces or slabs


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """The coordinates of nodes: a sample is one cell; inside `per` every instance is a cell.

    Positions count from the start of their cell. Tokens outside all cells have no position.

    Attributes:
        num_tokens: tokens of the sample, at least 1.
        columns: of the sample.
        budget: shared by all frames of a sample.
        cells: the whole sample, or the instances of the innermost `per`, none of them empty.
        outer: the frame around, None for the whole sample.
        known: numbers and instances already found here, by node.
        laid: instances of the names of each statement, by the identity of the statement.
        columns_read: columns of tokens and instances already read; shared by all frames.
        trees: of layouts already laid out, by the identity of the statement; shared.
        rectangle: queries and keys, where they are two sequences.
        num_listed: instances that the sample lists for layouts and spans. An exact mask may need
            some pieces for each, however many there are.
    """

    num_tokens: int
    columns: Mapping[str, Column]
    budget: Budget
    cells: Instances
    outer: "Frame | None" = None
    known: dict[object, Any] = field(default_factory=dict)  # Any: each node knows what it makes
    laid: dict[int, dict[str, Instances]] = field(default_factory=dict)
    columns_read: dict[object, tuple[Piecewise, Ints]] = field(default_factory=dict)
    trees: dict[int, Tree] = field(default_factory=dict)
    rectangle: Rectangle | None = None
    num_listed: int = 0

    @classmethod
    def of(
        cls, num_tokens: int, columns: Mapping[str, Column], budget: Budget,
        rectangle: Rectangle | None = None, num_listed: int = 0,
    ) -> "Frame":  # fmt: skip
        """Return the frame of a whole sample."""
        cells = Instances.of(np.zeros(1, np.int64), np.full(1, num_tokens, np.int64))
        return cls(num_tokens, columns, budget, cells, rectangle=rectangle, num_listed=num_listed)

    def tokens(self, fact: object) -> int:
        """Return the tokens of the sequence that a statement or a token column belongs to."""
        return self.num_tokens if self.rectangle is None else self.rectangle.tokens(fact)

    def inside(self, cells: Instances) -> "Frame":
        """Return the frame of instances, with coordinates of their own."""
        return Frame(
            self.num_tokens, self.columns, self.budget, cells, self,
            columns_read=self.columns_read, trees=self.trees, num_listed=self.num_listed,
        )  # fmt: skip

    def up(self, levels: int) -> "Frame":
        """Return the frame so many levels further out."""
        found = self
        for _ in range(levels):
            assert found.outer is not None, "every frame but the sample has one around it"
            found = found.outer
        return found

    def per_cell(self, values: Ints, slope: int = 0) -> Piecewise:
        """Return the function with a value at the start of each cell."""
        return self.cells.function(self.num_tokens, values, slope)

    def position(self) -> Piecewise:
        """Return the position of each token, counted from the start of its cell."""
        if "position" not in self.known:
            self.known["position"] = self.per_cell(np.zeros(len(self.cells), np.int64), slope=1)
        found: Piecewise = self.known["position"]
        return found

    # ---- numbers ----

    def number(self, node: nodes.Number) -> NumberValue:
        """Evaluate a number.

        Raises:
            NotSeparable, TooManyPieces: if it has no symbolic form.
            VaryingLength: if a size differs from cell to cell.
        """
        if node not in self.known:
            found = self._number(node)
            self.budget.spend(STEPS_PER_NODE + num_pieces(found))
            self.known[node] = found
        result: NumberValue = self.known[node]
        return result

    def _number(self, node: nodes.Number) -> NumberValue:
        match node:
            case nodes.Const(value):
                return value
            case nodes.Pos(side):
                return Term.of(self.position(), is_of_k=side == "k")
            case nodes.Length():
                return self.constant_of(self.cells.end - self.cells.start)
            case nodes.Count(segment):
                return self.count(self.instances(segment))
            case nodes.RowColumn(name):
                return read_row(name, self.columns)
            case nodes.Outside(levels, inner):
                return self.up(levels).number(inner)
            case nodes.Arithmetic():
                return self.arithmetic(node)
            case nodes.Rising(_, inner):
                return self.rising(node, self.number(inner))
            case nodes.Lookup(table, fact, at):
                return self.look_up(self.table(table, fact), at)
        raise AssertionError(f"no number on a sample: {type(node).__name__}")

    def constant_of(self, values: Ints) -> NumberValue:
        """Return a number that has one value in each cell."""
        if (values == values[0]).all():
            return int(values[0])
        # query and key lie in one cell, so the number may be read at the query
        return Term.of(self.per_cell(values), is_of_k=False)

    def constant(self, node: nodes.Number) -> int:
        """Evaluate a number that depends on no position.

        Raises:
            VaryingLength: if it differs from cell to cell, here or in a frame around.
        """
        try:
            number = self.number(node)
        except NotSeparable:  # lengths that differ, divided or multiplied
            number = None
        if isinstance(number, int):
            return number
        # If a length further out varies, the frame there has to be split by lengths, not this one.
        for inner in nodes.walk(node):
            if isinstance(inner, nodes.Outside):
                self.up(inner.levels).constant(inner.value)
        raise VaryingLength(self)

    def arithmetic(self, node: nodes.Arithmetic) -> NumberValue:
        """Evaluate ``left op right``."""
        left, right = self.number(node.left), self.number(node.right)
        match node.op:
            case "+":
                return bounded(add(left, right, self.num_tokens))
            case "-":
                return bounded(add(left, scale(right, -1), self.num_tokens))
            case "min" | "max":
                is_max = node.op == "max"
                return extreme(left, right, is_max=is_max, num_tokens=self.num_tokens)
            case "*" if isinstance(left, int):
                return bounded(scale(right, left))
        # a right side that differs from pair to pair: `q // q.doc.len` has a form, `q * k` has none
        if not isinstance(right, int) and not nodes.is_fixed(node.right):
            if node.op == "*":
                raise NotSeparable
            return divide_each(left, node.op, right, self.num_tokens)
        if node.op == "*":
            return bounded(scale(left, self.constant(node.right)))
        return self.divide(left, node.op, self.divisor(node.right))

    def rising(self, node: nodes.Rising, value: NumberValue) -> NumberValue:
        """Return a rising function of a number of one token, or of none.

        Raises:
            NotSeparable: for others; `by_distance` and bounds decide them.
            TooManyPieces: if it has too many values.
        """
        rising = RISING_FUNCTIONS[node.name]
        if isinstance(value, Term):
            function, is_of_k = value.single()
            own = Interval.exact(*function.at(np.arange(self.num_tokens))).rise(rising)
            is_new = (np.diff(own.low) != 0) | np.diff(own.surely)
            starts = np.append(0, np.flatnonzero(is_new) + 1)
            limit_pieces(len(starts), MAX_STEPS, f"values of `{node.name}`")
            flat = np.zeros(len(starts), np.int64)
            values = Piecewise(self.num_tokens, starts, own.low[starts], flat, own.surely[starts])
            return Term.of(values, is_of_k=is_of_k)
        if not isinstance(value, int):
            raise NotSeparable
        found = rising.at(value)
        if found is None:
            least, most = rising.least, rising.most
            to = f"to {most}" if most < UNBOUNDED else "and more"
            hint = f"`{node.name}` takes {least} {to}"
            node.place.fail("E111", f"`{node.name}` of {value} is nothing", hint)
        return found

    def divisor(self, node: nodes.Number) -> int:
        """Evaluate a number that something is divided by, which must be positive."""
        value = self.constant(node)
        if value < 1:
            node.place.fail("E111", f"this divides by {value}", "the divisor is at least 1")
        return value

    def divide(self, left: NumberValue, op: str, right: int) -> NumberValue:
        """Return ``left // right`` or ``left % right``."""
        match left:
            case int():
                return left // right if op == "//" else left % right
            case Extreme():
                raise NotSeparable
            case Term():
                return left.divide(op, right, (self.cells.start, self.cells.end))
            case Cyclic() | Quotient():
                return left.divide(op, right)

    def count(self, instances: Instances) -> NumberValue:
        """Count instances: those of the sample, or of each cell."""
        if instances.num_ids is not None:
            return instances.num_ids
        return self.constant_of(np.bincount(instances.cells, minlength=len(self.cells)))

    # ---- tables ----

    def look_up(self, function: Piecewise, at: nodes.Number) -> Term:
        """Evaluate a function of the token that a number points at."""
        if isinstance(at, nodes.Pos):
            return Term.of(function, is_of_k=at.side == "k")
        where, is_of_k = self.of_one_token(at)
        return Term.of(function.compose(self.absolute(where)), is_of_k=is_of_k)

    def of_one_token(self, node: nodes.Number) -> tuple[Piecewise, bool]:
        """Evaluate a number of one position; return it, and whether that is the key's."""
        number = self.number(node)
        if not isinstance(number, int | Term):
            raise NotSeparable
        return as_term(number, self.num_tokens).single()

    def absolute(self, where: Piecewise) -> Piecewise:
        """Turn positions counted from the start of a cell into tokens of the sample."""
        if self.outer is None:
            return where
        # Positions outside the cell point at nothing: only 0 <= where < size stays defined.
        sizes = self.per_cell(self.cells.end - self.cells.start)
        where = where + self.per_cell(np.zeros(len(self.cells), np.int64))
        for side, op, bound in ((where, ">=", 0), (where + sizes.scale(-1), "<=", -1)):
            starts, ends = side.solve(op, bound)
            flat = np.zeros_like(starts)
            where = where + Instances.of(starts, ends).function(self.num_tokens, flat)
        return where + self.per_cell(self.cells.start)

    def table(self, table: "nodes.Segment | nodes.TokenColumn", fact: nodes.Fact) -> Piecewise:
        """Return a fact about the instance of each token, or a column of it."""
        if isinstance(table, nodes.TokenColumn):
            return self.column(table)
        if isinstance(table, nodes.Laid) and fact in ("path", "rank", "last_rank"):
            return self.path(table, fact)
        instances = self.instances(table)
        if fact in ("number", "count"):
            values = instances.number if fact == "number" else instances.total
            return instances.function(self.num_tokens, values)
        if instances.is_split:
            raise DatasetError(
                f"`.{fact}` needs instances of one stretch each, but an id comes back after "
                f"others; use stretches of tokens (`flags`, `spans`, or a name behind `as`)"
            )
        own = instances.filled()
        base = np.zeros(len(own), np.int64)
        if fact in ("start", "end"):
            # positions of a frame count from the start of the cell around the instance
            base = self.cells.start[np.searchsorted(self.cells.end, own.start, side="right")]
        values = {
            "start": own.start - base, "end": own.end - base, "len": own.end - own.start,
            "pos": base,
        }[fact]  # fmt: skip
        return own.function(self.num_tokens, values, slope=1 if fact == "pos" else 0)

    def tree(self, table: nodes.Laid) -> Tree:
        """Return the tree of a layout's branches."""
        self.lay_out(table.statement)
        return self.trees[id(table.statement)]

    def path(self, table: nodes.Laid, fact: nodes.Fact) -> Piecewise:
        """Return the place of each token on its path, or its rank in the tree of a layout.

        Places count from the first token of the cell. Ranks are only compared with each other, so
        they count from the start of the sample everywhere.
        """
        tree = self.tree(table)
        stretches = Instances.of(tree.start, tree.end)
        if fact == "last_rank":
            return stretches.function(self.num_tokens, tree.ranks + tree.sizes - 1)
        if fact == "rank":
            return stretches.function(self.num_tokens, tree.ranks, slope=1).joined()
        path = stretches.function(self.num_tokens, tree.depth, slope=1).joined()
        if self.outer is not None:
            path = path + self.per_cell(-tree.depth_at(self.cells.start))
        if table.name == table.statement.name.text:  # the name for all parts: all tokens have it
            return path
        own = self.instances(table).filled()
        return path + own.function(self.num_tokens, np.zeros(len(own), np.int64))

    def column(self, node: nodes.TokenColumn) -> Piecewise:
        """Return the value of a column at each position."""
        index, values = self.rows_of(node)
        return index.with_values(values[index.values], index.slopes) if len(values) else index

    def lists(self, node: nodes.Listed) -> tuple[Piecewise, Ints]:
        """Return each position's row in a table of lists, and the table, int64 ``[R, size]``."""
        index, values = self.rows_of(node.table)
        is_laid = not any(isinstance(inner, nodes.TokenColumn) for inner in nodes.walk(node.item))
        if is_laid and values.size and values.max() >= self.num_tokens:
            raise DatasetError(
                f"column `{node.table.column}`: expected numbers below {self.num_tokens}, which is "
                f"how many tokens the sample has, got {values.max()}"
            )
        return index, values

    def rows_of(self, node: nodes.TokenColumn) -> tuple[Piecewise, Ints]:
        """Return for each position the row of its value, and the values; lists are sorted."""
        key = node.column, node.size, node.segment
        if key not in self.columns_read:
            # columns belong to the sample: they are read in the outermost frame, for all cells
            root = self
            while root.outer is not None:
                root = root.outer
            self.columns_read[key] = root._read(node)
        return self.columns_read[key]

    def _read(self, node: nodes.TokenColumn) -> tuple[Piecewise, Ints]:
        if node.segment is None:
            own, values = read_tokens(node, self.columns, self.tokens(node.column))
        else:
            own = self.instances(node.segment)
            values = read_instances(node, self.columns, own)
        return own.function(self.num_tokens, np.arange(len(own))), values

    # ---- segments ----

    def instances(self, node: nodes.Segment) -> Instances:
        """Find the instances of a segment."""
        if node not in self.known:
            self.known[node] = self._instances(node)
        found: Instances = self.known[node]
        return found

    def cells_of(self, node: nodes.Segment) -> Instances:
        """Find the instances with tokens that a frame inside this one is made of."""
        cells = self.instances(node).filled()
        if cells.is_split:
            raise DatasetError(
                f"`per {show_segment(node)}` needs instances of one stretch each, but an id "
                f"comes back after others"
            )
        return cells

    def _instances(self, node: nodes.Segment) -> Instances:
        match node:
            case nodes.Filtered() | nodes.Union() if self.outer is not None:
                return self.outer.instances(node).clip(self.cells, self.outer.cells)
            case nodes.Filtered(segment, condition):
                own = self.instances(segment)
                return own.keep(fulfil(condition, own, self.columns))
            case nodes.Union(segments):
                return unite(list(map(self.instances, segments)), list(map(show_segment, segments)))
            case nodes.Laid(statement, name):
                return self.lay_out(statement)[name]
            case nodes.Chosen(is_first, segment, count):
                instances, how_many = self.instances(segment), self.constant(count)
                return instances.first(how_many) if is_first else instances.last(how_many)
            case nodes.Tiles(size, parent):
                tokens = self.constant(size)
                if tokens < 1:
                    node.place.fail(
                        "E111", f"`every {tokens}` makes no tiles",
                        "the size of a tile is at least 1 token",
                    )  # fmt: skip
                around = self.cells.as_parents() if parent is None else self.instances(parent)
                return tile(tokens, around)

    def lay_out(self, statement: ast.Segment) -> dict[str, Instances]:
        """Find the instances of all names of a statement, once; inside `per` cut to each cell."""
        key = id(statement)
        if key not in self.laid:
            if self.outer is not None:
                around = self.outer.lay_out(statement)
                self.laid[key] = {
                    name: found.clip(self.cells, self.outer.cells) for name, found in around.items()
                }
            elif isinstance(statement.source, ast.Layout):
                self.laid[key], self.trees[key] = bind_layout(
                    statement, statement.source, self.columns, self.tokens(statement)
                )
            else:
                assert isinstance(statement.source, ast.Columns), (
                    "tiles are cut where they are used"
                )
                self.laid[key] = bind_columns(
                    statement, statement.source, self.columns, self.tokens(statement)
                )
        return self.laid[key]
