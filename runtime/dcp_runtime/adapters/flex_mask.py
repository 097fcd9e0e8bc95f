"""FlexAttention masks made from bound masks, without evaluating pairs to find the blocks.

`create_block_mask` asks a Python function about every pair of tokens; here the block lists come
from exact block sparsity, and the function only serves the kernel inside partial blocks.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from dcp_dsl import Form
from dcp_dsl.forms import as_slabs
from dcp_dsl.interchange import (
    BlockTables,
    ExportConfig,
    MaskMod,
    build_block_tables,
    build_mask_mod,
)

FlexMaskMod: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def flex_block_mask(
    mask: Form, config: ExportConfig | None = None, device: torch.device | str = "cpu"
) -> BlockMask:
    """Return the `BlockMask` of a bound mask, of one sequence or of a packed batch.

    Batch and heads are broadcast. Blocks that are full skip the predicate; the last block of a
    length that is no multiple of the block counts as partial.

    Args:
        mask: in any exact form.
        config: tokens per block; 128 x 128 by default.
        device: where the tables and the predicate's tensors live.

    Raises:
        ExchangeError: X304 if tables become too large.

    >>> from dcp_dsl import Slabs
    >>> causal = Slabs(256, [0], [256], [0], [1], [0], [1])
    >>> flex_block_mask(causal).sparsity()
    25.0
    """
    chosen, slabs = config or ExportConfig(), as_slabs(mask)
    tables, _ = build_block_tables(slabs, chosen.block_q, chosen.block_kv)
    block, lengths = (chosen.block_q, chosen.block_kv), (slabs.num_tokens, slabs.num_tokens)
    return block_mask_of([tables], block, flex_mask_mod(slabs, device), lengths, device)


def block_mask_of(
    rows: Sequence[BlockTables],
    block: tuple[int, int],
    mask_mod: FlexMaskMod,
    lengths: tuple[int, int],
    device: torch.device | str,
) -> BlockMask:
    """Return the `BlockMask` of tables, one for each row of the batch.

    Args:
        rows: the key blocks of every query block.
        block: tokens of a query block and of a key block.
        mask_mod: the predicate inside partial blocks.
        lengths: queries and keys.
        device: where the tables are to live.
    """
    names = ("partial_num", "partial_idx", "full_num", "full_idx")
    arrays = [np.stack([getattr(tables, name) for tables in rows])[:, None] for name in names]
    num, idx, full_num, full_idx = (_tensor(array, device) for array in arrays)
    return BlockMask.from_kv_blocks(
        num, idx, full_num, full_idx,
        BLOCK_SIZE=block,
        mask_mod=mask_mod,
        seq_lengths=lengths,
    )  # fmt: skip


def flex_mask_mod(mask: Form, device: torch.device | str = "cpu") -> FlexMaskMod:
    """Return the predicate of a bound mask as a `mask_mod`: closed, or with captured tensors.

    Raises:
        ExchangeError: X304 if the mask takes too many ranges and has too many tokens for bits.
    """
    slabs = as_slabs(mask)
    predicate = build_mask_mod(slabs)
    if predicate.form == "closed":
        return _closed(predicate)
    tables = {name: _tensor(value, device) for name, value in predicate.tables.items()}
    if predicate.form == "bits":
        return _bits(tables["bits"], len(tables["bits"]) // slabs.num_tokens)
    count = len(tables) // 2
    ranges = [(tables[f"lo{i}"], tables[f"hi{i}"]) for i in range(count)]
    return _ranges(ranges, is_by_row=predicate.form == "rows")


def _tensor(array: object, device: torch.device | str) -> Tensor:
    return torch.tensor(array, device=device)  # copies: the arrays are read-only


def _closed(predicate: MaskMod) -> FlexMaskMod:
    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        seen = q < 0
        for q0, q1, k0, k1, a, slope in predicate.slabs:
            low, high = k0 + a * (q - q0), k1 + slope * (q - q0)
            seen = seen | ((q >= q0) & (q < q1) & (k >= low) & (k < high))
        return seen

    return mask_mod


def _ranges(ranges: list[tuple[Tensor, Tensor]], *, is_by_row: bool) -> FlexMaskMod:
    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        line, place = (q, k) if is_by_row else (k, q)
        seen = q < 0
        for low, high in ranges:
            seen = seen | ((place >= low[line]) & (place < high[line]))
        return seen

    return mask_mod


def _bits(bits: Tensor, words: int) -> FlexMaskMod:
    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return ((bits[q * words + k // 32] >> (k % 32)) & 1) != 0

    return mask_mod
