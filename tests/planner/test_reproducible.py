"""Reproducible plans: cut on a grid of each sequence, computed by owners, nothing is merged.

What they are for, equal bits, is checked where plans run: tests/runtime/test_reproducible.py.
"""

from dataclasses import replace

import numpy as np
import pytest

from dcp_dsl import Sample, Slabs, Spec, block_sparsity
from dcp_planner import (
    Cluster,
    ModelShape,
    PlanConfig,
    PlanError,
    TransferKind,
    build_front,
    build_plan,
    build_stack,
    digest,
    predict,
    read_plan,
    simulate,
    validate,
    write_plan,
)
from dcp_planner.causes import find_causes
from dcp_planner.causes.suggestions import front_plans, suggest
from dcp_planner.model.config import GRID
from dcp_planner.plan.assembly import join_plans
from dcp_planner.plan.columns import decode_part, encode_parts

SPEC = Spec.from_text("""
mask plain = causal
mask both = abs(q - k) < 700
mask comb = causal and (q - k) % 3 == 0
""")
SHAPE = ModelShape(4, 2, 64)
LENGTHS = (3000, 1, 700, 256)


def packed(mask="plain", block=300, lengths=LENGTHS):
    one = SPEC.mask(mask)
    return block_sparsity([one.bind(Sample({}, n)) for n in lengths], block, block)


@pytest.fixture(scope="module")
def plan():
    config = PlanConfig("static:ring", reproducible=True)
    return build_plan(packed(), SHAPE, Cluster(2, 2), config)


@pytest.mark.parametrize("partitioner", ["portfolio", "native", "static:zigzag", "static:grid"])
@pytest.mark.parametrize("mask", ["plain", "both", "comb"])
def test_owners_compute_all_that_is_added_up(partitioner, mask):
    config = PlanConfig(partitioner, reproducible=True, budget="fast")
    plan = build_plan(packed(mask), SHAPE, Cluster(2, 2), config)
    validate(plan)
    blocks, tiles = plan.blocks, plan.tiles
    assert plan.is_reproducible
    # Cut by the sequence alone.
    assert ((blocks.start - plan.cu_seqlens[blocks.sequence]) % GRID == 0).all()
    assert (tiles.device == blocks.owner[tiles.q_block]).all()
    # Inputs travel, results do not.
    assert (plan.transfers.kind < TransferKind.OUT).all()
    # In each program of backward: dq of the queries that the device owns, dk and dv of its keys.
    for program in plan.backward:
        done = [t for step in program.instructions for t in getattr(step, "tiles", ())]
        own = np.flatnonzero(blocks.owner[tiles.q_block] == program.device)
        keys = np.flatnonzero(blocks.owner[tiles.kv_block] == program.device)
        assert sorted(done) == [*own.tolist(), *(keys + len(tiles)).tolist()]


def test_sums_are_in_the_order_of_positions_whatever_the_divisions():
    for divisions in ("auto", 2, 3, 7):
        config = PlanConfig("static:zigzag", reproducible=True, divisions=divisions)
        tiles = build_plan(packed("both"), SHAPE, Cluster(2, 2), config).tiles
        for q in np.unique(tiles.q_block):  # keys of a query from the last to the first
            mine = tiles.q_block == q
            assert (np.diff(tiles.division[mine]) <= 0).all()
            assert (np.diff(tiles.backward_division[mine]) <= 0).all()
        for kv in np.unique(tiles.kv_block):  # queries of a key from the first to the last
            assert (np.diff(tiles.key_division[tiles.kv_block == kv]) >= 0).all()


def test_a_plan_survives_its_file_and_the_way_to_a_rank(plan, tmp_path):
    path = tmp_path / "a.dcpplan"
    write_plan(path, plan, [simulate(plan)])
    for is_foreign in (False, True):
        assert digest(read_plan(path, is_foreign=is_foreign).plan) == digest(plan)
    whole = plan.tiles
    for device, data in enumerate(encode_parts(plan)):
        part = decode_part(data).plan
        mine = (whole.device == device) | (plan.blocks.owner[whole.kv_block] == device)
        assert part.is_reproducible
        assert np.array_equal(part.tiles.key_division[mine], whole.key_division[mine])
        assert np.array_equal(part.tiles.pairs, np.where(mine, whole.pairs, 0))


def test_other_plans_have_no_such_column():
    plan = build_plan(packed(), SHAPE, Cluster(2, 2), PlanConfig("static:ring"))
    assert not plan.is_reproducible
    assert plan.tiles.key_division is None


