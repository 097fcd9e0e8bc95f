"""A load balancer for PyTorch's context parallel: our masks and balance, torch's kernels.

PyTorch cuts the sequence into equal shares, gathers all keys and lets every rank run FlexAttention
on its queries. A load balancer chooses the order in which the tokens are cut. Ranks wait for each
other in every layer, so each mask of a model is balanced, by the blocks that the kernel computes.

Source: torch 2.13, ``torch.distributed.tensor.experimental._context_parallel``; all of it private.

The search: every rank begins with one chunk of neighbouring blocks. The rank with most work swaps
chunks with other ranks, always of equal size; where no swap helps, all chunks are halved. Once work
is balanced, swaps go on as long as ranks need fewer keys and no rank exceeds the limit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.attention.flex_attention import BlockMask

from dcp_dsl import Form, Mask, Slabs, block_sparsity
from dcp_dsl.arrays import Bools, Floats, Ints
from dcp_dsl.forms import BlockKind, as_slabs
from dcp_dsl.interchange import list_blocks
from dcp_runtime.adapters.flex_mask import FlexMaskMod, block_mask_of, flex_mask_mod
from dcp_runtime.errors import RunError
from dcp_runtime.transport.group_store import process_group

try:
    from torch.distributed.tensor.experimental._context_parallel._load_balancer import _LoadBalancer
except ImportError:
    _LoadBalancer = object  # type: ignore[misc, assignment]  # refused below
if getattr(_LoadBalancer, "__abstractmethods__", None) != {"_generate_indices"}:
    raise RunError(
        "DCPLoadBalancer: expected the private `_LoadBalancer` of torch 2.13's context parallel, "
        f"with `_generate_indices` alone; torch {torch.__version__} has no such class. Use torch "
        "2.13, or DCPExecutor, which needs no private parts of torch"
    )


class DCPLoadBalancer(_LoadBalancer):
    """Equal shares of tokens, equal work of ranks under every mask of a model.

    Give it to ``_context_parallel_shard`` and ``context_parallel_unshard``; `block_mask` gives the
    mask of a layer. Tokens move by whole blocks. Among balanced shares it prefers those whose ranks
    need few keys of others, although PyTorch gathers all keys.

    Args:
        rows: for each row of the batch its bound masks, one for each distinct mask of the model. A
            row that is shorter than `tokens` is padded; padding sees nothing.
        mesh: of the ranks that share the sequence, of one dim; or a number of ranks, to look at
            shares without processes.
        tokens: length of the sequence dimension; by default that of the longest row.
        block: tokens per block of the mask, of queries and of keys.
        tolerance: how far the blocks that a rank computes may exceed the mean, as a share of it.

    Raises:
        RunError: if `tokens` is no multiple of ``ranks * block``, rows differ in their number of
            masks, a mask is not bound, or a number is too small.

    Cost: the exact blocks and a search over chunks; some 10 to 50 ms at 131,072 tokens for 8 ranks.

    >>> causal = Slabs(1024, [0], [1024], [0], [1], [0], [1])
    >>> balancer = DCPLoadBalancer([[causal]], 2)
    >>> balancer._generate_indices()[0, ::128].tolist()
    [0, 128, 768, 896, 256, 384, 512, 640]
    >>> balancer.block_mask(rank=0).shape
    (1, 1, 512, 1024)
    """

    def __init__(
        self,
        rows: Sequence[Sequence[Form]],
        mesh: DeviceMesh | int,
        tokens: int | None = None,
        *,
        block: int = 128,
        tolerance: float = 0.01,
    ) -> None:
        longest = _check_rows(rows)
        self.num_ranks = _count_ranks(mesh)
        if block < 1 or not tolerance >= 0:
            raise RunError(
                "DCPLoadBalancer: expected a block of at least 1 token and a tolerance of at least "
                f"0, got block={block} and tolerance={tolerance}; the defaults are 128 and 0.01"
            )
        self.mesh, self.block, self.tokens = mesh, block, longest if tokens is None else tokens
        unit = self.num_ranks * block
        if self.tokens < max(1, longest) or self.tokens % unit:
            raise RunError(
                f"DCPLoadBalancer: expected a multiple of {unit} tokens ({self.num_ranks} ranks, "
                f"blocks of {block}) that holds rows of up to {longest}, got {self.tokens}; pad "
                f"rows to {unit * max(1, -(-longest // unit))} and give tokens="
                f"{unit * max(1, -(-longest // unit))}"
            )
        padded = [
            [Slabs(self.tokens, *as_slabs(mask).table().T) for mask in masks] for masks in rows
        ]
        self._blocks = [[block_sparsity([m], block, block) for m in masks] for masks in padded]
        count = self.tokens // block
        self._order = []  # of each row: its blocks in the order of their ranks
        for masks in self._blocks:
            seen = np.zeros((len(masks), count, count), np.bool_)
            for own, blocks in zip(seen, masks, strict=True):
                own[blocks.row_idx, blocks.col_idx] = True
            self._order.append(_order_of(seen, self.num_ranks, tolerance))

    @property
    def device(self) -> str:
        """The device of the mesh; without one the CPU."""
        return "cpu" if isinstance(self.mesh, int) else self.mesh.device_type

    @cached_property
    def _indices(self) -> Tensor:
        return _tokens_of(self._order, self.block).to(self.device)

    def _generate_indices(self, restore: bool = False) -> Tensor:
        """Return the token at each place, or each token's place, int64 ``[rows, tokens]``."""
        # The inverse of a permutation is the order that sorts it.
        return torch.argsort(self._indices, dim=1) if restore else self._indices

    def block_mask(self, mask: int = 0, rank: int | None = None) -> BlockMask:
        """Return FlexAttention's mask of a rank's queries against all keys, in the new order.

        No pair is evaluated: the blocks are those of the whole mask, at their new places.

        Args:
            mask: its number in each of the rows.
            rank: by default that of this process in the mesh.

        Raises:
            ExchangeError: X304 if the tables of a mask become too large.
            RunError: if no mesh says which rank this is, or there is no such rank or mask.
        """
        if rank is None:
            if isinstance(self.mesh, int):
                raise RunError("block_mask: expected rank=, as the balancer was given no mesh")
            rank = self.mesh.get_local_rank()
        for what, number, count in (
            ("mask", mask, len(self._blocks[0])), ("rank", rank, self.num_ranks)
        ):  # fmt: skip
            if not 0 <= number < count:
                raise RunError(
                    f"block_mask: expected a {what} from 0 to {count - 1}, got {number}; the "
                    f"balancer was made for {count} {what}{'s' if count > 1 else ''}"
                )
        count = self.tokens // self.block
        share = count // self.num_ranks
        tables = []
        for order, masks in zip(self._order, self._blocks, strict=True):
            blocks, place = masks[mask], np.argsort(order)
            row, col = place[blocks.row_idx] - rank * share, place[blocks.col_idx]
            mine = np.flatnonzero((row >= 0) & (row < share))
            mine = mine[np.lexsort((col[mine], row[mine]))]  # row by row, as `list_blocks` wants
            is_full = blocks.kind[mine] == BlockKind.FULL
            tables.append(list_blocks(row[mine], col[mine], is_full, (share, count)))
        mods = [flex_mask_mod(masks[mask].slabs, self.device) for masks in self._blocks]
        moved = _moved(_by_row(mods), self._indices, rank * share * self.block)
        lengths = (share * self.block, self.tokens)
        return block_mask_of(tables, (self.block, self.block), moved, lengths, self.device)


