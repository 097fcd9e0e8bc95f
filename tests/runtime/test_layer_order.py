"""Which layers ran, as `prepare` compares it over the ranks: eager, compiled and run again.

`test_uneven_ranks` has real processes whose layers differ.
"""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from dcp_runtime import DCPAttn, DCPExecutor, LayerPlans
from dcp_runtime.execute.open_batches import LONGEST_LINE
from dcp_runtime.transport.loopback import LoopbackTransport, LoopbackWorld

HEADS, DIM = (2, 1), 8


def plan_of(lab, tokens, ranks=1):
    return lab.plan_of([("causal", tokens)], ranks, block=8, heads=(*HEADS, DIM))


def leaves(tokens):
    return torch.randn(tokens, 2, DIM, requires_grad=True), torch.randn(tokens, 2, 1, DIM)


@pytest.fixture
def executor():
    return DCPExecutor(transport=LoopbackTransport(LoopbackWorld(1), 0), micro_batches=2)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_layer_that_a_checkpoint_runs_again_counts_once(lab, executor, use_reentrant):
    layers = LayerPlans.prepare(executor, plan_of(lab, 20))
    q, kv = leaves(20)
    out, runs = q, []

    def attend(plan, q, kv):
        runs.append(plan.number)
        return DCPAttn.apply(plan, q, kv)

    for layer in (0, 1, 4):
        out = checkpoint(attend, layers.of(layer), out, kv, use_reentrant=use_reentrant)
    out.sum().backward()
    assert runs == [0, 1, 4, 4, 1, 0]
    assert executor._batches.take_layers() == "prepared batch 1: layers 0-1, 4"
    assert executor._batches.take_layers() == ""


def test_compiled_layers_are_noted_whenever_they_run(lab, executor):
    graphs = []

    @torch.compile(backend=lambda graph, _: graphs.append(graph) or graph, fullgraph=True)
    def model(layers, q, kv):
        for layer in range(3):
            q = DCPAttn.apply(layers.of(layer), q * 1.0, kv)
        return q

    for batch, tokens in enumerate((12, 20, 33), 1):
        layers = LayerPlans.prepare(executor, plan_of(lab, tokens))
        model(layers, *leaves(tokens)).sum().backward()
        assert executor._batches.take_layers() == f"prepared batch {batch}: layers 0-2"
    assert len(graphs) == 2  # the second is for any number of tokens


def test_batches_that_take_turns_are_told_in_their_order(lab, executor):
    plan = plan_of(lab, 10)
    first, second = (LayerPlans.prepare(executor, plan) for _ in range(2))
    for layers, layer in ((first, 0), (second, 0), (first, 1), (first, 2), (second, 1)):
        DCPAttn.apply(layers.of(layer), *leaves(10))
    DCPAttn.apply(second.layers[0], *leaves(10))  # its layer has no number
    assert executor._batches.take_layers() == (
        "prepared batch 1: layers 0; prepared batch 2: layers 0; prepared batch 1: layers 1-2; "
        "prepared batch 2: layers 1"
    )


def test_a_long_line_ends_with_a_checksum_of_all(lab, executor):
    layers = LayerPlans.prepare(executor, plan_of(lab, 10))
    lines = set()
    for last in (0, 1):
        for layer in (*[5, 3] * 200, last):
            layers.of(layer).batch.note_layer(layer)
        lines.add(executor._batches.take_layers())
    assert {len(line) for line in lines} == {LONGEST_LINE + len("... (checksum 01234567)")}
    assert len(lines) == 2


def test_layers_drawn_from_one_seed_are_exact(lab):
    """LayerDrop; the oracle is dense attention layer by layer."""
    plan, mask = plan_of(lab, 90, 3), lab.MASKS["causal"](90)
    q, kv, dout = lab.random_qkv(3, 90, *HEADS, DIM, torch.float64)

    def work(transport):
        rows = torch.tensor(plan.local_tokens(transport.rank))
        own = q[rows].requires_grad_()
        ran = torch.randperm(6, generator=torch.Generator().manual_seed(7))[:4].sort().values
        with DCPExecutor(transport=transport) as executor:
            for _ in range(2):
                layers = LayerPlans.prepare(executor, plan)
                own.grad = None
                for n in ran.tolist():
                    out = DCPAttn.apply(layers.of(n), own * (n + 1), kv[rows] * (n + 1))
                    out.backward(dout[rows])
        return rows, {"dq": own.grad}, ran.tolist()

    parts = LoopbackWorld(3).run(work)
    (ran,) = {tuple(each) for *_, each in parts}
    want = sum((n + 1) * lab.eager(q * (n + 1), kv * (n + 1), dout, mask)["dq"] for n in ran)
    found = lab.whole_of([part[:2] for part in parts], 90)["dq"]
    torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-12)
