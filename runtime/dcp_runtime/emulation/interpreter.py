"""The interpreter of an emulated device: runs its program, and sleeps where it would compute."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from torch import Tensor

from dcp_dsl.arrays import Ints
from dcp_planner import Direction, TransferKind
from dcp_planner.tables import Attention, Copy, Instruction, Reduction
from dcp_runtime.emulation.clocks import Clock
from dcp_runtime.emulation.transport import EmulatedTransport
from dcp_runtime.execute.interpreter import Flight, Interpreter
from dcp_runtime.execute.passes import Pass
from dcp_runtime.kernels.kernel import Kernel
from dcp_runtime.plans.tile_table import TileTable
from dcp_runtime.plans.transfers import Bundle, Transfer


class EmulatedPass(Pass):
    """The buffers of a pass, which take no memory: messages have their plan's bytes and no content.

    `size_bytes`, int64 ``[X]``, are those of the transfers of both directions.
    """

    def __init__(self, direction: Direction, size_bytes: Ints) -> None:
        # Without the base's constructor, which takes tensors.
        self.direction, self._size_bytes = direction, size_bytes

    def outgoing(self, bundle: Bundle) -> tuple[Tensor, ...]:
        """Return a tensor of the size of the message, without memory."""
        size = int(self._size_bytes[[transfer.index for transfer in bundle.transfers]].sum())
        return (torch.empty(size, dtype=torch.uint8, device="meta"),)

    incoming = outgoing

    def clear(self, bundles: tuple[Bundle, ...]) -> None:
        """There are no sums to clear."""

    def poison(self) -> None:
        """There are no results to fill."""

    def row_bytes(self, kind: TransferKind) -> tuple[int, ...]:
        """Nobody asks for the rows of an emulated message."""
        return ()

    def attend(self, kernel: Kernel, table: TileTable) -> None:
        """The interpreter sleeps instead."""

    def reduce(self, kernel: Kernel, transfer: Transfer) -> None:
        """The interpreter sleeps instead."""

    def result(self) -> tuple[Tensor, ...]:
        """There is no result."""
        return ()

    def _begin(self) -> None:
        return

    def _begun(self, kind: TransferKind, rows: slice) -> tuple[Tensor, ...]:
        return ()

    def _clear(self, sums: tuple[Tensor, ...]) -> None:
        return


@dataclass(slots=True, eq=False)
class EmulatedInterpreter(Interpreter):
    """An interpreter whose kernels sleep for the time that the cost model predicts."""

    clock: Clock
    durations_ns: dict[Direction, Ints]  # of each instruction, in each direction
    slowdown: float  # of attention while messages of the device are under way
    _durations: Iterator[int] = field(default_factory=lambda: iter(()))

    def run(self, current: Pass) -> None:
        """Execute the program of the direction of `current`."""
        self._durations = iter(self.durations_ns[current.direction].tolist())
        # Not `super()`: a dataclass with slots is another class than the one being defined.
        Interpreter.run(self, current)

    def _execute(
        self,
        current: Pass,
        instruction: Instruction,
        tables: tuple[TileTable, ...],
        bundles: tuple[Bundle, ...],
        flight: Flight,
    ) -> None:
        duration, start = next(self._durations), self._start()
        match instruction:
            case Attention():
                if cast(EmulatedTransport, self.transport).under_way:
                    duration = int(np.ceil(duration * self.slowdown))
                self.clock.sleep(duration)
                self._note(current, "attention", start, instruction.division)
            case Reduction():
                self.clock.sleep(duration)
                if instruction.transfers:
                    self._note(current, "reduction", start, instruction.division)
            case Copy():
                self.clock.sleep(duration)
                if duration:
                    self._note(current, "copy", start, 0)
            case _:
                Interpreter._execute(self, current, instruction, tables, bundles, flight)
