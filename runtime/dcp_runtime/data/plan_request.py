"""Planning requests: one batch as a line of JSON, and the planned batch that comes back.

A planner process makes the same plans from the text as this process makes from the values; both go
through `make_plans`.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from dcp_dsl import DatasetError, Form, Mask, Sample, Spec
from dcp_planner import (
    Cluster,
    ModelShape,
    Plan,
    PlanConfig,
    PlanPart,
    Provenance,
    build_plan,
    build_stack,
    choose_block_size,
    cut_blocks,
    cut_stack,
    decode_part,
    encode_parts,
)
from dcp_runtime.data.sample_masks import Runs, Slot, hidden_from_next, join_cycles, truncate
from dcp_runtime.data.screening import SKIP_HINT
from dcp_runtime.errors import RunError
from dcp_runtime.plans.batch_plans import BatchPlan, StackedPlans


@dataclass(frozen=True, slots=True, eq=False)
class PlannedBatch:
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
    """Return every device's part of a planned batch as bytes for `decode_batch`."""
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


@dataclass(frozen=True, slots=True)
class MaskRequest:
    """A mask of a batch.

    Attributes:
        spec, name: text that the mask's names come from, and its path.
        call: the mask.
    """

    spec: str
    name: str
    call: str

    @classmethod
    def of(cls, mask: Mask) -> "MaskRequest":
        """Describe a mask."""
        program = mask.scope.program
        return cls(program.text, program.name, mask.call)


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """One sequence of a batch.

    Attributes:
        row: of the data set.
        cycle: for each layer the number of its mask among those of the batch.
        sample: JSON of the sample.
        num_tokens: how many of its first tokens take part.
    """

    row: int
    cycle: tuple[int, ...]
    sample: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """One packed batch to plan.

    Attributes:
        masks: that its sequences use.
        sequences: in packed order.
        may_skip: whether sequences that do not fit their mask are left out; else they are an error.
        block_size: most tokens per planning block; ``None`` chooses it for the batch.
        shape: heads of the attention layer on one rank.
        cluster: devices.
        config: how to plan.
    """

    masks: tuple[MaskRequest, ...]
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
        values["masks"] = tuple(MaskRequest(**mask) for mask in values["masks"])
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


def plan_request(request: PlanRequest) -> PlannedBatch:
    """Compile the masks of a batch and plan it, from the text alone.

    Raises:
        DatasetError: if a sample does not fit its mask, unless such are left out.
        PlanError: if it cannot be planned.
    """
    masks = [_mask(mask.spec, mask.name, mask.call) for mask in request.masks]
    samples = [Sample.from_json(sequence.sample) for sequence in request.sequences]
    return make_plans(request, masks, samples)


def make_plans(
    request: PlanRequest, masks: Sequence[Mask], samples: Sequence[Sample]
) -> PlannedBatch:
    """Plan a batch whose masks and samples are at hand; raises as `plan_request`."""
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
        return PlannedBatch((), (), tuple(left_out))
    slots, cycle = join_cycles([request.sequences[number].cycle for number in kept])
    forms = [[of[mask] for of, mask in zip(bound, slot, strict=True)] for slot in slots]
    plans = _build(request, forms, [cycle.count(number) for number in range(len(slots))])
    named = tuple(
        replace(plan, provenance=_provenance(request, kept, slot))
        for plan, slot in zip(plans, slots, strict=True)
    )
    hidden = hidden_from_next([list(of.values()) for of in bound])
    return PlannedBatch(named, cycle, tuple(left_out), hidden)


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
    """Say where the batch comes from, if one mask made all of it and nothing was cut."""
    sequences = [request.sequences[number] for number in kept]
    is_whole = all(Sample.from_json(s.sample).length == s.num_tokens for s in sequences)
    if not is_whole or len(set(slot)) != 1:
        return None
    mask = request.masks[slot[0]]
    origin = "rows " + ", ".join(str(sequence.row) for sequence in sequences)
    return Provenance(mask.spec, mask.call, tuple(s.sample for s in sequences), origin)
