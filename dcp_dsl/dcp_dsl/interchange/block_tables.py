"""Lists of partial and full blocks per block row, for FlexAttention and FlashAttention-4."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.errors import ExchangeError
from dcp_dsl.forms.blocks import block_sparsity
from dcp_dsl.forms.slabs import Slabs
from dcp_dsl.forms.sparsity import BlockKind

Ints32 = NDArray[np.int32]
MAX_ENTRIES = 2**28


@dataclass(frozen=True, slots=True, eq=False)
class BlockTables:
    """Which blocks a block row meets; blocks in neither list hold no visible pair.

    Attributes:
        partial_num, full_num: int32 ``[N]``, blocks of each kind per block row.
        partial_idx, full_idx: int32 ``[N, M]``, their numbers, ascending; entries from the number
            on are 0 and mean nothing.
    """

    partial_num: Ints32
    partial_idx: Ints32
    full_num: Ints32
    full_idx: Ints32


def build_block_tables(
    slabs: Slabs, block_q: int, block_kv: int
) -> tuple[BlockTables, BlockTables]:
    """Give the key blocks of every query block, and the query blocks of every key block.

    No pair is evaluated: the blocks come from the exact block sparsity. The last block row and
    column count as partial where they are shorter than a block, as `create_block_mask` has it:
    kernels compute whole blocks.

    Raises:
        ExchangeError: X304 beyond `MAX_ENTRIES` per table; no code for block sizes below 1.
    """
    if min(block_q, block_kv) < 1:
        raise ExchangeError(f"expected blocks of at least 1 token, got {block_q} x {block_kv}")
    blocks = block_sparsity([slabs], block_q, block_kv)
    num_q, num_kv = len(blocks.q_bounds) - 1, len(blocks.kv_bounds) - 1
    if num_q * num_kv > MAX_ENTRIES:
        raise ExchangeError(
            f"block tables of {num_q:_} x {num_kv:_} entries; at most {MAX_ENTRIES:_} are written, "
            f"use blocks larger than {block_q} x {block_kv}",
            "X304",
        )
    n = slabs.num_tokens
    row, col = blocks.row_idx.astype(np.int64), blocks.col_idx.astype(np.int64)
    is_whole = ((row + 1) * block_q <= n) & ((col + 1) * block_kv <= n)
    is_full = (blocks.kind == BlockKind.FULL) & is_whole
    order = np.lexsort((row, col))
    return (
        _tables(row, col, is_full, (num_q, num_kv)),
        _tables(col[order], row[order], is_full[order], (num_kv, num_q)),
    )


def _tables(
    line: NDArray[np.int64],
    item: NDArray[np.int64],
    is_full: NDArray[np.bool_],
    shape: tuple[int, int],
) -> BlockTables:
    found = []
    for chosen in (~is_full, is_full):
        num = np.bincount(line[chosen], minlength=shape[0])
        place = np.arange(int(num.sum())) - np.repeat(np.cumsum(num) - num, num)
        table = np.zeros(shape, np.int32)
        table[line[chosen], place] = item[chosen]
        found += [num.astype(np.int32), table]
    return BlockTables(*found)
