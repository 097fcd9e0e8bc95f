"""The check of a model finds layers that mix tokens, by what they compute; limits are compared."""

import copy
import importlib

import pytest
import torch
import torch.distributed as dist
from loader_options import make_loader
from model_families import SIZES
from torch import nn

from dcp_dsl import Spec
from dcp_planner import Cluster, ModelShape
from dcp_runtime import (
    DCPExecutor,
    LayerPlans,
    RunError,
    check_model,
    next_token_loss,
    register_dcp,
)
from dcp_runtime.adapters.huggingface.visibility import Visibility, visibility_of
from dcp_runtime.adapters.huggingface.walk import TOKENS, walk

DIM = 8


class Layer(nn.Module):
    """A layer whose code is the test's."""

    def __init__(self, compute):
        super().__init__()
        self.inner, self.compute = nn.Linear(DIM, DIM), compute

    def forward(self, x, positions):
        return x + self.inner(self.compute(x, positions))


class Toy(nn.Module):
    """Two layers that compute each token for itself around one that may not."""

    def __init__(self, compute):
        super().__init__()
        self.embed, self.head = nn.Embedding(50, DIM), nn.Linear(DIM, 50)
        plain = lambda x, at: x * at[..., None].to(x.dtype).cos()  # noqa: E731
        self.layers = nn.ModuleList(map(Layer, (plain, compute, plain)))

    def forward(self, tokens, positions):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, positions)
        return self.head(x)


def culprit_of(compute, dtype=torch.float32):
    torch.manual_seed(0)
    toy = Toy(compute).to(dtype)
    return walk(toy, lambda _, tokens, positions: toy(tokens, positions), 50, frozenset()).culprit


MIXING = {
    "neighbour": lambda x, _: x.roll(1, 1),
    "running sum": lambda x, _: x.cumsum(1),
    "mean of all tokens": lambda x, _: x - x.mean(1, keepdim=True),
    "convolution": lambda x, _: nn.functional.conv1d(
        x.mT, torch.ones(DIM, 1, 3), padding=1, groups=DIM
    ).mT.to(x.dtype),
    "place in the call": lambda x, _: x * torch.arange(x.shape[1])[:, None].cos(),
    "largest of all tokens": lambda x, _: x / x.abs().amax(1, keepdim=True),
    "first token": lambda x, _: x + x[:, :1],
    "tokens with the largest score": lambda x, _: (
        x * (x[..., :1] >= x[..., :1].topk(3, 1).values[:, -1:])
    ),
}


@pytest.mark.parametrize("name", MIXING)
def test_a_layer_that_mixes_tokens_is_named(name):
    assert culprit_of(MIXING[name]) == "layers.1 (Layer)"


def test_a_layer_of_the_places_of_tokens_in_bfloat16_is_named():
    assert culprit_of(lambda x, _: x.roll(1, 1), torch.bfloat16) == "layers.1 (Layer)"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_layers_that_compute_each_token_for_itself_pass(dtype):
    def experts(x, _):  # groups tokens by expert, and sums in another order in each call
        flat, found = x.flatten(0, 1), torch.zeros_like(x.flatten(0, 1))
        for expert in range(3):
            at = (flat.argmax(1) % 3 == expert).nonzero()[:, 0]
            found.index_add_(0, at, flat[at].sin() * (expert + 1))
        return found.view_as(x)

    for compute in (
        lambda x, _: nn.functional.layer_norm(x, (DIM,)),
        lambda x, positions: x * positions[..., None].to(x.dtype).sin(),
        lambda x, _: x.softmax(-1).to(x.dtype),
        experts,
    ):
        assert culprit_of(compute, dtype) == ""


def test_a_model_is_left_as_it_was():
    toy = Toy(lambda x, _: x).train()
    toy.layers[1].inner = nn.Sequential(nn.Dropout(0.5), toy.layers[1].inner)
    toy.layers[0].eval()
    modes = [module.training for module in toy.modules()]
    state = torch.get_rng_state()
    walk(toy, lambda _, tokens, positions: toy(tokens, positions), 50, frozenset())
    assert [module.training for module in toy.modules()] == modes
    assert all(weight.grad is None for weight in toy.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in toy.modules())


def sees(first, before=lambda q, k: k <= q):
    return lambda _, __, q, k: before(q, k) & (k >= first(q))


