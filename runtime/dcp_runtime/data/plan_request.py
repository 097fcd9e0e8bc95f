"""Planning requests: one batch as a line of JSON, and the planned batch that comes back.

A planner process makes the same plans from the text as this process makes from the values; both go
through `make_plans`.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import repeat
from math import lcm
from typing import Any, TypeAlias

from dcp_dsl import DatasetError, Form, Mask, Sample, Spec
from dcp_planner import (
    Cluster,
    ModelShape,
    Plan,
    PlanConfig,
    Provenance,
    build_plan,
    build_stack,
    choose_block_size,
    cut_blocks,
    cut_stack,
)
from dcp_planner.plan import PlanPart, decode_part, encode_parts
from dcp_runtime.data.screening import SKIP_HINT
from dcp_runtime.data.successors import Runs, hidden_from_next
from dcp_runtime.data.truncation import truncate
from dcp_runtime.errors import RunError
from dcp_runtime.plans.batch_plans import BatchPlan, StackedPlans

MOST_LAYERS = 4096
"""Layers after which the cycles of a batch have to repeat."""

Slot: TypeAlias = tuple[int, ...]
"""For every sequence of a batch the number of the mask that it has in some layer."""


@dataclass(frozen=True, slots=True, eq=False)
class PlanReply:
    """The plans of a batch, and the rows that turned out not to fit their mask.

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
        """Everything except the plans; `with_notes` joins both again."""
        return {"cycle": self.cycle, "left_out": self.left_out, "hidden": self.hidden}

    @classmethod
    def with_notes(
        cls, plans: tuple[Plan | PlanPart, ...], notes: Mapping[str, Any]
    ) -> "PlanReply":
        """Make a batch of its plans and its `notes`, as JSON gives them."""
        left_out = tuple((int(number), str(text)) for number, text in notes["left_out"])
        hidden = tuple((int(start), int(end)) for start, end in notes["hidden"])
        return cls(plans, tuple(notes["cycle"]), left_out, hidden)

    @property
    def plan(self) -> BatchPlan:
        """The plan of all layers, or the plans of a stack."""
        return self.plans[0] if len(self.plans) == 1 else StackedPlans(self.plans, self.cycle)


def encode_batch(batch: PlanReply, num_devices: int) -> list[bytes]:
    """Return every device's part of a planned batch as bytes for `decode_batch`."""
    whole = [plan for plan in batch.plans if isinstance(plan, Plan)]  # parts are cut from these
    parts = zip(*map(encode_parts, whole), strict=True) if whole else repeat((), num_devices)
    found = []
    for mine in parts:
        head = {"sizes": [*map(len, mine)], **batch.notes}
        found.append(json.dumps(head).encode() + b"\n" + b"".join(mine))
    return found