def balanced_order(
    masks: BlockMask | Mapping[Any, BlockMask], num_ranks: int, tolerance: float = 0.01
) -> Tensor:
    """Return an order of tokens whose equal shares do equal work under masks that torch made.

    For trainers that make a `BlockMask` and ask for a permutation, as torchtitan does; no pair is
    evaluated.

    Args:
        masks: of a batch: one, or the distinct ones of a model by name, in equal blocks.
        num_ranks: ranks that share the sequence.
        tolerance: as for `DCPLoadBalancer`.

    Returns:
        int64 ``[rows, tokens]``, on the device of the masks: the token at each place.

    Raises:
        RunError: if ranks cannot get equally many blocks, or masks have other blocks or lengths.
    """
    every = [masks] if isinstance(masks, BlockMask) else list(masks.values())
    sizes = {(*mask.BLOCK_SIZE, *mask.seq_lengths) for mask in every}
    block, of_keys, tokens, keys = next(iter(sizes), (0, 0, 0, 0))
    if len(sizes) != 1 or block != of_keys or tokens != keys or tokens % (num_ranks * block):
        raise RunError(
            "balanced_order: expected masks with the same square blocks over the same tokens, a "
            f"multiple of {num_ranks} ranks times a block, got (query block, key block, queries, "
            f"keys) {sorted(sizes)}; pad the sequence, or give BLOCK_SIZE to create_block_mask"
        )
    rows = max(mask.shape[0] for mask in every)
    dense = [mask.to_dense().bool().cpu() for mask in every]  # [rows, heads, blocks, blocks]
    seen = torch.cat([each.expand(rows, -1, -1, -1) for each in dense], 1).numpy()
    order = [_order_of(of_row, num_ranks, tolerance) for of_row in seen]
    return _tokens_of(order, block).to(every[0].kv_num_blocks.device)


