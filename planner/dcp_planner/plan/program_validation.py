"""Check the programs of a plan: all work is done once, in time, and at both ends of messages.

`check_programs` relies on tables that `validation` has checked before.
"""

import numpy as np

from dcp_dsl.arrays import Bools, Ints, order_by
from dcp_planner.errors import PlanError
from dcp_planner.model.problem import DIRECTIONS, Direction
from dcp_planner.schedule.slots import find_shared_rows
from dcp_planner.simulation.event_loop import run_events
from dcp_planner.simulation.event_tables import Messages, Steps, launches_of_waits, one_group
from dcp_planner.tables.plan import Plan, TransferKind, Transfers
from dcp_planner.tables.programs import (
    ATTENTION,
    COPY,
    LAUNCH,
    REDUCTION,
    WAIT,
    Programs,
    ProgramTable,
    tabulate_programs,
)
from dcp_planner.tables.visits import Visits

_NEVER = np.iinfo(np.int64).max


def check_programs(plan: Plan, visits: Visits) -> None:
    """Check the programs of both directions; O((I + N) log)."""
    for direction in DIRECTIONS:
        _check_devices(plan, direction)
        places = _Places(plan, direction, visits)
        # In this order: each check relies on the places that those before it have found.
        places.check_form()
        places.check_copies()
        places.check_tiles()
        places.check_launches()
        places.check_waits()
        places.check_reductions()
        places.check_inputs()
        places.check_results()
        places.check_order()
        places.check_bundles()
        places.check_slots()
        places.check_progress()


def _check_devices(plan: Plan, direction: Direction) -> None:
    programs = plan.programs(direction)
    is_right = len(programs) == plan.num_devices
    # `Programs` numbers its devices itself, and would make every program only to be asked.
    if not isinstance(programs, Programs):
        is_right &= [p.device for p in programs] == list(range(len(programs)))
    if not is_right:
        raise PlanError(
            f"{direction}: there is one program per device, in order: expected "
            f"{plan.num_devices}, got {len(programs)}"
        )


def route_of(table: Transfers, x: int) -> str:
    """Write kind, block and ends of a transfer for messages."""
    kind = TransferKind(int(table.kind[x])).name
    return f"{kind} of block {table.block[x]} from {table.source[x]} to {table.target[x]}"


