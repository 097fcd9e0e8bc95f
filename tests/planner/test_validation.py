"""Break a valid plan in every way and see the invariant named."""

# ruff: noqa: E501 - a case is one line of the table

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from dcp_dsl import Slabs
from dcp_planner import (
    Cluster,
    ModelShape,
    Plan,
    PlanConfig,
    PlanError,
    TransferKind,
    build_plan,
    simulate,
    validate,
)
from dcp_planner.model.problem import DIRECTIONS, Placement, build_workload
from dcp_planner.plan import encode_plan
from dcp_planner.schedule.divisions import Manner, Schedule, cut_divisions
from dcp_planner.schedule.emission import assemble
from dcp_planner.tables import Attention, CommLaunch, CommWait, Copy, Reduction
from dcp_planner.tables.plan import DeviceProgram, columns_of
from dcp_planner.tables.programs import OPS, Programs, ProgramTable, tabulate_programs


def with_cell(plan: Plan, table: str, column: str, row: int, value: int) -> Plan:
    old = getattr(plan, table)
    values = getattr(old, column).copy()
    values[row] = value
    return replace(plan, **{table: replace(old, **{column: values})})


def without_row(plan: Plan, table: str, row: int) -> Plan:
    old = getattr(plan, table)
    columns = {name: np.delete(column, row) for name, column in columns_of(old).items()}
    return replace(plan, **{table: replace(old, **columns)})


def with_program(plan: Plan, device: int, instructions: list, direction: str = "forward") -> Plan:
    programs = list(getattr(plan, direction))
    programs[device] = DeviceProgram(device, tuple(instructions))
    return replace(plan, **{direction: tuple(programs)})


def find(plan: Plan, kind: type, where: Callable = lambda step: True) -> tuple[int, int]:
    """Return (device, position) of the first fitting instruction in forward."""
    for program in plan.forward:
        for position, step in enumerate(program.instructions):
            if isinstance(step, kind) and where(step):
                return program.device, position
    raise AssertionError(f"the plan has no such {kind.__name__}")


def edited(plan: Plan, place: tuple[int, int], *steps: object) -> Plan:
    """Put steps in the place of one instruction."""
    device, position = place
    program = list(plan.forward[device].instructions)
    program[position : position + 1] = steps
    return with_program(plan, device, program)


def step_at(plan: Plan, place: tuple[int, int]) -> object:
    return plan.forward[place[0]].instructions[place[1]]


def moved(plan: Plan, place: tuple[int, int], position: int) -> Plan:
    device, old = place
    program = list(plan.forward[device].instructions)
    step = program.pop(old)
    program.insert(position, step)
    return with_program(plan, device, program)


def is_input_launch(plan: Plan) -> Callable:
    return lambda step: (
        plan.transfers.kind[step.transfers[0]] < TransferKind.OUT and len(step.transfers) > 1
    )


def is_result_launch(plan: Plan) -> Callable:
    return lambda step: plan.transfers.kind[step.transfers[0]] >= TransferKind.OUT


def no_launches(plan: Plan) -> Plan:
    """Let device 0 own and compute everything, and wait for nothing that was launched."""
    none = {name: column[:0] for name, column in columns_of(plan.transfers).items()}
    nobody, count = np.zeros(len(plan.tiles), np.int32), len(plan.blocks)
    tiles = replace(plan.tiles, device=nobody, division=nobody)
    blocks = replace(plan.blocks, owner=np.zeros(count, np.int32))
    plan = replace(plan, blocks=blocks, tiles=tiles, transfers=replace(plan.transfers, **none))
    steps = Copy(tuple(range(count))), Attention(0, tuple(range(len(tiles)))), CommWait(1, 0)
    for device in range(plan.num_devices):
        plan = with_program(plan, device, [Copy(())] if device else list(steps))
    return plan


def with_ends(plan: Plan, *ends: int) -> Plan:
    return replace(plan, cu_seqlens=np.array(ends, np.int32))


def named_group(plan: Plan) -> Plan:
    group = np.zeros(len(plan.transfers), np.uint8)
    return replace(plan, transfers=replace(plan.transfers, group=group))


def drop_slab(plan: Plan) -> Plan:
    return replace(plan, slabs=Slabs(plan.num_tokens, *plan.slabs.table()[:-1].T))


