"""A Hugging Face model under DCP computes what it computes with dense masks, or refuses."""

import importlib

import numpy as np
import pytest
import torch

from dcp_dsl import Sample, Spec, block_sparsity, dense_mask
from dcp_planner import Cluster, ModelShape, PlanConfig, Provenance, build_plan
from dcp_runtime import (
    DCPExecutor,
    LayerPlans,
    RunError,
    prefill,
    register_dcp,
)
from dcp_runtime.adapters.huggingface.attention import _refuse

SPEC = Spec.from_text(
    "segment s = question[question] answer[answers]*\n"
    "mask shared = causal and (k in question or same(answer))\n"
    "mask local = causal and q - k < 8\n"
    "stack gemma = local, causal\n"
)
SAMPLES = [
    Sample({"question": 10, "answers": [12, 9]}, 31),
    Sample({"question": 3, "answers": [14]}, 17),
]
TOKENS = sum(sample.length for sample in SAMPLES)
LLAMA = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 50, "attention_dropout": 0.0,
}  # fmt: skip


def transformers():
    """The library, whose import takes two seconds: not while tests are collected."""
    return importlib.import_module("transformers")


def llama(**options):
    return transformers().LlamaConfig(**{**LLAMA, **options})


def gemma():
    return transformers().Gemma3TextConfig(
        **{**LLAMA, "num_hidden_layers": 3}, head_dim=8, sliding_window=8, query_pre_attn_scalar=5,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    )  # fmt: skip


@pytest.fixture
def executor(lone_group):
    with DCPExecutor() as executor:
        yield executor


def plan_of(mask: str, config):
    bound = [SPEC.mask(mask).bind(sample) for sample in SAMPLES]
    head_dim = getattr(config, "head_dim", 8) or 8
    shape = ModelShape(config.num_attention_heads, config.num_key_value_heads, head_dim, 4)
    return build_plan(
        block_sparsity(bound, 8, 8), shape, Cluster(1, 1), PlanConfig("static:contiguous"),
        provenance=Provenance(SPEC.source, mask, tuple(s.to_json() for s in SAMPLES)),
    )  # fmt: skip


def model_of(config, implementation):
    register_dcp()
    torch.manual_seed(0)
    return transformers().AutoModelForCausalLM.from_config(
        config, attn_implementation=implementation
    )


def dense_bias(mask: str):
    """Additive mask ``[1, 1, T, T]`` of the packed batch, pair by pair."""
    seen = np.zeros((TOKENS, TOKENS), bool)
    at = 0
    for sample in SAMPLES:
        end = at + sample.length
        seen[at:end, at:end] = dense_mask(SPEC.mask(mask), sample)
        at = end
    return torch.zeros(TOKENS, TOKENS).masked_fill(~torch.from_numpy(seen), -torch.inf)[None, None]


def inputs():
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 50, (1, TOKENS), generator=generator)
    return tokens, torch.cat([torch.arange(sample.length) for sample in SAMPLES])[None]


def results(model, **arguments):
    tokens, positions = inputs()
    logits = model(tokens, position_ids=positions, use_cache=False, **arguments).logits
    logits.square().mean().backward()
    return [logits.detach(), *(parameter.grad for parameter in model.parameters())]


def dense_results(config, bias):
    """Logits and gradients under dense masks, in float32 and in float64."""
    model, wide = model_of(config, "eager"), model_of(config, "eager").double()
    if hasattr(config, "num_local_experts"):
        wide.set_experts_implementation("eager")  # the default knows no float64
    masks = bias if isinstance(bias, dict) else {"": bias}
    masks = {name: mask.double() for name, mask in masks.items()}
    exact = results(wide, attention_mask=masks if isinstance(bias, dict) else masks[""])
    return results(model, attention_mask=bias), exact


def error_of(found, exact):
    """Root of the sum of the squared relative errors of all tensors."""
    norms = [max(float(other.norm()), 1e-3) for other in exact]
    errors = [(one - other).norm() for one, other in zip(found, exact, strict=True)]
    return (torch.stack(errors) / torch.tensor(norms)).norm()


def assert_close(found, eager, exact):
    """The error against float64 is at most twice that of dense masks in float32."""
    assert error_of(found, exact) <= 2 * error_of(eager, exact) <= 2e-4


def test_llama_gives_the_logits_and_gradients_of_dense_masks(executor):
    config = llama()
    layers = LayerPlans.prepare(executor, plan_of("shared", config))
    found = results(model_of(config, "dcp"), dcp=layers)
    assert_close(found, *dense_results(config, dense_bias("shared")))
    other = results(model_of(config, "eager"), attention_mask=dense_bias("causal"))
    assert (found[0] - other[0]).norm() > 1e-3 * other[0].norm()  # the mask matters


