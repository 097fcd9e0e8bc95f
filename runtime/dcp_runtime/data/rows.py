"""Rows of a data set, whatever holds it: ours, Hugging Face's, a list of dictionaries, a stream.

Those that cannot be trained on raise an error, or are left out and counted. This module loads no
torch: planner processes need it, and start in a tenth of the time without.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, TypeAlias

import numpy as np

from dcp_dsl import Dataset, DatasetError
from dcp_dsl.arrays import Ints

RowPolicy: TypeAlias = Literal["error", "skip", "truncate"]
Reason: TypeAlias = Literal["empty", "too_long", "unfit"]

KEPT_EXAMPLES = 20
SKIP_HINT = "policy='skip' leaves such rows out and counts them"


@dataclass(slots=True)
class Screening:
    """Applies a policy and keeps the record; nothing is left out without being in it.

    Attributes:
        policy: ``"error"`` raises for the first bad row; ``"skip"`` leaves bad rows out;
            ``"truncate"`` cuts rows longer than the budget and raises for the others.
        counts: rows left out or cut, by reason.
        examples: what was wrong with the first `KEPT_EXAMPLES` of them.
        hidden_targets: targets left out because they do not see the token before them.
    """

    policy: RowPolicy = "error"
    counts: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)
    hidden_targets: int = 0
    _known: set[tuple[int, str]] = field(default_factory=set)

    def leave_out(self, row: int, reason: Reason, what: str) -> None:
        """Record that a row is left out.

        Raises:
            DatasetError: unless the policy is to skip such rows.
        """
        if self.policy != "skip":
            raise DatasetError(f"{what}; {SKIP_HINT}")
        self._record(row, reason, what)

    def shorten(self, row: int, length: int, budget: int, way_out: str) -> int:
        """Return how many tokens of a row longer than the budget are used; 0 leaves it out.

        Args:
            row: its number.
            length: its tokens.
            budget: most tokens of a row.
            way_out: how the row would fit.

        Raises:
            DatasetError: if the policy is to raise.
        """
        what = f"row {row} has {length} tokens, the token budget is {budget}"
        if self.policy == "error":
            raise DatasetError(f"{what}; {way_out}, or choose policy='truncate' or policy='skip'")
        self._record(row, "too_long", what)
        return budget if self.policy == "truncate" else 0

    def leave_out_targets(self, row: int, count: int) -> None:
        """Record that a row is used without some of its targets."""
        if (row, "hidden") not in self._known:
            self._known.add((row, "hidden"))
            self.hidden_targets += count

    def _record(self, row: int, reason: Reason, what: str) -> None:
        if (row, reason) in self._known:  # a second epoch finds the same rows
            return
        self._known.add((row, reason))
        self.counts[reason] = self.counts.get(reason, 0) + 1
        if len(self.examples) < KEPT_EXAMPLES:
            self.examples.append(what)


Row: TypeAlias = Mapping[str, Any]  # Any: integers, lists of them, or bytes, by column
Tokens: TypeAlias = Ints

ROWS_OF_A_TABLE = 1024
"""Rows of a Hugging Face data set whose lengths are read at once."""


def token_columns(name: str | None) -> tuple[str, ...]:
    """Return the columns that may hold the tokens, in the order of preference."""
    return ("tokens", "input_ids") if name is None else (name,)


def read_tokens(names: Sequence[str], row: Row, index: int) -> Tokens:
    """Return the tokens of a row, int64 ``[length]``; bytes count as one token each."""
    if not isinstance(row, Mapping):
        raise DatasetError(
            f"row {index}: expected columns by name, got {type(row).__name__}; "
            "read_dataset(path) gives the rows of a file"
        )
    name = next((name for name in names if row.get(name) is not None), None)
    if name is None:
        if empty := [name for name in names if name in row]:
            raise DatasetError(
                f"row {index}: expected `{empty[0]}` to be integers or bytes, got None"
            )
        have = ", ".join(sorted(row)) or "none"
        raise DatasetError(
            f"row {index} has no column `{names[0]}`; its columns are: {have}; "
            "token_column= names another one"
        )
    value = row[name]
    if isinstance(value, bytes | bytearray):
        return np.frombuffer(bytes(value), np.uint8).astype(np.int64)
    return _integers(value, index, name)


def _integers(values: Any, row: int, column: str) -> Tokens:  # Any: what a user's row holds
    try:
        array = np.asarray(values)
    except ValueError:  # lists of several lengths
        array = np.empty((), object)
    if array.ndim > 1 and array.dtype.kind in "iu":
        raise DatasetError(
            f"row {row}: expected `{column}` to be integers or bytes, got a batch of shape "
            f"{list(array.shape)}; give the rows one by one, DCPDataloader packs them"
        )
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise DatasetError(
            f"row {row}: expected `{column}` to be integers or bytes, got {str(values)[:60]!r}"
        )
    return array.astype(np.int64)


class IndexedRows:
    """A data set with numbered rows: from `read_dataset`, Hugging Face, or a sequence of rows.

    Args:
        dataset: has ``len`` and gives a row by number.
        token_column: the column that holds them; ``None`` for ``tokens``, else ``input_ids``.
    """

    def __init__(self, dataset: Dataset | Sequence[Row], token_column: str | None) -> None:
        self._dataset = dataset
        self._names = token_columns(token_column)
        self._is_ours = isinstance(dataset, Dataset) and token_column is None
        self._lengths: Ints | None = None

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def columns(self) -> frozenset[str]:
        """Names of the columns; of a sequence of rows, those of its first row."""
        if isinstance(self._dataset, Dataset):
            return frozenset(self._dataset.columns)
        names = getattr(self._dataset, "column_names", None)  # Hugging Face's
        if names is not None:
            return frozenset(names)
        return frozenset(self._dataset[0]) if len(self._dataset) else frozenset()

    @property
    def lengths(self) -> Ints:
        """Tokens of every row, int64 ``[N]``; reads all rows where no file or table says it."""
        if self._lengths is None:
            if isinstance(self._dataset, Dataset) and self._is_ours:
                self._lengths = self._dataset.lengths
            elif (told := _lengths_of_arrow(self._dataset, self._names)) is not None:
                self._lengths = told
            else:
                counts = (len(self.read(index)[1]) for index in range(len(self)))
                self._lengths = np.fromiter(counts, np.int64)
        return self._lengths

    def read(self, index: int) -> tuple[Row, Tokens]:
        """Return one row and its tokens; asks the data set once."""
        try:
            row = self._dataset[index]
        except IndexError as error:
            raise DatasetError(
                f"row {index} is gone: the data set had {len(self.lengths)} rows when the loader "
                f"was made and has {len(self._dataset)} now; make a new loader"
            ) from error
        if isinstance(self._dataset, Dataset) and self._is_ours:
            found = np.asarray(self._dataset.tokens(index)).astype(np.int64)
        else:
            found = read_tokens(self._names, row, index)
        if self._lengths is not None and len(found) != self._lengths[index]:
            raise DatasetError(
                f"row {index} had {self._lengths[index]} tokens when the loader was made and has "
                f"{len(found)} now; make a new loader"
            )
        return row, found


class StreamedRows:
    """An iterable data set: rows come one behind the other, their number is not known.

    Args:
        dataset: iterates from the first row on, always over the same rows in the same order; an
            iterator, such as a generator, gives one epoch.
        token_column: as of `IndexedRows`.
    """

    def __init__(self, dataset: Iterable[Row], token_column: str | None) -> None:
        self._dataset = dataset
        self._names = token_columns(token_column)
        self._is_read = False

    def rows_from(self, index: int) -> Iterator[tuple[int, Row, Tokens]]:
        """Return number, row and tokens of every row from `index` on; pass over those before."""
        if self._is_read and isinstance(self._dataset, Iterator):
            raise DatasetError(
                f"the rows came from a {type(self._dataset).__name__}, which gives them only once; "
                "for more epochs give list(rows), or an object whose __iter__ starts anew"
            )
        self._is_read = True
        rows = iter(self._dataset)
        passed = sum(1 for _ in islice(rows, index))
        if passed < index:
            raise DatasetError(
                f"the stream ended after {passed} rows, the saved state is behind row {index}; "
                "resume with the data set the state was saved with"
            )
        for number, row in enumerate(rows, start=index):
            yield number, row, read_tokens(self._names, row, number)


def _lengths_of_arrow(dataset: Any, names: Sequence[str]) -> Ints | None:  # Any: HF's
    """Return the lengths that the Arrow tables of a Hugging Face data set hold; no row is made.

    ``None`` if it is another data set, makes its rows anew when asked, or has rows without tokens.
    """
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
            return None  # read one by one, they are refused by number
        lengths.append(pc.list_value_length(column).to_numpy().astype(np.int64))
    return np.concatenate(lengths)
