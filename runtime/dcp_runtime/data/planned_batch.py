"""A planned batch: its plans, and the rows that turned out not to fit their mask."""

import json
from dataclasses import dataclass

from dcp_planner import Plan, PlanPart, decode_part, encode_parts
from dcp_runtime.errors import RunError
from dcp_runtime.stacked_plans import BatchPlan, StackedPlans


@dataclass(frozen=True, slots=True, eq=False)
class PlannedBatch:
    """What planning a batch gave.

    Attributes:
        plans: one per distinct mask of its layers; none if no sequence is left.
        cycle: for each layer the number of its plan.
        left_out: number within the batch of each sequence that does not fit its mask, and why.
    """

    plans: tuple[Plan | PlanPart, ...]
    cycle: tuple[int, ...]
    left_out: tuple[tuple[int, str], ...] = ()

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
        head = {"sizes": [*map(len, mine)], "cycle": batch.cycle, "left_out": batch.left_out}
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
        left_out = tuple((int(number), str(text)) for number, text in found["left_out"])
        sizes, cycle = [int(size) for size in found["sizes"]], tuple(found["cycle"])
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"expected a part of a planned batch, got {len(data)} bytes") from error
    parts, at = [], 0
    for size in sizes:
        parts.append(decode_part(rest[at : at + size]))
        at += size
    return PlannedBatch(tuple(parts), cycle, left_out)
