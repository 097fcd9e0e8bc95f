"""The length of blocks is chosen by predicted time, and never against what was asked for."""

from dataclasses import replace

import numpy as np
import pytest

from dcp_dsl import Slabs
from dcp_planner import (
    ModelShape,
    PlanConfig,
    build_plan,
    cut_blocks,
    cut_stack,
    fastest_block_size,
    find_cluster,
    predict,
)
from dcp_planner.model.cuts import choose_block_size, level_block_sizes
from dcp_planner.plan import block_size

SHAPE = ModelShape(8, 2, 128)
CLUSTER = find_cluster("h100-dgx:2x4")


def causal(length: int) -> Slabs:
    return Slabs(length, [0], [length], [0], [1], [0], [1])


def prefix(length: int, seen: int) -> Slabs:
    return Slabs(length, [0], [length], [0], [seen], [0], [0])


BATCHES = {
    "one document": [causal(32_768)],
    "a long one and short ones": [causal(24_000), *(causal(n) for n in range(300, 2_700, 300))],
    "a prefix": [prefix(16_000, 4_000), causal(8_000)],
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_length_packs_evenly_and_the_plan_holds_the_token_cap(name: str) -> None:
    batch = BATCHES[name]
    block = fastest_block_size([batch], SHAPE, CLUSTER)
    known = {choose_block_size(batch, CLUSTER), *level_block_sizes(batch, CLUSTER, PlanConfig())}
    assert block in known
    plan = build_plan(cut_blocks(batch, block), SHAPE, CLUSTER)
    assert plan.warnings == ()
    tokens = np.bincount(plan.blocks.owner, plan.blocks.end - plan.blocks.start, 8)
    assert tokens.max() <= 1.1 * tokens.mean()


def test_the_plan_is_faster_than_with_the_usual_length_where_another_is_chosen() -> None:
    changed = 0
    for batch in BATCHES.values():
        block, usual = (
            fastest_block_size([batch], SHAPE, CLUSTER),
            choose_block_size(batch, CLUSTER),
        )
        at = {b: predict(build_plan(cut_blocks(batch, b), SHAPE, CLUSTER)) for b in (block, usual)}
        assert at[block].seconds <= at[usual].seconds
        changed += block != usual
    assert changed, "some batch is faster with another length"


def test_dear_messages_make_blocks_longer() -> None:
    batch = BATCHES["a long one and short ones"]
    dear = replace(CLUSTER, message_launch_s=20e-6, inter_latency_s=60e-6)
    cheap = replace(CLUSTER, message_launch_s=0.0, latency_s=0.0, inter_latency_s=0.0)
    lengths = [fastest_block_size([batch], SHAPE, one) for one in (cheap, dear)]
    assert lengths[0] < lengths[1]


def test_one_long_document_is_no_slower_than_the_best_layout_in_blocks_of_the_usual_length() -> (
    None
):
    batch, cluster = [causal(1 << 20)], find_cluster("a100-p4de:4x8")
    config = PlanConfig(partials="input")
    ours = fastest_block_size([batch], SHAPE, cluster, config)
    plan = build_plan(cut_blocks(batch, ours), SHAPE, cluster, config)
    layout = cut_blocks(batch, choose_block_size(batch, cluster))
    zigzag = build_plan(layout, SHAPE, cluster, replace(config, partitioner="static:zigzag"))
    assert predict(plan).seconds <= predict(zigzag).seconds


@pytest.mark.parametrize(
    "config",
    [
        PlanConfig(budget="fast"),
        PlanConfig("static:zigzag"),
        PlanConfig("kahypar"),
        PlanConfig(objective="bytes"),
        PlanConfig(memory_limit_bytes=1 << 30),
    ],
)
def test_nothing_is_tried_where_time_alone_does_not_decide(config: PlanConfig) -> None:
    batch = BATCHES["a long one and short ones"]
    usual = choose_block_size(batch, CLUSTER, config)
    assert fastest_block_size([batch], SHAPE, CLUSTER, config) == usual


def test_large_and_settled_batches_take_the_usual_length(monkeypatch: pytest.MonkeyPatch) -> None:
    level = [causal(1_000)] * 64  # whole documents leave nothing to search for
    usual = choose_block_size(level, CLUSTER)

    def fail(*_: object, **__: object) -> None:
        pytest.fail("a length was tried")

    monkeypatch.setattr(block_size, "quick_seconds", fail)
    assert fastest_block_size([level], SHAPE, CLUSTER) == usual
    batch = BATCHES["one document"]
    monkeypatch.setattr(block_size, "MOST_WORK", 1)
    assert fastest_block_size([batch], SHAPE, CLUSTER) == choose_block_size(batch, CLUSTER)


def test_masks_of_a_stack_share_a_length_and_weigh_by_their_layers() -> None:
    batch = BATCHES["a long one and short ones"]
    window = [Slabs(s.num_tokens, [0], [s.num_tokens], [0], [1], [0], [1]) for s in batch]
    masks = [batch, window]
    block = fastest_block_size(masks, SHAPE, CLUSTER, layers=[1, 5])
    assert block == fastest_block_size([batch], SHAPE, CLUSTER)  # both masks are causal
    cuts = cut_stack(masks, block)
    assert np.array_equal(cuts[0].q_bounds, cuts[1].q_bounds)
