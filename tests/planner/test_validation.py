"""Break a valid plan in every way and see the invariant named."""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import second_validator

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
    write_plan,
)
from dcp_planner.model.problem import DIRECTIONS, Placement, build_workload
from dcp_planner.plan import encode_plan
from dcp_planner.schedule.divisions import Manner, Schedule, cut_divisions
from dcp_planner.schedule.emission import assemble
from dcp_planner.tables import Attention, CommLaunch, CommWait, Copy, Reduction
from dcp_planner.tables.plan import DeviceProgram, columns_of
from dcp_planner.tables.programs import OPS, Programs, ProgramTable, tabulate_programs


def with_cell(plan: Plan, cell: tuple[str, str, int, int]) -> Plan:
    table, column, row, value = cell
    values = getattr(getattr(plan, table), column).copy()
    values[row] = value
    return replace(plan, **{table: replace(getattr(plan, table), **{column: values})})


def without_row(plan: Plan, table: str, row: int) -> Plan:
    old = getattr(plan, table)
    columns = {name: np.delete(column, row) for name, column in columns_of(old).items()}
    return replace(plan, **{table: replace(old, **columns)})


def with_program(plan: Plan, device: int, instructions: list) -> Plan:
    programs = list(plan.forward)
    programs[device] = DeviceProgram(device, tuple(instructions))
    return replace(plan, forward=tuple(programs))


def edited(plan: Plan, kind: type, *steps: object) -> Plan:
    """Put steps in the place of the first instruction of a kind on device 0, forward."""
    program = list(plan.forward[0].instructions)
    at = next(i for i, step in enumerate(program) if isinstance(step, kind))
    return with_program(plan, 0, [*program[:at], *steps, *program[at + 1 :]])


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


def with_slabs(plan: Plan, rows: slice | list[int]) -> Plan:
    return replace(plan, slabs=Slabs(plan.num_tokens, *plan.slabs.table()[rows].T))


def with_ends(plan: Plan, *ends: int) -> Plan:
    return replace(plan, cu_seqlens=np.array(ends, np.int32))


def named_group(plan: Plan) -> Plan:
    group = np.zeros(len(plan.transfers), np.uint8)
    return replace(plan, transfers=replace(plan.transfers, group=group))


def deadlock(plan: Plan) -> Plan:
    """Let device 0 send its inputs only after it has got the results that they are needed for."""
    program, table = plan.forward[0].instructions, plan.transfers
    is_own_input = (table.kind < TransferKind.OUT) & (table.source == 0)
    launches = [step for step in program if isinstance(step, CommLaunch)]
    keys = {step.key for step in launches if is_own_input[step.transfers[0]]}
    late = [s for s in program if isinstance(s, CommLaunch | CommWait) and s.key in keys]
    return with_program(plan, 0, [s for s in program if s not in late] + late)


def launched_apart(plan: Plan) -> Plan:
    """Let device 0 launch apart what the other end launches together."""
    program = list(plan.forward[0].instructions)
    launches = [step for step in program if isinstance(step, CommLaunch)]
    old, key = max(launches, key=lambda step: len(step.transfers)), len(program)
    *others, last = old.transfers
    wait = next(i for i, s in enumerate(program) if isinstance(s, CommWait) and s.key == old.key)
    program.insert(wait, CommWait(key, old.division))
    at = program.index(old)
    program[at : at + 1] = [
        replace(old, transfers=(*others,)),
        CommLaunch(key, old.division, (last,)),
    ]
    return with_program(plan, 0, program)


def unneeded(plan: Plan) -> Plan:
    old = plan.transfers
    columns = {name: np.append(column, column[:1]) for name, column in columns_of(old).items()}
    columns["source"][-1], columns["target"][-1] = old.target[0], old.source[0]
    return replace(plan, transfers=replace(old, **columns))


