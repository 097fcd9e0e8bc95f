"""Data of the mask canvas: tiles of a plan, tiles that moved between two plans, single pairs.

All are payloads of the wire format in `api.encoding`.

`dcp.mask/1`: one row per block and one per tile. Header: `num_tokens`, `num_devices`,
`cu_seqlens`, `sequence_names` (none if not known), `device_colours`, and `modes`, the ways to
colour a tile, each
`{"id", "label", "column", "palette", "legend"}`: a tile has the colour `palette[column[tile]]`; an
entry of a legend may name the `devices` of its colours.
Columns: `block_start`, `block_end`, `block_owner`, `block_sequence`; `tile_q`, `tile_kv` (blocks),
`tile_kind`, `tile_pairs`, `tile_device`, `tile_division`, `tile_backward_division`, `tile_fetch`,
`tile_density`. A plan of several head groups has `group_labels` (the heads of each group) in its
header and a column `tile_group`: the canvas shows the tiles of one group at a time.

`dcp.pairs/1`: the exact visible pairs of a part of the mask. Header: `tokens`, the window `[first
query, past the last, first key, past the last]`. Column `bits` (u1): one bit a pair, one query
after the other, each row padded to whole bytes, as `numpy.packbits` writes it.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from dcp_dashboard.api.encoding import NEUTRAL, cluster_colours, encode, narrow, oklch, ramp, tints
from dcp_dashboard.facts.comparison import common_groups, has_same_blocks
from dcp_dashboard.library.folder import DashboardError
from dcp_dashboard.library.summary import group_labels, head_labels, tiles_of_group
from dcp_dsl.arrays import Bools, Bytes, Indices, Ints, Record
from dcp_planner import Plan

FETCHES = ("nothing", "keys and values", "queries", "both")
"""Inputs that the device of a tile has to fetch, because another device owns them."""
FETCH_TONES = ((0.74, 0.10, 300), (0.58, 0.16, 345), (0.45, 0.14, 300))
FETCH_COLOURS = (oklch(0.85, 0.02, 250), *(oklch(*c) for c in FETCH_TONES))
DENSITY_STEPS = 16
MOST_NAMED = 64
"""Most devices whose numbers stand in a legend; of more, only the nodes are named."""
MASK_MODES = {"device": "Device", "division": "Division", "fetch": "Fetched", "density": "Density"}
MOVES_MODES = {
    "change": "Moved", "fitted": "Moved, renumbered", "a": "Device in A", "b": "Device in B",
}  # fmt: skip
"""Ways to colour a mask, and the tiles of two plans: name and label."""

CHANGE_COLOURS = ("#a9b4c0", "#d55e00", "#0072b2", "#cc79a7")
"""Grey for unchanged tiles; Okabe & Ito (2008) for changed ones."""

MAX_PAIRS = 1 << 24
"""Pairs of a window: two megabytes of bits."""

Window = tuple[int, int, int, int]
Columns = dict[str, NDArray[np.generic]]


def mask_payload(plan: Plan) -> bytes:
    """Pack blocks and tiles for the mask canvas; O(D + W)."""
    colours = cluster_colours(plan.cluster)
    header = _header(plan, plan.num_devices, colours, mask_modes(plan))
    blocks, tiles = plan.blocks, plan.tiles
    columns: Columns = {
        "block_start": narrow(blocks.start),
        "block_end": narrow(blocks.end),
        "block_owner": narrow(blocks.owner),
        "block_sequence": narrow(blocks.sequence),
        "tile_q": narrow(tiles.q_block),
        "tile_kv": narrow(tiles.kv_block),
        "tile_kind": tiles.kind,
        "tile_pairs": narrow(tiles.pairs),
        "tile_device": narrow(tiles.device),
        "tile_division": narrow(tiles.division),
        "tile_backward_division": narrow(tiles.backward_division),
        "tile_fetch": fetches(plan),
        "tile_density": densities(plan),
    }
    if tiles.group is not None:
        header["group_labels"] = group_labels(plan)
        columns["tile_group"] = tiles.group
    return encode("dcp.mask/1", header, columns)


def _header(plan: Plan, num_devices: int, colours: list[str], modes: list[Any]) -> dict[str, Any]:
    """Return the entries that all headers of masks have; `Any`: JSON values."""
    return {
        "num_tokens": plan.num_tokens,
        "num_devices": num_devices,
        "cu_seqlens": plan.cu_seqlens.tolist(),
        "sequence_names": plan.sequence_names,
        "device_colours": colours,
        "modes": modes,
    }


def mask_modes(plan: Plan) -> list[dict[str, Any]]:  # Any: JSON values
    """Return the ways to colour the mask: column, palette by value, and legend."""
    colours = cluster_colours(plan.cluster)
    of_devices = _legend((f"device {i}" for i in range(len(colours))), colours)
    divisions = ramp(int(plan.tiles.division.max(initial=0)) + 1)
    of_divisions = _legend((f"division {i}" for i in range(len(divisions))), divisions)
    of_fetches = _legend((f"fetches {name}" for name in FETCHES), FETCH_COLOURS)
    blues = tints(DENSITY_STEPS)
    of_density = [{"label": "visible pairs of the tile, few to all", "colours": blues}]
    # Up to eight names are read beside the mask; more devices stand as numbers beside their node.
    shown = of_devices if len(colours) <= 8 else _node_legend(plan, colours)
    return [
        _mode("device", colours, shown),
        _mode("division", divisions, of_divisions),
        _mode("fetch", FETCH_COLOURS, of_fetches),
        _mode("density", blues, of_density),
    ]


def _legend(labels: Iterable[str], colours: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {"label": label, "colours": [colour]} for label, colour in zip(labels, colours, strict=True)
    ]


def fetches(plan: Plan) -> NDArray[np.uint8]:
    """Return the inputs that each tile's device fetches, as index into `FETCHES`, uint8 ``[W]``."""
    owner, tiles = plan.blocks.owner, plan.tiles
    kv = owner[tiles.kv_block] != tiles.device
    q = owner[tiles.q_block] != tiles.device
    # `FETCHES` counts in binary: 1 for keys and values, 2 for queries.
    wanted: NDArray[np.uint8] = (kv + 2 * q).astype(np.uint8)
    return wanted


