"""Find the tables that begin and that end the sums of a device's own rows.

Sums are wide: 32 bits where tensors have 16. A kernel that knows where they begin and end reads
none in rows that a table opens, and writes the results of rows that a table closes. So no extra
pass clears these sums before the first table, or converts them behind the last one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from dcp_dsl.arrays import Bools, Ints
from dcp_planner import Direction, TransferKind
from dcp_runtime.plans.tile_table import TileTable

MAX_GAPS = 8  # most runs of rows that are cleared or converted one by one; of more, all rows are
_NEVER = np.iinfo(np.int64).max
_NO_ROW: Ints = np.zeros((2, 0), np.int64)
"""A span without intervals; a span is int64 ``[2, N]``, starts and ends of intervals."""


@dataclass(frozen=True, slots=True)
class OwnSums:
    """The own rows whose sums no table begins or ends, as runs of rows."""

    blank: tuple[slice, ...]  # start at 0, since no table opens them
    left: tuple[slice, ...]  # converted at the end, since no table closes them
    is_kept: bool = True  # sums outlive a table; if not, they need no memory

    @classmethod
    def of_all(cls, num_rows: int) -> "OwnSums":
        """Return the sums of a kernel that neither begins nor ends any."""
        whole = (slice(0, num_rows),)
        return cls(whole, whole)


Merge: TypeAlias = tuple[int, slice]
"""A partial result that is merged: the tables that ran before, and its rows."""


def mark_tables(
    tables: Sequence[TileTable],
    direction: Direction,
    merges: Mapping[TransferKind, Sequence[Merge]],
    num_local: int,
) -> tuple[list[TileTable], dict[TransferKind, OwnSums]]:
    """Mark the sums that tables of a direction open and close; return the other rows by kind.

    Tables and merges, the partial results by kind, are in the order of the program.
    """
    kind = TransferKind.OUT if direction == "forward" else TransferKind.DQ
    opens, closes, own = _mark_queries(tables, merges[kind], num_local)
    sums = {kind: own}
    opens_keys = closes_keys = [False] * len(tables)
    if direction == "backward":
        kind = TransferKind.DKV
        opens_keys, closes_keys, sums[kind] = _mark_keys(tables, merges[kind], num_local)
    marked = [
        replace(table, opens=o, closes=c, opens_keys=ok, closes_keys=ck)
        for table, o, c, ok, ck in zip(tables, opens, closes, opens_keys, closes_keys, strict=True)
    ]
    return marked, sums


def _mark_queries(
    tables: Sequence[TileTable], merges: Sequence[Merge], num_local: int
) -> tuple[list[Bools], list[Bools], OwnSums]:
    """Return the segments of each table whose sums it opens, those that it closes, and the rest."""
    # O(S log S) for the S segments of all tables, times the merges.
    if not tables:
        return [], [], OwnSums.of_all(num_local)
    start = np.concatenate([table.q_start for table in tables]).astype(np.int64)
    size = np.concatenate([table.q_len for table in tables]).astype(np.int64)
    place = np.repeat(np.arange(len(tables)), [table.num_segments for table in tables])
    own = np.flatnonzero(start < num_local)
    # A row always lies in the same segment: all tables have the cuts of its block.
    rows, first = np.unique(start[own], return_index=True)
    last = len(own) - 1 - np.unique(start[own][::-1], return_index=True)[1]
    first, last = own[first], own[last]
    ends = rows + size[first]
    earliest, latest = np.full(len(rows), _NEVER), np.full(len(rows), -1)
    for before, merged in merges:
        at = slice(*np.searchsorted(rows, (merged.start, merged.stop)))
        earliest[at] = np.minimum(earliest[at], before)
        latest[at] = np.maximum(latest[at], before)
    begins, finishes = earliest > place[first], latest <= place[last]
    blank = _gaps(rows[begins], ends[begins], num_local)
    left = _gaps(rows[finishes], ends[finishes], num_local)
    if len(left) > MAX_GAPS:
        finishes[:] = False
        left = (slice(0, num_local),)
    opens, closes = np.zeros((2, len(start)), bool)
    opens[first[begins]] = closes[last[finishes]] = True
    borders = np.cumsum([table.num_segments for table in tables])[:-1]
    is_kept = bool(blank or left or not (opens & closes)[own].all())
    own_sums = OwnSums(_few(blank, num_local), left, is_kept)
    return np.split(opens, borders), np.split(closes, borders), own_sums


def _mark_keys(
    tables: Sequence[TileTable], merges: Sequence[Merge], num_local: int
) -> tuple[list[bool], list[bool], OwnSums]:
    """Return which tables open and which close the sums of all keys that they meet; the rest."""
    # O(P log P) for the P pieces of all tables.
    spans = [_spans(table) for table in tables]
    merged = [before for before, _ in merges]
    earliest, latest = min(merged, default=_NEVER), max(merged, default=-1)
    is_first = _share_no_row_before(spans)
    is_last = _share_no_row_before(spans[::-1])[::-1]
    opens = [place < earliest and first for place, first in enumerate(is_first)]
    closes = [
        last and latest <= place and bool(spans[place][1].max(initial=0) <= num_local)
        for place, last in enumerate(is_last)
    ]

    def gaps(marks: Sequence[bool]) -> tuple[slice, ...]:
        chosen = [span for span, is_marked in zip(spans, marks, strict=True) if is_marked]
        start, end = _union([_NO_ROW, *chosen])
        return _gaps(start, end, num_local)

    blank, left = gaps(opens), gaps(closes)
    if len(left) > MAX_GAPS:
        closes = [False] * len(closes)
        left = (slice(0, num_local),)
    is_kept = bool(blank or left or not (all(opens) and all(closes)))
    return opens, closes, OwnSums(_few(blank, num_local), left, is_kept)


def _few(blank: tuple[slice, ...], num_local: int) -> tuple[slice, ...]:
    # Rows that a table opens may be cleared, too: they are not read.
    return blank if len(blank) <= MAX_GAPS else (slice(0, num_local),)


def _gaps(start: Ints, end: Ints, num_rows: int) -> tuple[slice, ...]:
    """Return the rows below `num_rows` in no interval, of intervals that rise and are disjoint."""
    begin, stop = np.append(0, end), np.append(start, num_rows)
    chosen = np.flatnonzero(begin < np.minimum(stop, num_rows))
    return tuple(
        slice(a, min(b, num_rows))
        for a, b in zip(begin[chosen].tolist(), stop[chosen].tolist(), strict=True)
    )


def _spans(table: TileTable) -> Ints:
    """Return the key rows that the pieces of a table meet: starts and ends, int64 ``[2, N]``."""
    start = table.kv_start.astype(np.int64)
    return _union([np.stack([start, start + table.kv_len])])


def _share_no_row_before(spans: Sequence[Ints]) -> list[bool]:
    """Return for each of some spans whether none of those before has a row of it."""
    seen, found = _NO_ROW, []
    for span in spans:
        found.append(not _meet(seen, span))
        seen = _union([seen, span])
    return found


def _union(spans: Sequence[Ints]) -> Ints:
    """Sort the intervals of all spans and join those that touch."""
    start, end = np.concatenate(spans, axis=1)
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    opens: Bools = np.ones(len(start), bool)
    opens[1:] = start[1:] > reach[:-1]
    return np.stack([start[opens], reach[np.roll(opens, -1)]])


def _meet(some: Ints, others: Ints) -> bool:
    """Return whether intervals share a row with others; both rise and are disjoint."""
    at = np.searchsorted(some[1], others[0], side="right")
    inside = at < some.shape[1]
    return bool((some[0][at[inside]] < others[1][inside]).any())
