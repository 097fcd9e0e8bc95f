"""Sequences of a batch: screened rows with their masks, and columns with a value per token.

Rows that cannot be trained on raise an error, or are left out and counted. Columns hold targets,
positions, and the extra columns that a user names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import DatasetError, Mask, Sample, Stack, TokenPaths, row_name, token_paths
from dcp_dsl.arrays import Ints
from dcp_runtime.data.choices import RowRules
from dcp_runtime.data.loss_masks import IGNORE_LABEL, Values
from dcp_runtime.data.rollouts import Rollout, Terms, find_rollouts, merge_terms
from dcp_runtime.data.rows import Resolver, Row, RowError, Tokens, TokensRead
from dcp_runtime.data.screening import Screening
from dcp_runtime.data.unread import ReadRow, UnreadColumns
from dcp_runtime.errors import RunError

LABELS = f"token ids from 0, or {IGNORE_LABEL} where the loss counts nothing"

MANY = 8
"""Labels that must all equal the next token before a column counts as shifted, not as chance.

Counted in one row, or over the rows so far."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenColumns:
    """The columns of a row that hold a value per token."""

    targets: Ints  # int64 [n], what the token before is to predict, or `IGNORE_LABEL`
    positions: Ints  # int64 [n]
    previous: Ints  # int64 [n], the token that predicts each; -1 for the first of a path
    weights: NDArray[np.float32]  # [n], how much each counts as a target
    extra: Mapping[str, Values]  # [n] each; in a tree those of the first rollout with a token
    terms: Terms | None = None  # of a tree, whose tokens may be targets several times

    def first(self, count: int) -> "TokenColumns":
        """Return the columns of the first tokens."""
        extra = {name: values[:count] for name, values in self.extra.items()}
        return TokenColumns(
            self.targets[:count], self.positions[:count], self.previous[:count],
            self.weights[:count], extra, self.terms and self.terms.first(count),
        )  # fmt: skip

    def terms_of(self, targets: Ints) -> Terms:
        """Return the terms of the loss for some tokens, in rising order."""
        if self.terms is not None:
            return self.terms.keep(np.isin(self.terms.token, targets))
        extra = {name: values[targets] for name, values in self.extra.items()}
        return Terms(targets, self.targets[targets], self.weights[targets], extra, {})


def read_columns(
    rules: RowRules, row: Row, tokens: Tokens, paths: TokenPaths | None = None
) -> TokenColumns:
    """Read the columns that `rules` name; `paths` are those of a layout with branches."""
    length = len(tokens)
    if length and tokens.min() < 0:  # -100 among them would count as a label that is left out
        at = int(tokens.argmin())
        raise DatasetError(
            f"expected token ids from 0, got {tokens[at]} at token {at}; rows need no padding, and "
            f"a labels column with {IGNORE_LABEL} leaves targets out"
        )
    is_once = rules.shared_targets == "once"
    weights = np.ones(length) if paths is None or is_once else paths.num_paths
    return TokenColumns(
        targets=_targets(rules, row, tokens),
        positions=_positions(rules.position_column, row, length, paths),
        previous=np.arange(-1, length - 1) if paths is None else paths.previous,
        weights=weights.astype(np.float32),
        extra={name: _extra(name, row, length) for name in rules.extra_columns},
    )


def _targets(rules: RowRules, row: Row, tokens: Tokens) -> Ints:
    """Return the target of each token that the loss counts: its label, else the token itself."""
    labels = _labels(rules.labels_column, row, tokens)
    counted = _counted(rules.loss_column, row, len(tokens))
    if counted is None:
        return tokens if labels is None else labels
    if labels is None:
        return np.where(counted, tokens, IGNORE_LABEL)
    _check_agreement(rules, labels != IGNORE_LABEL, counted)
    return labels


def _labels(name: str | None, row: Row, tokens: Tokens) -> Ints | None:
    """Return the labels of a row, label i at token i; ``None`` if the row has none to read."""
    if name is None or (name == "labels" and name not in row):
        return None
    labels = _integers(_read(name, "the labels", LABELS, row, len(tokens)))
    if labels is None or ((labels < 0) & (labels != IGNORE_LABEL)).any():
        raise _refusal(name, LABELS, row, len(tokens))
    return labels