def _order_of(seen: Bools, num_ranks: int, tolerance: float) -> Ints:
    """Return blocks in the order of their ranks; `seen` says for each mask which it computes."""
    work, sees = seen.sum(2, dtype=np.float64), np.asarray(seen.any(0))
    rank = deal_blocks(work, sees, num_ranks, tolerance)
    return np.argsort(rank, kind="stable")


def _tokens_of(order: Sequence[Ints], block: int) -> Tensor:
    """Return the tokens of blocks in their order, int64 ``[rows, tokens]``."""
    inside = np.arange(block)
    return torch.from_numpy(np.stack([(b[:, None] * block + inside).reshape(-1) for b in order]))


def _check_rows(rows: Sequence[Sequence[Form]]) -> int:
    """Check the masks of each row, and return the tokens of the longest."""
    is_nested = isinstance(rows, Sequence) and all(isinstance(row, Sequence) for row in rows)
    counts = [len(masks) for masks in rows] if is_nested else []
    if len(set(counts)) != 1 or not counts[0]:
        found = f"{counts} masks" if is_nested else f"{rows!r:.60}"
        raise RunError(
            "DCPLoadBalancer: expected as many masks for every row of the batch, at least one, "
            f"got {found}; give [[mask]] for one row and mask"
        )
    for number, masks in enumerate(rows):
        for mask in masks:
            if isinstance(mask, Mask) or not hasattr(mask, "num_tokens"):
                raise RunError(
                    f"DCPLoadBalancer: expected masks bound to the samples of row {number}, got "
                    f"{type(mask).__name__}; give mask.bind(Sample(columns, length))"
                )
    return max(mask.num_tokens for masks in rows for mask in masks)


def _count_ranks(mesh: DeviceMesh | int) -> int:
    """Return the ranks of a mesh of one dim, or the number itself."""
    ranks = mesh if isinstance(mesh, int) else mesh.size()
    if ranks < 1:
        raise RunError(f"DCPLoadBalancer: expected at least 1 rank, got {ranks}; give the mesh")
    if not isinstance(mesh, int):
        process_group(mesh)  # refuses a mesh of several dims
    return ranks


def _by_row(mods: Sequence[FlexMaskMod]) -> FlexMaskMod:
    """Return the predicate of a batch whose rows have predicates of their own."""
    if len(mods) == 1:
        return mods[0]

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        seen = (b == 0) & mods[0](b, h, q, k)
        for row, mod in enumerate(mods[1:], 1):
            seen = seen | ((b == row) & mod(b, h, q, k))
        return seen

    return mask_mod


def _moved(mod: FlexMaskMod, indices: Tensor, first: int) -> Callable[..., Tensor]:
    """Return a predicate over places: `first` is the place of this rank's query 0."""
    is_one = len(indices) == 1

    # FlexAttention broadcasts a mask of one row over batches of several: `b` exceeds 0 then.
    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        token = indices[0] if is_one else indices[b]
        return mod(b, h, token[q + first], token[k])

    return mask_mod


MAX_CHUNKS = 4096  # most chunks; a step of the search compares those of one rank with all


