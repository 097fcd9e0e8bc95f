"""Columns that change what is to be trained on, in rows where nothing reads them, are refused.

A data set with such a column would train across the borders of documents, with wrong positions, or
on prompts and padding. `documents` and `loss_masks` know what a column says; here is who reads it.
"""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dcp_dsl import TokenPaths
from dcp_dsl.arrays import Bools, Ints
from dcp_dsl.data.documents import (
    BITS,
    ENOUGH_BITS,
    Kind,
    begins_by_name,
    end_of_numbers,
    is_of_other_things,
    keeps_apart,
    kind_by_name,
    restarts,
)
from dcp_dsl.data.sums import ColumnSums, Cut
from dcp_runtime.data.choices import RowRules
from dcp_runtime.data.loss_masks import (
    LikelyMasks,
    Role,
    Values,
    check_labels,
    check_mask,
    role_by_name,
    tell_mask,
    unchecked,
)
from dcp_runtime.errors import RunError

TOKENS_AND_LABELS = ("tokens", "input_ids", "labels")
"""Columns that hold token ids, also where another one is read."""

SHOWN = 8  # lengths of documents that a message shows

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReadRow:
    """What is read of a row of n tokens."""

    number: int
    tokens: Ints  # int64 [n]
    counted: Bools  # [n], by the loss as targets
    positions: Ints  # int64 [n]
    columns: Mapping[str, Any]  # Any: as `Sample.columns`
    paths: TokenPaths | None
    has_labels: bool  # which say what is counted

    def has(self, begins: Ints) -> bool:
        """Return whether the masks read that documents begin at these tokens."""
        previous = None if self.paths is None else self.paths.previous
        return keeps_apart(begins, len(self.positions), self.columns, previous)


