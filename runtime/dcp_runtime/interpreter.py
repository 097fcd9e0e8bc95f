"""Runs one device's program, instruction by instruction, and decides nothing itself.

Everything that belongs to one call lives in its `Pass`, so several layers, and several plans, may
stand between their forward and their backward at once.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch

from dcp_planner import Attention, CommLaunch, CommWait, Copy, Direction, Reduction
from dcp_runtime.device_plan import DevicePlan, Transfer
from dcp_runtime.errors import RunError
from dcp_runtime.kernels.kernel import Kernel
from dcp_runtime.recorder import Event, Recorder
from dcp_runtime.tile_table import TileTable
from dcp_runtime.transport import Parcel, Transport


class Pass(Protocol):
    """One call in one direction: its buffers, and what the instructions do to them."""

    direction: Direction

    def copy(self) -> None:
        """Bring the own blocks into the working buffers."""

    def attend(self, kernel: Kernel, table: TileTable) -> None:
        """Compute the tiles of a table."""

    def outgoing(self, transfer: Transfer) -> torch.Tensor:
        """Give the contiguous tensor to send."""

    def incoming(self, transfer: Transfer) -> torch.Tensor:
        """Give the contiguous tensor to receive into."""

    def arrive(self, transfer: Transfer, tensor: torch.Tensor) -> None:
        """Put an input that has arrived where attention finds it."""

    def reduce(self, transfer: Transfer, tensor: torch.Tensor) -> None:
        """Merge a partial result that has arrived."""


@dataclass(slots=True)
class _Flight:
    """Messages of one call: under which key they fly, and results that wait to be merged."""

    by_key: dict[int, list[Parcel]] = field(default_factory=dict)
    results: dict[int, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """What every call on a prepared plan shares."""

    part: DevicePlan
    kernel: Kernel
    transport: Transport
    recorder: Recorder

    def run(self, current: Pass) -> None:
        """Execute the program of the direction of `current`.

        Raises:
            RunError: if another rank died, stalled or failed; names it and the division.
        """
        flight, division = _Flight(), 0
        try:
            for instruction, table in self.part.steps(current.direction):
                if not isinstance(instruction, Copy):
                    division = instruction.division
                match instruction:
                    case Copy():
                        self._timed(current, "copy", 0, current.copy)
                    case CommLaunch():
                        self._launch(current, instruction, flight)
                    case CommWait():
                        self._wait(current, instruction, flight)
                    case Attention():
                        assert table is not None, "every attention instruction has a table"
                        self._timed(current, "attention", division, self._attend, current, table)
                    case Reduction() if instruction.transfers:
                        arguments = current, instruction, flight
                        self._timed(current, "reduction", division, self._reduce, *arguments)
        except RunError:
            raise
        except Exception as error:
            self.transport.report(current.direction, division, error)
            raise

    def _timed(
        self,
        current: Pass,
        name: str,
        division: int,
        work: Callable[..., None],
        *arguments: object,
    ) -> None:
        start_ns = time.perf_counter_ns()
        work(*arguments)
        end_ns = time.perf_counter_ns()
        is_backward = current.direction == "backward"
        self.recorder.add(Event("compute", start_ns, end_ns, is_backward, division, name))

    def _attend(self, current: Pass, table: TileTable) -> None:
        current.attend(self.kernel, table)

    def _launch(self, current: Pass, launch: CommLaunch, flight: _Flight) -> None:
        parcels = []
        for index in launch.transfers:
            transfer = self.part.transfers[index]
            tensor = current.outgoing(transfer) if transfer.is_send else current.incoming(transfer)
            parcels.append(Parcel(transfer, tensor, launch.division))
        flight.by_key.setdefault(launch.key, []).extend(parcels)
        self.transport.start(parcels)

    def _wait(self, current: Pass, wait: CommWait, flight: _Flight) -> None:
        parcels = flight.by_key.pop(wait.key, [])
        if not parcels:
            return
        is_backward = current.direction == "backward"
        start_ns = time.perf_counter_ns()
        self.transport.wait(parcels, current.direction)
        end_ns = time.perf_counter_ns()
        what = "results" if parcels[0].transfer.kind.is_result else "inputs"
        name = f"wait for {what} {wait.division}"
        self.recorder.add(Event("wait", start_ns, end_ns, is_backward, wait.division, name))
        for parcel in parcels:
            self._record(parcel, is_backward=is_backward)
            transfer, tensor = parcel.transfer, parcel.tensor
            if not transfer.is_send and transfer.kind.is_result:
                flight.results[transfer.index] = tensor
            elif not transfer.is_send:
                current.arrive(transfer, tensor)

    def _record(self, parcel: Parcel, *, is_backward: bool) -> None:
        transfer = parcel.transfer
        self.recorder.add(
            Event(
                "send" if transfer.is_send else "receive",
                parcel.start_ns,
                parcel.end_ns,
                is_backward,
                parcel.division,
                transfer.name,
                transfer.peer,
                parcel.tensor.nbytes,
            )
        )

    def _reduce(self, current: Pass, reduction: Reduction, flight: _Flight) -> None:
        for index in reduction.transfers:
            current.reduce(self.part.transfers[index], flight.results.pop(index))
