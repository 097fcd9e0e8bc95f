"""Options of Megatron-Core's configs that no plan computes, and what to set instead.

Source: ``TransformerConfig`` and ``ModelParallelConfig`` of megatron-core 0.16.
"""

from collections.abc import Callable, Iterator
from typing import Any


def refused_options(config: Any) -> Iterator[str]:  # Any: Megatron's
    """Return for each option that is refused what was expected, found and what to do."""
    for names, is_refused, expected, why in _REFUSED:
        values = {name: getattr(config, name, None) for name in names.split()}
        if is_refused(*values.values()):
            found = ", ".join(f"{name}={value!r}" for name, value in values.items())
            yield f"expected {expected}, got {found}: {why}"


def _any(*values: Any) -> bool:
    return any(map(bool, values))


def _loses(coefficients: Any, z_coefficient: Any) -> bool:
    each = coefficients if isinstance(coefficients, list | tuple) else [coefficients]
    return _any(*each, z_coefficient)


_REFUSED: tuple[tuple[str, Callable[..., bool], str, str], ...] = (
    (
        "calculate_per_token_loss context_parallel_size",
        lambda per_token, ranks: not per_token and (ranks or 1) > 1,
        "calculate_per_token_loss=True",
        "ranks hold different numbers of targets, and Megatron would weigh the mean of each rank "
        "alike; return planned_loss(logits, data) from the loss function",
    ),
    (
        "mtp_num_layers", _any, "mtp_num_layers=None",
        "predicting further tokens shifts a rank's rows, and other ranks hold their neighbours",
    ),
    (
        "moe_aux_loss_coeff moe_z_loss_coeff", _loses,
        "moe_aux_loss_coeff=0 and moe_z_loss_coeff=None",
        "Megatron takes every rank to hold as many tokens as the others; balance the experts by "
        "moe_router_enable_expert_bias=True with moe_router_score_function='sigmoid'",
    ),
    (
        "moe_router_load_balancing_type",
        lambda kind: "sinkhorn" in ([kind] if isinstance(kind, str) else kind or []),
        "moe_router_load_balancing_type='none'",
        "a token's experts would depend on the other tokens of its rank",
    ),
    (
        "moe_expert_capacity_factor", lambda factor: factor is not None,
        "moe_expert_capacity_factor=None",
        "which tokens are dropped would depend on the other tokens of their rank",
    ),
    (
        "moe_token_dispatcher_type expert_model_parallel_size",
        lambda kind, ranks: kind == "allgather" and (ranks or 1) > 1,
        "moe_token_dispatcher_type='alltoall'",
        "gathering takes every rank to hold as many tokens as the others",
    ),
    (
        "moe_router_enable_expert_bias sequence_parallel",
        lambda has_bias, is_shared: has_bias and is_shared,
        "one of the two",
        "rows that stand in for missing tokens would count; give experts the tensor-parallel "
        "ranks, by expert_model_parallel_size",
    ),
    (
        "variable_seq_lengths pipeline_model_parallel_size",
        lambda varies, stages: not varies and (stages or 1) > 1,
        "variable_seq_lengths=True",
        "the number of this rank's tokens differs from micro-batch to micro-batch",
    ),
    (
        "enable_cuda_graph external_cuda_graph cuda_graph_impl",
        lambda own, outer, kind: bool(own or outer or kind not in (None, "none")),
        "cuda_graph_impl='none'",
        "graphs replay one number of tokens and one plan; both change with every batch",
    ),
    (
        "tp_comm_overlap", _any, "tp_comm_overlap=False",
        "its buffers have one size, and the number of this rank's tokens changes",
    ),
    (
        "fp8 fp4", _any, "fp8=None and fp4=None",
        "these kernels want multiples of 16 or 32 tokens, and a plan gives a rank any number",
    ),
    (
        "qk_clip log_max_attention_logit", _any, "both False",
        "no plan keeps the largest score of a head",
    ),
    (
        "apply_rope_fusion multi_latent_attention",
        lambda is_fused, is_latent: is_fused and is_latent,
        "apply_rope_fusion=False",
        "the fused kernel of latent attention counts positions in each sequence itself",
    ),
    (
        "overlap_moe_expert_parallel_comm", _any, "overlap_moe_expert_parallel_comm=False",
        "its schedule runs parts of layers outside the model, where no stand-in rows are added",
    ),
)  # fmt: skip
"""Names of options; whether their values are refused; what is expected instead; and why."""
