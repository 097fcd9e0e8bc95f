"""Which placement and schedule a plan gets: with and without limits, for stacks, joined, its front.

The choices are heuristic: their texts say that nothing has changed. That limits, caps and masks
hold is asserted elsewhere, of any plan.
"""

from dataclasses import replace

import numpy as np
import pytest
from dense_blocks import sparsity_of

from dcp_dsl import Sample, Spec
from dcp_planner import (
    BufferLimitError,
    Cluster,
    ModelShape,
    PlanConfig,
    PlanError,
    build_front,
    build_plan,
    build_stack,
    cut_stack,
    predict,
)
from dcp_planner.causes import diagnose, front_plans, suggest
from dcp_planner.model.problem import build_workload
from dcp_planner.plan import join_plans
from dcp_planner.report import bound_ratios
from dcp_planner.schedule.emission import assemble
from dcp_planner.search.partitioners import place
from dcp_planner.simulation.schedules import (
    make_schedule,
    weigh_placement,
)
from dcp_planner.tables.metrics import accumulator_bytes, receive_buffer_bytes

SHAPE = ModelShape(2, 1, 8, 2)
TWO = Cluster(2, 2, inter_bytes_per_s=1e8, intra_bytes_per_s=1e9, flops_per_s=1e9)
UNEVEN = replace(TWO, devices=((1, 0.5), (1,)), kernel_launch_s=1e-6, host_message_s=1e-6)
FAST = PlanConfig(budget="fast")


def digits(numbers):
    return "".join(map(str, np.asarray(numbers).tolist()))


def told(plan):
    """Say who owns and computes what, when, and at what cost."""
    took, memory = predict(plan), receive_buffer_bytes(plan) + accumulator_bytes(plan)
    lines = [
        f"{plan.partitioner}, {plan.shape.partials}: owners {digits(plan.blocks.owner)}, tiles "
        f"{digits(plan.tiles.device)}, divisions {digits(plan.tiles.division)} "
        f"{digits(plan.tiles.backward_division)}",
        f"  {1e6 * took.forward_s:.2f} + {1e6 * took.backward_s:.2f} us, at most "
        f"{int(memory.max())} bytes, {len(plan.transfers)} transfers",
    ]
    return "\n".join([*lines, *(f"  {warning}" for warning in plan.warnings)])


def told_or_refused(make, *arguments):
    try:
        made = make(*arguments)
    except PlanError as error:
        return f"{type(error).__name__}: {error}"
    plans = made.plans if hasattr(made, "plans") else (made,)
    return "\n".join(map(told, plans))


@pytest.fixture(scope="module")
def batch(masks):
    return sparsity_of([masks.causal(34), masks.sliding_window(22, 9), masks.causal(9)], 12)


def test_limits_of_memory(batch, snapshots):
    """Enough, a little less, half; not all of them for each partitioner."""
    found = {}
    for name, config, cluster, shares in (
        ("zigzag", PlanConfig("static:zigzag"), TWO, (1.0, 0.99, 0.5)),
        ("contiguous, direct", PlanConfig("static:contiguous", routing="direct"), UNEVEN, (0.7,)),
        ("native", PlanConfig("native", budget="fast"), TWO, (0.8, 0.4)),
        ("portfolio", replace(FAST, token_tolerance=0.0), UNEVEN, (0.6,)),
        ("two head groups", replace(FAST, head_groups=2), TWO, (0.8,)),
        ("four divisions", PlanConfig("static:ring", divisions=4), TWO, (0.8,)),
        ("rounded", PlanConfig("static:grid", partials="input"), TWO, (0.8,)),
    ):
        shape = ModelShape(4, 2, 4, 2) if config.head_groups == 2 else SHAPE
        free = build_plan(batch, shape, cluster, config)
        need = int((receive_buffer_bytes(free) + accumulator_bytes(free)).max())
        texts = [told(free)]
        for limit in (int(share * need) for share in shares):
            limited = replace(config, memory_limit_bytes=limit)
            text = told_or_refused(build_plan, batch, shape, cluster, limited)
            texts.append(f"within {limit}: {'the same' if text == texts[0] else text}")
        found[name] = "\n".join(texts)
    snapshots.check("chosen_within_limits", found)


def test_streaming(masks, snapshots):
    """Ways of one placement that need less and less memory, until none does."""
    found = {}
    batches = {
        "one document": ([masks.causal(48)], 6, TWO),
        "all pairs": ([np.ones((32, 32), bool)], 4, TWO),
        "two documents, one node": ([masks.causal(40), masks.causal(24)], 8, replace(TWO, nodes=1)),
    }  # fmt: skip
    for name, (dense, block, cluster) in batches.items():
        workload = build_workload(sparsity_of(dense, block), SHAPE)
        config = PlanConfig("static:zigzag", partials="input")
        placed = place(workload, cluster, config)
        need = weigh_placement(workload, placed, cluster, config).memory_bytes
        texts = [f"free: {need} bytes"]
        for share in (0.9, 0.7, 0.5, 0.3):
            limited = replace(config, memory_limit_bytes=int(share * need))
            try:
                schedule = make_schedule(workload, placed, cluster, limited)
            except BufferLimitError as error:
                texts.append(f"{limited.memory_limit_bytes}: refused, {error.least} would do")
                limited = replace(config, memory_limit_bytes=error.least)
                schedule = make_schedule(workload, placed, cluster, limited)
            plan = assemble(workload, cluster, placed, schedule, name)
            memory = (receive_buffer_bytes(plan) + accumulator_bytes(plan)).max()
            manners = [
                f"{manner.routing}{' frugal' * manner.is_frugal} {manner.idle}"
                for manner in schedule.manners
            ]
            texts.append(
                f"{limited.memory_limit_bytes}: {manners}, {digits(schedule.division)} "
                f"{digits(schedule.backward_division)}, {memory} bytes, {len(plan.transfers)} "
                f"transfers, {1e6 * predict(plan).seconds:.2f} us"
            )
        found[name] = "\n".join(dict.fromkeys(texts))
    snapshots.check("chosen_streamed", found)