CELLS = (
    ("blocks", "owner", 2, 4), ("blocks", "owner", 0, 0), ("blocks", "end", 1, 8),
    ("blocks", "sequence", 0, 3), ("tiles", "division", 1, 3), ("tiles", "kind", 0, 2),
    ("transfers", "size_bytes", 0, 5), ("transfers", "division", 0, 3),
    ("transfers", "slot", 19, 8),  # where transfer 18 arrives
)  # fmt: skip
CASES: dict[str, Callable[[Plan], Plan]] = {
    **{" ".join(map(str, cell)): partial(with_cell, cell=cell) for cell in CELLS},
    "block missing": lambda p: without_row(p, "blocks", len(p.blocks) - 1),
    "tile missing": lambda p: without_row(p, "tiles", 0),
    "cu_seqlens falls once": lambda p: with_ends(p, 0, 60, 57, 66),
    "cu_seqlens from 1": lambda p: with_ends(p, 1, 40, 63, 66),
    "no cu_seqlens": with_ends,
    "head groups 0": lambda p: replace(p, head_groups=0),
    "head groups 257": lambda p: replace(p, head_groups=257),
    "head groups unnamed": lambda p: replace(p, head_groups=2),
    "a head group named": named_group,
    "slab twice": lambda p: with_slabs(p, [0, *range(len(p.slabs))]),
    "mask smaller": lambda p: with_slabs(p, slice(-1)),
    "mask of other size": lambda p: replace(p, slabs=Slabs(3, [0], [3], [0], [1], [0], [1])),
    "transfer unneeded": unneeded,
    "programs missing": lambda p: replace(p, forward=p.forward[:-1]),
    "programs swapped": lambda p: replace(p, backward=p.backward[::-1]),
    "no reduction": lambda p: edited(p, Reduction),
    "tile never": lambda p: edited(p, Attention),
    "tile unknown": lambda p: edited(p, Attention, Attention(0, (999,))),
    "key twice": lambda p: edited(p, CommLaunch, *[p.forward[0].instructions[1]] * 2),
    "launch by a stranger": lambda p: edited(p, CommLaunch, CommLaunch(1, 1, (0,))),
    "launch unknown": lambda p: edited(p, CommLaunch, CommLaunch(1, 1, (99999,))),
    "wait never": lambda p: edited(p, CommWait),
    "wait unknown": lambda p: edited(p, CommWait, CommWait(77, 1)),
    "order": lambda p: edited(p, CommLaunch, CommLaunch(1, 1, (5, 2))),
    "launched apart": launched_apart,
    "no launches": no_launches,
    "deadlock": deadlock,
}  # the other rules are those that changes of a small plan break, below


def test_the_plan_under_test_has_every_kind_of_transfer(plan):
    assert set(plan.transfers.kind.tolist()) == set(TransferKind)
    validate(plan)


def test_broken_plans_are_refused_by_name(plan, snapshots):
    told = {}
    for name, break_it in CASES.items():
        with pytest.raises(PlanError) as caught:
            validate(break_it(plan))
        told[name] = str(caught.value)
    snapshots.check("broken_plans", told)


def test_the_simulator_refuses_programs_that_wait_for_each_other(plan):
    with pytest.raises(PlanError, match="deadlock: devices"):
        simulate(deadlock(plan))


def test_build_plan_names_an_unknown_partitioner(masks):
    with pytest.raises(PlanError, match=r"unknown partitioner 'metis'; expected one of "):
        build_plan(masks.pack([masks.causal(1)], 8), ModelShape(), Cluster(), PlanConfig("metis"))


@pytest.mark.parametrize("column", ["source", "target"])
def test_a_plan_that_names_devices_it_lacks_is_not_written(plan, column):
    with pytest.raises(PlanError, match=f"every transfer's {column} is 0 to 3: broken at"):
        encode_plan(with_cell(plan, ("transfers", column, 0, 99)))


def small_plan(masks) -> Plan:
    """Three blocks, six tiles, two nodes: queries, keys and sums travel, some over two hops."""
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


def test_rows_that_something_still_reads_are_not_given_away(masks, tmp_path):
    """A tile, a message that passes them on, or sums on their way: as the document has it."""
    workload = build_workload(masks.pack([masks.causal(24)], 4), ModelShape(2, 1, 4))
    rng = np.random.default_rng(2)
    placed = Placement(
        rng.integers(0, 6, workload.num_blocks), rng.integers(0, 6, workload.num_tiles)
    )
    cuts = [cut_divisions(workload, placed, direction, 4) for direction in DIRECTIONS]
    schedule = Schedule(*cuts, 2 * (Manner("node", is_frugal=True, is_striped=True),))
    plan = assemble(workload, Cluster(2, 3), placed, schedule, "scattered")
    write_plan(tmp_path / "x.dcpplan", plan)
    oracle, seen = second_validator.Plan(tmp_path / "x.dcpplan"), Counter()
    rows = list(oracle.transfers)
    for x, y in itertools.permutations(rows, 2):
        if (x.is_backward, x.target, x.kind) != (y.is_backward, y.target, y.kind):
            continue
        oracle.transfers = [*rows]
        oracle.transfers[y.transfer] = y._replace(slot=x.slot)
        wanted = refusal(second_validator.Direction(oracle, x.is_backward).check)
        found = refusal(validate, with_cell(plan, ("transfers", "slot", y.transfer, x.slot)))
        assert ("buffers: rows taken" in wanted) == ("rows of a receive buffer hold" in found)
        seen[bool(found)] += 1
    assert min(seen.values()) > 10


def refusal(judge: Callable[..., object], *arguments: object) -> str:
    try:
        judge(*arguments)
    except (PlanError, second_validator.Refused) as error:
        return str(error)
    return ""


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
