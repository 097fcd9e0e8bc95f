"""`Run`: what observers wrote about one run of a training script, rank by rank, step by step.

No pickle is read: arrays come from ``.npz`` files, the rest is JSON.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcp_runtime.errors import RunError

Tensors: TypeAlias = dict[str, NDArray[Any]]  # Any: floats, by the name of a parameter


@dataclass(frozen=True)
class SeenBatch:
    """One backward: the loss that was given, and what was seen of its batch."""

    loss: float | None
    total: float  # sum of the losses of its targets; `loss` is it over some divisor
    count: int
    line: str
    targets: NDArray[np.int64]  # ids [N], -100 where there is none
    tokens: NDArray[np.int64] | None  # in front of the targets, [N]; None: unknown
    ids: NDArray[np.int64] | None  # that went into the model where `tokens` is None
    borders: NDArray[np.int64]  # where documents begin, the first left out
    rows: NDArray[np.int64]  # a number for each sequence; empty without a batch

    @property
    def divisor(self) -> float | None:
        """By what the sum of the losses was divided; ``None`` if that cannot be told."""
        if not self.count or not self.loss or not math.isfinite(self.loss):
            return None
        return self.total / self.loss


@dataclass(frozen=True)
class StepRecord:
    """A step of one rank."""

    info: dict[str, Any]
    arrays: Tensors

    def of(self, kind: str) -> Tensors:
        """Return the tensors of a kind: first, local, unclipped, grad or after."""
        start = f"{kind}:"
        return {n.removeprefix(start): a for n, a in self.arrays.items() if n.startswith(start)}

    @property
    def is_taken(self) -> bool:
        """Return whether an optimizer took the step."""
        return bool(self.info["is_taken"])

    @cached_property
    def micro_batches(self) -> list[SeenBatch]:
        """The backwards of the step, in order."""
        empty = np.zeros(0, np.int64)
        return [
            SeenBatch(
                each["loss"], each["sum"], each["count"], each["line"],
                self.arrays.get(f"targets:{n}", empty),
                self.arrays.get(f"tokens:{n}"), self.arrays.get(f"ids:{n}"),
                self.arrays.get(f"borders:{n}", empty), self.arrays.get(f"rows:{n}", empty),
            )
            for n, each in enumerate(self.info.get("backwards", []))
        ]  # fmt: skip


@dataclass(frozen=True)
class Run:
    """All ranks of a run: their steps, and a log each."""

    steps: list[list[StepRecord]]
    logs: list[dict[str, Any]]

    @property
    def ranks(self) -> int:
        """How many there are."""
        return len(self.steps)

    @property
    def length(self) -> int:
        """Steps that all ranks recorded."""
        return min(map(len, self.steps))

    @property
    def has_ended(self) -> bool:
        """Return whether the script came to its own end on every rank."""
        return all(log["ended"] for log in self.logs)

    def micro_batches(self, step: int) -> Iterator[tuple[int, int, SeenBatch]]:
        """Yield rank, number and record of every backward of a step."""
        for rank, steps in enumerate(self.steps):
            if step < len(steps):
                yield from ((rank, n, each) for n, each in enumerate(steps[step].micro_batches))

    def shards(self, step: int) -> set[str]:
        """Return the parameters of which ranks hold parts."""
        return {name for rank in self.steps for name in rank[step].info.get("shards", {})}

    def tensors(self, step: int, kind: str, rank: int) -> Tensors:
        """Return a rank's tensors of a kind; parts of shards are joined over the ranks."""
        sharded = self.shards(step) if kind != "local" else set()
        found = {n: a for n, a in self.steps[rank][step].of(kind).items() if n not in sharded}
        for name in sharded:
            parts = [
                (record.info["shards"][name], record.of(kind)[name])
                for record in (steps[step] for steps in self.steps)
                if name in record.info.get("shards", {}) and name in record.of(kind)
            ]
            if parts:
                whole = np.zeros(parts[0][0][0])
                for (_, offset), part in parts:
                    if part.size:
                        at = tuple(slice(o, o + n) for o, n in zip(offset, part.shape, strict=True))
                        whole[at] = part
                found[name] = whole
        return found


def read_run(folder: Path, ranks: int) -> Run:
    """Read the records of a run."""
    steps, logs = [], []
    for rank in range(ranks):
        own = folder / f"rank-{rank}"
        numbers = sorted(int(path.stem.split("-")[1]) for path in own.glob("step-*.npz"))
        steps.append([_read_step(own / f"step-{number}.npz") for number in numbers])
        if not any(step.is_taken for step in steps[-1]):
            raise RunError(
                f"rank {rank} of {ranks}: expected a script that calls loss.backward() and takes "
                "a step of a torch optimizer in the process that is started, got none. The audit "
                "starts the ranks itself, as torchrun does: let the script read RANK and "
                "WORLD_SIZE, and start no processes of its own",
                rank=rank,
            )
        logs.append(json.loads((own / "rank.json").read_text(encoding="utf-8")))
    return Run(steps, logs)


def _read_step(path: Path) -> StepRecord:
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return StepRecord(json.loads(arrays.pop("info").tobytes()), arrays)
