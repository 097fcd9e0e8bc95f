"""One rank's side of an emulated fabric: posts its ends of messages when their turn has come."""

from collections.abc import Sequence
from functools import partial

from torch._C._distributed_c10d import HashStore  # torch.distributed.HashStore, with its type

from dcp_planner import Direction
from dcp_planner.tables import CommLaunch
from dcp_runtime.emulation.clocks import Clock
from dcp_runtime.plans.device_plan import DevicePlan
from dcp_runtime.transport.limits import MAX_TIMEOUT_S
from dcp_runtime.transport.transport import Parcel, RowBytes, Transport

_Group = tuple[bool, int, int]
"""Messages that NCCL runs together at one end: results or inputs, division, hop."""


class Turns:
    """The groups of one rank in one direction; each waits until the one before it is over.

    Inputs and results have a communicator each, which runs its groups in the order of the program.
    """

    def __init__(self, part: DevicePlan, direction: Direction) -> None:
        self._missing: dict[_Group, int] = {}
        for instruction, _, bundles in part.of(direction).steps:
            if isinstance(instruction, CommLaunch):
                for each in bundles:
                    group = each.is_result, instruction.division, each.hop
                    self._missing[group] = self._missing.get(group, 0) + 1
        self._lines = {way: [g for g in self._missing if g[0] == way] for way in (False, True)}
        self._held: dict[_Group, list[Parcel]] = {group: [] for group in self._missing}

    def enter(self, parcel: Parcel) -> list[Parcel]:
        """Take a parcel; return it if the turn of its group has come."""
        group = _group_of(parcel)
        if self._lines[group[0]][0] == group:
            return [parcel]
        self._held[group].append(parcel)
        return []

    def end(self, parcel: Parcel) -> list[Parcel]:
        """Note the end of a parcel; return those whose turn comes by that."""
        group = _group_of(parcel)
        self._missing[group] -= 1
        line = self._lines[group[0]]
        if self._missing[group] or line[0] != group:
            return []
        line.pop(0)
        return self._held.pop(line[0]) if line else []


def _group_of(parcel: Parcel) -> _Group:
    return parcel.bundle.is_result, parcel.division, parcel.bundle.hop


class EmulatedTransport(Transport):
    """Sends nothing: a message takes its time on the fabric, and its tensors stay as they are.

    Messages go in groups, as NCCL's, where `is_grouped`.
    """

    def __init__(self, clock: Clock, rank: int, store: HashStore, *, is_grouped: bool) -> None:
        super().__init__(rank, clock.size, store, MAX_TIMEOUT_S)
        self._clock, self._is_grouped = clock, is_grouped
        self._turns: Turns | None = None
        self.under_way = 0  # messages of this rank that have begun and not ended

    def begin(self, part: DevicePlan, direction: Direction, row_bytes: RowBytes) -> None:
        """Begin a call of a plan."""
        super().begin(part, direction, row_bytes)
        self._turns = Turns(part, direction) if self._is_grouped else None

    def start(self, parcels: Sequence[Parcel]) -> None:
        """Start all parcels in order, without waiting."""
        with self._clock.lock:
            for parcel in parcels:
                self.under_way += 1
                parcel.then(partial(self._end, parcel))
                self._release([parcel] if self._turns is None else self._turns.enter(parcel))

    def _release(self, parcels: list[Parcel]) -> None:
        for parcel in parcels:
            parcel.once_due(partial(self._clock.post, parcel))

    def _end(self, parcel: Parcel) -> None:
        self.under_way -= 1
        if self._turns is not None:
            self._release(self._turns.end(parcel))

    def wait(self, parcels: Sequence[Parcel], direction: Direction) -> None:
        """Wait until every parcel has arrived or left."""
        self._clock.wait(parcels)
