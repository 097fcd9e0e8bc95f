"""Deal blocks of tokens to ranks: equal shares, equal work under every mask, few keys needed.

Every rank begins with one chunk of neighbouring blocks. Chunks of equal size are then swapped with
those of the rank that has most to do; where no swap helps, all chunks are halved. Work is balanced
at last: chunks are swapped on, as long as ranks need fewer keys and none gets more than the limit.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Bools, Ints

Floats = NDArray[np.float64]
MAX_CHUNKS = 4096  # a step looks at the chunks of one rank beside all chunks


def deal_blocks(work: Floats, sees: Bools, num_ranks: int, tolerance: float) -> Ints:
    """Return the rank of every block, int64 ``[B]``; each rank gets ``B / num_ranks``.

    Args:
        work: ``[M, B]``, what each block costs under each mask.
        sees: ``[B, B]``, the key blocks that a query block needs.
        num_ranks: a divisor of B.
        tolerance: a rank may exceed the mean work of a mask by this share, or hold one block that
            alone exceeds it. Where no deal gets there, the best one that was met is taken.

    >>> causal = np.tril(np.ones((8, 8), bool))
    >>> deal_blocks(causal.sum(1)[None] * 1.0, causal, 2, 0.01).tolist()
    [0, 0, 1, 1, 1, 1, 0, 0]
    """
    mean = work.sum(1, keepdims=True) / num_ranks
    share = np.divide(work, mean, out=np.zeros_like(work), where=mean > 0).T
    limit = max(1 + tolerance, float(share.max(initial=0.0)))
    sizes = np.full(num_ranks, work.shape[1] // num_ranks)
    deal = _Deal.of(share, sees, sizes, np.arange(num_ranks))
    while not deal.balance(limit) and sizes.max() > 1 and 2 * len(sizes) <= MAX_CHUNKS:
        halves = np.stack([sizes - sizes // 2, sizes // 2], axis=1).reshape(-1)
        rank = np.repeat(deal.rank, 2)[halves > 0]
        sizes = halves[halves > 0]
        deal = _Deal.of(share, sees, sizes, rank)
    deal.need_less(max(limit, float(deal.load.max())))
    first = np.unique(deal.rank, return_index=True)[1]  # ranks in the order of their first chunks
    return np.repeat(np.argsort(np.argsort(first))[deal.rank], sizes)


@dataclass(slots=True)
class _Deal:
    """A rank for every chunk, and what follows from it.

    Attributes:
        sizes, rank: int64 ``[N]``; every rank has chunks of the same sizes.
        share: ``[N, M]``, work of a chunk as a share of a rank's mean.
        sees: ``[N, B]``, key blocks that a chunk needs, as numbers for matrix products.
        load: ``[R, M]``, work of each rank.
        needs: ``[R, B]``, chunks of a rank that need a key block.
    """

    sizes: Ints
    rank: Ints
    share: Floats
    sees: NDArray[np.float32]
    load: Floats
    needs: NDArray[np.float32]

    @classmethod
    def of(cls, share: Floats, sees: Bools, sizes: Ints, rank: Ints) -> "_Deal":
        begin, ranks = np.cumsum(sizes) - sizes, int(rank.max()) + 1
        own = np.add.reduceat(share, begin, axis=0)
        seen = np.logical_or.reduceat(sees, begin, axis=0).astype(np.float32)
        load, needs = np.zeros((ranks, own.shape[1])), np.zeros((ranks, len(sees)), np.float32)
        np.add.at(load, rank, own)
        np.add.at(needs, rank, seen)
        return cls(sizes, rank, own, seen, load, needs)

    def balance(self, limit: float) -> bool:
        """Swap chunks of the busiest rank until none exceeds the limit; say if that was reached."""
        while self.load.max(initial=0.0) > limit:
            mine = np.flatnonzero(self.rank == self.load.max(1).argmax())
            before = _height(self.load[self.rank])
            # A high power of loads: large ones count, and all masks at once.
            taken = before[mine][:, None] + before - sum(map(_height, self._loads_after(mine)))
            if not self._swap_best(mine, taken, 1e-12):
                return False
        return True

    def need_less(self, limit: float) -> None:
        """Swap chunks as long as ranks need fewer key blocks and none exceeds the limit."""
        waiting = list(range(len(self.load)))
        while waiting:
            rank = waiting.pop(0)
            mine = np.flatnonzero(self.rank == rank)
            fits = [(load <= limit + 1e-12).all(2) for load in self._loads_after(mine)]
            if self._swap_best(mine, np.where(fits[0] & fits[1], self._keys_saved(mine), 0.0), 0.5):
                waiting.append(rank)

    def _loads_after(self, mine: Ints) -> tuple[Floats, Floats]:
        """Return ``[C, N, M]``: the work of both ranks if a chunk of `mine` goes for any other."""
        change = self.share - self.share[mine][:, None]
        load = self.load[self.rank]
        return load[mine][:, None] + change, load - change

    def _keys_saved(self, mine: Ints) -> Floats:
        """Return ``[C, N]``: key blocks that both ranks need no more after the swap."""
        rest = (self.needs[self.rank] > self.sees).astype(np.float32)  # of a rank without the chunk
        rests, keys, now = rest.sum(1), self.sees.sum(1), (self.needs > 0).sum(1)[self.rank]
        # |rest and keys| = |rest| + |keys| - |both|
        here = rests[mine][:, None] + keys - rest[mine] @ self.sees.T
        there = rests + keys[mine][:, None] - self.sees[mine] @ rest.T
        return np.asarray(now[mine][:, None] + now - here - there, np.float64)

    def _swap_best(self, mine: Ints, gain: Floats, least: float) -> bool:
        alike = self.sizes[mine][:, None] == self.sizes
        gain = np.where(alike & (self.rank[mine][:, None] != self.rank), gain, 0.0)
        at, j = divmod(int(gain.argmax()), len(self.rank))
        i = mine[at]
        if gain[at, j] <= least:
            return False
        for each in (self.load, self.share), (self.needs, self.sees):
            change = each[1][j] - each[1][i]
            each[0][self.rank[i]] += change
            each[0][self.rank[j]] -= change
        self.rank[[i, j]] = self.rank[[j, i]]
        return True


def _height(load: Floats) -> Floats:
    for _ in range(4):
        load = load**2
    return np.asarray(load.sum(-1))
