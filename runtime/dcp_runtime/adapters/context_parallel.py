"""A load balancer for PyTorch's context parallel: our masks and balance, torch's kernels.

PyTorch cuts the sequence into equal shares, gathers all keys and lets every rank run FlexAttention
on its queries. A load balancer says in which order the tokens are cut. Ranks wait for each other in
every layer, so every mask of a model is balanced on its own, by the blocks the kernel computes.

Source: torch 2.13, ``torch.distributed.tensor.experimental._context_parallel``; all of it private.
"""

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.attention.flex_attention import BlockMask

from dcp_dsl import Form, Slabs, block_sparsity
from dcp_dsl.arrays import Ints
from dcp_dsl.forms import BlockKind, as_slabs
from dcp_dsl.interchange import list_blocks
from dcp_runtime.adapters.equal_shares import deal_blocks
from dcp_runtime.adapters.flex_mask import FlexMaskMod, block_mask_of, flex_mask_mod
from dcp_runtime.errors import RunError

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
    mask of a layer. Tokens move by whole blocks. Among balanced shares it looks for those whose
    ranks need few keys of others; PyTorch gathers all keys whatever a rank needs.

    Args:
        rows: for each row of the batch its bound masks, one for each distinct mask of the model. A
            row that is shorter than `tokens` is padded: what lies behind it sees nothing.
        mesh: of the ranks that share the sequence, of one dim; or a number of ranks, to look at
            shares without processes.
        tokens: length of the sequence dimension; by default that of the longest row.
        block: tokens per block of the mask, of queries and of keys.
        tolerance: how far the blocks that a rank computes may exceed the mean, as a share of it.

    Raises:
        RunError: if `tokens` is no multiple of ``ranks * block``, or rows do not fit each other.

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
        if len({len(masks) for masks in rows}) != 1 or not rows[0]:
            raise RunError(
                "DCPLoadBalancer: expected as many masks for every row of the batch, at least one, "
                f"got {[len(masks) for masks in rows]} masks; give [[mask]] for one row and mask"
            )
        longest = max(mask.num_tokens for masks in rows for mask in masks)
        self.mesh, self.block, self.tokens = mesh, block, longest if tokens is None else tokens
        self.num_ranks = mesh if isinstance(mesh, int) else mesh.size()
        unit = self.num_ranks * block
        if self.tokens < longest or self.tokens % unit:
            raise RunError(
                f"DCPLoadBalancer: expected a multiple of {unit} tokens ({self.num_ranks} ranks, "
                f"blocks of {block}) that holds rows of up to {longest}, got {self.tokens}; pad "
                f"rows to {-(-longest // unit) * unit} and give tokens={-(-longest // unit) * unit}"
            )
        padded = [[_padded(mask, self.tokens) for mask in masks] for masks in rows]
        self._blocks = [[block_sparsity([m], block, block) for m in masks] for masks in padded]
        dealt = [self._deal(row, tolerance) for row in range(len(rows))]
        self._order = [np.argsort(rank, kind="stable") for rank in dealt]

    @property
    def device(self) -> str:
        """The device of the mesh; without one the CPU."""
        return "cpu" if isinstance(self.mesh, int) else self.mesh.device_type

    def _deal(self, row: int, tolerance: float) -> Ints:
        count, masks = self.tokens // self.block, self._blocks[row]
        sees = np.zeros((count, count), np.bool_)
        for blocks in masks:
            sees[blocks.row_idx, blocks.col_idx] = True
        work = np.stack([np.diff(blocks.row_ptr).astype(np.float64) for blocks in masks])
        return deal_blocks(work, sees, self.num_ranks, tolerance)

    @cached_property
    def _indices(self) -> Tensor:
        inside = np.arange(self.block)
        order = [(blocks[:, None] * self.block + inside).reshape(-1) for blocks in self._order]
        return torch.from_numpy(np.stack(order)).to(self.device)

    def _generate_indices(self, restore: bool = False) -> Tensor:
        """Return the token at each place, or with `restore` the place of each token.

        int64 ``[rows, tokens]``; place ``i`` belongs to rank ``i // (tokens // ranks)``.
        """
        return torch.argsort(self._indices, dim=1) if restore else self._indices

    def block_mask(self, mask: int = 0, rank: int | None = None) -> BlockMask:
        """Return FlexAttention's mask of a rank's queries against all keys, in the new order.

        No pair is evaluated: the blocks are those of the whole mask, at their new places.

        Args:
            mask: its number in each of the rows.
            rank: by default this process's in the mesh.

        Raises:
            ExchangeError: X304 if the tables of a mask become too large.
            RunError: if no mesh says which rank this is.
        """
        if rank is None:
            if isinstance(self.mesh, int):
                raise RunError("block_mask: expected rank=, as the balancer was given no mesh")
            rank = self.mesh.get_local_rank()
        count = self.tokens // self.block
        share = count // self.num_ranks
        tables = []
        for order, masks in zip(self._order, self._blocks, strict=True):
            blocks, place = masks[mask], np.argsort(order)
            row, col = place[blocks.row_idx] - rank * share, place[blocks.col_idx]
            mine = np.flatnonzero((row >= 0) & (row < share))
            mine = mine[np.lexsort((col[mine], row[mine]))]
            is_full = blocks.kind[mine] == BlockKind.FULL
            tables.append(list_blocks(row[mine], col[mine], is_full, (share, count)))
        mods = [flex_mask_mod(masks[mask].slabs, self.device) for masks in self._blocks]
        moved = _moved(_by_row(mods), self._indices, rank * share * self.block)
        lengths = (share * self.block, self.tokens)
        return block_mask_of(tables, (self.block, self.block), moved, lengths, self.device)


def _padded(mask: Form, tokens: int) -> Slabs:
    return Slabs(tokens, *as_slabs(mask).table().T)


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

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        token = indices[0] if is_one else indices[b]
        return mod(b, h, token[q + first], token[k])

    return mask_mod
