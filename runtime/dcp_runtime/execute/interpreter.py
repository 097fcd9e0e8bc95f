"""The interpreter runs one device's program, instruction by instruction, and decides nothing.

Everything that belongs to one call lives in its `Pass`, so several layers, and several plans, may
stand between their forward and their backward at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from dcp_planner.simulation import EventKind, wait_name
from dcp_planner.tables import Attention, CommLaunch, CommWait, Copy, Instruction, Reduction
from dcp_runtime.errors import PeerError
from dcp_runtime.execute.passes import Pass
from dcp_runtime.execute.tensor_checks import check_arrived, poison
from dcp_runtime.kernels.kernel import Kernel
from dcp_runtime.plans.device_plan import DevicePlan
from dcp_runtime.plans.tile_table import TileTable
from dcp_runtime.transport.recorder import Activity, Event, Recorder
from dcp_runtime.transport.transport import Parcel, Transport


@dataclass(slots=True)
class _Flight:
    """Messages of one call."""

    # Launches that follow one another start together: what a rank sends must not wait for what it
    # receives where messages go in batches.
    launched: list[Parcel] = field(default_factory=list)
    by_key: dict[int, list[Parcel]] = field(default_factory=dict)
    arriving: dict[int, Parcel] = field(default_factory=dict)  # by transfer


@dataclass(slots=True, eq=False)
class Interpreter:
    """Runs the calls on a prepared plan."""

    part: DevicePlan
    kernel: Kernel
    transport: Transport
    recorder: Recorder
    guard: bool = False

    def run(self, current: Pass) -> None:
        """Execute the program of the direction of `current`."""
        flight, division = _Flight(), 0
        try:
            self.transport.begin(self.part, current.direction, current.row_bytes)
            for instruction, table in self.part.of(current.direction).steps:
                if not isinstance(instruction, Copy):
                    division = instruction.division
                if not isinstance(instruction, CommLaunch) and flight.launched:
                    self.transport.start(flight.launched)
                    flight.launched = []
                self.recorder.begin(Activity(instruction, division, current.direction))
                self._execute(current, instruction, table, flight)
        except PeerError:
            raise
        except Exception as error:
            self.transport.report(current.direction, division, error)
            raise
        finally:
            self.recorder.begin(None)

    def _execute(
        self, current: Pass, instruction: Instruction, table: TileTable | None, flight: _Flight
    ) -> None:
        match instruction:
            case Copy():
                self._timed(current, "copy", 0, current.copy)
            case CommLaunch():
                self._launch(current, instruction, flight)
            case CommWait():
                self._wait(current, instruction, flight)
            case Attention():
                assert table is not None, "every attention instruction has a table"
                attend = partial(current.attend, self.kernel, table)
                self._timed(current, "attention", instruction.division, attend)
            case Reduction() if instruction.transfers:
                reduce = partial(self._reduce, current, instruction)
                self._timed(current, "reduction", instruction.division, reduce)

    def _timed(
        self,
        current: Pass,
        kind: EventKind,
        division: int,
        work: Callable[[], None],
        name: str | None = None,
    ) -> None:
        if not self.recorder.is_on:
            work()
            return
        clock, is_backward = self.recorder.clock, current.direction == "backward"
        start = clock.now()
        work()
        self.recorder.add(Event(kind, start, clock.now(), is_backward, division, name or kind))

    def _launch(self, current: Pass, launch: CommLaunch, flight: _Flight) -> None:
        parcels = []
        for index in launch.transfers:
            transfer = self.part.transfers[index]
            if transfer.is_send:
                after = flight.arriving.get(transfer.brought_by)
                tensors = current.outgoing(transfer)
                parcels.append(Parcel(transfer, tensors, launch.division, after))
            else:
                parcel = Parcel(transfer, current.incoming(transfer), launch.division)
                if self.guard:
                    poison(parcel.tensors)  # whoever reads too early is found out
                flight.arriving[index] = parcel
                parcels.append(parcel)
        flight.by_key.setdefault(launch.key, []).extend(parcels)
        flight.launched += parcels

    def _wait(self, current: Pass, wait: CommWait, flight: _Flight) -> None:
        parcels = flight.by_key.pop(wait.key, [])
        if not parcels:
            return
        arrive = partial(self.transport.wait, parcels, current.direction)
        name = wait_name(wait.division, is_result=parcels[0].transfer.kind.is_result)
        self._timed(current, "wait", wait.division, arrive, name)
        self.recorder.latest_peer = max(parcels, key=lambda parcel: parcel.end_ns).transfer.peer
        for parcel in parcels:
            if self.recorder.is_on:  # a stream waits for messages that may still be on their way
                is_backward = current.direction == "backward"
                parcel.then(partial(self._record, parcel, is_backward=is_backward))
            if self.guard and not parcel.transfer.is_send:
                check_arrived(parcel, current.direction)

    def _record(self, parcel: Parcel, *, is_backward: bool) -> None:
        transfer, division = parcel.transfer, parcel.division
        kind: EventKind = "send" if transfer.is_send else "receive"
        event = Event(
            kind, parcel.start_ns, parcel.end_ns, is_backward, division, transfer.name,
            transfer.peer, parcel.size_bytes, transfer.index,
        )  # fmt: skip
        self.recorder.add(event)

    def _reduce(self, current: Pass, reduction: Reduction) -> None:
        for index in reduction.transfers:
            current.reduce(self.part.transfers[index])
