"""The plans of some micro-batches, as the planner of a replica hands them out, and as bytes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from dcp_planner import Plan
from dcp_planner.plan import PlanPart, decode_part, encode_parts
from dcp_runtime.data.successors import Runs
from dcp_runtime.errors import RunError
from dcp_runtime.plans.batch_plans import BatchPlan, StackedPlans
from dcp_runtime.run_log.record import PlanFacts


@dataclass(frozen=True, slots=True, eq=False)
class PlannedBatch:
    """One micro-batch of a group of devices.

    Attributes:
        members: its sequences in packed order, by their number among those that are kept.
        first: the group's first device, which is device 0 of the plans.
        plans: one per distinct mask of its layers.
        cycle: for each layer the number of its plan.
        facts: numbers of each plan, with the prediction.
    """

    members: tuple[int, ...]
    first: int
    plans: tuple[Plan | PlanPart, ...]
    cycle: tuple[int, ...]
    facts: tuple[PlanFacts, ...]

    @property
    def plan(self) -> BatchPlan:
        """The plan of all layers, or the plans of a stack."""
        return self.plans[0] if len(self.plans) == 1 else StackedPlans(self.plans, self.cycle)


@dataclass(frozen=True, slots=True, eq=False)
class PlanReply:
    """The micro-batches of a replica, and the rows that turned out not to fit their mask.

    Attributes:
        batches: none if no sequence is left.
        left_out: number within the request of each sequence that does not fit its mask, and why.
        hidden: runs of tokens of all kept sequences, one behind the other, that the next token of
            their sequence does not see in any layer.
        steps: of each kept sequence the number of its global batch.
        overflow: as of `Dealt`.
    """

    batches: tuple[PlannedBatch, ...]
    left_out: tuple[tuple[int, str], ...] = ()
    hidden: Runs = ()
    steps: tuple[int, ...] = ()
    overflow: int = 0

    @property
    def notes(self) -> dict[str, Any]:  # Any: fit for JSON
        """The reply without its plans; `with_notes` joins both again."""
        batches = [[b.members, b.first, b.cycle, b.facts] for b in self.batches]
        beside = ("left_out", "hidden", "steps", "overflow")
        return {"batches": batches} | {name: getattr(self, name) for name in beside}

    @classmethod
    def with_notes(cls, plans: Sequence[Plan | PlanPart], notes: Mapping[str, Any]) -> "PlanReply":
        """Make a reply of its plans, batch after batch, and its `notes`, as JSON gives them."""
        found, rest = [], iter(plans)
        for members, first, cycle, told in notes["batches"]:
            own, facts = tuple(next(rest) for _ in told), tuple(PlanFacts(*each) for each in told)
            found.append(PlannedBatch(tuple(members), int(first), own, tuple(cycle), facts))
        left_out = tuple((int(number), str(text)) for number, text in notes["left_out"])
        hidden = tuple((int(start), int(end)) for start, end in notes["hidden"])
        return cls(tuple(found), left_out, hidden, tuple(notes["steps"]), notes["overflow"])


def encode_reply(reply: PlanReply, devices: range) -> list[bytes]:
    """Return the parts of some devices, which all micro-batches share, for `decode_reply`."""
    parts: list[list[bytes]] = [[] for _ in devices]
    for batch in reply.batches:
        for plan in batch.plans:
            assert isinstance(plan, Plan), "parts are cut from whole plans"
            own = encode_parts(plan)
            for place, device in enumerate(devices):
                parts[place].append(own[device - batch.first])
    found = []
    for mine in parts:
        head = {"sizes": [*map(len, mine)], **reply.notes}
        found.append(json.dumps(head).encode() + b"\n" + b"".join(mine))
    return found


def decode_reply(data: bytes) -> PlanReply:
    """Read one device's part of a reply."""
    head, _, rest = data.partition(b"\n")
    try:
        found = json.loads(head)
        ends = pairwise(accumulate([int(size) for size in found["sizes"]], initial=0))
        parts = [decode_part(rest[start:end]) for start, end in ends]
        return PlanReply.with_notes(parts, found)
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        raise RunError(f"expected a part of a planned batch, got {len(data)} bytes") from error
