"""Seeded random q, k, v and dout, block by block, so that a rank can make its own part alone."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dcp_planner import Plan

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
"""Names of element types, as commands and configurations write them."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Tensors of some blocks of one layer."""

    q: Tensor
    kv: Tensor
    dout: Tensor

    def to(self, device: torch.device) -> "Inputs":
        """Return the same tensors on another device."""
        return Inputs(*(tensor.to(device) for tensor in (self.q, self.kv, self.dout)))


def random_inputs(
    plan: Plan, blocks: list[int], layer: int, seed: int, dtype: torch.dtype
) -> Inputs:
    """Draw the tensors of some blocks; a block's values depend on the arguments alone."""
    shape = plan.shape
    per_token = {
        "q": (shape.q_heads, shape.head_dim),
        "kv": (2, shape.kv_heads, shape.head_dim),
        "dout": (shape.q_heads, shape.head_dim),
    }
    parts: dict[str, list[Tensor]] = {
        name: [torch.empty(0, *size, dtype=dtype)] for name, size in per_token.items()
    }
    for block in blocks:
        rng = np.random.default_rng([seed, layer, block])
        tokens = int(plan.blocks.num_tokens[block])
        for name, size in per_token.items():
            drawn = torch.from_numpy(rng.standard_normal((tokens, *size)))
            parts[name].append(drawn.to(dtype))
    return Inputs(**{name: torch.cat(tensors) for name, tensors in parts.items()})
