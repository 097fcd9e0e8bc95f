"""The interpreter runs one device's program, instruction by instruction, and decides nothing.

A `Pass` has the buffers of its direction, and what each instruction does to them.
"""

from dataclasses import dataclass, field
from functools import partial

import torch

from dcp_planner import Direction
from dcp_planner.simulation import EventKind, wait_name
from dcp_planner.tables import Attention, CommLaunch, CommWait, Copy, Instruction, Reduction
from dcp_runtime.errors import PeerError, RunError
from dcp_runtime.execute.passes import Pass
from dcp_runtime.kernels.kernel import Kernel
from dcp_runtime.plans.device_plan import DevicePlan
from dcp_runtime.plans.tile_table import TileTable
from dcp_runtime.plans.transfers import Bundle
from dcp_runtime.transport.recorder import Activity, Event, Moment, Recorder
from dcp_runtime.transport.transport import Parcel, Transport


@dataclass(slots=True)
class Flight:
    """Messages of one call."""

    # Launches that follow one another start together: where messages go in batches, the sends of a
    # rank must not wait for its receives.
    launched: list[Parcel] = field(default_factory=list)
    by_key: dict[int, list[Parcel]] = field(default_factory=dict)  # of each launch, until its wait
    arriving: dict[int, Parcel] = field(default_factory=dict)  # by transfer, to be passed on


@dataclass(slots=True, eq=False)
class Interpreter:
    """Runs the calls on a prepared plan.

    With `guard`, results hold NaN until a kernel ends them and receive buffers until their message
    comes, and messages are checked.
    """

    part: DevicePlan
    kernel: Kernel
    transport: Transport
    recorder: Recorder
    guard: bool

    def run(self, current: Pass) -> None:
        """Execute the program of the direction of `current`."""
        flight, division, direction = Flight(), 0, current.direction
        recorder = self.recorder
        if self.guard:
            current.poison()
        try:
            self.transport.begin(self.part, direction, current.row_bytes)
            for instruction, tables, bundles in self.part.of(direction).steps:
                if not isinstance(instruction, Copy):  # it belongs to no division
                    division = instruction.division
                if flight.launched and not isinstance(instruction, CommLaunch):
                    self.transport.start(flight.launched)
                    flight.launched = []
                recorder.begin(Activity(instruction, division, direction))
                self._execute(current, instruction, tables, bundles, flight)
        # Another rank's failure is the cause, and all ranks know of it already.
        except PeerError:
            raise
        except Exception as error:
            self.transport.report(direction, division, error)
            raise
        finally:
            recorder.begin(None)

    def _execute(
        self,
        current: Pass,
        instruction: Instruction,
        tables: tuple[TileTable, ...],
        bundles: tuple[Bundle, ...],
        flight: Flight,
    ) -> None:
        match instruction:
            case CommLaunch():
                self._launch(current, instruction, bundles, flight)
            case CommWait():
                if parcels := flight.by_key.pop(instruction.key, None):
                    self._wait(current, instruction, parcels)
            case Attention():
                start = self._start()
                for table in tables:
                    current.attend(self.kernel, table)
                self._note(current, "attention", start, instruction.division)
            case Reduction() if instruction.transfers:
                start = self._start()
                for index in instruction.transfers:
                    current.reduce(self.kernel, self.part.transfers[index])
                self._note(current, "reduction", start, instruction.division)
            case Copy():
                start = self._start()
                current.copy()
                self._note(current, "copy", start, 0)

    def _start(self) -> Moment:
        """Return this moment if events are recorded."""
        return self.recorder.clock.now() if self.recorder.is_on else None

    def _note(
        self, current: Pass, kind: EventKind, start: Moment, division: int, name: str | None = None
    ) -> None:
        """Record the work since `start` as an event, if events are recorded."""
        if self.recorder.is_on:
            end, is_backward = self.recorder.clock.now(), current.direction == "backward"
            self.recorder.add(Event(kind, start, end, is_backward, division, name or kind))

    def _launch(
        self, current: Pass, launch: CommLaunch, bundles: tuple[Bundle, ...], flight: Flight
    ) -> None:
        current.clear(bundles)
        parcels = []
        for bundle in bundles:
            if bundle.is_send:
                # A block that is passed on leaves as soon as it has arrived.
                after = flight.arriving.get(bundle.transfers[0].brought_by)
                parcel = Parcel(bundle, current.outgoing(bundle), launch.division, after)
            else:
                parcel = Parcel(bundle, current.incoming(bundle), launch.division)
                if self.guard:
                    for tensor in parcel.tensors:
                        # Shows in the results if it is read too early; digits are whole numbers.
                        is_float = tensor.is_floating_point()
                        tensor.fill_(torch.nan if is_float else torch.iinfo(tensor.dtype).max)
                for transfer in bundle.transfers:
                    flight.arriving[transfer.index] = parcel
            parcels.append(parcel)
        flight.by_key[launch.key] = parcels
        flight.launched += parcels

    def _wait(self, current: Pass, wait: CommWait, parcels: list[Parcel]) -> None:
        start = self._start()
        self.transport.wait(parcels, current.direction)
        name = wait_name(wait.division, is_result=parcels[0].bundle.is_result)
        self._note(current, "wait", start, wait.division, name)
        # The wait counts against the rank whose message came last.
        self.recorder.latest_peer = max(parcels, key=_end_ns).bundle.peer
        if self.recorder.is_on:
            is_backward = current.direction == "backward"
            for parcel in parcels:
                # On CUDA only the stream has waited: the message may still be on its way.
                parcel.then(partial(self._record, parcel, is_backward=is_backward))
        if self.guard:
            for parcel in parcels:
                if not parcel.bundle.is_send:
                    _check_arrived(parcel, current.direction)

    def _record(self, parcel: Parcel, *, is_backward: bool) -> None:
        """Record an event for each block, all with the measured times of their bundle."""
        bundle, token_bytes = parcel.bundle, parcel.size_bytes // parcel.bundle.num_tokens
        kind: EventKind = "send" if bundle.is_send else "receive"
        for transfer in bundle.transfers:
            event = Event(
                kind, parcel.start_ns, parcel.end_ns, is_backward, parcel.division, transfer.name,
                bundle.peer, token_bytes * transfer.num_tokens, transfer.index,
            )  # fmt: skip
            self.recorder.add(event)


def _end_ns(parcel: Parcel) -> int:
    return parcel.end_ns


def _check_arrived(parcel: Parcel, direction: Direction) -> None:
    """Check a message for NaN and infinity; -inf may stand in lse, for a row without keys."""
    for tensor in parcel.tensors:
        wrong = torch.isnan(tensor) | (tensor == torch.inf)
        if wrong.any():
            row = int(wrong.nonzero()[0, 0])
            bundle = parcel.bundle
            name = next(
                t.name for t in bundle.transfers if row < t.slot - bundle.slot + t.num_tokens
            )
            raise RunError(
                f"rank {bundle.peer} sent {name} with NaN or infinite values in "
                f"division {parcel.division} of {direction}; look at the inputs of its attention",
                rank=bundle.peer,
                division=parcel.division,
            )