@dataclass(slots=True)
class UnreadColumns:
    """Refuses rows with columns that say what nothing reads.

    A name that other tools use is enough, in any row. Columns of other names are judged by what
    they hold over the rows so far: a row that does not fit settles it.
    """

    rules: RowRules
    says: bool  # of columns that may be loss masks
    # Of columns without a known name: what they may still be, and the evidence for it.
    _bits: dict[str, dict[Kind, float]] = field(default_factory=dict)
    _seen: set[tuple[str, int]] = field(default_factory=set)  # a row read again proves no more
    _no_labels: set[str] = field(default_factory=set)
    _likely: LikelyMasks = field(default_factory=LikelyMasks)
    _sums: ColumnSums = field(default_factory=ColumnSums)
    _told: set[tuple[str, ...]] = field(default_factory=set)  # sums that have several readings

    def check(self, row: Mapping[str, Any], read: ReadRow) -> None:
        """Judge the columns of a row."""
        rules = self.rules
        passed = {*rules.unchecked_columns, *rules.extra_columns, *read.columns, *TOKENS_AND_LABELS}
        passed |= {name for name in (rules.token_column, rules.labels_column) if name is not None}
        for name, column in row.items():
            if name == rules.position_column and name not in passed:
                self._check_positions_read(name, read)
            elif name not in passed and isinstance(name, str) and not self._is_settled(name):
                self._check_column(name, column, read)
        read_too = passed - read.columns.keys()
        self._check_sums(row, read, read_too | {n for n in row if role_by_name(str(n))})

    def _check_sums(self, row: Mapping[str, Any], read: ReadRow, passed: Set[str]) -> None:
        """Judge columns that add up to the tokens only together; each alone says nothing."""
        for cut in self._sums.see(read.number, row, len(read.positions), passed):
            unread = [name for name in cut.lists if name not in read.columns]
            is_told = cut.names in self._told or cut.depths == (1,)  # one list is judged alone
            if is_told or not unread or not self._sums.are_clear(row, cut, passed):
                continue
            if read.has(cut.begins()):
                continue
            if cut.statement:
                raise _refusal_of_sum(cut, unread, read)
            self._told.add(cut.names)
            if self.says:
                logger.warning(
                    "columns %s add up to the tokens of every row so far, and nothing reads them: "
                    "tokens see the parts before their own. If they must not, a layout that reads "
                    "these columns keeps the parts apart, as `dcpm init` shows; "
                    "RowRules(unchecked_columns=%r) ends this warning",
                    _listed(cut.names), tuple(unread),
                )  # fmt: skip

    def _is_settled(self, name: str) -> bool:
        """Return whether neither the name of a column says something nor what it held so far."""
        if kind_by_name(name) or role_by_name(name):
            return False
        is_judged = name in self._no_labels & self._likely.settled
        return is_of_other_things(name) or (is_judged and not self._bits.get(name))

    def _check_column(self, name: str, column: Any, read: ReadRow) -> None:
        """Judge a column by its name if that is known, else by what it holds."""
        values = _numbers(column)
        if values is None:
            return
        kind, role = kind_by_name(name), role_by_name(name)
        if role:
            self._check_mask(name, role, values, read)
        if name == self.rules.loss_column:
            return
        integers = values.astype(np.int64) if values.dtype.kind in "iu" else None
        if not kind and not role:
            if integers is None or not check_labels(name, integers, read.tokens, read.counted):
                self._no_labels.add(name)
            self._judge(name, values, integers, read)
        elif kind and integers is not None:
            self._check_named(name, kind, column, integers, read)

    def _check_named(self, name: str, kind: Kind, column: Any, values: Ints, read: ReadRow) -> None:
        """Refuse a column whose name says that it states documents, if it does."""
        length = len(read.positions)
        begins = begins_by_name(kind, name, values, length)
        if kind == "positions":
            if values.shape[-1] == length:
                _check_positions_unread(name, column, values, begins, read)
            return
        if len(begins) and not read.has(begins):
            raise _refusal(name, kind, "name", begins, read, column)
        if kind == "numbers" and values.shape == (length,):
            is_token = np.arange(length) < end_of_numbers(values)
            self._check_mask(name, "padding", is_token, read)

    def _check_mask(self, name: str, role: Role, values: Values, read: ReadRow) -> None:
        check_mask(self.rules, name, role, values, read.counted, has_labels=read.has_labels)

    def _judge(self, name: str, values: Values, integers: Ints | None, read: ReadRow) -> None:
        """Judge a column of unknown name by what it holds in the rows so far."""
        length = len(read.positions)
        bits = self._bits.setdefault(name, dict.fromkeys(BITS, 0.0))
        is_new = (name, read.number) not in self._seen
        for kind in tuple(bits):
            more = None if integers is None or integers.ndim > 1 else BITS[kind](integers, length)
            if integers is None or more is None:
                del bits[kind]
                continue
            if more and is_new and bits[kind] < ENOUGH_BITS:
                self._seen.add((name, read.number))
                bits[kind] += more
            if more and bits[kind] >= ENOUGH_BITS:
                begins = begins_by_name(kind, name, integers, length)
                if not read.has(begins):
                    raise _refusal(name, kind, "content", begins, read, integers)
        if not read.counted.all():  # else the columns that are read say what counts
            self._likely.settled.add(name)
        flags = values if values.shape == (length,) else None
        if self._likely.see(read.number, name, flags) and self.says:
            tell_mask(name, values)

    def _check_positions_read(self, name: str, read: ReadRow) -> None:
        own = read.positions
        if len(begins := restarts(own)) and not read.has(begins):
            every = begins_by_name("positions", name, own, len(own))  # short ones at the end, too
            raise _refusal(name, "positions", "position_column", every, read, own)


def _check_positions_unread(
    name: str, column: Any, values: Ints, begins: Ints, read: ReadRow
) -> None:
    """Refuse positions that differ from those read by more than where they start."""
    own = read.positions
    for each in np.atleast_2d(values):
        # Positions that count on through the row say no more than that it is one.
        if any(np.ptp(each - other) == 0 for other in (own, np.arange(len(own)))):
            continue
        if len(begins):
            raise _refusal(name, "positions", "name", begins, read, column)
        at = int(np.flatnonzero(each - own != each[0] - own[0])[0])
        way = f"RowRules(position_column={name!r}) reads it"
        if np.ndim(column) > 1:
            way = (
                "RowRules(position_column=...) reads a column with one of them per token, "
                "extra_columns=(...) carries others along"
            )
        raise RunError(
            f"column `{name}` holds other positions, and nothing reads it: expected position "
            f"{each[at]} at token {at}, got {own[at]}; {way}; {unchecked(name)}"
        )


