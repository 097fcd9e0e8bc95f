"""A planning request: some global batches, and how to plan them, as a line of JSON."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from dcp_planner import Cluster, ModelShape, PlanConfig
from dcp_runtime.data.dealing import Dealing


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
        masks: that their sequences use: text and path of the spec, and the call of each.
        sequences: in packed order, of all replicas.
        dealing: how they become micro-batches of groups of devices.
        replica: whose micro-batches are planned.
        may_skip: whether sequences that do not fit their mask are left out; else they are an error.
        block_size: most tokens per planning block; ``None`` chooses it for the batch.
        shape: heads of the attention layer on one rank.
        cluster: devices of all replicas.
        config: how to plan.
    """

    masks: tuple[tuple[str, str, str], ...]
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
        values["masks"] = tuple(map(tuple, values["masks"]))
        values["sequences"] = tuple(
            SequenceRequest(**{**s, "cycle": tuple(s["cycle"])}) for s in values["sequences"]
        )
        values["dealing"] = Dealing.from_json(values["dealing"])
        values["shape"] = ModelShape(**values["shape"])
        values["cluster"] = Cluster(**values["cluster"])
        config: dict[str, Any] = values["config"]
        config["candidates"] = tuple(config["candidates"])  # JSON knows no tuples
        values["config"] = PlanConfig(**config)
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
