"""Columns of other tools that change what is to be trained on, in rows where nothing reads them.

A data set with such a column would train on prompts or padding, with wrong positions, or across
the borders of documents.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_runtime.data.choices import RowRules
from dcp_runtime.errors import RunError

UNREAD_MASKS = ("loss_mask", "completion_mask", "assistant_masks", "attention_mask")
"""Columns that leave tokens out."""

POSITIONS = "position_ids"
"""Column of positions, which begin anew with every document."""

LENGTHS, ENDS, NUMBERS = ("seq_lens",), ("cu_seqlens",), ("document_ids", "doc_ids")
"""Columns that state documents: by their lengths, by where they end, and token by token."""

APART = "a mask with `segment doc = [doc_lens]*` and `per doc` keeps packed documents apart"


def check_masks(rules: RowRules, row: Mapping[str, Any], length: int) -> None:
    """Refuse a row with a well-known mask that leaves tokens out, if no rule reads that mask.

    Raises:
        RunError: naming the column.
    """
    for name in UNREAD_MASKS:
        if name in rules.extra_columns or row.get(name) is None:
            continue
        values = np.asarray(row[name])
        zeros = int((values == 0).sum()) if values.shape == (length,) else 0
        if zeros:
            padding = "; rows need no padding: leave it out" if name == "attention_mask" else ""
            raise RunError(
                f"column `{name}` leaves out {zeros} of {length} tokens, and nothing reads it: "
                f"RowRules(loss_column={name!r}) leaves these targets out, "
                f"extra_columns=({name!r},) carries the column along and trains on all{padding}"
            )


def check_documents(
    rules: RowRules, row: Mapping[str, Any], positions: Ints, read: Mapping[str, Any]
) -> None:
    """Refuse a row with a well-known column of other positions or documents that nothing reads.

    Args:
        rules: name the columns that the loader reads.
        row: its columns.
        positions: int64 ``[n]``, those that its tokens have.
        read: the columns that its masks read.

    Raises:
        RunError: naming the column.
    """
    named = {rules.position_column, rules.loss_column, rules.labels_column, rules.token_column}
    named.update(rules.extra_columns, read)
    length = len(positions)
    for name in (POSITIONS, *LENGTHS, *ENDS, *NUMBERS):
        if name in named or (values := _integers(row.get(name))) is None:
            continue
        borders = _borders(name, values, length)
        if not len(borders):
            continue
        if name == POSITIONS:
            if not np.array_equal(values, positions):
                raise RunError(
                    f"column `{name}` begins anew at token {borders[0]}, and nothing reads it: "
                    f"expected position {values[borders[0]]} there, got "
                    f"{positions[borders[0]]}; RowRules(position_column={name!r}) reads the "
                    f"column, {APART}; extra_columns=({name!r},) carries it along and trains as now"
                )
        elif not any(np.isin(borders, found).all() for found in _read_borders(read, length)):
            as_now = (
                f"extra_columns=({name!r},) carries it along and trains as now"
                if name in NUMBERS
                else "rows without the column train as now"
            )
            raise RunError(
                f"column `{name}` states {len(borders) + 1} documents, and nothing reads it: "
                f"expected a mask that reads where they begin, got one that reads "
                f"{', '.join(f'`{column}`' for column in read) or 'no column'}; {APART}; {as_now}"
            )


def _borders(name: str, values: Ints, length: int) -> Ints:
    """Return where documents begin within a row, by the column of that name."""
    if name in LENGTHS:
        return _ends(np.cumsum(values), length)
    if name in ENDS:
        return _ends(values[1:], length)  # the first is 0
    if len(values) != length:
        return np.zeros(0, np.int64)
    begins = values[1:] == 0 if name == POSITIONS else values[1:] != values[:-1]
    return 1 + np.flatnonzero(begins)


def _ends(ends: Ints, length: int) -> Ints:
    """Return ends of documents that others follow; none if they are not of two or more in a row."""
    if len(ends) < 2 or ends[0] < 0 or ends[-1] > length or (np.diff(ends) < 0).any():
        return np.zeros(0, np.int64)
    return np.unique(ends[(ends > 0) & (ends < length)])


def _read_borders(read: Mapping[str, Any], length: int) -> Iterable[Ints]:
    """Return the borders that each column of the masks may state, as lengths or by token."""
    for column in read.values():
        if isinstance(column, list) and any(isinstance(part, list) for part in column):
            yield np.arange(length)  # parts of groups: several columns together state the borders
        if (values := _integers(column)) is not None:
            yield _ends(np.cumsum(values), length)
            if len(values) == length:
                yield 1 + np.flatnonzero(np.diff(values))


def _integers(column: Any) -> Ints | None:  # Any: what a user's row holds
    """Return a list of integers; ``None`` for anything else."""
    try:
        values = np.asarray(column)
    except (TypeError, ValueError, RuntimeError):  # ragged lists, tensors on a device
        return None
    return values.astype(np.int64) if values.ndim == 1 and values.dtype.kind in "iu" else None