def densities(plan: Plan) -> NDArray[np.uint8]:
    """Return the visible share of each tile in steps, the last for full tiles, uint8 ``[W]``."""
    tokens, tiles = plan.blocks.num_tokens, plan.tiles
    area = tokens[tiles.q_block] * tokens[tiles.kv_block]
    # Rounded down: full tiles alone get the last step.
    step: NDArray[np.int64] = tiles.pairs * (DENSITY_STEPS - 1) // np.maximum(area, 1)
    return step.astype(np.uint8)


def _node_legend(plan: Plan, colours: list[str]) -> list[dict[str, Any]]:  # Any: JSON values
    ptr = plan.cluster.node_ptr.tolist()
    is_named = len(colours) <= MOST_NAMED
    return [
        {"label": f"node {node}" + ", device" * is_named, "colours": colours[first:end]}
        | ({"devices": [*range(first, end)]} if is_named else {})
        for node, (first, end) in enumerate(itertools.pairwise(ptr))
    ]


def _mode(name: str, palette: Sequence[str], legend: list[Any]) -> dict[str, Any]:
    """Return a way to colour tiles by the column of its name; `Any`: JSON values."""
    label, column = (MASK_MODES | MOVES_MODES)[name], f"tile_{name}"
    colours = list(palette)
    return {"id": name, "label": label, "column": column, "palette": colours, "legend": legend}


def moves_payload(first: Plan, second: Plan) -> bytes:
    """Pack the tiles of both plans as `dcp.mask/1`, of the first plan where it has the tile.

    More columns: `tile_change`, `tile_fitted` (indices into `CHANGES`), `tile_a`, `tile_b`
    (devices, their number where missing), `block_a`, `block_b` (owners). A moved block has
    `block_owner` 1.
    """
    moves, plans = find_moves(first, second), (first, second)
    num_devices = max(plan.num_devices for plan in plans)
    has_first = moves.first >= 0

    # A tile that a plan lacks has row -1 in it, which reads the appended value: 0, which is never
    # chosen, or the number behind the last device, whose colour means a missing tile.
    def column(name: str) -> NDArray[np.generic]:
        ours, theirs = (np.append(getattr(plan.tiles, name), 0) for plan in plans)
        chosen: NDArray[np.generic] = np.where(has_first, ours[moves.first], theirs[moves.second])
        return chosen

    def devices(plan: Plan, rows: NDArray[np.int64]) -> NDArray[np.generic]:
        return narrow(np.append(plan.tiles.device, num_devices)[rows])

    # At the edges the canvas shows `block_owner`: here whether the block moved, so two colours.
    colours = list(CHANGE_COLOURS[:2])
    header = _header(first, num_devices, colours, moves_modes(first, second))
    columns: Columns = {
        "block_start": narrow(first.blocks.start),
        "block_end": narrow(first.blocks.end),
        "block_owner": moves.is_moved_block.astype(np.uint8),
        "block_a": narrow(first.blocks.owner),
        "block_b": narrow(second.blocks.owner),
        "tile_q": narrow(moves.q_block),
        "tile_kv": narrow(moves.kv_block),
        "tile_kind": column("kind").astype(np.uint8),
        "tile_pairs": narrow(moves.pairs),
        "tile_device": narrow(column("device")),
        "tile_division": narrow(column("division")),
        "tile_backward_division": narrow(column("backward_division")),
        "tile_change": moves.change,
        "tile_fitted": moves.fitted,
        "tile_a": devices(first, moves.first),
        "tile_b": devices(second, moves.second),
    }
    groups = common_groups(first, second)
    if groups > 1:
        header["group_labels"] = head_labels(first.shape.q_heads, groups)
        columns["tile_group"] = moves.group.astype(np.uint8)
    return encode("dcp.mask/1", header, columns)


