"""A planning request: some global batches, and how to plan them, as a line of JSON."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

from dcp_dsl import Mask
from dcp_planner import Cluster, ModelShape, PlanConfig
from dcp_runtime.data.dealing import Dealing


class MaskText(NamedTuple):
    """A mask as text: that of its spec, whose path, its call, path and text of what is imported."""

    spec: str
    name: str
    call: str
    files: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, mask: Mask) -> "MaskText":
        """Write down what makes a mask."""
        program, imported = mask.scope.program, mask.scope.imported
        return cls(program.text, program.name, mask.call, tuple(imported.files.items()))


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """One sequence of a global batch."""

    row: int
    cycle: tuple[int, ...]
    sample: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Global batches that are dealt together, to plan for one replica.

    Attributes:
        masks: that their sequences use.
        sequences: in packed order, of all replicas.
        dealing: how they become micro-batches of groups of devices.
        replica: whose micro-batches are planned.
        may_skip: whether sequences that do not fit their mask are left out; else they are an error.
        block_size: most tokens per planning block; ``None`` chooses it for the batch.
        shape: heads of the attention layer on one rank.
        cluster: devices of all replicas.
        config: how to plan.
    """

    masks: tuple[MaskText, ...]
    sequences: tuple[SequenceRequest, ...]
    dealing: Dealing
    replica: int
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
        values["masks"] = tuple(
            MaskText(spec, name, call, tuple((path, text) for path, text in files))
            for spec, name, call, files in values["masks"]
        )
        values["sequences"] = tuple(
            SequenceRequest(**{**s, "cycle": tuple(s["cycle"])}) for s in values["sequences"]
        )
        values["dealing"] = Dealing.from_json(values["dealing"])
        values["shape"] = ModelShape(**values["shape"])
        values["cluster"] = Cluster(**values["cluster"])
        values["config"] = PlanConfig(**values["config"])
        return cls(**values)

    @property
    def own_devices(self) -> range:
        """Devices of the replica, among those of all."""
        first = self.replica * self.dealing.context_ranks
        return range(first, first + self.dealing.context_ranks)

    @property
    def key(self) -> str:
        """Name of the plans in a cache: sha256 of the request without the rows it came from."""
        same = asdict(replace(self, sequences=tuple(replace(s, row=0) for s in self.sequences)))
        return hashlib.sha256(json.dumps(same).encode()).hexdigest()
