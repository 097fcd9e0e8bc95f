"""The problem of a step policy, and published ways to solve it, written from their descriptions.

All are priced by the simulator that prices `plan_step`, messages included. Each states how its
attention shares documents (`Sharding`).
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dcp_dsl import pack
from dcp_dsl.arrays import Floats, Ints
from dcp_planner.model.cluster import Cluster
from dcp_planner.step.iteration import (
    Groups,
    Sharding,
    Synchronisation,
    messages_seconds,
    pair_seconds,
    unevenness,
)
from dcp_planner.step.setting import Assignment, Documents, StepMesh, StepModel


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


def _assign(
    problem: StepProblem, bins: Ints, micro_batch: Ints, group: Ints, width: int
) -> Assignment:
    """Turn the bin of each document, and each bin's place, into an assignment."""
    return Assignment(
        problem.setting.mesh,
        micro_batch[bins].astype(np.int32),
        (group[bins] * width).astype(np.int32),
        np.full(len(bins), width, np.int32),
    )


def _alike(problem: StepProblem, bins: Ints, count: int, width: int) -> Assignment:
    """Let bins of similar work share a micro-batch; the largest goes to the group with least work.

    So both sums are small: of the longest bin of every micro-batch, and of each group's bins.
    """
    loads = np.bincount(bins, weights=problem.seconds, minlength=count)
    order = np.argsort(-loads, kind="stable").reshape(problem.setting.mesh.micro_batches, -1)
    micro_batch, group = np.empty(count, np.int64), np.empty(count, np.int64)
    total = np.zeros(order.shape[1])
    for batch, row in enumerate(order):
        least = np.argsort(total, kind="stable")
        micro_batch[row], group[row] = batch, least
        total[least] += loads[row]
    return _assign(problem, bins, micro_batch, group, width)


def _in_turn(problem: StepProblem, packs: tuple[tuple[int, ...], ...]) -> Assignment:
    """Deal finished packs to replicas in turn: pack k is micro-batch k // R of replica k % R."""
    mesh = problem.setting.mesh
    count = mesh.replicas * mesh.micro_batches
    bins = _bins_of(packs, len(problem.documents)) % count
    numbers = np.arange(count)
    return _assign(
        problem, bins, numbers // mesh.replicas, numbers % mesh.replicas, mesh.context_ranks
    )


def _bins_of(packs: tuple[tuple[int, ...], ...], documents: int) -> Ints:
    bins = np.empty(documents, np.int64)
    for number, rows in enumerate(packs):
        bins[list(rows)] = number
    return bins


def round_robin(problem: StepProblem) -> Assignment:
    """Pack documents in their order and deal the packs in turn (``batches[r::R]``)."""
    return _in_turn(problem, pack(problem.documents.tokens.tolist(), problem.setting.token_budget))


def first_fit_decreasing(problem: StepProblem) -> Assignment:
    """Pack the longest documents first and deal the packs in turn (packing of TRL, Axolotl)."""
    lengths = problem.documents.tokens.tolist()
    return _in_turn(problem, pack(lengths, problem.setting.token_budget, order="decreasing"))


def alike_packs(problem: StepProblem) -> Assignment:
    """Pack in order; packs of similar work share a micro-batch (Megatron-LM `dp_balanced`)."""
    mesh = problem.setting.mesh
    count = mesh.replicas * mesh.micro_batches
    packs = pack(problem.documents.tokens.tolist(), problem.setting.token_budget)
    bins = _bins_of(packs, len(problem.documents)) % count
    return _alike(problem, bins, count, mesh.context_ranks)


def karmarkar_karp(problem: StepProblem) -> Assignment:
    """Split documents by work with the largest differencing method; tokens are not capped.

    Source: Karmarkar and Karp, The Differencing Method of Set Partitioning (1982); verl balances
    data-parallel ranks with it.
    """
    mesh = problem.setting.mesh
    count = mesh.replicas * mesh.micro_batches
    bins = differencing(problem.seconds, count)
    return _alike(problem, bins, count, mesh.context_ranks)


