"""Plain rollouts in, rows that are trees out: `group_rows` stores each shared prefix once.

`prefixes` finds the trees; `rollouts` reads such rows again in the loader, where every rollout
keeps its own labels and columns.
"""

import json
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, overload

import numpy as np

from dcp_dsl import Dataset, DatasetError
from dcp_dsl.arrays import Ints
from dcp_dsl.files import check_writable, replacing
from dcp_runtime.data.prefixes import PrefixTree, build_tree, cut_trees, drop_forks, sort_sequences
from dcp_runtime.data.rows import Row, RowError, read_tokens, token_columns
from dcp_runtime.errors import RunError

OWN_COLUMNS = ("branch_lens", "branch_forks", "rollout_ends", "rollout_rows")
"""Columns of a tree beside its tokens; the first two are read by a mask such as `rollout_tree`."""

NOT_KEPT = ("tokens", "input_ids", "len", "length")
"""Columns of a rollout that its place in the tree says."""


class RolloutTrees(Sequence[Row]):
    """Rows that `group_rows` made, each a tree, and what they save.

    Attributes:
        num_rollouts: rows that were given.
        separate_tokens: their tokens.
        tokens: those of the trees.
        separate_pairs: pairs that causal attention computes in all rollouts.
        pairs: those that it computes in the trees.
    """

    def __init__(self, rows: Sequence[Row], lengths: Ints, trees: Sequence[PrefixTree]) -> None:
        self._rows = rows
        self.num_rollouts = len(lengths)
        self.separate_tokens = int(lengths.sum())
        self.separate_pairs = int((lengths * (lengths + 1)).sum()) // 2
        self.tokens = sum(tree.num_tokens for tree in trees)
        self.pairs = sum(tree.num_pairs for tree in trees)

    def figures(self) -> dict[str, int]:
        """Return the counts by name, and how many trees there are."""
        return {
            "rollouts": self.num_rollouts,
            "trees": len(self),
            "separate_tokens": self.separate_tokens,
            "tokens": self.tokens,
            "separate_pairs": self.separate_pairs,
            "pairs": self.pairs,
        }

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        return self._rows[index]


def group_rows(
    rows: Dataset | Iterable[Row],
    by: str | Sequence[str] = "tokens",
    *,
    token_budget: int | None = None,
    min_gain: int = 1,
) -> RolloutTrees:
    """Store prefixes that rollouts share once: find trees of rollouts, and make a row of each.

    A tree has the columns `tokens` and `branch_lens`, `branch_forks`, which the mask `rollout_tree`
    reads: each branch goes on behind a token of an earlier one. Rollout i of a tree was row
    `rollout_rows[i]`; its tokens are those on the path to token `rollout_ends[i]`. Columns with a
    value per token hold those of the first rollout, then of the second, and so on; other columns
    hold one value for each rollout.

    Args:
        rows: rollouts, with the same columns each; any data set or list of rows.
        by: column of the tokens (`tokens`, else `input_ids`); of several, the first. Rollouts share
            a token if all these columns agree up to it, such as hashes of images.
        token_budget: most tokens of a tree. Larger ones are cut, the longest prefixes kept first.
        min_gain: least tokens that a fork must save; rollouts that share less stay apart there.

    Raises:
        DatasetError: naming the row, if it has no tokens, is longer than the budget, or its columns
            are not those of the first row.
        RunError: if `token_budget` or `min_gain` is less than 1.

    Cost:
        Sorting: about 0.02 CPU s for a million tokens in arrays, and 0.03 s more in lists.

    >>> trees = group_rows([{"tokens": [1, 2, 3], "reward": 1}, {"tokens": [1, 2, 4], "reward": 0}])
    >>> trees.separate_tokens, trees.tokens, trees[0]["tokens"].tolist(), trees[0]["reward"]
    (6, 4, [1, 2, 3, 4], [1, 0])
    """
    for name, value in (
        ("min_gain", min_gain),
        ("token_budget", 1 if token_budget is None else token_budget),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise RunError(f"group_rows: expected {name} of at least 1, got {value!r}")
    names = [by] if isinstance(by, str) else list(by)
    if not names:
        raise RunError("group_rows: expected by= to name the column of the tokens, got none")
    if isinstance(rows, Dataset):
        rows = [rows[number] for number in range(len(rows))]
    given = list(rows)
    tokens = _read_tokens(given, names[0], token_budget)
    if not tokens:
        return RolloutTrees((), np.zeros(0, np.int64), ())
    lengths = np.array([len(own) for own in tokens])
    flat = np.concatenate(tokens)
    keys = _narrow(flat)
    if len(names) > 1:
        keys = np.stack([flat, *(_numbered(given, name, lengths) for name in names[1:])], 1)
    order, shared = sort_sequences(keys.reshape(len(flat), -1), lengths)
    sizes, kept = lengths[order].tolist(), drop_forks(shared, min_gain).tolist()
    found = [
        (places, build_tree(places, sizes, kept)) for places in cut_trees(sizes, kept, token_budget)
    ]
    # A tree comes where its first rollout stood, so that the data set keeps its order.
    found.sort(key=lambda each: int(order[each[0]].min()))
    per_token, others = _kinds_of_columns(given, names[0], lengths)
    made = [_row_of(given, tokens, order, *each, per_token, others) for each in found]
    return RolloutTrees(made, lengths, [tree for _, tree in found])


def _read_tokens(rows: Sequence[Row], by: str, budget: int | None) -> list[Ints]:
    names = token_columns(None if by == "tokens" else by)
    found = []
    for index, row in enumerate(rows):
        tokens = read_tokens(names, row, index)
        if not len(tokens):
            raise RowError(f"row {index} has no tokens; leave such rollouts out")
        if budget is not None and len(tokens) > budget:
            raise RowError(
                f"row {index} has {len(tokens)} tokens, the token budget is {budget}; a tree holds "
                "whole rollouts: raise token_budget, or shorten the row"
            )
        if row.keys() != rows[0].keys():
            differs = ", ".join(f"`{name}`" for name in sorted(row.keys() ^ rows[0].keys()))
            raise RowError(
                f"row {index}: expected the columns of row 0, got others: {differs} only in one of "
                "the two; give every row the same columns"
            )
        found.append(tokens)
    if rows and by not in NOT_KEPT and "tokens" in rows[0]:
        raise DatasetError(
            f"by={by!r} names the tokens, and row 0 has a column `tokens` as well, which the trees "
            "would lose: rename it, or leave it out"
        )
    if rows and (own := [name for name in OWN_COLUMNS if name in rows[0]]):
        raise DatasetError(
            f"row 0 has the column `{own[0]}`, which trees have: expected plain rollouts; if these "
            "are rollouts, rename the column"
        )
    return found


def _narrow(tokens: Ints) -> np.ndarray[Any, np.dtype[np.integer]]:  # Any: a shape
    """Return token ids in 32 bits where they fit: half as much to sort."""
    fits = len(tokens) and tokens.min() >= -(2**31) and tokens.max() < 2**31
    return tokens.astype(np.int32) if fits else tokens


def _numbered(rows: Sequence[Row], name: str, lengths: Ints) -> Ints:
    """Number the different values of a column with a value per token, int64 ``[tokens]``."""
    for index, (row, length) in enumerate(zip(rows, lengths.tolist(), strict=True)):
        value: Any = row.get(name)
        if not _is_list(value) or len(value) != length:
            got = f"{len(value)} values" if _is_list(value) else repr(value)[:60]
            raise RowError(
                f"row {index}: by= names `{name}`: expected {length} values, one per token, got "
                f"{got}; leave it out of by=, or give a value for every token (0 outside images)"
            )
    numbers: dict[Any, int] = {}  # Any: texts, numbers or None
    values = chain.from_iterable(
        row[name].tolist() if isinstance(row[name], np.ndarray) else row[name] for row in rows
    )
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], np.int64)