def swap_in_launch(plan: Plan) -> Plan:
    """Turn the order of two transfers between the same devices round on one end."""
    table = plan.transfers
    for program in plan.forward:
        for position, step in enumerate(program.instructions):
            if not isinstance(step, CommLaunch):
                continue
            ends = {}
            for place, x in enumerate(step.transfers):
                pair = (int(table.source[x]), int(table.target[x]))
                if pair in ends:
                    items = list(step.transfers)
                    items[ends[pair]], items[place] = items[place], items[ends[pair]]
                    changed = replace(step, transfers=tuple(items))
                    return edited(plan, (program.device, position), changed)
                ends[pair] = place
    raise AssertionError("no two transfers of one launch share their ends")


def late_input(plan: Plan) -> Plan:
    """Wait for inputs after the attention that needs them."""
    place = find(plan, CommWait, lambda step: step.key < 4)
    program = plan.forward[place[0]].instructions
    after = next(i for i in range(place[1], len(program)) if isinstance(program[i], Attention))
    return moved(plan, place, after)


def early_result(plan: Plan) -> Plan:
    """Send a result before the attention that makes it."""
    place = find(
        plan,
        CommLaunch,
        lambda step: (
            is_result_launch(plan)(step)
            and any(plan.transfers.source[x] == d for d in range(1) for x in step.transfers)
        ),
    )
    program = plan.forward[place[0]].instructions
    before = max(i for i in range(place[1]) if isinstance(program[i], Attention))
    return moved(plan, place, before)


def late_wait(plan: Plan) -> Plan:
    """Reduce before the results have arrived."""
    place = find(plan, Reduction)
    program = plan.forward[place[0]].instructions
    arrived = {
        step.key
        for step in program
        if isinstance(step, CommLaunch)
        and set(step.transfers) & set(step_at(plan, place).transfers)
    }
    last = max(i for i, s in enumerate(program) if isinstance(s, CommWait) and s.key in arrived)
    return moved(plan, place, last)


def deadlock(plan: Plan) -> Plan:
    """Let device 0 send its inputs only after it has got the results that they are needed for."""
    program = list(plan.forward[0].instructions)
    table = plan.transfers

    def sends_inputs(step: object) -> bool:
        return (
            isinstance(step, CommLaunch)
            and table.kind[step.transfers[0]] < TransferKind.OUT
            and table.source[step.transfers[0]] == 0
        )

    keys = {step.key for step in program if sends_inputs(step)}
    late = [s for s in program if isinstance(s, CommLaunch | CommWait) and s.key in keys]
    return with_program(plan, 0, [s for s in program if s not in late] + late)


