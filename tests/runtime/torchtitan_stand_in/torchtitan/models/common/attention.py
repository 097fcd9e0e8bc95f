"""Stands in for torchtitan: FlexAttention on [B, T, N, H], or [T, N, H] after 0.3."""

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.tensor.experimental._context_parallel._attention import flex_cp_allgather
from torch.nn.attention.flex_attention import flex_attention
from torchtitan.protocols.module import Module


class FlexAttention(Module):
    _compiled_flex_attn = None  # the tests put the function that is not compiled here

    @dataclass(kw_only=True)
    class Config(Module.Config):
        kernel_options: dict | None = None

    def __init__(self, config):
        super().__init__()

    def parallelize(self, parallel_dims):
        self.forward = gathering(self.forward, parallel_dims.get_mesh("cp"))

    def forward(self, q, k, v, *, attention_masks, scale=None, enable_gqa=False):
        own = (x.reshape(-1, *x.shape[-3:]).transpose(1, 2) for x in (q, k, v))
        out = flex_attention(*own, block_mask=attention_masks, scale=scale, enable_gqa=enable_gqa)
        return out.transpose(1, 2).reshape(q.shape)


def gathering(forward, mesh):
    name = dist._get_process_group_name(mesh.get_group())

    def gathered(q, k, v, **others):
        keys = flex_cp_allgather(k.contiguous(), v.contiguous(), k.ndim - 3, name)
        return forward(q, *keys, **others)

    return gathered