def _counted(name: str | None, row: Row, length: int) -> NDArray[np.bool_] | None:
    """Return which tokens the loss counts as targets, bool ``[n]``; ``None`` without a column."""
    if name is None:
        return None
    found = _read(name, "the loss", "values 0 or 1", row, length)
    if not np.isin(found, (0, 1)).all():
        raise _refusal(name, "values 0 or 1", row, length)
    return found.astype(np.bool_)


def _check_agreement(
    rules: RowRules, labelled: NDArray[np.bool_], counted: NDArray[np.bool_]
) -> None:
    """Refuse two columns that count different targets; the first token is never a target."""
    differs = 1 + np.flatnonzero(labelled[1:] != counted[1:])
    if not len(differs):
        return
    at = int(differs[0])
    loss, labels = f"`{rules.loss_column}`", f"`{rules.labels_column}`"
    one, other = (loss, labels) if counted[at] else (labels, loss)
    raise DatasetError(
        f"columns {labels} and {loss} contradict each other at {len(differs)} of {len(counted)} "
        f"tokens: {one} counts token {at} as a target, {other} leaves it out; mend one, or read "
        f"one alone: RowRules(labels_column=None), or no loss_column"
    )


def _positions(name: str | None, row: Row, length: int, paths: TokenPaths | None) -> Ints:
    if name is None:
        return np.arange(length) if paths is None else paths.position
    wanted = "positions, integers from 0"
    positions = _integers(_read(name, "the positions", wanted, row, length))
    if positions is None or (positions < 0).any():
        raise _refusal(name, wanted, row, length)
    return positions


def _extra(name: str, row: Row, length: int) -> Values:
    """Return an extra column as bool, int64 or float32; NaN and infinities stay as they are."""
    found = _read(name, "extra_columns", "numbers", row, length)
    if found.dtype.kind == "b":
        return found
    if found.dtype.kind in "iu":
        integers = _integers(found)
        if integers is None:
            raise _refusal(name, "numbers that fit into int64", row, length)
        return integers
    with np.errstate(over="ignore"):  # numbers too large become infinite, which is refused below
        kept = found.astype(np.float32)
    if not np.array_equal(np.isfinite(kept), np.isfinite(found)):
        raise _refusal(name, "numbers that fit into float32", row, length)
    # numpy makes floats of a list in which an integer is too large, or beside a float.
    if isinstance(row[name], list | tuple) and (np.abs(found) > 2**24).any():
        whole = [value for value in row[name] if isinstance(value, int)]
        if any(value >= 2**63 or int(np.float32(value)) != value for value in whole):
            raise _refusal(name, "numbers that fit into int64, or all into float32", row, length)
    return kept


def join_extra(name: str, parts: Sequence[Values]) -> Values:
    """Concatenate an extra column of several rows; floats in one row make floats of all.

    >>> join_extra("x", [np.array([1, 2]), np.array([0.5], np.float32)]).dtype
    dtype('float32')
    """
    joined: Values = np.concatenate(parts)
    if not any(part.dtype == np.float32 for part in parts):
        return joined
    kept = joined.astype(np.float32)
    if any(part.dtype == np.int64 and (part.astype(np.float32) != part).any() for part in parts):
        raise RunError(
            f"column `{name}` holds floats in one row of a batch and in another integers that "
            "float32 cannot hold; make all its values floats, or all integers"
        )
    return kept


def _integers(values: Values) -> Ints | None:
    """Return integers as int64; ``None`` if they are no integers, or too large."""
    if values.dtype.kind not in "iu":
        return None
    found = values.astype(np.int64)
    return found if np.array_equal(found, values) else None


def _read(name: str, use: str, wanted: str, row: Row, length: int) -> Values:
    """Return the numbers of a column; messages quote `use` and `wanted`, its purpose and values."""
    if name not in row:
        have = ", ".join(f"`{column}`" for column in sorted(row))
        raise DatasetError(f"no column `{name}` for {use}; there are {have}")
    try:
        found: Values = np.asarray(row[name])
    except (TypeError, ValueError, RuntimeError):  # ragged lists, tensors on a device
        found = np.empty((), object)
    if found.shape != (length,) or found.dtype.kind not in "biuf":
        raise _refusal(name, wanted, row, length)
    return found