CASES: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "owner": (lambda p: with_cell(p, "blocks", "owner", 2, 4), "every block's owner is 0 to 3: broken at block 2 \\(owner 4"),
    "owner moved": (
        lambda p: with_cell(p, "blocks", "owner", 0, (int(p.blocks.owner[0]) + 1) % 4),
        "has a transfer|is needed by a tile",
    ),
    "gap": (lambda p: with_cell(p, "blocks", "start", 1, 9), "blocks tile the batch in order: broken at block 1"),
    "empty block": (lambda p: with_cell(p, "blocks", "end", 1, 8), "blocks tile the batch in order: broken at block 1"),
    "short": (lambda p: without_row(p, "blocks", len(p.blocks) - 1), "blocks tile the batch in order: they end at"),
    "sequence": (lambda p: with_cell(p, "blocks", "sequence", 0, 1), "no block crosses the border of its sequence: broken at block 0"),
    "no sequence": (lambda p: with_cell(p, "blocks", "sequence", 0, 3), "no block crosses the border"),
    "cu_seqlens": (lambda p: replace(p, cu_seqlens=p.cu_seqlens[::-1].copy()), "cu_seqlens does not rise"),
    "cu_seqlens falls once": (lambda p: with_ends(p, 0, 60, 57, 66), "cu_seqlens does not rise"),
    "cu_seqlens from 1": (lambda p: with_ends(p, 1, 40, 63, 66), "cu_seqlens does not rise from 0"),
    "no cu_seqlens": (with_ends, "cu_seqlens does not rise from 0"),
    "head groups 0": (lambda p: replace(p, head_groups=0), "a plan has 1 to 256 head groups, got 0"),
    "head groups 257": (lambda p: replace(p, head_groups=257), "1 to 256 head groups, got 257"),
    "head groups unnamed": (lambda p: replace(p, head_groups=2), "got 2 and no column"),
    "a head group named": (named_group, "got 1 and a column"),
    "slab twice": (lambda p: replace(p, slabs=Slabs(66, *p.slabs.table()[[0, *range(len(p.slabs))]].T)), "slabs are disjoint: slab . shares a pair"),
    "q_block": (lambda p: with_cell(p, "tiles", "q_block", 3, 99), "every tile's q_block is 0 to"),
    "kv_block": (lambda p: with_cell(p, "tiles", "kv_block", 3, -1), "every tile's kv_block is 0 to"),
    "tile order": (lambda p: with_cell(p, "tiles", "kv_block", 1, 1), "tiles are sorted|none twice"),
    "tile device": (lambda p: with_cell(p, "tiles", "device", 1, 4), "every tile's device is 0 to 3"),
    "division": (lambda p: with_cell(p, "tiles", "division", 1, -1), "every tile's division is at least 0"),
    "division moved": (lambda p: with_cell(p, "tiles", "division", 1, int(p.tiles.division[1]) + 1), "every tile is computed where and when the table says: tile 1"),
    "pairs": (lambda p: with_cell(p, "tiles", "pairs", 4, 1), "tiles cover every visible pair exactly once: broken at tile 4 \\(pairs 1, visible"),
    "kind": (lambda p: with_cell(p, "tiles", "kind", 0, 2), "a tile is full if and only if .* broken at tile 0"),
    "tile missing": (lambda p: without_row(p, "tiles", 0), "the tile of q_block 0, kv_block 0 is missing"),
    "mask smaller": (drop_slab, "visible pair exactly once"),
    "mask of other size": (lambda p: replace(p, slabs=Slabs(3, [0], [3], [0], [1], [0], [1])), "the mask covers the batch"),
    "transfer block": (lambda p: with_cell(p, "transfers", "block", 0, 99), "every transfer's block is 0 to"),
    "transfer kind": (lambda p: with_cell(p, "transfers", "kind", 0, 7), "every transfer's kind is known"),
    "transfer source": (lambda p: with_cell(p, "transfers", "source", 0, -1), "every transfer's source is 0 to"),
    "transfer missing": (lambda p: without_row(p, "transfers", 0), "every remote input and result has a transfer: forward"),
    "transfer twice": (lambda p: twice(p), "no transfer is listed twice"),
    "transfer unneeded": (lambda p: unneeded(p), "every transfer is needed by a tile"),
    "size": (lambda p: with_cell(p, "transfers", "size_bytes", 0, 5), "a transfer's size follows from its tokens .* broken at transfer 0 \\(size_bytes 5"),
    "transfer division": (lambda p: with_cell(p, "transfers", "division", 0, 3), "a transfer is launched in its division: transfer 0"),
    "programs missing": (lambda p: replace(p, forward=p.forward[:-1]), "forward: there is one program per device"),
    "programs swapped": (lambda p: replace(p, backward=p.backward[::-1]), "backward: there is one program per device"),
    "no copy": (lambda p: edited(p, (0, 0)), "device 0 first copies exactly the blocks it owns"),
    "copy of another block": (lambda p: edited(p, (0, 0), Copy((0, 1, 2))), "device 0 first copies exactly the blocks it owns"),
    "no reduction": (lambda p: edited(p, find(p, Reduction)), "every result is reduced exactly once"),
    "reduction first": (lambda p: moved(p, find(p, Reduction), 1), "a result arrives before its reduction"),
    "result not reduced": (lambda p: shorter_reduction(p), "every result is reduced exactly once"),
    "tile twice": (lambda p: edited(p, find(p, Attention), *[step_at(p, find(p, Attention))] * 2), "every tile is computed exactly once: tile . is twice"),
    "tile never": (lambda p: edited(p, find(p, Attention)), "every tile is computed exactly once: tile . is never"),
    "tile unknown": (lambda p: edited(p, find(p, Attention), Attention(0, (999,))), "computes tile 999, which does not exist"),
    "launch never": (lambda p: shorter_launch(p), "every transfer is launched exactly once by both ends: .* is never by its"),
    "launch twice": (lambda p: doubled_launch(p), "every transfer is launched exactly once by both ends: .* is launched twice"),
    "key twice": (lambda p: edited(p, find(p, CommLaunch), *[step_at(p, find(p, CommLaunch))] * 2), "launches each key once"),
    "launch by a stranger": (lambda p: stranger(p), "is no end of transfer"),
    "launch unknown": (lambda p: edited(p, find(p, CommLaunch), CommLaunch(1, 1, (99999,))), "names transfer 99999, which does not exist"),
    "other direction": (lambda p: replace(p, forward=p.backward), "belongs to the other direction|computed where and when|launched in its division"),
    "wait never": (lambda p: edited(p, find(p, CommWait)), "every transfer is waited for exactly once by both ends"),
    "wait unknown": (lambda p: edited(p, find(p, CommWait), CommWait(77, 1)), "waits only for what it has launched: key 77"),
    "late input": (late_input, "an input arrives before the tiles that need it"),
    "early result": (early_result, "a result leaves after its last tile"),
    "late wait": (late_wait, "a result arrives before its reduction"),
    "slot below 0": (lambda p: with_cell(p, "transfers", "slot", 0, -1), "receive buffers begin at row 0: transfer 0"),
    "slot shared": (lambda p: shared_slot(p), "rows of a receive buffer hold one block at a time"),
    "hop of an owner": (lambda p: with_cell(p, "transfers", "hop", 0, 1), "hop 0 is a transfer whose source has the data of its own|hops rise"),
    "order": (swap_in_launch, "both ends launch transfers in the same order"),
    "no launches": (no_launches, "waits only for what it has launched: key . at instruction"),
    "deadlock": (deadlock, "deadlock: devices .* wait for each other"),
}  # fmt: skip


