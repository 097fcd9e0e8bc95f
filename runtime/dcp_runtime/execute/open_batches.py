"""The batches of an executor that are open, and the layers that ran.

A batch is open until layers have run all that waits for them: a first layer, or a backward.
"""

import sys
import warnings
from collections.abc import Sequence
from itertools import groupby
from zlib import crc32

import torch

from dcp_runtime.errors import RunError
from dcp_runtime.execute.prepared_plan import PreparedBatch

TRACED_BATCHES = 16  # the first batches of an executor, whose events are recorded in any case
LONGEST_LINE = 1000  # characters of a line that names layers; a checksum stands for the rest

NONE_PREPARED = "no plan is prepared; call executor.prepare(plan) before the first layer"
_GIVE_THE_PLAN = (
    "give every layer the prepared plan: prepared = executor.prepare(plan), then "
    "DCPAttn.apply(prepared, q, kv); with layers = LayerPlans.prepare(executor, plan), "
    "layers.of(layer)"
)


class OpenBatches:
    """The batches of one executor that are not finished; `latest` names the batch prepared last."""

    latest = "no batch"

    def __init__(self, trace_every: int | None, *, warns: bool) -> None:
        self._count, self._trace_every = 0, trace_every
        self._warns = warns  # of masks that no layer ran, once
        self._batches: list[PreparedBatch] = []
        self._layers: list[tuple[str, int]] = []

    def add(self, name: str, masks: Sequence[str]) -> PreparedBatch:
        """Note a batch that was prepared; `masks` are those of its plans."""
        every = self._trace_every
        is_traced = self._count < TRACED_BATCHES or (every and self._count % every == 0)
        self._count += 1
        self.latest = name = name or f"prepared batch {self._count}"
        batch = PreparedBatch(name, masks, self._layers, is_traced=bool(is_traced))
        self.check_unused(finished_only=True)
        self._batches = [b for b in self._batches if not b.is_finished]
        self._batches.append(batch)
        return batch

    def take_layers(self) -> str:
        """Return in a line which layers ran since the last call, batch by batch; forget them."""
        # Layers that a checkpoint ran again are left out, and those that have no numbers.
        told = "; ".join(
            f"{name}: layers {_runs([layer for _, layer in own])}"
            for name, own in groupby(self._layers, lambda ran: ran[0])
        )
        self._layers.clear()
        if len(told) <= LONGEST_LINE:
            return told
        return f"{told[:LONGEST_LINE]}... (checksum {crc32(told.encode()):08x})"

    def check_waiting(self, most: int) -> None:
        """Check that at most `most` batches wait for their first layer; else forget those."""
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

    def check_unused(self, *, finished_only: bool = False) -> None:
        """Warn once of masks that no layer ran although others of their batch were run."""
        # This is no error: a stage of a pipeline, or a model of few layers, may hold only layers of
        # one mask, and the executor cannot tell these from a model that asks for the wrong plan.
        for batch in self._batches:
            unused = batch.unused
            # After an error, layers may be missing that would have run.
            if not unused or not self._warns or sys.exception() is not None:
                continue
            if finished_only and not batch.is_finished:
                continue
            self._warns = False
            # Up through `add` or `close` to the line of the training loop, or near it.
            warnings.warn(
                f"of the {len(batch.masks)} masks of {batch.name}, no layer ran "
                f"{' and '.join(unused)}: does every layer ask for its own plan, "
                "layers.of(layer), with its number in the whole model? If the layers on this "
                "rank, a pipeline stage for example, all have the other masks, nothing is wrong. "
                "The executor says this once",
                UserWarning,
                stacklevel=5,
            )

    def check_only_one(self) -> None:
        """Check that only one plan can be meant by the executor."""
        # -1: no backward pass runs on this thread.
        if torch._C._current_graph_task_id() != -1:
            raise RunError(
                "a layer asked the executor for its plan inside a backward pass, where activation "
                "checkpointing runs layers again: the executor holds the plan that was prepared "
                f"last, which may be another batch's by then; {_GIVE_THE_PLAN}"
            )
        if not self._batches:  # `check_waiting` has forgotten a batch that no layer ran
            raise RunError(NONE_PREPARED)
        latest = self._batches[-1]
        if len(latest.masks) > 1:
            raise RunError(
                f"the executor holds {len(latest.masks)} plans of {latest.name}, one per mask, and "
                f"a layer must say which one is its own; {_GIVE_THE_PLAN}"
            )
        if others := [b for b in self._batches[:-1] if not b.is_finished]:
            raise RunError(
                f"a layer asked the executor for its plan while {' and '.join(map(str, others))} "
                f"and {latest.name} are open: each of them may be meant; {_GIVE_THE_PLAN}"
            )


def _runs(numbers: Sequence[int]) -> str:
    """Return numbers in their order, those that count up by one as a range: ``"0-2, 4, 3"``."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in found)
