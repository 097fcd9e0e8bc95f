"""Cut a batch into token blocks, and count the visible pairs of every tile.

A block is owned, sent and computed with as a whole, so it should hold tokens that are seen
together. Where the mask changes for many rows or keys at once (a document, a sink or a
demonstration begins), a border costs nothing and saves bytes. Kernels cut blocks again into tiles
of their own. Pairs are counted exactly, from the mask itself; validation counts them again.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

import numpy as np

from dcp_dsl import BlockSparsity, Form, Slabs, block_sparsity
from dcp_dsl.arrays import Floats, Ints, expand
from dcp_dsl.forms import BlockKind, PlacedForm, regions_of
from dcp_planner.errors import PlanError
from dcp_planner.model.cluster import Cluster
from dcp_planner.model.config import GRID, PlanConfig
from dcp_planner.model.problem import as_arrays, loads_of, pack_largest_first

MOST_PIECES = 1 << 26
"""Most pieces that slabs are cut into: their arrays take some gigabytes."""
BLOCKS_PER_DEVICE = (2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0)
"""Token blocks per device to try, until the tokens pack well and there are enough tiles."""
FEWEST_TILES, MOST_TILES = 24, 150
"""Tiles per device: fewer cannot be balanced, more take long to plan."""
SHORT_BLOCK = 16
"""Tokens of a block where a device's even share of the tokens is less."""
_FEW_BLOCKS = 64  # blocks of fewer tokens are allowed up to this number: some thousand tiles
# Blocks a little above an even share leave room for ragged ones. Without the 5 % LPT leaves one
# document of six at 1.14 to 1.31 x the mean (LOG.md).
_SLACK = (1.0, 1.05)
_GRAIN = 16  # between breakpoints borders are multiples of it: whole rows of a matrix instruction
_SHORTEST_SHARE = 16  # breakpoints lie at least a 16th of a block apart


def count_pairs(
    slabs: Slabs, bounds: Ints, forms: Sequence[PlacedForm] = ()
) -> tuple[Ints, Ints, Ints]:
    """Count the visible pairs of every non-empty tile between borders `bounds` ``[D+1]``.

    `slabs` and `forms`, the masks of sequences that are no slabs, lie at packed positions. Returns
    ``q_block``, ``kv_block`` and ``pairs``, int64 ``[W]``, sorted. O(N + W) up to the sort, for N
    slabs cut into W pieces.
    """
    # Slabs are cut at the borders of query blocks, then these pieces at the borders of key blocks.
    slab, row = _ranges(
        np.searchsorted(bounds, slabs.q_start, side="right") - 1,
        np.searchsorted(bounds, slabs.q_end, side="left"),
    )
    first = np.maximum(slabs.q_start[slab], bounds[row])
    rows = np.minimum(slabs.q_end[slab], bounds[row + 1]) - first
    start_slope = slabs.start_slope[slab].astype(np.int64)
    end_slope = slabs.end_slope[slab].astype(np.int64)
    down: Ints = (first - slabs.q_start[slab]).astype(np.int64)
    start: Ints = (slabs.kv_start[slab] + start_slope * down).astype(np.int64)
    end: Ints = (slabs.kv_end[slab] + end_slope * down).astype(np.int64)
    # A rising end reaches its last key in the last row.
    piece, column = _ranges(
        np.searchsorted(bounds, start, side="right") - 1,
        np.searchsorted(bounds, end + end_slope * (rows - 1), side="left"),
    )
    low, high = bounds[column], bounds[column + 1]
    start, end, rows = start[piece], end[piece], rows[piece]
    start_slope, end_slope = start_slope[piece], end_slope[piece]

    # In closed form: a tile may hold billions of pairs.
    def keys_below(border: Ints) -> Ints:
        return _sum_of_minimum(end, end_slope, border, rows) - _sum_of_minimum(
            start, start_slope, border, rows
        )

    # Keys of a tile are those below its right border less those below its left one.
    pairs = keys_below(high) - keys_below(low)
    tile = row[piece] * (len(bounds) - 1) + column
    # A slanted piece does not reach all corners of the box whose tiles were listed.
    tile, pairs = tile[pairs > 0], pairs[pairs > 0]
    for form in forms:
        own = form.count_blocks(bounds, bounds)
        tile = np.concatenate([tile, own.row * (len(bounds) - 1) + own.col])
        pairs = np.concatenate([pairs, own.pairs])
    found, inverse = np.unique(tile, return_inverse=True)
    totals = np.zeros(len(found), np.int64)
    # Not `bincount`: it adds weights as float64, which is exact below 2**53 only.
    np.add.at(totals, inverse, pairs)
    return found // (len(bounds) - 1), found % (len(bounds) - 1), totals


