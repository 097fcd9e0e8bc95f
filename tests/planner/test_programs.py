"""Transfers and programs against brute force over the tile table."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp_planner import (
    Attention,
    Cluster,
    CommLaunch,
    CommWait,
    Copy,
    ModelShape,
    PlanConfig,
    Reduction,
    TransferKind,
    build_plan,
    digest,
    measure,
    validate,
)
from dcp_planner.program_table import restore_programs, tabulate_programs


@given(st.data())
def test_any_placement_makes_a_valid_plan(strategies, data):
    validate(data.draw(strategies.placed_plans()))


@given(st.data())
def test_bytes_sent_equal_bytes_placed(strategies, data):
    plan = data.draw(strategies.placed_plans())
    shape, owner = plan.shape, plan.blocks.owner.tolist()
    element, q_heads, kv_heads, dim = (
        shape.dtype_bytes, shape.q_heads, shape.kv_heads, shape.head_dim,
    )  # fmt: skip
    row, column = q_heads * dim * element, 2 * kv_heads * dim * element
    rows, columns = set(), set()
    for q, kv, device in zip(
        plan.tiles.q_block.tolist(),
        plan.tiles.kv_block.tolist(),
        plan.tiles.device.tolist(),
        strict=True,
    ):
        if owner[q] != device:
            rows.add((q, device))
        if owner[kv] != device:
            columns.add((kv, device))
    tokens = plan.blocks.num_tokens.tolist()
    row_tokens = sum(tokens[block] for block, _ in rows)
    column_tokens = sum(tokens[block] for block, _ in columns)
    found = measure(plan)
    assert (
        found.forward.total_bytes == row_tokens * (2 * row + 4 * q_heads) + column_tokens * column
    )
    assert found.backward.total_bytes == (
        row_tokens * (3 * row + 8 * q_heads) + column_tokens * 2 * column
    )
    for side in (found.forward, found.backward):
        assert sum(side.sent_bytes) == sum(side.received_bytes) == side.total_bytes
        assert sum(side.bytes_by_kind.values()) == side.total_bytes


@given(st.data())
def test_an_input_has_the_first_division_that_needs_it_and_a_result_the_last(strategies, data):
    plan = data.draw(strategies.placed_plans())
    tiles, table = plan.tiles, plan.transfers
    for x in range(len(table)):
        kind = TransferKind(int(table.kind[x]))
        column = tiles.q_block if kind.name in ("Q", "OUT", "DQ") else tiles.kv_block
        worker = table.source[x] if kind.is_result else table.target[x]
        division = tiles.backward_division if table.is_backward[x] else tiles.division
        divisions = division[(column == table.block[x]) & (tiles.device == worker)]
        assert table.division[x] == (divisions.max() if kind.is_result else divisions.min())
        home = table.target[x] if kind.is_result else table.source[x]
        assert home == plan.blocks.owner[table.block[x]]


@given(st.data())
def test_transfers_are_sorted_as_documented(strategies, data):
    table = data.draw(strategies.placed_plans()).transfers
    keys = [
        (bool(b), k >= TransferKind.OUT, d, block, s, t, k)
        for b, k, d, block, s, t in zip(
            table.is_backward.tolist(), table.kind.tolist(), table.division.tolist(),
            table.block.tolist(), table.source.tolist(), table.target.tolist(), strict=True,
        )
    ]  # fmt: skip
    assert keys == sorted(keys)


@given(st.data())
def test_programs_have_the_documented_shape(strategies, data):
    plan = data.draw(strategies.placed_plans())
    for direction in ("forward", "backward"):
        is_backward = direction == "backward"
        column = plan.tiles.backward_division if is_backward else plan.tiles.division
        last = max(plan.tiles.division.max(initial=0), plan.tiles.backward_division.max(initial=0))
        divisions = int(last) + 1
        for program in plan.programs(direction):
            expected = _expected_program(plan, program.device, is_backward, column, divisions)
            assert list(program.instructions) == expected


def _rows(plan):
    table = plan.transfers
    columns = (table.is_backward, table.kind, table.division, table.source, table.target)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _expected_program(plan, device, is_backward, column, divisions):
    rows = _rows(plan)

    def ids(is_result, division):
        return tuple(
            x
            for x, (backward, kind, at, source, target) in enumerate(rows)
            if backward == is_backward
            and (kind >= TransferKind.OUT) == is_result
            and at == division
            and device in (source, target)
        )

    program = [Copy(tuple(plan.local_blocks(device).tolist()))]
    for d in range(divisions):
        if d and ids(False, d):
            program.append(CommWait(d, d))
        if ids(False, d + 1):
            program.append(CommLaunch(d + 1, d + 1, ids(False, d + 1)))
        tiles = [
            t for t in range(len(plan.tiles)) if plan.tiles.device[t] == device and column[t] == d
        ]
        if tiles:
            program.append(Attention(d, tuple(tiles)))
        if ids(True, d):
            program.append(CommLaunch(divisions + d, d, ids(True, d)))
    program += [CommWait(divisions + d, d) for d in range(divisions) if ids(True, d)]
    home = [x for d in range(divisions) for x in ids(True, d) if rows[x][-1] == device]
    return [*program, Reduction(divisions - 1, tuple(home))]


@given(st.data())
def test_the_program_table_gives_the_programs_back(strategies, data):
    plan = data.draw(strategies.placed_plans())
    assert restore_programs(tabulate_programs(plan), plan.num_devices) == (
        plan.forward,
        plan.backward,
    )


@pytest.mark.parametrize("partitioner", ["kahypar", "static:zigzag", "static:contiguous"])
def test_the_same_input_and_seed_give_the_same_digest(sparsity, partitioner):
    def made():
        config = PlanConfig(partitioner=partitioner, seed=3)
        return build_plan(sparsity, ModelShape(), Cluster(2, 2), config)

    assert digest(made()) == digest(made())


@pytest.mark.parametrize("partitioner", ["static:zigzag", "static:contiguous"])
def test_every_mask_makes_a_plan_that_computes_each_tile_once(sparsity, partitioner):
    plan = build_plan(sparsity, ModelShape(), Cluster(2, 2), PlanConfig(partitioner=partitioner))
    for direction in ("forward", "backward"):
        computed = Counter(
            tile
            for program in plan.programs(direction)
            for step in program.instructions
            if isinstance(step, Attention)
            for tile in step.tiles
        )
        assert computed == Counter(range(sparsity.num_blocks))
    assert plan.tiles.pairs.sum() == sparsity.num_pairs
