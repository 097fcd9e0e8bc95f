"""The batches that an executor has prepared: which plan nothing ran, and which plan can be meant.

A batch *waits* until a layer runs one of its plans, and is *open* while a forward call of it waits
for its backward. Plans and open calls are known by tensors, which a compiled graph passes along.
"""

import sys
from itertools import count
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from dcp_runtime.errors import RunError

_numbers = count()
_objects: "WeakValueDictionary[int, object]" = WeakValueDictionary()


def handle_of(plan: object) -> Tensor:
    """Return a tensor that stands for a plan as long as that lives."""
    number = next(_numbers)
    _objects[number] = plan
    return torch.tensor([number])


def find(handle: Tensor) -> object:
    """Return what a handle stands for."""
    return _objects[int(handle)]


class OpenCall(bytearray):
    """A forward call that awaits its backward, as the memory of its handle.

    The autograd graph alone holds the handle, also a compiled graph; the call ends when that memory
    is freed. It keeps its plan alive.
    """

    def __init__(self, plan: object) -> None:
        number = next(_numbers)
        super().__init__(number.to_bytes(8, "little"))
        self.plan = plan
        _objects[number] = self

    def handle(self) -> Tensor:
        """Return the tensor over this memory."""
        return torch.frombuffer(self, dtype=torch.int64)


_GIVE_THE_PLAN = (
    "give every layer the prepared plan: prepared = executor.prepare(plan), then "
    "DCPAttn.apply(prepared, q, kv); with layers = LayerPlans.prepare(executor, plan), "
    "layers.of(layer)"
)


TRACED_BATCHES = 16
"""Batches whose events are recorded in any case, the first of an executor."""


class PreparedBatch:
    """The plans that were prepared together: one, or those of a stack."""

    def __init__(self, name: str, num_plans: int, *, is_traced: bool) -> None:
        self.name, self.num_plans, self.is_traced = name, num_plans, is_traced
        self.is_reached = False  # whether a layer ran one of them, or tried to
        self._calls: WeakValueDictionary[int, OpenCall] = WeakValueDictionary()

    def note_call(self, call: OpenCall) -> None:
        """Note a forward call that waits for its backward."""
        self._calls[id(call)] = call

    @property
    def is_finished(self) -> bool:
        """Return whether layers ran and no call of theirs waits for its backward."""
        return self.is_reached and not self._calls

    def __str__(self) -> str:
        """Return the name and what the batch waits for."""
        missing = "its backward" if self.is_reached else "its first layer"
        return f"{self.name} (waits for {missing})"


class OpenBatches:
    """The batches of one executor that are not finished, and the latest."""

    def __init__(self, trace_every: int | None) -> None:
        self._count, self._trace_every = 0, trace_every
        self._batches: list[PreparedBatch] = []

    def add(self, name: str, num_plans: int) -> PreparedBatch:
        """Note a batch that was prepared."""
        every = self._trace_every
        is_traced = self._count < TRACED_BATCHES or (every and self._count % every == 0)
        self._count += 1
        name = name or f"prepared batch {self._count}"
        batch = PreparedBatch(name, num_plans, is_traced=bool(is_traced))
        self._batches = [b for b in self._batches if not b.is_finished]
        self._batches.append(batch)
        return batch

    def check_waiting(self, most: int) -> None:
        """Check that at most so many batches wait for their first layer; else forget those."""
        waiting = [b for b in self._batches if not b.is_reached]
        if len(waiting) <= most:
            return
        self._batches = [b for b in self._batches if b.is_reached]
        if sys.exception() is not None:  # an error is under way: it says why nothing ran
            return
        raise RunError(
            f"no layer ran the plan of {waiting[0].name}, so no layer attended under its mask: "
            "does the model use this attention? Layers call DCPAttn.apply(prepared, q, kv), "
            "Hugging Face models are made with attn_implementation='dcp'. Prepare no plan that is "
            "left out; a pipeline that prepares several batches before it runs them says how many: "
            "DCPExecutor(micro_batches=...)"
        )

    def check_only_one(self) -> None:
        """Check that the executor can mean one plan alone."""
        if torch._C._current_graph_task_id() != -1:
            raise RunError(
                "a layer asked the executor for its plan inside a backward pass, where activation "
                "checkpointing runs layers again: the executor holds the plan that was prepared "
                f"last, which may be another batch's by then; {_GIVE_THE_PLAN}"
            )
        latest = self._batches[-1]
        if latest.num_plans > 1:
            raise RunError(
                f"the executor holds {latest.num_plans} plans of {latest.name}, one per mask, and "
                f"a layer must say which one is its own; {_GIVE_THE_PLAN}"
            )
        if others := [b for b in self._batches[:-1] if not b.is_finished]:
            raise RunError(
                f"a layer asked the executor for its plan while {' and '.join(map(str, others))} "
                f"and {latest.name} are open: each of them may be meant; {_GIVE_THE_PLAN}"
            )
