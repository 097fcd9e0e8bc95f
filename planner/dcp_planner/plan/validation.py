"""Check the tables of a plan, from these tables alone.

The checks run in this order: blocks tile the batch; tiles are exactly the visible part of the mask,
counted anew; transfers are exactly those that the placement needs, at the sizes of the byte model.
`program_validation` checks the devices' programs.
"""

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import Slabs
from dcp_dsl.arrays import Bools, Ints, order_by
from dcp_dsl.forms import BlockKind, regions_of
from dcp_planner.errors import InvariantError, PlanError
from dcp_planner.model.config import GRID, MOST_HEAD_GROUPS
from dcp_planner.model.cuts import count_pairs, find_overlap
from dcp_planner.model.problem import DIRECTIONS
from dcp_planner.plan.program_validation import check_programs, route_of
from dcp_planner.tables.head_groups import expand_head_groups
from dcp_planner.tables.plan import Plan, TransferKind, Transfers, columns_of
from dcp_planner.tables.visits import Visits


def validate(plan: Plan) -> None:
    """Check every invariant of a plan; O((N + W + X) log) for N slabs, W tiles, X transfers.

    Raises:
        PlanError: names the first invariant that is broken, and where.
    """
    # Ranges first: later checks, and the expansion of head groups, index tables by these numbers.
    _check_groups(plan)
    _check_blocks(plan)
    check_ranges(plan)
    _check_slabs(plan)
    if plan.head_groups == 1:
        _validate(plan)
        return
    try:
        _validate(expand_head_groups(plan))
    except PlanError as error:
        note = (
            f" (of {plan.head_groups} head groups; block b of group g is called "
            f"{len(plan.blocks)} * g + b here)"
        )
        if isinstance(error, InvariantError):
            raise InvariantError(error.invariant, error.where + note) from None
        raise PlanError(f"{error}{note}") from None


def _validate(plan: Plan) -> None:
    """Check a plan of one head group, given valid blocks."""
    _check_order(plan)
    _check_mask(plan)
    if plan.is_reproducible:
        _check_reproducible(plan)
    visits = Visits.of(plan)
    _check_transfers(plan, visits)
    check_programs(plan, visits)


def require(holds: Bools, invariant: str, table: str, *columns: object) -> None:
    """Raise the error of the first row for which `invariant` does not hold.

    `table` is the noun for a row; `columns` are names and arrays, in turn, that the message shows.
    """
    if holds.all():
        return
    row = int(np.flatnonzero(~holds)[0])
    names, arrays = columns[::2], columns[1::2]
    shown = ", ".join(f"{n} {np.asarray(a)[row]}" for n, a in zip(names, arrays, strict=True))
    others = int((~holds).sum()) - 1
    more = f" and {others} more" if others else ""
    raise InvariantError(invariant, f"{table} {row} ({shown}){more}")


def _check_groups(plan: Plan) -> None:
    groups = plan.head_groups
    if not 1 <= groups <= MOST_HEAD_GROUPS:
        raise PlanError(f"a plan has 1 to {MOST_HEAD_GROUPS} head groups, got {groups}")
    if plan.is_reproducible and groups > 1:
        raise PlanError(f"a reproducible plan has one head group, got {groups}")
    for name, table in (("tile", plan.tiles), ("transfer", plan.transfers)):
        if (table.group is None) != (groups == 1):
            raise PlanError(
                f"{name}s name their head group if and only if there are several: got "
                f"{groups} and {'no' if table.group is None else 'a'} column"
            )


def check_ranges(plan: Plan) -> None:
    """Require that indices point into their tables, devices into the cluster."""
    blocks, devices, many = len(plan.blocks), plan.num_devices, np.iinfo(np.int32).max
    most = {
        "q_block": blocks, "kv_block": blocks, "block": blocks, "group": plan.head_groups,
        "owner": devices, "device": devices, "source": devices, "target": devices,
        "division": many, "backward_division": many,
    }  # fmt: skip
    for name, table in (("block", plan.blocks), ("tile", plan.tiles), ("transfer", plan.transfers)):
        for column, numbers in columns_of(table).items():
            if column in most:
                values = numbers.astype(np.int64)
                last = most[column] - 1
                text = "at least 0" if most[column] == many else f"0 to {last}"
                holds = (values >= 0) & (values <= last)
                require(holds, f"every {name}'s {column} is {text}", name, column, values)
    kind = plan.transfers.kind
    known = kind < len(TransferKind)
    require(known, "every transfer's kind is known", "transfer", "kind", kind)