@pytest.mark.parametrize("size", [1, 2, 7, 512, 4096, 131_072])
def test_windows_and_chunks_are_read_from_a_predicate(size):
    windows, tiles = (lambda q: q - size + 1), (lambda q: q // size * size)
    assert visibility_of(sees(windows), None, True) == Visibility(window=size)
    assert visibility_of(sees(windows), 5, True) == Visibility(window=min(size, 5))
    # Chunks of a token are windows of one.
    wanted = Visibility(chunk=size) if size > 1 else Visibility(window=1)
    assert visibility_of(sees(tiles), None, True) == wanted


def test_other_predicates_are_known_as_such():
    assert visibility_of(sees(lambda q: q * 0), None, False) == Visibility()
    assert visibility_of(sees(lambda q: q * 0, lambda q, k: k >= 0), None, True) == Visibility(
        is_causal=False
    )
    both = sees(lambda q: torch.maximum(q - 3, q // 6 * 6))
    assert visibility_of(both, None, True) == Visibility(window=4, chunk=6)
    strided = lambda _, __, q, k: (k <= q) & ((q - k) % 3 == 0)  # noqa: E731
    assert not visibility_of(strided, None, True).is_known
    lookup = lambda _, __, q, k: (k <= q) & (torch.zeros(TOKENS)[q] == 0)  # noqa: E731
    assert not visibility_of(lookup, None, True).is_known
    assert visibility_of(None, None, False) == Visibility(is_causal=False)


# ---- limits of real models, on one rank


@pytest.fixture(scope="module")
def executor():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with DCPExecutor(timeout_s=60) as executor:
        yield executor
    dist.destroy_process_group()


def model_of(config, **options):
    register_dcp()
    transformers = importlib.import_module("transformers")
    made = getattr(transformers, config)(**{**SIZES, **options})
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(made, attn_implementation="dcp").double()


def run(executor, model, text, row, columns=None):
    """Return the gradients of one row under the mask `m` of a text."""
    loader = make_loader(
        [{"tokens": row, **(columns or {})}], Spec.from_text(text).mask("m"), token_budget=128,
        shape=ModelShape(4, 2, 8), cluster=Cluster(1, 1), hidden_targets="leave_out",
        shared_targets="per_path",
    )  # fmt: skip
    ((data, plan),) = loader
    model.zero_grad()
    layers = LayerPlans.prepare(executor, plan)
    out = model(data.tokens[None], position_ids=data.position_ids[None], dcp=layers)
    next_token_loss(out.logits, data, 1).backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters()}


def separate(model, rows, chunk=1000):
    """Return the gradients of separate rows under the model's own masks.

    The first token of a chunk does not see the token that would predict it.
    """
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    eager.zero_grad()
    for row in rows:
        tokens = torch.tensor(row)
        logits = eager(tokens[None], use_cache=False).logits[0, :-1]
        at = torch.tensor([n for n in range(1, len(row)) if n % chunk])
        nn.functional.cross_entropy(logits[at - 1], tokens[at], reduction="sum").backward()
    model.set_attn_implementation("dcp")  # both share a config
    return {name: weight.grad for name, weight in eager.named_parameters()}


def assert_equal(found, wanted):
    for name, gradient in wanted.items():
        assert (found[name] - gradient).norm() <= 2e-6 * gradient.norm() + 1e-7, name


TOKENS_OF_A_ROW = torch.randint(3, 67, (40,), generator=torch.Generator().manual_seed(2)).tolist()
QUESTION, *ANSWERS = (TOKENS_OF_A_ROW[a:b] for a, b in ((0, 3), (3, 14), (14, 20), (20, 31)))
BRANCHES = "segment part = question[n] branch answer[lens]*\n"
FAMILIES = {
    "window": ("MistralConfig", {"sliding_window": 6, "head_dim": 8}, "a window of 6 tokens"),
    "chunk": (
        "Llama4TextConfig",
        {
            "attention_chunk_size": 5, "no_rope_layers": [1, 1], "moe_layers": [], "head_dim": 8,
            "use_qk_norm": False, "intermediate_size_mlp": 48, "num_local_experts": 1,
        },
        "chunks of 5 tokens",
    ),
}  # fmt: skip
LAYOUTS = {
    "row": ("", {}, [TOKENS_OF_A_ROW[:31]], "causal"),
    "documents": (
        "segment doc = [lens]*\n", {"lens": [3, 11, 6, 11]}, [QUESTION, *ANSWERS], "causal per doc"
    ),
    "branches": (
        BRANCHES, {"n": 3, "lens": [11, 6, 11]}, [QUESTION + each for each in ANSWERS], "paths"
    ),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_wider_mask_is_refused_and_its_advice_trains_as_separate_sequences(
    executor, family, layout
):
    config, options, limit = FAMILIES[family]
    segments, columns, rows, wide = LAYOUTS[layout]
    model, row = model_of(config, **options), TOKENS_OF_A_ROW[:31]
    with pytest.raises(RunError, match=rf"layer 0 .*: the model has {limit}, and mask") as refused:
        run(executor, model, f"{segments}mask m = {wide}", row, columns)
    advice = str(refused.value).split("is `")[1].split("`")[0].replace("m and", f"{wide} and")
    found = run(executor, model, f"{segments}mask m = {advice}", row, columns)
    assert_equal(found, separate(model, rows, 5 if family == "chunk" else 1000))


def test_a_bidirectional_model_refuses_a_causal_mask(executor):
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = model_of("BertConfig", num_attention_heads=4, **none)
    with pytest.raises(RunError, match="attention is bidirectional, and mask `m` lets no token"):
        run(executor, model, "mask m = causal", TOKENS_OF_A_ROW)


def rope(kind, **options):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0, **options}}


SHORT, LONG = [1.0] * 4, [2.0, 3.0, 4.0, 8.0]
ORIGINAL = {"original_max_position_embeddings": 16}
LENGTH_COUNTS = {
    "dynamic": ("LlamaConfig", rope("dynamic") | {"max_position_embeddings": 16}),
    "longrope": ("Phi3Config", rope("longrope", short_factor=SHORT, long_factor=LONG) | ORIGINAL),
    "temperature": (
        "Llama4TextConfig",
        FAMILIES["chunk"][1] | {"no_rope_layers": [0, 0], "floor_scale": 20},
    ),
}
LIMITS = {
    "dynamic": "sequences of at most 16 tokens, got 40",
    "longrope": "sequences of at most 16 tokens, got 40",
    "temperature": "batches of at most 19 tokens, got 40",
}


@pytest.mark.parametrize("name", LENGTH_COUNTS)
def test_what_a_model_computes_from_the_length_is_refused_in_longer_sequences(executor, name):
    config, options = LENGTH_COUNTS[name]
    model = model_of(config, **options)
    short = TOKENS_OF_A_ROW[:16]
    assert_equal(run(executor, model, "mask m = causal", short), separate(model, [short]))
    with pytest.raises(RunError, match=LIMITS[name]):
        run(executor, model, "mask m = causal", TOKENS_OF_A_ROW)


# What the refusal advises.
FIXED_LENGTH = {
    "dynamic": ("LlamaConfig", rope("yarn", **ORIGINAL)),
    "longrope": ("Phi3Config", rope("longrope", short_factor=LONG, long_factor=LONG) | ORIGINAL),
    "temperature": (
        "Llama4TextConfig",
        LENGTH_COUNTS["temperature"][1] | {"attn_temperature_tuning": False},
    ),
}


@pytest.mark.parametrize("name", FIXED_LENGTH)
def test_models_whose_length_counts_nowhere_run_at_any_length(executor, name):
    config, options = FIXED_LENGTH[name]
    model = model_of(config, **options)
    found = run(executor, model, "mask m = causal", TOKENS_OF_A_ROW)
    assert_equal(found, separate(model, [TOKENS_OF_A_ROW]))


def test_copies_of_a_model_are_checked_when_they_run(executor):
    model = model_of("LlamaConfig", head_dim=8)
    twin = copy.deepcopy(model)
    assert_equal(
        run(executor, twin, "mask m = causal", TOKENS_OF_A_ROW), separate(model, [TOKENS_OF_A_ROW])
    )
    mixing = copy.deepcopy(model_of("LlamaConfig", head_dim=8))
    mixing.model.layers[1].mlp.register_forward_hook(lambda _, __, out: out.roll(1, 1))
    with pytest.raises(RunError, match=r"`model\.layers\.1\.mlp \(LlamaMLP\)` gives a token"):
        run(executor, mixing, "mask m = causal", TOKENS_OF_A_ROW)


def test_a_model_that_cannot_be_called_says_so(executor):
    model = model_of("LlamaConfig", head_dim=8)
    forward = model.forward
    model.forward = lambda *args, pixels, **others: forward(*args, **others)
    with pytest.raises(RunError, match=r"could not be checked, .* missing 1 required keyword-only"):
        check_model(model)
    limits = check_model(model, pixels=None)
    assert [(limit.layer, limit.window) for limit in limits] == [
        ("layer 0 (LlamaAttention)", 0), ("layer 1 (LlamaAttention)", 0)
    ]  # fmt: skip
    with pytest.raises(RunError, match="expected a model of transformers with"):
        check_model(nn.Linear(2, 2))


def test_a_plan_of_an_unknown_mask_is_refused_where_the_model_has_limits(executor):
    from dcp_dsl import Sample, block_sparsity
    from dcp_planner import build_plan

    mask = Spec.from_text("mask m = sliding(6)").mask("m")
    bound = mask.bind(Sample(length=9))
    plan = build_plan(block_sparsity([bound], 8, 8), ModelShape(4, 2, 8), Cluster(1, 1))
    model = model_of("MistralConfig", **FAMILIES["window"][1])
    tokens, positions = torch.tensor([TOKENS_OF_A_ROW[:9]]), torch.arange(9)[None]
    with pytest.raises(RunError, match="nothing says of which mask the plan is"):
        model(tokens, position_ids=positions, dcp=LayerPlans.prepare(executor, plan))
