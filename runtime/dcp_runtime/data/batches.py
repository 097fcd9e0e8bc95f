"""Rows of a data set are packed by epoch, read, screened, and matched with their masks.

Masks are compiled by whoever plans: a rank that is sent its part of a plan never needs them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from torch.utils.data import DataLoader

from dcp_dsl import (
    Attachment,
    Dataset,
    DatasetError,
    Mask,
    Sample,
    Spec,
    Stack,
    TokenPaths,
    pack,
    row_name,
    token_paths,
)
from dcp_runtime.data.choices import Packing, RowRules
from dcp_runtime.data.dealing import Dealing
from dcp_runtime.data.rows import IndexedRows, Row, Screening, StreamedRows, Tokens
from dcp_runtime.data.token_columns import TokenColumns, read_columns
from dcp_runtime.errors import RunError

Packs: TypeAlias = tuple[tuple[int, ...], ...]
MaskFunction: TypeAlias = Spec | Mask | Stack | Callable[[Row], Mask | Stack]
Resolver: TypeAlias = Callable[[int, Row], tuple[Mask | Stack, Sample]]
"""From the number and the columns of a row to its mask, or those of its layers, and its sample."""


def pack_epoch(
    rows: Sequence[int], lengths: Sequence[int], packing: Packing, dealing: Dealing, epoch: int
) -> Packs:
    """Return the rows of every pack of one epoch; each row is in exactly one, unless left out last.

    `dealing` says how large a pack is, and how many a global batch takes.
    """
    # Of seed and epoch alone, so that all ranks and a resumed run shuffle alike.
    rng = np.random.default_rng([packing.seed, epoch])
    order = rng.permutation(len(rows)) if packing.shuffle else np.arange(len(rows))
    packed = pack(
        [int(lengths[i]) for i in order], dealing.room(dealing.widest), order=packing.order
    )
    packs = [tuple(int(rows[order[i]]) for i in own) for own in packed]
    if packing.drop_last:
        packs = packs[: max(0, len(packs) - 1) // dealing.packs * dealing.packs]
    if packing.shuffle and packing.order == "decreasing":
        packs = [packs[i] for i in rng.permutation(len(packs))]
    return tuple(packs)


@dataclass(frozen=True, slots=True, eq=False)
class PackedSequence:
    """One row of a batch.

    Attributes:
        row: its number in the data set.
        name: as `row_name` makes it, for people.
        tokens: int64 ``[n]``, those that take part.
        columns: what the row's columns say about each of them.
        masks: the different ones of its layers.
        cycle: for each layer the number of its mask; repeats over the layers of a model.
        sample: what they are made of; may be longer than ``n``.
    """

    row: int
    name: str
    tokens: Tokens
    columns: TokenColumns
    masks: tuple[Mask, ...]
    cycle: tuple[int, ...]
    sample: Sample


@dataclass(slots=True)
class RowReader:
    """Makes rows ready, one at a time; `way_out` says what to do about one longer than `room`."""

    resolve: Resolver
    room: int
    way_out: str
    screening: Screening
    rules: RowRules

    def usable_tokens(self, row: int, length: int) -> int:
        """Return how many tokens of a row take part by its length alone; 0 leaves it out.

        Raises:
            DatasetError: if the row cannot be used and the policy is to raise.
        """
        if length == 0:
            self.screening.leave_out(row, "empty", f"row {row} has no tokens")
            return 0
        if length > self.room:
            return self.screening.shorten(row, length, self.room, self.way_out)
        return length

    def read(self, index: int, row: Row, tokens: Tokens) -> PackedSequence | None:
        """Find the masks of a row; ``None`` leaves it out.

        Raises:
            DatasetError: naming the row, if its columns do not fit and the policy is to raise.
            RunError: naming the row, if it shows a fault of the whole data set.
        """
        count = self.usable_tokens(index, len(tokens))
        if not count:
            return None
        try:
            found, sample = self.resolve(index, _with_length(row, len(tokens)))
            stack = Stack.of(found) if isinstance(found, Mask) else found
            masks, cycle = stack.masks, stack.cycle()
            columns = read_columns(self.rules, row, tokens, find_paths(masks, sample))
        except DatasetError as error:
            self.screening.leave_out(index, "unfit", f"row {index}: {error}")
            return None
        except RunError as error:
            raise RunError(f"row {index}: {error}") from error
        name, used = row_name(index, row), tokens[:count]
        return PackedSequence(index, name, used, columns.first(count), masks, cycle, sample)


def find_paths(masks: Sequence[Mask], sample: Sample) -> TokenPaths | None:
    """Find positions and targets in the layout with branches that the masks of a row read."""
    found = [paths for mask in masks if (paths := token_paths(mask, sample)) is not None]
    if any((paths.previous != found[0].previous).any() for paths in found):
        raise DatasetError(
            "the masks of two layers read layouts with different branches; one layout must say "
            "which token predicts which"
        )
    return found[0] if found else None


def _with_length(row: Row, length: int) -> Row:
    """Add the length to a row with a user-named token column."""
    for name in ("len", "length"):
        if row.get(name) is not None and row[name] != length:
            raise DatasetError(f"column `{name}` says {row[name]} tokens, the row has {length}")
    return row if row.get("len") is not None else {**row, "len": length}


def open_rows(
    dataset: Any, token_column: str | None
) -> IndexedRows | StreamedRows:  # Any: a user's
    """Wrap a data set by what it can do: give rows by number, or one behind the other."""
    if isinstance(dataset, DataLoader) and dataset.batch_sampler is not None:
        raise DatasetError(
            "expected a data set of rows, got batches of torch's DataLoader; DCPDataloader packs "
            "rows into batches itself: give it the DataLoader's dataset, or a DataLoader with "
            "batch_size=None"
        )
    if isinstance(dataset, str | bytes | Path):
        raise DatasetError(
            f"expected a data set, got {dataset!r:.60}; read_dataset(path) reads a file or folder"
        )
    if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"):
        return IndexedRows(dataset, token_column)
    if hasattr(dataset, "__iter__"):
        return StreamedRows(dataset, token_column)
    raise DatasetError(
        f"expected a data set of rows, got {type(dataset).__name__}; it needs rows by number (len "
        "and []) or to be iterable"
    )


def make_resolver(
    rows: IndexedRows | StreamedRows, dataset: object, mask_fn: MaskFunction, path: str
) -> Resolver:
    """Return the function that finds mask and sample of a row."""
    if isinstance(mask_fn, Spec):
        return _attached(rows, dataset, mask_fn, path)
    if isinstance(mask_fn, Mask | Stack):
        always = mask_fn
        return lambda _, row: (always, Sample.of(row, always))
    if not callable(mask_fn):
        raise DatasetError(
            "expected mask_fn to be a loaded spec, a mask or a function from a row to a mask (or a "
            f"stack of masks), got {mask_fn!r:.60}; load(path) gives a spec, spec.mask(call) a "
            "mask, spec.stack(name) a stack"
        )
    choose = mask_fn

    def resolve(_: int, row: Row) -> tuple[Mask | Stack, Sample]:
        chosen = choose(row)
        if not isinstance(chosen, Mask | Stack):
            raise DatasetError(f"mask_fn must give a Mask or a Stack for each row, got {chosen!r}")
        return chosen, Sample.of(row, chosen)

    return resolve


def _attached(rows: IndexedRows | StreamedRows, dataset: object, spec: Spec, path: str) -> Resolver:
    """Resolve through the first ``for`` that matches: a row's file, in memory its columns."""
    if isinstance(dataset, Dataset):
        attachments, files = spec.attachments_of(dataset), dataset

        def find(index: int, row: Row) -> Attachment:
            return attachments[files.part_of(index)]

    else:
        of_columns = cache(partial(spec.attachment, path))
        if isinstance(rows, IndexedRows):
            of_columns(rows.columns)  # what matches nothing is said now

        def find(index: int, row: Row) -> Attachment:
            return of_columns(frozenset(row))

    def resolve(index: int, row: Row) -> tuple[Mask | Stack, Sample]:
        attachment = find(index, row)
        return attachment.value, attachment.sample(row)

    return resolve
