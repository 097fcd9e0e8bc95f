"""Tensors of whole tokens as rows of head groups, and back.

A plan in head groups is executed as a plan of a batch G times as long with a Gth of the heads
(`dcp_planner.expand_head_groups`): the working buffers hold the own tokens with the heads of group
0, then those of group 1, ... Only here, on the way in and out of a layer, does anybody see whole
tokens.
"""

from dataclasses import dataclass

from torch import Tensor

from dcp_planner import ModelShape


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """The cut of a token's heads into groups; with one group tensors stay as they are."""

    shape: ModelShape
    groups: int

    def split_q(self, tensor: Tensor) -> Tensor:
        """Turn ``[T, Hq, ...]`` into ``[G T, Hq / G, ...]``.

        >>> import torch
        >>> x = torch.tensor([[0, 1], [10, 11]])  # two tokens of two heads
        >>> HeadLayout(ModelShape(2, 2, 1), 2).split_q(x).flatten().tolist()
        [0, 10, 1, 11]
        """
        if self.groups == 1:
            return tensor
        each = self.shape.q_heads // self.groups
        heads = tensor.reshape(len(tensor), self.groups, each, *tensor.shape[2:])
        return heads.transpose(0, 1).flatten(0, 1)

    def join_q(self, tensor: Tensor) -> Tensor:
        """Turn ``[G T, Hq / G, ...]`` into ``[T, Hq, ...]``."""
        if self.groups == 1:
            return tensor
        return self._by_group(tensor).transpose(0, 1).flatten(1, 2)

    def split_kv(self, kv: Tensor) -> Tensor:
        """Turn ``[T, ..., Hkv, D]`` into ``[G T, ..., max(1, Hkv / G), D]``.

        KV copies that an earlier group owns are zero.
        """
        if self.groups == 1:
            return kv
        if self._sharing == 1:
            each = self.shape.kv_heads // self.groups
            heads = kv.reshape(*kv.shape[:-2], self.groups, each, kv.shape[-1])
            return heads.movedim(-3, 0).flatten(0, 1)
        expanded = kv.new_zeros(self.groups, *kv.shape[:-2], 1, kv.shape[-1])
        expanded[:: self._sharing] = kv.movedim(-2, 0).unsqueeze(-2)
        return expanded.flatten(0, 1)

    def join_kv(self, kv: Tensor) -> Tensor:
        """Turn ``[G T, ..., max(1, Hkv / G), D]`` into ``[T, ..., Hkv, D]``."""
        if self.groups == 1:
            return kv
        return self._by_group(kv)[:: self._sharing].movedim(0, -3).flatten(-3, -2)

    @property
    def _sharing(self) -> int:
        """Groups that read the same key/value head."""
        return max(1, self.groups // self.shape.kv_heads)

    def _by_group(self, tensor: Tensor) -> Tensor:
        return tensor.reshape(self.groups, len(tensor) // self.groups, *tensor.shape[1:])