def moves_modes(first: Plan, second: Plan) -> list[dict[str, Any]]:  # Any: JSON values
    """Return the ways to colour the moves: by change, or by the device on either side."""
    largest = max((first, second), key=lambda plan: plan.num_devices)
    colours = cluster_colours(largest.cluster)
    nodes = _node_legend(largest, colours)
    changes = _legend(CHANGES, CHANGE_COLOURS)
    palette = [*colours, NEUTRAL]
    missing = _legend(("not on this side",), (NEUTRAL,))
    return [
        _mode("change", CHANGE_COLOURS, changes),
        _mode("fitted", CHANGE_COLOURS, changes),
        _mode("a", palette, nodes + missing),
        _mode("b", palette, nodes + missing),
    ]


def read_window(text: str, num_tokens: int) -> Window:
    """Read ``"q0-q1-k0-k1"``, half-open ranges of queries and of keys, in tokens."""
    parts = text.split("-")
    if len(parts) != 4 or not all(part.isascii() and part.isdigit() for part in parts):
        raise DashboardError(f"expected tokens=q0-q1-k0-k1, four whole numbers, got {text[:80]!r}")
    q0, q1, k0, k1 = (int(part[:12]) for part in parts)  # 4,301 digits would be an error
    if not (q0 < q1 <= num_tokens and k0 < k1 <= num_tokens):
        raise DashboardError(
            f"expected non-empty ranges inside {num_tokens:,} tokens, got queries {q0} to {q1} and "
            f"keys {k0} to {k1}"
        )
    if (q1 - q0) * (k1 - k0) > MAX_PAIRS:
        raise DashboardError(
            f"expected at most {MAX_PAIRS:,} pairs in one window, got {(q1 - q0) * (k1 - k0):,}; "
            "ask for fewer tokens"
        )
    return q0, q1, k0, k1


def pairs_payload(plan: Plan, window: Window) -> bytes:
    """Pack the mask of a window, taken from the plan's own form of the mask; O(pairs)."""
    visible = plan.mask_tile(*window)
    bits = np.packbits(visible, axis=1).ravel()
    return encode("dcp.pairs/1", {"tokens": list(window)}, {"bits": bits})


SAME, MOVED, ONLY_FIRST, ONLY_SECOND = range(4)
CHANGES = ("same device", "moved", "only in A", "only in B")


@dataclass(frozen=True, slots=True, eq=False)
class Moves(Record):
    """The tiles of two plans, each once, sorted by (group, q_block, kv_block).

    Groups are those of `common_groups`; pairs are of the first plan where it has the tile. `change`
    is an index into `CHANGES`, `fitted` the same after B's devices got the numbers that fit A best;
    `first` and `second` are rows of either plan's tiles, -1: not there.
    """

    q_block: Annotated[Ints, "U"]
    kv_block: Annotated[Ints, "U"]
    group: Annotated[Ints, "U"]
    pairs: Annotated[Ints, "U"]
    change: Annotated[Bytes, "U"]
    fitted: Annotated[Bytes, "U"]
    first: Annotated[Ints, "U"]
    second: Annotated[Ints, "U"]
    is_moved_block: Annotated[Bools, "D"]
    moved_tokens: float

    def tiles(self, change: int) -> int:
        """Count the tiles with a change."""
        return int((self.change == change).sum())

    @property
    def share(self) -> float:
        """Moved tiles over the tiles that both plans have."""
        common = self.tiles(SAME) + self.tiles(MOVED)
        return self.tiles(MOVED) / common if common else 0.0

    @property
    def pair_share(self) -> float:
        """Visible pairs of moved tiles over those of the tiles that both plans have."""
        return self._pairs_moved(self.change)

    @property
    def fitted_pair_share(self) -> float:
        """The same after the devices of the second plan were renumbered to fit the first."""
        return self._pairs_moved(self.fitted)

    def _pairs_moved(self, change: Bytes) -> float:
        common = int(self.pairs[change <= MOVED].sum())
        return int(self.pairs[change == MOVED].sum()) / common if common else 0.0