def _check_blocks(plan: Plan) -> None:
    blocks, cu = plan.blocks, plan.cu_seqlens.astype(np.int64)
    if cu.size == 0 or cu[0] != 0 or (np.diff(cu) < 0).any():
        raise PlanError("sequences lie one behind the other: cu_seqlens does not rise from 0")
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
    # Any valid index will do where the sequence is out of range: `in_range` refuses those rows.
    sequence = np.where(in_range, blocks.sequence, 0)
    require(
        in_range & (cu[sequence] <= blocks.start) & (blocks.end <= cu[1:][sequence]),
        "no block crosses the border of its sequence",
        "block", "sequence", blocks.sequence, "start", blocks.start, "end", blocks.end,
    )  # fmt: skip


def _check_slabs(plan: Plan) -> None:
    """Require that no slab leaves its sequence.

    That holds in real tokens only: in the expanded batch of head groups, the keys of a slab may lie
    in the copy of another group.
    """
    slabs, cu = plan.slabs, plan.cu_seqlens
    # `right`: an empty sequence shares its start with the one that holds the row.
    at = np.searchsorted(cu[:-1], slabs.q_start, side="right") - 1
    last_end = slabs.kv_end + slabs.end_slope * (slabs.q_end - slabs.q_start - 1)
    require(
        (slabs.kv_start >= cu[at]) & (np.maximum(slabs.q_end, last_end) <= cu[at + 1]),
        "every slab lies in one sequence",
        "slab", "q_start", slabs.q_start, "kv_start", slabs.kv_start, "sequence", at,
    )  # fmt: skip


def _check_order(plan: Plan) -> None:
    tiles = plan.tiles
    place = tiles.q_block.astype(np.int64) * len(plan.blocks) + tiles.kv_block
    require(
        np.diff(place, prepend=-1) > 0,
        "tiles are sorted by (q_block, kv_block), none twice",
        "tile", "q_block", tiles.q_block, "kv_block", tiles.kv_block,
    )  # fmt: skip


def _check_mask(plan: Plan) -> None:
    blocks, tiles, slabs = plan.blocks, plan.tiles, plan.slabs
    if slabs.num_tokens != plan.num_tokens:
        raise PlanError(
            f"the mask covers the batch: slabs of {slabs.num_tokens} tokens, batch of "
            f"{plan.num_tokens}"
        )
    _check_disjoint(slabs, "slab")
    _check_forms(plan)
    bounds = np.append(0, blocks.end)
    q_block, kv_block, pairs = count_pairs(slabs, bounds, plan.forms)
    # Both lists are sorted by (q_block, kv_block), so equal sets are equal arrays.
    have = tiles.q_block.astype(np.int64) * len(blocks) + tiles.kv_block
    need = q_block * len(blocks) + kv_block
    if not np.array_equal(have, need):
        missing, extra = np.setdiff1d(need, have), np.setdiff1d(have, need)
        wrong, text = (missing, "is missing") if missing.size else (extra, "sees nothing")
        q, kv = divmod(int(wrong[0]), len(blocks))
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


def _check_disjoint(slabs: Slabs, name: str) -> None:
    overlap = find_overlap(slabs)
    if overlap is not None:
        raise PlanError(f"slabs are disjoint: {name} {overlap} shares a pair with another")


def _check_forms(plan: Plan) -> None:
    """Check that each form is the whole mask of one sequence; O((S + N) log) for N slabs."""
    cu, taken = plan.cu_seqlens, set[int]()
    for number, placed in enumerate(plan.forms):
        spans = ((placed.q_start, placed.q_end), (placed.kv_start, placed.kv_end))
        places = [int(np.searchsorted(cu, start, side="right")) - 1 for start, _ in spans]
        # Queries and keys each fill one sequence: the same one, but in the expanded batch of head
        # groups the keys may be those of another copy.
        is_there = [
            0 <= at < len(cu) - 1 and (cu[at], cu[at + 1]) == span
            for at, span in zip(places, spans, strict=True)
        ]
        rows = (plan.slabs.q_start < spans[0][1]) & (plan.slabs.q_end > spans[0][0])
        is_sole = placed.q_start not in taken and not rows.any()
        if not all(is_there) or not is_sole:
            raise PlanError(
                f"every form is the mask of a sequence that has no other: broken at form {number} "
                f"(queries {spans[0][0]} to {spans[0][1]}, keys {spans[1][0]} to {spans[1][1]})"
            )
        taken.add(placed.q_start)
        for part in regions_of(placed.form):  # ranges of rows are disjoint by the checks of `Rows`
            if isinstance(part.region, Slabs):
                _check_disjoint(part.region, f"form {number}, slab")


