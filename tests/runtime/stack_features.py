"""What the training loops of Megatron-Core and torchtitan may add, and what becomes of it here.

Each feature is *supported* (a check compares the gradients of every parameter with one process),
*refused* in words, or *unaffected*. The tests run the checks that are named here.
"""

from typing import Literal, NamedTuple

Verdict = Literal["supported", "refused", "unaffected"]


class Feature(NamedTuple):
    """A feature of a stack; `check` is the test's name for it, empty where a reason stands."""

    stack: str
    name: str
    verdict: Verdict
    how: str
    check: str = ""


MEGATRON, TITAN = "Megatron-Core", "torchtitan"

FEATURES = [
    Feature(MEGATRON, name, "supported", how, check)
    for check, names, how in (
        (
            "unequal_micro_batches",
            (
                "calculate_per_token_loss", "num_microbatches", "finalize_model_grads",
                "micro-batches of unequal tokens", "ranks without tokens",
                "micro-batches without rows", "evaluation (forward_only)",
            ),
            "an epoch in Megatron's schedule, evaluated before, two ranks",
        ),
        (
            "branches", ("a token with several targets",),
            "a prompt with two replies, against two sequences",
        ),
        (
            "layers_with_masks_of_their_own",
            ('softmax_type="learnable"', "recompute of core_attn", "a mask for each layer"),
            "a stack of two masks with columns",
        ),
        (
            "recomputed_layers",
            (
                "recompute of whole layers", 'softmax_type="off-by-one"', "qk_layernorm",
                "rope_scaling, rotary_percent, rotary_interleaved, seq_len_interpolation_factor",
            ),
            "all of them in one model",
        ),
        ("yarn", ('position_embedding_type="yarn"',), "a GPT with scaled frequencies"),
        (
            "latent_attention", ("latent attention (MLA) with rope or YaRN",),
            "heads of two sizes",
        ),
        (
            "experts_and_their_bias",
            ("experts on several ranks (alltoall)", "moe_router_enable_expert_bias"),
            "each rank has half of the experts; counts of tokens, too",
        ),
        (
            "clipped_steps_of_both_optimizers",
            (
                "clip_grad", "use_distributed_optimizer", "share_embeddings_and_output_weights",
                'position_embedding_type="learned_absolute"',
            ),
            "weights and norm after a step of SGD, and of Adam in shards",
        ),
        (
            "packed_batches_of_megatron", ("packed batches, padded (cu_seqlens_padded)",),
            "PlannedBatches, with a loss over labels",
        ),
        ("replicas", ("data parallelism",), "two replicas"),
        (
            "stages_without_embedding", ("pipeline_model_parallel_size",),
            "two stages of one layer, three micro-batches",
        ),
        (
            "tensor_and_sequence_parallel", ("tensor_model_parallel_size", "sequence_parallel"),
            "tokens that do not divide among the ranks",
        ),
    )
    for name in names
]  # fmt: skip
FEATURES += [
    Feature(MEGATRON, name, "refused", how, check)
    for name, check, how in (
        ("calculate_per_token_loss=False", "mean_of_means", "names the option to set"),
        ("mtp_num_layers", "further_tokens", "names the option to set"),
        ("moe_aux_loss_coeff", "auxiliary_loss", "names aux-loss-free balancing"),
        ("moe_aux_loss_coeff as a list", "auxiliary_losses", "names aux-loss-free balancing"),
        ("moe_z_loss_coeff", "z_loss", "names aux-loss-free balancing"),
        ("sinkhorn routing", "sinkhorn", "names the option to set"),
        ("moe_expert_capacity_factor", "capacity", "names the option to set"),
        ("experts on several ranks (allgather)", "gathered_experts", "names alltoall"),
        ("expert bias with sequence_parallel", "bias_of_stand_ins", "names expert parallelism"),
        ("pipelines without variable_seq_lengths", "fixed_lengths", "names the option to set"),
        ("CUDA graphs", "graphs", "names the option to set"),
        ("tp_comm_overlap", "overlap_buffers", "names the option to set"),
        ("fp8, fp4", "low_precision", "names the options to set"),
        ("qk_clip, log_max_attention_logit", "largest_scores", "names the options to set"),
        ("apply_rope_fusion with latent attention", "fused_rotation", "names the option to set"),
        ("overlap_moe_expert_parallel_comm", "overlapped_experts", "names the option to set"),
        ("attention_dropout", "attention_dropout", "names hidden_dropout"),
        ("window_size, per layer too", "window_size", "names the mask"),
        ("cross attention", "attention_type", "when the layer is built"),
        ("attention masks and biases", "attention_mask", "in the first step"),
        ("Megatron's own PackedSeqParams", "packed_seq_params", "in the first step"),
        ("micro batches of several rows", "rows_of_a_batch", "in the first step"),
        ("tokens that no plan has cut", "whole_batches", "in the first step"),
        ("more positions than are learned", "learned_positions", "in the step, with both numbers"),
    )
]
FEATURES += [
    Feature(MEGATRON, name, "refused", "use_plans names the module", "modules_that_may_mix_tokens")
    for name in (
        "Mamba, gated delta nets, convolutions, batch norms",
        "sparse attention (DSA), other attention than DCPCoreAttention",
        "multi-token prediction blocks", "positions of several dims (mrope), relative positions",
        "rotary embeddings and modules of one's own, unless token_wise names them",
    )
]  # fmt: skip
FEATURES += [
    Feature(MEGATRON, name, "unaffected", how)
    for name, how in (
        ("hidden_dropout", "each rank draws for its own tokens"),
        ("cp_comm_type", "the plan moves keys and values"),
        ("attention_backend, apply_query_key_layer_scaling", "the plan's kernel attends, in fp32"),
        ("no_rope_freq", "a layer without positions gets none from the plan"),
        ("learning rates, weight decay", "they read no token"),
        ("offloading of activations", "saved tensors may be copied"),
    )
]
FEATURES += [
    Feature(TITAN, name, "supported", how, check)
    for check, names, how in (
        (
            "epochs_of_unequal_batches",
            (
                "gradient accumulation, divided by the targets of the step", "epochs and resume",
                "batches of unequal tokens", "ranks without tokens", "max_norm",
                "loss in chunks (ChunkedLossWrapper)", "activation checkpointing",
                "tokens per expert, for the bias that balances experts", "counters of tokens",
            ),
            "llama3_dcp: two steps over the end of an epoch, two ranks",
        ),
        (
            "branches", ("a token with several targets",),
            "llama3_dcp: a question with two answers, against two sequences",
        ),
        ("replicas", ("data parallelism",), "llama3_dcp: two replicas"),
        ("compiled_layers", ("torch.compile of layers",), "llama3_dcp: whole graphs"),
        (
            "balanced_shares",
            ("documents by positions, also cut at the begin of a batch", "masks by name"),
            "llama3_flex: one step",
        ),
        ("sinks_of_gpt_oss", ("sinks",), "llama3_dcp: one layer"),
    )
    for name in names
]  # fmt: skip
FEATURES += [
    Feature(TITAN, name, "refused", how, check)
    for name, check, how in (
        ("validation loop", "settings_that_are_refused", "names the setting"),
        (
            "pipeline, tensor and expert parallelism with llama3_dcp",
            "settings_that_are_refused", "names the settings",
        ),
        ("CUDA graphs with llama3_dcp", "settings_that_are_refused", "names the setting"),
        ("SPMD type checking with llama3_dcp", "settings_that_are_refused", "names the setting"),
        ("rows longer than the positions", "settings_that_are_refused", "names both settings"),
        (
            "linear attention, convolutions, multi-token prediction, unknown modules",
            "modules_that_may_mix_tokens", "names the module",
        ),
        ("score_mod, other epilogues than sinks", "sinks_of_gpt_oss", "names the layer"),
    )
]  # fmt: skip
FEATURES += [
    Feature(TITAN, name, "unaffected", how)
    for name, how in (
        ("mean or sum of FSDP", "torchtitan lets FSDP add up, and divides the loss itself"),
        ("scaled rotary positions (YaRN)", "their table comes from the config, not from a batch"),
        ("end-of-sequence tokens", "llama3_dcp takes documents from rows, and masks from the spec"),
        ("learning rates, optimizers", "they read no token"),
    )
]
SLOW = {
    "compiled_layers",
    "recomputed_layers", "clipped_steps_of_both_optimizers", "tensor_and_sequence_parallel",
}  # fmt: skip
"""Checks that only ``make test-slow`` runs."""


def features_of(stack: str, verdict: Verdict) -> list[Feature]:
    """Return the features of a stack that have a check."""
    return [f for f in FEATURES if (f.stack, f.verdict) == (stack, verdict) and f.check]
