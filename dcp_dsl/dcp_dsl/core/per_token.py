"""Read a mask token by token: all pairs as one matrix; positions and next-token targets."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from dcp_dsl.arrays import Bools, Ints, Record
from dcp_dsl.core.frame import Frame
from dcp_dsl.core.layout import bind_layout
from dcp_dsl.core.mask import Mask
from dcp_dsl.core.predicate import Predicate
from dcp_dsl.core.sample import Rectangle, Sample
from dcp_dsl.elaboration.programs import has_branches
from dcp_dsl.errors import Budget, DatasetError
from dcp_dsl.symbolic.intervals import Grid

MAX_TOKENS = 2**15  # 1 GiB of pairs
MAX_STEPS = 2**40  # cost of finding segments: no limit that a sample reaches
PAIRS_AT_ONCE = 2**21  # rows are evaluated in bunches of about so many pairs, to bound memory


def dense_mask(mask: Mask, sample: Sample, *, budget: Budget | None = None) -> Bools:
    """Evaluate a mask on every pair of a sample.

    The reference for all other forms; O(n^2) time and result.

    Args:
        mask: any mask of a spec.
        sample: its columns and length n.
        budget: most steps (one numpy operation on one pair) to take; without it, any number.

    Returns:
        bool ``[queries, keys]``, ``[n, n]`` without `@keys`: whether query q sees key k.

    Raises:
        DatasetError: if the sample lacks a column, its layout does not fill it, or it is longer
            than `MAX_TOKENS`.
        SpecError: for constants out of range (E111).
        OverBudget: if the budget is used up.

    >>> from dcp_dsl import Spec
    >>> band = Spec.from_text("mask band = causal and q - k < 2").mask("band")
    >>> dense_mask(band, Sample(length=3)).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    mask.require(sample)
    queries = keys = size = sample.length
    core, found = mask.core, None
    if mask.keys is not None:
        found = Rectangle.of(core, mask.keys, sample.columns, queries)
        keys, size, core = found.num_kv, found.size, found.cut(core)
    if max(queries, keys) > MAX_TOKENS:
        raise DatasetError(
            f"a dense mask of {max(queries, keys):_} tokens is too large; expected at most "
            f"{MAX_TOKENS:_}, or use `mask.bind(sample)`"
        )
    result = np.zeros((queries, keys), np.bool_)
    if result.size == 0:
        return result
    frame = Frame.of(size, sample.columns, Budget(MAX_STEPS), found)
    decide = Predicate.of(core, frame, is_symbolic=False)
    shift = 0 if found is None else found.first_row
    step = max(1, PAIRS_AT_ONCE // keys)
    # queries before the first row of the square see nothing
    for begin in range(max(0, -shift), queries, step):
        end = min(begin + step, queries)
        rows = begin + shift, end + shift
        result[begin:end] = decide(Grid.of_pairs(rows, (0, keys), budget))[1]
    return result


def first_pair(mask: Mask, sample: Sample) -> tuple[int, int] | None:
    """Return the first query of a sample that sees a key, with its first key; None without any.

    The sample may be of any length: the mask is compiled, which costs as much as it has pieces.
    """
    slabs = mask.bind(sample)  # sorted by query, then by key
    return (int(slabs.q_start[0]), int(slabs.kv_start[0])) if len(slabs) else None


@dataclass(frozen=True, eq=False)
class TokenPaths(Record):
    """Places of the n tokens of a sample on the paths through its layout, from roots to leaves.

    Attributes:
        position: int64 ``[n]``, tokens before it on its path, the longest of those that it joins.
        previous: int64 ``[n]``, the token right before it on its path, which predicts it; -1 for
            the first token of a path, and the first behind a join, which nothing predicts.
        joins: int64 ``[J, 4]``, for each first token behind a join: this token, the run of tokens
            that it joins, half-open, and the token that these go on from, or -1.
        num_paths: int64 ``[n]``, paths that it lies on: written as separate sequences, one per
            path, a training run would see it as often.
        ends: int64 ``[P]``, last token of each path; it predicts nothing, or an end token.
    """

    position: Annotated[Ints, "n"]
    previous: Annotated[Ints, "n"]
    joins: Annotated[Ints, "J", 4]
    num_paths: Annotated[Ints, "n"]
    ends: Annotated[Ints, "P"]

    def sequences(self) -> list[Ints]:
        """Return the tokens of each path from the first to the last, as separate sequences.

        A path that joins others has all of their tokens, in the order of the row; `position` has
        gaps and repeats there. O(tokens of all paths together).
        """
        found, previous = [], self.previous.tolist()
        joins: dict[int, list[list[int]]] = {}
        for token, *runs in self.joins.tolist():
            joins.setdefault(token, []).append(runs)
        for end in self.ends.tolist():
            at, tokens = end, []
            while at >= 0:
                tokens.append(at)
                before = previous[at]
                for since, until, base in joins.get(at, ()):
                    tokens += range(since, until)
                    before = base
                at = before
            found.append(np.sort(np.array(tokens, np.int64)))
        return found


def token_paths(mask: Mask, sample: Sample) -> TokenPaths | None:
    """Find positions and targets in the layout with branches that a mask reads; O(n).

    Args:
        mask: any mask.
        sample: with the columns of the mask.

    Returns:
        None if no layout that the mask reads has branches: then a sample is one path, unless the
        mask itself keeps packed documents apart.

    Raises:
        DatasetError: if the sample does not fit the layout, or the mask reads several layouts
            with branches.

    >>> from dcp_dsl import Spec
    >>> text = "segment part = question[n] branch a[lens]*  mask m = paths"
    >>> mask = Spec.from_text(text).mask("m")
    >>> paths = token_paths(mask, Sample({"n": 2, "lens": [2, 1]}, 5))
    >>> paths.position.tolist(), paths.previous.tolist()
    ([0, 1, 2, 3, 2], [-1, 0, 1, 2, 1])
    >>> paths.num_paths.tolist(), paths.ends.tolist()
    ([2, 2, 1, 1, 1], [3, 4])
    """
    laid = list(dict.fromkeys(pair for pair in mask.layouts if has_branches(pair[1])))
    if not laid:
        return None
    if len(laid) > 1:
        shown = " and ".join(f"`{statement.name.text}`" for statement, _ in laid)
        raise DatasetError(
            f"mask `{mask.name}`: positions and targets could be those of {shown}; read one layout "
            f"with branches, and the others without"
        )
    _, tree = bind_layout(*laid[0], sample.columns, sample.length)
    previous = np.arange(-1, sample.length - 1)
    parents = tree.parent
    # Inside a stretch the token before is the previous one. The first token of a stretch follows
    # the last one of its parent; the parent -1 of roots reads the last stretch, which is dropped.
    before = np.where(parents < 0, -1, tree.end[parents] - 1)
    previous[tree.start] = before
    previous[tree.start[tree.join]] = -1
    joins = tree.start[tree.join], tree.since, tree.until, before[tree.join]
    return TokenPaths(
        position=tree.per_token(tree.depth, 1), previous=previous,
        joins=np.column_stack(joins),
        num_paths=tree.per_token(tree.paths, 0), ends=tree.end[tree.is_leaf] - 1,
    )  # fmt: skip
