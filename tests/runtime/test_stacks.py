"""Layers with masks of their own, from a `stack` to the loader's plans: one ownership, exact."""

import json
import sys
from functools import partial

import pytest
import torch
from click.testing import CliRunner
from loader_options import make_loader
from torch.utils.checkpoint import checkpoint

from dcp_dsl import DatasetError, Sample, Spec, dense_mask
from dcp_dsl.core.mask import HeadError
from dcp_planner import Cluster, ModelShape, Plan, PlanConfig, digest, preset, read_plan
from dcp_planner.commands.plan import plan as command
from dcp_runtime import DCPAttn, DCPExecutor, LayerPlans, RunError, StackedPlans
from dcp_runtime.transport.loopback import LoopbackTransport, LoopbackWorld

SPEC = Spec.from_text(
    "segment s = part[parts]*\n"
    "mask own = causal and same(part)\n"
    "mask band(w: tokens = 7) = causal and q - k < w\n"
    "stack mixed = 2 of band, own\n"
    "stack wide = band(w = 30), own\n"
    "stack by_head = heads {0..1: band  rest: own}\n"
    "stack alike = band, 3 of band\n"
    "stack hybrid = linear, band, 2 of linear, own\n"
    'for "*/mixed.jsonl" use mixed\n'
)
ROWS = [{"tokens": list(range(sum(n))), "parts": n} for n in ([20, 25], [5], [30, 10], [3, 3, 40])]
HEADS = (4, 2, 8)
SLOW = pytest.mark.slow


def options(ranks, **more):
    return {
        "token_budget": 50,
        "cluster": Cluster(devices_per_node=ranks),
        "shape": ModelShape(*HEADS, 4),
        "config": PlanConfig("static:zigzag"),
        "path": "data/mixed.jsonl",
        **more,
    }


def dense_of(masks, rows, budget=50):
    """The mask of one layer over a batch, pair by pair; `masks` of each sequence."""
    parts = []
    for mask, row in zip(masks, rows, strict=True):
        sample = Sample({"parts": ROWS[row]["parts"]}, len(ROWS[row]["tokens"]))
        parts.append(torch.from_numpy(dense_mask(mask, sample)[:budget, :budget]))
    return torch.block_diag(*parts).bool().numpy()


def check_layers(lab, ranks, mask_fn, masks_of, num_layers, attend=DCPAttn.apply, **more):
    """Run layers under the loader's plans on all ranks and compare each with dense attention.

    All batches run forward before the first runs backward.
    """
    q, kv, dout = lab.random_qkv(5, 50, *HEADS, torch.float32)
    loaded = list(make_loader(ROWS, mask_fn, rank=0, **options(ranks, **more)))

    def run(transport):
        executor, batches = DCPExecutor(transport=transport), []
        for _, plan in loaded:
            layers = LayerPlans.prepare(executor, plan)
            rows = torch.tensor(plan.local_tokens(transport.rank))
            outputs = []
            for layer in range(num_layers):
                leaves = [x[rows].clone().requires_grad_() for x in (q, kv)]
                outputs.append((attend(layers.of(layer), *leaves), *leaves))
            batches.append((rows, outputs))
        found = []
        for rows, outputs in batches:
            for out, *_ in reversed(outputs):
                out.backward(dout[rows])
            results = [{"out": o.detach(), "dq": a.grad, "dkv": b.grad} for o, a, b in outputs]
            found.append((rows, results))
        return found

    of_batches = zip(*LoopbackWorld(ranks).run(run), strict=True)
    for (data, plan), parts in zip(loaded, of_batches, strict=True):
        n = plan.num_tokens
        for layer in range(num_layers):
            whole = lab.whole_of([(rows, results[layer]) for rows, results in parts], n)
            dense = dense_of([masks_of(row, layer) for row in data.rows], data.rows)
            lab.assert_as_exact_as_eager(whole, q[:n], kv[:n], dout[:n], dense)


def mixed_mask(row, layer):
    """Of the stack `mixed`."""
    return SPEC.mask("own" if layer % 3 == 2 else "band")


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=SLOW), pytest.param(2, marks=SLOW), 4])
def test_every_layer_of_an_attached_stack_runs_its_own_mask_exactly(lab, ranks):
    check_layers(lab, ranks, SPEC, mixed_mask, num_layers=4)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_layers_that_a_checkpoint_runs_again_keep_the_plan_of_their_batch(lab, use_reentrant):
    attend = partial(checkpoint, DCPAttn.apply, use_reentrant=use_reentrant)
    check_layers(lab, 2, SPEC, mixed_mask, num_layers=3, attend=attend)


def test_rows_of_a_batch_may_have_stacks_of_their_own(lab):
    def mask_of(row, layer):
        if row == 1:
            return SPEC.mask("own")
        first, last = ("band", 2) if row == 0 else ("band(w = 30)", 1)
        period = last + 1
        return SPEC.mask("own" if layer % period == last else first)

    def choose(row):
        if len(row["tokens"]) == 5:
            return SPEC.mask("own")
        return SPEC.stack("mixed" if row["parts"] == [20, 25] else "wide")

    check_layers(lab, 2, choose, mask_of, num_layers=6)


def test_a_truncated_row_keeps_the_masks_of_its_first_tokens(lab, monkeypatch):
    def mask_of(row, layer):
        return SPEC.mask("own" if layer else "band(w = 30)")

    rows = [ROWS[1], {"tokens": list(range(70)), "parts": [30, 40]}]
    monkeypatch.setattr(sys.modules[__name__], "ROWS", rows)
    check_layers(lab, 2, SPEC.stack("wide"), mask_of, num_layers=2, policy="truncate")


