"""Screened rows, packed to the token budget: epoch by epoch, a stream as it comes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np

from dcp_dsl import pack
from dcp_runtime.data.choices import Packing
from dcp_runtime.data.dealing import Dealing
from dcp_runtime.data.rows import IndexedRows, StreamedRows
from dcp_runtime.data.screening import screen
from dcp_runtime.data.sequences import PackedSequence, RowReader
from dcp_runtime.errors import RunError

Packs: TypeAlias = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Position:
    """The position of an iteration: the part of an epoch that the training loop has done."""

    epoch: int = 0
    step: int = 0  # global batches that are done, in whole windows
    row: int = 0  # of a stream, the first row behind these
    micro_batch: int = 0  # of the next window, done as well

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "Position":  # Any: what a file of JSON held
        """Read a position from the state of a loader."""
        numbers = [state.get(each.name) for each in fields(cls)]
        if not all(isinstance(n, int) and n >= 0 for n in numbers):
            raise RunError(
                "expected epoch, step, row and micro_batch of the state to be counts, got "
                f"{numbers}"
            )
        return cls(*map(int, numbers))  # type: ignore[arg-type]  # checked above


@dataclass(frozen=True, slots=True)
class Pack:
    """Rows of the data set that are packed; of a stream, also the first row behind them."""

    sequences: tuple[PackedSequence, ...]
    behind: int = 0


class RowPacker:
    """Packs the rows of a data set; `dealing` says how large a pack is."""

    def __init__(
        self,
        rows: IndexedRows | StreamedRows,
        reader: RowReader,
        packing: Packing,
        dealing: Dealing,
    ) -> None:
        self._rows, self._reader, self._packing, self._dealing = rows, reader, packing, dealing
        self._packed: tuple[int, Packs] = -1, ()  # the latest epoch, and its packs
        if isinstance(rows, IndexedRows):
            self._usable = screen(
                rows.lengths.tolist(), reader.usable_tokens, reader.screening, packing.micro_batches
            )
            self.packs_of(0)  # raises now, not at the first batch, if rows cannot be packed
        elif packing.shuffle or packing.order != "in_order":
            raise RunError(
                "a stream of rows is packed in order: expected shuffle=False and order='in_order'; "
                "read_dataset(path) or list(rows) gives rows with numbers"
            )

    @property
    def rows_seen(self) -> int:
        """Rows of the data set; of a stream, those of the latest iteration so far."""
        return len(self._rows) if isinstance(self._rows, IndexedRows) else self._rows.passed

    @property
    def usable_rows(self) -> int | None:
        """Rows that are not left out; ``None`` for a stream."""
        return len(self._usable[0]) if isinstance(self._rows, IndexedRows) else None

    def packs_of(self, epoch: int) -> Packs:
        """Return the numbers of the rows of every pack of an epoch."""
        assert isinstance(self._rows, IndexedRows), "streams are packed as they come"
        if self._packed[0] != epoch:
            self._packed = epoch, pack_epoch(*self._usable, self._packing, self._dealing, epoch)
        return self._packed[1]

    def count_of(self, epoch: int) -> int:
        """Return the micro-batches of an epoch; a stream gives a `TypeError`, as `len` does."""
        if isinstance(self._rows, StreamedRows):
            raise TypeError("a stream of rows has no length")
        steps = -(-len(self.packs_of(epoch)) // self._dealing.packs)
        return steps * self._dealing.micro_batches

    def length_of(self, epoch: int) -> str:
        """Return rows and batches of an epoch as text; empty for a stream."""
        if isinstance(self._rows, StreamedRows):
            return ""
        return f"{len(self._rows)} rows, {self.count_of(epoch)} batches in epoch {epoch}"

    def packs(self, start: Position) -> Iterator[Pack]:
        """Return packs from a position on, to the end of its epoch."""
        if isinstance(self._rows, StreamedRows):
            packs = stream_packs(self._rows, self._reader, start.row)
            drops_last = self._packing.drop_last
            return without_last(packs, self._dealing.packs) if drops_last else packs
        chosen = self.packs_of(start.epoch)[start.step * self._dealing.packs :]
        return read_packs(self._rows, self._reader, chosen)


def read_packs(rows: IndexedRows, reader: RowReader, packs: Packs) -> Iterator[Pack]:
    """Read the rows of packs; rows that do not fit their mask are left out."""
    for numbers in packs:
        read = (reader.read(index, *rows.read(index)) for index in numbers)
        yield Pack(tuple(sequence for sequence in read if sequence is not None))


def stream_packs(rows: StreamedRows, reader: RowReader, begin: int) -> Iterator[Pack]:
    """Pack rows as they come; a pack closes when the next row does not fit."""
    found: list[PackedSequence] = []
    used = last = 0
    for index, row, tokens in rows.rows_from(begin):
        sequence = reader.read(index, row, tokens)
        if sequence is None:
            continue
        if found and used + len(sequence.tokens) > reader.room:
            yield Pack(tuple(found), index)
            found, used = [], 0
        found.append(sequence)
        used += len(sequence.tokens)
        last = index
    if found:
        yield Pack(tuple(found), last + 1)


def without_last(packs: Iterator[Pack], size: int) -> Iterator[Pack]:
    """Return packs without those of the last global batch; one is held back, as streams need it."""
    held: list[Pack] = []
    for each in packs:
        if len(held) == size:
            yield from held
            held = []
        held.append(each)


def pack_epoch(
    rows: Sequence[int], lengths: Sequence[int], packing: Packing, dealing: Dealing, epoch: int
) -> Packs:
    """Return the rows of every pack of an epoch; each row is in one, or dropped."""
    # Seed and epoch alone decide, so that all ranks and a resumed run shuffle alike.
    rng = np.random.default_rng([packing.seed, epoch])
    order = rng.permutation(len(rows)) if packing.shuffle else np.arange(len(rows))
    packed = pack(
        [int(lengths[i]) for i in order], dealing.room(dealing.widest), order=packing.order
    )
    packs = [tuple(int(rows[order[i]]) for i in own) for own in packed]
    # Before packs are shuffled: in decreasing order only the last packs are far from full. The last
    # global batch goes even if it is full, hence the 1.
    if packing.drop_last:
        packs = packs[: max(0, len(packs) - 1) // dealing.packs * dealing.packs]
    if packing.shuffle and packing.order == "decreasing":
        packs = [packs[i] for i in rng.permutation(len(packs))]
    return tuple(packs)
