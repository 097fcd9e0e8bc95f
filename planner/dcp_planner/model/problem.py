"""The planning problem and its answer: the work of one batch, caps, and a placement.

A workload has token blocks and tiles with their weights. The caps follow from the tolerances; they
are higher where whole blocks and tiles cannot be divided that evenly.
"""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, TypeAlias

import numpy as np

from dcp_dsl import BlockSparsity, Form, Slabs
from dcp_dsl.arrays import Bytes, Indices, Ints, Record, sealed, settle
from dcp_dsl.forms import PlacedForm, as_rows
from dcp_planner.errors import PlanError
from dcp_planner.model.cluster import Cluster, ModelShape
from dcp_planner.model.config import PlanConfig

Direction: TypeAlias = Literal["forward", "backward"]
"""The two passes of attention."""
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")


@dataclass(frozen=True, slots=True, eq=False)
class Workload(Record):
    """Work to place: D token blocks (data) and W tiles (computation)."""

    shape: ModelShape  # heads and element size
    cu_seqlens: Annotated[Indices, "S+1"]
    block_sequence: Annotated[Indices, "D"]
    # block_start, block_end: int64 `[D]`, tokens of the packed batch
    block_start: Annotated[Ints, "D"]
    block_end: Annotated[Ints, "D"]
    # compute_q, compute_kv: int32 `[W]`, token block of the tile's queries and keys; sorted
    compute_q: Annotated[Indices, "W"]
    compute_kv: Annotated[Indices, "W"]
    compute_kind: Annotated[Bytes, "W"]  # `BlockKind`
    compute_pairs: Annotated[Ints, "W"]  # exact visible pairs
    slabs: Slabs  # exact masks of the sequences that are slabs, in packed positions
    forms: tuple[PlacedForm, ...] = ()  # exact masks of the other sequences
    block_tokens: Ints = field(init=False)  # int64 `[D]`, tokens of each block

    def _check(self) -> None:
        settle(self, block_tokens=sealed(self.block_end - self.block_start))

    @property
    def num_blocks(self) -> int:
        """Token blocks D."""
        return len(self.block_start)

    @property
    def num_tiles(self) -> int:
        """Tiles W."""
        return len(self.compute_q)


def build_workload(sparsity: BlockSparsity, shape: ModelShape) -> Workload:
    """Turn block sparsity into token blocks and tiles; O(B)."""
    if sparsity.keys is not None:
        raise PlanError(
            f"expected queries and keys of one sequence, which share an owner, got masks with "
            f"`@keys`: {sparsity.batch.num_tokens} queries and {sparsity.keys.num_tokens} keys; "
            f"plan the masks without, and compute these with a kernel (`dcpm export`)"
        )
    if not np.array_equal(sparsity.q_bounds, sparsity.kv_bounds):
        raise ValueError(
            f"queries and keys must be cut at the same places to share an owner, got block_q "
            f"{sparsity.block_q} and block_kv {sparsity.block_kv}; use one block size for both"
        )
    start, end = sparsity.q_bounds[:-1], sparsity.q_bounds[1:]
    # `right`: an empty sequence has the same start as the sequence that owns the block.
    sequence = np.searchsorted(sparsity.batch.cu_seqlens, start, side="right") - 1
    return Workload(
        shape=shape,
        cu_seqlens=sparsity.batch.cu_seqlens,
        block_sequence=sequence.astype(np.int32),
        block_start=start,
        block_end=end,
        compute_q=sparsity.row_idx,
        compute_kv=sparsity.col_idx,
        compute_kind=sparsity.kind,
        compute_pairs=sparsity.pairs,
        slabs=sparsity.slabs,
        forms=tuple(replace(p, form=as_arrays(p.form)) for p in sparsity.others),
    )


def as_arrays(form: Form) -> Form:
    """Convert a form to one that a plan can carry: a predicate (`tiles`) becomes ranges of rows."""
    return as_rows(form) if form.form == "tiles" else form


def net_bytes(shape: ModelShape, direction: Direction) -> tuple[int, int]:
    """Return the bytes per token of a row net (queries, and results home) and of a column net."""
    if direction == "forward":
        return shape.q_bytes + shape.out_bytes, shape.kv_bytes
    return shape.q_backward_bytes + shape.dq_bytes, shape.kv_bytes + shape.dkv_bytes