def _check_reproducible(plan: Plan) -> None:
    """Require that bits depend on the sequences alone: on their own cuts, rows and order."""
    blocks, tiles = plan.blocks, plan.tiles
    offset = blocks.start - plan.cu_seqlens[blocks.sequence]
    require(
        offset % GRID == 0,
        f"a reproducible plan cuts sequences at multiples of {GRID} tokens",
        "block", "start", blocks.start, "offset", offset,
    )  # fmt: skip
    home = blocks.owner[tiles.q_block]
    require(
        tiles.device == home,
        "in a reproducible plan the owner of the queries computes a tile",
        "tile", "device", tiles.device, "owner", home,
    )  # fmt: skip
    # Tiles are sorted by their queries, then by their keys, which are added from the last on.
    same = np.diff(tiles.q_block) == 0
    for name in ("division", "backward_division"):
        division = getattr(tiles, name)
        rises = np.append(same & (np.diff(division) > 0), np.zeros(min(1, len(tiles)), np.bool_))
        require(
            ~rises,
            f"in a reproducible plan {name} never rises with the keys of a query",
            "tile", "q_block", tiles.q_block, "kv_block", tiles.kv_block, name, division,
        )  # fmt: skip


def _check_transfers(plan: Plan, visits: Visits) -> None:
    table = plan.transfers
    _check_needed(plan, visits)
    _check_ways(plan, visits)
    size = plan.blocks.num_tokens[table.block] * _bytes_per_token(plan)
    require(
        table.size_bytes == size,
        "a transfer's size follows from its tokens and the model shape",
        "transfer", "size_bytes", table.size_bytes, "expected", size,
    )  # fmt: skip


def _check_needed(plan: Plan, visits: Visits) -> None:
    """Require that every device gets each remote block that it computes with, and sends results.

    A device may get a block several times, for tiles of different divisions; it then sends as many
    results.
    """
    table = plan.transfers
    used = _used_inputs(plan, visits)
    have, need = _places(table, plan), np.append(_needed_places(plan), _result_places(plan, used))
    order = order_by(have, table.division)
    same = (np.diff(have[order]) == 0) & (np.diff(table.division[order]) == 0)
    if same.any():
        x = int(order[1:][same][0])
        raise PlanError(f"no transfer is listed twice: {_told(plan, x)} is")
    # `need` holds inputs and results of tiles, and results of inputs that are only passed on.
    missing = np.setdiff1d(need, have)
    if missing.size:
        place, worker = divmod(int(missing[0]), plan.num_devices)  # `_place` undone
        rest, kind = divmod(place, len(TransferKind))
        block, way = divmod(rest, len(DIRECTIONS))
        end = "for" if kind < TransferKind.OUT else "from"
        raise PlanError(
            f"every remote input and result has a transfer: {DIRECTIONS[way]} "
            f"{TransferKind(kind).name} of block {block} {end} device {worker} has none"
        )
    extra = np.flatnonzero(~_is_used(plan, used, visits.input_of) | (~np.isin(have, need) & ~used))
    if extra.size:
        raise PlanError(f"every transfer is needed by a tile: {_told(plan, int(extra[0]))} is not")


def _used_inputs(plan: Plan, visits: Visits) -> Bools:
    """Find the inputs that some tile reads, on their target or after they are passed on."""
    table = plan.transfers
    owner, used = plan.blocks.owner[table.block], np.zeros(len(table), np.bool_)
    # From the inputs that tiles read, back along the routes to the owners: one turn for each hop.
    # It ends in a damaged plan, too, since no input is visited twice.
    found = np.concatenate(visits.read_by, axis=None)
    while found.size:
        found = np.unique(found[found >= 0])
        found = found[~used[found] & (table.target[found] != owner[found])]  # owners have their own
        used[found] = True
        found = visits.feeder[found]
    return used


def _result_places(plan: Plan, used: Bools) -> Ints:
    table, kinds = plan.transfers, TransferKind
    row, column = table.kind == kinds.Q, (table.kind == kinds.KV) & table.is_backward
    rows = np.flatnonzero(used & (row | column))
    kind = np.where(row, np.where(table.is_backward, kinds.DQ, kinds.OUT), kinds.DKV)[rows]
    return _place(plan, table.block[rows], table.is_backward[rows], kind, table.target[rows])


def _is_used(plan: Plan, used: Bools, input_of: Ints) -> Bools:
    """Find the used inputs, and the results that are the only way home for their sums."""
    table, used = plan.transfers, used.copy()
    results = np.flatnonzero(input_of >= 0)
    count = np.bincount(input_of[results], minlength=len(table))
    # Forward sums results by query; backward has gradients of queries and of keys.
    is_summed = used & ((table.kind == TransferKind.Q) | table.is_backward)
    lost = np.flatnonzero(is_summed & (count == 0))
    if lost.size:
        raise PlanError(
            "every remote input and result has a transfer: the sums of "
            f"{_told(plan, int(lost[0]))} have none"
        )
    used[results] = count[input_of[results]] == 1
    return used


