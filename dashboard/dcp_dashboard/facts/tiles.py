"""Facts about a tile, about a message, and about all messages between two devices."""

import numpy as np
from numpy.typing import NDArray

from dcp_dashboard.facts import quantities
from dcp_dashboard.facts.devices import check_device
from dcp_dashboard.facts.text import (
    KIND_WORDS,
    SOURCE_LABELS,
    TIMES,
    Facts,
    Link,
    Row,
    Section,
    device_selection,
    direction_word,
    division_selection,
    joined,
    pair_selection,
    row,
    tile_selection,
    transfer_selection,
)
from dcp_dashboard.facts.traces import SEND
from dcp_dashboard.library.folder import DashboardError
from dcp_dashboard.library.plans import LoadedPlan
from dcp_dashboard.library.summary import group_labels
from dcp_dsl import BlockKind
from dcp_planner import Plan, TransferKind

MAX_SERVING = 12

MAX_LISTED = 8


def tile_facts(loaded: LoadedPlan, tile: int) -> Facts:
    """Collect the facts of a tile; O(X).

    Raises:
        DashboardError: if the plan has no such tile.
    """
    plan = loaded.plan
    tiles = plan.tiles
    if not 0 <= tile < len(tiles):
        raise DashboardError(
            f"{loaded.entry.relative}: expected a tile from 0 to {len(tiles) - 1:,}, got {tile:,}"
        )
    q, kv = int(tiles.q_block[tile]), int(tiles.kv_block[tile])
    served = serving_transfers(plan, tile)
    return Facts(
        f"Tile {q} {TIMES} {kv}",
        tile_selection(plan, tile),
        (
            Section("", _rows_of_tile(plan, tile, q, kv)),
            Section("Messages that serve it", _transfer_rows(plan, served)),
        ),
        {
            "tile": tile, "q_block": q, "kv_block": kv,
            "kind": BlockKind(tiles.kind[tile]).name.lower(), "pairs": int(tiles.pairs[tile]),
            "device": int(tiles.device[tile]), "division": int(tiles.division[tile]),
            "backward_division": int(tiles.backward_division[tile]),
            "q_owner": int(plan.blocks.owner[q]), "kv_owner": int(plan.blocks.owner[kv]),
            "transfers": served.tolist(),
        },
    )  # fmt: skip


