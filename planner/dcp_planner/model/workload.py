"""Token blocks and tiles of one batch, with what each one weighs."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import BlockSparsity, Form, PlacedForm, Slabs, Tiles, as_rows, readonly
from dcp_planner.model.cluster import ModelShape


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """What has to be placed: D token blocks (data) and W tiles (computation).

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
    """

    shape: ModelShape
    cu_seqlens: NDArray[np.int32]
    block_sequence: NDArray[np.int32]
    block_start: NDArray[np.int64]
    block_end: NDArray[np.int64]
    compute_q: NDArray[np.int32]
    compute_kv: NDArray[np.int32]
    compute_kind: NDArray[np.uint8]
    compute_pairs: NDArray[np.int64]
    slabs: Slabs
    forms: tuple[PlacedForm, ...] = ()

    def __post_init__(self) -> None:
        blocks, tiles = len(self.block_start), len(self.compute_q)
        for name, dtype, length in (
            ("cu_seqlens", np.int32, None), ("block_sequence", np.int32, blocks),
            ("block_start", np.int64, blocks), ("block_end", np.int64, blocks),
            ("compute_q", np.int32, tiles), ("compute_kv", np.int32, tiles),
            ("compute_kind", np.uint8, tiles), ("compute_pairs", np.int64, tiles),
        ):  # fmt: skip
            value = readonly(f"Workload.{name}", getattr(self, name), dtype, (length,))
            object.__setattr__(self, name, value)

    @property
    def num_blocks(self) -> int:
        """Token blocks D."""
        return len(self.block_start)

    @property
    def num_tiles(self) -> int:
        """Tiles W."""
        return len(self.compute_q)

    @property
    def block_tokens(self) -> NDArray[np.int64]:
        """Tokens of each block, int64 ``[D]``."""
        return self.block_end - self.block_start

    @property
    def compute_flops(self) -> NDArray[np.float64]:
        """Forward FLOPs of each tile, float64 ``[W]``."""
        return self.compute_pairs.astype(np.float64) * self.shape.flops_per_pair


def build_workload(sparsity: BlockSparsity, shape: ModelShape) -> Workload:
    """Turn block sparsity into token blocks and tiles; O(B).

    Raises:
        ValueError: if queries and keys are cut at different places.
        DatasetError: for a mask of tiles with too many key ranges.
    """
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
    """Give a form that a plan can carry: tiles, which are a predicate, become ranges of rows.

    Raises:
        DatasetError: if these are too many.
    """
    return as_rows(form) if isinstance(form, Tiles) else form
