"""The step of a planned batch: attention of all layers, and the tokens of the fullest device."""

import json
from dataclasses import replace

import numpy as np
import pytest
from command_runs import run

from dcp_dsl import Sample, Spec, block_sparsity
from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan, build_stack, measure, predict
from dcp_planner.commands.plan import plan as plan_command
from dcp_planner.step.iteration import predict_step
from dcp_planner.step.setting import Assignment, Documents, StepMesh, StepModel, step_model

TEXT = "mask m = causal\nmask w = causal and q - k < 512\nstack s = 3 of w, m"
SPEC = Spec.from_text(TEXT)
CLUSTER, SHAPE = Cluster(2, 4), ModelShape(8, 2)


def batch(mask: str, seed: int = 0):
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(7.5, 1.0, 12), 64, 12_000).astype(int).tolist()
    return block_sparsity([SPEC.mask(mask).compile(Sample({}, n)) for n in lengths], 512, 512)


def layer(plan, price: float) -> float:
    return predict(plan).seconds + price * max(measure(plan).owned_tokens)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("price", [1e-9, 1e-6])
def test_a_priced_plan_has_the_shorter_step(seed: int, price: float) -> None:
    sparsity = batch("m", seed)
    # One type of partial results: float32 may cost each plan 3 % of its own.
    config = PlanConfig(budget="fast", partials="input")
    default = build_plan(sparsity, SHAPE, CLUSTER, config)
    priced = build_plan(sparsity, SHAPE, CLUSTER, replace(config, token_seconds=price))
    assert layer(priced, price) <= layer(default, price) * (1 + 1e-9)


def test_dear_tokens_are_even_and_cheap_ones_follow_the_attention() -> None:
    """As the price falls, attention gets shorter and the fullest device fuller."""
    dear, cheap = (
        build_plan(batch("m"), SHAPE, CLUSTER, PlanConfig(budget="fast", token_seconds=price))
        for price in (1e-3, 1e-12)
    )
    assert max(measure(dear).owned_tokens) < max(measure(cheap).owned_tokens)
    assert predict(dear).seconds > predict(cheap).seconds
    assert not any("tokens" in warning.code for warning in cheap.warnings)


def test_tokens_above_the_largest_tried_tolerance_are_told_though_they_have_a_price() -> None:
    """Eight devices cannot share nine whole blocks evenly."""
    config = PlanConfig(budget="fast", token_seconds=1e-6, token_tolerance=0.01)
    sparsity = block_sparsity([SPEC.mask("m").compile(Sample({}, 512 * 9))], 512, 512)
    (told,) = (
        warning
        for warning in build_plan(sparsity, SHAPE, CLUSTER, config).warnings
        if warning.code == "tokens_above_tolerance"
    )
    assert "more than the tolerated 1.020" in told.message  # twice the tolerance, as is tried


def test_masks_of_a_stack_pay_for_their_tokens_together() -> None:
    price = 1e-6
    masks = [(batch("w"), 3), (batch("m"), 1)]
    steps = []
    for config in (PlanConfig(budget="fast"), PlanConfig(budget="fast", token_seconds=price)):
        stack = build_stack(masks, SHAPE, CLUSTER, config)
        tokens = max(measure(stack.plans[0]).owned_tokens)
        steps.append(stack.seconds() + sum(stack.layers) * price * tokens)
    assert steps[1] < steps[0]


def test_plan_prints_attention_and_step(tmp_path):
    (tmp_path / "s.dcpm").write_text(TEXT)
    result = run(
        plan_command, tmp_path / "s.dcpm", "--mask", "s", "--sample", "len = 9000",
        "--sample", "len = 3000", "--cluster", "h100-dgx:1x4", "--budget", "fast",
        "--model", "llama-8b", "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    cycle = sum(found["total"][f"predicted_{side}_s"]["mean"] for side in ("forward", "backward"))
    fullest = found["masks"][0]["batches"][0]["token_imbalance"] * 12_000 / 4
    step = {name: found["step"][name]["mean"] for name in ("attention_s", "linear_s", "step_s")}
    assert step["attention_s"] == pytest.approx(32 * cycle / 4)  # 32 layers, in cycles of 4
    assert step["linear_s"] == pytest.approx(6 * 7.5e9 * fullest / (0.55 * 989e12))
    assert step["step_s"] == pytest.approx(step["attention_s"] + step["linear_s"])
    assert found["masks"][0]["shape"]["q_heads"] == 32


def test_heads_of_a_device_have_their_share_of_the_model() -> None:
    whole = step_model("llama-8b")
    part = whole.with_heads(ModelShape(8, 2))
    assert part.token_seconds == pytest.approx(whole.token_seconds / 4)
    assert part.layers == whole.layers


@pytest.mark.parametrize(("when", "exchange_s"), [("micro_batch", 12 + 20), ("step", 4 + 20)])
def test_collectives_cost_what_rings_move_less_what_compute_hides(when, exchange_s):
    """4 GB a stage: in a node of two 2 s for each of 6 (or 2) passes, between two nodes 20 s."""
    mesh = StepMesh(2, 2, micro_batches=2, stages=2)
    model = StepModel(ModelShape(), 1, 1e12, 8e9, 1e15)
    place = {"micro_batch": [0] * 4 + [1] * 4, "first": [*range(4)] * 2, "width": [1] * 8}
    columns = {name: np.array(values, np.int32) for name, values in place.items()}
    cluster = Cluster(2, 2, intra_bytes_per_s=1e9, inter_bytes_per_s=1e8)
    time = predict_step(
        Documents.causal([1000] * 8), Assignment(mesh, **columns), model, cluster,
        synchronisation=when,
    )  # fmt: skip
    busy = time.linear_s + time.attention_s + time.waiting_s
    assert time.linear_s == pytest.approx(1.0)  # two micro-batches of 1 s, over two stages
    assert time.synchronisation_s == pytest.approx(exchange_s - 0.9 * busy)
    half = model.with_heads(ModelShape(4, 2))
    assert (half.parameter_bytes, half.linear_flops) == (4e9, 5e11)