def differencing(values: Floats, parts: int) -> Ints:
    """Split values into parts of nearly equal sums; O(N parts log N).

    >>> np.bincount(differencing(np.array([8.0, 7, 6, 5, 4]), 2), weights=[8, 7, 6, 5, 4]).tolist()
    [16.0, 14.0]
    """
    heap: list[tuple[float, int, list[tuple[float, list[int]]]]] = []
    for number, value in enumerate(values.tolist()):
        sets = [(value, [number]), *((0.0, []) for _ in range(parts - 1))]
        heapq.heappush(heap, (-value, number, sets))
    while len(heap) > 1:
        (_, number, left), (_, _, right) = heapq.heappop(heap), heapq.heappop(heap)
        merged = [
            (a + b, [*rows, *more])
            for (a, rows), (b, more) in zip(left, reversed(right), strict=True)
        ]
        merged.sort(key=lambda entry: -entry[0])
        heapq.heappush(heap, (merged[-1][0] - merged[0][0], number, merged))
    bins = np.zeros(len(values), np.int64)
    for part, (_, rows) in enumerate(heap[0][2] if heap else ()):
        bins[rows] = part
    return bins


def variable_length(problem: StepProblem) -> Assignment:
    """Pack by work with variable length: least work if tokens fit, else fewest tokens.

    Source: WLB-LLM (OSDI 2025), Sec. 4.1, without delaying outliers to later steps.
    """
    mesh, tokens = problem.setting.mesh, problem.documents.tokens
    count = mesh.replicas * mesh.micro_batches
    work, held = np.zeros(count), np.zeros(count)
    bins = np.empty(len(tokens), np.int64)
    for row in sorted(range(len(tokens)), key=lambda i: (-tokens[i], i)):
        chosen = int(np.argmin(work))
        if held[chosen] + tokens[row] > problem.setting.token_budget:
            chosen = int(np.argmin(held))
        bins[row] = chosen
        work[chosen] += problem.seconds[row]
        held[chosen] += tokens[row]
    return _alike(problem, bins, count, mesh.context_ranks)


def width_by_tokens(problem: StepProblem) -> Assignment:
    """Spread a document over the fewest devices, a power of two, whose tokens it fits.

    Source: Megatron-LM, dynamic (hybrid) context parallelism, pull requests 2054 and 2282.
    """
    room = problem.setting.token_budget / problem.setting.mesh.context_ranks
    return _spread(problem, problem.documents.tokens / room)


def width_by_work(problem: StepProblem) -> Assignment:
    """Spread a document over a power of two of devices, until each needs a mean device's time.

    Source: FlexSP (ASPLOS 2025) chooses a degree per sequence by its time; here without its MILP.
    """
    mesh = problem.setting.mesh
    room = problem.setting.token_budget / mesh.context_ranks
    mean = problem.seconds.sum() / (mesh.devices * mesh.micro_batches)
    needed = np.maximum(problem.documents.tokens / room, problem.seconds / mean)
    return _spread(problem, needed)


def _spread(problem: StepProblem, needed: Floats) -> Assignment:
    """Spread each document over as many devices as it needs, least loaded ones first.

    Runs of devices are aligned, so that the process groups number ``2 * devices`` at most.
    """
    mesh = problem.setting.mesh
    load = np.zeros((mesh.micro_batches, mesh.devices))
    most = 1 << (mesh.devices.bit_length() - 1)
    exponent = np.ceil(np.log2(np.maximum(needed, 1.0)))
    width = np.minimum(np.exp2(exponent), most).astype(np.int32)
    micro_batch, first = np.empty(len(width), np.int32), np.empty(len(width), np.int32)
    for row in np.lexsort((np.arange(len(width)), -problem.seconds, -width)).tolist():
        size = int(width[row])
        runs = load[:, : mesh.devices // size * size].reshape(mesh.micro_batches, -1, size)
        place = int(np.argmin(runs.max(2)))
        batch, run = divmod(place, runs.shape[1])
        micro_batch[row], first[row] = batch, run * size
        load[batch, run * size : (run + 1) * size] += problem.seconds[row] / size
    return Assignment(mesh, micro_batch, first, width)


RIVALS = (
    NamedPolicy("round-robin", round_robin),
    NamedPolicy("ffd", first_fit_decreasing),
    NamedPolicy("megatron:dp_balanced", alike_packs, "even"),
    NamedPolicy("megatron:dynamic", width_by_tokens, "even"),
    NamedPolicy("karmarkar-karp", karmarkar_karp, "even"),
    NamedPolicy("wlb-llm", variable_length, "even"),
    NamedPolicy("flexsp", width_by_work, "even"),
    NamedPolicy("distca", alike_packs, "everywhere"),
)
"""Published ways. The first two run our attention plans. DistCA (arXiv 2510.18121) computes
attention on any device: it is priced with our plan of all devices, as if its greedy choice were as
good."""
