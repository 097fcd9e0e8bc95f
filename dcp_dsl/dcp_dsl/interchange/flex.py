"""Write masks for FlexAttention and FlashAttention-4: block tables and the source of a `mask_mod`.

FlexAttention takes `BlockMask.from_kv_blocks`; source: documentation of
torch.nn.attention.flex_attention.BlockMask.

FlashAttention-4 takes tables of forward and backward. Forward tables list the key blocks of every
query block, backward tables the query blocks of every key block; both must be given, or gradients
are wrong. Varlen batches are one packed buffer of batch size 1. The kernel finds `mask_mod` by its
source, so it has to live in a file. Source: flash-attn-4, flash_attn.cute.block_sparsity and the
signature of its `mask_mod`.
"""

from textwrap import indent

from dcp_dsl.arrays import Indices
from dcp_dsl.forms.slabs import Slabs
from dcp_dsl.interchange.block_sparse import (
    BlockTables,
    MaskMod,
    build_block_tables,
    build_mask_mod,
)
from dcp_dsl.interchange.export import Export, ExportConfig

_LOAD_TABLES = """def load_tables(device="DEVICE"):
    with np.load(Path(__file__).with_suffix(".npz"), allow_pickle=False) as file:
        names = [name for name in file.files if not name.startswith("__")]
        return {name: torch.from_numpy(file[name]).to(device) for name in names}"""

_FLEX_TEMPLATE = '''"""FlexAttention mask `{title}` on {tokens} tokens.

    from torch.nn.attention.flex_attention import flex_attention

    block_mask = make_block_mask("cuda")
    out = flex_attention(q, k, v, block_mask=block_mask)  # compiled: torch.compile(flex_attention)
"""

from pathlib import Path

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask

TOKENS = {tokens}
BLOCK_SIZE = ({block_q}, {block_kv})


{load_tables}


def make_mask_mod(tables):
{captured}    def mask_mod(b, h, q, k):
        return (
            {expression}
        )

    return mask_mod


def make_block_mask(device="cpu"):
    tables = load_tables(device)
    return BlockMask.from_kv_blocks(
        tables["kv_num_blocks"],
        tables["kv_indices"],
        tables["full_kv_num_blocks"],
        tables["full_kv_indices"],
        BLOCK_SIZE=BLOCK_SIZE,
        mask_mod=make_mask_mod(tables),
        seq_lengths=(TOKENS, TOKENS),
    )
'''


def to_flex(slabs: Slabs, config: ExportConfig) -> Export:
    """Write the arguments of `BlockMask.from_kv_blocks`, the tables of `mask_mod`, and the source.

    Raises:
        ExchangeError: X304 if the tables become too large.
    """
    forward, _ = build_block_tables(slabs, config.block_q, config.block_kv)
    predicate = build_mask_mod(slabs)
    arrays = {
        "kv_num_blocks": forward.partial_num[None, None],
        "kv_indices": forward.partial_idx[None, None],
        "full_kv_num_blocks": forward.full_num[None, None],
        "full_kv_indices": forward.full_idx[None, None],
        **predicate.tables,
    }
    reads = {name: f"tables[{name!r}]" for name in predicate.tables}
    source = _FLEX_TEMPLATE.format(
        **_filled(slabs, config, reads, "cpu"),
        expression=predicate.expression.replace("\n", "\n    "),
    )
    return Export("flex", slabs.num_tokens, arrays, _values(config, predicate), source)


def _values(config: ExportConfig, predicate: MaskMod) -> dict[str, int | bool | str]:
    return {"block_q": config.block_q, "block_kv": config.block_kv, "form": predicate.form}


def _filled(
    slabs: Slabs, config: ExportConfig, reads: dict[str, str], device: str
) -> dict[str, object]:
    """Return what both templates hold; `reads` says where the predicate finds its tables."""
    lines = "".join(f"{name} = {place}\n" for name, place in reads.items())
    return {
        "title": plain_title(config.title), "tokens": slabs.num_tokens, "block_q": config.block_q,
        "block_kv": config.block_kv, "load_tables": _LOAD_TABLES.replace("DEVICE", device),
        "captured": indent(lines, "    ") + ("\n" if lines else ""),
    }  # fmt: skip


def plain_title(title: str) -> str:
    """Make a title harmless inside a docstring: it is a person's text, not ours."""
    kept = "".join(c if c.isprintable() and c not in '"\\' else " " for c in title)
    return " ".join(kept.split())[:200]


_FLASH4_TEMPLATE = '''"""FlashAttention-4 mask `{title}` on {tokens} tokens, batch of 1.

    from flash_attn.cute import flash_attn_func

    out = flash_attn_func(q, k, v, **attention_arguments("cuda"))
"""

from pathlib import Path

import cutlass
import cutlass.cute as cute
import numpy as np
import torch
from flash_attn.cute import utils
from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch

TOKENS = {tokens}
BLOCK_SIZE = ({block_q}, {block_kv})
CAPTURED = {names}


@cute.jit
def mask_mod(batch, head, q_idx, kv_idx, seqlen_info, aux_tensors):
{captured}    q = utils.ssa_to_scalar(q_idx)
    k = utils.ssa_to_scalar(kv_idx)
    seen = (
        {expression}
    )
    return utils.scalar_to_ssa(seen, cutlass.Boolean)


{load_tables}


def block_sparse_tensors(tables, direction):
    names = ("mask_block_cnt", "mask_block_idx", "full_block_cnt", "full_block_idx")
    found = {{name: tables[direction + "." + name] for name in names}}
    return BlockSparseTensorsTorch(**found, block_size=BLOCK_SIZE)


def attention_arguments(device="cuda"):
    tables = load_tables(device)
    return dict(
        mask_mod=mask_mod,
        aux_tensors=[tables[name] for name in CAPTURED] or None,
        block_sparse_tensors=block_sparse_tensors(tables, "forward"),
        block_sparse_tensors_bwd=block_sparse_tensors(tables, "backward"),
    )
'''


def to_flash4(slabs: Slabs, config: ExportConfig) -> Export:
    """Write ``forward.*`` and ``backward.*`` tables, the tables of `mask_mod`, and the source.

    Raises:
        ExchangeError: X304 if the tables become too large.
    """
    forward, backward = build_block_tables(slabs, config.block_q, config.block_kv)
    predicate = build_mask_mod(slabs)
    names = list(predicate.tables)
    reads = {name: f"aux_tensors[{index}]" for index, name in enumerate(names)}
    source = _FLASH4_TEMPLATE.format(
        **_filled(slabs, config, reads, "cuda"), names=names, expression=predicate.expression
    )
    arrays = {**_named("forward", forward), **_named("backward", backward), **predicate.tables}
    return Export("flash4", slabs.num_tokens, arrays, _values(config, predicate), source)


def _named(direction: str, tables: BlockTables) -> dict[str, Indices]:
    return {
        f"{direction}.mask_block_cnt": tables.partial_num[None, None],
        f"{direction}.mask_block_idx": tables.partial_idx[None, None],
        f"{direction}.full_block_cnt": tables.full_num[None, None],
        f"{direction}.full_block_idx": tables.full_idx[None, None],
    }