def serving_transfers(plan: Plan, tile: int) -> NDArray[np.int64]:
    """Find the messages that bring the tile its inputs and carry its results home; O(X).

    Inputs are those of its two blocks to its device; results leave its device, merged with those of
    the other tiles that it computes with the block.
    """
    tiles, table = plan.tiles, plan.transfers
    q, kv, device = tiles.q_block[tile], tiles.kv_block[tile], tiles.device[tile]
    of_q = np.isin(table.kind, (TransferKind.Q, TransferKind.OUT, TransferKind.DQ))
    block = np.where(of_q, q, kv)
    is_result = table.kind >= TransferKind.OUT
    end = np.where(is_result, table.source, table.target)
    chosen = (table.block == block) & (end == device)
    if tiles.group is not None and table.group is not None:
        group = int(tiles.group[tile])
        share = max(1, plan.head_groups // plan.shape.kv_heads)  # groups that read the same keys
        chosen &= table.group == np.where(of_q, group, group // share * share)
    found: NDArray[np.int64] = np.flatnonzero(chosen)
    return found


def _rows_of_tile(plan: Plan, tile: int, q: int, kv: int) -> tuple[Row, ...]:
    tiles, tokens = plan.tiles, plan.blocks.num_tokens
    area = int(tokens[q] * tokens[kv])
    pairs, device = int(tiles.pairs[tile]), int(tiles.device[tile])
    kind = BlockKind(tiles.kind[tile]).name.lower()
    forward, backward = int(tiles.division[tile]), int(tiles.backward_division[tile])
    heads = []
    if tiles.group is not None:
        heads.append(row("Heads", _heads(plan, int(tiles.group[tile]))))
    return (
        *heads,
        row("Pairs", f"{quantities.count(pairs)} of {quantities.count(area)}, {kind}"),
        row("Computed by", Link(f"device {device}", device_selection(device))),
        row(
            "In division",
            Link(f"{forward} forward", division_selection(forward, "forward", device)),
            ", ",
            Link(f"{backward} backward", division_selection(backward, "backward", device)),
        ),
        _block_row(plan, "Queries", q),
        _block_row(plan, "Keys", kv),
    )


def _heads(plan: Plan, group: int) -> str:
    heads = f"{group_labels(plan)[group]} of {plan.shape.q_heads}"
    return f"{heads}: group {group + 1} of {plan.head_groups}"


def _block_row(plan: Plan, label: str, block: int) -> Row:
    blocks = plan.blocks
    owner = int(blocks.owner[block])
    start, end = int(blocks.start[block]), int(blocks.end[block])
    return row(
        label,
        f"{start:,} to {end - 1:,} (block {block}), owned by ",
        Link(f"device {owner}", device_selection(owner)),
    )


def _transfer_rows(plan: Plan, served: NDArray[np.int64]) -> tuple[Row, ...]:
    if not len(served):
        return (row("", "None: its device owns its queries and its keys."),)
    table, rows = plan.transfers, []
    for is_backward in (False, True):
        chosen = served[table.is_backward[served] == is_backward]
        for kind in np.unique(table.kind[chosen]):
            of_kind = chosen[table.kind[chosen] == kind]
            links = [_transfer_link(plan, int(x)) for x in of_kind[:MAX_SERVING]]
            word = f"{KIND_WORDS[TransferKind(kind)]}, {direction_word(is_backward)}"
            rows.append(Row(word, joined(links, len(of_kind) - MAX_SERVING)))
    return tuple(rows)


def _transfer_link(plan: Plan, transfer: int) -> Link:
    table = plan.transfers
    route = f"device {table.source[transfer]} → {table.target[transfer]}"
    size = quantities.size(table.size_bytes[transfer])
    return Link(f"{route}, {size}", transfer_selection(plan, transfer))


def transfer_facts(loaded: LoadedPlan, transfer: int) -> Facts:
    """Collect the facts of a message; O(W + E).

    Raises:
        DashboardError: if the plan has no such message.
    """
    plan = loaded.plan
    table = plan.transfers
    if not 0 <= transfer < len(table):
        raise DashboardError(
            f"{loaded.entry.relative}: expected a message from 0 to {len(table) - 1:,}, got "
            f"{transfer:,}"
        )
    kind = TransferKind(table.kind[transfer])
    return Facts(
        f"{KIND_WORDS[kind]} of block {table.block[transfer]}",
        transfer_selection(plan, transfer),
        (
            Section("", (*_route_rows(plan, transfer), *_time_rows(loaded, transfer))),
            Section("Tiles that it serves", _served_rows(plan, transfer)),
        ),
        {
            "transfer": transfer, "kind": kind.name.lower(), "block": int(table.block[transfer]),
            "source": int(table.source[transfer]), "target": int(table.target[transfer]),
            "division": int(table.division[transfer]), "hop": int(table.hop[transfer]),
            "is_backward": bool(table.is_backward[transfer]),
            "size_bytes": int(table.size_bytes[transfer]),
        },
    )  # fmt: skip


def pair_facts(loaded: LoadedPlan, source: int, target: int) -> Facts:
    """Collect the messages that one device sends another, and those that come back; O(X).

    Raises:
        DashboardError: if one of them is no device of the plan.
    """
    plan = loaded.plan
    for device in (source, target):
        check_device(loaded, device)
    per_node = plan.cluster.devices_per_node
    place = "within a node" if source // per_node == target // per_node else "between nodes"
    sections = [
        Section("", (row("Path", place), *_way_rows(plan, source, target))),
        Section("Its largest messages", _largest_rows(plan, source, target)),
    ]
    return Facts(
        f"Device {source} → device {target}",
        pair_selection(source, target),
        tuple(sections),
        {
            "device": source, "peer": target,
            "size_bytes": int(loaded.totals.traffic_bytes[source, target]),
            "back_bytes": int(loaded.totals.traffic_bytes[target, source]),
        },
    )  # fmt: skip


def _route_rows(plan: Plan, transfer: int) -> tuple[Row, ...]:
    table = plan.transfers
    source, target = int(table.source[transfer]), int(table.target[transfer])
    division, word = int(table.division[transfer]), direction_word(table.is_backward[transfer])
    block = int(table.block[transfer])
    is_result = table.kind[transfer] >= TransferKind.OUT
    when = "after" if is_result else "before"
    tokens = f"{plan.blocks.start[block]:,} to {plan.blocks.end[block] - 1:,}"
    rows = [
        row("From", Link(f"device {source}", device_selection(source)), " to ",
            Link(f"device {target}", device_selection(target)), ", ",
            Link("all of this pair", pair_selection(source, target))),
        row("Bytes", quantities.size(table.size_bytes[transfer])),
        row("Tokens", tokens),
        *_head_rows(plan, transfer),
        row("Needed" if not is_result else "Sent", f"{when} ",
            Link(f"division {division} {word}", division_selection(division, word))),
    ]  # fmt: skip
    if table.hop[transfer]:
        rows.append(row("Passed on", f"by device {source}, hop {table.hop[transfer]}"))
    return tuple(rows)


def _head_rows(plan: Plan, transfer: int) -> list[Row]:
    if plan.transfers.group is None:
        return []
    group = int(plan.transfers.group[transfer])
    heads = f"query heads {group_labels(plan)[group]}"
    return [row("Heads", f"{heads}: group {group + 1} of {plan.head_groups}")]


def _time_rows(loaded: LoadedPlan, transfer: int) -> list[Row]:
    rows = []
    for source, trace in loaded.traces.items():
        sends = np.flatnonzero((trace.transfer == transfer) & (trace.lane == SEND))
        for event in sends[:1].tolist():
            start, end = int(trace.start_ns[event]), int(trace.end_ns[event])
            spent, begun = (
                quantities.duration((end - start) / 1e9),
                quantities.duration(start / 1e9),
            )
            link = Link(
                f"{spent} from {begun}",
                transfer_selection(loaded.plan, transfer),
                (start, end),
                source,
            )
            rows.append(row(SOURCE_LABELS[source], link))
    return rows


def _served_rows(plan: Plan, transfer: int) -> tuple[Row, ...]:
    table, tiles = plan.transfers, plan.tiles
    kind = table.kind[transfer]
    is_result = kind >= TransferKind.OUT
    device = table.source[transfer] if is_result else table.target[transfer]
    is_query = kind in (TransferKind.Q, TransferKind.OUT, TransferKind.DQ)
    block = tiles.q_block if is_query else tiles.kv_block
    chosen = (tiles.device == device) & (block == table.block[transfer])
    if tiles.group is not None and table.group is not None:
        # Groups that read the same keys share them, named by the first.
        share = 1 if is_query else max(1, plan.head_groups // plan.shape.kv_heads)
        chosen &= tiles.group // share == int(table.group[transfer]) // share
    served = np.flatnonzero(chosen)
    if not len(served):
        return (row("", "None directly: it is passed on."),)
    links = [
        Link(
            f"{tiles.q_block[tile]} {TIMES} {tiles.kv_block[tile]}", tile_selection(plan, int(tile))
        )
        for tile in served[:MAX_LISTED]
    ]
    count = quantities.counted(len(served), "tile")
    return (Row(count, joined(links, len(served) - MAX_LISTED)),)


def _way_rows(plan: Plan, source: int, target: int) -> list[Row]:
    table, rows = plan.transfers, []
    for a, b in ((source, target), (target, source)):
        chosen = (table.source == a) & (table.target == b)
        total = int(table.size_bytes[chosen].sum())
        number = quantities.counted(int(chosen.sum()), "message")
        rows.append(
            row(f"{a} → {b}", Link(quantities.size(total), pair_selection(a, b)), f" in {number}")
        )
        for kind in np.unique(table.kind[chosen]):
            of_kind = chosen & (table.kind == kind)
            size = quantities.size(int(table.size_bytes[of_kind].sum()))
            rows.append(row("", f"{KIND_WORDS[TransferKind(kind)]}: {size}"))
    return rows


def _largest_rows(plan: Plan, source: int, target: int) -> tuple[Row, ...]:
    table = plan.transfers
    chosen = np.flatnonzero((table.source == source) & (table.target == target))
    order = chosen[np.argsort(-table.size_bytes[chosen], kind="stable")][:MAX_LISTED]
    rows = []
    for transfer in order.tolist():
        word = f"{KIND_WORDS[TransferKind(table.kind[transfer])]} of block {table.block[transfer]}"
        size = quantities.size(table.size_bytes[transfer])
        link = Link(word, transfer_selection(plan, transfer))
        rows.append(row(size, link, f", {direction_word(table.is_backward[transfer])}"))
    return tuple(rows)