def _place(
    plan: Plan,
    block: NDArray[np.integer],
    is_backward: Bools | int,
    kind: NDArray[np.integer] | TransferKind,
    device: NDArray[np.integer],
) -> Ints:
    """Number the purposes of transfers: block, direction, kind and the device that computes.

    The device counts fastest.
    """
    place = block.astype(np.int64) * len(DIRECTIONS) + is_backward
    place = place * len(TransferKind) + kind
    return np.asarray(place * plan.num_devices + device)


def _places(table: Transfers, plan: Plan) -> Ints:
    """Number the purpose of every transfer, int64 ``[X]``."""
    worker = np.where(table.kind >= TransferKind.OUT, table.source, table.target)
    return _place(plan, table.block, table.is_backward, table.kind, worker)


def _needed_places(plan: Plan) -> Ints:
    owner, tiles, kinds = plan.blocks.owner, plan.tiles, TransferKind
    places = []
    for block, wanted in (
        (tiles.q_block, ((0, kinds.Q), (0, kinds.OUT), (1, kinds.Q), (1, kinds.DQ))),
        (tiles.kv_block, ((0, kinds.KV), (1, kinds.KV), (1, kinds.DKV))),
    ):
        # Many tiles of a device share a block: each (block, device) once, before seven copies.
        remote = np.flatnonzero(owner[block] != tiles.device)
        pairs = block[remote].astype(np.int64) * plan.num_devices + tiles.device[remote]
        at, device = np.divmod(np.unique(pairs), plan.num_devices)
        places += [_place(plan, at, is_backward, kind, device) for is_backward, kind in wanted]
    return np.concatenate(places)


def _check_ways(plan: Plan, visits: Visits) -> None:
    """Require inputs from the owner or a device that has them, and results back the same way."""
    table = plan.transfers
    owner = plan.blocks.owner[table.block]
    is_result = table.kind >= TransferKind.OUT
    is_home = np.where(is_result, table.target, table.source) == owner
    # The neighbour nearer to the owner: the feeder of an input, the result that a partial joins.
    other = np.where(is_result, visits.merged_into, visits.feeder)
    require(
        is_home | (other >= 0),
        "inputs come from, and results go to, the owner or a device that has the block as well",
        "transfer", "kind", table.kind, "block", table.block, "source", table.source,
        "target", table.target,
    )  # fmt: skip
    # Hops count from the source of the data: from the owner for inputs, towards it for results.
    hop = table.hop.astype(np.int64)
    next_hop = hop[other] if len(hop) else hop
    require(
        is_home | np.where(is_result, hop < next_hop, hop > next_hop),
        "hops rise along the way of a block",
        "transfer", "block", table.block, "hop", table.hop, "neighbour's", next_hop,
    )  # fmt: skip
    merges = np.zeros(len(table), np.bool_)
    merges[other[is_result & ~is_home]] = True
    at_start = np.where(is_result, ~merges, is_home)
    require(
        (table.hop == 0) == at_start,
        "hop 0 is a transfer whose source has the data of its own",
        "transfer", "block", table.block, "hop", table.hop,
    )  # fmt: skip


def _bytes_per_token(plan: Plan) -> Ints:
    """Spell the byte model out from heads and element size, ``[X]``.

    It is written anew here, so that an error in `ModelShape` cannot vouch for itself.
    """
    shape, table = plan.shape, plan.transfers
    row, keys_and_values = shape.q_heads * shape.head_dim, 2 * shape.kv_heads * shape.head_dim
    size, heads = shape.dtype_bytes, 4 * shape.q_heads  # lse and delta: a float32 per head
    home = 4 if shape.float32_partials else size
    keys_home = home * keys_and_values
    if shape.exact_sums:  # int32 digits of every element, and an exponent per row of a head
        keys_home = 4 * {1: 2, 2: 2, 4: 3}.get(size, 4 if size > 4 else 3) * keys_and_values
        keys_home += 4 * 2 * shape.kv_heads
    # By `TransferKind`: KV, Q, OUT, DQ, DKV. Backward's Q is q and dout, lse and delta.
    forward = np.array([size * keys_and_values, size * row, home * row + heads, 0, 0])
    backward = np.array(
        [
            size * keys_and_values,
            2 * (size * row + heads),
            0,
            home * row,
            keys_home,
        ]
    )
    return np.where(table.is_backward, backward[table.kind], forward[table.kind])


def _told(plan: Plan, x: int) -> str:
    direction = "backward" if plan.transfers.is_backward[x] else "forward"
    return f"{direction} {route_of(plan.transfers, x)}"