def shared_slot(plan: Plan) -> Plan:
    """Let two inputs of one division arrive in the same rows."""
    table = plan.transfers
    for x in range(1, len(table)):
        for y in range(x):
            if all(
                getattr(table, name)[x] == getattr(table, name)[y]
                for name in ("is_backward", "kind", "target", "division")
            ):
                return with_cell(plan, "transfers", "slot", x, int(table.slot[y]))
    raise AssertionError("no two inputs of a division")


def twice(plan: Plan) -> Plan:
    old = plan.transfers
    columns = {name: np.append(column, column[:1]) for name, column in columns_of(old).items()}
    return replace(plan, transfers=replace(old, **columns))


def unneeded(plan: Plan) -> Plan:
    old = plan.transfers
    columns = {name: np.append(column, column[:1]) for name, column in columns_of(old).items()}
    columns["source"][-1], columns["target"][-1] = columns["target"][-1], columns["source"][-1]
    return replace(plan, transfers=replace(old, **columns))


def shorter_reduction(plan: Plan) -> Plan:
    place = find(plan, Reduction, lambda step: len(step.transfers) > 0)
    step = step_at(plan, place)
    return edited(plan, place, Reduction(step.division, step.transfers[1:]))


def shorter_launch(plan: Plan) -> Plan:
    place = find(plan, CommLaunch, is_input_launch(plan))
    step = step_at(plan, place)
    return edited(plan, place, replace(step, transfers=step.transfers[1:]))


def doubled_launch(plan: Plan) -> Plan:
    place = find(plan, CommLaunch)
    step = step_at(plan, place)
    return edited(plan, place, replace(step, transfers=step.transfers + step.transfers[:1]))


def stranger(plan: Plan) -> Plan:
    table = plan.transfers
    place = find(plan, CommLaunch)
    step = step_at(plan, place)
    away = ~table.is_backward & (table.source != place[0]) & (table.target != place[0])
    other = int(np.flatnonzero(away)[0])
    return edited(plan, place, replace(step, transfers=(*step.transfers, other)))


def test_the_plan_under_test_has_every_kind_of_transfer(plan):
    assert set(plan.transfers.kind.tolist()) == set(TransferKind)
    validate(plan)


def test_broken_plans_are_refused_by_name(plan, snapshots):
    told = {}
    for name, (break_it, message) in CASES.items():
        with pytest.raises(PlanError, match=message) as caught:
            validate(break_it(plan))
        told[name] = str(caught.value)
    snapshots.check("broken_plans", told)


def test_the_simulator_refuses_programs_that_wait_for_each_other(plan):
    with pytest.raises(PlanError, match="deadlock: devices"):
        simulate(deadlock(plan))


