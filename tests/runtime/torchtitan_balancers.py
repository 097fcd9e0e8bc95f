"""Stands for torchtitan's configurable balancers, and for how its decoder uses them.

Pinned: pytorch/torchtitan, commit 0497bf4a, `distributed/context_parallel.py`; the call of
`build` is that of `Decoder._cp_shard`, the masks of ranks that of `cp_attention.py` near it. The
sequence is folded to [T]; keys and values are gathered, queries are not.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch.distributed as dist
from torch.nn.attention import flex_attention as flex


class Configurable:
    @dataclass(kw_only=True, slots=True)
    class Config:
        _owner: ClassVar[type | None] = None

        def build(self, **kwargs):
            return self._owner(config=replace(self), **kwargs)

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "Config" in cls.__dict__:
            assert "__slots__" in cls.Config.__dict__
            cls.Config._owner = cls


class ContextParallelLoadBalancer(Configurable, ABC):
    @abstractmethod
    def generate_permutation(self):
        raise NotImplementedError


def cp_shard(config, tensors, masks, group):
    """Cut tensors [T, ...] and masks for this rank, as `_cp_shard` does; return the order, too."""
    tokens, ranks, rank = len(tensors[0]), group.size(), dist.get_rank(group)
    permutation = config.build(seq_len=tokens, attention_metadata=masks).generate_permutation()
    assert permutation.shape == (1, tokens)
    share = tokens // ranks
    own = permutation[0, rank * share : (rank + 1) * share]
    local = {name: prepare_cp_metadata(mask, permutation, group) for name, mask in masks.items()}
    return [tensor[own] for tensor in tensors], local, permutation


def prepare_cp_metadata(mask, permutation, group):
    """Return the mask of this rank's queries against all keys, both in the new order."""
    tokens, _ = mask.seq_lengths
    share, first = tokens // group.size(), dist.get_rank(group) * (tokens // group.size())

    def local(b, h, q, k):
        return mask.mask_mod(b, h, permutation[0][q + first], permutation[0][k])

    return flex.create_block_mask(local, 1, 1, share, tokens, "cpu", BLOCK_SIZE=mask.BLOCK_SIZE)