@dataclass(frozen=True, slots=True)
class Caps:
    """Most that any part may hold."""

    pairs: int  # visible pairs to compute
    tokens: int  # tokens to own


def pack_largest_first(sizes: Ints, parts: int) -> Indices:
    """Assign each item, largest first, to the part that holds least so far (LPT); O(n log n).

    The fullest part is at most 4/3 of the best possible.
    Source: Graham, Bounds on Multiprocessing Timing Anomalies (1969).
    """
    part = np.zeros(len(sizes), np.int32)
    # Of equally full parts the lowest number comes first: every machine packs alike.
    heap = [(0, p) for p in range(parts)]
    for item in np.argsort(-sizes, kind="stable").tolist():
        load, lightest = heap[0]
        part[item] = lightest
        heapq.heapreplace(heap, (load + int(sizes[item]), lightest))
    return part


def cap_of(sizes: Ints, parts: int, tolerance: float) -> int:
    """Compute the most that a part may hold: the tolerance, or what LPT reaches if that is more."""
    total = int(sizes.sum())
    level = min(total, int((1 + tolerance) * total / parts))
    if total + parts * int(sizes.max(initial=0)) <= parts * level:
        return level  # LPT ends at most one item above the mean, so it need not be run
    packed = loads_of(pack_largest_first(sizes, parts), sizes, parts)
    return max(level, int(packed.max(initial=0)))


def loads_of(part: Indices, sizes: Ints | Sequence[int], parts: int) -> Ints:
    """Add up the sizes in each part, int64 ``[parts]``."""
    # Not `bincount`: it adds weights as float64, which is exact below 2**53 only.
    loads = np.zeros(parts, np.int64)
    np.add.at(loads, part, sizes)
    return loads


WarningCode: TypeAlias = Literal[
    "compute_above_tolerance", "tokens_above_tolerance", "placed_by_layout"
]
"""Reasons to warn: a missed tolerance, or a static layout in place of a too large placement."""


@dataclass(frozen=True, slots=True)
class PlanWarning:
    """A demand of the configuration that a plan does not meet."""

    code: WarningCode  # the reason, for programs
    message: str  # a sentence for people

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True, eq=False)
class Placement(Record):
    """Owner of every token block and device of every tile."""

    device_of_data: Annotated[Indices, "D"]  # owner of each token block
    # int32 `[G W]`, device of each tile: of all tiles in head group 0, then of all in group 1,
    device_of_compute: Annotated[Indices, "GW"]
    warnings: tuple[PlanWarning, ...] = ()  # demands that it does not meet
    head_groups: int = 1  # groups of heads G


def at_home(found: Placement, workload: Workload) -> Placement:
    """Let the owner of its queries compute each tile, if the plan is to be reproducible."""
    if not workload.shape.exact_sums:
        return found
    return replace(found, device_of_compute=found.device_of_data[workload.compute_q])


class Partitioner(ABC):
    """An adapter that places a workload."""

    __slots__ = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """Key in the registry."""

    @property
    def is_fixed(self) -> bool:
        """True if the result is taken as it is; otherwise it is repaired to the caps."""
        return True

    def unavailable(self) -> str | None:
        """Explain why it cannot run here, with the way out; ``None`` if it can."""
        return None

    @abstractmethod
    def place(self, workload: Workload, cluster: Cluster, config: PlanConfig) -> Placement:
        """Place every token block and tile."""


def loads_on(found: Placement, workload: Workload, cluster: Cluster) -> tuple[Ints, Ints]:
    """Compute the pairs of all head groups, and the tokens, on each device, int64 ``[R]``."""
    # A tile is there once for each head group, with all of its pairs each time.
    pairs, devices = np.tile(workload.compute_pairs, found.head_groups), cluster.num_devices
    return (
        loads_of(found.device_of_compute, pairs, devices),
        loads_of(found.device_of_data, workload.block_tokens, devices),
    )


def caps_of(workload: Workload, parts: int, config: PlanConfig) -> Caps:
    """Compute the caps of a configuration, widened to what whole tiles and blocks allow."""
    return Caps(
        pairs=cap_of(workload.compute_pairs, parts, config.compute_cap),
        tokens=cap_of(workload.block_tokens, parts, config.token_tolerance),
    )
