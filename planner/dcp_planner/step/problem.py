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
        mesh: devices and micro-batches.
        token_budget: tokens that a replica can hold in one micro-batch.
        model, cluster: what computes.
        attention: seconds of each document's pairs on one device, both directions ``[N]``.
    """

    documents: Documents
    mesh: StepMesh
    token_budget: int
    model: StepModel
    cluster: Cluster
    attention: Floats

    @classmethod
    def of(cls, documents: Documents, setting: StepSetting) -> "StepProblem":
        """Price every document on one device."""
        tokens, model = documents.tokens.astype(np.float64), setting.model
        cluster = setting.cluster
        attention = model.layers * pair_seconds(documents.pairs, tokens, model.shape, cluster)
        return cls(documents, setting.mesh, setting.token_budget, model, cluster, attention)

    @property
    def linear(self) -> Floats:
        """Seconds of each document's linear part on one device ``[N]``."""
        return self.model.linear_seconds(1) * self.documents.tokens.astype(np.float64)

    @property
    def seconds(self) -> Floats:
        """Seconds of each document on one device, linear part and attention ``[N]``."""
        return self.linear + self.attention

    @property
    def room(self) -> float:
        """Most tokens of a device in one micro-batch."""
        return self.token_budget / self.mesh.context_ranks

    @property
    def mean_tokens(self) -> float:
        """Tokens of a device in one micro-batch if all hold equally many."""
        return float(self.documents.tokens.sum()) / (self.mesh.devices * self.mesh.micro_batches)

    @property
    def most_tokens(self) -> float:
        """Most tokens of a device over that mean, as the token budget allows."""
        return self.room / self.mean_tokens * (1 + 1e-9)

    def seconds_on(self, width: int) -> Floats:
        """Estimate the seconds of each document, summed over `width` devices that share it."""
        wide = np.array([float(width)])
        busy = self.attention * (1 + unevenness(wide, self.cluster))
        if width > self.cluster.devices_per_node:
            count = len(self.documents)
            alone = Groups(
                self.documents.tokens.astype(np.float64), self.documents.pairs,
                np.arange(count), np.full(count, float(width)),
            )  # fmt: skip
            moved = messages_seconds(alone, self.model.shape, self.cluster)
            busy = busy + self.model.layers * width * moved
        return self.linear + busy

    def bound_seconds(self) -> float:
        """Return a time that no plan of this estimate beats, without messages; O(N log devices).

        Each document takes at least its work on the fewest devices, a power of two, that may hold
        its tokens and compute it in that time; all devices together compute no faster than each.
        """
        devices = self.mesh.devices
        widths = np.minimum(2 ** np.arange(devices.bit_length() + 1), devices).astype(np.float64)
        uneven = 1 + unevenness(widths, self.cluster)[:, None]
        work = self.linear + self.attention * uneven
        fits = self.documents.tokens / widths[:, None] <= self.room
        fits[-1] = True

        def least(limit: float) -> float:
            able = fits & (work / widths[:, None] <= limit)
            able[-1] = True
            return float(np.where(able, work, np.inf).min(0).sum()) / devices

        low, high = float(self.seconds.sum()) / devices, 2 * float(work[-1].sum()) / devices
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (low, middle) if least(middle) <= middle else (middle, high)
        return high


Policy = Callable[[StepProblem], Assignment]


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy, how its attention shares documents, and its place in tables."""

    name: str
    assign: Policy
    sharding: Sharding = "planned"
