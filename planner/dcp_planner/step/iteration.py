"""Predict the time of one training step from an assignment of its documents.

Each device computes the linear part of the tokens that it holds and its group's attention, one
micro-batch after another. A group starts when all of its devices are free. If parameters are
synchronised in every micro-batch (FSDP), all devices meet there; otherwise only at the end. With
pipeline stages, 1F1B fills and drains the pipeline: ``stages - 1`` times the longest micro-batch's
share of a stage.

The attention of a group is estimated without planning its blocks. A plan of a group balances pairs
and tokens over the group's devices. Then a document of ``n`` tokens and ``p`` pairs keeps ``x =
max(n / mean tokens, p / mean pairs)`` devices busy:

- ``x <= 1``: one device holds the document whole, and nothing travels;
- ``x > 1``: each of the `x` devices fetches the keys that its queries see and that it does not own,
  at most ``p / n`` on average (causal: half the document; window: the window). Tokens alone need
  ``y = n / mean tokens`` devices; the queries that the other ``x - y`` compute travel as well.

The same count with nodes in place of devices gives the bytes between nodes. Compute hides most
messages. Three allowances are fitted to 24 simulated plans (8 to 64 H100s; causal; blocks of 1,024
or 2,048 tokens; `native`, fast): for messages that are not hidden; for kernels that leave
multiprocessors idle; and for plans of several nodes, which compute less evenly. Half of the
estimates are within 2% of the devices' time, nine of ten within 5%, the worst is 6% off. Where
documents are so short that fixed costs decide, the estimate is far too low. Even sharding gets the
same allowances. A host that runs ahead works while its device computes the linear part of a layer.
``bench_step.py --validate`` repeats the comparison.
"""

from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np

from dcp_dsl.arrays import Floats, Ints
from dcp_planner.model.cluster import Cluster, ModelShape
from dcp_planner.model.cost_model import tile_seconds
from dcp_planner.model.problem import net_bytes
from dcp_planner.step.setting import Assignment, Documents, StepMesh, StepModel

Sharding = Literal["planned", "even", "everywhere"]
"""Devices that compute a document's attention: ``planned``: as many of its group as a plan needs;
``even``: all of its group, evenly; ``everywhere``: as many as a plan needs, of the whole mesh,
wherever the document's tokens are."""

