"""Stands in for torchtitan: gathers keys before FlexAttention, refuses other attention."""

import torch.distributed as dist
from torch.distributed.tensor.experimental._context_parallel._attention import flex_cp_allgather
from torchtitan.models.common.attention import FlexAttention


def apply_cp_to_forward(attention_modules, cp_mesh):
    name = dist._get_process_group_name(cp_mesh.get_group())
    first = attention_modules[0]
    if isinstance(first, FlexAttention):
        for mod in attention_modules:
            mod.forward = gathering(mod.forward, name)
    else:
        raise NotImplementedError(type(first).__name__)


def gathering(forward, name):
    def gathered(q, k, v, **others):
        return forward(q, *flex_cp_allgather(k.contiguous(), v.contiguous(), 1, name), **others)

    return gathered