def test_linear_layers_have_no_plan():
    plans = [plan for _, plan in make_loader(ROWS, SPEC.stack("hybrid"), rank=0, **options(2))]
    assert [plan.cycle for plan in plans] == [(-1, 0, -1, -1, 1)] * len(plans)
    assert all(len(plan.plans) == 2 for plan in plans)
    executor = DCPExecutor(transport=LoopbackTransport(LoopbackWorld(1), 0))
    alone = make_loader(ROWS, SPEC.stack("hybrid"), rank=0, **options(1))
    layers = LayerPlans.prepare(executor, next(iter(alone))[1])
    assert layers.of(6).plan is layers.of(1).plan is not layers.of(4).plan
    with pytest.raises(RunError, match="layer 5 of the stack is linear"):
        layers.of(5)


def test_a_layer_that_is_linear_in_some_rows_only_is_refused():
    stacks = ("hybrid", "mixed")
    rows = make_loader(
        ROWS, lambda row: SPEC.stack(stacks[len(row["parts"]) > 1]), rank=0, **options(2)
    )
    says = "linear in one stack of a batch and has a mask in another"
    with pytest.raises(DatasetError, match=says):
        list(rows)


def test_the_plans_of_a_stack_share_their_owners():
    own = [plan for _, plan in make_loader(ROWS, SPEC, rank=0, **options(2))]
    assert all(isinstance(plan, StackedPlans) and plan.cycle == (0, 0, 1) for plan in own)
    for plan in own:
        first, second = plan.plans
        assert (first.blocks.owner == second.blocks.owner).all()
        assert first.provenance.mask == "band"
        assert second.provenance.mask == "own"
        assert plan.digests == (digest(first), digest(second))


def test_a_stack_whose_layers_are_alike_gives_one_plan():
    for _, plan in make_loader(ROWS, SPEC.stack("alike"), rank=0, **options(2)):
        assert isinstance(plan, Plan)


@pytest.mark.parametrize("policy", ["error", "skip"])
def test_a_stack_with_masks_by_head_is_no_fault_of_a_row(policy):
    loader = make_loader(ROWS, SPEC.stack("by_head"), rank=0, **options(2, policy=policy))
    with pytest.raises(HeadError, match=r"^stack `by_head`, entry 0: KV heads of one layer have"):
        next(iter(loader))


def test_heads_with_masks_of_their_own_run_as_the_page_on_training_says(lab):
    """Two KV heads, each with a mask: the plans of a stack for one head, heads side by side."""
    q, kv, dout = lab.random_qkv(5, 50, *HEADS, torch.float32)
    rows = ROWS[2:3]

    def run(transport):
        executor = DCPExecutor(transport=transport)
        more = options(2, shape=ModelShape(2, 1, 8, 4))
        ((_, plan),) = make_loader(rows, SPEC.stack("wide"), rank=transport.rank, **more)
        layers = LayerPlans.prepare(executor, plan)
        own = torch.tensor(plan.local_tokens(transport.rank))
        leaves = [x[own].clone().requires_grad_() for x in (q, kv)]
        parts = [
            DCPAttn.apply(layers.of(entry), q_heads, kv_heads)
            for entry, q_heads, kv_heads in zip(
                (0, 1), leaves[0].split((2, 2), dim=1), leaves[1].split((1, 1), dim=2), strict=True
            )
        ]
        out = torch.cat(parts, dim=1)
        out.backward(dout[own])
        return own, {"out": out.detach(), "dq": leaves[0].grad, "dkv": leaves[1].grad}

    whole = lab.whole_of(LoopbackWorld(2).run(run), 40)
    for head, call in enumerate(("band(w = 30)", "own")):
        at, key = slice(2 * head, 2 * head + 2), slice(head, head + 1)
        own = {"out": whole["out"][:, at], "dq": whole["dq"][:, at], "dkv": whole["dkv"][:, :, key]}
        dense = dense_of([SPEC.mask(call)], [2])
        lab.assert_as_exact_as_eager(own, q[:40, at], kv[:40, :, key], dout[:40, at], dense)


def test_plans_that_place_tokens_differently_are_no_stack():
    plans = []
    for name in ("static:zigzag", "static:contiguous"):
        more = options(2, config=PlanConfig(name), hidden_targets="leave_out")
        (_, plan), *_ = make_loader(ROWS, SPEC.mask("own"), rank=0, **more)
        plans.append(plan)
    with pytest.raises(RunError, match="the plans of a stack place tokens on different ranks"):
        StackedPlans(tuple(plans), (0, 1))


def test_dcpm_plan_makes_the_plans_of_the_loader(tmp_path):
    (tmp_path / "a.dcpm").write_text(SPEC.source)
    (tmp_path / "mixed.jsonl").write_text("\n".join(json.dumps(row) for row in ROWS))
    command_line = [
        tmp_path / "a.dcpm", "--dataset", tmp_path / "mixed.jsonl", "--tokens", 50, "--batches", 9,
        "--cluster", "1x2", "--heads", "4/2/8", "--dtype-bytes", 4, "--backend", "static:zigzag",
        "--out", tmp_path / "plans",
    ]  # fmt: skip
    result = CliRunner().invoke(command, [str(part) for part in command_line])
    assert result.exit_code == 0, result.output
    loader = make_loader(ROWS, SPEC, rank=0, **options(2, cluster=preset("a100-p4de", 1, 2)))
    expected = [digests for _, plan in loader for digests in plan.digests]
    files = sorted((tmp_path / "plans").glob("*.dcpplan"))
    assert [digest(read_plan(file).plan) for file in files] == expected
    assert len(expected) == 6
