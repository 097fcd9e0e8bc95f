"""Train with torchtitan under dcp-dsl masks: with its FlexAttention, or with our attention.

These are config functions for torchtitan 0.3 and for its main branch of August 2026:

    torchrun ... -m torchtitan.train --module torchtitan_recipe --config llama3_flex
    torchrun ... -m torchtitan.train --module torchtitan_recipe --config llama3_dcp

`llama3_flex` keeps torchtitan's data, kernels and gathering of keys; only the shares of the ranks
and the masks change. `llama3_dcp` takes batches from `DCPDataloader` and moves only the keys that
are needed. Context-parallel ranks share a batch; with `llama3_dcp` data-parallel ranks have others.
"""

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor.experimental._attention import _context_parallel_shard
from torch.nn.functional import pad
from torchtitan.components.loss import IGNORE_INDEX
from torchtitan.models.common.attention import FlexAttention
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

try:
    from torchtitan.components.data.loader import BaseDataLoader

    TOKENS, CONTEXT = 0, "max_context_length"  # dim of tokens, and the name of their largest number
except ImportError:  # 0.3 has rows of tokens, [B, T]
    from torchtitan.components.dataloader import BaseDataLoader

    TOKENS, CONTEXT = 1, "seq_len"

TOKEN_WISE = {
    "torch": "Linear Embedding LayerNorm RMSNorm GELU CheckpointWrapper Module",
    "torchtitan": "Decoder Embedding Llama3TransformerBlock Qwen3TransformerBlock "
    "DeepSeekV3TransformerBlock GptOssTransformerBlock GQAttention Attention RoPE QKVLinear "
    "FusedQKVLinear FlexAttention FeedForward MoE RoutedExperts GroupedExperts "
    "GptOssGroupedExperts TokenChoiceTopKRouter ScaledBiasRowwiseLinear",
    __name__: "DCPAttention",
}
"""Classes, by package, whose code treats every token alone, but for attention; add your own."""


def check_model(model: torch.nn.Module) -> None:
    """Refuse modules that may mix tokens outside attention: a rank holds some of the tokens."""
    for name, module in model.named_modules():
        code = next(kind for kind in type(module).__mro__ if "forward" in vars(kind))
        if code.__name__ not in TOKEN_WISE.get(code.__module__.partition(".")[0], "").split():
            raise RunError(
                f"{name}: expected a module that treats every token alone, or attention, got "
                f"{code.__name__}; models with linear attention, convolutions over tokens or "
                "multi-token prediction cannot run on shares of the tokens; if this class treats "
                "every token alone, add it to TOKEN_WISE"
            )


