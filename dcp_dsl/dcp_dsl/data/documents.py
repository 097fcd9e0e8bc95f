"""Columns in which other tools state packed documents, by what they are called and what they hold.

Four kinds are in use: the lengths of the documents, the borders between them, for each token the
number of its document, and for each token a position that begins anew with its document.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np

from dcp_dsl.arrays import Ints

Kind: TypeAlias = Literal["lengths", "borders", "numbers", "positions"]

_OF = r"(?:(?:inputs?|targets?|decoder|encoder|packed|text|token|m?rope)_)*"
_DOCUMENT = r"(?:doc|document|seq|sequence|segment|sample|example)s?"
_LENGTH = r"len(?:s|gths?)?"
_NAMES: dict[Kind, str] = {
    "lengths": rf"{_DOCUMENT}_?{_LENGTH}(?:_[a-z]+)?",
    "borders": rf"cu_?(?:{_DOCUMENT}_?)?{_LENGTH}(?:_[a-z]+)*"
    rf"|{_DOCUMENT}_(?:starts?|start_ids?|ends?|end_ids?|boundaries|borders|offsets)",
    "numbers": rf"{_DOCUMENT}_(?:ids?|idx|index|indices|numbers?)|segmentations?|attention_masks?",
    "positions": r"(?:segment_)?(?:pos|positions?)(?:_ids?)?",
}

OTHER_THINGS = frozenset(
    (
        "audio", "block", "channel", "codebook", "frame", "image", "line", "mm", "modality", "page",
        "paragraph", "patch", "pixel", "role", "roles", "sentence", "speaker", "special", "speech",
        "step", "steps", "turn", "turns", "type", "types", "video", "vision", "visual", "word",
        "words",
    )
)  # fmt: skip
"""Words in names of columns that count or mark something else than documents and losses."""

FEW_TOKENS = 8
"""Fewest tokens of documents, in the mean, that a count alone may tell; words have less."""

ENOUGH_BITS = 24.0
"""Evidence on which a column counts as one of documents by what it holds, in bits.

