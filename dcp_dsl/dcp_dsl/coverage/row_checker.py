"""Decide for every row of a data set whether an attached mask may be trained on it.

What can be decided for a whole batch at once is: missing values, lengths that disagree. A row is
looked at alone only if its layout has to be bound to know, or if the mask is not proved to be free
of look-ahead and empty rows, neither in general nor with what the columns of the batch say; rows
with equal columns are then decided once.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Bools, Ints, expand
from dcp_dsl.claims.guard import Guard, MaskRule
from dcp_dsl.core.layout import natural_length
from dcp_dsl.core.mask import Mask
from dcp_dsl.core.sample import Sample
from dcp_dsl.data.dataset import LENGTH_COLUMNS, TOKEN_COLUMNS, require_lengths, row_sizes
from dcp_dsl.data.nesting import (
    NestedColumn,
    column_depth,
    flatten_column,
    measure_layout,
    require_depth,
)
from dcp_dsl.data.sources import Source, require_column
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.programs import column_depths, column_readers, layout_columns
from dcp_dsl.errors import MAX_TOKENS, DatasetError
from dcp_dsl.forms.conversion import as_rows
from dcp_dsl.proof.proving import never
from dcp_dsl.specs.attachment import Attachment
from dcp_dsl.symbolic.piecewise import MAX_VALUE
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import SpecError

if TYPE_CHECKING:
    import pyarrow as pa


MAX_REMEMBERED = 100_000
UNKNOWN = np.iinfo(np.int64).min
"""The length of a row where nothing says it."""


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row of a file or split, counted from 0, that the mask must not be trained on.

    `columns` are those that the mask reads, by the data set's names.
    """

    source: str
    row: int
    columns: Mapping[str, Any]
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class CheckedRows:
    """The decision on one batch.

    Attributes:
        lengths: int64, tokens of the accepted rows, in order.
        samples: accepted rows that were asked for.
        refused: the others.
    """

    lengths: Ints
    samples: tuple[Sample, ...]
    refused: tuple[RefusedRow, ...]