@pytest.mark.parametrize(
    ("choices", "named"),
    [
        ({"head_groups": 2}, "head_groups"),
        ({"memory_limit_bytes": 1 << 20}, "memory_limit_bytes"),
        ({"objective": "bytes"}, "objective"),
    ],
)
def test_what_would_break_the_promise_is_refused(choices, named):
    with pytest.raises(PlanError, match=rf"PlanConfig\.{named}: a reproducible plan has"):
        PlanConfig(reproducible=True, **choices)
    # The way out: the same without that choice.
    assert PlanConfig(reproducible=True).reproducible


def _moved(plan):
    tiles = plan.tiles
    return replace(plan, tiles=replace(tiles, device=(tiles.device + 1) % plan.num_devices))


def _fallen(name):
    def change(plan):
        tiles, division = plan.tiles, getattr(plan.tiles, name).copy()
        # The first tile of a sum comes behind the others.
        q = int(np.bincount(tiles.q_block).argmax())
        kv = int(np.bincount(tiles.kv_block).argmax())
        at = np.flatnonzero(tiles.kv_block == kv)[0] if name == "key_division" else (
            np.flatnonzero(tiles.q_block == q)[-1]
        )  # fmt: skip
        division[at] = 99
        return replace(plan, tiles=replace(tiles, **{name: division}))

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_moved, "the owner of the queries computes a tile"),
        (_fallen("division"), "division never falls along a sum"),
        (_fallen("backward_division"), "backward_division never falls along a sum"),
        (_fallen("key_division"), "key_division never falls along a sum"),
    ],
)
def test_a_plan_that_breaks_a_rule_is_refused(plan, change, said):
    with pytest.raises(PlanError, match=said):
        validate(change(plan))


def test_a_plan_off_the_grid_is_refused():
    other = build_plan(packed(block=300), SHAPE, Cluster(2, 2), PlanConfig("static:ring"))
    owner = other.blocks.owner
    tiles = replace(
        other.tiles,
        device=owner[other.tiles.q_block],
        division=0 * other.tiles.division,
        backward_division=0 * other.tiles.division,
        key_division=0 * other.tiles.division,
    )
    with pytest.raises(PlanError, match=f"cuts sequences at multiples of {GRID} tokens"):
        validate(replace(other, tiles=tiles))


def test_masks_of_a_stack_share_owners():
    config = PlanConfig(reproducible=True, budget="fast")
    masks = [(packed("plain"), 1), (packed("both"), 3)]
    stack = build_stack(masks, SHAPE, Cluster(devices_per_node=3), config)
    assert all(plan.is_reproducible for plan in stack.plans)
    assert np.array_equal(stack.plans[0].blocks.owner, stack.plans[1].blocks.owner)


def test_joined_plans_stay_reproducible(plan):
    config = PlanConfig(reproducible=True)
    joined = join_plans([(plan, 0), (plan, 2)], Cluster(devices_per_node=6), config)
    assert joined.is_reproducible
    assert joined.num_tokens == 2 * plan.num_tokens
    other = build_plan(packed(), SHAPE, Cluster(2, 2), PlanConfig("static:ring"))
    with pytest.raises(PlanError, match="all reproducible, or none is"):
        join_plans([(plan, 0), (other, 2)], Cluster(devices_per_node=6), config)


def test_the_prediction_counts_both_halves_of_backward(plan):
    """Each half runs one of the two kernels: on one device that costs what whole tiles do."""
    alone = Cluster(devices_per_node=1)
    config = PlanConfig("static:contiguous")
    both = [
        predict(build_plan(packed(block=256), SHAPE, alone, replace(config, reproducible=r)))
        for r in (False, True)
    ]
    assert both[1].backward_s == pytest.approx(both[0].backward_s, rel=1e-6)
    assert both[1].forward_s == both[0].forward_s


def test_nothing_offers_plans_with_other_bits(plan):
    assert suggest(plan, find_causes(plan).diagnosis) == ()
    with pytest.raises(PlanError, match="a front has no reproducible plans"):
        front_plans(plan)
    with pytest.raises(PlanError, match="a front has no reproducible plans"):
        build_front(packed(), SHAPE, Cluster(2, 2), PlanConfig(reproducible=True))


def test_empty_batches_and_sequences_without_pairs():
    nothing = Slabs(40, *np.zeros((0, 6), np.int64).T)
    config = PlanConfig(reproducible=True, budget="fast")
    for sequences in ([], [nothing]):
        plan = build_plan(block_sparsity(sequences, 64, 64), SHAPE, Cluster(1, 2), config)
        assert plan.is_reproducible
        assert len(plan.transfers) == 0
