"""What there is to say about a tile: kind, pairs, owners, device, divisions and its messages."""

import numpy as np
from numpy.typing import NDArray

from dcp_dashboard.facts import quantities
from dcp_dashboard.facts.selection import (
    device_selection,
    division_selection,
    tile_selection,
    transfer_selection,
)
from dcp_dashboard.facts.text import Facts, Link, Row, Section, joined, row
from dcp_dashboard.facts.words import KIND_WORDS, TIMES, direction_word
from dcp_dashboard.library.folder import DashboardError
from dcp_dashboard.library.head_groups import group_labels
from dcp_dashboard.library.plans import LoadedPlan
from dcp_dsl import BlockKind
from dcp_planner import Plan, TransferKind

MAX_LISTED = 12


def tile_facts(loaded: LoadedPlan, tile: int) -> Facts:
    """Say everything about a tile; O(X).

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
            Section("", _tile_rows(plan, tile, q, kv)),
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
    """Give the messages that bring the tile its inputs and carry its results home; O(X).

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


def _tile_rows(plan: Plan, tile: int, q: int, kv: int) -> tuple[Row, ...]:
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
            links = [_transfer_link(plan, int(x)) for x in of_kind[:MAX_LISTED]]
            word = f"{KIND_WORDS[TransferKind(kind)]}, {direction_word(is_backward)}"
            rows.append(Row(word, joined(links, len(of_kind) - MAX_LISTED)))
    return tuple(rows)


def _transfer_link(plan: Plan, transfer: int) -> Link:
    table = plan.transfers
    route = f"device {table.source[transfer]} → {table.target[transfer]}"
    size = quantities.size(table.size_bytes[transfer])
    return Link(f"{route}, {size}", transfer_selection(plan, transfer))
