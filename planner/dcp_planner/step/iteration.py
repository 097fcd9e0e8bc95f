"""Predict the time of one training step from an assignment of its documents.

Each device computes the linear part of the tokens that it holds and its group's attention, for one
micro-batch after the other. A group starts when all of its devices are free. If parameters are
synchronised in every micro-batch (FSDP), all devices meet there; otherwise only at the end. With
pipeline stages, 1F1B fills and drains the pipeline: ``stages - 1`` times the longest micro-batch's
share of a stage.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dcp_dsl.arrays import Floats
from dcp_planner.model.cluster import Cluster
from dcp_planner.step.assignment import Assignment, StepMesh
from dcp_planner.step.attention import Groups, Sharding, attention_seconds, pair_seconds
from dcp_planner.step.documents import Documents
from dcp_planner.step.model import StepModel

Synchronisation = Literal["micro_batch", "step"]
"""When devices exchange parameters: in every micro-batch (FSDP), or once a step (ZeRO-1)."""

HIDING = 0.9
"""Share of a step's compute behind which collectives of parameters and gradients hide."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Predicted seconds of a step; the parts add up to `seconds`.

    Attributes:
        linear_s, attention_s: mean over the devices.
        waiting_s: mean time that devices wait for slower ones.
        bubble_s: pipeline fill and drain.
        synchronisation_s: collectives that compute does not hide.
        balance: `seconds` without bubble and synchronisation, over linear part and pairs in perfect
            balance without messages.
        max_tokens: the largest number of tokens of a device and micro-batch, over the mean.
    """

    linear_s: float
    attention_s: float
    waiting_s: float
    bubble_s: float
    synchronisation_s: float
    balance: float
    max_tokens: float

    @property
    def seconds(self) -> float:
        """Return the predicted time of the step."""
        return (
            self.linear_s
            + self.attention_s
            + self.waiting_s
            + self.bubble_s
            + self.synchronisation_s
        )


def predict_step(
    documents: Documents,
    assignment: Assignment,
    model: StepModel,
    cluster: Cluster,
    *,
    synchronisation: Synchronisation = "micro_batch",
    sharding: Sharding = "planned",
) -> StepTime:
    """Predict the time of a step; O(N log N + G * devices).

    >>> from dcp_planner.step.assignment import StepMesh
    >>> from dcp_planner.step.model import step_model
    >>> mesh = StepMesh(replicas=2, context_ranks=1)
    >>> place = {"micro_batch": [0, 0], "first": [0, 1], "width": [1, 1]}
    >>> both = Assignment(mesh, **{name: np.array(v, np.int32) for name, v in place.items()})
    >>> time = predict_step(
    ...     Documents.causal([8192, 4096]), both, step_model("llama-8b"), Cluster(1, 2)
    ... )
    >>> round(time.max_tokens, 2), time.waiting_s > 0
    (1.33, True)
    """
    mesh = assignment.mesh
    starts, members = _grouped(documents, assignment)
    attention = model.layers * _attention(starts, members, mesh, model, cluster, sharding)
    tokens = members.sums(members.tokens) / members.width
    linear = model.linear_seconds(1) * tokens
    held = np.zeros((mesh.micro_batches, mesh.devices))
    ready = np.zeros(mesh.devices)
    longest, micro_batch, begin = 0.0, 0, ready.copy()
    for (batch, first, width), own, seconds in zip(
        starts, tokens, (linear + attention).tolist(), strict=True
    ):
        if batch != micro_batch:
            longest = max(longest, float((ready - begin).max()))
            if synchronisation == "micro_batch":
                ready[:] = ready.max()
            micro_batch, begin = batch, ready.copy()
        devices = slice(first, first + width)
        ready[devices] = ready[devices].max() + seconds
        held[batch, devices] += own
    longest = max(longest, float((ready - begin).max()))
    makespan = float(ready.max())
    share = members.width / mesh.devices
    linear_s, attention_s = float(linear @ share), float(attention @ share)
    exchange = _exchange_seconds(mesh, model, cluster, synchronisation)
    ideal = _ideal_seconds(documents, model, cluster) / mesh.devices
    return StepTime(
        linear_s=linear_s / mesh.stages,
        attention_s=attention_s / mesh.stages,
        waiting_s=(makespan - linear_s - attention_s) / mesh.stages,
        bubble_s=longest * (mesh.stages - 1) / mesh.stages,
        synchronisation_s=max(0.0, exchange - HIDING * makespan / mesh.stages),
        balance=makespan / ideal if ideal else 1.0,
        max_tokens=float(held.max() / held.mean()) if held.any() else 1.0,
    )


def group_seconds(
    documents: Documents, assignment: Assignment, model: StepModel, cluster: Cluster
) -> tuple[tuple[float, float], ...]:
    """Return the linear part and the attention of each group, in the order of its groups."""
    starts, members = _grouped(documents, assignment)
    attention = model.layers * _attention(
        starts, members, assignment.mesh, model, cluster, "planned"
    )
    linear = model.linear_seconds(1) * members.sums(members.tokens) / members.width
    return tuple(zip(linear.tolist(), attention.tolist(), strict=True))


def _attention(
    starts: list[tuple[int, int, int]],
    members: Groups,
    mesh: StepMesh,
    model: StepModel,
    cluster: Cluster,
    sharding: Sharding,
) -> Floats:
    """Estimate the attention of one layer in each group, ``[G]``."""
    if sharding != "everywhere":
        return attention_seconds(members, model.shape, cluster, sharding)
    batch = np.array([start[0] for start in starts], np.int64)
    width = np.full(mesh.micro_batches, float(mesh.devices))
    together = Groups(members.tokens, members.pairs, batch[members.group], width)
    return attention_seconds(together, model.shape, cluster, sharding)[batch]


def _exchange_seconds(
    mesh: StepMesh, model: StepModel, cluster: Cluster, synchronisation: Synchronisation
) -> float:
    """Compute the seconds of all collectives of parameters and gradients of a step on a device.

    Hybrid sharding: parameters are sharded inside a node, so that FSDP's two gathers and one
    scatter per micro-batch stay there (ZeRO-1: one of each per step); the nodes sum gradients once
    a step. A ring moves ``1 - 1 / P`` of the bytes through each of its P devices.
    """
    size = model.parameter_bytes / mesh.stages
    local = min(cluster.devices_per_node, mesh.devices)
    passes = 3 * mesh.micro_batches if synchronisation == "micro_batch" else 2
    inside = passes * size * (1 - 1 / local) / cluster.intra_bytes_per_s
    nodes = mesh.devices / local
    across = 2 * size / local * (1 - 1 / nodes) / cluster.inter_bytes_per_s
    return inside + across


def _ideal_seconds(documents: Documents, model: StepModel, cluster: Cluster) -> float:
    """Compute the seconds of all documents on one device: linear part and visible pairs."""
    pairs = pair_seconds(documents.pairs, documents.tokens.astype(np.float64), model.shape, cluster)
    return model.linear_seconds(float(documents.tokens.sum())) + model.layers * float(pairs.sum())


def _grouped(
    documents: Documents, assignment: Assignment
) -> tuple[list[tuple[int, int, int]], Groups]:
    """Number the groups of an assignment in the order of micro-batches, wide ones first."""
    starts, group = [], np.empty(len(documents), np.int64)
    for number, (batch, first, width, rows) in enumerate(assignment.groups()):
        starts.append((batch, first, width))
        group[rows] = number
    members = Groups(
        documents.tokens.astype(np.float64),
        documents.pairs,
        group,
        np.array([width for *_, width in starts], np.float64),
    )
    return starts, members
