"""What makes a plan right, checked from the tables alone, without trusting who made them.

The tables are checked here, in this order: blocks tile the batch; tiles are exactly the visible
part of the mask, counted anew from the slabs; transfers are exactly what the placement needs, at
the sizes of the byte model. `program_validation` checks what devices do with them.
"""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import BlockKind
from dcp_planner.errors import PlanError
from dcp_planner.pair_count import count_pairs, find_overlap
from dcp_planner.plan import SCHEMA, Plan, TransferKind
from dcp_planner.program_validation import check_programs

__all__ = ["PlanError", "validate"]


def validate(plan: Plan) -> None:
    """Check every invariant of a plan; O((N + W + X) log) for N slabs, W tiles, X transfers.

    Raises:
        PlanError: names the first invariant that is broken, and where.
    """
    if plan.schema != SCHEMA:
        raise PlanError(f"plan: expected schema {SCHEMA!r}, got {plan.schema!r}; plan it again")
    _check_blocks(plan)
    _check_tiles(plan)
    _check_mask(plan)
    _check_transfers(plan)
    check_programs(plan)


def require(holds: NDArray[np.bool_], invariant: str, table: str, *columns: object) -> None:
    """Raise the error of the first row that breaks an invariant.

    Args:
        holds: bool ``[*]``, one per row.
        invariant: the sentence that is not true.
        table: what a row is called, for example ``"tile"``.
        columns: pairs of name and array that the message shows of the row.
    """
    if holds.all():
        return
    row = int(np.flatnonzero(~holds)[0])
    names, arrays = columns[::2], columns[1::2]
    shown = ", ".join(f"{n} {np.asarray(a)[row]}" for n, a in zip(names, arrays, strict=True))
    raise PlanError(
        f"{invariant}: broken at {table} {row}" + (f" ({shown})" if shown else "") + _more(holds)
    )


def _more(holds: NDArray[np.bool_]) -> str:
    others = int((~holds).sum()) - 1
    return f" and {others} more" if others else ""


def _check_blocks(plan: Plan) -> None:
    blocks, cu = plan.blocks, plan.cu_seqlens.astype(np.int64)
    if cu.size == 0 or cu[0] != 0 or (np.diff(cu) < 0).any():
        raise PlanError("sequences lie one behind the other: cu_seqlens does not rise from 0")
    require(
        (blocks.owner >= 0) & (blocks.owner < plan.num_devices),
        f"every owner is a device 0 to {plan.num_devices - 1}",
        "block", "owner", blocks.owner,
    )  # fmt: skip
    expected = np.append(0, blocks.end)
    require(
        (blocks.start == expected[:-1]) & (blocks.end > blocks.start),
        "blocks tile the batch in order",
        "block", "start", blocks.start, "end", blocks.end,
    )  # fmt: skip
    if expected[-1] != plan.num_tokens:
        raise PlanError(
            f"blocks tile the batch in order: they end at {expected[-1]}, the batch at "
            f"{plan.num_tokens}"
        )
    in_range = (blocks.sequence >= 0) & (blocks.sequence < len(cu) - 1)
    sequence = np.where(in_range, blocks.sequence, 0)
    require(
        in_range & (cu[sequence] <= blocks.start) & (blocks.end <= cu[1:][sequence]),
        "no block crosses the border of its sequence",
        "block", "sequence", blocks.sequence, "start", blocks.start, "end", blocks.end,
    )  # fmt: skip


def _check_tiles(plan: Plan) -> None:
    tiles, num_blocks = plan.tiles, len(plan.blocks)
    for name in ("q_block", "kv_block"):
        column = getattr(tiles, name)
        require(
            (column >= 0) & (column < num_blocks),
            f"every tile's {name} is a block 0 to {num_blocks - 1}",
            "tile", name, column,
        )  # fmt: skip
    place = tiles.q_block.astype(np.int64) * max(1, num_blocks) + tiles.kv_block
    require(
        np.diff(place, prepend=-1) > 0,
        "tiles are sorted by (q_block, kv_block), none twice",
        "tile", "q_block", tiles.q_block, "kv_block", tiles.kv_block,
    )  # fmt: skip
    require(
        (tiles.device >= 0) & (tiles.device < plan.num_devices),
        f"every tile's device is 0 to {plan.num_devices - 1}",
        "tile", "device", tiles.device,
    )  # fmt: skip
    for name in ("division", "backward_division"):
        column = getattr(tiles, name)
        require(column >= 0, f"every tile's {name} is at least 0", "tile", name, column)


