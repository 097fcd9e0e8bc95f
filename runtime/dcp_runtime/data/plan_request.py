"""What a planner needs to know about one batch, as a value that fits into one line of JSON.

A planner process makes the same plan from the text as this process makes from the values; both go
through `plan_request`.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from dcp_dsl import Mask, Sample, Slabs, Spec
from dcp_planner import (
    Cluster,
    ModelShape,
    Plan,
    PlanConfig,
    Provenance,
    build_plan,
    choose_block_size,
    cut_blocks,
)
from dcp_runtime.data.truncation import truncate_slabs


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """One sequence of a batch.

    Attributes:
        spec, name: text that the mask's names come from, and its path.
        call: the mask.
        sample: JSON of the sample.
        num_tokens: how many of its first tokens take part.
    """

    spec: str
    name: str
    call: str
    sample: str
    num_tokens: int

    @classmethod
    def of(cls, mask: Mask, sample: Sample, num_tokens: int) -> "SequenceRequest":
        """Describe a sample under a mask."""
        program = mask.scope.program
        return cls(program.text, program.name, mask.call, sample.to_json(), num_tokens)


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """One packed batch to plan.

    Attributes:
        sequences: in packed order.
        block_size: most tokens per planning block; ``None`` chooses it for the batch.
        shape: heads of the attention layer on one rank.
        cluster: devices.
        config: how to plan.
        origin: rows of the batch, in words.
    """

    sequences: tuple[SequenceRequest, ...]
    block_size: int | None
    shape: ModelShape
    cluster: Cluster
    config: PlanConfig
    origin: str

    def to_json(self) -> str:
        """Give one line; equal requests give equal lines."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "PlanRequest":
        """Read what `to_json` wrote."""
        values = json.loads(text)
        values["sequences"] = tuple(SequenceRequest(**s) for s in values["sequences"])
        values["shape"] = ModelShape(**values["shape"])
        values["cluster"] = Cluster(**values["cluster"])
        config: dict[str, Any] = values["config"]
        config["candidates"] = tuple(config["candidates"])  # JSON knows no tuples
        values["config"] = PlanConfig(**config)
        return cls(**values)

    @property
    def key(self) -> str:
        """Name of the plan in a cache: sha256 of the request without the rows it came from."""
        same = asdict(self) | {"origin": ""}
        return hashlib.sha256(json.dumps(same).encode()).hexdigest()


def plan_request(request: PlanRequest) -> Plan:
    """Compile the masks of a batch and plan it.

    Raises:
        DatasetError: if a sample does not fit its mask.
        PlanError: if it cannot be planned.
    """
    slabs = [_bind(sequence) for sequence in request.sequences]
    return plan_slabs(request, slabs)


def plan_slabs(request: PlanRequest, slabs: Sequence[Slabs]) -> Plan:
    """Plan a batch whose masks are compiled."""
    block = request.block_size or choose_block_size(slabs, request.cluster, request.config)
    sparsity = cut_blocks(slabs, block)
    return build_plan(
        sparsity, request.shape, request.cluster, request.config, provenance=_provenance(request)
    )


def _bind(sequence: SequenceRequest) -> Slabs:
    mask = _mask(sequence.spec, sequence.name, sequence.call)
    sample = Sample.from_json(sequence.sample)
    slabs = mask.bind(sample)
    if sequence.num_tokens < sample.length:
        return truncate_slabs(slabs, sequence.num_tokens)
    return slabs


@lru_cache(maxsize=64)
def _mask(spec: str, name: str, call: str) -> Mask:
    return Spec.from_text(spec, name).mask(call)


def _provenance(request: PlanRequest) -> Provenance | None:
    """Say where the batch comes from, if one spec and mask made all of it and nothing was cut."""
    samples = [Sample.from_json(sequence.sample) for sequence in request.sequences]
    is_whole = all(
        sequence.num_tokens == sample.length
        for sequence, sample in zip(request.sequences, samples, strict=True)
    )
    calls = {(sequence.spec, sequence.call) for sequence in request.sequences}
    if not is_whole or len(calls) != 1:
        return None
    spec, call = calls.pop()
    texts = tuple(sequence.sample for sequence in request.sequences)
    return Provenance(spec, call, texts, request.origin)