class RowChecker:
    """Checks the rows of one source under one attachment.

    Attributes:
        attachment: what the source is masked with.
        source: where the rows come from.
        layouts: those that the masks read, with their statements.
        must_bind: a column spells out segments, or holds lists or values of instances, or the keys
            are another sequence, so every row has to be bound to know.
        guard: decides a row.
    """

    def __init__(self, attachment: Attachment, source: Source) -> None:
        self.attachment, self.source = attachment, source
        found = {id(pair[0]): pair for mask in attachment.masks for pair in mask.layouts}
        self.layouts = tuple(found.values())
        self.must_bind = any(map(_must_bind, attachment.masks))
        # Why rows that were decided alone are refused, by their columns; empty for good rows.
        self._known: dict[str, str] = {}
        self._check_types()  # first: the guard may rely on them
        self.guard = attachment.guard()

    @property
    def columns(self) -> frozenset[str]:
        """Columns of the source that have to be read."""
        own = {self._own(column) for column in self.attachment.columns}
        sizes = {*LENGTH_COLUMNS, *TOKEN_COLUMNS} & self.source.columns.keys()
        return frozenset(own | sizes)

    def _own(self, column: str) -> str:
        """Return the data set's name of a column of the mask."""
        return self.attachment.renames.get(column, column)

    # ---- types -----------------------------------------------------------------------------------

    def _check_types(self) -> None:
        """Refuse a source with columns that the layouts cannot read."""
        for name in (*LENGTH_COLUMNS, *TOKEN_COLUMNS):
            if name in self.source.columns:
                require_lengths(self.source.name, name, self.source.columns[name])
        for segment, layout in self.layouts:
            for column, depth in column_depths(layout).items():
                self._check_type(column, depth, f"segment `{segment.name.text}`")
        for column in sorted(self.attachment.columns):
            if column_depth(require_column(self.source, self._own(column))) is None:
                self._check_type(column, 0, f"mask `{self.attachment.value.name}`")

    def _check_type(self, column: str, depth: int, reader: str) -> None:
        own = self._own(column)
        kind = require_column(self.source, own)
        require_depth(
            kind, depth, source=self.source.name, column=own, mask_column=column, reader=reader
        )

    # ---- rows ------------------------------------------------------------------------------------

    def check(self, batch: "pa.Table", first_row: int, wanted: NDArray[np.bool_]) -> CheckedRows:
        """Decide the rows of a batch."""
        rows = _Rows(self, batch)
        reasons: dict[int, str] = {}
        # A missing value comes first: lengths of its row mean nothing.
        for row in np.flatnonzero(rows.has_null | rows.disagrees).tolist():
            reasons[row] = rows.null_reason(row) if rows.has_null[row] else rows.disagreement(row)
        lengths = rows.lengths.copy()
        for row in np.flatnonzero(rows.is_open).tolist():
            if row in reasons:
                continue
            try:
                lengths[row] = self._decide(rows, row)
            except (DatasetError, SpecError) as error:
                reasons[row] = _one_line(error)
        refused = tuple(
            RefusedRow(self.source.name, first_row + row, rows.shown(row), reason)
            for row, reason in sorted(reasons.items())
        )
        accepted = np.ones(rows.num_rows, np.bool_)
        accepted[list(reasons)] = False
        chosen = np.flatnonzero(wanted & accepted).tolist()
        samples = tuple(Sample(rows.columns_of(row), int(lengths[row])) for row in chosen)
        return CheckedRows(lengths[accepted], samples, refused)

    def _decide(self, rows: "_Rows", row: int) -> int:
        """Look at one row alone; give its length or raise."""
        columns = rows.columns_of(row)
        length = int(rows.lengths[row])
        if length == UNKNOWN:
            length = self._natural_length(columns)
        key = repr((columns, length))
        reason = self._known.get(key)
        if reason is None:
            try:
                sample = Sample(columns, length)
                for mask in self.attachment.masks if self.must_bind or rows.has_huge[row] else ():
                    form = mask.compile(sample)
                    if form.form == "tiles":  # planned as ranges of rows, if they are few
                        as_rows(form)
                self.guard.check(sample)
                reason = ""
            except (DatasetError, SpecError) as error:
                reason = _one_line(error)
            if len(self._known) < MAX_REMEMBERED:  # a bound on memory: rows may all be different
                self._known[key] = reason
        if reason:
            raise DatasetError(reason)
        return length

    def _natural_length(self, columns: Mapping[str, Any]) -> int:
        for segment, layout in self.layouts:
            length = natural_length(segment, layout, columns)
            if length is not None:
                return length
        raise DatasetError("nothing says how many tokens the row has: add a column `length`")


def _must_bind(mask: Mask) -> bool:
    """Return whether only binding says if a row makes sense: spans, ids, lists, other keys."""
    if mask.keys is not None:  # the binder refuses it in words
        return True
    for _, reader in column_readers(mask.core):
        match reader:
            case ast.Columns() | nodes.TokenColumn(size=int()):
                return True
            case nodes.TokenColumn(segment=nodes.Node()):
                return True
    return False


