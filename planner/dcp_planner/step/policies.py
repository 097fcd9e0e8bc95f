"""The problem of a step policy, and published policies, written from their descriptions.

`predict_step` prices all of them, and the plans of `plan_step`, with the same estimates, messages
included. Each policy states how its attention shares documents (`Sharding`).

A *pack* is the list of documents that one replica runs in one micro-batch.
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
    """Settings of a step, without its documents."""

    mesh: StepMesh  # replicas, context ranks, micro-batches, pipeline stages
    model: StepModel  # the linear part and the attention shape
    cluster: Cluster  # of all devices of a stage, node after node
    token_budget: int  # most tokens of a replica in one micro-batch
    synchronisation: Synchronisation = "micro_batch"  # when devices exchange parameters
    # how much longer than the fastest plan a plan with even tokens may take, as a share of its
    # time: even tokens need less memory. 0: time alone decides.
    even_price: float = 0.05
    # numbers of devices that a group may have; `None`: 1, 2, 4, ... up to all, and a width for each
    # document.
    widths: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StepProblem:
    """The input of a policy."""

    documents: Documents  # of the global batch
    setting: StepSetting  # of the step
    attention: Floats  # seconds of each document's pairs on one device, both directions `[N]`

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
    def num_packs(self) -> int:
        """Packs of a step: one for each replica in each micro-batch."""
        return self.setting.mesh.replicas * self.setting.mesh.micro_batches

    @property
    def mean_seconds(self) -> float:
        """Seconds of a device in one micro-batch if all take equally long."""
        mesh = self.setting.mesh
        return float(self.seconds.sum()) / (mesh.devices * mesh.micro_batches)

    @property
    def mean_tokens(self) -> float:
        """Tokens of a device in one micro-batch if all hold equally many."""
        mesh = self.setting.mesh
        return float(self.documents.tokens.sum()) / (mesh.devices * mesh.micro_batches)

    @property
    def most_tokens(self) -> float:
        """Most tokens of a device over that mean, as the token budget allows."""
        return self.room / self.mean_tokens * (1 + 1e-9)  # a margin for rounding

    def seconds_on(self, width: int) -> Floats:
        """Estimate the seconds of each document, summed over `width` devices that share it."""
        wide = np.array([float(width)])
        busy = self.attention * (1 + unevenness(wide, self.setting.cluster))
        # Only messages between nodes add time; `unevenness` covers those inside a node.
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
    """A policy with its name in tables, and how its attention shares documents."""

    name: str
    assign: Policy
    sharding: Sharding = "planned"


def _assign(problem: StepProblem, bins: Ints, micro_batch: Ints, replica: Ints) -> Assignment:
    """Turn the pack of each document, and the place of each pack, into an assignment."""
    mesh = problem.setting.mesh
    return Assignment(
        mesh,
        micro_batch[bins].astype(np.int32),
        (replica[bins] * mesh.context_ranks).astype(np.int32),
        np.full(len(bins), mesh.context_ranks, np.int32),
    )


def _alike(problem: StepProblem, bins: Ints) -> Assignment:
    """Let packs of similar work share a micro-batch; the largest goes to the least busy replica.

    So both sums are small: of the longest pack of every micro-batch, and of each replica's packs.
    """
    # Row b of `order` are the packs of micro-batch b: the next largest, one for each replica.
    loads = np.bincount(bins, weights=problem.seconds, minlength=problem.num_packs)
    order = np.argsort(-loads, kind="stable").reshape(problem.setting.mesh.micro_batches, -1)
    micro_batch, replica = np.empty((2, problem.num_packs), np.int64)
    total = np.zeros(order.shape[1])
    for batch, row in enumerate(order):
        least = np.argsort(total, kind="stable")
        micro_batch[row], replica[row] = batch, least
        total[least] += loads[row]
    return _assign(problem, bins, micro_batch, replica)


def _in_turn(problem: StepProblem, packs: tuple[tuple[int, ...], ...]) -> Assignment:
    """Deal finished packs to replicas in turn: pack k is micro-batch k // R of replica k % R."""
    micro_batch, replica = np.divmod(np.arange(problem.num_packs), problem.setting.mesh.replicas)
    return _assign(problem, _bins_of(problem, packs), micro_batch, replica)


