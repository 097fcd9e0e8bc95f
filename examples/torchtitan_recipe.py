"""Train with torchtitan under dcp-dsl masks: with its FlexAttention, or with our attention.

These are config functions for torchtitan 0.3:

    torchrun ... -m torchtitan.train --module torchtitan_recipe --config llama3_flex
    torchrun ... -m torchtitan.train --module torchtitan_recipe --config llama3_dcp

`llama3_flex` keeps torchtitan's data, kernels and gathering of keys; only the shares of the ranks
and the masks change. `llama3_dcp` takes batches from `DCPDataloader` and moves only the keys that
are needed; it needs torchtitan.patch, beside this file. All ranks share one batch, without data
parallelism.
"""

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor.experimental._attention import _context_parallel_shard
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.protocols.module import Module
from torchtitan.trainer import Trainer

from dcp_dsl import Sample, load, read_dataset
from dcp_planner import ModelShape
from dcp_runtime import (
    DCPAttn,
    DCPDataloader,
    DCPExecutor,
    DCPLoadBalancer,
    LayerPlans,
    Packing,
    Planning,
    RunError,
)


class FlexTrainer(Trainer):
    """Cuts torchtitan's batches into shares that are balanced under every mask of the model."""

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        """Masks of rows with a column ``doc_lens``.

        Attributes:
            spec: path of the file with the masks.
            masks: masks by the names under which the model looks them up; ``{"": mask}`` for a
                model that takes one mask without a name.
        """

        spec: str = "train.dcpm"
        masks: dict[str, str] = field(default_factory=lambda: {"": "packed"})

    def post_dataloading_process(
        self, input_dict: dict[str, torch.Tensor], labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Return this rank's share of inputs, labels and positions, and its masks."""
        tokens, positions = input_dict["input"], input_dict["positions"]
        mesh, spec = self.parallel_dims.get_mesh("cp"), load(self.config.spec)
        masks, rows = [spec.mask(name) for name in self.config.masks.values()], []
        for starts in (positions == 0).cpu():
            ends = [*np.flatnonzero(starts), tokens.shape[1]]
            sample = Sample({"doc_lens": np.diff(ends).tolist()}, tokens.shape[1])
            rows.append([mask.bind(sample) for mask in masks])
        balancer = DCPLoadBalancer(rows, mesh, tokens.shape[1])
        shares = _context_parallel_shard(mesh, (tokens, labels, positions), (1, 1, 1), balancer)
        found = {name: balancer.block_mask(at) for at, name in enumerate(self.config.masks)}
        self.ntokens_seen += shares[1].numel()
        return (*shares[:2], {"positions": shares[2], "attention_masks": found.get("", found)})


class DCPAttention(Module):
    """The inner attention of a layer, which gets its plan in the place of a mask."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        """Number of the layer, from 0."""

        layer: int

    moves_keys = True

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.layer = config.layer

    def forward(
        self,
        q_BLNH: torch.Tensor,
        k_BLNH: torch.Tensor,
        v_BLNH: torch.Tensor,
        *,
        attention_masks: LayerPlans,
        scale: float | None = None,
        out_transform: Any = None,
        **_: Any,
    ) -> torch.Tensor:
        """Return out ``[1, T_local, Hq, D]`` of q, k, v in the same layout."""
        sinks = getattr(getattr(out_transform, "__self__", None), "sinks", None)  # of GPT-OSS
        if out_transform is not None and sinks is None:
            raise RunError(
                f"layer {self.layer}: no plan computes {out_transform}; use llama3_flex, whose "
                "attention is torchtitan's"
            )
        plan = attention_masks.of(self.layer)
        q, k, v = q_BLNH[0], k_BLNH[0], v_BLNH[0]
        return DCPAttn.apply(plan, q, (k, v), softmax_scale=scale, sinks=sinks)[None]


class DCPBatches(BaseDataLoader):
    """Batches of `DCPDataloader` in the form that the trainer takes."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """Settings of the loader.

        Attributes:
            spec: path of the file with the masks of the rows under ``dataset_path``.
            token_budget: most tokens of a batch.
            heads: query heads, key heads and their size.
        """

        spec: str = "train.dcpm"
        token_budget: int = 131_072
        heads: tuple[int, int, int] = (32, 8, 128)

    def __init__(self, config: Config, **_: Any) -> None:
        planning = Planning(ModelShape(*config.heads))
        rows, packing = read_dataset(config.dataset_path), Packing(config.token_budget)
        self.loader = DCPDataloader(rows, load(config.spec), packing, planning=planning)
        self.state_dict, self.load_state_dict = self.loader.state_dict, self.loader.load_state_dict

    def __iter__(self) -> Any:
        for data, plan in self.loader:
            yield {"input": data.tokens[None], "data": data, "plan": plan}, data.labels[None]


class DCPTrainer(Trainer):
    """Gives every call of the model the plans of its batch."""

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        """The same as the trainer's."""

    executor: DCPExecutor | None = None

    def forward_backward_step(
        self, *, input_dict: dict[str, Any], labels: torch.Tensor, global_valid_tokens: torch.Tensor
    ) -> torch.Tensor:
        """Run a batch; its loss is divided by the targets of the step on all ranks."""
        mesh = self.parallel_dims.get_mesh("cp")
        if self.executor is None:
            self.executor = DCPExecutor(mesh)
        data = input_dict["data"]
        # torchtitan expects whole batches on each rank, so it counted this rank's targets alone.
        unlabelled = len(data.target_ids) - int(data.loss_mask.sum())
        counts = torch.stack(
            [global_valid_tokens, torch.full_like(global_valid_tokens, unlabelled)]
        )
        dist.all_reduce(counts, group=mesh.get_group())  # also so that all ranks refuse a batch
        targets, missing = counts
        if missing:
            raise RunError(
                f"expected one target per token, which is all that torchtitan's loss takes, got "
                f"{int(missing)} more targets in a batch of rows {str(data.rows)[:40]}: their "
                "layout has branches, and the token in front of branches predicts the first token "
                "of each; give rows without branches, or use next_token_loss in a loop of your own"
            )
        self.ntokens_seen += labels.numel()
        layers = LayerPlans.prepare(self.executor, input_dict["plan"])
        positions = data.position_ids[None].to(labels.device)
        passed = {"positions": positions, "attention_masks": layers}
        return self.fwd_bwd_fn(input_dict["input"], labels, targets, passed)


def use_dcp(model: Any) -> Any:
    """Let every layer of a model's config attend under plans."""
    for number, layer in enumerate(model.layers):
        layer.attention.inner_attention = DCPAttention.Config(layer=number)
    return model


def llama3_flex() -> FlexTrainer.Config:
    """Llama 3 of 8B parameters with FlexAttention."""
    from torchtitan.models.llama3 import config_registry, model_registry

    base = config_registry.llama3_8b()
    base.model_spec = model_registry("8B", attn_backend="flex")
    return _as(FlexTrainer.Config, base)


def llama3_dcp() -> DCPTrainer.Config:
    """Llama 3 of 8B parameters with our attention and loader."""
    from torchtitan.models.llama3 import config_registry

    base = config_registry.llama3_8b()
    use_dcp(base.model_spec.model)
    base.dataloader = DCPBatches.Config(dataset_path="rows.parquet")
    return _as(DCPTrainer.Config, base)


def _as(kind: Any, base: Trainer.Config) -> Any:
    base.parallelism.spmd_backend = "partial_dtensor"  # the others gather keys by declaration
    names = (f.name for f in fields(base) if f.init)
    return kind(**{name: getattr(base, name) for name in names})
