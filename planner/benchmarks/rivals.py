"""Placements of a packed batch by other systems, and the bytes they send, as we read their papers.

Each rival deals out tokens; a tile is computed by the owner of its queries. All but ``torch-ptrr``
and ``magi`` know causal masks alone; the first three cut documents by token: give them small
blocks. Bytes are counted as each of them sends, not as our plans would:

- ``te-thd``: Transformer Engine, packed sequences (THD): every document is cut into 2 R chunks in
  zigzag; keys and values go round a ring of all ranks, in backward with their gradients.
- ``megatron-dynamic``: Megatron Core, dynamic context parallelism: a document gets the least power
  of two of ranks that holds it, longest first, on the aligned ranks with the least work; a ring
  inside that group.
- ``zeppelin``: Zeppelin (2025): short documents on one rank, longer ones on the ranks
  of a node, the longest on all; a ring inside each zone.
- ``torch-ptrr``: PyTorch's context parallel for FlexAttention with the PTRR balancer: blocks of
  queries sorted by work are dealt in snake order; all keys are gathered, gradients scattered.
- ``magi``: MagiAttention's dispatch: chunks, the most work first, to the rank with the least work
  that has room; each rank gets the keys that it reads, once, without a gateway per node.
- ``fcp``: FCP (arXiv 2605.08524): blocks of documents are packed on ranks by work, the largest
  first; ranks fetch what they read from each other.
- ``flash-cp``: FlashCP (arXiv 2606.08476): as few of the longest documents as level the work are
  cut over all ranks, the others stay whole; only keys that are read travel.
- ``distca``: DistCA (arXiv 2510.18121): tokens lie in order; rows of tiles move from ranks with
  too much work to those with the least, the largest first, with queries, keys and results.

ByteScale, FlexSP and MagiAttention's dynamic solver are missing: we found no description precise
enough to build a placement.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Ints
from dcp_planner import Cluster
from dcp_planner.baselines import chunk_of_blocks, chunk_within_sequence
from dcp_planner.model.problem import Placement, Workload, loads_of, pack_largest_first

Owners = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Sent:
    """Bytes of keys and values that travel, and the part between nodes; forward and backward."""

    total: float = 0.0
    inter: float = 0.0

    def __add__(self, other: "Sent") -> "Sent":
        return Sent(self.total + other.total, self.inter + other.inter)


@dataclass(frozen=True, slots=True)
class Rival:
    """A placement by another system."""

    placement: Placement  # of tokens, and of tiles at their queries
    sent: Sent | None  # bytes as that system sends them; `None`: those of the plan, sent directly


def _at_queries(owner: Owners, workload: Workload) -> Placement:
    return Placement(owner, owner[workload.compute_q])


def _work_of_sequences(workload: Workload) -> Ints:
    of_tile = workload.block_sequence[workload.compute_q]
    return loads_of(of_tile, workload.compute_pairs, len(workload.cu_seqlens) - 1)


def _ring(tokens: int, first: int, width: int, workload: Workload, cluster: Cluster) -> Sent:
    """Count a ring: each of `width` ranks passes on all shards but its own.

    Forward sends keys and values, backward sends them again with their gradients, in the type of
    the inputs: three times.
    """
    shape = workload.shape
    kv = 2 * shape.kv_heads * shape.head_dim * shape.dtype_bytes * tokens
    nodes = np.unique((first + np.arange(width)) // cluster.devices_per_node)
    borders = len(nodes) if len(nodes) > 1 else 0  # links of the ring that leave a node
    return Sent(3.0 * kv * (width - 1), 3.0 * kv * (width - 1) * borders / width)


def _grouped(workload: Workload, first: Owners, width: Owners, cluster: Cluster) -> Rival:
    """Cut each document in zigzag over its ranks, with a ring over them."""
    lengths = np.diff(workload.cu_seqlens).astype(np.int64)
    sequence = workload.block_sequence
    middle = (workload.block_start + workload.block_end) / 2 - workload.cu_seqlens[sequence]
    parts = 2 * width[sequence].astype(np.int64)
    chunk = np.minimum(middle * parts / lengths[sequence], parts - 1).astype(np.int64)
    owner = first[sequence] + np.minimum(chunk, parts - 1 - chunk)
    sent = Sent()
    for tokens, at, ranks in zip(lengths.tolist(), first.tolist(), width.tolist(), strict=True):
        sent += _ring(tokens, at, ranks, workload, cluster)
    return Rival(_at_queries(owner.astype(np.int32), workload), sent)


def te_thd(workload: Workload, cluster: Cluster) -> Rival:
    """Cut every document over all ranks."""
    count = len(workload.cu_seqlens) - 1
    width = np.full(count, cluster.num_devices, np.int32)
    return _grouped(workload, np.zeros(count, np.int32), width, cluster)


def megatron_dynamic(workload: Workload, cluster: Cluster) -> Rival:
    """Place each document on the least power of two of ranks that holds it."""
    ranks = cluster.num_devices
    lengths = np.diff(workload.cu_seqlens).astype(np.int64)
    room = max(1.0, lengths.sum() / ranks)
    width = np.minimum(2 ** np.ceil(np.log2(np.maximum(lengths / room, 1))), ranks).astype(np.int32)
    first = _emptiest_runs(lengths, width, _work_of_sequences(workload), ranks)
    return _grouped(workload, first, width, cluster)


def _emptiest_runs(lengths: Ints, width: Owners, work: Ints, ranks: int) -> Owners:
    """Put documents, the longest first, on the aligned ranks of their width with least work."""
    first, load = np.zeros(len(lengths), np.int32), np.zeros(ranks)
    for document in np.argsort(-lengths, kind="stable"):
        size = int(width[document])
        groups = load[: ranks // size * size].reshape(-1, size).max(axis=1)
        first[document] = int(np.argmin(groups)) * size
        load[first[document] : first[document] + size] += work[document] / size
    return first


def zeppelin(workload: Workload, cluster: Cluster) -> Rival:
    """Keep a document on one rank, on one node or on all, by its length."""
    ranks, inside = cluster.num_devices, cluster.devices_per_node
    lengths = np.diff(workload.cu_seqlens).astype(np.int64)
    room = max(1.0, lengths.sum() / ranks)
    width = np.where(lengths <= room, 1, np.where(lengths <= room * inside, inside, ranks))
    width = width.astype(np.int32)
    first = _emptiest_runs(lengths, width, lengths, ranks)
    return _grouped(workload, first, width, cluster)


def _work_of_blocks(workload: Workload) -> Ints:
    return loads_of(workload.compute_q, workload.compute_pairs, workload.num_blocks)


def torch_ptrr(workload: Workload, cluster: Cluster) -> Rival:
    """Deal blocks of queries by work, in snake order over the ranks."""
    ranks = cluster.num_devices
    order = np.argsort(-_work_of_blocks(workload), kind="stable")
    turn, place = np.divmod(np.arange(len(order)), ranks)
    owner = np.empty(len(order), np.int32)
    owner[order] = np.where(turn % 2 == 0, place, ranks - 1 - place)
    # One gather in forward and one scatter in backward move two thirds of a ring's three rounds.
    ring = _ring(int(workload.cu_seqlens[-1]), 0, ranks, workload, cluster)
    return Rival(_at_queries(owner, workload), Sent(ring.total * 2 / 3, ring.inter * 2 / 3))


def magi(workload: Workload, cluster: Cluster) -> Rival:
    """Place each chunk on the rank with the least work that has room for one more."""
    ranks, work = cluster.num_devices, _work_of_blocks(workload)
    room = -(-len(work) // ranks)
    load, held = np.zeros(ranks), np.zeros(ranks, np.int64)
    owner = np.empty(len(work), np.int32)
    for block in np.argsort(-work, kind="stable"):
        rank = int(np.argmin(np.where(held < room, load, np.inf)))
        owner[block], load[rank], held[rank] = rank, load[rank] + work[block], held[rank] + 1
    return Rival(_at_queries(owner, workload), None)


def fcp(workload: Workload, cluster: Cluster) -> Rival:
    """Pack blocks by work."""
    owner = pack_largest_first(_work_of_blocks(workload), cluster.num_devices)
    return Rival(_at_queries(owner, workload), None)


def flash_cp(workload: Workload, cluster: Cluster) -> Rival:
    """Cut as few documents as level the work, the longest first."""
    ranks, work = cluster.num_devices, _work_of_sequences(workload)
    order = np.argsort(-work, kind="stable")
    zigzag = chunk_within_sequence(workload, 2 * ranks)
    folded = np.minimum(zigzag, 2 * ranks - 1 - zigzag)
    best, least = folded, np.inf
    for cut in range(len(order) + 1):
        is_cut = np.isin(np.arange(len(order)), order[:cut])
        whole = pack_largest_first(np.where(is_cut, 0, work), ranks)
        found = np.where(is_cut[workload.block_sequence], folded, whole[workload.block_sequence])
        load = np.bincount(found, weights=_work_of_blocks(workload), minlength=ranks)
        uneven = load.max() / max(load.mean(), 1e-300)
        if uneven < least - 1e-9:
            best, least = found, uneven
        if least <= LEVEL:
            break
    return Rival(_at_queries(best.astype(np.int32), workload), None)


def distca(workload: Workload, cluster: Cluster) -> Rival:
    """Move rows of tiles from full ranks to free ones."""
    ranks, work = cluster.num_devices, _work_of_blocks(workload)
    owner = chunk_of_blocks(workload, ranks)
    device, load = owner.copy(), np.bincount(owner, weights=work, minlength=ranks)
    for block in np.argsort(-work, kind="stable"):
        target = int(np.argmin(load))
        is_full = load[device[block]] > LEVEL * load.mean()
        if is_full and load[target] + work[block] <= LEVEL * load.mean():
            load[device[block]] -= work[block]
            load[target] += work[block]
            device[block] = target
    return Rival(Placement(owner, device[workload.compute_q]), None)


LEVEL = 1.1
"""Most over mean of the work that counts as level: our own tolerance."""
CAUSAL_ONLY = ("te-thd", "megatron-dynamic", "zeppelin", "fcp", "flash-cp", "distca")
RIVALS: Mapping[str, Callable[[Workload, Cluster], Rival]] = {
    "te-thd": te_thd, "megatron-dynamic": megatron_dynamic, "zeppelin": zeppelin,
    "torch-ptrr": torch_ptrr, "magi": magi, "fcp": fcp, "flash-cp": flash_cp, "distca": distca,
}  # fmt: skip
