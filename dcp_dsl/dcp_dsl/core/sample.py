"""A sample: its columns, its length in tokens, and with `@keys` its queries among its keys.

A `sample` statement may leave `len` out where a layout says it: ``sample s(doc_lens = [3, 4])`` has
7 tokens if `segment doc = [doc_lens]*` stands in the text, or in the library's mask that reads
`doc_lens`.
"""

import json
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from dcp_dsl.arrays import settle
from dcp_dsl.checks.scope import Scope, library_scopes
from dcp_dsl.core.columns import Column
from dcp_dsl.core.layout import natural_length
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.programs import KeySequence, facts_of_keys, layout_columns
from dcp_dsl.errors import MAX_TOKENS, DatasetError, list_names
from dcp_dsl.syntax import ast

MAX_NESTING = 16  # lists in lists of a column
_BEYOND = 2**63  # the first integer that int64 cannot hold


class ReadsColumns(Protocol):
    """The part of a mask that a sample uses: its name and the columns it needs."""

    @property
    def name(self) -> str:
        """The mask's name, for messages."""

    @property
    def columns(self) -> frozenset[str]:
        """Columns that a sample must have."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Columns and length of one sequence.

    Attributes:
        columns: integers and (nested) lists of integers, by column name.
        length: tokens.

    >>> Sample({"question_len": 2, "answer_lens": [3, 1]}, 6).to_json()
    '{"answer_lens": [3, 1], "question_len": 2, "len": 6}'
    """

    columns: Mapping[str, Any] = field(default_factory=dict)  # Any: integers, lists of them
    length: int = 0

    def __post_init__(self) -> None:
        # a bool is an int in Python
        if isinstance(self.length, bool) or not isinstance(self.length, int):
            raise DatasetError(
                f"expected its length to be an integer, got {self.length!r}", "sample"
            )
        if not 0 <= self.length <= MAX_TOKENS:
            raise DatasetError(
                f"expected a length between 0 and {MAX_TOKENS}, got {self.length}", "sample"
            )
        settle(self, columns={name: _plain(name, value) for name, value in self.columns.items()})

    @classmethod
    def of(cls, row: Mapping[str, Any], mask: ReadsColumns) -> "Sample":
        """Take from a row of a data set its length and the columns that a mask needs.

        Raises:
            DatasetError: if a needed column or the length is missing.
        """
        missing = sorted(name for name in mask.columns if name not in row)
        if missing:
            have = list_names(sorted(row), "no columns")
            raise DatasetError(
                f"mask `{mask.name}` needs the column `{missing[0]}`; the row has {have}"
            )
        return cls({name: row[name] for name in sorted(mask.columns)}, row_length(row))

    @classmethod
    def from_json(cls, text: str) -> "Sample":
        """Read what `to_json` wrote: an object of columns, with the tokens as ``len``."""
        columns = read_columns(text, "sample")
        if "len" not in columns:
            raise DatasetError(f"expected a JSON object with `len`, got {text[:80]!r}", "sample")
        return cls({k: v for k, v in columns.items() if k != "len"}, columns["len"])

    def to_json(self) -> str:
        """Write a line of JSON; equal samples give equal lines."""
        return json.dumps(dict(sorted(self.columns.items())) | {"len": self.length})


def read_columns(text: str, where: str) -> dict[str, Any]:  # Any: as `Sample.columns`, unchecked
    """Read a JSON object of columns, each of them once; `where` names it in messages."""
    try:
        columns = _DECODER.decode(text)
    except _TwiceError as error:
        raise DatasetError(f"{where}: {error}") from None
    except ValueError as error:
        raise DatasetError(
            f"{where}: expected a JSON object of columns, got no JSON: {_reason(error, text)}"
        ) from None
    except RecursionError:
        raise DatasetError(f"{where}: the JSON is nested too deeply") from None
    if not isinstance(columns, dict):
        raise DatasetError(f"{where}: expected a JSON object of columns, got {text[:80]!r}")
    return columns


