"""Prefixes that sequences share, found by sorting them, and the trees that these prefixes form.

In sorted order a sequence shares most with its neighbours, so one number per neighbour says all:
the tokens that it shares with the one before. The smallest of these numbers between two sequences
is what these two share. Tokens are touched by numpy alone; Python counts sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Ints


def sort_sequences(values: NDArray[np.integer], lengths: Ints) -> tuple[Ints, Ints]:
    """Sort sequences so that those which share a prefix are neighbours.

    `values` are integers ``[tokens, columns]``, sequence after sequence, `lengths` int64 ``[N]``.
    Returns the numbers of the sequences in this order, ``[N]``, and how many tokens each shares
    with the one before, ``[N]``; the first shares 0.
    """
    columns = values.shape[1]
    flat = np.ascontiguousarray(values).reshape(-1)
    ends = np.cumsum(lengths) * columns
    data, borders = flat.tobytes(), [0, *(ends * flat.itemsize).tolist()]
    # The order of bytes is not that of numbers, but any order by token puts prefixes together.
    keys = [data[a:b] for a, b in pairwise(borders)]
    order = np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)
    shared, sorted_ends = np.zeros(len(order), np.int64), ends[order].tolist()
    counts = (lengths[order] * columns).tolist()
    for place in range(1, len(order)):
        fewest = min(counts[place - 1 : place + 1])
        one, other = sorted_ends[place - 1] - counts[place - 1], sorted_ends[place] - counts[place]
        differs = flat[one : one + fewest] != flat[other : other + fewest]
        first = int(differs.argmax()) if fewest else 0
        shared[place] = (first if fewest and differs[first] else fewest) // columns
    return order, shared


def drop_forks(shared: Ints, min_gain: int) -> Ints:
    """Share less where a fork saves fewer than `min_gain` tokens.

    A fork saves the tokens since the fork before it, once for each sequence but the first. Forks
    are judged from the leaves on, so each sees how many branches it gets from forks dropped.

    >>> drop_forks(np.array([0, 5, 4]), 2).tolist()  # the fork at 5 saves 1 token
    [0, 4, 4]
    """
    kept = shared.tolist()
    open_forks: list[tuple[int, list[int]]] = []  # depths, rising, and the borders at each
    for border, depth in enumerate([*kept[1:], 0], start=1):
        found = [border]
        while open_forks and open_forks[-1][0] >= depth:
            own, borders = open_forks.pop()
            if own == depth:
                found = borders + found
                break
            above = max(depth, open_forks[-1][0] if open_forks else 0)
            if (own - above) * len(borders) >= min_gain:
                continue
            for each in borders:
                kept[each] = above
            if above == depth:
                found = borders + found
            elif above:
                open_forks[-1][1].extend(borders)
        open_forks.append((depth, found))
    return np.array(kept, np.int64)


def cut_trees(lengths: Sequence[int], shared: Sequence[int], budget: int | None) -> list[range]:
    """Cut sorted sequences into trees of at most `budget` tokens, the longest prefixes kept first.

    `shared` are the tokens that each shares with the one before; no sequence exceeds the budget.
    Returns the places of each tree's sequences in the sorted order.
    """
    count = len(lengths)
    first, last, tokens = list(range(count)), list(range(count)), list(lengths)
    # `last` and `tokens` are right at the first place of a tree, `first` at its last one.
    borders = [place for place in range(1, count) if shared[place]]
    for place in sorted(borders, key=lambda place: -shared[place]):
        left = first[place - 1]
        joined = tokens[left] + tokens[place] - shared[place]
        if budget is None or joined <= budget:
            last[left], tokens[left] = last[place], joined
            first[last[place]] = left
    trees, place = [], 0
    while place < count:
        trees.append(range(place, last[place] + 1))
        place = last[place] + 1
    return trees


@dataclass(frozen=True, slots=True, eq=False)
class PrefixTree:
    """A tree of the prefixes of some sequences, stored as branches that fork behind tokens."""

    source: Ints  # of each branch, place in the sorted order of a sequence with its tokens
    begin: Ints  # first token in that sequence, which is also the branch's depth
    end: Ints  # the token behind its last one
    fork: Ints  # token of the tree that each branch goes on from, -1 for none
    last: Ints  # of each sequence its last token in the tree

    @property
    def num_tokens(self) -> int:
        """Tokens of all branches."""
        return int((self.end - self.begin).sum())

    @property
    def num_pairs(self) -> int:
        """Pairs of a token and one on its path, itself included."""
        return int((self.end * (self.end + 1) - self.begin * (self.begin + 1)).sum()) // 2


def build_tree(places: range, lengths: Sequence[int], shared: Sequence[int]) -> PrefixTree:
    """Build the tree of neighbours in sorted order: each adds what the one before lacks."""
    branches: list[tuple[int, int, int, int]] = []  # source, begin, end, fork
    last: list[int] = []
    path: list[tuple[int, int]] = []  # depth and token at which each stretch of it begins
    tokens = 0
    for place in places:
        depth, length = (shared[place] if place > places.start else 0), lengths[place]
        while path and path[-1][0] >= depth:
            path.pop()
        fork = path[-1][1] + depth - 1 - path[-1][0] if path else -1
        if depth == length:
            last.append(fork)
            continue
        if path and fork == tokens - 1:  # the sequence before ends here: its branch goes on
            branches[-1] = place, branches[-1][1], length, branches[-1][3]
        else:
            branches.append((place, depth, length, fork))
            path.append((depth, tokens))
        tokens += length - depth
        last.append(tokens - 1)
    source, begin, end, fork = np.array(branches, np.int64).T
    return PrefixTree(source, begin, end, fork, np.array(last, np.int64))
