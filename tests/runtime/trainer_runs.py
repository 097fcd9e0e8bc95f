"""The trainings that test_trainer.py compares: models, rows and options, on ranks and alone."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    Qwen3Config,
    set_seed,
)

from dcp_dsl import Spec
from dcp_runtime import register_dcp

SPEC = Spec.from_text(
    "segment s = question[question] answer[answers]*\n"
    "mask shared = causal and (k in question or same(answer))\n"
    "mask local = causal and q - k < 8\n"
    "mask plain = causal\n"
    "stack one = shared\n"
    "stack two = local, shared\n"
    "stack whole = plain\n"
)
SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 50, "attention_dropout": 0.0, "head_dim": 8,
    "initializer_range": 0.2,
}  # fmt: skip
TWO_MASKS = {
    **SIZES, "num_hidden_layers": 2, "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
EXPERTS = {"num_local_experts": 3, "num_experts_per_tok": 2}
CONFIGS = {
    "llama": (LlamaConfig, SIZES),
    "qwen3": (Qwen3Config, SIZES),
    "gemma_2": (Gemma2Config, TWO_MASKS | {"attn_logit_softcapping": 2.0}),
    "gemma_3": (Gemma3TextConfig, TWO_MASKS),
    "gpt_oss": (GptOssConfig, TWO_MASKS | EXPERTS),
    "mixtral": (
        MixtralConfig,
        SIZES | EXPERTS | {"output_router_logits": True, "router_aux_loss_coef": 0.5},
    ),
}
"""The scores of Gemma 2 are capped, GPT-OSS has sinks."""
BUDGET, NORM, RATE = 48, 0.5, 0.2
ALONE = {
    "num_train_epochs": 1, "gradient_accumulation_steps": 3, "save_strategy": "no",
    "optim": "sgd", "learning_rate": RATE, "max_grad_norm": NORM, "logging_steps": 1,
}  # fmt: skip
"""Options of the trainer, where a run has no others."""


@dataclass(frozen=True)
class Run:
    """A training: options of Hugging Face's trainer, and what the ranks and one process share.

    Attributes:
        packing: options of the loader.
        data: the rows: all, some that do not fit their mask, or a stream of some.
        evaluated: names of the data sets of its evaluation.
    """

    options: dict[str, Any] = field(default_factory=dict)
    model: str = "llama"
    stack: str = "one"
    packing: dict[str, Any] = field(default_factory=dict)
    budget: int = BUDGET
    data: str = "all"
    evaluated: tuple[str, ...] = ()
    has_loss_func: bool = False
    momentum: float = 0.0
    trainer: str = "plain"
    ranks: int = 2


FAMILIES = {
    name: Run(
        {"max_steps": 1, "gradient_accumulation_steps": 1},
        name,
        "two" if "sliding_window" in sizes else "one",
    )
    for name, (_, sizes) in CONFIGS.items()
    if name not in ("llama", "mixtral")
}
ROUTER = {"model": "mixtral", "stack": "whole", "budget": 25}
"""A row a batch: the dense model then needs no mask, which its router's loss would not take."""
EVERY_STEP = {"eval_strategy": "steps", "eval_steps": 1}
UNAFFECTED = {
    "num_train_epochs": 1.5, "average_tokens_across_devices": False, "label_names": ["labels"],
    "dataloader_num_workers": 1, "dataloader_prefetch_factor": 2, "data_seed": 5,
    "dataloader_persistent_workers": True, "dataloader_in_order": False,
    "logging_nan_inf_filter": False, "logging_first_step": True, "logging_steps": 2,
    "optim": "adamw_torch",
    "weight_decay": 0.1, "lr_scheduler_type": "cosine", "warmup_steps": 1, "learning_rate": 0.02,
    "ddp_bucket_cap_mb": 1, "ddp_broadcast_buffers": True, "ddp_find_unused_parameters": False,
    "include_num_input_tokens_seen": "all", "torch_empty_cache_steps": 1, "use_cache": True,
    "per_device_eval_batch_size": 3, "eval_accumulation_steps": 1, "prediction_loss_only": True,
    "eval_strategy": "epoch", "length_column_name": "lengths", "remove_unused_columns": False,
    "accelerator_config": {
        "split_batches": True, "even_batches": False,
        "gradient_accumulation_kwargs": {"sync_each_batch": True},
    },
}  # fmt: skip
FSDP = {"version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}
BEST = {
    "num_train_epochs": 2, "gradient_accumulation_steps": 1, "load_best_model_at_end": True,
    "metric_for_best_model": "eval_a_loss", "save_strategy": "steps", "save_steps": 1,
    "learning_rate": 0.9, **EVERY_STEP,
}  # fmt: skip
RUNS = {
    **FAMILIES,
    "options": Run(UNAFFECTED, evaluated=("a",)),
    "smoothing": Run({"label_smoothing_factor": 0.3, "eval_on_start": True}, evaluated=("a",)),
    "loss_func": Run(packing={"drop_last": True}, has_loss_func=True, trainer="own_loss"),
    "router": Run({"eval_strategy": "epoch"}, data="few", evaluated=("a",), **ROUTER),
    "adapter": Run({"activation_checkpointing": True}, "adapter"),
    "bf16": Run({"bf16": True}),
    "fsdp": Run({"fsdp": True, "fsdp_config": FSDP}),
    "best": Run(BEST, data="few", evaluated=("a",), trainer="stopping"),
    "replicas": Run(
        {"gradient_accumulation_steps": 2, "eval_strategy": "epoch"}, ranks=4, trainer="shown",
        packing={"replicas": 2, "micro_batches": 2}, data="few", evaluated=("a",), **ROUTER,
    ),
    "all": Run(
        {"gradient_accumulation_steps": 2}, packing={"replicas": 2, "group": "all"}, ranks=4
    ),
}  # fmt: skip
"""Compared with Hugging Face's trainer in one process."""

SAVED = {"save_strategy": "steps", "save_steps": 1, "gradient_accumulation_steps": 2}
SMALL = Run({"gradient_accumulation_steps": 1}, data="few", evaluated=("a",))
"""Two steps of a batch each."""
SLOW = {"compile": Run({"torch_compile": True, "torch_compile_backend": "aot_eager"})}
LOOPS = {
    "epochs": Run(
        {"num_train_epochs": 3, **SAVED, **EVERY_STEP, "eval_steps": 4}, budget=44,
        packing={"shuffle": True, "seed": 4}, evaluated=("b", "a"), momentum=0.9,
    ),
    "skip": Run({"num_train_epochs": 2, **SAVED}, packing={"policy": "skip"}, data="unfit"),
    "stream": Run({"max_steps": 5, **SAVED}, data="stream"),
}  # fmt: skip
"""Compared with a loop written out: their epochs end where the trainer alone does not expect it."""


def model_of(run, attention):
    register_dcp()
    set_seed(0)
    if run.model == "adapter":
        return adapter_of(model_of(Run(), attention))
    config, sizes = CONFIGS[run.model]
    return AutoModelForCausalLM.from_config(config(**sizes), attn_implementation=attention)


class LowRank(nn.Module):
    """What adapters put in place of a projection."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(4, base.in_features) / 4)
        self.up = nn.Parameter(torch.randn(base.out_features, 4) / 4)

    def forward(self, x):
        return self.base(x) + functional.linear(functional.linear(x, self.down), self.up)


def adapter_of(model):
    model.requires_grad_(False)
    for layer in model.model.layers:
        layer.self_attn.q_proj = LowRank(layer.self_attn.q_proj)
    return model


class AddedTermForCausalLM(LlamaForCausalLM):
    """A model that adds a term of its own to the loss of its tokens."""

    def forward(self, *args, labels=None, **others):
        outputs = super().forward(*args, labels=labels, **others)
        if labels is not None:
            outputs.loss = outputs.loss + 1e-3 * outputs.logits.logsumexp(-1).square().mean()
        return outputs


class OwnLoss:
    """Goes in front of a trainer: a penalty of weights, on every rank and for every batch."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        return loss + 1e-2 * self.model.get_input_embeddings().weight.square().sum()


def terms(logits, targets):
    """Return the terms of a loss of our own."""
    losses = functional.cross_entropy(logits, targets, reduction="sum")
    return losses + 0.1 * logits.logsumexp(-1).square().sum()


def dense_loss(outputs, labels, num_items_in_batch):
    wanted = labels[0, 1:]
    counted = wanted != -100
    return terms(outputs.logits[0, :-1][counted], wanted[counted]) / num_items_in_batch


def rank_loss(outputs, data, num_items_in_batch):
    return terms(outputs.logits[0, data.target_rows], data.target_ids) / num_items_in_batch
