"""Reproducible plans: cut on a grid of each sequence, whole rows with their owners, exact sums.

What they are for, equal bits, is checked where plans run: tests/runtime/test_reproducible.py.
"""

from dataclasses import replace

import numpy as np
import pytest
from command_runs import run

from dcp_dsl import Sample, Slabs, Spec, block_sparsity
from dcp_planner import (
    BufferLimitError,
    Cluster,
    ModelShape,
    PlanConfig,
    PlanError,
    TransferKind,
    build_front,
    build_plan,
    build_stack,
    digest,
    read_plan,
    simulate,
    validate,
    write_plan,
)
from dcp_planner.commands.plan import plan as plan_command
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


def check(plan):
    """Check what equal bits rest on, in words of its own."""
    validate(plan)
    assert plan.is_reproducible
    blocks, tiles, transfers = plan.blocks, plan.tiles, plan.transfers
    assert ((blocks.start - plan.cu_seqlens[blocks.sequence]) % GRID == 0).all()
    assert (tiles.device == blocks.owner[tiles.q_block]).all()
    assert np.isin(transfers.kind, [TransferKind.KV, TransferKind.DKV]).all()
    for q in np.unique(tiles.q_block):  # keys of a query from the last to the first
        mine = tiles.q_block == q
        assert (np.diff(tiles.division[mine]) <= 0).all()
        assert (np.diff(tiles.backward_division[mine]) <= 0).all()
    # Two digits of four bytes for each element of dk and dv, four bytes for each row of a head.
    sums = transfers.kind == TransferKind.DKV
    each = transfers.size_bytes[sums] / blocks.num_tokens[transfers.block[sums]]
    assert (each == 2 * 2 * (64 * 2 * 4 + 4)).all()


@pytest.mark.parametrize("partitioner", ["portfolio", "native", "static:zigzag", "static:grid"])
@pytest.mark.parametrize("mask", ["plain", "both", "comb"])
def test_rows_are_whole_in_every_plan(partitioner, mask):
    config = PlanConfig(partitioner, reproducible=True, budget="fast")
    check(build_plan(packed(mask), SHAPE, Cluster(2, 2), config))


@pytest.mark.parametrize("divisions", [2, 3, 7])
def test_rows_are_in_order_whatever_the_divisions(divisions):
    config = PlanConfig("static:zigzag", reproducible=True, divisions=divisions)
    check(build_plan(packed("both"), SHAPE, Cluster(2, 2), config))


def test_rows_are_in_order_where_memory_is_short():
    config, cluster = PlanConfig("static:ring", reproducible=True), Cluster(2, 2)
    free = build_plan(packed(), SHAPE, cluster, config)
    with pytest.raises(BufferLimitError) as refused:
        build_plan(packed(), SHAPE, cluster, replace(config, memory_limit_bytes=0))
    limit = refused.value.least
    plan = build_plan(packed(), SHAPE, cluster, replace(config, memory_limit_bytes=limit))
    check(plan)
    assert digest(plan) != digest(free)


def test_a_plan_survives_its_file_and_the_way_to_a_rank(plan, tmp_path):
    path = tmp_path / "a.dcpplan"
    write_plan(path, plan, [simulate(plan)])
    for is_foreign in (False, True):
        found = read_plan(path, is_foreign=is_foreign).plan
        assert digest(found) == digest(plan)
        assert found.is_reproducible
    assert all(decode_part(data).plan.is_reproducible for data in encode_parts(plan))
    other = build_plan(packed(), SHAPE, Cluster(2, 2), PlanConfig("static:ring"))
    assert not other.is_reproducible
    assert "exact_sums" not in other.shape.to_json()


@pytest.mark.parametrize("choices", [{"head_groups": 2}, {"partitioner": "static:heads"}])
def test_groups_of_heads_are_refused(choices):
    def build():
        config = PlanConfig(reproducible=True, **choices)
        return build_plan(packed(), SHAPE, Cluster(1, 2), config)

    with pytest.raises(PlanError, match="owner of a query computes all of"):
        build()
    # The ways out.
    for config in (PlanConfig(reproducible=True, head_groups="auto", budget="fast"),
                   PlanConfig("static:zigzag", reproducible=True)):  # fmt: skip
        check(build_plan(packed(), SHAPE, Cluster(1, 2), config))


