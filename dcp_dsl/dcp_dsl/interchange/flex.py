"""FlexAttention: block tables for `BlockMask.from_kv_blocks` and the source of a `mask_mod`.

Source: documentation of torch.nn.attention.flex_attention.BlockMask.
"""

from textwrap import indent

from dcp_dsl.forms.slabs import Slabs
from dcp_dsl.interchange.block_tables import build_block_tables
from dcp_dsl.interchange.export import Export, ExportConfig
from dcp_dsl.interchange.mask_mod import MaskMod, build_mask_mod

_TEMPLATE = '''"""FlexAttention mask `{title}` on {tokens} tokens.

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


def load_tables(device="cpu"):
    with np.load(Path(__file__).with_suffix(".npz"), allow_pickle=False) as file:
        names = [name for name in file.files if not name.startswith("__")]
        return {{name: torch.from_numpy(file[name]).to(device) for name in names}}


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
    source = _TEMPLATE.format(
        title=plain_title(config.title),
        tokens=slabs.num_tokens,
        block_q=config.block_q,
        block_kv=config.block_kv,
        captured=captured(predicate, "tables[{!r}]"),
        expression=predicate.expression.replace("\n", "\n    "),
    )
    values = {"block_q": config.block_q, "block_kv": config.block_kv, "form": predicate.form}
    return Export("flex", slabs.num_tokens, arrays, values, source)


def captured(predicate: MaskMod, pattern: str) -> str:
    """Write one line per table that the predicate reads."""
    lines = [f"{name} = {pattern.format(name)}\n" for name in predicate.tables]
    return indent("".join(lines), "    ") + ("\n" if lines else "")


def plain_title(title: str) -> str:
    """Make a title harmless inside a docstring: it is a person's text, not ours."""
    kept = "".join(c if c.isprintable() and c not in '"\\' else " " for c in title)
    return " ".join(kept.split())[:200]
