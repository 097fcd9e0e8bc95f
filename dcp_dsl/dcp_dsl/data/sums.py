"""Columns whose numbers add up to the tokens of every row: they cut it into parts.

Names say little: what one data set calls `question_len` is `prompt_len` in another. Sums say more:
a number and a list that add up to all tokens of every row are the lengths of its parts.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, combinations
from typing import Any, TypeAlias

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_dsl.data.documents import ENOUGH_BITS, is_of_other_things
from dcp_dsl.syntax.trees import column_name

MOST_COLUMNS = 24  # that a row's sums are tried with; a thousand sums of three take a millisecond
MOST_ADDED = 3  # columns of one sum
MANY_PARTS = 64  # lists of an item per token are longer

Lengths: TypeAlias = int | list[int] | list[list[int]]


@dataclass(frozen=True, slots=True)
class Cut:
    """Columns that add up to the tokens of a row, in the order of the row.

    `parents` is a column beside them with an earlier part for each part, or -1; or, if `are_forks`,
    a token behind which it goes on.
    """

    lengths: Mapping[str, Lengths]
    parents: str = ""
    are_forks: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that add up: numbers, which all parts share, then lists, then nested ones."""
        return tuple(sorted(self.lengths, key=lambda name: _depth(self.lengths[name])))

    @property
    def depths(self) -> tuple[int, ...]:
        """How deep the lists of each of `names` nest: 0 for numbers."""
        return tuple(_depth(self.lengths[name]) for name in self.names)

    @property
    def lists(self) -> tuple[str, ...]:
        """Those of `names` that hold lists."""
        return tuple(name for name in self.names if _depth(self.lengths[name]))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns."""
        return (*self.names, self.parents) if self.parents else self.names

    @property
    def is_in_order(self) -> bool:
        """Return whether the row has the columns in the order in which the mask reads them."""
        return self.names == tuple(self.lengths)

    @property
    def mask(self) -> tuple[str, dict[str, str]] | None:
        """A call of the library with these parts as branches, and these columns by its names.

        None where the columns may as well be read otherwise, as two lists may be the prompts and
        answers of many documents or the turns of one chat.
        """
        kind = "" if not self.parents else "from token" if self.are_forks else "from"
        found = _MASKS.get((self.depths, kind))
        if found is None:
            return None
        return found[0], dict(zip(found[1:], self.columns, strict=True))

    @property
    def statement(self) -> str:
        """The `for` statement that attaches the mask; empty without one."""
        return attach(*self.mask) if self.mask else ""

    @property
    def advice(self) -> str:
        """Return what to write, in words."""
        if self.mask is None:
            return "`dcpm init` shows texts that read them"
        first = "" if self.depths[0] else f", if rows begin with `{self.names[0]}`"
        return f"`{self.statement}` keeps them apart{first}"

    def begins(self) -> Ints:
        """Return the tokens at which parts begin behind the first, int64."""
        parts: list[Any] = []  # Any: lengths, in the order of the row
        lists = [v for name in self.names if isinstance(v := self.lengths[name], list)]
        parts += [v for v in self.lengths.values() if not isinstance(v, list)]
        is_grouped = len({len(v) for v in lists}) == 1  # element by element, else list by list
        parts += zip(*lists, strict=True) if is_grouped else lists
        ends = np.cumsum(_flat(parts), dtype=np.int64)
        return np.unique(ends[(ends > 0) & (ends < ends.max(initial=0))])


_MASKS: dict[tuple[tuple[int, ...], str], tuple[str, ...]] = {
    ((1,), ""): ("document", "doc_lens"),
    ((0, 1), ""): ("shared_question", "question_len", "answer_lens"),
    ((1, 2), ""): ("grpo", "prompt_lens", "rollout_lens"),
    ((1,), "from"): ("prompt_tree", "node_lens", "node_parents"),
    ((1,), "from token"): ("rollout_tree", "branch_lens", "branch_forks"),
    # Its window is no window: nothing is as long.
    ((0, 1), "from"): ("forks(window = 1024M)", "prompt_len", "rollout_lens", "rollout_parents"),
}
"""Masks of the library and their columns, by the depth of lists and what branches go on from."""


def attach(mask: str, columns: Mapping[str, str]) -> str:
    """Return a `for` statement; `columns` maps the names of the mask to those of the data set.

    >>> attach("document", {"doc_lens": "pages"})
    'for "*" having pages use document with doc_lens = pages'
    """
    renamed = [f"{mine} = {column_name(its)}" for mine, its in columns.items() if mine != its]
    having = ", ".join(map(column_name, columns.values()))
    changed = f" with {', '.join(renamed)}" if renamed else ""
    return f'for "*" having {having} use {mask}{changed}'


def lengths_of(value: Any, length: int) -> Lengths | None:  # Any: what a user's row holds
    """Return a column as integers that may be lengths of parts; None for all others."""
    if isinstance(value, str | bytes | bool) or value is None:
        return None
    if _is_per_token(_count(value), length):
        return None
    found = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(found, list | tuple):
        found = [[*part] if isinstance(part, list | tuple) else part for part in found]
        if any(isinstance(part, list) for part in found) and not all(
            isinstance(part, list) for part in found
        ):
            return None
    numbers = _flat(found)
    fits = all(type(n) is int and 0 <= n <= length for n in numbers) and sum(numbers) <= length
    return found if fits else None


def lists_of(value: Any) -> Ints | None:  # Any: as above
    """Return a list of integers, int64 ``[k]``; None for all other columns."""
    if not isinstance(value, list) or not value or any(type(n) is not int for n in value):
        return None
    try:
        return np.array(value, np.int64)
    except OverflowError:
        return None


def _count(value: Any) -> int:  # Any: as above
    """Return how many items a column holds; -1 for single values, arrays of them among these."""
    is_one = getattr(value, "ndim", 1) == 0 or not hasattr(value, "__len__")
    return -1 if is_one else len(value)


def _is_per_token(count: int, length: int) -> bool:
    """Return whether a list has an item per token, or more; short ones may be lengths as well."""
    return count > length or count == length > MANY_PARTS


def are_earlier(value: Any, ends: Sequence[int]) -> bool:  # Any: as above
    """Return whether a column has a number below each of `ends`, or -1."""
    if isinstance(value, str | bytes) or _count(value) != len(ends):
        return False
    found = value.tolist() if hasattr(value, "tolist") else value
    return isinstance(found, list | tuple) and all(
        type(n) is int and -1 <= n < end for end, n in zip(ends, found, strict=True)
    )


@dataclass(slots=True)
class ColumnSums:
    """Finds the columns that add up to the tokens of every row so far.

    `others_too` lets columns that are named after other things, such as turns, take part.
    """

    others_too: bool = False
    # By the names of the columns that a row has: sums that still fit all its rows, and the bits of
    # evidence for each. By chance two columns add up to 4,096 tokens once in 4,096 rows: 12 bits.
    _bits: dict[tuple[str, ...], dict[tuple[str, ...], float]] = field(default_factory=dict)
    _beside: dict[tuple[tuple[str, ...], tuple[str, ...]], dict[str, bool]] = field(
        default_factory=dict
    )
    _seen: set[int] = field(default_factory=set)  # a row read again proves no more

    def see(
        self, number: int, row: Mapping[str, Any], length: int, passed: Collection[str] = ()
    ) -> list[Cut]:
        """Take a row of `length` tokens; return the cuts that fit all rows so far.

        Columns in `passed` state nothing of parts.
        """
        names = tuple(n for n in row if isinstance(n, str) and n not in passed)
        if not (bits := self._bits.get(names, {(): 0.0})):
            return []
        is_first = () in bits
        given = {
            name: lengths
            for name in (names if is_first else {name for c in bits for name in c})
            if (self.others_too or not is_of_other_things(name))
            and (lengths := lengths_of(row[name], length)) is not None
        }
        totals = {name: sum(_flat(lengths)) for name, lengths in given.items()}
        tried = _combinations(given) if is_first else [*bits]
        fits = {c for c in tried if all(n in totals for n in c)}
        fits = {c for c in fits if sum(totals[n] for n in c) == length}
        more = 0.0 if number in self._seen else math.log2(max(2, length))
        self._seen.add(number)
        chances = math.log2(max(1, len(tried))) if is_first else 0.0
        self._bits[names] = {
            c: bits.get(c, -chances) + more * _is_clear(c, given) for c in tried if c in fits
        }
        # A column of zeros adds nothing.
        least = [c for c in self._bits[names] if not any(set(c) > set(other) for other in fits)]
        cuts = []
        for c in least:
            beside = self._beside.get((names, c), dict.fromkeys([*{*names} - {*c}], False))
            self._beside[names, c] = beside = _parents(c, given, row, beside)
            parents = min(beside, key=lambda name: (beside[name], names.index(name)), default="")
            cuts.append(Cut({n: given[n] for n in c}, parents, beside.get(parents, False)))
        return cuts

    def are_clear(self, row: Mapping[str, Any], cut: Cut, passed: Collection[str] = ()) -> bool:
        """Return whether no chance explains that the columns of a cut add up in all rows so far."""
        names = tuple(n for n in row if isinstance(n, str) and n not in passed)
        return self._bits.get(names, {}).get(tuple(cut.lengths), 0.0) >= ENOUGH_BITS


def _combinations(given: Mapping[str, Lengths]) -> list[tuple[str, ...]]:
    """Return the combinations of columns that may add up, with one list at least."""
    some = [*given][:MOST_COLUMNS]
    return [
        chosen
        for size in range(1, MOST_ADDED + 1)
        for chosen in combinations(some, size)
        if any(_depth(given[name]) for name in chosen)
    ]


def _is_clear(chosen: tuple[str, ...], given: Mapping[str, Lengths]) -> bool:
    """Return whether a row has more than two parts: a prompt and one answer say little."""
    return sum(n > 0 for name in chosen for n in _flat(given[name])) > 2


def _parents(
    chosen: tuple[str, ...],
    given: Mapping[str, Lengths],
    row: Mapping[str, Any],
    beside: Mapping[str, bool],
) -> dict[str, bool]:
    """Return those columns beside the chosen ones that may hold the parents of their parts.

    True for those that hold tokens behind which parts go on, in this row or an earlier one.
    """
    lists = [lengths for name in chosen if isinstance(lengths := given[name], list)]
    if len(lists) > 1 or _depth(lists[0]) > 1:
        return {}
    begins = [0, *accumulate(_flat(lists[0]))][:-1]
    found = {
        name: are_forks or not are_earlier(row[name], range(len(begins)))
        for name, are_forks in beside.items()
    }
    can_fork = len(chosen) == 1  # else the library has no mask
    return {
        name: are_forks
        for name, are_forks in found.items()
        if not are_forks or (can_fork and are_earlier(row[name], begins))
    }


def _depth(lengths: Lengths) -> int:
    """Return how deep lists nest."""
    if not isinstance(lengths, list):
        return 0
    return 1 + any(isinstance(part, list) for part in lengths)


def _flat(lengths: Any) -> list[int]:  # Any: integers, or lists of them, of any depth
    if not isinstance(lengths, list | tuple):
        return [lengths]
    return [n for part in lengths for n in _flat(part)]