def test_build_plan_names_an_unknown_partitioner(sparsity):
    with pytest.raises(PlanError, match=r"unknown partitioner 'metis'; expected one of "):
        build_plan(sparsity, ModelShape(), Cluster(1, 2), PlanConfig(partitioner="metis"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("divisions", 1), ("compute_tolerance", -0.1), ("token_tolerance", float("nan")),
        ("seed", -1), ("time_limit_s", 0.0),
    ],
)  # fmt: skip
def test_a_config_out_of_range_is_refused(field, value):
    with pytest.raises(PlanError, match=f"PlanConfig.{field}: expected"):
        PlanConfig(**{field: value})


@pytest.mark.parametrize("column", ["source", "target"])
def test_a_plan_that_names_devices_it_lacks_is_not_written(plan, column):
    with pytest.raises(PlanError, match=f"every transfer's {column} is 0 to 3: broken at"):
        encode_plan(with_cell(plan, "transfers", column, 0, 99))


def small_plan(masks) -> Plan:
    """Three blocks and six tiles on two nodes: queries, keys and sums travel, some over two hops."""
    workload = build_workload(masks.pack([masks.causal(9)], 4), ModelShape(1, 1, 1, 1))
    placed = Placement(np.array([0, 1, 2]), np.array([0, 2, 3, 0, 1, 2]))
    cuts = [cut_divisions(workload, placed, direction, 2) for direction in DIRECTIONS]
    schedule = Schedule(*cuts, (Manner("node"), Manner("node", is_frugal=True)))
    return assemble(workload, Cluster(2, 2), placed, schedule, "by hand")


def changed_tables(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Change one cell after the other."""
    for name in ("blocks", "tiles", "transfers"):
        table = getattr(plan, name)
        for column, values in columns_of(table).items():
            steps = (1,) if values.dtype == np.bool_ else (1, -1)
            for step, row in itertools.product(steps, range(len(table))):
                changed = values.astype(np.int64)
                changed[row] = 1 - changed[row] if values.dtype == np.bool_ else changed[row] + step
                kept = changed if changed.min() < 0 else changed.astype(values.dtype)
                yield f"{name}.{column} {step:+}", with_column(plan, name, column, kept)


def with_column(plan: Plan, table: str, column: str, values: np.ndarray) -> Plan:
    try:
        return replace(plan, **{table: replace(getattr(plan, table), **{column: values})})
    except ValueError:  # no table holds such a number
        return plan


def changed_programs(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Change one instruction after the other, or its place: not all alike in both directions."""
    for direction, step in zip(DIRECTIONS, (1, -1), strict=True):
        table = tabulate_programs(plan, direction)
        for column in ("op", "key", "division", "items"):
            for at in range(len(getattr(table, column))):
                values = getattr(table, column).astype(np.int64)
                values[at] += step
                if column == "op":
                    values %= len(OPS)
                changed = replace(table, **{column: values})
                yield f"{column} {step:+}", with_table(plan, direction, changed)
        for name, order in orders(table, is_forward=step > 0):
            yield name, with_table(plan, direction, ProgramTable(**table.chosen(order)))


def orders(table: ProgramTable, *, is_forward: bool) -> Iterator[tuple[str, np.ndarray]]:
    rows, begins = np.arange(len(table)), np.searchsorted(table.device, table.device)
    ends = np.searchsorted(table.device, table.device, side="right")
    for at in rows.tolist():
        others = np.delete(rows, at)
        if is_forward:
            yield "dropped", others
            yield "moved behind the copy", np.insert(others, begins[at] + 1, at)
        else:
            yield "doubled", np.insert(rows, at, at)
            yield "moved to the end", np.insert(others, ends[at] - 1, at)
        yield "moved back by one", np.insert(others, max(begins[at], at - 1), at)


def with_table(plan: Plan, direction: str, table: ProgramTable) -> Plan:
    return replace(plan, **{direction: Programs(table, plan.num_devices)})


@pytest.mark.parametrize("change", [changed_tables, changed_programs])
def test_every_change_of_a_small_plan_is_refused_or_harmless(masks, snapshots, change):
    plan, told = small_plan(masks), defaultdict(Counter)
    validate(plan)
    for name, broken in change(plan):
        try:
            validate(broken)
        except PlanError as error:
            told[name][re.sub(r"\d+", "#", str(error))] += 1
        else:
            told[name]["valid" if broken is not plan else "not made"] += 1
    texts = {
        name: "\n".join(f"{count:3} x {text}" for text, count in found.most_common())
        for name, found in told.items()
    }
    snapshots.check(change.__name__, texts)
