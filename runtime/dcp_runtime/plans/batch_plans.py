"""Values that a data loader and an executor exchange: plans with notes, and rates of the ranks.

The loader yields the plans of a batch, one per distinct mask, with their figures. The executor
measures how fast each rank computes attention, for the plans that come next.
"""

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeAlias
from weakref import WeakKeyDictionary, WeakMethod

import numpy as np

from dcp_dsl import Mask, Sample
from dcp_dsl.arrays import Floats, Indices, Ints
from dcp_planner import Cluster, Plan, digest
from dcp_planner.plan import PlanPart
from dcp_runtime.errors import RunError
from dcp_runtime.run_log.records import PlanFacts

SAME_ROWS = (
    "give every rank the same rows in the same order, shuffled with the same seed; the loader "
    "deals them to ranks and replicas"
)
"""The way out for ranks that read different rows."""

logger = logging.getLogger(__name__)

# Kept beside the plans: those are frozen, and a note must not change their digest. Weak, so that
# a note is freed with its plan.
_notes: "WeakKeyDictionary[BatchPlan, BatchNote]" = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class BatchNote:
    """The note of a data loader about a batch."""

    name: str = ""  # for messages; empty if no loader yielded it
    plans: Sequence[PlanFacts] = ()  # figures of each plan
    facts: Mapping[str, float] = field(default_factory=dict)  # of planning: seconds, rows left out
    content: str = ""  # its rows and a fingerprint, in a line that ranks must share
    masks: Sequence[Sequence[tuple[Mask, Sample]]] = ()
    largest_position: int = -1  # of a token of the batch, in all its rows
    iteration: "Iteration | None" = None  # over the loader that yielded it, if one did
    place: int = 0  # in that iteration


class Iteration:
    """An iteration over a data loader, which tells the executors of its batches where it ends.

    `length` says in words how many rows and batches its epoch has, as far as that is known.
    `device` is the one whose tokens it yields, counted over all replicas; ``None`` where the user
    chose it. It has yielded so many `batches`, the last of the name `latest`. Ranks wait
    `patience_s` for one another, as far as executors have said so.
    """

    def __init__(self, length: str, device: int | None = None) -> None:
        self.length, self.device, self.batches, self.latest = length, device, 0, ""
        self.patience_s = math.inf
        self._followers: list[WeakMethod[Callable[[Iteration, str], None]]] = []

    def add(self, plan: "BatchPlan") -> "BatchPlan":
        """Note the next batch, and in its note that it is one of this iteration."""
        note = replace(batch_note(plan), iteration=self, place=self.batches)
        self.batches, self.latest = self.batches + 1, note.name
        return note_batch(plan, note)

    def follow(self, tell: "Callable[[Iteration, str], None]") -> None:
        """Call a method of an object that lives by then, when the iteration ends: why it does."""
        self._followers.append(WeakMethod(tell))

    def end(self, why: str) -> None:
        """Say that no further batch comes."""
        for follower in self._followers:
            if (tell := follower()) is not None:
                tell(self, why)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class StackedPlans:
    """Plans over one ownership of tokens, and which of them each layer runs.

    `LayerPlans.prepare` takes it.

    Attributes:
        plans: one per distinct mask, or this rank's parts of them.
        cycle: for each layer the number of its plan, -1 for a linear layer, which attends to
            nothing; the cycle repeats over the model's layers.

    Raises:
        RunError: if the plans place tokens differently, or the cycle names a plan that is missing.
    """

    plans: tuple[Plan | PlanPart, ...]
    cycle: tuple[int, ...]

    def __post_init__(self) -> None:
        count = len(self.plans)
        if not count or not self.cycle or not all(-1 <= index < count for index in self.cycle):
            raise RunError(
                f"expected a cycle over {count} plans, got {self.cycle}; give for each layer the "
                "number of its plan"
            )
        first, *others = (whole_plan(plan).blocks for plan in self.plans)
        placed = ("start", "end", "owner")
        if not all(
            np.array_equal(getattr(b, x), getattr(first, x)) for b in others for x in placed
        ):
            raise RunError(
                "the plans of a stack place tokens on different ranks; plan all masks of a stack "
                "in one build_stack call, which gives them one placement"
            )

    @property
    def num_devices(self) -> int:
        """Ranks that share the batch."""
        return self.plans[0].num_devices

    @property
    def num_tokens(self) -> int:
        """Tokens of the packed batch."""
        return self.plans[0].num_tokens

    @property
    def cu_seqlens(self) -> Indices:
        """Sequences of the packed batch, int32 ``[S+1]``."""
        return self.plans[0].cu_seqlens

    @property
    def digests(self) -> tuple[str, ...]:
        """Digests of the whole plans; equal on all ranks."""
        return tuple(map(digest_of, self.plans))

    def local_tokens(self, device: int) -> Ints:
        """Return packed positions of the tokens that a device owns, the same in every layer."""
        return self.plans[0].local_tokens(device)


BatchPlan: TypeAlias = Plan | PlanPart | StackedPlans
"""The plans that a loader yields beside the data: a single plan, or one per distinct mask."""


def digest_of(plan: Plan | PlanPart) -> str:
    """Return the digest of a plan, or of the whole plan that a part was cut from."""
    return plan.digest if isinstance(plan, PlanPart) else digest(plan)


def whole_plan(plan: Plan | PlanPart) -> Plan:
    """Return a plan as it is, and of a part the plan inside it, which holds its device's share."""
    return plan.plan if isinstance(plan, PlanPart) else plan


