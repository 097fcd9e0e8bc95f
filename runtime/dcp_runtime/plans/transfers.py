"""Transfers of one device, and the bundles in which they travel.

A bundle is what one device sends another at one place of its program and what lies in one piece in
the receive buffer: it travels as one message. Both ends find the same bundles, since both know
where its blocks arrive.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dcp_planner import TransferKind


@dataclass(frozen=True, slots=True)
class Transfer:
    """One row of `Transfers` that leaves or reaches this device.

    `row` is the first row in the working buffers of queries or of keys: where an input lies, where
    the sums lie that a result carries, or the sums that it is merged into.
    """

    index: int  # row of the plan's table
    kind: TransferKind
    block: int  # row of `Blocks`
    name: str  # in traces, as the simulator writes it: "kv 12", or "kv 12.3" in head group 3
    num_tokens: int
    peer: int  # the other device
    is_send: bool
    row: int
    slot: int  # first row in the receive buffer of its kind, at the target
    hop: int  # 0 if the source owns the data or computed it, more if it passes the data on
    brought_by: int  # transfer that brings the block before this device forwards it, or -1

    @property
    def rows(self) -> slice:
        """The rows of its block in the working buffers."""
        return slice(self.row, self.row + self.num_tokens)


@dataclass(frozen=True, slots=True, eq=False)
class Bundle:
    """Blocks of one kind that travel together, in the order of their rows at the target."""

    transfers: tuple[Transfer, ...]  # one for each block; their slots follow one another
    index: int  # of the first; both ends use it as the tag of the message
    kind: TransferKind
    peer: int
    is_send: bool
    is_result: bool  # it carries sums
    hop: int
    num_tokens: int  # of all blocks
    slot: int  # first row in the receive buffer of the kind
    rows: tuple[slice, ...]  # in the working buffers of this end, as few slices as possible

    @classmethod
    def of(cls, transfers: Iterable[Transfer]) -> "Bundle":
        """Bundle transfers whose slots follow one another."""
        held = tuple(transfers)
        first = held[0]
        return cls(
            held, first.index, first.kind, first.peer, first.is_send, first.kind.is_result,
            first.hop, sum(t.num_tokens for t in held), first.slot,
            merged_rows(t.rows for t in held),
        )  # fmt: skip


def merged_rows(rows: Iterable[slice]) -> tuple[slice, ...]:
    """Merge slices that follow one another."""
    found: list[slice] = []
    for each in rows:
        if found and found[-1].stop == each.start:
            found[-1] = slice(found[-1].start, each.stop)
        else:
            found.append(each)
    return tuple(found)


def bundle(items: Iterable[int], transfers: Mapping[int, Transfer]) -> tuple[Bundle, ...]:
    """Bundle the transfers of a launch, in the order in which they are listed."""
    # An input that is passed on travels alone: it leaves as soon as it has arrived, and only its
    # source knows where that was.
    groups: dict[tuple[int, ...], list[Transfer]] = {}
    for item in items:
        t = transfers[item]
        is_relay = t.hop > 0 and not t.kind.is_result
        key = t.peer, t.is_send, t.kind, t.hop, t.index if is_relay else -1
        groups.setdefault(key, []).append(t)
    return tuple(Bundle.of(run) for group in groups.values() for run in _runs(group))


def _runs(group: list[Transfer]) -> list[list[Transfer]]:
    """Cut a group where its slots do not follow one another."""
    runs: list[list[Transfer]] = []
    for t in sorted(group, key=lambda t: t.slot):
        last = runs[-1][-1] if runs else None
        if last is not None and last.slot + last.num_tokens == t.slot:
            runs[-1].append(t)
        else:
            runs.append([t])
    return runs
