"""Rows of any data set, each matched with its mask.

The data set is ours, Hugging Face's, a list of dictionaries or a stream. Masks are found here but
not compiled: the process that plans does that, and a rank that gets its part of a plan needs none.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from dcp_dsl import Attachment, Dataset, DatasetError, Mask, Sample, Spec, Stack
from dcp_dsl.arrays import Ints

Row: TypeAlias = Mapping[str, Any]  # Any: integers, lists of them, or bytes, by column
Tokens: TypeAlias = Ints

MaskFunction: TypeAlias = Spec | Mask | Stack | Callable[[Row], Mask | Stack]
Resolver: TypeAlias = Callable[[int, Row], tuple[Mask | Stack, Sample]]
"""Maps the number and the columns of a row to its mask or stack of masks, and to its sample."""

ROWS_OF_A_TABLE = 1024  # rows of a Hugging Face data set whose lengths are read at once


class RowError(DatasetError):
    """A row without usable tokens, which a policy may leave out."""


TokensRead: TypeAlias = Tokens | RowError  # the tokens of a row, or why it has none


def token_columns(name: str | None) -> tuple[str, ...]:
    """Return the columns that may hold the tokens, in the order of preference."""
    return ("tokens", "input_ids") if name is None else (name,)


def read_tokens(names: Sequence[str], row: Any, index: int) -> Tokens:  # Any: what a user gives
    """Return the tokens of a row, int64 ``[length]``; bytes count as one token each."""
    if not isinstance(row, Mapping):
        raise RowError(
            f"row {index}: expected columns by name, got {type(row).__name__}; "
            "read_dataset(path) gives the rows of a file"
        )
    found = [name for name in names if row.get(name) is not None]
    if not found:
        if empty := [name for name in names if name in row]:
            raise RowError(f"row {index}: expected `{empty[0]}` to be integers or bytes, got None")
        have = ", ".join(sorted(map(str, row))) or "none"
        raise RowError(
            f"row {index} has no column `{names[0]}`; its columns are: {have}; "
            "token_column= names another one"
        )
    tokens, *others = (_integers(row[name], index, name) for name in found)
    for other in others:
        check_same_tokens(tokens, other, f"row {index}")
    return tokens


def check_same_tokens(tokens: Tokens, other: Tokens, where: str) -> None:
    """Refuse a row whose two columns of tokens contradict each other."""
    if not np.array_equal(tokens, other):
        raise RowError(
            f"{where}: `tokens` and `input_ids` hold other tokens, {len(tokens)} and {len(other)} "
            "of them; RowRules(token_column='tokens'), or 'input_ids', reads one of the two"
        )


def _integers(values: Any, row: int, column: str) -> Tokens:  # Any: what a user's row holds
    if isinstance(values, bytes | bytearray):
        return np.frombuffer(bytes(values), np.uint8).astype(np.int64)
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError):  # ragged lists, tensors on a device
        array = np.empty((), object)
    if array.ndim > 1 and array.dtype.kind in "iu":
        raise DatasetError(
            f"row {row}: expected `{column}` to be integers or bytes, got a batch of shape "
            f"{list(array.shape)}; give the rows one by one, DCPDataloader packs them"
        )
    tokens = array.astype(np.int64) if array.dtype.kind in "iu" or not array.size else array
    if array.ndim != 1 or not np.array_equal(tokens, array) or tokens.dtype != np.int64:
        raise RowError(
            f"row {row}: expected `{column}` to be integers or bytes, got {str(values)[:60]!r}; "
            "token_column= names another column"
        )
    return tokens


class IndexedRows:
    """A data set with numbered rows: from `read_dataset`, Hugging Face, or a sequence of rows."""

    def __init__(self, dataset: Dataset | Sequence[Row], token_column: str | None) -> None:
        self._dataset = dataset
        self._names = token_columns(token_column)
        # Our own data sets know the lengths and the tokens of their rows, if no column is named.
        self._ours = dataset if isinstance(dataset, Dataset) and token_column is None else None
        self._lengths: Ints | None = None
        self.faults: dict[int, RowError] = {}  # of the rows to which `lengths` gives 0 for that
        self._is_arrow = False  # a file or table that gives lengths without reading rows

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def is_table(self) -> bool:
        """True if the rows lie in files or tables, which no code computes."""
        return self._ours is not None or self._is_arrow

    @property
    def columns(self) -> frozenset[str]:
        """Names of the columns; of a sequence of rows, those of its first row."""
        if isinstance(self._dataset, Dataset):
            return frozenset(self._dataset.columns)
        names = getattr(self._dataset, "column_names", None)  # Hugging Face's
        if names is not None:
            return frozenset(names)
        rows = (self._dataset[index] for index in range(len(self)))
        return frozenset(next((row for row in rows if isinstance(row, Mapping)), ()))

    @property
    def lengths(self) -> Ints:
        """Tokens of every row, int64 ``[N]``; reads all rows if no file or table holds them."""
        if self._lengths is None:
            if self._ours is not None:
                self._lengths = self._lengths_of_files(self._ours)
            elif (told := _lengths_of_arrow(self._dataset, self._names)) is not None:
                self._lengths, self._is_arrow = told, True
            else:
                self._lengths = self._lengths_by_row()
        return self._lengths

    def _lengths_of_files(self, dataset: Dataset) -> Ints:
        try:
            return dataset.lengths
        except DatasetError:  # a row without tokens, or with two lengths; or a file of such rows
            found = self._lengths_by_row()
            parts = np.split(found, np.cumsum([len(part) for part in dataset.parts])[:-1])
            if any(len(own) and not own.any() for own in parts):
                raise
            return found

    def _lengths_by_row(self) -> Ints:
        """Read all rows; keep the faults of those without tokens, whose length is 0."""
        lengths = np.zeros(len(self), np.int64)
        for index in range(len(self)):
            found = self.read(index)[1]
            if isinstance(found, RowError):
                self.faults[index] = found
            else:
                lengths[index] = len(found)
        return lengths

    def read(self, index: int) -> tuple[Row, TokensRead]:
        """Return one row and its tokens, or why it has none; asks the data set once."""
        try:
            row = self._dataset[index]
        except IndexError as error:
            had = len(self) if self._lengths is None else len(self._lengths)
            raise DatasetError(
                f"row {index} is gone: the data set had {had} rows when the loader was made and "
                f"has {len(self._dataset)} now; make a new loader"
            ) from error
        try:
            found = self._tokens(index, row)
        except RowError as error:
            return row, error
        # A row that has changed may no longer fit its pack.
        if self._lengths is not None and len(found) != self._lengths[index]:
            raise DatasetError(
                f"row {index} had {self._lengths[index]} tokens when the loader was made and has "
                f"{len(found)} now; make a new loader"
            )
        return row, found

    def _tokens(self, index: int, row: Row) -> Tokens:
        if self._ours is None:
            return read_tokens(self._names, row, index)
        try:
            tokens = np.asarray(self._ours.tokens(index)).astype(np.int64)
        except DatasetError as error:  # it names the row of the file
            raise RowError(str(error)) from error
        if row.get("tokens") is not None and row.get("input_ids") is not None:
            check_same_tokens(tokens, read_tokens(("input_ids",), row, index), f"row {index}")
        return tokens


class StreamedRows:
    """An iterable data set: rows come one after another, and their number is not known.

    It gives the same rows in the same order from the first on; an iterator, such as a generator,
    gives one epoch.
    """

    def __init__(self, dataset: Iterable[Row], token_column: str | None) -> None:
        self._dataset = dataset
        self._names = token_columns(token_column)
        self._is_read = False
        self.faults: dict[int, RowError] = {}  # none: each comes with its row
        self.passed = 0  # rows of the latest iteration so far

    def rows_from(self, index: int) -> Iterator[tuple[int, Row, TokensRead]]:
        """Return what `IndexedRows.read` does for every row from `index` on, with its number."""
        if self._is_read and isinstance(self._dataset, Iterator):
            raise DatasetError(
                f"the rows came from a {type(self._dataset).__name__}, which gives them only once; "
                "for more epochs give list(rows), or an object whose __iter__ starts anew"
            )
        # Noted here, as an iterator does not tell whether it is used up.
        self._is_read = True
        rows = iter(self._dataset)
        passed = sum(1 for _ in islice(rows, index))
        if passed < index:
            raise DatasetError(
                f"the stream ended after {passed} rows, the saved state is behind row {index}; "
                "resume with the data set the state was saved with"
            )
        self.passed = index
        for number, row in enumerate(rows, start=index):
            self.passed = number + 1
            try:
                tokens: TokensRead = read_tokens(self._names, row, number)
            except RowError as error:
                tokens = error
            yield number, row, tokens


def _lengths_of_arrow(dataset: Any, names: Sequence[str]) -> Ints | None:  # Any: HF's
    """Return the lengths that Arrow tables of a Hugging Face data set hold, without its rows."""
    # None if it is another data set, computes its rows when asked (`with_transform`), or has rows
    # without tokens.
    told = getattr(dataset, "format", None)
    if not isinstance(told, Mapping) or told.get("type") == "custom":
        return None
    name = next((name for name in names if name in told.get("columns", ())), None)
    if name is None:
        return None
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = [np.zeros(0, np.int64)]
    for table in dataset.select_columns([name]).with_format("arrow").iter(ROWS_OF_A_TABLE):
        column = table[name]
        is_list = isinstance(column.type, pa.ListType | pa.LargeListType)
        if column.null_count or not is_list or not pa.types.is_integer(column.type.value_type):
            return None  # rows are then read one by one, and bad rows refused by their number
        lengths.append(pc.list_value_length(column).to_numpy().astype(np.int64))
    return np.concatenate(lengths)


def open_rows(
    dataset: Any, token_column: str | None
) -> IndexedRows | StreamedRows:  # Any: a user's
    """Wrap a data set as `IndexedRows` if it gives rows by number, else as `StreamedRows`."""
    from torch.utils.data import DataLoader  # here: `dcpm trees` needs no torch

    if isinstance(dataset, DataLoader) and dataset.batch_sampler is not None:
        raise DatasetError(
            "expected a data set of rows, got batches of torch's DataLoader; DCPDataloader packs "
            "rows into batches itself: give it the DataLoader's dataset, or a DataLoader with "
            "batch_size=None"
        )
    if isinstance(dataset, Mapping):
        names = ", ".join(f"{name!r}" for name in dataset)
        of_splits = hasattr(dataset, "column_names")  # Hugging Face's DatasetDict
        kind, way = (
            (f"the splits {names}", "give one of them, such as dataset['train']")
            if of_splits
            else (f"a {type(dataset).__name__} of {names:.60}", "give a list of rows, a dict each")
        )
        raise DatasetError(f"expected a data set of rows, got {kind}; {way}")
    if hasattr(dataset, "iloc"):
        raise DatasetError(
            "expected a data set of rows, got a DataFrame; give frame.to_dict('records')"
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
    """Return the function that finds the mask and the sample of a row."""
    if isinstance(mask_fn, Spec):
        return _attached(rows, dataset, mask_fn, path)
    # mypy forgets inside a function what an argument was narrowed to: hence the new names.
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
    """Resolve by the first ``for`` of the spec that matches a row's file, or its columns."""
    # Rows of one file, or with the same columns, share an attachment.
    if isinstance(dataset, Dataset):
        attachments, files = spec.attachments_of(dataset), dataset

        def find(index: int, row: Row) -> Attachment:
            return attachments[files.part_of(index)]

    else:
        of_columns = cache(partial(spec.attachment, path))
        if isinstance(rows, IndexedRows):
            try:
                of_columns(rows.columns)  # raises now, not in the first batch, if nothing matches
            except DatasetError:
                if len(rows):
                    raise
                raise DatasetError(
                    "the data set has no rows, so nothing says which mask they get; expected at "
                    "least one row"
                ) from None

        def find(index: int, row: Row) -> Attachment:
            return of_columns(frozenset(row))

    def resolve(index: int, row: Row) -> tuple[Mask | Stack, Sample]:
        attachment = find(index, row)
        return attachment.value, attachment.sample(row)

    return resolve