def _refusal(name: str, wanted: str, row: Row, length: int) -> DatasetError:
    value, way_out = row[name], ""
    count = f"{len(value)}: " if isinstance(value, Sequence | np.ndarray) else ""
    if wanted == LABELS:
        way_out = "; RowRules(labels_column=None) does not read it"
    return DatasetError(
        f"column `{name}`: expected {length} {wanted}, one per token, got "
        f"{count}{str(value)[:60]}{way_out}"
    )


@dataclass(frozen=True, slots=True, eq=False)
class PackedSequence:
    """One row of a batch."""

    row: int  # its number in the data set
    name: str  # of the row in messages and plans, from `row_name`
    tokens: Tokens  # int64 [n], those that take part
    columns: TokenColumns
    masks: tuple[Mask, ...]  # the different ones of its layers
    cycle: tuple[int, ...]  # for each layer the number of its mask; repeats over the layers
    sample: Sample  # longer than n if the row was cut


@dataclass(slots=True)
class Alignment:
    """Finds labels that are already shifted, where each label is the next token.

    Rows with few labels are judged together, until one of them has a label that is not shifted.
    """

    _rows: set[int] = field(default_factory=set)
    _labels: int = 0  # of these rows, all of them equal to the next token
    _is_settled: bool = False

    def check(self, row: int, name: str | None, labels: Ints, tokens: Tokens) -> None:
        """Judge the labels of a row, and with it those before."""
        if labels is tokens:  # the row has no labels
            return
        seen = labels[:-1] != IGNORE_LABEL
        early, next_ones, own = labels[:-1][seen], tokens[1:][seen], tokens[:-1][seen]
        if (early != next_ones).any():
            self._is_settled = True
            return
        # A row of one repeated token looks shifted and unshifted alike: it says nothing.
        if (early == own).all():
            return
        if not self._is_settled and row not in self._rows:
            self._rows.add(row)
            self._labels += len(early)
        is_clear = len(early) >= MANY
        if is_clear or (self._labels >= MANY and not self._is_settled):
            count, rows = (len(early), 1) if is_clear else (self._labels, len(self._rows))
            raise RunError(
                f"column `{name}` is shifted already: every label is the token behind its own, in "
                f"{rows} {'row' if rows == 1 else 'rows'} with {count} labels; "
                "expected label i at token i, as Hugging Face's causal models take them (the token "
                "before predicts it); shift the column back by one token"
            )


@dataclass(slots=True)
class RowReader:
    """Reads rows one at a time."""

    resolve: Resolver
    room: int  # most tokens of a row
    way_out: str  # for a row that is longer
    screening: Screening
    rules: RowRules
    faults: Mapping[int, RowError] = field(default_factory=dict)  # of rows without usable tokens
    alignment: Alignment = field(default_factory=Alignment)
    unread: UnreadColumns = field(init=False)

    def __post_init__(self) -> None:
        self.unread = UnreadColumns(self.rules, self.screening.says)

    def usable_tokens(self, row: int, length: int) -> int:
        """Return how many tokens of a row take part, judged by its length; 0 leaves it out."""
        if fault := self.faults.get(row):
            self.screening.leave_out(row, "unfit", str(fault))
            return 0
        if length == 0:
            self.screening.leave_out(row, "empty", f"row {row} has no tokens")
            return 0
        if length > self.room:
            return self.screening.shorten(row, length, self.room, self.way_out)
        return length

    def read(self, index: int, row: Row, tokens: TokensRead) -> PackedSequence | None:
        """Find the masks and columns of a row; ``None`` leaves it out."""
        self.screening.see()
        if isinstance(tokens, RowError):
            self.screening.leave_out(index, "unfit", str(tokens))
            return None
        count = self.usable_tokens(index, len(tokens))
        if not count:
            return None
        try:
            found, sample = self.resolve(index, with_length(row, len(tokens)))
            stack = Stack.of(found) if isinstance(found, Mask) else found
            masks, cycle = stack.masks, stack.cycle()
            # Of the whole row, whose length all columns must have; they are cut below.
            paths = find_paths(masks, sample)
            if rollouts := find_rollouts(row, len(tokens), paths):
                assert paths is not None or len(rollouts) == 1, "a mask without branches has a path"
                columns = self._read_tree(rollouts, tokens, paths)
            else:
                columns = self._read_plain(index, row, tokens, sample.columns, paths)
        except DatasetError as error:
            self.screening.leave_out(index, "unfit", f"row {index}: {error}")
            return None
        except RunError as error:
            raise RunError(f"row {index}: {error}") from error
        name, used = row_name(index, row), tokens[:count]
        return PackedSequence(index, name, used, columns.first(count), masks, cycle, sample)

    def _read_plain(
        self,
        index: int,
        row: Row,
        tokens: Tokens,
        read: Mapping[str, Any],  # Any: as `Sample.columns`
        paths: TokenPaths | None,
    ) -> TokenColumns:
        """Read and judge the columns of a row, or of a rollout; masks read some of them."""
        columns = read_columns(self.rules, row, tokens, paths)
        self.alignment.check(index, self.rules.labels_column, columns.targets, tokens)
        counted = columns.targets != IGNORE_LABEL
        has_labels = self.rules.labels_column in row
        self.unread.check(
            row, ReadRow(index, tokens, counted, columns.positions, read, paths, has_labels)
        )
        return columns

    def _read_tree(
        self, rollouts: Sequence[Rollout], tokens: Tokens, paths: TokenPaths | None
    ) -> TokenColumns:
        """Read the columns of each rollout as those of a row, and join them."""
        read: list[TokenColumns] = []
        for rollout in rollouts:
            try:
                own = self._read_plain(rollout.number, rollout.row, tokens[rollout.at], {}, None)
            except (DatasetError, RunError) as error:
                raise type(error)(f"rollout {rollout.number}: {error}") from error
            read.append(own)
        return join_rollouts(rollouts, read, len(tokens), paths, self.rules)


