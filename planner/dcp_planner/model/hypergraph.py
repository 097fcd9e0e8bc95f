"""The placement problem as a hypergraph: cutting a hyperedge is moving a block's bytes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import readonly
from dcp_planner.model.workload import Workload
from dcp_planner.tables.plan import Direction


@dataclass(frozen=True, slots=True, eq=False)
class Hypergraph:
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

    vertex_weight: NDArray[np.int64]
    pin_ptr: NDArray[np.int64]
    pins: NDArray[np.int32]
    edge_weight: NDArray[np.int64]

    def __post_init__(self) -> None:
        edges = len(self.edge_weight)
        for name, dtype, shape in (
            ("vertex_weight", np.int64, (None, 2)), ("pin_ptr", np.int64, (edges + 1,)),
            ("pins", np.int32, (None,)), ("edge_weight", np.int64, (edges,)),
        ):  # fmt: skip
            value = readonly(f"Hypergraph.{name}", getattr(self, name), dtype, shape)
            object.__setattr__(self, name, value)

    @property
    def num_vertices(self) -> int:
        """Vertices V."""
        return len(self.vertex_weight)

    def cost(self, part: NDArray[np.int32]) -> int:
        """Give the connectivity cost of a partition, bytes.

        Args:
            part: int32 ``[V]``, part of each vertex.
        """
        edge = np.repeat(np.arange(len(self.edge_weight)), np.diff(self.pin_ptr))
        touched = np.unique(np.column_stack([edge, part[self.pins]]), axis=0)[:, 0]
        cuts = np.bincount(touched, minlength=len(self.edge_weight)) - 1
        return int((self.edge_weight * np.maximum(cuts, 0)).sum())


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
    if direction == "forward":
        row, column = shape.q_bytes + shape.out_bytes, shape.kv_bytes
    else:
        row, column = shape.q_backward_bytes + shape.q_bytes, 2 * shape.kv_bytes
    return Hypergraph(
        vertex_weight=weight,
        pin_ptr=np.append(0, np.cumsum(np.bincount(edge, minlength=2 * blocks))),
        pins=vertex[order].astype(np.int32),
        edge_weight=np.concatenate([workload.block_tokens * row, workload.block_tokens * column]),
    )