By chance, a list of integers adds up to the 4,096 tokens of its row once in 4,096 rows: 12 bits.
"""


@lru_cache(1024)
def kind_by_name(name: str) -> Kind | None:
    """Return what other tools hold in a column of this name; ``None`` for names that tell nothing.

    >>> [kind_by_name(name) for name in ("seq_lengths", "cu_seqlens_q", "seq_idx", "input_pos")]
    ['lengths', 'borders', 'numbers', 'positions']
    """
    plain = name.lower().strip("_")
    found = (kind for kind, names in _NAMES.items() if re.fullmatch(f"{_OF}(?:{names})", plain))
    return next(found, None)


@lru_cache(1024)
def is_of_other_things(name: str) -> bool:
    """Return whether a column is named after something else than documents and losses."""
    return not OTHER_THINGS.isdisjoint(re.split(r"[^a-z]+", name.lower()))


def begins_by_name(kind: Kind, name: str, values: Ints, length: int) -> Ints:
    """Return the tokens at which documents begin behind the first, int64, as the column says.

    An `attention_mask` of zeros and ones numbers no documents. `values` are int64 ``[k]``, or
    ``[k, length]`` for positions of several dims.
    """
    nothing = np.zeros(0, np.int64)
    if kind in ("lengths", "borders"):
        if values.ndim > 1:
            return nothing
        ends = np.cumsum(values) if kind == "lengths" else values[: _end(values, values >= 0)]
        is_one = len(ends) <= (kind == "lengths")
        if is_one or ends[0] < 0 or ends[-1] > length or (np.diff(ends) < 0).any():
            return nothing
        return np.unique(ends[(ends > 0) & (ends < length)])
    if values.shape[-1] != length or (kind == "numbers" and values.ndim > 1):
        return nothing
    if kind == "positions":
        first = values if values.ndim == 1 else values[0]
        return 1 + np.flatnonzero((first[1:] == first[0]) | (first[1:] == 0))
    if "attention" in name and values.max() < 2:
        return nothing
    body = values[: end_of_numbers(values)]
    return 1 + np.flatnonzero(body[1:] != body[:-1])


def end_of_numbers(values: Ints) -> int:
    """Return the end of the numbers of documents: 0 behind numbers from 1, and -1, are padding.

    >>> end_of_numbers(np.array([1, 1, 2, 0, 0])), end_of_numbers(np.array([0, 0, 1]))
    (3, 3)
    """
    return _end(values, values > 0 if values[0] > 0 else values >= 0)


def restarts(positions: Ints) -> Ints:
    """Return where positions begin anew; none unless they count on by one everywhere else.

    Repetitions of the first position at the end are padding.

    >>> restarts(np.array([0, 1, 2, 0, 1, 0, 0])), restarts(np.array([0, 1, 7, 0, 1]))
    (array([3]), array([], dtype=int64))
    """
    is_back = positions[1:] == positions[:1]
    if not (is_back | (np.diff(positions) == 1)).all():
        return np.zeros(0, np.int64)
    end = _end(positions, positions != positions[:1])
    return 1 + np.flatnonzero(is_back[: max(0, end - 1)])


def _end(values: Ints, is_kept: np.ndarray) -> int:
    """Return the end of the values without those at the end that are not kept."""
    return int(np.flatnonzero(is_kept)[-1]) + 1 if is_kept.any() else 0


def keeps_apart(
    begins: Ints, length: int, columns: Mapping[str, Any], previous: Ints | None
) -> bool:
    """Return whether what masks read of a row says that documents begin at these sorted tokens.

    `previous` is the token before each in a layout with branches, int64 ``[length]``, or None.
    """
    known = _borders(begins, length, columns, previous)
    return any(np.isin(begins, some).all() for some in known)


def _borders(
    begins: Ints, length: int, columns: Mapping[str, Any], previous: Ints | None
) -> Iterator[Ints]:
    """Return the borders that each column may state, and those of all of them together."""
    every = np.zeros(0, np.int64)
    if previous is not None:
        yield np.flatnonzero(previous != np.arange(-1, length - 1))
    for column in columns.values():
        is_nested = isinstance(column, list) and any(isinstance(part, list) for part in column)
        values = np.array([*_flat(column)] if is_nested else column, np.int64).reshape(-1)
        every = np.concatenate([every, values[values != 0]])
        if previous is None:
            # Parts of groups: several columns together state borders.
            yield np.arange(length) if is_nested else np.cumsum(values)
        if len(values) == length:
            yield 1 + np.flatnonzero(np.diff(values))
    if np.array_equal(np.sort(every), np.sort(np.diff([0, *begins, length]))):
        yield begins  # the parts of a layout, in whatever order


def _flat(column: Any) -> Iterator[int]:  # Any: integers, or nested lists of them
    """Return the integers of a column of a sample."""
    if isinstance(column, list):
        for part in column:
            yield from _flat(part)
    else:
        yield column


def bits_of_positions(values: Ints, length: int) -> float | None:
    """Return bits of evidence that a column holds positions; ``None`` rules it out.

    A column with runs of one token, as of flags, is none. Equal runs, as of the rows of an image,
    say nothing.
    """
    if len(values) != length or values[0] not in (0, 1):
        return None
    end = _end(values, values != values[0])
    if not ((np.diff(values[:end]) == 1) | (values[1:end] == values[0])).all():
        return None
    runs = np.diff([0, *restarts(values), end])
    if len(runs) > 1 and runs.min() == 1:
        return None
    return 0.0 if _are_tiles(runs) else 3.0 * int((values >= values[0] + 2).sum())


def bits_of_numbers(values: Ints, length: int) -> float | None:
    """Return bits of evidence that a column numbers documents; ``None`` rules it out."""
    if len(values) != length or values[0] not in (0, 1):
        return None
    body = values[: _end(values, values > 0)]
    if not np.isin(np.diff(body), (0, 1)).all():
        return None
    runs = np.diff([0, *1 + np.flatnonzero(np.diff(body)), len(body)])
    is_clear = len(runs) > 3 and runs.mean() >= FEW_TOKENS and not _are_tiles(runs)
    return 2.0 * len(runs) if is_clear else 0.0


def _are_tiles(runs: Ints) -> bool:
    """Return whether runs are equally long, but for a shorter last one."""
    return bool((runs[:-1] == runs[0]).all() and runs[-1] <= runs[0])


def bits_of_lengths(values: Ints, length: int) -> float | None:
    """Return bits of evidence that a list holds lengths; ``None`` rules it out."""
    are_lengths = ((values >= 0) & (values <= length)).all() and values.sum() == length
    if not are_lengths:
        return None
    is_clear = (values > 0).sum() > 2 and len(values) != length  # ones, one per token
    return math.log2(length) if is_clear else 0.0


def bits_of_borders(values: Ints, length: int) -> float | None:
    """Return bits of evidence that a list holds borders; ``None`` rules it out."""
    rises = (np.diff(values) >= 0).all() and values[0] >= 0
    if values[-1] != length or not rises:
        return None
    inside = np.unique(values[(values > 0) & (values < length)])
    return math.log2(length) if len(inside) > 1 and len(values) != length else 0.0


BITS: dict[Kind, Callable[[Ints, int], float | None]] = {
    "lengths": bits_of_lengths, "borders": bits_of_borders,
    "numbers": bits_of_numbers, "positions": bits_of_positions,
}  # fmt: skip