def _moved(plan):
    tiles = plan.tiles
    return replace(plan, tiles=replace(tiles, device=(tiles.device + 1) % plan.num_devices))


def _late(name):
    def change(plan):
        tiles, division = plan.tiles, getattr(plan.tiles, name).copy()
        q = int(np.bincount(tiles.q_block).argmax())
        division[np.flatnonzero(tiles.q_block == q)[-1]] = 99  # the tile that comes first
        return replace(plan, tiles=replace(tiles, **{name: division}))

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_moved, "the owner of the queries computes a tile"),
        (_late("division"), "division never rises with the keys of a query"),
        (_late("backward_division"), "backward_division never rises with the keys of a query"),
    ],
)
def test_a_plan_that_breaks_a_rule_is_refused(plan, change, said):
    with pytest.raises(PlanError, match=said):
        validate(change(plan))


def test_a_plan_off_the_grid_is_refused():
    other = build_plan(packed(), SHAPE, Cluster(2, 2), PlanConfig("static:ring"))
    with pytest.raises(PlanError, match=f"cuts sequences at multiples of {GRID} tokens"):
        validate(replace(other, shape=replace(SHAPE, exact_sums=True)))


def test_masks_of_a_stack_share_owners():
    config = PlanConfig(reproducible=True, budget="fast")
    masks = [(packed("plain"), 1), (packed("both"), 3)]
    stack = build_stack(masks, SHAPE, Cluster(devices_per_node=3), config)
    for plan in stack.plans:
        check(plan)
    assert np.array_equal(stack.plans[0].blocks.owner, stack.plans[1].blocks.owner)


def test_every_plan_of_a_front_is_reproducible():
    config = PlanConfig(reproducible=True, budget="fast")
    for point in build_front(packed(), SHAPE, Cluster(1, 2), config):
        assert (np.diff(point.placement.device_of_data) >= 0).size  # it has owners
    for objective in ("bytes", "balance", "memory"):
        check(build_plan(packed(), SHAPE, Cluster(1, 2), replace(config, objective=objective)))


def test_joined_plans_stay_reproducible(plan):
    config = PlanConfig(reproducible=True)
    joined = join_plans([(plan, 0), (plan, 2)], Cluster(devices_per_node=6), config)
    check(joined)
    assert joined.num_tokens == 2 * plan.num_tokens
    other = build_plan(packed(), SHAPE, Cluster(2, 2), PlanConfig("static:ring"))
    with pytest.raises(PlanError, match="all reproducible, or none is"):
        join_plans([(plan, 0), (other, 2)], Cluster(devices_per_node=6), config)


def test_empty_batches_and_sequences_without_pairs():
    nothing = Slabs(40, *np.zeros((0, 6), np.int64).T)
    config = PlanConfig(reproducible=True, budget="fast")
    for sequences in ([], [nothing]):
        plan = build_plan(block_sparsity(sequences, 64, 64), SHAPE, Cluster(1, 2), config)
        assert plan.is_reproducible
        assert len(plan.transfers) == 0


def test_the_command_plans_so_and_says_so(tmp_path):
    spec, out = tmp_path / "a.dcpm", tmp_path / "a.dcpplan"
    spec.write_text("mask local = causal and q - k < 300\n")
    options = ("--sample", "len=2000", "--cluster", "1x2", "--backend", "static:zigzag")
    done = run(plan_command, spec, *options, "--reproducible", "--out", out)
    assert done.exit_code == 0, done.output
    assert "as whole numbers: the same bits in every plan" in " ".join(done.output.split())
    assert read_plan(out).plan.is_reproducible
    refused = run(plan_command, spec, *options, "--reproducible", "--head-groups", 2)
    assert refused.exit_code != 0
