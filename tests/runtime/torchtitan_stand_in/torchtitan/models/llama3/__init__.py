"""Stands in for torchtitan: a decoder that hands masks and positions to its layers."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torchtitan.models.common.attention import FlexAttention
from torchtitan.protocols.module import Module

WIDTH, HEADS, VOCABULARY = 64, 4, 2048


class GQAttention(Module):
    @dataclass(kw_only=True)
    class Config(Module.Config):
        inner_attention: Any = field(default_factory=FlexAttention.Config)

    def __init__(self, config):
        super().__init__()
        self.qkv, self.wo = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.inner_attention = config.inner_attention.build()

    def forward(self, x, attention_masks, positions):
        # One size is left open, which no tensor without elements can fill.
        q, k, v = self.qkv(x).view(*x.shape[:-1], 3, -1, WIDTH // HEADS).unbind(-3)
        angle = positions[..., None, None] / 100 ** torch.linspace(0, 1, WIDTH // HEADS)
        q, k = q + angle.sin(), k + angle.sin()  # rows know their positions
        out = self.inner_attention(
            q, k, v, attention_masks=attention_masks, scale=None, enable_gqa=False
        ).contiguous()
        return self.wo(out.flatten(-2))


class MoE(Module):
    """Counts tokens, as those of experts are counted."""

    def __init__(self):
        super().__init__()
        self.register_buffer("tokens_per_expert_E", torch.zeros(1), persistent=False)
        self.gate = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        with torch.no_grad():
            self.tokens_per_expert_E.add_(x.shape[:-1].numel())
        return self.gate(x)


class Llama3TransformerBlock(Module):
    @dataclass(kw_only=True)
    class Config(Module.Config):
        attention: Any = field(default_factory=GQAttention.Config)

    def __init__(self, config):
        super().__init__()
        self.attention, self.moe = config.attention.build(), MoE()

    def forward(self, x, attention_masks, positions):
        x = x + self.attention(x, attention_masks, positions)
        return x + self.moe(x)


class Decoder(Module):
    _skip_lm_head = False

    @dataclass(kw_only=True)
    class Config(Module.Config):
        layers: list = field(default_factory=lambda: [Llama3TransformerBlock.Config()] * 2)

    def __init__(self, config):
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        layers = ((str(number), layer.build()) for number, layer in enumerate(config.layers))
        self.layers = nn.ModuleDict(dict(layers))
        self.lm_head = nn.Linear(WIDTH, VOCABULARY)

    def init_states(self):
        pass

    def forward(self, tokens, positions=None, attention_masks=None):
        h = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            h = layer(h, attention_masks, positions)
        return h if self._skip_lm_head else self.lm_head(h)


def model_registry(flavor, attn_backend):
    layers = [Llama3TransformerBlock.Config() for _ in range(2)]
    return SimpleNamespace(model=Decoder.Config(layers=layers))