def _check_mask(plan: Plan) -> None:
    blocks, tiles, slabs = plan.blocks, plan.tiles, plan.slabs
    if slabs.num_tokens != plan.num_tokens:
        raise PlanError(
            f"the mask covers the batch: slabs of {slabs.num_tokens} tokens, batch of "
            f"{plan.num_tokens}"
        )
    overlap = find_overlap(slabs)
    if overlap is not None:
        raise PlanError(f"slabs are disjoint: slab {overlap} shares a pair with another")
    bounds = np.append(0, blocks.end)
    q_block, kv_block, pairs = count_pairs(slabs, bounds)
    have = set(zip(tiles.q_block.tolist(), tiles.kv_block.tolist(), strict=True))
    need = set(zip(q_block.tolist(), kv_block.tolist(), strict=True))
    for wrong, text in ((need - have, "is missing"), (have - need, "sees nothing")):
        if wrong:
            q, kv = min(wrong)
            raise PlanError(
                "tiles cover every visible pair exactly once: the tile of q_block "
                f"{q}, kv_block {kv} {text}"
            )
    require(
        tiles.pairs == pairs,
        "tiles cover every visible pair exactly once",
        "tile", "pairs", tiles.pairs, "visible", pairs,
    )  # fmt: skip
    area = blocks.num_tokens[tiles.q_block] * blocks.num_tokens[tiles.kv_block]
    require(
        (tiles.kind == BlockKind.FULL) == (pairs == area),
        "a tile is full if and only if every pair of it is visible",
        "tile", "kind", tiles.kind, "pairs", tiles.pairs, "area", area,
    )  # fmt: skip


def _check_transfers(plan: Plan) -> None:
    table, blocks = plan.transfers, plan.blocks
    require(
        (table.block >= 0) & (table.block < len(blocks)),
        f"every transfer's block is 0 to {len(blocks) - 1}",
        "transfer", "block", table.block,
    )  # fmt: skip
    require(
        np.isin(table.kind, list(TransferKind)),
        "every transfer's kind is known",
        "transfer", "kind", table.kind,
    )  # fmt: skip
    for name in ("source", "target"):
        column = getattr(table, name)
        require(
            (column >= 0) & (column < plan.num_devices),
            f"every transfer's {name} is a device 0 to {plan.num_devices - 1}",
            "transfer", name, column,
        )  # fmt: skip
    rows = zip(
        table.is_backward.tolist(), table.kind.tolist(), table.block.tolist(),
        table.source.tolist(), table.target.tolist(), strict=True,
    )  # fmt: skip
    have = list(rows)
    need = _needed_transfers(plan)
    if len(set(have)) != len(have):
        double = min(row for row, times in Counter(have).items() if times > 1)
        raise PlanError(f"no transfer is listed twice: {_told(double)} is")
    for wrong, text in (
        (need - set(have), "every remote input and result has a transfer: {} has none"),
        (set(have) - need, "every transfer is needed by a tile: {} is not"),
    ):
        if wrong:
            raise PlanError(text.format(_told(min(wrong))))
    size = blocks.num_tokens[table.block] * _bytes_per_token(plan)
    require(
        table.size_bytes == size,
        "a transfer's size follows from its tokens and the model shape",
        "transfer", "size_bytes", table.size_bytes, "expected", size,
    )  # fmt: skip


def _needed_transfers(plan: Plan) -> set[tuple[bool, int, int, int, int]]:
    """Say tile by tile what has to travel: (is_backward, kind, block, source, target)."""
    owner = plan.blocks.owner.tolist()
    tiles = plan.tiles
    kinds = TransferKind
    needed: set[tuple[bool, int, int, int, int]] = set()
    for q, kv, device in set(
        zip(tiles.q_block.tolist(), tiles.kv_block.tolist(), tiles.device.tolist(), strict=True)
    ):
        home = owner[kv]
        if home != device:
            needed.add((False, kinds.KV, kv, home, device))
            needed.add((True, kinds.KV, kv, home, device))
            needed.add((True, kinds.DKV, kv, device, home))
        home = owner[q]
        if home != device:
            needed.add((False, kinds.Q, q, home, device))
            needed.add((True, kinds.Q, q, home, device))
            needed.add((False, kinds.OUT, q, device, home))
            needed.add((True, kinds.DQ, q, device, home))
    return needed


def _bytes_per_token(plan: Plan) -> NDArray[np.int64]:
    """Spell the byte model out from heads and element size, ``[X]``."""
    shape, table = plan.shape, plan.transfers
    row = shape.q_heads * shape.head_dim * shape.dtype_bytes
    keys_and_values = 2 * shape.kv_heads * shape.head_dim * shape.dtype_bytes
    forward = np.array([keys_and_values, row, row + 4 * shape.q_heads, 0, 0])
    backward = np.array([keys_and_values, 2 * row + 8 * shape.q_heads, 0, row, keys_and_values])
    return np.where(table.is_backward, backward[table.kind], forward[table.kind])


def _told(row: tuple[bool, int, int, int, int]) -> str:
    is_backward, kind, block, source, target = row
    direction = "backward" if is_backward else "forward"
    return f"{direction} {TransferKind(kind).name} of block {block} from {source} to {target}"
