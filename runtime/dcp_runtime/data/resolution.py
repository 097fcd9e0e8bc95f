"""What a user gives as data set and mask function, as rows and a way to each row's mask."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from dcp_dsl import Attachment, Dataset, DatasetError, Mask, Sample, Spec, Stack
from dcp_runtime.data.batches import Resolver
from dcp_runtime.data.rows import IndexedRows, Row, StreamedRows, TokenColumn

MaskFunction: TypeAlias = Spec | Mask | Stack | Callable[[Row], Mask | Stack]


def open_rows(dataset: Any, tokens: TokenColumn) -> IndexedRows | StreamedRows:  # Any: a user's
    """Wrap a data set by what it can do: give rows by number, or one behind the other.

    Raises:
        DatasetError: if it can do neither.
    """
    if isinstance(dataset, str | bytes | Path):
        raise DatasetError(
            f"expected a data set, got {dataset!r:.60}; read_dataset(path) reads a file or folder"
        )
    if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"):
        return IndexedRows(dataset, tokens)
    if hasattr(dataset, "__iter__"):
        return StreamedRows.of(dataset, tokens)
    raise DatasetError(
        f"expected a data set of rows, got {type(dataset).__name__}; it needs rows by number (len "
        "and []) or to be iterable"
    )


def make_resolver(
    rows: IndexedRows | StreamedRows, dataset: object, mask_fn: MaskFunction, path: str
) -> Resolver:
    """Give the function that finds mask and sample of a row.

    Raises:
        DatasetError: if `mask_fn` is nothing that gives masks, or no ``for`` of a spec matches.
    """
    if isinstance(mask_fn, Spec):
        return _attached(rows, dataset, mask_fn, path)
    if isinstance(mask_fn, Mask | Stack):
        always = mask_fn
        return lambda _, row: (always, _sample(row, always))
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
        return chosen, _sample(row, chosen)

    return resolve


def _sample(row: Row, value: Mask | Stack) -> Sample:
    return Sample.of_columns(row, value.columns, value.name)


def _attached(rows: IndexedRows | StreamedRows, dataset: object, spec: Spec, path: str) -> Resolver:
    """Resolve through the ``for`` statements of a spec: by file, in memory by a row's columns."""
    if isinstance(dataset, Dataset):
        return _attached_files(dataset, spec)
    found: dict[frozenset[str], Attachment] = {}

    def attachment_of(columns: frozenset[str]) -> Attachment:
        if columns not in found:
            found[columns] = spec.attachment(path, columns)
        return found[columns]

    def resolve(_: int, row: Row) -> tuple[Mask | Stack, Sample]:
        attachment = attachment_of(frozenset(row))
        return attachment.value, attachment.sample(row)

    if isinstance(rows, IndexedRows):
        attachment_of(rows.columns)  # what matches nothing is said now
    return resolve


def _attached_files(dataset: Dataset, spec: Spec) -> Resolver:
    """Resolve the rows of files, each through the first ``for`` that matches its file."""
    attachments = spec.attachments_of(dataset)

    def resolve(index: int, row: Row) -> tuple[Mask | Stack, Sample]:
        attachment = attachments[dataset.part_of(index)]
        return attachment.value, attachment.sample(row)

    return resolve
