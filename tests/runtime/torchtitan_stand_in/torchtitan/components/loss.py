"""Stands in for torchtitan: a summed loss, divided by a count, in chunks of equal length."""

from dataclasses import dataclass, field

from torch.nn import functional
from torchtitan.protocols.module import Configurable

IGNORE_INDEX = -100


class CrossEntropyLoss(Configurable):
    @dataclass(kw_only=True)
    class Config(Configurable.Config):
        pass

    def __init__(self, config):
        pass

    def __call__(self, pred, labels, global_valid_tokens):
        losses = functional.cross_entropy(
            pred.flatten(end_dim=-2), labels.flatten(), reduction="sum", ignore_index=IGNORE_INDEX
        )
        return losses / global_valid_tokens, {}


class ChunkedLossWrapper(Configurable):
    @dataclass(kw_only=True)
    class Config(Configurable.Config):
        num_chunks: int = 8
        loss_fn: CrossEntropyLoss.Config = field(default_factory=CrossEntropyLoss.Config)

    def __init__(self, config):
        self.num_chunks, self.loss_fn = config.num_chunks, config.loss_fn.build()

    def __call__(self, hidden, labels, global_valid_tokens):
        assert labels.shape[-1] % self.num_chunks == 0, "chunks must be equally long"
        parts = hidden.chunk(self.num_chunks, -2), labels.chunk(self.num_chunks, -1)
        return sum(
            self.loss_fn(self.lm_head(part), own, global_valid_tokens)[0]
            for part, own in zip(*parts, strict=True)
        ), {}
