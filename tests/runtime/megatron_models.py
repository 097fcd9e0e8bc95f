"""Small GPTs of Megatron-Core on the CPU, with our attention or with its own, and their losses.

Importing this redirects what Megatron does on the current CUDA device, also with weights that are
on the CPU; inside `OnCpu` also what it asks of torch by name.
"""

import warnings
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer import (
    MLATransformerConfig,
    TransformerConfig,
    multi_latent_attention,
)
from megatron.core.transformer.moe import moe_utils, token_dispatcher
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from dcp_dsl import Sample, dense_mask
from dcp_runtime.adapters.megatron import DCPCoreAttention


class OnCpu(TorchFunctionMode):
    """Megatron's calls on the current CUDA device go to the CPU, and tensors say they are there."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = {name: value for name, value in (kwargs or {}).items() if name != "pin_memory"}
        if func is torch.Tensor.cuda:
            return args[0]
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        out = func(*args, **kwargs)
        is_name = func is torch.Tensor.type and isinstance(out, str)
        return out.replace("torch.", "torch.cuda.") if is_name else out


warnings.simplefilter("ignore")
torch.compiler.set_stance("force_eager")
torch.cuda.current_device = lambda: "cpu"
STREAM = Mock()
torch.cuda.synchronize = torch.cuda.Stream = torch.cuda.current_stream = lambda *_: STREAM
# Both modules look for Transformer Engine, and fail without it.
multi_latent_attention.HAVE_TE, moe_utils.te_general_gemm = False, None
# What it brings to the host is there, but for its form.
token_dispatcher.maybe_move_tensor_to_cpu = lambda found, as_numpy=False, **_: (
    found.numpy() if as_numpy and isinstance(found, torch.Tensor) else found
)
tensor_parallel.get_cuda_rng_tracker = lambda: SimpleNamespace(fork=nullcontext)
tensor_parallel.checkpoint = lambda run, _, *inputs: checkpoint(run, *inputs, use_reentrant=False)


def shared_norm(_, config, hidden_size, eps=1e-5, **__):
    """As Megatron's for the CPU, but for a mark: tensor-parallel ranks add its gradients up."""
    found = torch.nn.RMSNorm(hidden_size, eps)
    found.weight.sequence_parallel = config.sequence_parallel
    return found


WrappedTorchNorm.__new__ = shared_norm
VOCABULARY, HIDDEN = 64, 32
YARN = {
    "yarn_rotary_scaling_factor": 4.0, "yarn_original_max_position_embeddings": 8,
    "yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0, "yarn_mscale": 1.0, "yarn_mscale_all_dim": 0.0,
    "yarn_correction_range_round_to_int": True,
}  # fmt: skip
LATENT = {
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_head_dim": 8, "qk_pos_emb_head_dim": 8,
    "v_head_dim": 12, "rotary_scaling_factor": 4, "original_max_position_embeddings": 8,
    "multi_latent_attention": True,
}  # fmt: skip
EXPERTS = {
    "num_moe_experts": 4, "moe_router_topk": 2, "moe_ffn_hidden_size": 16,
    "moe_aux_loss_coeff": 0.0, "moe_router_enable_expert_bias": True,
    "moe_router_score_function": "sigmoid", "moe_router_bias_update_rate": 0.125,
    "moe_token_dispatcher_type": "alltoall", "add_bias_linear": False,
}  # fmt: skip


class DenseAttention(torch.nn.Module):
    """For latent attention, which Megatron's own attention on the CPU does not take."""

    def __init__(self, *_, softmax_scale, **__):
        super().__init__()
        self.scale = softmax_scale

    def forward(self, q, k, v, hidden, *_, **__):
        scores = torch.einsum("qbnd,kbnd->bnqk", q, k) * self.scale
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return torch.einsum("bnqk,kbnd->qbnd", weights, v).flatten(2)


def model_of(planned, *, positions="rope", stage=(True, True), model=None, **options):
    """A small GPT, with our attention or with Megatron's."""
    is_latent = "q_lora_rank" in options
    kind = MLATransformerConfig if is_latent else TransformerConfig
    yarn = {name: options.pop(name) for name in YARN if name in options}
    ranks = parallel_state.get_context_parallel_world_size() if planned else 1
    config = kind(
        num_layers=2, hidden_size=HIDDEN, num_attention_heads=4, ffn_hidden_size=64,
        hidden_dropout=0.0, attention_dropout=0.0, use_cpu_initialization=True,
        context_parallel_size=ranks, normalization="RMSNorm", init_method_std=0.2,
        calculate_per_token_loss=True,
        **({} if is_latent else {"num_query_groups": 2, "kv_channels": 8}), **options,
    )  # fmt: skip
    vars(config).update(yarn)
    spec = get_gpt_layer_local_spec(
        num_experts=options.get("num_moe_experts"), qk_layernorm=config.qk_layernorm,
        multi_latent_attention=is_latent, normalization="RMSNorm",
    )  # fmt: skip
    attention = spec.submodules.self_attention.submodules
    if planned or is_latent:
        attention.core_attention = DCPCoreAttention if planned else DenseAttention
    groups = ProcessGroupCollection.use_mpu_process_groups()
    if not planned:  # all experts on each rank
        groups.ep = groups.tp_ep = groups.expt_tp = groups.tp
    found = GPTModel(
        config, spec, VOCABULARY, 64, pre_process=stage[0], post_process=stage[1],
        position_embedding_type=positions, pg_collection=groups, **(model or {}),
    )  # fmt: skip
    for module in found.modules():
        if not planned and hasattr(module, "get_emb"):
            module.cp_group = None
    return found


def logits_alone(model, masks, row):
    """Logits of a document, of the whole vocabulary."""
    columns = {name: value for name, value in row.items() if name != "tokens"}
    tokens = torch.tensor(row["tokens"])
    hidden = [~torch.from_numpy(dense_mask(m, Sample(columns, len(tokens)))) for m in masks]
    hooks = [
        layer.self_attention.core_attention.register_forward_pre_hook(
            lambda _, given, own=own: (*given[:3], own[None, None], *given[4:])
        )
        for layer, own in zip(model.decoder.layers, hidden, strict=True)
    ]
    logits = model(tokens[None], torch.arange(len(tokens))[None], None)[0]
    for hook in hooks:
        hook.remove()
    return tensor_parallel.gather_from_tensor_model_parallel_region(logits)


def loss_alone(model, masks, rows):
    """Add the losses of all tokens but the first up, document by document; and their number."""
    total = 0.0
    for row in rows:
        logits, tokens = logits_alone(model, masks, row), torch.tensor(row["tokens"])
        total = total + functional.cross_entropy(logits[:-1], tokens[1:], reduction="sum")
    return total, sum(len(row["tokens"]) - 1 for row in rows)