def _is_list(value: Any) -> bool:  # Any: what a row holds
    return isinstance(value, list | tuple | bytes | np.ndarray) and np.ndim(value[:0]) == 1


def _kinds_of_columns(rows: Sequence[Row], by: str, lengths: Ints) -> tuple[list[str], list[str]]:
    """Return the columns with a value per token in every row, and the others, but the tokens."""
    sizes = lengths.tolist()
    per_token: list[str] = []
    others: list[str] = []
    for name in rows[0]:
        if name == by or name in NOT_KEPT:
            continue
        fits = all(
            _is_list(row[name]) and len(row[name]) == size
            for row, size in zip(rows, sizes, strict=True)
        )
        (per_token if fits else others).append(name)
    return per_token, others


def _row_of(
    rows: Sequence[Row],
    tokens: Sequence[Ints],
    order: Ints,
    places: range,
    tree: PrefixTree,
    per_token: Sequence[str],
    others: Sequence[str],
) -> Row:
    """Return the row of a tree, its rollouts in the order in which they were given."""
    numbers = order[places.start : places.stop]
    parts = zip(tree.source.tolist(), tree.begin.tolist(), tree.end.tolist(), strict=True)
    own = np.argsort(numbers)
    rollouts = numbers[own].tolist()
    row: dict[str, Any] = {  # Any: arrays, lists of anything
        "tokens": np.concatenate([tokens[order[place]][a:b] for place, a, b in parts]),
        "branch_lens": tree.end - tree.begin,
        "branch_forks": tree.fork,
        "rollout_ends": tree.last[own],
        "rollout_rows": np.array(rollouts),
    }
    for name in per_token:
        row[name] = _joined([rows[number][name] for number in rollouts])
    for name in others:
        row[name] = [rows[number][name] for number in rollouts]
    return row


def _joined(parts: Sequence[Any]) -> Any:  # Any: lists or arrays
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    return list(chain.from_iterable(parts))


def check_name(path: str | Path) -> None:
    """Refuse a file to which trees cannot be written, before the work."""
    if Path(path).suffix not in (".parquet", ".jsonl"):
        raise DatasetError(f"{path}: expected a name that ends in .parquet or .jsonl")
    check_writable(path, DatasetError)


def write_trees(path: str | Path, trees: Sequence[Row]) -> None:
    """Write trees as a data set, .parquet or .jsonl, whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_name(path)
    with replacing(path, DatasetError) as draft:
        if Path(path).suffix == ".parquet":
            names = trees[0].keys() if trees else ()
            pq.write_table(pa.table({name: [row[name] for row in trees] for name in names}), draft)
            return
        with draft.open("w", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(dict(row), default=_plain)}\n" for row in trees)


def _plain(value: Any) -> Any:  # Any: what a row holds
    """Return what JSON can say of arrays and numbers of numpy."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, bytes):
        return list(value)
    raise DatasetError(
        f"expected values that JSON can hold, got {type(value).__name__}; write .parquet, or leave "
        "the column out"
    )
