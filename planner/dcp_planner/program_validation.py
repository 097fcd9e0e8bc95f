"""What makes the programs of a plan right: everything done once, in time, and by both ends.

`check_programs` needs tables that have been checked already (`validation`).
"""

import numpy as np
from numpy.typing import NDArray

from dcp_planner.errors import PlanError
from dcp_planner.plan import (
    Attention,
    CommLaunch,
    CommWait,
    Copy,
    DeviceProgram,
    Direction,
    Plan,
    Reduction,
    TransferKind,
)


def check_programs(plan: Plan) -> None:
    """Check the programs of both directions.

    Raises:
        PlanError: names the first invariant that is broken, and where.
    """
    for direction in ("forward", "backward"):
        programs = plan.programs(direction)
        if [p.device for p in programs] != list(range(plan.num_devices)):
            raise PlanError(
                f"{direction}: there is one program per device, in order: expected "
                f"{plan.num_devices}, got {len(programs)}"
            )
        places = _Places(plan, direction)
        places.check_once()
        places.check_times()
        places.check_order()
        _check_progress(plan, direction)


class _Places:
    """Where in the programs of one direction each tile, transfer and key stands."""

    def __init__(self, plan: Plan, direction: Direction) -> None:
        self.plan, self.direction = plan, direction
        table = plan.transfers
        self.division = (
            plan.tiles.backward_division if direction == "backward" else plan.tiles.division
        )
        self.transfers = np.flatnonzero(table.is_backward == (direction == "backward"))
        self.is_result = table.kind >= TransferKind.OUT
        self.tile_position = np.full(len(plan.tiles), -1, np.int64)
        # Per end (0 source, 1 target) and transfer: the launch, its place in it, the wait.
        self.launch = np.full((2, len(table)), -1, np.int64)
        self.rank = np.full((2, len(table)), -1, np.int64)
        self.wait = np.full((2, len(table)), -1, np.int64)
        self.reduction = np.full(len(table), -1, np.int64)
        for program in plan.programs(direction):
            self._read(program)

    def fail(self, message: str) -> PlanError:
        return PlanError(f"{self.direction}: {message}")

    def told(self, transfer: int) -> str:
        table = self.plan.transfers
        kind = TransferKind(int(table.kind[transfer])).name
        return (
            f"transfer {transfer} ({kind} of block {table.block[transfer]} from "
            f"{table.source[transfer]} to {table.target[transfer]})"
        )

    def _read(self, program: DeviceProgram) -> None:
        device, steps = program.device, program.instructions
        owned = tuple(self.plan.local_blocks(device).tolist())
        if sum(isinstance(s, Copy) for s in steps) != 1 or steps[0] != Copy(owned):
            raise self.fail(f"device {device} first copies exactly the blocks it owns, once")
        if sum(isinstance(s, Reduction) for s in steps) != 1:
            raise self.fail(f"device {device} ends with its one reduction")
        launched: dict[int, tuple[int, ...]] = {}
        for position, step in enumerate(steps):
            match step:
                case Attention():
                    self._read_attention(device, position, step)
                case CommLaunch():
                    if step.key in launched:
                        raise self.fail(f"device {device} launches each key once: {step.key} twice")
                    launched[step.key] = step.transfers
                    self._read_launch(device, position, step)
                case CommWait():
                    self._read_wait(device, position, step, launched)
                case Reduction():
                    self._read_reduction(device, position, step)
        if not isinstance(steps[-1], Reduction):
            raise self.fail(f"device {device} ends with its one reduction")

    def _read_attention(self, device: int, position: int, step: Attention) -> None:
        for tile in step.tiles:
            if not 0 <= tile < len(self.tile_position):
                raise self.fail(f"device {device} computes tile {tile}, which does not exist")
            if self.tile_position[tile] >= 0:
                raise self.fail(f"every tile is computed exactly once: tile {tile} is twice")
            if self.plan.tiles.device[tile] != device or self.division[tile] != step.division:
                raise self.fail(
                    f"every tile is computed where and when the table says: tile {tile} is on "
                    f"device {self.plan.tiles.device[tile]} in division {self.division[tile]}, but "
                    f"device {device} computes it in division {step.division}"
                )
            self.tile_position[tile] = position

    def _ends(self, device: int, transfer: int) -> int:
        """Say which end of a transfer a device is: 0 source, 1 target."""
        table = self.plan.transfers
        if not 0 <= transfer < len(table):
            raise self.fail(f"device {device} names transfer {transfer}, which does not exist")
        if table.source[transfer] == device:
            return 0
        if table.target[transfer] == device:
            return 1
        raise self.fail(f"device {device} is no end of {self.told(transfer)}")

    def _read_launch(self, device: int, position: int, step: CommLaunch) -> None:
        table = self.plan.transfers
        for rank, transfer in enumerate(step.transfers):
            end = self._ends(device, transfer)
            if self.launch[end, transfer] >= 0:
                raise self.fail(
                    "every transfer is launched exactly once by both ends: "
                    f"{self.told(transfer)} is launched twice by device {device}"
                )
            if table.is_backward[transfer] != (self.direction == "backward"):
                raise self.fail(f"{self.told(transfer)} belongs to the other direction")
            if table.division[transfer] != step.division:
                raise self.fail(
                    f"a transfer is launched in its division: {self.told(transfer)} has division "
                    f"{table.division[transfer]}, the launch {step.division}"
                )
            self.launch[end, transfer], self.rank[end, transfer] = position, rank

    def _read_wait(
        self, device: int, position: int, step: CommWait, launched: dict[int, tuple[int, ...]]
    ) -> None:
        if step.key not in launched:
            raise self.fail(
                f"device {device} waits only for what it has launched: key {step.key} at "
                f"instruction {position} is not under way"
            )
        for transfer in launched[step.key]:
            self.wait[self._ends(device, transfer), transfer] = position
        launched[step.key] = ()  # a second wait changes nothing

    def _read_reduction(self, device: int, position: int, step: Reduction) -> None:
        for transfer in step.transfers:
            if self._ends(device, transfer) != 1 or not self.is_result[transfer]:
                raise self.fail(f"device {device} reduces {self.told(transfer)}, no result for it")
            if self.reduction[transfer] >= 0:
                raise self.fail(f"every result is reduced exactly once: {self.told(transfer)}")
            self.reduction[transfer] = position

    def check_once(self) -> None:
        """Nothing is left out."""
        missing = np.flatnonzero(self.tile_position < 0)
        if missing.size:
            raise self.fail(f"every tile is computed exactly once: tile {missing[0]} is never")
        for end, name in ((0, "source"), (1, "target")):
            for what, place in (("launched", self.launch), ("waited for", self.wait)):
                missing = self.transfers[place[end, self.transfers] < 0]
                if missing.size:
                    raise self.fail(
                        f"every transfer is {what} exactly once by both ends: "
                        f"{self.told(missing[0])} is never by its {name}"
                    )
        results = self.transfers[self.is_result[self.transfers]]
        missing = results[self.reduction[results] < 0]
        if missing.size:
            raise self.fail(f"every result is reduced exactly once: {self.told(missing[0])} is not")

    def check_times(self) -> None:
        """Inputs arrive before, and results leave after, the tiles they belong to."""
        table, tiles = self.plan.transfers, self.plan.tiles
        # First and last position of the tiles of (is query block, block, device).
        first: dict[tuple[bool, int, int], int] = {}
        last: dict[tuple[bool, int, int], int] = {}
        rows = zip(
            tiles.q_block.tolist(), tiles.kv_block.tolist(), tiles.device.tolist(),
            self.tile_position.tolist(), strict=True,
        )  # fmt: skip
        for q, kv, device, position in rows:
            for place in ((True, q, device), (False, kv, device)):
                first[place] = min(first.get(place, position), position)
                last[place] = max(last.get(place, position), position)
        for x in self.transfers.tolist():
            kind, block = int(table.kind[x]), int(table.block[x])
            of_queries = kind in (TransferKind.Q, TransferKind.OUT, TransferKind.DQ)
            if self.is_result[x]:
                if self.launch[0, x] <= last[of_queries, block, int(table.source[x])]:
                    raise self.fail(
                        f"a result leaves after its last tile: {self.told(x)} is launched too early"
                    )
                if self.wait[1, x] >= self.reduction[x]:
                    raise self.fail(f"a result arrives before its reduction: {self.told(x)}")
            elif self.wait[1, x] >= first[of_queries, block, int(table.target[x])]:
                raise self.fail(
                    f"an input arrives before the tiles that need it: {self.told(x)} is waited for "
                    "too late"
                )

    def check_order(self) -> None:
        """Two devices launch what passes between them in the same order."""
        chosen, table = self.transfers, self.plan.transfers
        keys = [self.is_result[chosen], table.target[chosen], table.source[chosen]]
        orders = [
            np.lexsort((self.rank[end, chosen], self.launch[end, chosen], *keys)) for end in (0, 1)
        ]
        differs = np.flatnonzero(chosen[orders[0]] != chosen[orders[1]])
        if differs.size:
            raise self.fail(
                "both ends launch transfers in the same order: "
                f"{self.told(int(chosen[orders[0]][differs[0]]))} has another place at its target"
            )


def _check_progress(plan: Plan, direction: Direction) -> None:
    """Run the programs with messages that arrive at once; every device must reach its end."""
    programs = [p.instructions for p in plan.programs(direction)]
    ends: NDArray[np.int64] = np.zeros(len(plan.transfers), np.int64)
    step = [0] * len(programs)
    under_way: list[dict[int, tuple[int, ...]]] = [{} for _ in programs]
    moved = True
    while moved:
        moved = False
        for device, program in enumerate(programs):
            while step[device] < len(program):
                instruction = program[step[device]]
                if isinstance(instruction, CommLaunch):
                    under_way[device][instruction.key] = instruction.transfers
                    ends[list(instruction.transfers)] += 1
                elif isinstance(instruction, CommWait):
                    items = list(under_way[device].get(instruction.key, ()))
                    if (ends[items] < 2).any():
                        break
                step[device] += 1
                moved = True
    stuck = [d for d, at in enumerate(step) if at < len(programs[d])]
    if stuck:
        raise PlanError(
            f"{direction}: no two programs wait for each other: devices {stuck[:8]} never end"
        )
