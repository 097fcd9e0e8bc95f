"""Stands in for torchtitan: a trainer with the counts and sums of its steps.

Batches are whole on every context-parallel rank: their labels tell how many targets a step has.
"""

from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torchtitan.components.loss import IGNORE_INDEX, ChunkedLossWrapper
from torchtitan.models.common.attention import gathering
from torchtitan.protocols.module import Configurable, Module

IS_LATER = find_spec("torchtitan.components.data") is not None
"""Whether this stands in for torchtitan after 0.3."""


def training():
    return SimpleNamespace(
        disable_cuda_graphs=False, max_norm=1.0, local_batch_size=1, global_batch_size=1,
        num_tokens_per_microbatch_per_dp_rank=1, num_tokens_per_train_step=1, seq_len=2048,
        max_context_length=2048,
    )  # fmt: skip


def parallelism():
    names = ("pipeline", "tensor", "expert", "context")
    found = {f"{name}_parallel_degree": 1 for name in names}
    return SimpleNamespace(**found, spmd_backend="spmd_types")


def compilation():
    return SimpleNamespace(enable=False, components=[], backend="eager")


class ParallelDims:
    def __init__(self, context_ranks):
        sizes = dist.get_world_size() // context_ranks, context_ranks
        self.mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("batch", "cp"))

    def get_optional_mesh(self, name, *, include_singleton_axes=False):
        return self.mesh[name]

    get_mesh = get_optional_mesh


class Trainer(Configurable):
    @dataclass(kw_only=True)
    class Config(Configurable.Config):
        model_spec: Any = None
        dataloader: Any = None
        loss: Any = None
        training: Any = field(default_factory=training)
        parallelism: Any = field(default_factory=parallelism)
        validator: Any = field(default_factory=lambda: SimpleNamespace(enable=False))
        compile: Any = field(default_factory=compilation)
        debug: Any = field(default_factory=lambda: SimpleNamespace(spmd_typechecking=False))

    def __init__(self, config):
        self.config, self.step, self.ntokens_seen = config, 0, 0
        self.train_context, self.device = nullcontext, torch.device("cpu")
        self.metrics_processor = SimpleNamespace(ntokens_since_last_log=0)
        self.parallel_dims = ParallelDims(config.parallelism.context_parallel_degree)
        torch.manual_seed(0)
        model = config.model_spec.model.build()
        for module in model.modules() if IS_LATER else ():
            if isinstance(module, Module):
                module.parallelize(self.parallel_dims)
        for name, layer in model.layers.items():
            attention = layer.attention.inner_attention
            if not IS_LATER:
                attention.forward = gathering(attention.forward, self.parallel_dims.get_mesh("cp"))
            if config.compile.enable:
                layer.compile(backend=config.compile.backend, fullgraph=True)
            else:
                model.layers[name] = checkpoint_wrapper(layer)
        self.model_parts, self.loss_fn = [model], config.loss.build()
        if isinstance(self.loss_fn, ChunkedLossWrapper):
            self.loss_fn.lm_head, model._skip_lm_head = model.lm_head, True
        self.batch_mesh = self.parallel_dims.get_mesh("batch")
        sizes, ranks = config.training, self.batch_mesh.size()
        steps = sizes.global_batch_size // (sizes.local_batch_size * ranks)
        tokens = sizes.num_tokens_per_microbatch_per_dp_rank * ranks
        self.gradient_accumulation_steps = max(steps, sizes.num_tokens_per_train_step // tokens)
        self.dataloader = config.dataloader and config.dataloader.build(
            dp_world_size=ranks, dp_rank=self.batch_mesh.get_local_rank(), tokenizer=None,
            seq_len=sizes.seq_len, max_context_length=sizes.max_context_length,
        )  # fmt: skip

    def batch_generator(self, loader):
        for input_dict, labels in loader:
            self.metrics_processor.ntokens_since_last_log += labels.numel()
            yield input_dict, labels

    def train_step(self, data_iterator):
        """Accumulate, sum over ranks as FSDP does, and clip; the gradients stay."""
        parameters = list(self.model_parts[0].parameters())
        for parameter in parameters:
            parameter.grad = None
        batches = [next(data_iterator) for _ in range(self.gradient_accumulation_steps)]
        targets = sum((labels != IGNORE_INDEX).sum() for _, labels in batches)
        dist.all_reduce(targets, group=self.batch_mesh.get_group())
        for input_dict, labels in batches:
            self.forward_backward_step(
                input_dict=input_dict, labels=labels, global_valid_tokens=targets
            )
        for parameter in parameters:
            dist.all_reduce(parameter.grad)
        torch.nn.utils.clip_grad_norm_(parameters, self.config.training.max_norm)

    def forward_backward_step(self, *, input_dict, labels, global_valid_tokens):
        inputs, labels, others = self.post_dataloading_process(input_dict, labels)
        with self.train_context():
            pred = self.model_parts[0](inputs, **others)
            loss, _ = self.loss_fn(pred, labels, global_valid_tokens)
            loss.backward()
        return loss

    def close(self):
        pass
