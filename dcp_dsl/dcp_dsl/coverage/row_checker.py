"""Decide for every row of a data set whether an attached mask may be trained on it.

Missing values and contradictory lengths are found for a whole batch at once. A row is decided alone
if only binding its layout tells whether it is valid, or if the mask could look ahead or have empty
rows: neither the mask alone proves the contrary, nor the mask with the values in the batch. Rows
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
    ANY_DEPTH,
    NestedColumn,
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


MAX_REMEMBERED = 100_000  # decisions by columns: a bound on memory, since all rows may differ
UNKNOWN = np.iinfo(np.int64).min
"""The length of a row that states none."""


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that must not be trained on; columns have the data set's names."""

    source: str
    row: int
    columns: Mapping[str, Any]
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class CheckedRows:
    """The decision on a batch: tokens of accepted rows (int64), some of these, refused rows."""

    lengths: Ints
    samples: tuple[Sample, ...]
    refused: tuple[RefusedRow, ...]


class RowChecker:
    """Checks the rows of one source under one attachment.

    `must_bind` says that every row has to be bound, because a column spells out segments, or holds
    lists or values of instances, or the keys are another sequence.
    """

    def __init__(self, attachment: Attachment, source: Source) -> None:
        self.attachment, self.source = attachment, source
        found = {id(pair[0]): pair for mask in attachment.masks for pair in mask.layouts}
        self.layouts = tuple(found.values())
        self.must_bind = any(map(_must_bind, attachment.masks))
        # The reason to refuse a row, empty for a good one, by its columns and length.
        self._known: dict[str, str] = {}
        self._check_types()  # before the proofs of the guard: an unfit source needs none
        self.guard = attachment.guard()

    @property
    def columns(self) -> frozenset[str]:
        """Columns of the source that have to be read."""
        own = {self._own(column) for column in self.attachment.columns if not self._lacks(column)}
        sizes = {*LENGTH_COLUMNS, *TOKEN_COLUMNS} & self.source.columns.keys()
        return frozenset(own | sizes)

    def _own(self, column: str) -> str:
        """Return the data set's name of a column of the mask."""
        return self.attachment.renames.get(column, column)

    def _lacks(self, column: str) -> bool:
        """Return whether the source has no value of a column, and a default stands for it."""
        import pyarrow as pa

        kind = self.source.columns.get(self._own(column), pa.null())
        return column in self.attachment.defaults.columns and pa.types.is_null(kind)

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
            self._check_type(column, ANY_DEPTH, f"mask `{self.attachment.value.name}`")

    def _check_type(self, column: str, depth: int, reader: str) -> None:
        if self._lacks(column):
            return
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
            except DatasetError as error:
                reasons[row] = str(error)
        refused = tuple(
            RefusedRow(self.source.name, first_row + row, rows.shown(row), reason)
            for row, reason in sorted(reasons.items())
        )
        accepted = np.ones(rows.num_rows, np.bool_)
        accepted[list(reasons)] = False
        chosen = np.flatnonzero(wanted & accepted).tolist()
        sizes = [int(lengths[row]) for row in chosen]
        samples = tuple(
            Sample(rows.columns_of(row, n), n) for row, n in zip(chosen, sizes, strict=True)
        )
        return CheckedRows(lengths[accepted], samples, refused)

    def _decide(self, rows: "_Rows", row: int) -> int:
        """Decide one row alone and return its length."""
        length = int(rows.lengths[row])
        if length == UNKNOWN:
            length = self._natural_length(rows.columns_of(row, 0))
        columns = rows.columns_of(row, length)
        key = repr((columns, length))
        reason = self._known.get(key)
        if reason is None:
            try:
                sample = Sample(columns, length)
                # The guard binds no mask that is proved; these rows may be refused in binding.
                for mask in self.attachment.masks if self.must_bind or rows.has_huge[row] else ():
                    form = mask.compile(sample)
                    # Plans need this form as ranges of rows, which may be too many.
                    if form.form == "tiles":
                        as_rows(form)
                self.guard.check(sample)
                reason = ""
            except (DatasetError, SpecError) as error:
                reason = _one_line(error)
            if len(self._known) < MAX_REMEMBERED:
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
    """Return whether only binding a row tells if it is valid: for spans, ids, lists, other keys."""
    if mask.keys is not None:  # binding refuses every row, and says why
        return True
    for _, reader in column_readers(mask.core):
        match reader:
            case ast.Columns() | nodes.TokenColumn(size=int()):
                return True
            case nodes.TokenColumn(segment=nodes.Node()):
                return True
    return False


