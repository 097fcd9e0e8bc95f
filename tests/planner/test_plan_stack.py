"""Several masks over one ownership of tokens, and the type in which partial results travel."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dcp_dsl import Sample, Spec
from dcp_planner import (
    BufferLimitError,
    Cluster,
    ModelShape,
    PlanConfig,
    PlanError,
    build_plan,
    build_stack,
    cut_stack,
    digest,
    measure,
    predict,
    read_plan,
    validate,
    write_plan,
)
from dcp_planner.model.problem import Placement, build_workload
from dcp_planner.plan import decode_part, encode_parts, join_plans
from dcp_planner.plan.build import PlanStack
from dcp_planner.schedule.emission import assemble
from dcp_planner.search.partitioners import place
from dcp_planner.simulation.schedules import make_schedule
from dcp_planner.tables.metrics import accumulator_bytes, receive_buffer_bytes

CONFIG = PlanConfig("static:zigzag")
CLUSTER = Cluster(2, 2)


def near_and_causal(lengths, block, layers):
    spec = Spec.from_text("mask near = causal and q - k < 7")
    forms = [[spec.mask(call).bind(Sample(length=n)) for n in lengths]
             for call in ("near", "causal")]  # fmt: skip
    return list(zip(cut_stack(forms, block), layers, strict=True))


@pytest.fixture
def cut(masks):
    lengths = (30, 17)
    causal = [masks.slabs(masks.causal(n)) for n in lengths]
    local = [masks.slabs(masks.sliding_window(n, 7)) for n in lengths]
    return cut_stack([causal, local], 4)


def test_every_mask_gets_a_valid_plan_and_all_share_their_owners(cut):
    stack = build_stack([(cut[0], 1), (cut[1], 5)], ModelShape(), CLUSTER, CONFIG)
    assert stack.layers == (1, 5)
    for plan, sparsity in zip(stack.plans, cut, strict=True):
        validate(plan)
        assert plan.tiles.pairs.sum() == sparsity.num_pairs
        assert (plan.blocks.owner == stack.plans[0].blocks.owner).all()


def test_a_refusal_names_the_least_memory_that_all_masks_fit(masks):
    light = np.eye(17, dtype=bool)
    light[16] = True  # a block of one token sees all others
    forms = [[masks.slabs(dense)] for dense in (masks.causal(17), light)]
    stack = [(sparsity, 1) for sparsity in cut_stack(forms, 4)]

    def build(stack, limit):
        config = replace(CONFIG, memory_limit_bytes=limit)
        build_stack(stack, ModelShape(), Cluster(1, 2), config)

    def least(stack, limit):
        with pytest.raises(BufferLimitError) as refused:
            build(stack, limit)
        return refused.value.least

    found = least(stack, 0)
    assert least(stack[::-1], 0) == least(stack, found - 1) == found
    build(stack, found)


def test_a_stack_that_is_too_fast_for_a_limit_is_placed_otherwise():
    entries = near_and_causal((30, 17), 8, (1, 2))
    free, needs = build_stack(entries, ModelShape(), CLUSTER, CONFIG), []
    for plan, (sparsity, _) in zip(free.plans, entries, strict=True):
        workload = build_workload(sparsity, ModelShape())
        placement = Placement(plan.blocks.owner, plan.tiles.device)
        with pytest.raises(BufferLimitError) as refused:
            make_schedule(workload, placement, CLUSTER, replace(CONFIG, memory_limit_bytes=0))
        needs.append(refused.value.least)
    short = replace(CONFIG, memory_limit_bytes=max(needs) - 1)
    for plan in build_stack(entries, ModelShape(), CLUSTER, short).plans:
        assert int((receive_buffer_bytes(plan) + accumulator_bytes(plan)).max()) < max(needs)


def test_a_stack_takes_the_time_of_its_layers(cut):
    stack = build_stack([(cut[0], 2), (cut[1], 3)], ModelShape(), CLUSTER, CONFIG)
    assert stack.seconds() == pytest.approx(
        2 * predict(stack.plans[0]).seconds + 3 * predict(stack.plans[1]).seconds
    )


def test_no_single_ownership_is_faster_than_the_chosen_one(cut):
    masks = [(cut[0], 1), (cut[1], 7)]
    config = replace(CONFIG, partitioner="static:contiguous")
    chosen = build_stack(masks, ModelShape(), CLUSTER, config).seconds()
    for sparsity, _ in masks:
        owner = place(build_workload(sparsity, ModelShape()), CLUSTER, config).device_of_data
        total = sum(count * predict(at_queries(each, owner)).seconds for each, count in masks)
        loads = [np.bincount(owner[s.row_idx], weights=s.pairs, minlength=4) for s, _ in masks]
        is_overloaded = any(load.max() > 1.1 * load.mean() for load in loads)
        assert chosen <= total * (1 + 1e-9) or is_overloaded


def at_queries(sparsity, owner):
    workload = build_workload(sparsity, ModelShape())
    placement = Placement(owner, owner[workload.compute_q])
    schedule = make_schedule(workload, placement, CLUSTER, CONFIG)
    return assemble(workload, CLUSTER, placement, schedule, "queries")


@pytest.mark.parametrize("layers", [(5, 1), (1, 5)])
def test_the_portfolio_is_never_slower_than_a_static_layout_that_holds_the_caps(layers):
    entries = near_and_causal((300, 200, 50), 12, layers)
    caps = PlanConfig(budget="fast", compute_tolerance=1.0)  # which layouts can hold
    ours = build_stack(entries, ModelShape(), CLUSTER, caps).seconds()
    compared = []
    for kind in ("contiguous", "zigzag", "ring", "grid"):
        config = replace(caps, partitioner=f"static:{kind}")
        plans = [build_plan(sparsity, ModelShape(), CLUSTER, config) for sparsity, _ in entries]
        seconds = sum(n * predict(plan).seconds for plan, n in zip(plans, layers, strict=True))
        if not any(plan.warnings for plan in plans):
            assert ours <= seconds * (1 + 1e-9), kind
            compared.append(kind)
    assert len(compared) >= 2, compared


def test_every_mask_of_a_stack_holds_the_caps():
    entries = near_and_causal((300, 200, 50), 12, (1, 5))
    stack = build_stack(
        entries, ModelShape(), CLUSTER, PlanConfig(budget="fast", compute_tolerance=0.1)
    )
    assert max(measure(plan).compute_imbalance for plan in stack.plans) <= 1.10
    assert not any(plan.warnings for plan in stack.plans)


def test_a_stack_of_one_mask_is_no_worse_than_its_plan_where_queries_stay(cut):
    one = build_stack([(cut[1], 1)], ModelShape(), CLUSTER, CONFIG)
    alone = build_plan(cut[1], ModelShape(), CLUSTER, CONFIG)
    assert (one.plans[0].blocks.owner == alone.blocks.owner).all()


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_masks_on_any_cluster_make_valid_plans(strategies, data):
    sparsity, cluster = data.draw(strategies.sparsities()), data.draw(strategies.clusters())
    # The same mask twice is two masks for the planner.
    entries = [(sparsity, 1), (replace(sparsity, slabs=sparsity.slabs), 3)]
    for plan in build_stack(entries, ModelShape(), cluster, CONFIG).plans:
        validate(plan)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], "at least one mask"),
        ([(4, 0)], "mask 0 of the stack: expected at least 1 layer, got 0"),
        ([(4, 1), (5, 1)], "mask 1 of the stack is cut at other places"),
    ],
)
def test_what_is_no_stack_is_refused(masks, entries, message):
    cut = [(masks.pack([masks.causal(24)], block), layers) for block, layers in entries]
    with pytest.raises(PlanError, match=message):
        build_stack(cut, ModelShape(), CLUSTER, CONFIG)


def test_masks_of_different_sequences_cannot_be_cut_together(masks):
    with pytest.raises(ValueError, match="the same lengths of sequences"):
        cut_stack([[masks.slabs(masks.causal(8))], [masks.slabs(masks.causal(9))]], 4)


def test_plans_with_different_owners_are_no_stack(cut):
    plans = [build_plan(cut[0], ModelShape(), CLUSTER, PlanConfig(f"static:{kind}"))
             for kind in ("zigzag", "contiguous")]  # fmt: skip
    with pytest.raises(PlanError, match="share their blocks and owners: owner differs"):
        PlanStack(tuple(plans), (1, 1))


PARTIALS_SHAPE = ModelShape(4, 2, 16, dtype_bytes=2)
PARTIALS_CONFIG = PlanConfig("static:contiguous", divisions=3, routing="direct")
"""Neither placement nor schedule depends on the size of messages."""
NAMES = (("a", "b"), ("c", "d"))


@pytest.fixture
def sparsity(masks):
    return masks.pack([masks.causal(96), masks.sliding_window(64, 9)], 8)


def planned(sparsity, rate, **choices):
    cluster = Cluster(2, 2, inter_bytes_per_s=rate, flops_per_s=1e9)
    return build_plan(sparsity, PARTIALS_SHAPE, cluster, replace(PARTIALS_CONFIG, **choices))


@pytest.mark.parametrize("token_seconds", [0.0, 1e-4])
def test_float32_is_taken_where_it_adds_at_most_three_percent(sparsity, token_seconds):
    chosen = []
    for rate in (1e4, 1e6, 3e6, 1e7, 2e7, 5e7, 1e8, 1e9):
        plan = planned(sparsity, rate, token_seconds=token_seconds)
        exact, rounded = (planned(sparsity, rate, partials=p) for p in ("float32", "input"))
        most = max(len(plan.local_tokens(device)) for device in range(4))
        times = [predict(p).seconds + most * token_seconds for p in (exact, rounded)]
        chosen.append(times[0] <= 1.03 * times[1])
        assert plan.shape.partials == ("float32" if chosen[-1] else "input")
        assert digest(plan) == digest(exact if chosen[-1] else rounded)
    assert chosen == sorted(chosen)
    assert set(chosen) == {False, True}


def test_a_memory_limit_that_float32_would_exceed_is_kept(sparsity):
    rounded = planned(sparsity, 1e12, partials="input")
    limit = int((receive_buffer_bytes(rounded) + accumulator_bytes(rounded)).max())
    assert planned(sparsity, 1e12).shape.partials == "float32"
    assert planned(sparsity, 1e12, memory_limit_bytes=limit).shape.partials == "input"
    with pytest.raises(BufferLimitError):
        planned(sparsity, 1e12, memory_limit_bytes=limit // 8, partials="float32")


def test_joined_plans_give_float32_up_where_it_would_not_fit(sparsity):
    cluster, config = Cluster(1, 4), replace(PARTIALS_CONFIG, memory_limit_bytes=0)
    level = replace(
        PARTIALS_CONFIG, compute_tolerance=0.0
    )  # more than whole tiles allow: a warning
    exact, rounded = (
        [(build_plan(sparsity, PARTIALS_SHAPE, cluster, replace(level, partials=choice)), 0)] * 2
        for choice in ("float32", "input")
    )
    with pytest.raises(BufferLimitError) as refused:
        join_plans(rounded, cluster, config)
    config = replace(config, memory_limit_bytes=refused.value.least)
    named = [(replace(exact[0][0], sequence_names=names), 0) for names in NAMES]
    joined = join_plans(named, cluster, config)
    assert joined.sequence_names == NAMES[0] + NAMES[1]
    assert [warning.code for warning in joined.warnings] == ["compute_above_tolerance"]
    assert join_plans([named[0], exact[1]], cluster, config).sequence_names == ()
    assert digest(joined) == digest(join_plans(rounded, cluster, config))
    held = receive_buffer_bytes(joined) + accumulator_bytes(joined)
    assert int(held.max()) <= refused.value.least
    with pytest.raises(BufferLimitError):
        join_plans(exact, cluster, replace(config, partials="float32"))


def test_masks_of_a_stack_share_the_type(masks):
    cut = cut_stack(
        [[masks.slabs(masks.causal(96))], [masks.slabs(masks.sliding_window(96, 5))]], 8
    )
    seen = set()
    for rate in (1e5, 1e7, 1e8, 1e10):
        cluster = Cluster(2, 2, inter_bytes_per_s=rate, flops_per_s=1e9)
        stack = build_stack([(cut[0], 1), (cut[1], 5)], PARTIALS_SHAPE, cluster, PARTIALS_CONFIG)
        (partials,) = {plan.shape.partials for plan in stack.plans}
        seen.add(partials)
    assert seen == {"float32", "input"}


def test_wider_inputs_travel_as_they_are_and_keep_their_digests(sparsity):
    cluster, shape = Cluster(2, 2), replace(PARTIALS_SHAPE, dtype_bytes=4)
    plans = [
        build_plan(sparsity, shape, cluster, replace(PARTIALS_CONFIG, partials=partials))
        for partials in ("auto", "float32", "input")
    ]
    assert {digest(plan) for plan in plans} == {GOLDEN}
    assert "float32_partials" not in plans[1].shape.to_json()


GOLDEN = "30e78ec32f44cae6ebbd2e8583cc2d70992f44ae124030bff6c6adc2459089d8"
"""As planned without a word on partial results."""


def test_files_and_parts_carry_the_type(sparsity, tmp_path):
    for partials in ("float32", "input"):
        plan = planned(sparsity, 1e9, partials=partials)
        write_plan(tmp_path / "a.dcpplan", plan)
        read = read_plan(tmp_path / "a.dcpplan").plan
        assert read.shape == plan.shape == decode_part(encode_parts(plan)[0]).plan.shape
        assert read.shape.partials == partials
