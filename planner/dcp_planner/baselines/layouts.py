"""Static layouts, as systems without a planner use them: baselines, and starts of a search.

But for ``grid``, a tile is computed by the owner of its queries, so only keys and values travel.
Plans send what the mask needs and no more; an all-gather of keys is thus ``contiguous`` or
``zigzag`` without the keys that nobody reads.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dcp_dsl.arrays import Indices
from dcp_planner.model.cluster import Cluster
from dcp_planner.model.config import PlanConfig
from dcp_planner.model.packing import pack_largest_first
from dcp_planner.model.placement import Partitioner, Placement
from dcp_planner.model.workload import Workload

StaticKind = Literal["contiguous", "zigzag", "ring", "documents", "grid"]
STATIC_KINDS: tuple[StaticKind, ...] = ("contiguous", "zigzag", "ring", "documents", "grid")
"""Every kind of static layout."""


@dataclass(frozen=True, slots=True)
class StaticLayout(Partitioner):
    """A static layout.

    Attributes:
        kind: ``contiguous``: device r owns chunk r of R of the packed batch. ``zigzag``: device r
            owns the chunks r and 2R-1-r of 2R, which levels one long causal document (Llama 3
            report, Sec. 3.3.2). ``ring``: the same for every sequence on its own, as ring attention
            on packed sequences does. ``documents``: whole sequences, largest first, on the least
            loaded device. ``grid``: zigzag over nodes; inside a node the key block says which
            device computes a tile, as splitting heads inside a node would spread the work.
    """

    kind: StaticKind

    @property
    def name(self) -> str:
        """Key in the registry."""
        return f"static:{self.kind}"

    def place(self, workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement:
        """Build the layout; O((D + W) log D)."""
        devices = cluster.num_devices
        if self.kind == "grid":
            return _grid(workload, cluster)
        if self.kind == "contiguous":
            owner = chunk_of_blocks(workload, devices)
        elif self.kind == "zigzag":
            owner = _fold(chunk_of_blocks(workload, 2 * devices), devices)
        elif self.kind == "ring":
            owner = _fold(chunk_within_sequence(workload, 2 * devices), devices)
        else:
            owner = _documents(workload, devices)
        return Placement(owner, owner[workload.compute_q])


def _fold(chunk: Indices, parts: int) -> Indices:
    """Assign chunk c and chunk 2P-1-c to the same part."""
    return np.minimum(chunk, 2 * parts - 1 - chunk).astype(np.int32)


def _documents(workload: Workload, devices: int) -> Indices:
    """Pack whole sequences by their pairs, at least one each."""
    pairs = np.ones(len(workload.cu_seqlens), np.int64)
    np.add.at(pairs, workload.block_sequence[workload.compute_q], workload.compute_pairs)
    return pack_largest_first(pairs, devices)[workload.block_sequence]


def _grid(workload: Workload, cluster: Cluster) -> Placement:
    first, inside = cluster.node_ptr[:-1], np.diff(cluster.node_ptr)
    node = _fold(chunk_of_blocks(workload, 2 * cluster.nodes), cluster.nodes)
    # Blocks of a node are dealt out to its devices in turn, as owners and as keys alike.
    order = np.argsort(node, kind="stable")
    rank = np.empty(len(node), np.int64)
    begin = np.searchsorted(node[order], np.arange(cluster.nodes))
    rank[order] = np.arange(len(node)) - begin[node[order]]
    owner = (first[node] + rank % inside[node]).astype(np.int32)
    at = node[workload.compute_q]
    device = first[at] + workload.compute_kv % inside[at]
    return Placement(owner, device.astype(np.int32))


def chunk_of_blocks(workload: Workload, num_chunks: int) -> Indices:
    """Cut the batch into chunks of consecutive blocks, each border at the nearest block border.

    Returns:
        int32 ``[D]``, chunk of each block, never falling; a chunk without a block is possible.
    """
    if workload.num_blocks == 0:
        return np.zeros(0, np.int32)
    bounds = np.append(workload.block_start, workload.block_end[-1])
    ideal = np.arange(1, num_chunks) * (float(bounds[-1]) / num_chunks)
    above = np.clip(np.searchsorted(bounds, ideal), 1, len(bounds) - 1)
    nearest = above - (ideal - bounds[above - 1] < bounds[above] - ideal)
    # A border before block b raises the chunk of b and of every later block by one.
    steps = np.bincount(nearest, minlength=len(bounds))[: workload.num_blocks]
    return np.cumsum(steps).astype(np.int32)


def chunk_within_sequence(workload: Workload, num_chunks: int) -> Indices:
    """Cut every sequence into as many chunks of equal tokens; a block goes where its middle lies.

    >>> from dcp_planner import ModelShape  # three blocks of four tokens in one sequence
    >>> from dcp_dsl import Slabs, block_sparsity
    >>> from dcp_planner.model.workload import build_workload
    >>> causal = Slabs(12, [0], [12], [0], [1], [0], [1])
    >>> chunk_within_sequence(build_workload(block_sparsity([causal], 4, 4), ModelShape()), 6)
    array([1, 3, 5], dtype=int32)
    """
    starts = workload.cu_seqlens.astype(np.int64)
    lengths = np.maximum(np.diff(starts), 1)
    sequence = workload.block_sequence
    middle = workload.block_start + workload.block_end - 2 * starts[sequence]
    return np.asarray(middle * num_chunks // (2 * lengths[sequence]), np.int32)