def check_config(config: Any, plain: dict[str, Any]) -> None:
    """Refuse settings other than `plain`, by their names on the command line."""
    for name, wanted in plain.items():
        found = config
        for part in name.split("."):
            found = getattr(found, part)
        if found != wanted:
            raise RunError(
                f"{type(config).__qualname__}: expected --{name} {wanted}, got {found}; no plan or "
                "balancer knows what it adds"
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

    def __init__(self, config: Config) -> None:
        # torchtitan's validation would take its own masks and its own shares.
        check_config(config, {"validator.enable": False})
        super().__init__(config)
        check_model(self.model_parts[0])

    def post_dataloading_process(
        self, input_dict: dict[str, torch.Tensor], labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Return this rank's share of inputs, labels and positions, and its masks."""
        tokens, positions = input_dict["input"], input_dict["positions"]
        mesh, spec = self.parallel_dims.get_mesh("cp"), load(self.config.spec)
        masks, rows = [spec.mask(name) for name in self.config.masks.values()], []
        length = tokens.shape[-1]
        for starts in (positions.reshape(-1, length) == 0).cpu():
            # The batch may begin inside a document.
            ends = np.union1d(np.flatnonzero(starts), [0, length])
            sample = Sample({"doc_lens": np.diff(ends).tolist()}, length)
            rows.append([mask.bind(sample) for mask in masks])
        balancer = DCPLoadBalancer(rows, mesh, length)
        shares = _context_parallel_shard(mesh, (tokens, labels, positions), (TOKENS,) * 3, balancer)
        found = {name: balancer.block_mask(at) for at, name in enumerate(self.config.masks)}
        self.ntokens_seen += shares[1].numel()
        return (*shares[:2], {"positions": shares[2], "attention_masks": found.get("", found)})


@dataclass
class Plans:
    """The plans of a batch; on a rank without tokens a row stands in for one."""

    layers: LayerPlans
    is_empty: bool


class DCPAttention(FlexAttention):
    """The inner attention of a layer, which gets its plan in the place of a mask."""

    @dataclass(kw_only=True, slots=True)
    class Config(FlexAttention.Config):
        """Number of the layer, from 0."""

        layer: int

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.layer = config.layer

    # The plan moves the keys that other ranks need, so torchtitan need not gather all of them: it
    # would by this method, and 0.3 by another `forward`.
    def parallelize(self, parallel_dims: Any) -> None:
        """Keep local tensors."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "forward":
            super().__setattr__(name, value)

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        attention_masks: Plans,
        scale: float | None = None,
        out_transform: Any = None,
        enable_gqa: bool = False,
        **others: Any,
    ) -> torch.Tensor:
        """Return out ``[T_local, Hq, D]`` of q, k, v in the same layout; 0.3 has ``[1, ...]``."""
        if not isinstance(attention_masks, Plans):
            raise RunError(
                f"layer {self.layer}: expected the plans of a batch of DCPBatches, got "
                f"{type(attention_masks).__name__}; train with DCPTrainer, and evaluate with a "
                "config that keeps FlexAttention"
            )
        sinks = getattr(getattr(out_transform, "__self__", None), "sinks", None)  # of GPT-OSS
        changes = [out_transform] if sinks is None else []
        for change in (*changes, *others.values()):
            if change is not None:
                raise RunError(
                    f"layer {self.layer}: no plan computes {change}; use llama3_flex, whose "
                    "attention is torchtitan's"
                )
        own = [x.reshape(-1, *x.shape[-2:]) for x in (q, k, v)]
        if attention_masks.is_empty:
            own = [x[:0] for x in own]
        plan = attention_masks.layers.of(self.layer)
        out = DCPAttn.apply(plan, own[0], (own[1], own[2]), softmax_scale=scale, sinks=sinks)
        out = pad(out, (0, 0, 0, 0, 0, 1)) if attention_masks.is_empty else out
        return out.reshape(*q.shape[:-1], out.shape[-1])


class DCPBatches(BaseDataLoader):
    """Batches of `DCPDataloader`, epoch after epoch, in the form that the trainer takes."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """Settings of the loader.

        Attributes:
            rows: path of the data set.
            spec: path of the file with the masks of the rows.
            token_budget: most tokens of a batch.
            heads: query heads, key heads and their size.
        """

        rows: str = "rows.parquet"
        spec: str = "train.dcpm"
        token_budget: int = 131_072
        heads: tuple[int, int, int] = (32, 8, 128)

    def __init__(self, config: Config, *, dp_world_size: int, dp_rank: int, **others: Any) -> None:
        if config.token_budget > others[CONTEXT]:
            raise RunError(
                f"--dataloader.token_budget: expected at most --training.{CONTEXT}, "
                f"{others[CONTEXT]}, the positions that the model has, got {config.token_budget}; "
                "set both to the longest row"
            )
        planning = Planning(ModelShape(*config.heads))
        packing = Packing(config.token_budget, replicas=dp_world_size)
        rows = read_dataset(config.rows)
        self.loader = DCPDataloader(rows, load(config.spec), packing, planning=planning)
        self.replicas, self.replica = dp_world_size, dp_rank

    def state_dict(self) -> dict[str, Any]:
        """Return the state behind the last batch."""
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on behind that batch."""
        self.loader.load_state_dict(state_dict)

    def __iter__(self) -> Any:
        while True:
            for data, plan in self.loader:
                # torchtitan counts the tokens and targets of whole batches, which no rank has: it
                # gets labels of as many tokens, with this replica's share of all targets.
                share = len(range(self.replica, data.num_targets, self.replicas))
                labels = torch.full((max(plan.num_tokens, share),), IGNORE_INDEX)
                labels[:share] = 0
                yield {"input": data.tokens, "data": data, "plan": plan}, labels

    def close(self) -> None:
        """End the planner processes."""
        self.loader.close()


class DCPTrainer(Trainer):
    """Gives every call of the model the plans of its batch."""

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        """The same as the trainer's."""

    executor: DCPExecutor | None = None

    def __init__(self, config: Config) -> None:
        degrees = ("pipeline", "tensor", "expert")
        plain = {f"parallelism.{name}_parallel_degree": 1 for name in degrees}
        plain |= {"training.disable_cuda_graphs": True, "debug.spmd_typechecking": False}
        check_config(config, plain | {"validator.enable": False})
        super().__init__(config)
        check_model(self.model_parts[0])

    def forward_backward_step(
        self, *, input_dict: dict[str, Any], labels: torch.Tensor, global_valid_tokens: torch.Tensor
    ) -> torch.Tensor:
        """Run a batch; its loss is divided by the targets of the step on all ranks."""
        if self.executor is None:
            mesh = self.parallel_dims.get_optional_mesh("cp", include_singleton_axes=True)
            self.executor = DCPExecutor(mesh)
        plans = LayerPlans.prepare(self.executor, input_dict["plan"])
        data = input_dict["data"].to(labels.device)
        # torchtitan saves the number of one rank.
        self.ntokens_seen += input_dict["plan"].num_tokens / input_dict["plan"].num_devices
        is_empty = not len(data.tokens)
        tokens, positions = (pad(x, (0, is_empty)) for x in (data.tokens, data.position_ids))
        # A token may have several targets, under layouts with branches; the chunks of torchtitan's
        # loss are equally long.
        chunks = getattr(self.loss_fn, "num_chunks", 1)
        missing = max(1, -(-len(data.target_rows) // chunks)) * chunks - len(data.target_rows)
        rows = pad(data.target_rows, (0, missing))
        wanted = pad(data.target_ids, (0, missing), value=IGNORE_INDEX)
        if TOKENS:
            tokens, positions, wanted = tokens[None], positions[None], wanted[None]
        model = self.model_parts[0]
        counts = [b for name, b in model.named_buffers() if "tokens_per_expert" in name]
        before = [count.clone() for count in counts] if is_empty else []
        with self.train_context():
            out = model(tokens, positions=positions, attention_masks=Plans(plans, is_empty))
            out = out.index_select(TOKENS, rows)
            loss, _ = self.loss_fn(out, wanted, global_valid_tokens)
            loss.backward()
        for count, old in zip(counts, before, strict=False):
            count.copy_(old)  # a row that stands in is no token of an expert
        return loss

    def close(self) -> None:
        """End the executor, which refuses plans that no layer ran, and what torchtitan made."""
        if self.executor is not None:
            self.executor.close()
        super().close()


def use_dcp(model: Any) -> Any:
    """Let every layer of a model's config attend under plans."""
    for number, layer in enumerate(model.layers):
        if getattr(layer, "attention", None) is None:
            raise RunError(f"layer {number}: expected attention, got {type(layer).__qualname__}")
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
    base.dataloader = DCPBatches.Config()
    setattr(base.training, CONTEXT, base.dataloader.token_budget)
    base.training.disable_cuda_graphs = True  # the numbers of tokens change
    return _as(DCPTrainer.Config, base)


def _as(kind: Any, base: Trainer.Config) -> Any:
    if TOKENS:  # torch up to 2.13 has no FSDP for the other backends of 0.3
        base.parallelism.spmd_backend = "partial_dtensor"
    names = (f.name for f in fields(base) if f.init)
    return kind(**{name: getattr(base, name) for name in names})