def decode_batch(data: bytes) -> PlanReply:
    """Read one device's part of a planned batch."""
    head, _, rest = data.partition(b"\n")
    try:
        found = json.loads(head)
        sizes = [int(size) for size in found["sizes"]]
        batch = PlanReply.with_notes((), found)
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"expected a part of a planned batch, got {len(data)} bytes") from error
    parts, at = [], 0
    for size in sizes:
        parts.append(decode_part(rest[at : at + size]))
        at += size
    return replace(batch, plans=tuple(parts))


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """One sequence of a batch."""

    row: int
    cycle: tuple[int, ...]
    sample: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """One packed batch to plan.

    Attributes:
        masks: that its sequences use: text and path of the spec, and the call of each.
        sequences: in packed order.
        may_skip: whether sequences that do not fit their mask are left out; else they are an error.
        block_size: most tokens per planning block; ``None`` chooses it for the batch.
        shape: heads of the attention layer on one rank.
        cluster: devices.
        config: how to plan.
    """

    masks: tuple[tuple[str, str, str], ...]
    sequences: tuple[SequenceRequest, ...]
    may_skip: bool
    block_size: int | None
    shape: ModelShape
    cluster: Cluster
    config: PlanConfig

    def to_json(self) -> str:
        """Return one line; equal requests give equal lines."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "PlanRequest":
        """Read what `to_json` wrote."""
        values = json.loads(text)
        values["masks"] = tuple(map(tuple, values["masks"]))
        values["sequences"] = tuple(
            SequenceRequest(**{**s, "cycle": tuple(s["cycle"])}) for s in values["sequences"]
        )
        values["shape"] = ModelShape(**values["shape"])
        values["cluster"] = Cluster(**values["cluster"])
        config: dict[str, Any] = values["config"]
        config["candidates"] = tuple(config["candidates"])  # JSON knows no tuples
        values["config"] = PlanConfig(**config)
        return cls(**values)

    @property
    def key(self) -> str:
        """Name of the plans in a cache: sha256 of the request without the rows it came from."""
        same = asdict(replace(self, sequences=tuple(replace(s, row=0) for s in self.sequences)))
        return hashlib.sha256(json.dumps(same).encode()).hexdigest()


def plan_request(request: PlanRequest) -> PlanReply:
    """Compile the masks of a batch and plan it, from the text alone."""
    masks = [_mask(*mask) for mask in request.masks]
    samples = [Sample.from_json(sequence.sample) for sequence in request.sequences]
    return make_plans(request, masks, samples)


def make_plans(request: PlanRequest, masks: Sequence[Mask], samples: Sequence[Sample]) -> PlanReply:
    """Plan a batch from its masks and samples; raises as `plan_request`."""
    kept, bound, left_out = [], [], []
    for number, (sequence, sample) in enumerate(zip(request.sequences, samples, strict=True)):
        try:
            bound.append(_bind(sequence, masks, sample))
        except DatasetError as error:
            if not request.may_skip:
                raise DatasetError(f"row {sequence.row}: {error}; {SKIP_HINT}") from error
            left_out.append((number, str(error)))
        else:
            kept.append(number)
    if not kept:
        return PlanReply((), (), tuple(left_out))
    slots, cycle = join_cycles([request.sequences[number].cycle for number in kept])
    forms = [[of[mask] for of, mask in zip(bound, slot, strict=True)] for slot in slots]
    plans = _build(request, forms, [cycle.count(number) for number in range(len(slots))])
    named = tuple(
        replace(plan, provenance=_provenance(request, kept, slot))
        for plan, slot in zip(plans, slots, strict=True)
    )
    hidden = hidden_from_next([list(of.values()) for of in bound])
    return PlanReply(named, cycle, tuple(left_out), hidden)


def join_cycles(cycles: Sequence[tuple[int, ...]]) -> tuple[tuple[Slot, ...], tuple[int, ...]]:
    """Return the different slots of a batch, and for each layer the number of its slot.

    >>> join_cycles([(0, 0, 1), (2,)])
    (((0, 2), (1, 2)), (0, 0, 1))
    """
    period = lcm(*map(len, cycles))
    if period > MOST_LAYERS:
        raise DatasetError(
            f"the stacks of a batch repeat together after {period} layers only, at most "
            f"{MOST_LAYERS} are planned; pack rows of one stack into a batch"
        )
    number: dict[Slot, int] = {}
    layers = [
        number.setdefault(tuple(c[layer % len(c)] for c in cycles), len(number))
        for layer in range(period)
    ]
    return tuple(number), tuple(layers)


def _build(
    request: PlanRequest, forms: Sequence[Sequence[Form]], layers: Sequence[int]
) -> tuple[Plan, ...]:
    """Plan every distinct mask, all over one ownership of tokens."""
    shape, cluster, config = request.shape, request.cluster, request.config
    block = request.block_size or min(choose_block_size(f, cluster, config) for f in forms)
    if len(forms) == 1:
        return (build_plan(cut_blocks(forms[0], block), shape, cluster, config),)
    cut = zip(cut_stack(forms, block), layers, strict=True)
    return build_stack(list(cut), shape, cluster, config).plans


def _bind(sequence: SequenceRequest, masks: Sequence[Mask], sample: Sample) -> Mapping[int, Form]:
    """Compile the masks of a sequence, by their number."""
    found = {number: masks[number].compile(sample) for number in dict.fromkeys(sequence.cycle)}
    if sequence.num_tokens == sample.length:
        return found
    return {number: truncate(form, sequence.num_tokens) for number, form in found.items()}


@lru_cache(maxsize=64)
def _mask(spec: str, name: str, call: str) -> Mask:
    return Spec.from_text(spec, name).mask(call)


def _provenance(request: PlanRequest, kept: Sequence[int], slot: Slot) -> Provenance | None:
    """Return where the batch comes from, if one mask made all of it and nothing was cut."""
    sequences = [request.sequences[number] for number in kept]
    is_whole = all(Sample.from_json(s.sample).length == s.num_tokens for s in sequences)
    if not is_whole or len(set(slot)) != 1:
        return None
    spec, _, call = request.masks[slot[0]]
    origin = "rows " + ", ".join(str(sequence.row) for sequence in sequences)
    return Provenance(spec, call, tuple(s.sample for s in sequences), origin)