IMBALANCE = 0.145
"""Time above perfect balance in a group inside one node, as a share of compute. Most of it are
kernels with too few blocks of threads for a device."""
IMBALANCE_PER_DOUBLING = 0.045
"""Added to that share by each doubling of a group's nodes: ports carry uneven loads."""
EXPOSED = 0.30
"""Share of the messages between nodes that compute does not hide."""


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Documents in groups, one row a document, and the width of each group."""

    # tokens, pairs: of each document, float64 `[N]`
    tokens: Floats
    pairs: Floats
    group: Ints  # of each document, `[N]`
    width: Floats  # devices of each group, float64 `[G]`

    def sums(self, values: Floats) -> Floats:
        """Add `values` of documents up by group, float64 ``[G]``."""
        found = np.bincount(self.group, weights=values, minlength=len(self.width))
        return found.astype(np.float64)


def attention_seconds(
    groups: Groups, shape: ModelShape, cluster: Cluster, sharding: Sharding = "planned"
) -> Floats:
    """Estimate forward and backward of one attention layer in each group, ``[G]``; O(N)."""
    return _direction(groups, shape, cluster, sharding, is_backward=False) + _direction(
        groups, shape, cluster, sharding, is_backward=True
    )


def pair_seconds(pairs: Floats, tokens: Floats, shape: ModelShape, cluster: Cluster) -> Floats:
    """Compute the seconds that pairs take on one device, forward and backward of one layer."""
    # One tile as large as the document: borders of blocks cost nothing here.
    forward, backward = (
        tile_seconds(pairs, tokens, tokens, shape, cluster, is_backward=is_backward)
        for is_backward in (False, True)
    )
    return forward + backward


def unevenness(width: Floats, cluster: Cluster) -> Floats:
    """Estimate the time above perfect balance of groups of some widths, as a share of compute."""
    doublings = np.log2(_nodes(width, cluster))
    return np.where(width > 1, IMBALANCE + IMBALANCE_PER_DOUBLING * doublings, 0.0)


def _nodes(width: Floats, cluster: Cluster) -> Floats:
    return np.maximum(width / cluster.devices_per_node, 1.0)


def messages_seconds(groups: Groups, shape: ModelShape, cluster: Cluster) -> Floats:
    """Estimate the time that messages between nodes add to one layer, both directions, ``[G]``."""
    nodes = _nodes(groups.width, cluster)
    moved = _bytes(groups, shape, "planned", nodes, is_backward=False)
    moved = moved + _bytes(groups, shape, "planned", nodes, is_backward=True)
    return EXPOSED * moved / groups.width / cluster.inter_bytes_per_s


def _direction(
    groups: Groups, shape: ModelShape, cluster: Cluster, sharding: Sharding, *, is_backward: bool
) -> Floats:
    busy = tile_seconds(
        groups.pairs, groups.tokens, groups.tokens, shape, cluster, is_backward=is_backward
    )
    compute = groups.sums(busy) / groups.width
    inside = _bytes(groups, shape, sharding, groups.width, is_backward=is_backward)
    nodes = _nodes(groups.width, cluster)
    across = _bytes(groups, shape, sharding, nodes, is_backward=is_backward)
    intra_s = inside / groups.width / cluster.intra_bytes_per_s
    inter_s = across / groups.width / cluster.inter_bytes_per_s
    # Links may be busier than compute: then they decide.
    overlapped = compute * (1 + unevenness(groups.width, cluster)) + EXPOSED * inter_s
    # One kernel. A host that runs ahead prepares it during the linear part of the layer.
    once = cluster.kernel_launch_s + (0.0 if cluster.host_runs_ahead else cluster.pass_s)
    return np.maximum(overlapped, np.maximum(intra_s, inter_s)) + once


def _bytes(
    groups: Groups, shape: ModelShape, sharding: Sharding, parts: Floats, *, is_backward: bool
) -> Floats:
    """Estimate the bytes that the parts (devices or nodes) of each group receive, ``[G]``."""
    parts = np.maximum(parts, 1.0)
    own = parts[groups.group]
    by_tokens = own * groups.tokens / np.maximum(groups.sums(groups.tokens), 1)[groups.group]
    by_pairs = own * groups.pairs / np.maximum(groups.sums(groups.pairs), 1)[groups.group]
    # Parts that compute with each document. If one is enough, nothing of the document travels.
    is_planned = sharding != "even"
    holders = np.maximum(by_tokens, by_pairs) if is_planned else own
    is_split = holders > 1
    holders = np.maximum(holders, 1.0)
    # A part fetches the keys that its queries see, but no more than there are elsewhere.
    elsewhere = groups.tokens * (1 - 1 / holders)
    seen = groups.pairs / groups.tokens if is_planned else groups.tokens
    query_bytes, key_bytes = net_bytes(shape, "backward" if is_backward else "forward")
    keys = holders * np.minimum(elsewhere, seen) * key_bytes
    queries = groups.tokens * np.maximum(0.0, 1 - by_tokens / holders)
    moved = queries * query_bytes if is_planned else 0.0
    return groups.sums(np.where(is_split, keys + moved, 0.0))


Synchronisation = Literal["micro_batch", "step"]
"""When devices exchange parameters: in every micro-batch (FSDP), or once a step (ZeRO-1)."""

HIDING = 0.9
"""Share of a step's compute behind which collectives of parameters and gradients hide."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Predicted seconds of a step; the parts add up to `seconds`."""

    # linear_s, attention_s: mean over the devices
    linear_s: float
    attention_s: float
    waiting_s: float  # mean time that devices wait for other devices
    bubble_s: float  # pipeline fill and drain
    synchronisation_s: float  # collectives that compute does not hide
    # `seconds` without bubble and synchronisation, over linear part and pairs in perfect balance
    # without messages
    balance: float
    max_tokens: float  # the largest number of tokens of a device and micro-batch, over the mean

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
    """Predict the time of a step; O(N log N + G * devices)."""
    mesh = assignment.mesh
    starts, members = _grouped(documents, assignment)
    attention = model.layers * _attention(starts, members, mesh, model, cluster, sharding)
    tokens = members.sums(members.tokens) / members.width
    linear = model.linear_seconds(1) * tokens
    # Tokens of each device in each micro-batch, and the time at which each device is free.
    held = np.zeros((mesh.micro_batches, mesh.devices))
    ready, longest = np.zeros(mesh.devices), 0.0
    groups = zip(starts, tokens, (linear + attention).tolist(), strict=True)
    for batch, own_groups in groupby(groups, key=lambda group: group[0][0]):
        if synchronisation == "micro_batch":
            ready[:] = ready.max()
        begin = ready.copy()
        for (_, first, width), own, seconds in own_groups:
            devices = slice(first, first + width)
            # The devices of a group exchange keys: all of them begin when the last one is ready.
            ready[devices] = ready[devices].max() + seconds
            held[batch, devices] += own
        longest = max(longest, float((ready - begin).max()))
    makespan = float(ready.max())
    # Means over the devices: a group counts by the share of devices that it has.
    share = members.width / mesh.devices
    linear_s, attention_s = float(linear @ share), float(attention @ share)
    exchange = _exchange_seconds(mesh, model, cluster, synchronisation)
    # On one device: the linear part and the visible pairs of all documents.
    pairs = pair_seconds(documents.pairs, documents.tokens.astype(np.float64), model.shape, cluster)
    ideal = model.linear_seconds(float(documents.tokens.sum())) + model.layers * float(pairs.sum())
    ideal /= mesh.devices
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
    """Return the seconds of linear part and attention of each group of an assignment, in order."""
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
    if sharding != "everywhere":
        return attention_seconds(members, model.shape, cluster, sharding)
    # All documents of a micro-batch form one group over the whole mesh.
    batch = np.array([start[0] for start in starts], np.int64)
    width = np.full(mesh.micro_batches, float(mesh.devices))
    together = Groups(members.tokens, members.pairs, batch[members.group], width)
    return attention_seconds(together, model.shape, cluster, sharding)[batch]


def _exchange_seconds(
    mesh: StepMesh, model: StepModel, cluster: Cluster, synchronisation: Synchronisation
) -> float:
    """Compute the seconds of all collectives of parameters and gradients of a step on a device.

    Hybrid sharding: parameters are sharded inside a node. So FSDP's two gathers and one scatter per
    micro-batch stay inside (ZeRO-1: one of each per step), and the nodes sum gradients once a step.
    A ring moves ``1 - 1 / P`` of the bytes through each of its P devices.
    """
    size = model.parameter_bytes / mesh.stages  # a stage holds its own layers only
    local = min(cluster.devices_per_node, mesh.devices)
    passes = 3 * mesh.micro_batches if synchronisation == "micro_batch" else 2
    inside = passes * size * (1 - 1 / local) / cluster.intra_bytes_per_s
    nodes = mesh.devices / local
    # An all-reduce scatters and gathers: twice the bytes.
    across = 2 * size / local * (1 - 1 / nodes) / cluster.inter_bytes_per_s
    return inside + across


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