class _Rows:
    """A batch taken apart: flat columns, and the lengths that columns and layouts state.

    A row is *open* if the batch as a whole does not decide it.
    """

    def __init__(self, checker: RowChecker, batch: "pa.Table") -> None:
        self.checker, self.num_rows = checker, batch.num_rows
        attachment = checker.attachment
        self.batch = batch = attachment.defaults.fill_table(batch, attachment.renames)
        self.has_null, self.has_huge = np.zeros((2, self.num_rows), np.bool_)
        self.flat: dict[str, NestedColumn] = {}
        self.lost: dict[str, Bools] = {}  # rows without a column that has a value per token
        for name in attachment.columns:
            own = checker._own(name)
            if own not in batch.column_names:  # `fill_table` has added those as written
                self.lost[name] = np.ones(self.num_rows, np.bool_)
                continue
            self.flat[name] = column = flatten_column(batch.column(own))
            if name in attachment.defaults.spread:
                self.lost[name] = batch.column(own).is_null().to_numpy()
                column.has_null[self.lost[name]] = False
            self.has_null |= column.has_null
            self.has_huge |= column.row_sums(np.abs(column.values.astype(float)) > MAX_VALUE) > 0
        stored, self.sizes = dict(_stored_lengths(batch)), dict(self._token_columns())
        self.said = stored | self.sizes  # all statements about lengths, for messages
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
        """Open the rows for which the guard's rules are proved neither in general nor here."""
        guard = self.checker.guard
        self.is_open |= self.has_huge  # whatever is proved: binding refuses values beyond a limit
        for is_lost in self.lost.values():  # a proof of many rows at once reads columns that exist
            self.is_open |= is_lost
        if self.checker.must_bind:
            self.is_open[:] = True
        elif not (guard.is_causal_proved and guard.is_total_proved):
            rows = np.flatnonzero(~(self.is_open | self.has_null | self.disagrees))
            self.is_open[rows[~prove_rows(guard, self.flat, rows)]] = True

    def _token_columns(self) -> Iterator[tuple[str, Ints]]:
        """Yield the sizes of columns with a value per token, except those of layouts."""
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
                sizes = np.diff(self.flat[name].offsets[0])
                is_lost = self.lost.get(name, False)
                yield self.checker._own(name), np.where(is_lost, UNKNOWN, sizes)

    def _compare(self) -> None:
        """Find the length of each row, and the rows with contradictory lengths.

        Stored lengths come first, then layouts, and columns of tokens only have to fit.
        """
        for totals in self.totals.values():
            if not totals.takes_rest:
                self._add(totals.tokens, totals.is_certain)
            self.is_open |= ~totals.is_certain
        for sizes in self.sizes.values():
            is_known = (self.lengths != UNKNOWN) & (sizes != UNKNOWN)
            self.disagrees |= is_known & (self.lengths != sizes)
        for totals in self.totals.values():
            if totals.takes_rest:  # too little is left for `[..]`, or the length is unknown
                self.is_open |= self.lengths < totals.tokens
        self.is_open |= (self.lengths < 0) | (self.lengths > MAX_TOKENS)

    def _add(self, sizes: Ints, is_sure: NDArray[np.bool_]) -> None:
        """Take sizes as lengths of rows without a length; mark the other rows that differ."""
        is_new = is_sure & (self.lengths == UNKNOWN)
        self.disagrees |= is_sure & ~is_new & (self.lengths != sizes)
        self.lengths[is_new] = sizes[is_new]

    # ---- words -----------------------------------------------------------------------------------

    def columns_of(self, row: int, length: int) -> dict[str, Any]:
        """Return the columns of a row of so many tokens by the mask's names."""
        lost = {name for name, is_lost in self.lost.items() if is_lost[row]}
        found = {n: column.row_lists(row) for n, column in self.flat.items() if n not in lost}
        return self.checker.attachment.defaults.complete(found, length) if lost else found

    def shown(self, row: int) -> dict[str, Any]:
        """Return the columns of a row by the data set's names; missing values are None."""
        found = {}
        for name, column in sorted(self.flat.items()):
            own = self.checker._own(name)
            if name in self.lost and self.lost[name][row]:
                continue
            # The flat column holds 0 for what is missing or does not fit.
            is_kept = not column.has_null[row]
            found[own] = column.row_lists(row) if is_kept else self.batch.column(own)[row].as_py()
        return found

    def null_reason(self, row: int) -> str:
        name = min(name for name, column in self.flat.items() if column.has_null[row])
        return f"column `{self.checker._own(name)}` has a missing value, or one beyond int64"

    def disagreement(self, row: int) -> str:
        said = [
            f"`{n}` says {sizes[row]}" for n, sizes in self.said.items() if sizes[row] != UNKNOWN
        ]
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
        # Lengths beyond int64 become the largest int64, which is refused as too long.
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
SMALLEST = 8  # fewer rows are bound one by one rather than proved together


def prove_rows(guard: Guard, columns: Mapping[str, NestedColumn], rows: Ints) -> Bools:
    """Return for each of some rows of a batch whether the rules of a guard are proved to hold.

    ``causal and q - k < row.window`` has empty rows for a window of 0, so nothing is proved in
    general. In a batch where all windows are at least 1 it has none. If a proof fails on some rows,
    it is tried on both halves, which isolates the rows that spoil it. Rows have no missing values.
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
        # A first failure may mean that such facts prove nothing at all, which would spend all
        # proofs on halves: three single rows tell.
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
    """Yield facts that hold on all of these rows, as masks: the ranges of columns.

    Of a column of tokens, the value and its distance from the token's position have ranges: one
    bounds flags and ids, the other bounds columns that hold positions.
    """
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
    """Return the values of a column with one integer per token, and their positions in the rows."""
    starts, ends = column.offsets[0][rows], column.offsets[0][rows + 1]
    row, position = expand(0, ends - starts)
    return column.values[starts[row] + position], position