class _Places:
    """Positions of every tile, transfer and key in the programs of one direction.

    A place is a row of the program table. Rows of one device are in the order of its program, so
    places tell before from after on one device only.
    """

    def __init__(self, plan: Plan, direction: Direction, visits: Visits) -> None:
        self.plan, self.direction, self.visits = plan, direction, visits
        self.is_backward = direction == "backward"
        self.programs: ProgramTable = tabulate_programs(plan, direction)
        self.launch_of = launches_of_waits(self.programs)
        self.row_of_item = self.programs.row_of_item()
        self.op_of_item = self.programs.op[self.row_of_item]
        table = plan.transfers
        self.is_result = table.kind >= TransferKind.OUT
        self.chosen = np.flatnonzero(table.is_backward == self.is_backward)
        # Per end (0 source, 1 target) and transfer: where it is launched and waited for.
        self.launch = np.full((2, len(table)), -1, np.int64)
        self.wait = np.full((2, len(table)), _NEVER, np.int64)
        self.reduction = np.full(len(table), _NEVER, np.int64)
        self.tile_row = np.full(len(plan.tiles), -1, np.int64)
        # First and last place that reads each input.
        self.first = np.full(len(table), _NEVER, np.int64)
        self.last = np.full(len(table), -1, np.int64)

    def fail(self, message: str) -> PlanError:
        return PlanError(f"{self.direction}: {message}")

    def told(self, transfer: int) -> str:
        return f"transfer {transfer} ({route_of(self.plan.transfers, transfer)})"

    def items_of(self, op: int) -> tuple[Ints, Ints]:
        """Find the rows and items of all instructions of one kind."""
        chosen = np.flatnonzero(self.op_of_item == op)
        return self.row_of_item[chosen], self.programs.items[chosen].astype(np.int64)

    def check_form(self) -> None:
        """Require keys for launches and waits only, divisions for all but copies, empty waits.

        All later checks rely on that form.
        """
        programs = self.programs
        op, count = programs.op, np.diff(programs.item_ptr)
        has_key = (op == LAUNCH) | (op == WAIT)
        for holds, invariant in (
            (np.where(has_key, programs.key >= 0, programs.key == -1),
             "keys are at least 0, and -1 where nothing is launched or waited for"),
            (np.where(op == COPY, programs.division == -1, programs.division >= 0),
             "divisions are at least 0, and -1 for a copy"),
            ((op != WAIT) | (count == 0), "a wait has no items"),
        ):  # fmt: skip
            if not holds.all():
                row = int(np.flatnonzero(~holds)[0])
                raise self.fail(
                    f"{invariant}: device {programs.device[row]} has key {programs.key[row]}, "
                    f"division {programs.division[row]} and {count[row]} items at instruction "
                    f"{programs.position[row]}"
                )

    def check_copies(self) -> None:
        """Require that every program begins with the copy of exactly the own blocks."""
        programs, owner = self.programs, self.plan.blocks.owner
        rows = np.flatnonzero(programs.op == COPY)
        devices = np.arange(self.plan.num_devices)
        starts = np.searchsorted(programs.device, devices)
        wrong: Bools = np.bincount(programs.device[rows], minlength=len(devices)) != 1
        # The next two steps rely on one copy for each device, so they come behind that.
        if not wrong.any():
            owned = np.bincount(owner, minlength=len(devices))
            wrong = (rows != starts) | (np.diff(programs.item_ptr)[rows] != owned)
        if not wrong.any():
            # Every copy has as many items as own blocks, so both lists, by device, line up.
            _, items = self.items_of(COPY)
            blocks = np.argsort(owner, kind="stable")
            wrong = np.bincount(owner[blocks[items != blocks]], minlength=len(devices)) > 0
        if wrong.any():
            device = int(np.flatnonzero(wrong)[0])
            raise self.fail(f"device {device} first copies exactly the blocks it owns, once")

    def check_tiles(self) -> None:
        """Require that every tile is computed once, where and when the table says."""
        tiles, programs = self.plan.tiles, self.programs
        rows, items = self.items_of(ATTENTION)
        self._check_exist("computes tile", rows, items, len(tiles))
        times = np.bincount(items, minlength=len(tiles))
        for wrong, text in ((times > 1, "twice"), (times < 1, "never")):
            if wrong.any():
                tile = int(np.flatnonzero(wrong)[0])
                raise self.fail(f"every tile is computed exactly once: tile {tile} is {text}")
        self.tile_row[items] = rows
        for read in self.visits.read_by:
            remote = np.flatnonzero(read[int(self.is_backward)] >= 0)
            inputs = read[int(self.is_backward)][remote]
            np.minimum.at(self.first, inputs, self.tile_row[remote])
            np.maximum.at(self.last, inputs, self.tile_row[remote])
        division = tiles.backward_division if self.is_backward else tiles.division
        device, at = programs.device[self.tile_row], programs.division[self.tile_row]
        misplaced = np.flatnonzero((device != tiles.device) | (at != division))
        if misplaced.size:
            tile = int(misplaced[0])
            raise self.fail(
                f"every tile is computed where and when the table says: tile {tile} is on device "
                f"{tiles.device[tile]} in division {division[tile]}, but device {device[tile]} "
                f"computes it in division {at[tile]}"
            )

    def _check_exist(self, what: str, rows: Ints, items: Ints, count: int) -> None:
        wrong = np.flatnonzero((items < 0) | (items >= count))
        if wrong.size:
            device = self.programs.device[rows[wrong[0]]]
            raise self.fail(f"device {device} {what} {items[wrong[0]]}, which does not exist")

    def check_launches(self) -> None:
        """Require that both ends launch every transfer once, in its division."""
        programs, table = self.programs, self.plan.transfers
        launches = np.flatnonzero(programs.op == LAUNCH)
        # Keys may be any int32: device and key make one number, and one sort finds doubles.
        place = programs.device[launches].astype(np.int64) << 32 | programs.key[launches]
        order = np.argsort(place, kind="stable")
        double = np.flatnonzero(np.diff(place[order]) == 0)
        if double.size:
            row = launches[order[double[0] + 1]]
            raise self.fail(
                f"device {programs.device[row]} launches each key once: {programs.key[row]} twice"
            )
        rows, items = self.items_of(LAUNCH)
        # Before tables are indexed: -1 in a damaged file would read the last row.
        self._check_exist("names transfer", rows, items, len(table))
        device = programs.device[rows]
        ends = np.where(table.source[items] == device, 0, 1)
        self._refuse(
            (ends == 1) & (table.target[items] != device),
            rows,
            items,
            "device {d} is no end of {x}",
        )
        self._refuse(
            table.is_backward[items] != self.is_backward, rows, items,
            "{x} belongs to the other direction",
        )  # fmt: skip
        wrong = np.flatnonzero(table.division[items] != programs.division[rows])
        if wrong.size:
            x = int(items[wrong[0]])
            raise self.fail(
                f"a transfer is launched in its division: {self.told(x)} has division "
                f"{table.division[x]}, the launch {programs.division[rows[wrong[0]]]}"
            )
        both = ends * len(table) + items  # one number for an end of a transfer
        times = np.bincount(both, minlength=2 * len(table))
        self._refuse(
            times[both] > 1, rows, items,
            "every transfer is launched exactly once by both ends: {x} is launched twice by "
            "device {d}",
        )  # fmt: skip
        self.launch[ends, items] = rows
        self._check_complete(self.launch < 0, "launched")

    def _refuse(self, wrong: Bools, rows: Ints, items: Ints, text: str) -> None:
        found = np.flatnonzero(wrong)
        if found.size:
            device, x = self.programs.device[rows[found[0]]], int(items[found[0]])
            raise self.fail(text.format(d=device, x=self.told(x)))

    def _check_complete(self, missing: Bools, what: str) -> None:
        for end, name in ((0, "source"), (1, "target")):
            found = self.chosen[missing[end, self.chosen]]
            if found.size:
                raise self.fail(
                    f"every transfer is {what} exactly once by both ends: "
                    f"{self.told(int(found[0]))} is never {what} by its {name}"
                )

    def check_waits(self) -> None:
        """Require waits behind their launches, and a wait for every transfer at both ends."""
        programs = self.programs
        waits, launch = np.flatnonzero(programs.op == WAIT), self.launch_of
        wrong = waits[(launch[waits] < 0) | (launch[waits] > waits)]
        if wrong.size:
            row = int(wrong[0])
            raise self.fail(
                f"device {programs.device[row]} waits only for what it has launched: key "
                f"{programs.key[row]} at instruction {programs.position[row]} is not under way"
            )
        # The first wait for each launch; later ones for the same key find everything done.
        first = np.full(len(programs), _NEVER, np.int64)
        np.minimum.at(first, launch[waits], waits)
        under_way = self.launch >= 0
        self.wait[under_way] = first[self.launch[under_way]]
        self._check_complete(self.wait == _NEVER, "waited for")

    def check_reductions(self) -> None:
        """Require that every result is reduced once, by its target, after it has arrived."""
        table, programs = self.plan.transfers, self.programs
        rows, items = self.items_of(REDUCTION)
        self._check_exist("reduces transfer", rows, items, len(table))
        is_own = (
            self.is_result[items]
            & (table.target[items] == programs.device[rows])
            & (table.is_backward[items] == self.is_backward)
        )
        self._refuse(~is_own, rows, items, "device {d} reduces {x}, no result for it")
        times = np.bincount(items, minlength=len(table))
        self._refuse(times[items] > 1, rows, items, "every result is reduced exactly once: {x}")
        self.reduction[items] = rows
        results = self.chosen[self.is_result[self.chosen]]
        self._report(
            results[self.reduction[results] == _NEVER],
            "every result is reduced exactly once: {x} is not",
        )
        self._report(
            results[self.wait[1, results] >= self.reduction[results]],
            "a result arrives before its reduction: {x}",
        )

    def _report(self, wrong: Ints, text: str) -> None:
        if wrong.size:
            raise self.fail(text.format(x=self.told(int(wrong[0]))))

    def check_inputs(self) -> None:
        """Require that inputs arrive before the tiles that need them and before they travel on."""
        inputs = self.chosen[~self.is_result[self.chosen]]
        self._report(
            inputs[self.wait[1, inputs] >= self.first[inputs]],
            "an input arrives before the tiles that need it: {x} is waited for too late",
        )
        # Launched behind the feeder is enough: a message leaves once its data is there.
        feeder = self.visits.feeder
        passed = inputs[feeder[inputs] >= 0]
        self._report(
            passed[self.launch[1, feeder[passed]] >= self.launch[0, passed]],
            "an input is passed on after its own launch: {x} is launched too early",
        )

    def check_results(self) -> None:
        """Require that results leave after the last tile that adds to them and all they merge."""
        visits = self.visits
        results = self.chosen[self.is_result[self.chosen]]
        self._report(
            results[self.launch[0, results] <= self.last[visits.input_of[results]]],
            "a result leaves after its last tile: {x} is launched too early",
        )
        merged = results[visits.merged_into[results] >= 0]
        into = visits.merged_into[merged]
        is_empty = (self.last[visits.input_of[results]] < 0) & ~np.isin(results, into)
        self._report(
            results[is_empty],
            "a result takes sums home: no tile and no partial adds to {x}",
        )
        self._report(
            into[self.launch[0, into] <= self.reduction[merged]],
            "a result leaves after all partials merged into it: {x} is launched too early",
        )
        # Sums lie at the rows of their input: before its launch, these may hold another block.
        self._report(
            merged[self.reduction[merged] <= self.launch[1, visits.input_of[into]]],
            "a partial is merged into sums that were begun: {x} is merged too early",
        )

    def check_order(self) -> None:
        """Require that two devices launch the messages between them in the same order."""
        chosen, table = self.chosen, self.plan.transfers
        rows, items = self.items_of(LAUNCH)
        rank = np.zeros((2, len(table)), np.int64)
        ends = np.where(table.source[items] == self.programs.device[rows], 0, 1)
        rank[ends, items] = np.flatnonzero(self.op_of_item == LAUNCH)
        # Inputs and results are matched apart: each class has an order of its own.
        keys = table.target[chosen], table.source[chosen], self.is_result[chosen]
        orders = [order_by(*keys, rank[end, chosen]) for end in (0, 1)]
        differs = np.flatnonzero(chosen[orders[0]] != chosen[orders[1]])
        if differs.size:
            raise self.fail(
                "both ends launch transfers in the same order: "
                f"{self.told(int(chosen[orders[0]][differs[0]]))} has another place at its target"
            )

    def check_bundles(self) -> None:
        """Require that what one device launches together for another, both launch together.

        Such blocks may travel as one message. Inputs that are passed on travel alone.
        """
        table = self.plan.transfers
        alike = self.chosen[self.is_result[self.chosen] | (table.hop[self.chosen] == 0)]
        what = table.kind[alike].astype(np.int64) << 8 | table.hop[alike]  # a hop is a byte
        found = []
        for end, peer in ((0, table.target), (1, table.source)):
            place = self.launch[end, alike] * self.plan.num_devices + peer[alike]
            key = place * (len(TransferKind) << 8) + what
            found.append(np.unique(key, return_inverse=True)[1])
        for one, other in (found, found[::-1]):
            # Transfers of one group on this side, and of several on the other.
            order = order_by(one, other)
            parted = (np.diff(one[order]) == 0) & (np.diff(other[order]) != 0)
            if parted.any():
                x = int(alike[order[1:][parted][0]])
                raise self.fail(
                    "both ends launch together what travels together: one end launches "
                    f"{self.told(x)} with others from the same device, the other end apart"
                )

    def check_slots(self) -> None:
        """Require that no two blocks share rows of a receive buffer while both are in use."""
        table, chosen = self.plan.transfers, self.chosen
        wrong = chosen[table.slot[chosen] < 0]
        self._report(wrong, "receive buffers begin at row 0: {x} has a slot below")
        freed = self._last_reads()
        # A device has a buffer for each kind; a launch takes rows, since data may come at once.
        clash = find_shared_rows(
            table.target[chosen].astype(np.int64) * len(TransferKind) + table.kind[chosen],
            self.launch[1, chosen],
            freed[chosen],
            table.slot[chosen].astype(np.int64),
            self.plan.blocks.num_tokens[table.block[chosen]],
        )
        if clash is not None:
            first, second = (self.told(int(chosen[i])) for i in clash)
            raise self.fail(
                f"rows of a receive buffer hold one block at a time: {second} arrives where "
                f"{first} is still read"
            )

    def _last_reads(self) -> Ints:
        """Return the place of the last read of the data that each transfer brings."""
        freed = np.where(self.is_result, self.reduction, -1)
        inputs = self.chosen[~self.is_result[self.chosen]]
        freed[inputs] = self.last[inputs]
        feeder = self.visits.feeder
        passed = inputs[feeder[inputs] >= 0]
        np.maximum.at(freed, feeder[passed], self.wait[0, passed])
        # Sums of a remote block lie at the rows of its input until they have left.
        results = self.chosen[self.is_result[self.chosen]]
        np.maximum.at(freed, self.visits.input_of[results], self.wait[0, results])
        return np.asarray(freed)

    def check_progress(self) -> None:
        """Run the programs with messages that take no time; every device must reach its end."""
        programs, table = self.programs, self.plan.transfers
        own_ports = np.tile(np.arange(len(table)), (2, 1))  # no message waits for a busy port
        steps = Steps.of(programs, self.plan.num_devices)
        messages = Messages.of(
            (table.source, table.target), self.visits.feeder, (own_ports, len(table)),
            one_group(len(table)), is_fifo=False,
        )  # fmt: skip
        *_, at, _ = run_events(steps, messages)
        stuck = np.flatnonzero(at < steps.row_ptr[1:])
        if stuck.size:
            raise self.fail(f"deadlock: devices {stuck[:8].tolist()} wait for each other")