class _Rows:
    """A batch taken apart: flat columns, and what every row's length is said to be."""

    def __init__(self, checker: RowChecker, batch: "pa.Table") -> None:
        self.checker, self.num_rows = checker, batch.num_rows
        attachment = checker.attachment
        self.flat: dict[str, NestedColumn] = {
            name: flatten_column(batch.column(checker._own(name))) for name in attachment.columns
        }
        self.has_null, self.has_huge = np.zeros((2, self.num_rows), np.bool_)
        for column in self.flat.values():
            self.has_null |= column.has_null
            self.has_huge |= column.row_sums(np.abs(column.values.astype(float)) > MAX_VALUE) > 0
        stored, self.sizes = dict(_stored_lengths(batch)), dict(self._token_columns())
        self.said = stored | self.sizes
        self.lengths = np.full(self.num_rows, UNKNOWN, np.int64)
        self.disagrees = np.zeros(self.num_rows, np.bool_)
        self.is_open = np.zeros(self.num_rows, np.bool_)
        for sizes in stored.values():
            self._add(sizes, sizes != UNKNOWN)
        self.totals = {
            segment.name.text: measure_layout(layout, self.flat, self.num_rows)
            for segment, layout in checker.layouts
        }
        self._compare()
        self._prove()

    def _prove(self) -> None:
        """Mark statements open that are proved neither for all rows nor for this batch."""
        guard = self.checker.guard
        self.is_open |= self.has_huge  # proofs hold for them, but no mask is bound to such values
        if self.checker.must_bind:
            self.is_open |= True
        elif not (guard.is_causal_proved and guard.is_total_proved):
            rows = np.flatnonzero(~(self.is_open | self.has_null | self.disagrees))
            self.is_open[rows[~prove_rows(guard, self.flat, rows)]] = True

    def _token_columns(self) -> Iterator[tuple[str, Ints]]:
        """Yield the sizes of columns with one integer per token."""
        laid_out = {
            column for _, layout in self.checker.layouts for column in layout_columns(layout)
        }
        per_token = {
            token.column.text
            for mask in self.checker.attachment.masks
            for token in mask.scope.tokens.values()
            if token.segment is None
        }
        for name in sorted(per_token & self.flat.keys() - laid_out):
            if self.flat[name].depth >= 1:
                yield self.checker._own(name), np.diff(self.flat[name].offsets[0])

    def _compare(self) -> None:
        """Find the length of each row, and the rows with contradictory lengths."""
        for totals in self.totals.values():
            if not totals.takes_rest:
                self._add(totals.tokens, totals.is_certain)
            self.is_open |= ~totals.is_certain
        for sizes in self.sizes.values():  # they have to fit a length, and state none
            self.disagrees |= (self.lengths != UNKNOWN) & (self.lengths != sizes)
        for totals in self.totals.values():
            if totals.takes_rest:
                self.is_open |= self.lengths < totals.tokens
        self.is_open |= (self.lengths < 0) | (self.lengths > MAX_TOKENS)

    def _add(self, sizes: Ints, is_sure: NDArray[np.bool_]) -> None:
        is_new = is_sure & (self.lengths == UNKNOWN)
        self.disagrees |= is_sure & ~is_new & (self.lengths != sizes)
        self.lengths[is_new] = sizes[is_new]

    # ---- words -----------------------------------------------------------------------------------

    def columns_of(self, row: int) -> dict[str, Any]:
        """Return the columns of a row by the mask's names."""
        return {name: column.row_lists(row) for name, column in self.flat.items()}

    def shown(self, row: int) -> dict[str, Any]:
        """Return the columns of a row by the data set's names."""
        own = self.checker._own
        return {own(name): column.row_lists(row) for name, column in sorted(self.flat.items())}

    def null_reason(self, row: int) -> str:
        name = min(name for name, column in self.flat.items() if column.has_null[row])
        return f"column `{self.checker._own(name)}` has a missing value, or one beyond int64"

    def disagreement(self, row: int) -> str:
        said = [f"`{name}` says {sizes[row]}" for name, sizes in self.said.items()]
        said += [
            f"the layout of `{name}` adds up to {totals.tokens[row]}"
            for name, totals in self.totals.items()
            if totals.is_certain[row] and not totals.takes_rest
        ]
        return f"its length is not clear: {', '.join(said)} tokens"