def note_batch(plan: BatchPlan, note: BatchNote) -> BatchPlan:
    """Attach a note to a plan of one batch, and return the plan."""
    _notes[plan] = note
    return plan


def batch_note(plan: object) -> BatchNote:
    """Return the note of a plan's batch; an empty one if no data loader yielded the plan."""
    if not isinstance(plan, Plan | PlanPart | StackedPlans):
        return BatchNote()
    if isinstance(plan, StackedPlans) and plan not in _notes:  # a loader's plan, stacked later
        return batch_note(plan.plans[0])
    return _notes.get(plan, BatchNote())


def plan_facts(plan: Plan, predicted_s: tuple[float, ...] = ()) -> PlanFacts:
    """Return the numbers of a plan, with its predicted seconds where they are known; O(tiles)."""
    devices, transfers = plan.num_devices, plan.transfers
    # Every head group has the tiles of the mask, so pairs are counted once per group.
    work = np.bincount(plan.tiles.device, plan.tiles.pairs, devices) / plan.head_groups
    tokens = np.bincount(plan.blocks.owner, plan.blocks.num_tokens, devices)
    forward, backward = (
        int(transfers.size_bytes[transfers.is_backward == way].sum()) for way in (False, True)
    )
    return PlanFacts(
        size_bytes=(forward, backward),
        most_work=int(np.ceil(work.max())),
        mean_work=float(work.mean()),
        most_tokens=int(tokens.max()),
        mean_tokens=float(tokens.mean()),
        predicted_s=predicted_s,
    )


def own_work(plan: Plan | PlanPart, device: int) -> int:
    """Count the visible pairs that a device computes forward."""
    whole = whole_plan(plan)
    return int(whole.tiles.pairs[whole.tiles.device == device].sum()) // whole.head_groups


class DeviceRates:
    """The cluster of one replica, with rates of its devices as they are measured.

    Give the same object to `DCPExecutor` and to `Planning`. All ranks compare their measurements
    once a period, in `prepare`, and so plan for the same cluster. Batches that are planned already
    stay as they are. A batch is measured when the second batch behind it is prepared; on CUDA it
    counts if the device is done with it by then. The executor then records the events of all
    batches.

    A rate is work over time, so it does not depend on how much work a plan gives to a rank. A rate
    is adopted only if it differs for two periods: a single slow step changes nothing, and a changed
    cluster makes no plan that changes it back.

    Args:
        cluster: for the first plans.
        every: batches of a period.
        change: share by which a rate must differ from the one in use, in two periods running.

    Raises:
        RunError: if `every` is not at least 1, or `change` not above 0.

    >>> rates = DeviceRates(Cluster(1, 2), every=1)
    >>> for _ in range(2):  # rank 1 takes twice as long for the same work
    ...     rates.update(["[[300, 0.1]]", "[[300, 0.2]]"])
    >>> rates.cluster.devices
    ((1.0, 0.5),)
    """

    def __init__(self, cluster: Cluster, *, every: int = 16, change: float = 0.15) -> None:
        if every < 1 or not change > 0:
            raise RunError(
                f"DeviceRates: expected every of at least 1 and change above 0, got {every} and "
                f"{change}"
            )
        self.cluster = cluster
        self._every, self._change = every, change
        self._period: list[tuple[int, float | None]] = []
        self._is_measured = True
        self._before: Floats | None = None  # work and seconds of a period that was off, [2, R]

    def add(self, work: int, seconds: float | None) -> str | None:
        """Count a batch of this rank; return a note for all ranks at the end of a period.

        Inside a period it is ``None``. `seconds` is ``None`` if the batch was not measured.
        """
        self._period.append((work, seconds))
        if len(self._period) < self._every:
            return None
        note, self._period = json.dumps(self._period), []
        return note

    def update(self, notes: Sequence[str]) -> None:
        """Adopt the measured rates of all ranks if they differ for two periods; the same on all."""
        batches = [json.loads(note) for note in notes]
        # Only batches that every rank has measured: sums over different batches do not compare.
        known = [b for b in zip(*batches, strict=True) if all(s is not None for _, s in b)]
        if self._is_measured and not known:
            logger.warning(
                "no rank's rate is adopted: no batch of a period was measured on all ranks; a "
                "device has to finish each batch before the second one behind it is prepared"
            )
        self._is_measured = bool(known)
        total = np.array(known, np.float64).reshape(-1, len(notes), 2).sum(0).T  # work, seconds
        if not (total > 0).all():
            self._before = None
            return
        used = _relative(self.cluster.speed_of_device)
        if (np.abs(_relative(total[0] / total[1]) / used - 1) <= self._change).all():
            self._before = None
        elif self._before is None:
            self._before = total
        else:
            self._adopt(total + self._before)
            self._before = None

    def _adopt(self, total: Floats) -> None:
        speed = _relative(total[0] / total[1])
        # Devices that hardly differ count as equal: noise moves no tokens between them.
        speed = np.where(np.abs(speed - 1) < self._change / 2, 1.0, speed.round(2)).clip(0.01, 100)
        pointer = self.cluster.node_ptr.tolist()
        nodes = [speed[a:b].tolist() for a, b in pairwise(pointer)]
        self.cluster = replace(self.cluster, devices=tuple(map(tuple, nodes)))
        logger.info("next plans are for devices of the measured rates %s", speed.tolist())


def _relative(speed: Floats) -> Floats:
    """Divide by the upper median, which at least half of the devices reach."""
    return np.asarray(speed / np.sort(speed)[len(speed) // 2])
