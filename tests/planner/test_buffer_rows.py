"""Rows of a receive buffer that are given away while something still reads them."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from dcp_planner import Cluster, ModelShape, PlanConfig, PlanError, TransferKind, validate
from dcp_planner.model.problem import Placement, build_workload
from dcp_planner.schedule.emission import assemble
from dcp_planner.simulation.schedules import make_schedule
from dcp_planner.tables import Attention, CommLaunch, CommWait
from dcp_planner.tables.plan import DeviceProgram

READERS = ("tile", "passed on", "sum")


def random_plan(masks, seed):
    """Return a plan of scattered tiles on two nodes: it needs every kind of transfer."""
    workload = build_workload(masks.pack([masks.causal(72)], 4), ModelShape())
    rng = np.random.default_rng(seed)
    placement = Placement(
        rng.integers(0, 6, workload.num_blocks), rng.integers(0, 6, workload.num_tiles)
    )
    cluster = Cluster(nodes=2, devices_per_node=3)
    config = PlanConfig(divisions=8, routing="node")
    schedule = make_schedule(workload, placement, cluster, config)
    return assemble(workload, cluster, placement, schedule, "any")


def side_of(kind):
    return "kv" if kind in (TransferKind.KV, TransferKind.DKV) else "q"


def rows_of(plan, direction):
    """Walk the programs of a direction.

    Returns:
        For (device, transfer) the rows that launch it and wait for it, and for
        (device, side, block) the rows of the attentions that read the block.
    """
    launch, wait, attention = {}, {}, defaultdict(list)
    for program in getattr(plan, direction):
        at, by_key = program.device, {}
        for row, step in enumerate(program.instructions):
            if isinstance(step, CommLaunch):
                by_key[step.key] = step.transfers
                launch |= {(at, x): row for x in step.transfers}
            elif isinstance(step, CommWait):
                wait |= {(at, x): row for x in by_key[step.key]}
            elif isinstance(step, Attention):
                for tile in step.tiles:
                    attention[at, "q", int(plan.tiles.q_block[tile])].append(row)
                    attention[at, "kv", int(plan.tiles.kv_block[tile])].append(row)
    return launch, wait, attention


def lives_of(plan, direction):
    """Return, for each input of a direction, its place, its launch and its last row by reader."""
    table = plan.transfers
    launch, wait, attention = rows_of(plan, direction)
    chosen = np.flatnonzero(table.is_backward == (direction == "backward")).tolist()
    kinds = {x: TransferKind(table.kind[x]) for x in chosen}
    lives = {}
    for x in (x for x in chosen if not kinds[x].is_result):
        at, block, side = int(table.target[x]), int(table.block[x]), side_of(kinds[x])
        leaving = [
            z for z in chosen
            if table.source[z] == at and table.block[z] == block and side_of(kinds[z]) == side
        ]  # fmt: skip
        last = {
            "tile": max(attention[at, side, block], default=-1),
            "passed on": max((wait[at, z] for z in leaving if not kinds[z].is_result), default=-1),
            "sum": max((wait[at, z] for z in leaving if kinds[z].is_result), default=-1),
        }
        lives[x] = ((at, kinds[x]), launch[at, x], last)
    return lives


def clashes(plan, lives):
    """Return the pairs of inputs that hold the same rows at the same time."""
    slot, rows = plan.transfers.slot, plan.blocks.num_tokens[plan.transfers.block]
    return [
        (x, y)
        for x, (place, start, last) in lives.items()
        for y, (other, later, _) in lives.items()
        if x != y and place == other and start <= later <= max(last.values())
        and slot[x] < slot[y] + rows[y] and slot[y] < slot[x] + rows[x]
    ]  # fmt: skip


def launched_late(plan, direction, y):
    """Let the target of an input launch it just before it needs it; None if others come after it.

    Both ends launch what one sends to the other in the same order, and its source launches it apart
    from what the target gets earlier.
    """
    table, target = plan.transfers, int(plan.transfers.target[y])
    programs = list(getattr(plan, direction))
    steps = list(programs[target].instructions)
    launches = [step for step in steps if isinstance(step, CommLaunch)]
    received = [
        x for step in launches for x in step.transfers
        if table.target[x] == target and table.source[x] == table.source[y]
        and not TransferKind(table.kind[x]).is_result
    ]  # fmt: skip
    if received[-1] != y:
        return None
    (old,) = (step for step in launches if y in step.transfers)
    key = 1 + max(step.key for step in launches)
    rest = tuple(x for x in old.transfers if x != y)
    at = next(n for n, s in enumerate(steps) if isinstance(s, CommWait) and s.key == old.key)
    late = [CommLaunch(key, old.division, (y,)), CommWait(key, old.division)]
    steps[at:at] = late
    steps[steps.index(old)] = replace(old, transfers=rest)
    if not rest:
        steps = [step for step in steps if getattr(step, "key", None) != old.key]
    programs[target] = DeviceProgram(target, tuple(steps))
    source = int(table.source[y])
    programs[source] = launched_apart(programs[source], y)
    return replace(plan, **{direction: tuple(programs)})


def launched_apart(program, y):
    """Give a transfer a launch of its own behind its old one, and a wait behind the old wait."""
    launches = [step for step in program.instructions if isinstance(step, CommLaunch)]
    (old,) = (step for step in launches if y in step.transfers)
    if old.transfers == (y,):
        return program
    key, steps = 1 + max(step.key for step in launches), []
    for step in program.instructions:
        if step is old:
            rest = tuple(x for x in old.transfers if x != y)
            steps += [replace(old, transfers=rest), CommLaunch(key, old.division, (y,))]
        elif isinstance(step, CommWait) and step.key == old.key:
            steps += [step, CommWait(key, old.division)]
        else:
            steps.append(step)
    return DeviceProgram(program.device, tuple(steps))


def broken_plans(masks, reader):
    """Yield plans in which an input arrives where only `reader` still reads an older one."""
    for seed in range(20):
        plan = random_plan(masks, seed)
        for direction in ("forward", "backward"):
            before = lives_of(plan, direction)
            assert clashes(plan, before) == []
            for y, (place, _, reads) in before.items():
                late = launched_late(plan, direction, y)
                if late is None or reads["passed on"] >= 0:
                    continue  # an input is passed on after its own launch
                validate(late)
                lives = lives_of(late, direction)
                start = lives[y][1]
                for x, (other, _, last) in lives.items():
                    rest = max(row for name, row in last.items() if name != reader)
                    if other != place or not rest < start <= last[reader]:
                        continue
                    slot = late.transfers.slot.copy()
                    slot[y] = slot[x]
                    broken = replace(late, transfers=replace(late.transfers, slot=slot))
                    if clashes(broken, lives) == [(x, y)]:
                        yield broken


@pytest.mark.parametrize("reader", READERS)
def test_rows_are_not_given_away_while_they_are_read(masks, reader):
    found = 0
    for broken in broken_plans(masks, reader):
        with pytest.raises(PlanError, match="rows of a receive buffer hold one block at a time"):
            validate(broken)
        found += 1
        if found == 5:
            return
    pytest.fail(f"expected 5 plans in which only a {reader} still reads, found {found}")


def test_what_one_end_launches_together_the_other_does_not_launch_apart(masks):
    workload = build_workload(masks.pack([masks.causal(96)], 4), ModelShape())
    placement = Placement(np.arange(workload.num_blocks) % 2, np.zeros(workload.num_tiles, int))
    schedule = make_schedule(workload, placement, Cluster(1, 2), PlanConfig(divisions=2))
    plan = assemble(workload, Cluster(1, 2), placement, schedule, "any")
    launches = [s for s in plan.forward[1].instructions if isinstance(s, CommLaunch)]
    together = max(launches, key=lambda launch: len(launch.transfers))
    last = together.transfers[-1]
    with pytest.raises(PlanError, match="both ends launch together what travels together"):
        programs = plan.forward[0], launched_apart(plan.forward[1], last)
        validate(replace(plan, forward=programs))
    programs = tuple(launched_apart(program, last) for program in plan.forward)
    validate(replace(plan, forward=programs))
