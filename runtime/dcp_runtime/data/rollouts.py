"""Rollouts of a tree that `group_rows` made: where their tokens are, and the terms of their losses.

Several rollouts may count a token as a target, each with its own label and columns. Terms that are
equal become one with their weight, so that a model computes no logits twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import DatasetError, TokenPaths
from dcp_dsl.arrays import Ints
from dcp_runtime.data.loss_masks import IGNORE_LABEL, Values
from dcp_runtime.data.rows import Row
from dcp_runtime.data.trees import OWN_COLUMNS

SHARED_COLUMNS = ("tokens", "input_ids", "len", "length", *OWN_COLUMNS)
"""Columns of a tree that are those of no single rollout."""


class Rollout(NamedTuple):
    """One rollout of a tree."""

    number: int  # the row that it was
    at: Ints  # tokens of the tree that it holds, int64 [n]
    row: Row  # its own columns


def find_rollouts(row: Row, length: int, paths: TokenPaths | None) -> tuple[Rollout, ...]:
    """Return the rollouts of a row of so many tokens; none if it is no tree of `group_rows`."""
    if "rollout_ends" not in row:
        return ()
    columns = {name: _integers(row, name) for name in OWN_COLUMNS}
    sizes, forks, ends, numbers = columns.values()
    if len(ends) != len(numbers) or len(sizes) != len(forks):
        raise DatasetError(
            "expected one value for each rollout in `rollout_ends` and `rollout_rows`, and for "
            "each branch in `branch_lens` and `branch_forks`, got "
            f"{[len(values) for values in columns.values()]}; make the trees anew with group_rows"
        )
    starts = np.cumsum(sizes) - sizes
    if (sizes < 1).any() or sizes.sum() != length or (forks < -1).any() or (forks >= starts).any():
        raise DatasetError(
            f"`branch_lens` and `branch_forks` are no tree of the {length} tokens of the row; make "
            "the trees anew with group_rows"
        )
    for number, end in zip(numbers.tolist(), ends.tolist(), strict=True):
        if not 0 <= end < length:
            raise DatasetError(
                f"rollout {number}: expected the last token in `rollout_ends`, 0 to {length - 1}, "
                f"got {end}; make the trees anew with group_rows"
            )
    paths_of = [_path_to(end, starts, forks) for end in ends.tolist()]
    found, done, total = [], 0, sum(map(len, paths_of))
    for order, (number, at) in enumerate(zip(numbers.tolist(), paths_of, strict=True)):
        _check_layout(at, number, paths)
        own = _columns_of(row, order, done, done + len(at), len(ends), total)
        done += len(at)
        found.append(Rollout(number, at, own))
    return tuple(found)


def _path_to(token: int, starts: Ints, forks: Ints) -> Ints:
    """Return the tokens on the path to one, itself included."""
    path = []
    while token >= 0:
        branch = int(np.searchsorted(starts, token, "right")) - 1
        path.append(np.arange(starts[branch], token + 1))
        token = int(forks[branch])
    return np.concatenate(path[::-1])


def _integers(row: Row, name: str) -> Ints:
    values = np.asarray(row.get(name, ()))
    if name not in row or values.ndim != 1 or values.dtype.kind not in "iu":
        got = "none" if name not in row else str(row[name])[:60]
        raise DatasetError(
            f"a row with `rollout_ends` is a tree of rollouts: expected integers in `{name}`, got "
            f"{got}; give all columns that group_rows made, or rename `rollout_ends`"
        )
    return values.astype(np.int64)


def _check_layout(at: Ints, number: int, paths: TokenPaths | None) -> None:
    """Refuse a mask under which a rollout of the tree is no path."""
    wanted = np.array([-1, *at[:-1]])
    got = at - 1 if paths is None else paths.previous[at]
    if (differs := np.flatnonzero(wanted != got)).size:
        token = int(at[differs[0]])
        raise DatasetError(
            f"rollout {number}: expected token {token} of the tree to continue token "
            f"{wanted[differs[0]]}, the mask continues {got[differs[0]]} there; choose a mask that "
            "reads the tree, such as rollout_tree: `segment tree = branch rollout[branch_lens]* "
            "from token branch_forks` and `mask own = paths`"
        )


def _columns_of(row: Row, order: int, begin: int, end: int, count: int, tokens: int) -> Row:
    """Return the columns of one of `count` rollouts, which have so many tokens together."""
    found = {}
    for name, value in row.items():
        if name in SHARED_COLUMNS or not isinstance(value, list | tuple | np.ndarray):
            continue
        if len(value) == tokens:
            found[name] = value[begin:end]
        elif len(value) == count:
            found[name] = value[order]
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """Terms of a loss: a token that is predicted, and what a rollout says of it; ``[N]`` each."""

    token: Ints  # int64, rising
    label: Ints  # int64, the id to predict
    weight: NDArray[np.float32]  # float32, of the rollouts with this term the number, or the share
    extra: Mapping[str, Values]
    of: Mapping[int, Ints]  # for each rollout the term of each token, -1 where none counts

    def first(self, tokens: int) -> "Terms":
        """Return the terms of the first tokens."""
        return self.keep(self.token < tokens)

    def keep(self, is_kept: NDArray[np.bool_]) -> "Terms":
        """Return some of the terms; rollouts then have none where theirs is not kept."""
        number = np.full(len(is_kept) + 1, -1)
        number[:-1][is_kept] = np.arange(is_kept.sum())
        return Terms(
            self.token[is_kept], self.label[is_kept], self.weight[is_kept],
            {name: values[is_kept] for name, values in self.extra.items()},
            {rollout: number[own] for rollout, own in self.of.items()},
        )  # fmt: skip


def merge_terms(
    rollouts: Sequence[Rollout], labels: Ints, extra: Mapping[str, Values], *, once: bool
) -> Terms:
    """Merge equal terms of the rollouts of a tree, whose columns stand one rollout after another.

    With `once` the terms of a token weigh 1 together: each counts by the share of the rollouts that
    say the same of it. Else each counts as often as rollouts say it.
    """
    at = np.concatenate([rollout.at for rollout in rollouts])
    ends = np.cumsum([len(rollout.at) for rollout in rollouts])
    is_term = labels != IGNORE_LABEL
    columns = [at, labels, *(_sortable(values) for values in extra.values())]
    keys = np.stack([column[is_term] for column in columns])
    order = np.lexsort(keys[::-1])  # by token, then by what is said of it
    ordered = keys[:, order]
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = (ordered[:, 1:] != ordered[:, :-1]).any(0)
    first, number = order[is_new], np.cumsum(is_new) - 1
    token, label = ordered[0][is_new], ordered[1][is_new]
    weight = np.bincount(number, minlength=len(first)).astype(np.float64)
    if once:
        weight /= np.bincount(token, weight)[token] if len(token) else 1
    of = np.full(len(at), -1)
    of[np.flatnonzero(is_term)[order]] = number
    parts = np.split(of, ends[:-1])
    return Terms(
        token, label, weight.astype(np.float32),
        {name: values[is_term][first] for name, values in extra.items()},
        {rollout.number: own for rollout, own in zip(rollouts, parts, strict=True)},
    )  # fmt: skip


def _sortable(values: Any) -> Ints:  # Any: bool, int64 or float32
    """Return integers that are equal where values have the same bits."""
    plain = values.view(np.int32) if values.dtype == np.float32 else values
    found: Ints = plain.astype(np.int64)
    return found