class _TwiceError(Exception):
    """A key that an object has twice."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):  # without this json keeps the last one and drops the others
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _TwiceError(f"`{twice}` is given twice; leave one of them out")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_once)  # made once: files have millions of lines


def _reason(error: ValueError, text: str) -> str:
    if not isinstance(error, json.JSONDecodeError):  # an integer of thousands of digits
        return str(error)
    line = f"line {error.lineno}, " if "\n" in text.rstrip() else ""
    return f"{error.msg} at {line}column {error.colno}: {text[:80].rstrip()!r}"


def row_length(row: Mapping[str, Any]) -> int:
    """Return the tokens of a row: its column `len` or `length`, else the size of `tokens`."""
    found = stated_length(row)
    if found is None:
        have = list_names(sorted(row), "no columns")
        raise DatasetError(
            f"a row needs its length: a column `len`, `length` or `tokens`; this one has {have}"
        )
    return found


def stated_length(row: Mapping[str, Any]) -> int | None:
    """Return the tokens of a row as `row_length` does; None if no column states them."""
    found: dict[str, int] = {}
    for name in ("len", "length"):
        if row.get(name) is not None:
            value = _plain(name, row[name])
            if not isinstance(value, int):
                raise DatasetError(f"column `{name}`: expected one integer per row, got {value!r}")
            found[name] = value
    if row.get("tokens") is not None:
        tokens = row["tokens"]
        if not hasattr(tokens, "__len__") or isinstance(tokens, str):
            raise DatasetError(
                f"column `tokens`: expected a list of integers or bytes, got "
                f"{type(tokens).__name__}"
            )
        found["tokens"] = len(tokens)
    if len(set(found.values())) > 1:
        shown = ", ".join(f"`{name}` says {value}" for name, value in found.items())
        raise DatasetError(f"the lengths of a row disagree: {shown}")
    return next(iter(found.values()), None)


def _plain(name: str, value: Any, depth: int = 0) -> Any:  # Any: whatever a file format gives
    """Turn numpy and tuple values into integers and lists; refuse everything else."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        if all(type(item) is int and -_BEYOND <= item < _BEYOND for item in value):
            return list(value)  # the common case, without a call per item
        if depth < MAX_NESTING:
            return [_plain(name, item, depth + 1) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        if not -_BEYOND <= value < _BEYOND:
            raise DatasetError(
                f"column `{name}`: an integer of {value.bit_length()} bits does not fit into int64"
            )
        return value
    raise DatasetError(
        f"column `{name}`: expected integers or lists of integers, got {reprlib.repr(value)} "
        f"({type(value).__name__})"
    )


class NoLengthError(DatasetError):
    """A sample without a length in tokens; `columns` holds the columns that it gives."""

    def __init__(self, message: str, columns: Mapping[str, Column]) -> None:
        self.columns = columns
        super().__init__(message)


def declared_sample(definition: ast.SampleDef, scope: Scope) -> Sample:
    """Return the sample that a statement declares.

    Its length is its `len`; else what every layout whose columns it has adds up to; else the size
    of a column of a `token` statement.
    """
    return complete_sample(column_values(definition), scope, f"sample `{definition.name.text}`")


def column_values(definition: ast.SampleDef) -> dict[str, Column]:
    """Return the columns of a statement, `len` among them, with lists as lists."""
    return {entry.name.text: _lists(entry.value) for entry in definition.fields}


def complete_sample(given: Mapping[str, Column], scope: Scope, where: str) -> Sample:
    """Make a sample of columns and perhaps `len`; find the length as for a `sample` statement."""
    columns = {column: value for column, value in given.items() if column != "len"}
    length = given.get("len")
    try:
        sample = Sample(columns, 0 if length is None else length)
        found = dict(layout_lengths(sample.columns, scope.sample_layouts()))
        if length is None:
            found = found or _other_lengths(sample.columns, scope)
        else:
            found["len"] = length
    except DatasetError as error:
        raise DatasetError(error.reason, where) from None
    if not found:
        raise NoLengthError(
            f"{where}: nothing says how many tokens it has; add `len = ...` "
            f"(a layout says it only if the sample has all its columns and no part is `[..]`)",
            columns,
        )
    # several layouts may say the length, which then has to be the same
    if len(set(found.values())) > 1:
        shown = ", ".join(f"`{source}` says {length}" for source, length in found.items())
        raise DatasetError(f"{where}: its length is not clear: {shown}; mend its columns")
    return Sample(columns, next(iter(found.values())))


def layout_lengths(
    columns: Mapping[str, Column], layouts: Iterable[tuple[ast.Segment, ast.Layout]]
) -> Iterable[tuple[str, int]]:
    """Yield (segment, length) for each layout that says how long a sample with these columns is.

    A layout says nothing if a column is missing, if it reads `len`, or if a part is `[..]`.
    """
    for segment, layout in layouts:
        needed = layout_columns(layout)
        if needed and columns.keys() >= set(needed):
            length = natural_length(segment, layout, columns)
            if length is not None:
                yield segment.name.text, length


def _other_lengths(columns: Mapping[str, Column], scope: Scope) -> dict[str, int]:
    """Return lengths by the columns of `token` statements, else by the library's layouts."""
    # columns `in` a segment have a value per instance, so they say nothing of tokens
    read = ((t, token) for t, token in scope.tokens.items() if token.segment is None)
    tokens = {t: columns.get(token.column.text) for t, token in read}
    sizes = {f"token {t}": len(value) for t, value in tokens.items() if isinstance(value, list)}
    library = (pair for each in library_scopes() for pair in each.sample_layouts())
    return sizes or dict(layout_lengths(columns, library))


def _lists(value: ast.Literals) -> Column:
    return [_lists(v) for v in value] if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True, eq=False)