def test_a_window_of_the_model_that_the_plan_ignores_is_refused(executor):
    config = gemma()
    layers = LayerPlans.prepare(executor, plan_of("causal", config))
    match = (
        r"layer 0 \(Gemma3Attention\): the model has a window of 8 tokens, and mask .causal. lets"
    )
    with pytest.raises(RunError, match=match):
        results(model_of(config, "dcp"), dcp=layers)


def test_what_the_plan_does_not_do_is_refused(executor):
    config = llama()
    layers = LayerPlans.prepare(executor, plan_of("causal", config))
    model = model_of(config, "dcp")
    tokens, positions = inputs()
    with pytest.raises(RunError, match="needs the plans of the batch; call the model with dcp="):
        model(tokens, position_ids=positions)
    with pytest.raises(RunError, match="needs the plans of the batch; call the model with dcp="):
        model(tokens, position_ids=positions, dcp=executor)
    padding = torch.ones(1, TOKENS, dtype=torch.long)
    model(tokens, position_ids=positions, attention_mask=padding, use_cache=False, dcp=layers)
    padding[0, -3:] = 0
    with pytest.raises(RunError, match="given an attention_mask that hides tokens"):
        model(tokens, position_ids=positions, attention_mask=padding, use_cache=False, dcp=layers)
    with pytest.raises(RunError, match="the model built an attention mask of shape"):
        model(tokens, position_ids=positions, attention_mask=dense_bias("causal"), dcp=layers)
    with pytest.raises(RunError, match="expected a batch of 1"):
        model(tokens.repeat(2, 1), position_ids=positions.repeat(2, 1), dcp=layers)
    dropping = model_of(llama(attention_dropout=0.1), "dcp").train()
    with pytest.raises(RunError, match=r"expected attention dropout 0, got 0\.1"):
        dropping(tokens, position_ids=positions, use_cache=False, dcp=layers)
    with pytest.raises(RunError, match="owns 48 tokens of this plan: expected q"):
        model(tokens[:, :9], position_ids=positions[:, :9], use_cache=False, dcp=layers)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("has_run", [False, True])
def test_a_model_whose_config_names_another_attention_refuses_the_plans(
    executor, implementation, has_run
):
    """It would take them without a word and attend under a mask of its own."""
    config = llama()
    model = model_of(config, "dcp")
    layers = LayerPlans.prepare(executor, plan_of("shared", config))
    if has_run:
        results(model, dcp=layers)
    other = model_of(config, implementation)  # shares the config, and changes it
    says = rf"layer 0 \(LlamaAttention\): expected attn_implementation='dcp', .* '{implementation}'"
    for switched in (model, other):
        with pytest.raises(RunError, match=says):
            results(switched, dcp=layers)
    results(other)  # without plans it runs as ever
    model.set_attn_implementation("dcp")
    found = results(model, dcp=LayerPlans.prepare(executor, plan_of("shared", config)))
    dense = dense_results(llama(), dense_bias("shared"))
    assert_close(found[:1], *(each[:1] for each in dense))  # gradients hold those of before, too


# The name that all versions know.
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointed_batches_keep_their_plans_while_others_are_open(executor, use_reentrant):
    config, masks = llama(), ("shared", "causal", "local")
    model = model_of(config, "dcp").train()
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    tokens, positions = inputs()
    losses = []
    for mask in masks:
        layers = LayerPlans.prepare(executor, plan_of(mask, config))
        logits = model(tokens, position_ids=positions, use_cache=False, dcp=layers).logits
        losses.append(logits.square().mean())
    for loss, mask in zip(losses, masks, strict=True):
        model.zero_grad()
        loss.backward()
        # A config of its own: models that share one take the attention of the last that was made.
        dense = dense_results(llama(), dense_bias(mask))
        gradients = [parameter.grad for parameter in model.parameters()]
        assert_close(gradients, *(found[1:] for found in dense))


def test_a_layer_that_sees_both_ways_is_refused():
    _refuse("layer 0", None, 0.0, {"is_causal": True})
    with pytest.raises(RunError, match=r"layer 1: .* bidirectional or across two sequences"):
        _refuse("layer 1", None, 0.0, {"is_causal": False})


def test_a_cycle_over_more_plans_than_there_are_is_refused(executor):
    with pytest.raises(RunError, match=r"expected a cycle over 1 plans, got \(0, 1\)"):
        LayerPlans.prepare(executor, plan_of("causal", llama()), (0, 1))


def test_prompts_without_a_decoder_are_refused(executor):
    for decoders in ([0], [0, 1]):
        with pytest.raises(RunError, match=r"each of the 2 prompts a decoder out of 1 ranks, got"):
            prefill(None, executor, (None, plan_of("causal", llama())), decoders)
