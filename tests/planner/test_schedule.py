"""Divisions chosen by the simulator; plans within a limit of memory, what they hold by hand."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from referee import judge
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
    predict,
    read_plan,
    simulate,
    validate,
    write_plan,
)
from dcp_planner.baselines import STATIC_KINDS, StaticLayout
from dcp_planner.model.problem import Placement, PlanWarning, build_workload
from dcp_planner.schedule.divisions import Manner, Schedule, Streaming, cut_streamed
from dcp_planner.schedule.emission import assemble
from dcp_planner.search.native import ladder
from dcp_planner.search.partitioners import place
from dcp_planner.simulation import schedules
from dcp_planner.simulation.schedules import make_schedule, predict_placement
from dcp_planner.tables import accumulator_bytes, receive_buffer_bytes


@given(st.data(), st.integers(2, 7))
@settings(max_examples=60)
def test_local_tiles_come_first_then_those_that_wait_for_keys_only_and_no_division_is_left_out(
    strategies, data, divisions
):
    workload, cluster, placed = data.draw(strategies.placed())
    schedule = make_schedule(workload, placed, cluster, PlanConfig(divisions=divisions))
    owner, device = placed.device_of_data, placed.device_of_compute
    needs_q = owner[workload.compute_q] != device
    is_local = ~needs_q & (owner[workload.compute_kv] == device)
    for division in (schedule.division, schedule.backward_division):
        assert ((division == 0) == is_local).all()
        assert division.max(initial=0) < divisions
        for at in {*device.tolist()}:
            found = {*division[device == at].tolist()} - {0}
            assert found == {*range(1, len(found) + 1)}
    for at in {*device.tolist()}:
        here = (device == at) & (schedule.division > 0)
        keys_only, rows = schedule.division[here & ~needs_q], schedule.division[here & needs_q]
        assert keys_only.max(initial=0) <= rows.min(initial=divisions)


@pytest.mark.parametrize(("launch_s", "parts"), [(1e-9, [1, 2, 4, 8]), (1.0, [1, 2])])
@pytest.mark.parametrize(("budget", "measures"), [("fast", 1), ("balanced", 2)])
def test_parts_become_finer_as_long_as_that_gains(
    masks, monkeypatch, budget, measures, launch_s, parts
):
    workload = build_workload(masks.pack([np.ones((24, 24), bool)], 2), ModelShape())
    placed = Placement(np.ones(workload.num_blocks, np.int32), np.zeros(workload.num_tiles, int))
    cluster = Cluster(1, 2, intra_bytes_per_s=1e6, flops_per_s=1e9, kernel_launch_s=launch_s)
    tried, cut = [], schedules.cut_divisions

    def note(*arguments):
        tried.append(arguments[3])
        return cut(*arguments)

    monkeypatch.setattr(schedules, "cut_divisions", note)
    make_schedule(workload, placed, cluster, PlanConfig(budget=budget))
    assert tried == 2 * (parts[:1] + measures * parts[1:])


def test_divisions_bring_equal_bytes(masks):
    # One device computes everything, the other owns everything: 12 key blocks arrive.
    workload = build_workload(masks.pack([np.ones((24, 24), bool)], 2), ModelShape())
    owner = np.ones(workload.num_blocks, np.int32)
    first_row = workload.compute_q == 0
    owner[0] = 0
    placed = Placement(owner, np.where(first_row, 0, 1))
    schedule = make_schedule(workload, placed, Cluster(1, 2), PlanConfig(divisions=4))
    arrivals = schedule.division[first_row & (workload.compute_kv > 0)]
    assert np.bincount(arrivals).tolist() in ([0, 4, 4, 3], [0, 4, 3, 4], [0, 3, 4, 4])


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


def held_by_hand(plan):
    """Bytes of receive buffers and of float32 sums, `[2, devices]`, from the tables alone."""
    table, rows = plan.transfers, np.zeros((2, plan.num_devices, 5), np.int64)
    end = table.slot + plan.blocks.num_tokens[table.block]
    np.maximum.at(rows, (table.is_backward.astype(int), table.target, table.kind), end)
    shape = plan.shape
    q, kv, heads = (
        shape.q_heads * shape.head_dim,
        2 * shape.kv_heads * shape.head_dim,
        shape.q_heads,
    )
    size, home = shape.dtype_bytes, 4 if shape.float32_partials else shape.dtype_bytes
    forward = [size * kv, size * q + 4 * (q + heads), home * q + 4 * heads, 0, 0]
    backward = [
        size * kv + 4 * kv, 2 * (size * q + 4 * heads) + 4 * q, 0, home * q, home * kv
    ]  # fmt: skip
    return (rows * np.array([[forward], [backward]])).sum(axis=2)


@given(st.data())
def test_predicted_ends_are_those_of_the_timeline_and_stated_bytes_those_of_the_rows(
    strategies, data
):
    plan = data.draw(strategies.placed_plans())
    trace, found = simulate(plan), predict(plan)
    assert found.forward_s == trace.end_ns[~trace.is_backward].max(initial=0) / 1e9
    assert found.seconds == pytest.approx(trace.end_ns.max(initial=0) / 1e9, rel=1e-12)
    assert np.array_equal(receive_buffer_bytes(plan) + accumulator_bytes(plan), held_by_hand(plan))


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


SHAPE = ModelShape(q_heads=4, kv_heads=2, head_dim=8, dtype_bytes=2)
FAST_LINKS = Cluster(2, 2, inter_bytes_per_s=1e8, intra_bytes_per_s=1e9, flops_per_s=1e9)
KV, Q = range(2)


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
    free = build_plan(sparsity, SHAPE, FAST_LINKS, config)
    limit = int(needed(free) * data.draw(st.sampled_from([0.8, 0.5, 0.3, 0.1])))
    try:
        plan = build_plan(sparsity, SHAPE, FAST_LINKS, replace(config, memory_limit_bytes=limit))
    except BufferLimitError as error:
        limit, refused = error.least, limit
        assert limit > refused
        plan = build_plan(sparsity, SHAPE, FAST_LINKS, replace(config, memory_limit_bytes=limit))
        with pytest.raises(BufferLimitError, match=f"at least {limit:,}, got {limit - 1:,}"):
            build_plan(sparsity, SHAPE, FAST_LINKS, replace(config, memory_limit_bytes=limit - 1))
    assert needed(plan) <= limit
    enough = replace(config, memory_limit_bytes=needed(free))
    assert digest(build_plan(sparsity, SHAPE, FAST_LINKS, enough)) == digest(free)


@settings(max_examples=3)
@given(st.data())
def test_nothing_that_was_found_under_the_caps_fits_a_limit_that_is_refused(masks, data):
    sparsity = drawn_batch(masks, data, st.integers(9, 28), 8, most=2)
    tolerance = data.draw(st.sampled_from([0.0, 0.1, 0.5]))
    config = PlanConfig(budget="fast", token_tolerance=tolerance, partials="input")
    try:
        build_plan(sparsity, SHAPE, FAST_LINKS, replace(config, memory_limit_bytes=0))
    except BufferLimitError as error:
        least = error.least
    else:
        return  # nothing needs to travel
    enough = build_plan(sparsity, SHAPE, FAST_LINKS, replace(config, memory_limit_bytes=least))
    assert needed(enough) <= least
    short = replace(config, memory_limit_bytes=least - 1)
    with pytest.raises(BufferLimitError):
        build_plan(sparsity, SHAPE, FAST_LINKS, short)
    workload = build_workload(sparsity, SHAPE)
    layouts = (StaticLayout(kind).place(workload, FAST_LINKS, config) for kind in STATIC_KINDS)
    most = (1 + tolerance) * workload.block_tokens.sum() / FAST_LINKS.num_devices
    for found in (*ladder(workload, FAST_LINKS, config), *layouts):
        if np.bincount(found.device_of_data, workload.block_tokens).max() <= most:
            with pytest.raises(BufferLimitError):
                make_schedule(workload, found, FAST_LINKS, short)


def test_a_tolerance_is_missed_rather_than_a_limit():
    spec = Spec.from_text("mask none = causal and q < k")
    calls = ("strided(13)", 58), ("full", 28), ("causal", 1)
    forms = [spec.mask(call).bind(Sample(length=n)) for call, n in calls]
    (sparsity,) = cut_stack([forms], 24)
    config = PlanConfig(token_tolerance=0, compute_tolerance=0.1, partials="input", budget="fast")
    limit = replace(config, memory_limit_bytes=200_000)
    plan = build_plan(sparsity, ModelShape(8, 2, 128, 2), Cluster(3, 3), limit)
    assert needed(plan) <= 200_000
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
        return assemble(workload, FAST_LINKS, placement, Schedule(*cuts, manners), "scattered")

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


def test_a_block_may_be_fetched_twice_and_every_judge_accepts_that(fetched_twice, tmp_path):
    plan, path = fetched_twice, tmp_path / "twice.dcpplan"
    assert max(received(plan).values()) > 1
    assert {kind for (_, kind, *_), times in received(plan).items() if times > 1} == {KV, Q}
    validate(plan)
    write_plan(path, plan)
    assert digest(read_plan(path).plan) == digest(plan)
    check(path)
    assert judge(str(path))["errors"] == []


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