def _stored_lengths(batch: "pa.Table") -> Iterator[tuple[str, Ints]]:
    """Yield the lengths in the columns for lengths and tokens; `UNKNOWN` where a row has none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for name in (*LENGTH_COLUMNS, *TOKEN_COLUMNS):
        if name not in batch.column_names:
            continue
        column = row_sizes(name, batch.column(name))
        if pa.types.is_uint64(column.type):
            column = pc.min_element_wise(
                column, pa.scalar(2**63 - 1, pa.uint64()), skip_nulls=False
            )
        yield name, column.cast(pa.int64()).fill_null(UNKNOWN).to_numpy()


def _one_line(error: Exception) -> str:
    if isinstance(error, SpecError) and error.diagnostics:
        return error.diagnostics[0].message
    return str(error)


MAX_PROOFS = 64  # for one batch; a proof costs about as much as binding a row or two
SMALLEST = 8  # rows that are rather bound than proved


def prove_rows(guard: Guard, columns: Mapping[str, NestedColumn], rows: Ints) -> Bools:
    """Return for each of some rows of a batch whether the rules of a guard are proved to hold.

    ``causal and q - k < row.window`` has empty rows for a window of 0, so nothing is proved in
    general; in a batch of windows from 1 on it has none. Halving finds the rows that spoil it.

    Rows must be free of missing values, and their token columns as long as the rows; `columns` go
    by the mask's names.
    """

    def holds(chosen: Ints) -> bool:
        return all(_holds(rule, columns, chosen) for rule in guard.rules)

    is_proved = np.zeros(len(rows), np.bool_)
    pending, proofs_left = [(0, len(rows))], MAX_PROOFS
    while pending:
        first, last = pending.pop()
        if last - first < SMALLEST or proofs_left <= 0:
            continue
        proofs_left -= 1
        if holds(rows[first:last]):
            is_proved[first:last] = True
            continue
        # Facts that prove nothing about three single rows would spend all proofs on halves.
        single = rows[:: max(1, len(rows) // 3)][:3, None]
        if last - first == len(rows) and not any(map(holds, single)):
            break
        middle = (first + last) // 2
        pending += [(middle, last), (first, middle)]
    return is_proved


def _holds(rule: MaskRule, columns: Mapping[str, NestedColumn], rows: Ints) -> bool:
    mask = rule.mask.core
    facts = tuple(_facts(mask, columns, rows))
    blind = nodes.And((nodes.Not(mask), *facts))
    if not (rule.is_total_proved or never(blind, ("same",))):
        return False
    ahead = mask if rule.leaks is None else rule.leaks.core
    return rule.is_causal_proved or never(nodes.And((ahead, *facts)), ("before",))


def _facts(
    mask: nodes.Mask, columns: Mapping[str, NestedColumn], rows: Ints
) -> Iterator[nodes.Mask]:
    """Yield the facts that hold on all of these rows, as masks."""
    for name, column in columns.items():
        if column.depth == 0:
            yield _between(nodes.RowColumn(name), column.values[rows])
    tokens = {
        n.column for n in nodes.walk(mask)
        if isinstance(n, nodes.TokenColumn) and n.size is None and n.segment is None
    }  # fmt: skip
    for name in sorted(tokens):
        per_token = columns.get(name)
        if per_token is None or per_token.depth != 1:
            continue
        chosen, position = _tokens_of(per_token, rows)
        if not len(chosen):
            continue
        for at in (nodes.Pos("q"), nodes.Pos("k")):
            value = nodes.Lookup(nodes.TokenColumn(name, name), "number", at)
            yield _between(value, chosen)
            yield _between(nodes.Arithmetic("-", value, at), chosen - position)


def _between(value: nodes.Number, values: Ints) -> nodes.Mask:
    low, high = nodes.Const(int(values.min())), nodes.Const(int(values.max()))
    return nodes.And((nodes.Compare("<=", low, value), nodes.Compare("<=", value, high)))


def _tokens_of(column: NestedColumn, rows: Ints) -> tuple[Ints, Ints]:
    """Return the values of a column with one integer per token, and their positions in the row."""
    starts, ends = column.offsets[0][rows], column.offsets[0][rows + 1]
    row, position = expand(0, ends - starts)
    return column.values[starts[row] + position], position