def find_moves(first: Plan, second: Plan) -> Moves:
    """Match the tiles of two plans over the same blocks; O(W log W + R^2 log R)."""
    if not has_same_blocks(first, second):
        raise ValueError("expected two plans over the same blocks, got different ones")
    blocks, groups = max(1, len(first.blocks)), common_groups(first, second)
    plans = (first, second)
    # The key of a tile is one number, (group * blocks + q_block) * blocks + kv_block. Sorted keys
    # match the tiles of both plans.
    keys, tiles = zip(*(_sorted_tiles(plan, groups, blocks) for plan in plans), strict=True)
    union = np.union1d(*keys)
    rows = [np.append(tile, -1)[_rows(union, key)] for key, tile in zip(keys, tiles, strict=True)]
    # A tile that a plan lacks has row -1 in it, which reads what is appended: no device, no pairs.
    a, b = (np.append(p.tiles.device, -1)[row] for p, row in zip(plans, rows, strict=True))
    ours, theirs = (np.append(p.tiles.pairs, 0)[row] for p, row in zip(plans, rows, strict=True))
    pairs, on_both = np.where(a >= 0, ours, theirs), (a >= 0) & (b >= 0)
    num_devices = max(plan.num_devices for plan in plans)
    numbers = fit_devices(a[on_both], b[on_both], pairs[on_both], num_devices)
    moved = first.blocks.owner != second.blocks.owner
    tokens = int(first.blocks.num_tokens[moved].sum())
    return Moves(
        q_block=union // blocks % blocks,
        kv_block=union % blocks,
        group=union // blocks**2,
        pairs=pairs,
        change=_changes(a, b),
        fitted=_changes(a, np.append(numbers, -1)[b]),
        first=rows[0],
        second=rows[1],
        is_moved_block=moved,
        moved_tokens=tokens / max(1, first.num_tokens),
    )


def _sorted_tiles(plan: Plan, groups: int, blocks: int) -> tuple[Ints, Ints]:
    """Return a sorted key and the row of each tile, once per group of `common_groups`.

    A tile of a plan without groups is in every common group: its device computes all heads.
    """
    share = groups // plan.head_groups
    tiles = [tiles_of_group(plan, group // share) for group in range(groups)]
    group = np.repeat(np.arange(groups), [len(rows) for rows in tiles])
    row, table = np.concatenate(tiles), plan.tiles
    # Sorted without sorting: a plan's tiles lie in the order of (group, q_block, kv_block).
    return (group * blocks + table.q_block[row]) * blocks + table.kv_block[row], row


def _changes(first: Indices, second: Indices) -> Bytes:
    """Compare the devices of each tile in both plans, -1 where a plan lacks the tile."""
    found = np.where(first == second, SAME, MOVED)
    # -1 on one side alone; a tile of the union is in one plan at least.
    found[second < 0], found[first < 0] = ONLY_FIRST, ONLY_SECOND
    return found.astype(np.uint8)


def fit_devices(first: Indices, second: Indices, weight: Ints, size: int) -> Indices:
    """Renumber the second placement's devices so that it looks like the first.

    Both place the same items, ``[N]``, of the given weights on `size` devices. Greedy: the two
    devices that share the largest weight get one number, and so on, which keeps at least half of
    the weight that the best renumbering keeps. O(N + R^2 log R). Return a permutation ``[R]``.
    """
    # Weight of the items on each pair of devices; from the heaviest pair down, a pair counts if
    # neither of its devices has a partner yet.
    shared = np.zeros((size, size), np.int64)
    np.add.at(shared, (first, second), weight)
    numbers = np.full(size, -1, np.int32)
    is_free = np.ones(size, bool)
    for at in np.argsort(-shared, axis=None, kind="stable").tolist():
        ours, theirs = divmod(at, size)
        if is_free[ours] and numbers[theirs] < 0:
            numbers[theirs], is_free[ours] = ours, False
    return numbers


def _rows(union: Ints, keys: Ints) -> Ints:
    """Find the row of each key of the union in sorted `keys`, -1 where the key is missing."""
    at = np.searchsorted(keys, union)
    return np.where(np.append(keys, -1)[at] == union, at, -1)