def _refusal(
    name: str, kind: Kind, seen_by: str, begins: Ints, read: ReadRow, column: Any
) -> RunError:
    """Return the error of a column that states documents: how it is known, and what to write."""
    lengths = np.diff([0, *begins, len(read.positions)]).tolist()
    count = f"{len(lengths)} documents"
    shown = f"[{', '.join(map(str, lengths[:SHOWN]))}{', ...' * (len(lengths) > SHOWN)}]"
    says = {
        "lengths": f"lengths of {count}",
        "borders": f"borders of {count}",
        "numbers": f"the numbers of {count}",
        "positions": f"positions that begin anew at token {begins[0]}",
    }[kind]
    how = {
        "name": f"and nothing reads it: by its name it holds {says}",
        "content": f"and nothing reads it: in the rows so far it holds {says}",
        "position_column": f"and the mask does not read them: it holds {says}",
    }[seen_by]
    columns = _listed(read.columns) or "no column"
    is_whole = np.ndim(column) == 1 and (kind != "lengths" or sum(column) == sum(lengths))
    is_readable = is_whole and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None
    return RunError(
        f"column `{name}` states {count}, {how}; expected a mask that keeps them apart, got one "
        f"that reads {columns}; {_mask_text(name, kind, shown, is_readable=is_readable)}; "
        f"{unchecked(name)}"
    )


def _refusal_of_sum(cut: Cut, unread: Sequence[str], read: ReadRow) -> RunError:
    """Return the error of columns that cut a row into parts which the mask does not keep apart."""
    lengths = np.diff([0, *cut.begins(), len(read.positions)]).tolist()
    shown = f"[{', '.join(map(str, lengths[:SHOWN]))}{', ...' * (len(lengths) > SHOWN)}]"
    columns = _listed(read.columns) or "no column"
    return RunError(
        f"columns {_listed(cut.names)} add up to the tokens of every row so far, and nothing reads "
        f"{_listed(unread)}: they cut this row into parts of {shown} tokens; expected a mask that "
        f"keeps the parts apart, got one that reads {columns}; {cut.advice}; "
        f"RowRules(unchecked_columns={tuple(unread)!r}) trains as if they were not there"
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _mask_text(name: str, kind: Kind, lengths: str, *, is_readable: bool) -> str:
    """Return the texts that read a column of documents."""
    if is_readable and kind == "lengths":
        return f"`segment doc = branch [{name}]*` and `mask docs = paths` read it"
    if is_readable and kind == "positions":
        return (
            f"`segment doc = positions({name})` and `mask docs = causal per doc` read it, with "
            f"RowRules(position_column={name!r})"
        )
    by_lengths = (
        "`segment doc = branch [doc_lens]*` and `mask docs = paths` read a column doc_lens, here "
        f"{lengths}"
    )
    if is_readable and kind == "numbers":
        return (
            f"{by_lengths}; `segment doc = ids({name})` and `mask docs = causal per doc` read this "
            "column, and positions count on through the row"
        )
    return by_lengths


def _numbers(column: Any) -> Values | None:  # Any: what a user's row holds
    """Return numbers ``[k]`` or ``[m, k]``, without lists of one list; ``None`` for others."""
    probe = column
    while isinstance(probe, list | tuple) and probe:
        probe = probe[0]
    if not isinstance(probe, bool | int | float) and not hasattr(probe, "dtype"):
        return None  # not converted: a list of long texts would become a large array
    try:
        values: Values = np.asarray(column)
    except (TypeError, ValueError, RuntimeError):  # ragged lists, tensors on a device
        return None
    while values.ndim > 1 and len(values) == 1:
        values = values[0]
    return values if values.dtype.kind in "biuf" and values.size and values.ndim in (1, 2) else None
