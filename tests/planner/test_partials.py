"""The type in which partial results travel: chosen by what it costs, and counted everywhere."""

from dataclasses import replace

import pytest

from dcp_planner import (
    BufferLimitError,
    Cluster,
    ModelShape,
    PlanConfig,
    build_plan,
    build_stack,
    cut_stack,
    digest,
    predict,
    read_plan,
    write_plan,
)
from dcp_planner.plan import decode_part, encode_parts, join_plans
from dcp_planner.tables.metrics import accumulator_bytes, receive_buffer_bytes

SHAPE = ModelShape(4, 2, 16, dtype_bytes=2)
CONFIG = PlanConfig("static:contiguous", divisions=3, routing="direct")
"""Neither placement nor schedule depends on the size of messages."""
NAMES = (("a", "b"), ("c", "d"))


@pytest.fixture
def sparsity(masks):
    return masks.pack([masks.causal(96), masks.sliding_window(64, 9)], 8)


def planned(sparsity, rate, **choices):
    cluster = Cluster(2, 2, inter_bytes_per_s=rate, flops_per_s=1e9)
    return build_plan(sparsity, SHAPE, cluster, replace(CONFIG, **choices))


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
    cluster, config = Cluster(1, 4), replace(CONFIG, memory_limit_bytes=0)
    level = replace(CONFIG, compute_tolerance=0.0)  # more than whole tiles allow: a warning
    exact, rounded = (
        [(build_plan(sparsity, SHAPE, cluster, replace(level, partials=choice)), 0)] * 2
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
        stack = build_stack([(cut[0], 1), (cut[1], 5)], SHAPE, cluster, CONFIG)
        (partials,) = {plan.shape.partials for plan in stack.plans}
        seen.add(partials)
    assert seen == {"float32", "input"}


def test_wider_inputs_travel_as_they_are_and_keep_their_digests(sparsity):
    cluster, shape = Cluster(2, 2), replace(SHAPE, dtype_bytes=4)
    plans = [
        build_plan(sparsity, shape, cluster, replace(CONFIG, partials=partials))
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