def join_rollouts(
    rollouts: Sequence[Rollout],
    read: Sequence[TokenColumns],
    length: int,
    paths: TokenPaths | None,
    rules: RowRules,
) -> TokenColumns:
    """Join the columns of the rollouts of a tree of so many tokens."""
    at = np.concatenate([rollout.at for rollout in rollouts])[::-1]  # the first rollout comes last
    joined = {
        name: join_extra(name, [own.extra[name] for own in read]) for name in rules.extra_columns
    }
    is_once = rules.shared_targets == "once"
    labels = np.concatenate([own.targets for own in read])
    terms = merge_terms(rollouts, labels, joined, once=is_once)
    targets = np.full(length, IGNORE_LABEL)
    targets[terms.token] = terms.label
    # Exactly 1, which a sum of shares may miss.
    weights = (
        np.bincount(terms.token, terms.weight, length) if len(terms.token) else np.zeros(length)
    )
    weights = (weights > 0).astype(np.float64) if is_once else weights
    extra = {name: np.zeros(length, values.dtype) for name, values in joined.items()}
    for name, values in joined.items():
        extra[name][at] = values[::-1]
    positions, own = np.zeros(length, np.int64), np.concatenate([own.positions for own in read])
    positions[at] = own[::-1]
    if (differs := np.flatnonzero(positions[at] != own[::-1])).size:
        raise DatasetError(
            f"column `{rules.position_column}`: two rollouts share token {at[differs[-1]]} of the "
            f"tree and give it positions {positions[at[differs[-1]]]} and "
            f"{own[::-1][differs[-1]]}; name the column in group_rows(by=...), which keeps them "
            "apart"
        )
    previous = np.arange(-1, length - 1) if paths is None else paths.previous
    return TokenColumns(targets, positions, previous, weights.astype(np.float32), extra, terms)


def find_paths(masks: Sequence[Mask], sample: Sample) -> TokenPaths | None:
    """Find the paths of the layout with branches that the masks of a row read; ``None`` without."""
    found = [paths for mask in masks if (paths := token_paths(mask, sample)) is not None]
    if any((paths.previous != found[0].previous).any() for paths in found):
        raise DatasetError(
            "the masks of two layers read layouts with different branches; one layout must say "
            "which token predicts which"
        )
    return found[0] if found else None


def with_length(row: Row, length: int) -> Row:
    """Add the length to a row as `len`, which masks read, whatever the column of the tokens is."""
    # Where that is another one, `tokens` may hold anything: it then states no length.
    for name in ("len", "length"):
        if row.get(name) is not None and row[name] != length:
            raise DatasetError(f"column `{name}` says {row[name]} tokens, the row has {length}")
    tokens: Any = row.get("tokens")
    is_sized = hasattr(tokens, "__len__") and not isinstance(tokens, str)
    is_other = tokens is not None and not (is_sized and len(tokens) == length)
    return {**row, "len": length, "tokens": None} if is_other else {**row, "len": length}
