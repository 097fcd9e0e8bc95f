"""A small GPT with rotary positions, grouped queries, RMSNorm and SwiGLU.

The attention is an argument of the forward pass, so that any implementation can be used.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import nn
from torch.nn import functional

Attention: TypeAlias = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]
"""Layer, q ``[T, Hq, D]`` and kv ``[T, 2, Hkv, D]`` in, out ``[T, Hq, D]``."""


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of the model; the defaults train on a laptop's CPU."""

    layers: int = 4
    width: int = 128
    q_heads: int = 4
    kv_heads: int = 2
    vocabulary: int = 256
    rope_base: float = 10_000.0

    @property
    def head_dim(self) -> int:
        """Size of one head."""
        return self.width // self.q_heads


class SelfAttention(nn.Module):
    """Projections and rotary positions around the attention that the caller gives."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.config, self.layer = config, layer
        kv_width = 2 * config.kv_heads * config.head_dim
        self.to_q = nn.Linear(config.width, config.width, bias=False)
        self.to_kv = nn.Linear(config.width, kv_width, bias=False)
        self.to_out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: torch.Tensor, positions: torch.Tensor, attend: Attention) -> torch.Tensor:
        """Return ``[T, width]`` for ``[T, width]``."""
        config = self.config
        q = self.to_q(x).view(-1, config.q_heads, config.head_dim)
        kv = self.to_kv(x).view(-1, 2, config.kv_heads, config.head_dim)
        q = rotate(q, positions, config.rope_base)
        kv = torch.stack([rotate(kv[:, 0], positions, config.rope_base), kv[:, 1]], dim=1)
        return self.to_out(attend(self.layer, q, kv).flatten(1))


def rotate(x: torch.Tensor, positions: torch.Tensor, base: float) -> torch.Tensor:
    """Turn pairs of features of ``[T, H, D]`` by angles that grow with the position."""
    half = x.shape[-1] // 2
    rates = base ** (-torch.arange(half, device=x.device) / half)
    angles = positions[:, None, None] * rates
    cos, sin = angles.cos(), angles.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1).to(x.dtype)


class Block(nn.Module):
    """Attention and a gated feed-forward part, each behind a norm and beside a residual path."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        hidden = config.width * 8 // 3 // 32 * 32
        self.norm_attention = nn.RMSNorm(config.width)
        self.attention = SelfAttention(config, layer)
        self.norm_mlp = nn.RMSNorm(config.width)
        self.gate_and_up = nn.Linear(config.width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, config.width, bias=False)

    def forward(self, x: torch.Tensor, positions: torch.Tensor, attend: Attention) -> torch.Tensor:
        """Return ``[T, width]`` for ``[T, width]``."""
        x = x + self.attention(self.norm_attention(x), positions, attend)
        gate, up = self.gate_and_up(self.norm_mlp(x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


class GPT(nn.Module):
    """Map tokens of a packed batch to logits; only attention looks at other tokens."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.norm = nn.RMSNorm(config.width)
        self.to_logits = nn.Linear(config.width, config.vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attention
    ) -> torch.Tensor:
        """Return logits ``[T, vocabulary]`` for tokens ``[T]`` at their positions ``[T]``."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, positions, attend)
        return self.to_logits(self.norm(x))
