"""Megatron's attention layer with DCP's core attention computes what it does with dense masks."""

from types import SimpleNamespace

import pytest
import torch
from loader_options import make_loader
from megatron_attention import CurrentPlans, DCPCoreAttention
from torch.utils.checkpoint import checkpoint

from dcp_dsl import Sample, Spec, dense_mask
from dcp_planner import Cluster, ModelShape
from dcp_runtime import DCPExecutor, RunError
from dcp_runtime.transport.loopback import LoopbackWorld

SPEC = Spec.from_text("mask local = causal and q - k < 6\nstack mixed = local, causal")
ROWS = [{"tokens": list(range(n))} for n in (25, 12)]
TOKENS, WIDTH, Q_HEADS, KV_HEADS, HEAD_DIM = 37, 24, 4, 2, 8
CLUSTER = Cluster(devices_per_node=2)
CONFIG = SimpleNamespace(
    attention_dropout=0.0, window_size=None, softmax_type="vanilla", num_attention_heads=8,
    tensor_model_parallel_size=2,
)  # fmt: skip


class DenseCoreAttention(torch.nn.Module):
    """Megatron's unfused attention on tensors ``[s, b, heads, head_dim]``."""

    def __init__(self, scale, has_sinks):
        super().__init__()
        self.scale = scale
        self.sinks = torch.nn.Parameter(torch.zeros(Q_HEADS)) if has_sinks else None

    def forward(
        self, query, key, value, attention_mask, attn_mask_type=None, attention_bias=None,
        packed_seq_params=None,
    ):  # fmt: skip
        key, value = (x.repeat_interleave(Q_HEADS // KV_HEADS, dim=2) for x in (key, value))
        scores = torch.einsum("qbhd,kbhd->bhqk", query, key) * self.scale
        scores = scores.masked_fill(attention_mask, -torch.inf)  # true hides, as in Megatron
        if self.sinks is not None:
            column = self.sinks[None, :, None, None].expand(1, -1, len(query), 1)
            scores = torch.cat([scores, column], -1)
            value = torch.cat([value, torch.zeros_like(value[:1])])
        out = torch.einsum("bhqk,kbhd->qbhd", scores.softmax(-1), value)
        return out.reshape(*out.shape[:2], -1)


class SelfAttention(torch.nn.Module):
    """Projections around a core attention, called as Megatron's ``Attention.forward`` does."""

    def __init__(self, core_attention):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        shapes = (WIDTH, (Q_HEADS + 2 * KV_HEADS) * HEAD_DIM), (Q_HEADS * HEAD_DIM, WIDTH)
        self.to_qkv, self.to_out = (
            torch.nn.Parameter(torch.randn(shape, generator=generator) / 5) for shape in shapes
        )
        self.core_attention = core_attention

    def forward(self, hidden, attention_mask):
        heads = (hidden @ self.to_qkv).unflatten(-1, (-1, HEAD_DIM))
        query, key, value = heads.split([Q_HEADS, KV_HEADS, KV_HEADS], dim=2)
        out = self.core_attention(
            query, key, value, attention_mask, attn_mask_type="causal", attention_bias=None,
            packed_seq_params=None,
        )  # fmt: skip
        return out @ self.to_out


def core(layer_number, plans, config=CONFIG, **more):
    """Build it with the arguments that Megatron gives to a core attention."""
    return DCPCoreAttention(
        config=config, layer_number=layer_number, attn_mask_type="causal", attention_type="self",
        cp_comm_type="p2p", pg_collection=None, plans=plans, **more,
    )  # fmt: skip


def train(layers, hidden, masks, divisor):
    """One step of a residual model; gives its output and the gradients of its weights."""
    for layer, mask in zip(layers, masks, strict=True):
        hidden = hidden + layer(hidden, mask)
    hidden.square().sum().div(divisor).backward()
    return hidden.detach(), [p.grad for layer in layers for p in layer.parameters()]


@pytest.mark.parametrize(("scale", "softmax"), [(None, "vanilla"), (0.2, "learnable")])
def test_two_context_parallel_ranks_give_the_step_of_dense_attention(scale, softmax):
    config = SimpleNamespace(**{**vars(CONFIG), "softmax_type": softmax})
    hidden = torch.randn(TOKENS, 1, WIDTH, generator=torch.Generator().manual_seed(4))
    masks = [
        ~torch.block_diag(*[
            torch.from_numpy(dense_mask(SPEC.mask(name), Sample({}, len(row["tokens"]))))
            for row in ROWS
        ]).bool()
        for name in ("local", "causal")
    ]  # fmt: skip
    dense = [
        SelfAttention(DenseCoreAttention(scale or HEAD_DIM**-0.5, softmax == "learnable"))
        for _ in masks
    ]
    wanted, wanted_gradients = train(dense, hidden, masks, TOKENS)

    def step(transport):
        plans, executor = CurrentPlans(), DCPExecutor(transport=transport)
        layers = [SelfAttention(core(n, plans, config, softmax_scale=scale)) for n in (1, 2)]
        shape = ModelShape(Q_HEADS, KV_HEADS, HEAD_DIM, 4)
        loader = make_loader(
            ROWS, SPEC.stack("mixed"), shape=shape, rank=transport.rank, cluster=CLUSTER
        )
        ((_, plan),) = loader
        plans.prepare(executor, plan)
        rows = torch.tensor(plan.local_tokens(transport.rank))
        return rows, *train(layers, hidden[rows], [None, None], TOKENS)

    results = LoopbackWorld(CLUSTER.num_devices).run(step)
    for rows, out, _ in results:
        assert len(rows) > 0
        torch.testing.assert_close(out, wanted[rows], rtol=1e-4, atol=1e-5)
    for number, gradient in enumerate(wanted_gradients):
        found = sum(gradients[number] for _, _, gradients in results)
        torch.testing.assert_close(found, gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_core_attention_that_is_recomputed_is_refused(use_reentrant):
    """Its plans are those of the batch prepared last, which need not be the batch of the pass."""

    def step(transport):
        plans, executor = CurrentPlans(), DCPExecutor(transport=transport)
        layer = SelfAttention(core(1, plans))
        loader = make_loader(
            ROWS, SPEC.mask("local"), shape=ModelShape(Q_HEADS, KV_HEADS, HEAD_DIM, 4),
            rank=transport.rank, cluster=CLUSTER,
        )  # fmt: skip
        ((_, plan),) = loader
        plans.prepare(executor, plan)
        hidden = torch.ones(len(plan.local_tokens(transport.rank)), 1, WIDTH, requires_grad=True)
        out = checkpoint(layer, hidden, None, use_reentrant=use_reentrant)
        with pytest.raises(RunError, match="recomputed inside a backward pass, when another batch"):
            out.sum().backward()

    LoopbackWorld(CLUSTER.num_devices).run(step)


def test_what_no_plan_computes_is_refused():
    plans = CurrentPlans()
    for name, value in (("attention_dropout", 0.1), ("window_size", (5, 0))):
        config = SimpleNamespace(**{**vars(CONFIG), name: value})
        with pytest.raises(RunError, match=f"layer 1: expected {name} "):
            DCPCoreAttention(config, 1, plans=plans)
    attention = core(1, plans)
    q, kv = torch.zeros(5, 1, 4, 8), torch.zeros(5, 1, 2, 8)
    for name in ("attention_mask", "attention_bias", "packed_seq_params"):
        arguments = {"attention_mask": None, name: torch.zeros(1)}
        with pytest.raises(RunError, match=f"expected {name} None"):
            attention(q, kv, kv, **arguments)
    with pytest.raises(RunError, match="expected query"):
        attention(q.expand(5, 2, 4, 8), kv, kv, None)
    with pytest.raises(RunError, match="no plan is prepared"):
        attention(q, kv, kv, None)
