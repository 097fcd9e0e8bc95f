"""A planned batch: its plans, and the rows that turned out not to fit their mask."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dcp_planner import Plan, PlanPart, decode_part, encode_parts
from dcp_runtime.data.successors import Runs
from dcp_runtime.errors import RunError
from dcp_runtime.plans.stacked_plans import BatchPlan, StackedPlans


@dataclass(frozen=True, slots=True, eq=False)
class PlannedBatch:
    """What planning a batch gave.

    Attributes:
        plans: one per distinct mask of its layers; none if no sequence is left.
        cycle: for each layer the number of its plan.
        left_out: number within the batch of each sequence that does not fit its mask, and why.
        hidden: runs of packed tokens that the next token of their sequence does not see in any
            layer; sequences that are left out do not count.
    """

    plans: tuple[Plan | PlanPart, ...]
    cycle: tuple[int, ...]
    left_out: tuple[tuple[int, str], ...] = ()
    hidden: Runs = ()

    @property
    def notes(self) -> dict[str, Any]:  # Any: fit for JSON
        """All that there is beside the plans; `with_notes` puts both together again."""
        return {"cycle": self.cycle, "left_out": self.left_out, "hidden": self.hidden}

    @classmethod
    def with_notes(
        cls, plans: tuple[Plan | PlanPart, ...], notes: Mapping[str, Any]
    ) -> "PlannedBatch":
        """Make a batch of its plans and its `notes`, as JSON gives them."""
        left_out = tuple((int(number), str(text)) for number, text in notes["left_out"])
        hidden = tuple((int(start), int(end)) for start, end in notes["hidden"])
        return cls(plans, tuple(notes["cycle"]), left_out, hidden)

    @property
    def plan(self) -> BatchPlan:
        """The plan of all layers, or the plans of a stack."""
        return self.plans[0] if len(self.plans) == 1 else StackedPlans(self.plans, self.cycle)


def encode_batch(batch: PlannedBatch, num_devices: int) -> list[bytes]:
    """Give every device's part of a planned batch as bytes for `decode_batch`."""
    parts: list[list[bytes]] = [[] for _ in range(num_devices)]
    for plan in batch.plans:
        assert isinstance(plan, Plan), "parts are cut from whole plans"
        for device, part in enumerate(encode_parts(plan)):
            parts[device].append(part)
    found = []
    for mine in parts:
        head = {"sizes": [*map(len, mine)], **batch.notes}
        found.append(json.dumps(head).encode() + b"\n" + b"".join(mine))
    return found


def decode_batch(data: bytes) -> PlannedBatch:
    """Read one device's part of a planned batch.

    Raises:
        DCPError: if it is something else.
    """
    head, _, rest = data.partition(b"\n")
    try:
        found = json.loads(head)
        sizes = [int(size) for size in found["sizes"]]
        batch = PlannedBatch.with_notes((), found)
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"expected a part of a planned batch, got {len(data)} bytes") from error
    parts, at = [], 0
    for size in sizes:
        parts.append(decode_part(rest[at : at + size]))
        at += size
    return replace(batch, plans=tuple(parts))
