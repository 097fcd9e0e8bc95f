"""Token blocks and tiles of one batch with their weights, and the hypergraph of placing them."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, TypeAlias

import numpy as np

from dcp_dsl import BlockSparsity, Form, Slabs
from dcp_dsl.arrays import Bytes, Indices, Ints, Record, sealed, settle
from dcp_dsl.forms import PlacedForm, as_rows
from dcp_planner.errors import PlanError
from dcp_planner.model.cluster import ModelShape

Direction: TypeAlias = Literal["forward", "backward"]
"""The two passes of attention."""
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")


@dataclass(frozen=True, slots=True, eq=False)
class Workload(Record):
    """Work to place: D token blocks (data) and W tiles (computation).

    Attributes:
        shape: heads and element size.
        cu_seqlens: int32 ``[S+1]``.
        block_sequence: int32 ``[D]``.
        block_start, block_end: int64 ``[D]``, tokens of the packed batch.
        compute_q, compute_kv: int32 ``[W]``, token block of the tile's queries and keys; sorted.
        compute_kind: uint8 ``[W]``, `BlockKind`.
        compute_pairs: int64 ``[W]``, exact visible pairs.
        slabs: the exact mask of the sequences that are slabs.
        forms: those of the others.
        block_tokens: int64 ``[D]``, tokens of each block.
    """

    shape: ModelShape
    cu_seqlens: Annotated[Indices, "S+1"]
    block_sequence: Annotated[Indices, "D"]
    block_start: Annotated[Ints, "D"]
    block_end: Annotated[Ints, "D"]
    compute_q: Annotated[Indices, "W"]
    compute_kv: Annotated[Indices, "W"]
    compute_kind: Annotated[Bytes, "W"]
    compute_pairs: Annotated[Ints, "W"]
    slabs: Slabs
    forms: tuple[PlacedForm, ...] = ()
    block_tokens: Ints = field(init=False)

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
    """Turn block sparsity into token blocks and tiles; O(B).

    Raises:
        PlanError: if the keys are another sequence than the queries.
        ValueError: if queries and keys are cut at different places.
        DatasetError: for a mask of tiles with too many key ranges.
    """
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
    """Convert a form to one that a plan can carry: a predicate (`tiles`) becomes ranges of rows.

    Raises:
        DatasetError: if these are too many.
    """
    return as_rows(form) if form.form == "tiles" else form


@dataclass(frozen=True, slots=True, eq=False)
class Hypergraph(Record):
    """Vertices with two weights, hyperedges with one.

    Vertices are the W tiles, then the D token blocks. Hyperedge i is the row net of block i (what
    travels with its queries: q, out and lse), hyperedge D + i its column net (keys and values). Its
    pins are the block and every tile that reads it. The cost of a partition is the connectivity
    metric, the sum of ``weight * (parts touched - 1)``: exactly the bytes that are sent.

    Attributes:
        vertex_weight: int64 ``[V, 2]``: visible pairs, tokens owned.
        pin_ptr: int64 ``[E+1]``, CSR.
        pins: int32 ``[P]``, vertices of hyperedge e are ``pins[pin_ptr[e]:pin_ptr[e+1]]``.
        edge_weight: int64 ``[E]``, bytes.

    Source: DCP (SOSP'25), Sec. 4.2, with one vertex per token block and tiles not split by heads.
    """

    vertex_weight: Annotated[Ints, "V", 2]
    pin_ptr: Annotated[Ints, "E+1"]
    pins: Annotated[Indices, "P"]
    edge_weight: Annotated[Ints, "E"]

    @property
    def num_vertices(self) -> int:
        """Vertices V."""
        return len(self.vertex_weight)


def net_bytes(shape: ModelShape, direction: Direction) -> tuple[int, int]:
    """Return the bytes per token of a row net (queries, and results home) and of a column net."""
    if direction == "forward":
        return shape.q_bytes + shape.out_bytes, shape.kv_bytes
    return shape.q_backward_bytes + shape.dq_bytes, shape.kv_bytes + shape.dkv_bytes


def build_hypergraph(workload: Workload, direction: Direction = "forward") -> Hypergraph:
    """Build the hypergraph whose cost is the bytes one direction sends; O((W + D) log W)."""
    tiles, blocks, shape = workload.num_tiles, workload.num_blocks, workload.shape
    weight = np.zeros((tiles + blocks, 2), np.int64)
    weight[:tiles, 0] = workload.compute_pairs
    weight[tiles:, 1] = workload.block_tokens
    edge = np.concatenate([np.arange(2 * blocks), workload.compute_q, workload.compute_kv + blocks])
    own = tiles + np.arange(blocks)
    vertex = np.concatenate([own, own, np.arange(tiles), np.arange(tiles)])
    order = np.argsort(edge, kind="stable")
    row, column = net_bytes(shape, direction)
    return Hypergraph(
        vertex_weight=weight,
        pin_ptr=np.append(0, np.cumsum(np.bincount(edge, minlength=2 * blocks))),
        pins=vertex[order].astype(np.int32),
        edge_weight=np.concatenate([workload.block_tokens * row, workload.block_tokens * column]),
    )
