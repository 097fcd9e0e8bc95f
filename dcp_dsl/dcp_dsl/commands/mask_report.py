"""Measure a mask on a sample: form, slabs, pairs, density, blocks, work."""

from dataclasses import dataclass

import numpy as np

from dcp_dsl.core.mask import Mask
from dcp_dsl.core.sample import Sample
from dcp_dsl.forms.form import CrossForm, Form, num_keys
from dcp_dsl.forms.parts import regions_of
from dcp_dsl.forms.slabs import Slabs
from dcp_dsl.forms.sparsity import BlockKind, block_sparsity

SLOPES = {(0, 0): "full", (0, 1): "causal", (1, 0): "inverse causal", (1, 1): "band"}
"""Slopes of a slab's two ends -> the shape a kernel knows: MagiAttention's four types."""

MAX_COUNTED_ROWS = 16_384  # rows of a form without slabs that are counted one by one
FLOPS_PER_PAIR = 4  # a multiply and an add for q k, the same for p v; times head_dim


@dataclass(frozen=True, slots=True)
class MaskReport:
    """A mask on a sample in numbers.

    Attributes:
        tokens, keys: of the sample; they differ for a mask with keys of another sequence.
        slabs: number of slabs, of row ranges for `rows`, 0 for `tiles`.
        shapes: slabs by shape.
        density: pairs / (tokens * keys).
        of_causal: pairs / pairs of causal attention; None between two sequences.
        widest_row: most keys that one query sees; None where finding out takes too long.
        block: tokens per block of the next four; full and partial ones are visited by a kernel.
        fill: pairs / pairs of the visited blocks; 1 means no work on hidden pairs.
        flops_per_head: forward, for `head_dim`.
    """

    mask: str
    columns: tuple[str, ...]
    tokens: int
    keys: int
    form: str
    slabs: int
    shapes: dict[str, int]
    pairs: int
    density: float
    of_causal: float | None
    widest_row: int | None
    block: int
    blocks: int
    full_blocks: int
    partial_blocks: int
    fill: float
    flops_per_head: int
    head_dim: int


def report_mask(mask: Mask, sample: Sample, block: int = 128, head_dim: int = 128) -> MaskReport:
    """Bind a mask and count; O(slabs + non-empty blocks). Raises what `Mask.compile` raises."""
    form = mask.compile(sample, may_cross=True)
    tokens, keys = form.num_tokens, num_keys(form)
    found = block_sparsity([form], block, block)
    heights, widths = np.diff(found.q_bounds), np.diff(found.kv_bounds)
    # Blocks at the ends are smaller than `block`, so the pairs of each are height times width.
    visited = int((heights[found.row_idx] * widths[found.col_idx]).sum())
    full = int((found.kind == BlockKind.FULL).sum())
    pairs, shapes = form.num_pairs, {}
    # Between two sequences the mask is a part of a square one, whose slabs are counted.
    own = form.square if isinstance(form, CrossForm) else form
    if isinstance(own, Slabs):
        slopes = list(zip(own.start_slope.tolist(), own.end_slope.tolist(), strict=True))
        shapes = {name: slopes.count(own) for own, name in SLOPES.items() if own in slopes}
    return MaskReport(
        mask=mask.call,
        columns=tuple(sorted(mask.columns)),
        tokens=tokens,
        keys=keys,
        form=form.form,
        slabs=sum(len(part.region) for part in regions_of(own)),
        shapes=shapes,
        pairs=pairs,
        density=pairs / max(1, tokens * keys),
        of_causal=None if mask.keys else pairs / max(1, tokens * (tokens + 1) // 2),
        widest_row=_widest_row(form),
        block=block,
        blocks=len(heights) * len(widths),
        full_blocks=full,
        partial_blocks=found.num_blocks - full,
        fill=pairs / max(1, visited),
        flops_per_head=FLOPS_PER_PAIR * head_dim * pairs,
        head_dim=head_dim,
    )


def _widest_row(form: Form) -> int | None:
    """Return the most keys of a row; None where it would take too long to find out."""
    tokens = form.num_tokens
    # Within a slab the keys of a row change linearly, so the widest row is the first or the last
    # row of some slab.
    if isinstance(form, Slabs):
        rows = np.concatenate([form.q_start, form.q_end - 1])
    elif tokens <= MAX_COUNTED_ROWS:
        rows = np.arange(tokens)
    else:
        return None
    # Blocks of one such row and all keys; the rows between lie in blocks that are passed over.
    bounds = np.unique(np.concatenate([rows, rows + 1, [0, tokens]]))
    counts = form.count_blocks(bounds, np.array([0, num_keys(form)]))
    is_row = np.diff(bounds)[counts.row] == 1
    return int(counts.pairs[is_row].max(initial=0))
