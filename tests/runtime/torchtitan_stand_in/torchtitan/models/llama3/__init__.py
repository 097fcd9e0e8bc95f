"""Stands in for torchtitan: a decoder that hands masks and positions to its layers."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torchtitan.models.common.attention import FlexAttention
from torchtitan.protocols.module import Module

WIDTH, HEADS, VOCABULARY = 64, 4, 2048


class Attention(Module):
    @dataclass(kw_only=True)
    class Config(Module.Config):
        inner_attention: Any = field(default_factory=FlexAttention.Config)

    def __init__(self, config):
        super().__init__()
        self.qkv, self.wo = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.inner_attention = config.inner_attention.build()

    def forward(self, x, attention_masks, positions):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).unbind(2)
        angle = positions[..., None, None] / 100 ** torch.linspace(0, 1, WIDTH // HEADS)
        q, k = q + angle.sin(), k + angle.sin()  # rows know their positions
        out = self.inner_attention(
            q, k, v, attention_masks=attention_masks, scale=None, enable_gqa=False
        ).contiguous()
        return self.wo(out.flatten(2))


class Layer(Module):
    @dataclass(kw_only=True)
    class Config(Module.Config):
        attention: Any = field(default_factory=Attention.Config)

    def __init__(self, config):
        super().__init__()
        self.attention = config.attention.build()

    def forward(self, x, attention_masks, positions):
        return x + self.attention(x, attention_masks, positions)


class Decoder(Module):
    @dataclass(kw_only=True)
    class Config(Module.Config):
        layers: list = field(default_factory=lambda: [Layer.Config() for _ in range(2)])

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
        return self.lm_head(h)


def model_registry(flavor, attn_backend):
    return SimpleNamespace(model=Decoder.Config())