def find_overlap(slabs: Slabs) -> int | None:
    """Find a slab that shares a pair with another, or ``None``.

    The rows where a slab begins or ends divide all rows into bands. Inside a band the ends of key
    ranges are straight lines. So slabs are disjoint on all rows of a band if they are disjoint, in
    the same order, on its first and on its last row.
    """
    edges = np.unique(np.concatenate([slabs.q_start, slabs.q_end]))
    slab, band = _ranges(np.searchsorted(edges, slabs.q_start), np.searchsorted(edges, slabs.q_end))
    spans = []
    for row in (edges[band], edges[band + 1] - 1):
        down = row - slabs.q_start[slab]
        spans.append(
            (
                slabs.kv_start[slab] + slabs.start_slope[slab] * down,
                slabs.kv_end[slab] + slabs.end_slope[slab] * down,
            )
        )
    order = np.lexsort((spans[0][0], band))  # by band, then by the first key on its first row
    follows = np.diff(band[order]) == 0
    for start, end in spans:
        crossed = np.flatnonzero(follows & (end[order][:-1] > start[order][1:]))
        if crossed.size:
            return int(slab[order][crossed[0] + 1])
    return None


def _ranges(first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """List (i, v) for every v in ``first[i]..last[i]-1``, for all i."""
    sizes = np.maximum(last - first, 0)
    total = int(sizes.sum())
    if total > MOST_PIECES:
        raise PlanError(
            f"expected at most {MOST_PIECES:_} pieces of slabs, got {total:_}; take larger blocks"
        )
    return expand(first, sizes)


def _sum_of_minimum(value: Ints, slope: Ints, border: Ints, rows: Ints) -> Ints:
    """Sum ``min(value + slope * r, border)`` over ``r = 0 .. rows - 1``."""
    # A rising value is below the border for `free` rows, where it sums to value + (value + 1) ...
    free = np.clip(border - value, 0, rows)
    rising = free * value + free * (free - 1) // 2 + (rows - free) * border
    return np.where(slope > 0, rising, rows * np.minimum(value, border))


def cut_blocks(sequences: Sequence[Form], block: int) -> BlockSparsity:
    """Cut every sequence at the breakpoints of its mask and evenly into at most `block` tokens.

    Args:
        sequences: the mask of each sequence, in its own coordinates.
        block: most tokens of a block.

    Returns:
        Exact block sparsity; queries and keys are cut at the same places. A breakpoint closer than
        a 16th of a block to one that matters for more tokens is left out. O(slabs log slabs +
        tiles).

    >>> from dcp_dsl import Slabs
    >>> cut_blocks([Slabs(8, [0], [8], [0], [3], [0], [0])], 4).q_bounds.tolist()
    [0, 3, 5, 8]
    """
    return cut_stack([sequences], block)[0]


def cut_stack(masks: Sequence[Sequence[Form]], block: int) -> tuple[BlockSparsity, ...]:
    """Cut several masks of the same sequences at the same places: the breakpoints of all masks.

    >>> from dcp_dsl import Slabs
    >>> causal = Slabs(8, [0], [8], [0], [1], [0], [1])
    >>> first = Slabs(8, [0], [8], [0], [3], [0], [0])
    >>> [s.q_bounds.tolist() for s in cut_stack([[causal], [first]], 4)]
    [[0, 3, 5, 8], [0, 3, 5, 8]]
    """
    if block < 1:
        raise ValueError(f"block: expected at least 1 token, got {block}")
    batches = [_pack(sequences) for sequences in masks]
    if any(
        not np.array_equal(b.batch.cu_seqlens, batches[0].batch.cu_seqlens) for b in batches[1:]
    ):
        raise ValueError("masks: expected the same lengths of sequences in every mask, got others")
    bounds = _borders(batches, block)
    return tuple(_count(batch, bounds, block) for batch in batches)


def cut_on_grid(sparsity: BlockSparsity) -> BlockSparsity:
    """Move every cut of a batch to the nearest multiple of `GRID` tokens from its sequence's start.

    >>> from dcp_dsl import Slabs
    >>> causal = Slabs(700, [0], [700], [0], [1], [0], [1])
    >>> cut_on_grid(cut_blocks([causal], 200)).q_bounds.tolist()
    [0, 256, 512, 700]
    """
    if sparsity.keys is not None:
        return sparsity  # `build_workload` refuses it
    cu, bounds = sparsity.batch.cu_seqlens.astype(np.int64), sparsity.q_bounds.astype(np.int64)
    # `right`: the end of the last sequence belongs to none, and stays.
    sequence = np.searchsorted(cu, bounds, side="right") - 1
    start, end = cu[sequence], np.append(cu, cu[-1])[sequence + 1]
    moved = np.minimum(start + (bounds - start + GRID // 2) // GRID * GRID, end)
    return _count(sparsity, np.unique(np.append(cu, moved)), max(sparsity.block_q, GRID))


def choose_block_size(
    sequences: Sequence[Form],
    cluster: Cluster,
    config: PlanConfig = PlanConfig(),  # noqa: B008 - frozen
) -> int:
    """Choose the largest block with which `cut_blocks` gives blocks that can be placed well.

    Whole blocks can be packed so that no device owns more tokens than two thirds of the tolerance
    above the mean, and every device gets `FEWEST_TILES` tiles, but never more than `MOST_TILES`.
    Where two blocks per device would be several times as many tiles, each device gets one block.
    Where the share of a device is less than `SHORT_BLOCK` tokens, blocks stay at about that length
    and some devices stay empty: tiles of single pairs would be too many to place.
    """
    batch = _pack(sequences)
    devices = cluster.num_devices
    share = batch.batch.num_tokens / devices
    least = min(SHORT_BLOCK, batch.batch.num_tokens // _FEW_BLOCKS) if share < SHORT_BLOCK else 0
    least = max(1, least)
    whole = max(1, -(-batch.batch.num_tokens // devices))
    finer = _borders([batch], max(least, whole // 2))
    # Blocks of half the length have up to four times the tiles: 524,800 become two million for
    # one document on 1,024 devices.
    if len(count_pairs(batch.slabs, finer, batch.others)[2]) > 4 * MOST_TILES * devices:
        return max(whole, least)  # one block per device
    chosen = max(least, int(share / BLOCKS_PER_DEVICE[0]))
    sizes = (int(share / n * slack) for n in BLOCKS_PER_DEVICE for slack in _SLACK)
    # `dict.fromkeys` tries each length once: 18 tries of one token took 3.9 s on 4,096 devices.
    for block in dict.fromkeys(max(least, size) for size in sizes):
        bounds = _borders([batch], block)
        tokens = np.diff(bounds)
        tiles = len(count_pairs(batch.slabs, bounds, batch.others)[2])
        if tiles > MOST_TILES * devices and block < chosen:
            break
        is_level = _is_level(tokens, devices, config)
        if is_level or block < chosen:
            chosen = block
        if is_level and tiles >= FEWEST_TILES * devices:
            break
    return chosen


def level_block_sizes(
    sequences: Sequence[Form], cluster: Cluster, config: PlanConfig
) -> tuple[int, ...]:
    """List lengths of blocks at which whole blocks pack evenly enough, the longest first.

    Evenly enough as in `choose_block_size`; at most `MOST_TILES` tiles for each device.
    """
    batch, devices = _pack(sequences), cluster.num_devices
    share = batch.batch.num_tokens / devices
    found: list[int] = []
    for n in (1.0, 1.5, *BLOCKS_PER_DEVICE):
        for block in (int(share / n * slack) for slack in _SLACK):
            if block < SHORT_BLOCK or block in found:
                continue
            bounds = _borders([batch], block)
            if _is_level(np.diff(bounds), devices, config):
                if len(count_pairs(batch.slabs, bounds, batch.others)[2]) > MOST_TILES * devices:
                    return tuple(found)
                found.append(block)
                break
    return tuple(found)


def _is_level(tokens: Ints, devices: int, config: PlanConfig) -> bool:
    """Check that whole blocks pack within two thirds of the tolerance above the mean."""
    fullest = loads_of(pack_largest_first(tokens, devices), tokens, devices).max(initial=0)
    return bool(fullest <= (1 + config.token_tolerance * 2 / 3) * float(tokens.sum()) / devices)


def _pack(sequences: Sequence[Form]) -> BlockSparsity:
    """Put the sequences one behind the other, each in one block."""
    longest = max((s.num_tokens for s in sequences), default=0)
    return block_sparsity([as_arrays(s) for s in sequences], max(1, longest), max(1, longest))


def _borders(batches: Sequence[BlockSparsity], block: int) -> Ints:
    places, worth = [], []
    for slabs, at in (found for batch in batches for found in _all_slabs(batch)):
        rows = slabs.q_end - slabs.q_start
        keys = slabs.kv_end - slabs.kv_start
        # A sloped end moves with the row, so it marks no single place among the keys.
        start, end = slabs.start_slope == 0, slabs.end_slope == 0
        places += [
            at + p for p in (slabs.q_start, slabs.q_end, slabs.kv_start[start], slabs.kv_end[end])
        ]
        # A border is worth what it keeps apart: the keys of the rows, the rows of the keys.
        worth += [keys, keys, rows[start], rows[end]]
    points, inverse = np.unique(np.concatenate(places), return_inverse=True)
    strength = np.bincount(inverse, weights=np.concatenate(worth), minlength=len(points))
    ends = np.unique(batches[0].batch.cu_seqlens.astype(np.int64))
    least = max(1, block // _SHORTEST_SHARE)
    return _even(_spread(ends, points, strength.astype(np.float64), least), block)


def _all_slabs(batch: BlockSparsity) -> Iterator[tuple[Slabs, int]]:
    """List the slabs of a batch, each with the packed position that its positions count from.

    Queries and keys are cut at the same places, so slabs of a transposed mask serve as well. Where
    every row or key has ranges of its own (`Rows`), no place is better than another.
    """
    yield batch.slabs, 0
    for placed in batch.others:
        for part in regions_of(placed.form):
            if isinstance(part.region, Slabs):
                yield part.region, placed.q_start


def _spread(fixed: Ints, points: Ints, strength: Floats, least: int) -> Ints:
    """Keep all fixed borders, and the strongest points at least `least` from all that are kept."""
    every = np.union1d(fixed, points)
    if len(every) < 2 or np.diff(every).min() >= least:
        return every
    kept: list[int] = fixed.tolist()
    for i in np.lexsort((points, -strength)).tolist():  # strongest first, of equals the leftmost
        point = int(points[i])
        at = bisect_left(kept, point)
        is_far = (at == 0 or point - kept[at - 1] >= least) and (
            at == len(kept) or kept[at] - point >= least
        )
        if is_far:
            insort(kept, point)
    return np.array(kept, np.int64)


def _even(borders: Ints, block: int) -> Ints:
    """Cut every stretch between two borders into equal parts of at most `block` tokens."""
    lengths = np.diff(borders)
    parts = -(-lengths // block)
    stretch, number = expand(0, parts)
    offset = lengths[stretch] * number // parts[stretch]
    # In shorter blocks rounding down would take more than an eighth of a block.
    if block >= 8 * _GRAIN:
        offset = offset // _GRAIN * _GRAIN
    return np.append(borders[:-1][stretch] + offset, borders[-1:])


def _count(batch: BlockSparsity, bounds: Ints, block: int) -> BlockSparsity:
    row, column, pairs = count_pairs(batch.slabs, bounds, batch.others)
    tokens = np.diff(bounds)
    is_full = pairs == tokens[row] * tokens[column]
    return BlockSparsity(
        batch=batch.batch,
        block_q=block,
        block_kv=block,
        q_bounds=bounds,
        kv_bounds=bounds,
        row_ptr=np.searchsorted(row, np.arange(len(bounds))),
        col_idx=column.astype(np.int32),
        kind=np.where(is_full, BlockKind.FULL, BlockKind.PARTIAL).astype(np.uint8),
        pairs=pairs,
        slabs=batch.slabs,
        forms=batch.forms,
    )