def test_stacks(snapshots):
    spec = Spec.from_text("mask near = causal and q - k < 7")
    forms = [[spec.mask(name).bind(Sample(length=n)) for n in (40, 25)]
             for name in ("causal", "near")]  # fmt: skip
    causal, local = cut_stack(forms, 10)
    found = {}
    for name, layers, config in (
        ("zigzag", (1, 5), PlanConfig("static:zigzag")),
        ("zigzag, little memory", (1, 5), PlanConfig("static:zigzag", memory_limit_bytes=2500)),
        ("grid", (3, 1), PlanConfig("static:grid")),
        ("portfolio", (1, 5), FAST),
        ("portfolio, direct", (5, 1), replace(FAST, routing="direct")),
        ("native, priced tokens", (2, 2), PlanConfig("native", budget="fast", token_seconds=1e-6)),
        ("portfolio, wide caps", (1, 1), replace(FAST, compute_tolerance=1.0, partials="input")),
        ("heads in groups", (1, 1), replace(FAST, head_groups=2)),
    ):
        entries = [(causal, layers[0]), (local, layers[1])]
        found[name] = told_or_refused(build_stack, entries, SHAPE, TWO, config)
    one = build_stack([(local, 4)], SHAPE, TWO, FAST)
    found["one mask"] = f"{told(one.plans[0])}\n{1e6 * one.seconds():.2f} us"
    snapshots.check("chosen_for_stacks", found)


def test_joined_plans(masks, snapshots):
    def planned(lengths, cluster, **choices):
        config = PlanConfig("static:zigzag", **choices)
        return build_plan(masks.pack([masks.causal(n) for n in lengths], 8), SHAPE, cluster, config)

    one, two = Cluster(1, 1), replace(TWO, nodes=1)
    alone, pair = planned([9], one), planned([20, 12], two)
    exact = planned([17], two, partials="float32")
    rounded = planned([24, 8], two, partials="input")
    heads = PlanConfig(head_groups=2)
    groups = build_plan(masks.pack([masks.causal(16)], 8), ModelShape(2, 2, 8, 2), two, heads)
    found = {}
    for name, parts, limit in (
        ("side by side", [(pair, 0), (rounded, 2)], None),
        ("on shared devices", [(pair, 0), (alone, 0), (pair, 1)], None),
        ("both in float32", [(exact, 1), (pair, 2)], None),
        ("too tight for float32", [(exact, 0), (exact, 0), (pair, 0)], 2900),
        ("too tight", [(exact, 0), (pair, 0)], 1500),
        ("nothing", [], None),
        ("beyond the cluster", [(pair, 3)], None),
        ("before the cluster", [(pair, -1)], None),
        ("head groups", [(pair, 0), (groups, 0)], None),
    ):
        config = replace(FAST, memory_limit_bytes=limit)
        found[name] = told_or_refused(join_plans, parts, TWO, config)
    snapshots.check("chosen_when_joined", found)


def test_fronts(batch, snapshots):
    front = build_front(batch, SHAPE, TWO, FAST)
    rows = [" ".join(f"{name} {value:.5g}" for name, value in point.figures().items())
            for point in front]  # fmt: skip
    found = {"front": "\n".join(rows)}
    for objective in ("bytes", "balance", "memory"):
        plan = build_plan(batch, SHAPE, TWO, replace(FAST, objective=objective))
        found[f"least {objective}"] = told(plan)
    contiguous = build_plan(batch, SHAPE, TWO, PlanConfig("static:contiguous"))
    found["front of a plan"] = "\n".join(map(told, front_plans(contiguous)))
    found["suggestions"] = "\n".join(
        f"{one.change} | {one.option} | {1e6 * one.seconds:.2f} us, saves {1e6 * one.saves_s:.2f}"
        for one in suggest(contiguous, diagnose(contiguous))
    )
    snapshots.check("chosen_from_fronts", found)


def test_bounds(masks, snapshots):
    """Ratios over the bounds, on machines whose ports, rates and nodes differ."""
    clusters = {
        "one node": Cluster(1, 4, flops_per_s=1e9), "two nodes": TWO, "uneven": UNEVEN,
        "shared ports": Cluster(2, 3, devices_per_nic=2, inter_bytes_per_s=1e7, flops_per_s=1e9),
        "backward rate": Cluster(3, 1, backward_flops_per_s=1e8, flops_per_s=1e9),
    }  # fmt: skip
    batches = ([masks.causal(200)], [masks.sliding_window(120, 30), np.ones((64, 64), bool)])
    found = {}
    for name, cluster in clusters.items():
        texts = []
        for batch in batches:
            plan = build_plan(masks.pack(batch, 8), SHAPE, cluster, PlanConfig("static:zigzag"))
            ratios = bound_ratios(plan, predict(plan))
            texts.append(" ".join(f"{of} {ratio:.5g}" for of, ratio in ratios.items()))
        found[name] = "\n".join(texts)
    snapshots.check("bounds", found)