def deal_blocks(work: Floats, sees: Bools, num_ranks: int, tolerance: float) -> Ints:
    """Return the rank of every block, int64 ``[B]``; each rank gets ``B / num_ranks``.

    `work` is ``[M, B]``, the cost of each block under each mask, `sees` ``[B, B]``, the key blocks
    that a query block needs. A rank may exceed the mean work of a mask by the tolerance, or hold
    one block that alone exceeds it. If the search does not reach that, its last deal is returned.

    >>> causal = np.tril(np.ones((8, 8), bool))
    >>> deal_blocks(causal.sum(1)[None] * 1.0, causal, 2, 0.01).tolist()
    [0, 0, 1, 1, 1, 1, 0, 0]
    """
    mean = work.sum(1, keepdims=True) / num_ranks
    share = np.divide(work, mean, out=np.zeros_like(work), where=mean > 0).T
    # No deal has less on its fullest rank than the largest block.
    limit = max(1 + tolerance, float(share.max(initial=0.0)))
    sizes = np.full(num_ranks, work.shape[1] // num_ranks)
    deal = _Deal.of(share, sees, sizes, np.arange(num_ranks))
    while not deal.balance(limit) and sizes.max() > 1 and 2 * len(sizes) <= MAX_CHUNKS:
        halves = np.stack([sizes - sizes // 2, sizes // 2], axis=1).reshape(-1)
        rank = np.repeat(deal.rank, 2)[halves > 0]  # a chunk of one block has no second half
        sizes = halves[halves > 0]
        deal = _Deal.of(share, sees, sizes, rank)
    deal.need_less(max(limit, float(deal.load.max())))
    # Swaps leave the names of ranks arbitrary: number them in the order of their first chunks.
    first = np.unique(deal.rank, return_index=True)[1]
    return np.repeat(np.argsort(np.argsort(first))[deal.rank], sizes)


@dataclass(slots=True)
class _Deal:
    """A rank for every chunk, and the sums that follow from it; ranks have equal chunks."""

    sizes: Ints  # [N]
    rank: Ints  # [N]
    share: Floats  # [N, M], work of a chunk as a share of a rank's mean
    sees: NDArray[np.float32]  # [N, B], key blocks that a chunk needs, 0 or 1
    load: Floats  # [R, M], work of each rank
    needs: NDArray[np.float32]  # [R, B], chunks of a rank that need a key block

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
        """Swap chunks of the busiest rank until none exceeds the limit; return if that succeeds."""
        # Every swap lowers the sum of the heights of all ranks, so the loop ends.
        while self.load.max(initial=0.0) > limit:
            mine = np.flatnonzero(self.rank == self.load.max(1).argmax())
            before = _height(self.load[self.rank])
            # By how much a swap lowers the heights of its two ranks.
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
            # Loads are sums of fractions: rounding may put a load at the limit just above it.
            fits = [(load <= limit + 1e-12).all(2) for load in self._loads_after(mine)]
            if self._swap_best(mine, np.where(fits[0] & fits[1], self._keys_saved(mine), 0.0), 0.5):
                waiting.append(rank)  # another swap may help now

    def _loads_after(self, mine: Ints) -> tuple[Floats, Floats]:
        """Return ``[C, N, M]``: the work of both ranks if a chunk of `mine` and any other swap."""
        change = self.share - self.share[mine][:, None]
        load = self.load[self.rank]
        return load[mine][:, None] + change, load - change

    def _keys_saved(self, mine: Ints) -> Floats:
        """Return ``[C, N]``: by how many key blocks the two ranks need fewer after the swap."""
        # Key blocks that other chunks of the same rank need: their count exceeds this chunk's own.
        rest = (self.needs[self.rank] > self.sees).astype(np.float32)
        rests, keys, now = rest.sum(1), self.sees.sum(1), (self.needs > 0).sum(1)[self.rank]
        # The union of the rest and the new chunk's keys: |rest| + |keys| - |both|.
        here = rests[mine][:, None] + keys - rest[mine] @ self.sees.T
        there = rests + keys[mine][:, None] - self.sees[mine] @ rest.T
        return np.asarray(now[mine][:, None] + now - here - there, np.float64)

    def _swap_best(self, mine: Ints, gain: Floats, least: float) -> bool:
        """Make the swap with the largest gain, if it exceeds `least`; return whether it did."""
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
    """Return the sum over masks of the 16th power of loads: large loads decide, under any mask."""
    for _ in range(4):
        load = load**2
    return np.asarray(load.sum(-1))
