"""Iterations over data loaders, as all ranks of an executor follow them.

An iteration that ends earlier on one rank than on the others would leave these waiting: they hear
of its end through the store. Ranks prepare the batches of their loaders in one order, so all count
iterations alike.
"""

from weakref import WeakKeyDictionary

from dcp_runtime.plans.batch_plans import BatchNote, Iteration
from dcp_runtime.transport.failure_registry import Awaited
from dcp_runtime.transport.transport import Transport


class Iterations:
    """The iterations whose batches an executor has prepared, by number."""

    def __init__(self, transport: Transport) -> None:
        self._transport, self._count = transport, 0
        self._numbers: WeakKeyDictionary[Iteration, int] = WeakKeyDictionary()

    def expect(self, note: BatchNote) -> None:
        """Note the batch that all ranks are about to prepare."""
        iteration = note.iteration
        if iteration is None:
            self._transport.expect(None)
            return
        if iteration not in self._numbers:
            self._numbers[iteration], self._count = self._count, self._count + 1
            iteration.follow(self._tell)
            iteration.patience_s = min(iteration.patience_s, self._transport.timeout_s)
        name = f"{note.name}, {note.content}" if note.content else note.name
        self._transport.expect(Awaited(self._numbers[iteration], note.place, name))

    def _tell(self, iteration: Iteration, why: str) -> None:
        self._transport.end_data(self._numbers[iteration], iteration.batches, why)