class Rectangle:
    """The queries and keys of a mask with `@keys`, in one square of tokens.

    The engine knows masks of one sequence only. A square holds the rectangle of queries and keys,
    and the mask is cut to it.

    Attributes:
        num_q, num_kv: tokens of both sequences.
        first_row: the row of the square that is query 0.
        size: tokens of the square.
        facts: statements and token columns that describe keys; the others describe queries. None
            where queries are tokens of the keys' sequence, so that all facts are of the keys.
    """

    num_q: int
    num_kv: int
    first_row: int
    size: int
    facts: frozenset[object] | None

    @classmethod
    def of(
        cls, core: nodes.Mask, keys: KeySequence, columns: Mapping[str, Column], num_q: int
    ) -> "Rectangle":
        """Lay the keys out beside so many queries."""
        layout = keys.statement.source
        assert isinstance(layout, ast.Layout), "checked: keys have a layout"
        num_kv = natural_length(keys.statement, layout, columns)
        assert num_kv is not None, "checked: the layout of keys does not ask for `len`"
        facts = facts_of_keys(core, keys)
        # two sequences that have nothing to do with each other: both begin at 0
        if not keys.alignment:
            return cls(num_q, num_kv, 0, max(num_q, num_kv), facts)
        if keys.alignment == "top_left" and num_q > num_kv:
            raise DatasetError(
                f"`@keys({keys.statement.name.text}, top_left)`: expected at most as many queries "
                f"as keys, got {num_q} and {num_kv}: query {num_kv} would stand behind all keys"
            )
        first = num_kv - num_q if keys.alignment == "bottom_right" else 0
        return cls(num_q, num_kv, first, num_kv, None)

    @property
    def is_empty(self) -> bool:
        """True without a query or without a key."""
        return min(self.num_q, self.num_kv) == 0

    def tokens(self, fact: object) -> int:
        """Return the tokens of the sequence that a statement or a column belongs to."""
        return self.num_kv if self.facts is None or fact in self.facts else self.num_q

    def cut(self, core: nodes.Mask) -> nodes.Mask:
        """Return a mask without the pairs of the square that are outside the rectangle."""
        q, k = nodes.Pos("q"), nodes.Pos("k")
        bounds = (
            # Queries before all keys have rows below 0, which the square does not have.
            nodes.Compare(">=", q, nodes.Const(max(0, self.first_row))),
            nodes.Compare("<", q, nodes.Const(self.first_row + self.num_q)),
            nodes.Compare("<", k, nodes.Const(self.num_kv)),
        )
        return nodes.And((core, *bounds), place=core.place)
