"""Define the problem of a step policy: documents, and the cost of each on so many devices."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dcp_dsl.arrays import Floats
from dcp_planner.model.cluster import Cluster
from dcp_planner.step.assignment import Assignment, Documents, StepMesh
from dcp_planner.step.iteration import (
    Groups,
    Sharding,
    Synchronisation,
    messages_seconds,
    pair_seconds,
    unevenness,
)
from dcp_planner.step.model import StepModel


@dataclass(frozen=True, slots=True)
class StepSetting:
    """Settings of a step, without its documents.

    Attributes:
        mesh: replicas, context ranks, micro-batches, pipeline stages.
        model: the linear part and the attention shape.
        cluster: of all devices of a stage, node after node.
        token_budget: most tokens of a replica in one micro-batch.
        synchronisation: when devices exchange parameters.
        even_price: share of the time of the fastest plan that one with even tokens, which needs
            less memory, may take more; 0: time alone decides.
        widths: devices of a group to choose from; ``None``: 1, 2, 4, ... up to all, and a width for
            each document.
    """

    mesh: StepMesh
    model: StepModel
    cluster: Cluster
    token_budget: int
    synchronisation: Synchronisation = "micro_batch"
    even_price: float = 0.05
    widths: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StepProblem:
    """The input of a policy.

    Attributes:
        documents: of the global batch.
        setting: of the step.
        attention: seconds of each document's pairs on one device, both directions ``[N]``.
    """

    documents: Documents
    setting: StepSetting
    attention: Floats

    @classmethod
    def of(cls, documents: Documents, setting: StepSetting) -> "StepProblem":
        """Price every document on one device."""
        tokens, model = documents.tokens.astype(np.float64), setting.model
        seconds = pair_seconds(documents.pairs, tokens, model.shape, setting.cluster)
        return cls(documents, setting, model.layers * seconds)

    @property
    def linear(self) -> Floats:
        """Seconds of each document's linear part on one device ``[N]``."""
        return self.setting.model.linear_seconds(1) * self.documents.tokens.astype(np.float64)

    @property
    def seconds(self) -> Floats:
        """Seconds of each document on one device, linear part and attention ``[N]``."""
        return self.linear + self.attention

    @property
    def room(self) -> float:
        """Most tokens of a device in one micro-batch."""
        return self.setting.token_budget / self.setting.mesh.context_ranks

    @property
    def mean_tokens(self) -> float:
        """Tokens of a device in one micro-batch if all hold equally many."""
        mesh = self.setting.mesh
        return float(self.documents.tokens.sum()) / (mesh.devices * mesh.micro_batches)

    @property
    def most_tokens(self) -> float:
        """Most tokens of a device over that mean, as the token budget allows."""
        return self.room / self.mean_tokens * (1 + 1e-9)

    def seconds_on(self, width: int) -> Floats:
        """Estimate the seconds of each document, summed over `width` devices that share it."""
        wide = np.array([float(width)])
        busy = self.attention * (1 + unevenness(wide, self.setting.cluster))
        if width > self.setting.cluster.devices_per_node:
            count = len(self.documents)
            alone = Groups(
                self.documents.tokens.astype(np.float64), self.documents.pairs,
                np.arange(count), np.full(count, float(width)),
            )  # fmt: skip
            moved = messages_seconds(alone, self.setting.model.shape, self.setting.cluster)
            busy = busy + self.setting.model.layers * width * moved
        return self.linear + busy


Policy = Callable[[StepProblem], Assignment]


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy, how its attention shares documents, and its place in tables."""

    name: str
    assign: Policy
    sharding: Sharding = "planned"
