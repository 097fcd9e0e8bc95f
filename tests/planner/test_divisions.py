"""Divisions chosen by the simulator, and plans held to a limit of memory."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp_planner import (
    BufferLimitError,
    Cluster,
    ModelShape,
    PlanConfig,
    build_plan,
    predict,
    simulate,
    validate,
)
from dcp_planner.model.problem import PlanWarning, build_workload
from dcp_planner.schedule.emission import assemble
from dcp_planner.search.partitioners import place
from dcp_planner.simulation.schedules import make_schedule, predict_placement
from dcp_planner.tables import accumulator_bytes, receive_buffer_bytes

SLOW = Cluster(2, 2, inter_bytes_per_s=1e6, intra_bytes_per_s=1e7, latency_s=1e-4, flops_per_s=1e9)


@pytest.fixture
def workload(masks):
    return build_workload(masks.pack([masks.causal(64), masks.causal(40)], 4), ModelShape())


@pytest.mark.parametrize("routing", ["direct", "node"])
def test_the_chosen_divisions_are_no_slower_than_the_coarsest(workload, routing):
    config = PlanConfig("static:zigzag", divisions="auto", routing=routing)
    placement = place(workload, SLOW, config)

    def seconds(divisions):
        schedule = make_schedule(workload, placement, SLOW, replace(config, divisions=divisions))
        return predict(assemble(workload, SLOW, placement, schedule, "any"))

    chosen, coarsest = seconds("auto"), seconds(2)
    assert chosen.forward_s <= coarsest.forward_s
    assert chosen.backward_s <= coarsest.backward_s
    assert predict_placement(workload, placement, SLOW, config) == chosen


def needed(plan):
    return int((receive_buffer_bytes(plan) + accumulator_bytes(plan)).max())


def occupied(plan):
    """Count rows of the receive buffers, by hand: the end of the last slot of each kind."""
    table, tokens = plan.transfers, plan.blocks.num_tokens
    rows = {}
    for x in range(len(table)):
        place = bool(table.is_backward[x]), int(table.target[x]), int(table.kind[x])
        rows[place] = max(rows.get(place, 0), int(table.slot[x] + tokens[table.block[x]]))
    return rows


@given(st.data())
def test_predicted_ends_are_those_of_the_timeline_and_stated_bytes_those_of_the_rows(
    strategies, data
):
    plan = data.draw(strategies.placed_plans())
    check_predictions_are_the_end_of_the_simulated_timeline(plan)
    check_stated_bytes_are_the_rows_of_the_buffers_by_the_size_of_a_token(plan)


def check_predictions_are_the_end_of_the_simulated_timeline(plan):
    trace, found = simulate(plan), predict(plan)
    events = trace.end_ns[~trace.is_backward]
    assert found.forward_s == events.max(initial=0) / 1e9
    assert found.seconds == pytest.approx(trace.end_ns.max(initial=0) / 1e9, rel=1e-12)


def check_stated_bytes_are_the_rows_of_the_buffers_by_the_size_of_a_token(plan):
    shape = plan.shape
    q = shape.q_heads * shape.head_dim * shape.dtype_bytes
    kv = 2 * shape.kv_heads * shape.head_dim * shape.dtype_bytes
    heads = 4 * shape.q_heads
    wider = 4 // shape.dtype_bytes if shape.float32_partials else 1
    dq, dkv = wider * q, wider * kv
    sizes = {False: [kv, q, dq + heads, 0, 0], True: [kv, 2 * q + 2 * heads, 0, dq, dkv]}
    expected = np.zeros((2, plan.num_devices), np.int64)
    for (is_backward, device, kind), rows in occupied(plan).items():
        expected[int(is_backward), device] += rows * sizes[is_backward][kind]
    assert (receive_buffer_bytes(plan) == expected).all()


@pytest.mark.parametrize("routing", ["direct", "node"])
def test_a_memory_limit_is_kept_or_refused(masks, routing):
    sparsity = masks.pack([masks.causal(40), masks.causal(15)], 4)
    config = PlanConfig("static:zigzag", routing=routing)
    free = needed(build_plan(sparsity, ModelShape(), SLOW, config))
    kept, refusals = 0, []  # smallest limits that work
    for share in (1.0, 0.75, 0.01):
        limit = int(free * share)
        try:
            plan = build_plan(
                sparsity, ModelShape(), SLOW, replace(config, memory_limit_bytes=limit)
            )
        except BufferLimitError as error:
            refusals.append(error.least)
            continue
        validate(plan)
        assert needed(plan) <= limit
        kept += share < 1
    assert len(set(refusals)) == 1, "the smallest limit does not depend on the one given"
    for limit, fits in ((refusals[0], True), (refusals[0] - 1, False)):
        smallest = replace(config, memory_limit_bytes=limit)
        told = f"expected at least {refusals[0]:,}, got {limit:,}"
        with nullcontext() if fits else pytest.raises(BufferLimitError, match=told):
            assert needed(build_plan(sparsity, ModelShape(), SLOW, smallest)) <= limit
    assert refusals, "a hundredth of the memory was enough"
    assert kept, "no limit below what is needed without one could be kept"


def test_a_limit_that_a_static_layout_keeps_is_kept_with_a_warning(masks):
    sparsity = masks.pack([masks.sliding_window(96, 5)], 4)
    config = PlanConfig("static:zigzag", memory_limit_bytes=40_000)
    limit = needed(build_plan(sparsity, ModelShape(), SLOW, PlanConfig("static:contiguous")))
    plan = build_plan(sparsity, ModelShape(), SLOW, replace(config, memory_limit_bytes=limit))
    assert needed(plan) <= limit
    assert plan.partitioner == "static:contiguous"
    assert any(
        "placed by static:contiguous, because with static:zigzag" in w.message
        for w in plan.warnings
    )


def test_no_decision_reads_the_words_of_a_warning(masks, monkeypatch):
    sparsity = masks.pack([masks.causal(40), masks.sliding_window(22, 9)], 4)
    config = PlanConfig("static:zigzag", memory_limit_bytes=0)
    generous = replace(config, token_tolerance=100.0)
    reworded = "dcp_planner.search.caps.PlanWarning"
    monkeypatch.setattr(reworded, lambda code, _: PlanWarning(code, "something else"))
    plan = build_plan(sparsity, ModelShape(), SLOW, generous)
    assert plan.partitioner == "static:documents"
    with pytest.raises(BufferLimitError):  # whole documents would need too many tokens on a device
        build_plan(sparsity, ModelShape(), SLOW, config)


def test_within_a_limit_the_portfolio_is_no_slower_than_static_layouts(masks):
    sparsity = masks.pack([masks.causal(96), masks.sliding_window(50, 9)], 4)
    config = PlanConfig(partials="input", budget="fast", compute_tolerance=1.0)
    free = build_plan(sparsity, ModelShape(), SLOW, config)
    short = replace(config, memory_limit_bytes=needed(free) // 3)
    taken = build_plan(sparsity, ModelShape(), SLOW, short)
    assert needed(taken) <= needed(free) // 3
    compared = 0
    for kind in ("contiguous", "zigzag", "ring"):
        layout = build_plan(
            sparsity, ModelShape(), SLOW, replace(short, partitioner=f"static:{kind}")
        )
        if not layout.warnings:
            assert simulate(taken).seconds() <= simulate(layout).seconds()
            compared += 1
    assert compared


def test_without_anything_remote_no_memory_is_needed(masks):
    sparsity = masks.pack([masks.causal(16)], 4)
    config = PlanConfig("static:contiguous", memory_limit_bytes=0)
    assert needed(build_plan(sparsity, ModelShape(), Cluster(1, 1), config)) == 0