def _bins_of(problem: StepProblem, packs: tuple[tuple[int, ...], ...]) -> Ints:
    """Return the pack of each document; packs beyond those of the step join the first ones."""
    bins = np.empty(len(problem.documents), np.int64)
    for number, rows in enumerate(packs):
        bins[list(rows)] = number % problem.num_packs
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
    packs = pack(problem.documents.tokens.tolist(), problem.setting.token_budget)
    return _alike(problem, _bins_of(problem, packs))


def karmarkar_karp(problem: StepProblem) -> Assignment:
    """Split documents by work with the largest differencing method; tokens are not capped.

    Source: Karmarkar and Karp, The Differencing Method of Set Partitioning (1982); verl balances
    data-parallel ranks with it.
    """
    return _alike(problem, differencing(problem.seconds, problem.num_packs))


def differencing(values: Floats, parts: int) -> Ints:
    """Split values into parts of nearly equal sums; O(N parts log N).

    An entry of the heap is a partial split with its spread, largest less smallest sum. The two of
    the largest spread merge, large sums onto small ones, until one is left.
    """
    # The number of a value breaks ties, so lists of documents are never compared.
    heap: list[tuple[float, int, list[tuple[float, list[int]]]]] = []
    for number, value in enumerate(values.tolist()):
        sets = [(value, [number]), *((0.0, []) for _ in range(parts - 1))]
        heapq.heappush(heap, (-value, number, sets))
    while len(heap) > 1:
        (_, number, left), (_, _, right) = heapq.heappop(heap), heapq.heappop(heap)
        # Sums of a partial split fall, so the largest of one meets the smallest of the other.
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
    tokens = problem.documents.tokens
    work, held = np.zeros((2, problem.num_packs))
    bins = np.empty(len(tokens), np.int64)
    for row in sorted(range(len(tokens)), key=lambda i: (-tokens[i], i)):
        chosen = int(np.argmin(work))
        if held[chosen] + tokens[row] > problem.setting.token_budget:
            chosen = int(np.argmin(held))
        bins[row] = chosen
        work[chosen] += problem.seconds[row]
        held[chosen] += tokens[row]
    return _alike(problem, bins)


def width_by_tokens(problem: StepProblem) -> Assignment:
    """Spread a document over the fewest devices, a power of two, whose tokens it fits.

    Source: Megatron-LM, dynamic (hybrid) context parallelism, pull requests 2054 and 2282.
    """
    return _spread(problem, problem.documents.tokens / problem.room)


def width_by_work(problem: StepProblem) -> Assignment:
    """Spread a document over a power of two of devices, until each needs a mean device's time.

    Source: FlexSP (ASPLOS 2025) chooses a degree per sequence by its time; here without its MILP.
    """
    by_tokens = problem.documents.tokens / problem.room
    return _spread(problem, np.maximum(by_tokens, problem.seconds / problem.mean_seconds))


def _spread(problem: StepProblem, needed: Floats) -> Assignment:
    """Spread each document over as many devices as it needs, least loaded ones first.

    Runs of devices are aligned, so that the process groups number ``2 * devices`` at most.
    """
    mesh = problem.setting.mesh
    load = np.zeros((mesh.micro_batches, mesh.devices))
    most = 1 << (mesh.devices.bit_length() - 1)  # the largest power of two up to all devices
    exponent = np.ceil(np.log2(np.maximum(needed, 1.0)))
    width = np.minimum(np.exp2(exponent), most).astype(np.int32)
    micro_batch, first = np.empty(len(width), np.int32), np.empty(len(width), np.int32)
    # Wide runs first, while whole runs are free; of equal widths the longest document first.
    for row in np.lexsort((np.arange(len(width)), -problem.seconds, -width)).tolist():
        size = int(width[row])
        # Devices of a run are loaded alike until narrower runs come, so the first stands for all.
        # Devices behind the last whole run stay free of documents so wide.
        runs = load[:, : mesh.devices // size * size : size]
        batch, run = divmod(int(np.argmin(runs)), runs.shape[1])
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
"""Published policies. The first two run our attention plans. DistCA (arXiv 2510.18121) computes
attention on any device: it is priced with our plan of all devices, as if its greedy choice were as
good."""
