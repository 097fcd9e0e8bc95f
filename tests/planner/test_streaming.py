"""Plans within a limit of memory: what they hold, counted by hand, and blocks fetched twice."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from second_validator import check

from dcp_dsl import Sample, Spec
from dcp_planner import (
    BufferLimitError,
    Cluster,
    ModelShape,
    PlanConfig,
    PlanError,
    build_plan,
    cut_stack,
    digest,
    read_plan,
    validate,
    write_plan,
)
from dcp_planner.baselines import STATIC_KINDS, StaticLayout
from dcp_planner.model.problem import Placement, build_workload
from dcp_planner.schedule.divisions import Manner, Schedule, Streaming, cut_streamed
from dcp_planner.schedule.emission import assemble
from dcp_planner.search.native import ladder
from dcp_planner.simulation.schedules import make_schedule
from dcp_planner.tables.metrics import accumulator_bytes, receive_buffer_bytes

SHAPE = ModelShape(q_heads=4, kv_heads=2, head_dim=8, dtype_bytes=2)
CLUSTER = Cluster(2, 2, inter_bytes_per_s=1e8, intra_bytes_per_s=1e9, flops_per_s=1e9)
KV, Q, OUT, DQ, DKV = range(5)


def most_held(plan):
    """Bytes of receive buffers and of float32 sums on the fullest device, from the tables alone."""
    held = {}
    for row in zip(
        plan.transfers.is_backward, plan.transfers.target, plan.transfers.kind,
        plan.transfers.slot, plan.transfers.block, strict=True,
    ):  # fmt: skip
        is_backward, device, kind, slot, block = map(int, row)
        rows = held.setdefault((is_backward, device), [0] * 5)
        end = slot + int(plan.blocks.end[block] - plan.blocks.start[block])
        rows[kind] = max(rows[kind], end)
    q, kv, heads = 4 * 8, 2 * 2 * 8, 4
    home = 4 if plan.shape.float32_partials else 2
    forward = [2 * kv, 2 * q + 4 * (q + heads), home * q + 4 * heads, 0, 0]
    backward = [2 * kv + 4 * kv, 2 * (2 * q + 4 * heads) + 4 * q, 0, home * q, home * kv]
    sizes = {0: forward, 1: backward}
    totals = [
        sum(n * size for n, size in zip(rows, sizes[is_backward], strict=True))
        for (is_backward, _), rows in held.items()
    ]
    return max(totals, default=0)


def received(plan):
    """Count how often each device receives each block, by direction and kind."""
    table = plan.transfers
    columns = (table.is_backward, table.kind, table.block, table.target)
    rows = zip(*(column[table.kind <= Q].tolist() for column in columns), strict=True)
    return Counter(rows)


def drawn_batch(masks, data, tokens, block, most):
    draws = [masks.causal, lambda n: masks.sliding_window(n, 7), lambda n: np.ones((n, n), bool)]
    lengths = data.draw(st.lists(tokens, min_size=1, max_size=most))
    return masks.pack([data.draw(st.sampled_from(draws))(n) for n in lengths], block)


@settings(max_examples=6)
@given(st.data())
def test_a_limit_that_is_accepted_is_held_and_one_that_is_refused_names_the_least(masks, data):
    sparsity = drawn_batch(masks, data, st.integers(1, 60), 6, most=3)
    layout = data.draw(st.sampled_from(["zigzag", "contiguous", "grid"]))
    routing = data.draw(st.sampled_from(["direct", "node"]))
    config = PlanConfig(f"static:{layout}", routing=routing)
    free = build_plan(sparsity, SHAPE, CLUSTER, config)
    limit = int(most_held(free) * data.draw(st.sampled_from([0.8, 0.5, 0.3, 0.1])))
    try:
        plan = build_plan(sparsity, SHAPE, CLUSTER, replace(config, memory_limit_bytes=limit))
    except BufferLimitError as error:
        limit, refused = error.least, limit
        assert limit > refused
        plan = build_plan(sparsity, SHAPE, CLUSTER, replace(config, memory_limit_bytes=limit))
    assert most_held(plan) <= limit
    enough = replace(config, memory_limit_bytes=most_held(free))
    assert digest(build_plan(sparsity, SHAPE, CLUSTER, enough)) == digest(free)


@settings(max_examples=3)
@given(st.data())
def test_nothing_that_was_found_under_the_caps_fits_a_limit_that_is_refused(masks, data):
    sparsity = drawn_batch(masks, data, st.integers(9, 28), 8, most=2)
    tolerance = data.draw(st.sampled_from([0.0, 0.1, 0.5]))
    config = PlanConfig(budget="fast", token_tolerance=tolerance, partials="input")
    try:
        build_plan(sparsity, SHAPE, CLUSTER, replace(config, memory_limit_bytes=0))
    except BufferLimitError as error:
        least = error.least
    else:
        return  # nothing needs to travel
    enough = build_plan(sparsity, SHAPE, CLUSTER, replace(config, memory_limit_bytes=least))
    assert most_held(enough) <= least
    short = replace(config, memory_limit_bytes=least - 1)
    with pytest.raises(BufferLimitError):
        build_plan(sparsity, SHAPE, CLUSTER, short)
    workload = build_workload(sparsity, SHAPE)
    layouts = (StaticLayout(kind).place(workload, CLUSTER, config) for kind in STATIC_KINDS)
    most = (1 + tolerance) * workload.block_tokens.sum() / CLUSTER.num_devices
    for found in (*ladder(workload, CLUSTER, config), *layouts):
        if np.bincount(found.device_of_data, workload.block_tokens).max() <= most:
            with pytest.raises(BufferLimitError):
                make_schedule(workload, found, CLUSTER, short)


def test_a_tolerance_is_missed_rather_than_a_limit():
    spec = Spec.from_text("mask none = causal and q < k")
    calls = ("strided(13)", 58), ("full", 28), ("causal", 1)
    forms = [spec.mask(call).bind(Sample(length=n)) for call, n in calls]
    (sparsity,) = cut_stack([forms], 24)
    config = PlanConfig(token_tolerance=0, partials="input", budget="fast")
    limit = replace(config, memory_limit_bytes=200_000)
    plan = build_plan(sparsity, ModelShape(8, 2, 128, 2), Cluster(3, 3), limit)
    assert int((receive_buffer_bytes(plan) + accumulator_bytes(plan)).max()) <= 200_000
    assert {"tokens_above_tolerance", "placed_by_layout"} <= {w.code for w in plan.warnings}


def test_float32_leaves_room_for_the_tokens_above_the_cap():
    causal = Spec.from_text("mask m = causal").mask("m").bind(Sample(length=891))
    (sparsity,) = cut_stack([[causal]], 128)
    config = PlanConfig("native", budget="fast", memory_limit_bytes=141_312)
    plans = [
        build_plan(sparsity, ModelShape(8, 2, 16), Cluster(1, 3), replace(config, partials=choice))
        for choice in ("auto", "input")
    ]
    assert "placed_by_layout" in {warning.code for warning in plans[0].warnings}
    assert digest(plans[0]) == digest(plans[1])


@pytest.fixture
def assembled(masks):
    """Assemble plans of one scattered placement: queries come and go, in backward keys do."""
    workload = build_workload(masks.pack([masks.causal(72), masks.causal(40)], 4), SHAPE)
    rng = np.random.default_rng(0)
    owner, device = (
        rng.integers(4, size=n).astype(np.int32) for n in (workload.num_blocks, workload.num_tiles)
    )
    placement = Placement(owner, device)
    cuts = [
        cut_streamed(workload, placement, direction, 16, Streaming(by, False, "bytes"))
        for direction, by in (("forward", "keys"), ("backward", "awaited"))
    ]

    def assembled(*manners):
        return assemble(workload, CLUSTER, placement, Schedule(*cuts, manners), "scattered")

    return assembled


def test_divisions_are_even_in_pairs_or_in_bytes_as_asked(masks):
    """Device 0 computes all: few pairs with each key of four blocks, many with the fifth."""
    workload = build_workload(masks.pack([masks.causal(4)] * 4 + [masks.causal(40)], 4), SHAPE)
    owner = np.ones(workload.num_blocks, np.int32)
    owner[5:] = 0
    placement = Placement(owner, np.zeros(workload.num_tiles, np.int32))

    def loads(even):
        found = cut_streamed(workload, placement, "forward", 2, Streaming("keys", False, even))
        return np.bincount(found, workload.compute_pairs)[1:]

    pairs, by_bytes = loads("pairs"), loads("bytes")
    assert np.ptp(pairs) <= workload.compute_pairs.max()
    assert np.ptp(pairs) < np.ptp(by_bytes)


@pytest.fixture
def fetched_twice(assembled):
    """A plan in which devices let blocks go as soon as a division does without them."""
    return assembled(Manner("node", True, 0), Manner("node", True, 1))


def test_a_block_may_be_fetched_twice_and_every_judge_accepts_that(
    fetched_twice, tmp_path, monkeypatch
):
    plan, path = fetched_twice, tmp_path / "twice.dcpplan"
    assert max(received(plan).values()) > 1
    assert {kind for (_, kind, *_), times in received(plan).items() if times > 1} == {KV, Q}
    validate(plan)
    write_plan(path, plan)
    assert digest(read_plan(path).plan) == digest(plan)
    check(path)
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2] / "planner" / "benchmarks")
    assert __import__("referee").judge(str(path))["errors"] == []


def test_blocks_that_stay_are_received_once(assembled):
    plan = assembled(Manner("node", True), Manner("direct"))
    assert set(received(plan).values()) == {1}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("same division", "no transfer is listed twice"),
        ("unread", "every transfer is needed by a tile"),
    ],
)
def test_visits_that_do_not_fit_the_tiles_are_refused(fetched_twice, change, says):
    plan, table = fetched_twice, fetched_twice.transfers
    twice = next(place for place, times in received(plan).items() if times > 1)
    columns = (table.is_backward, table.kind, table.block, table.target)
    rows = [x for x in range(len(table)) if tuple(int(c[x]) for c in columns) == twice]
    division = table.division.copy()
    division[rows[1]] = division[rows[0]] if change == "same division" else 10_000
    with pytest.raises(PlanError, match=says):
        validate(replace(plan, transfers=replace(table, division=division)))
