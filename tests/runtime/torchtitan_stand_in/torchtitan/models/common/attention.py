"""Stands in for torchtitan: FlexAttention on [B, L, N, H]."""

from dataclasses import dataclass

from torch.nn.attention.flex_attention import flex_attention
from torchtitan.protocols.module import Module


class FlexAttention(Module):
    _compiled_flex_attn = None  # the tests put the function that is not compiled here

    @dataclass(kw_only=True)
    class Config(Module.Config):
        pass

    def __init__(self, config):
        super().__init__()

    def forward(self, q, k, v, *, attention_masks, scale=None, enable_gqa=False):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out = flex_attention(
            q, k, v, block_mask=attention_masks, scale=scale, enable_gqa=enable_gqa
        )
        return out.transpose(1, 2)
