"""Details of single tiles, messages and events, with all messages between two devices.

A number that the plan or the trace does not have raises `DashboardError`.
"""

import numpy as np

from dcp_dashboard.facts import quantities
from dcp_dashboard.facts.devices import sequence_link
from dcp_dashboard.facts.text import (
    EVENT_WORDS,
    KIND_WORDS,
    SOURCE_LABELS,
    TIMES,
    DetailLink,
    DetailRow,
    Details,
    Section,
    check_index,
    device_link,
    direction_word,
    division_selection,
    event_selection,
    list_row,
    pair_selection,
    row,
    spent_text,
    tile_selection,
    transfer_selection,
)
from dcp_dashboard.facts.traces import RECEIVE, SEND, WAIT, released_by
from dcp_dashboard.library.plans import LoadedPlan
from dcp_dashboard.library.summary import group_labels
from dcp_dsl.arrays import Ints
from dcp_dsl.forms import BlockKind
from dcp_planner import LANES, Plan, Source, Trace, TransferKind

MAX_SERVING, MAX_LISTED, MOST_STEPS = 12, 8, 12
"""Most messages of a tile, tiles of a message or messages of a pair, and events of a chain."""


def tile_facts(loaded: LoadedPlan, tile: int) -> Details:
    """Collect the details of a tile; O(X)."""
    plan, tiles = loaded.plan, loaded.plan.tiles
    check_index(loaded, "a tile", tile, len(tiles))
    q, kv = int(tiles.q_block[tile]), int(tiles.kv_block[tile])
    served = serving_transfers(plan, tile)
    return Details(
        f"Tile {q} {TIMES} {kv}",
        tile_selection(plan, tile),
        [
            Section("", _rows_of_tile(plan, tile, q, kv)),
            Section("Messages for this tile", _transfer_rows(plan, served)),
        ],
        {
            "tile": tile, "q_block": q, "kv_block": kv,
            "kind": BlockKind(tiles.kind[tile]).name.lower(), "pairs": int(tiles.pairs[tile]),
            "device": int(tiles.device[tile]), "division": int(tiles.division[tile]),
            "backward_division": int(tiles.backward_division[tile]),
            "q_owner": int(plan.blocks.owner[q]), "kv_owner": int(plan.blocks.owner[kv]),
            "transfers": served.tolist(),
        },
    )  # fmt: skip


def serving_transfers(plan: Plan, tile: int) -> Ints:
    """Find the messages that bring the tile its inputs and carry its results home; O(X).

    Inputs of its two blocks arrive at its device. Results leave its device in one message for each
    block: the sum over all tiles that the device computes with it.
    """
    tiles, table = plan.tiles, plan.transfers
    q, kv, device = tiles.q_block[tile], tiles.kv_block[tile], tiles.device[tile]
    of_q = np.isin(table.kind, (TransferKind.Q, TransferKind.OUT, TransferKind.DQ))
    # The end of a message at the device that computes: results leave there, inputs arrive.
    end = np.where(table.kind >= TransferKind.OUT, table.source, table.target)
    chosen = (table.block == np.where(of_q, q, kv)) & (end == device)
    if tiles.group is not None and table.group is not None:
        group, share = int(tiles.group[tile]), _groups_per_key(plan)
        # Keys that several groups read travel once, under the number of the first of these groups.
        chosen &= table.group == np.where(of_q, group, group // share * share)
    return np.flatnonzero(chosen)


def _groups_per_key(plan: Plan) -> int:
    """Return how many groups of heads read the same keys: above 1 with fewer key heads (GQA)."""
    return max(1, plan.head_groups // plan.shape.kv_heads)


def _rows_of_tile(plan: Plan, tile: int, q: int, kv: int) -> list[DetailRow]:
    tiles, tokens, c = plan.tiles, plan.blocks.num_tokens, quantities.count
    pairs, device = int(tiles.pairs[tile]), int(tiles.device[tile])
    kind = BlockKind(tiles.kind[tile]).name.lower()
    forward, backward = int(tiles.division[tile]), int(tiles.backward_division[tile])
    rows = [
        row("Pairs", f"{c(pairs)} of {c(int(tokens[q] * tokens[kv]))}, {kind}"),
        row("Sequence", sequence_link(plan, int(plan.blocks.sequence[q]))),
        row("Computed by", device_link(device)),
        row(
            "In division",
            DetailLink(f"{forward} forward", division_selection(forward, "forward", device)),
            ", ",
            DetailLink(f"{backward} backward", division_selection(backward, "backward", device)),
        ),
        _block_row(plan, "Queries", q),
        _block_row(plan, "Keys", kv),
    ]
    if tiles.group is not None:
        group = int(tiles.group[tile])
        heads = f"{group_labels(plan)[group]} of {plan.shape.q_heads}"
        rows.insert(0, row("Heads", f"{heads}: group {group + 1} of {plan.head_groups}"))
    return rows


def _block_row(plan: Plan, label: str, block: int) -> DetailRow:
    start, end = int(plan.blocks.start[block]), int(plan.blocks.end[block])
    text = f"{start:,} to {end - 1:,} (block {block}), owned by "
    return row(label, text, device_link(int(plan.blocks.owner[block])))


def _transfer_rows(plan: Plan, served: Ints) -> list[DetailRow]:
    # Both inputs are local, and results need not travel to an owner that is the device itself.
    if not len(served):
        return [row("", "None: the device owns both queries and keys.")]
    table, rows = plan.transfers, []
    for is_backward in (False, True):
        chosen = served[table.is_backward[served] == is_backward]
        for kind in np.unique(table.kind[chosen]):
            links = []
            for transfer in chosen[table.kind[chosen] == kind].tolist():
                route = f"device {table.source[transfer]} → {table.target[transfer]}"
                text = f"{route}, {quantities.size(table.size_bytes[transfer])}"
                links.append(DetailLink(text, transfer_selection(plan, transfer)))
            word = f"{KIND_WORDS[TransferKind(kind)]}, {direction_word(is_backward)}"
            rows.append(list_row(word, links, MAX_SERVING))
    return rows


def transfer_facts(loaded: LoadedPlan, transfer: int) -> Details:
    """Collect the details of a message; O(W + E)."""
    plan, table = loaded.plan, loaded.plan.transfers
    check_index(loaded, "a message", transfer, len(table))
    kind = TransferKind(table.kind[transfer])
    return Details(
        f"{KIND_WORDS[kind]} of block {table.block[transfer]}",
        transfer_selection(plan, transfer),
        [
            Section("", [*_route_rows(plan, transfer), *_time_rows(loaded, transfer)]),
            Section("Tiles of this message", [_served_row(plan, transfer)]),
        ],
        {
            "transfer": transfer, "kind": kind.name.lower(), "block": int(table.block[transfer]),
            "source": int(table.source[transfer]), "target": int(table.target[transfer]),
            "division": int(table.division[transfer]), "hop": int(table.hop[transfer]),
            "is_backward": bool(table.is_backward[transfer]),
            "size_bytes": int(table.size_bytes[transfer]),
        },
    )  # fmt: skip


def _route_rows(plan: Plan, transfer: int) -> list[DetailRow]:
    table, blocks = plan.transfers, plan.blocks
    source, target = int(table.source[transfer]), int(table.target[transfer])
    division, word = int(table.division[transfer]), direction_word(table.is_backward[transfer])
    block = int(table.block[transfer])
    pair = DetailLink("all messages of this pair", pair_selection(source, target))
    rows = [
        row("From", device_link(source), " to ", device_link(target), ", ", pair),
        row("Bytes", quantities.size(table.size_bytes[transfer])),
        row("Tokens", f"{blocks.start[block]:,} to {blocks.end[block] - 1:,}"),
    ]
    if table.group is not None:
        group = int(table.group[transfer])
        heads = f"query heads {group_labels(plan)[group]}"
        rows.append(row("Heads", f"{heads}: group {group + 1} of {plan.head_groups}"))
    # An input must arrive before its division is computed, a result leaves after it.
    step = DetailLink(f"division {division} {word}", division_selection(division, word))
    is_result = table.kind[transfer] >= TransferKind.OUT
    rows.append(row("Sent", "after ", step) if is_result else row("Needed", "before ", step))
    if table.hop[transfer]:
        rows.append(row("Forwarded", f"by device {source}, hop {table.hop[transfer]}"))
    return rows


def _time_rows(loaded: LoadedPlan, transfer: int) -> list[DetailRow]:
    rows, chosen = [], transfer_selection(loaded.plan, transfer)
    for source, trace in loaded.traces.items():
        sends = np.flatnonzero((trace.transfer == transfer) & (trace.lane == SEND))
        for event in sends[:1].tolist():  # the first layer's, if the run has several
            start, end = int(trace.start_ns[event]), int(trace.end_ns[event])
            link = DetailLink(spent_text(start, end), chosen, (start, end), source)
            rows.append(row(SOURCE_LABELS[source], link))
    return rows


def _served_row(plan: Plan, transfer: int) -> DetailRow:
    table, tiles = plan.transfers, plan.tiles
    kind = table.kind[transfer]
    device = table.source[transfer] if kind >= TransferKind.OUT else table.target[transfer]
    is_query = kind in (TransferKind.Q, TransferKind.OUT, TransferKind.DQ)
    block = tiles.q_block if is_query else tiles.kv_block
    chosen = (tiles.device == device) & (block == table.block[transfer])
    if tiles.group is not None and table.group is not None:
        # As in `serving_transfers`: a message of keys serves all groups that read them.
        share = 1 if is_query else _groups_per_key(plan)
        chosen &= tiles.group // share == int(table.group[transfer]) // share
    served = np.flatnonzero(chosen)
    if not len(served):
        return row("", "None directly: the device forwards the message.")
    links = [
        DetailLink(f"{tiles.q_block[t]} {TIMES} {tiles.kv_block[t]}", tile_selection(plan, t))
        for t in served.tolist()
    ]
    return list_row(quantities.counted(len(served), "tile"), links, MAX_LISTED)


def pair_facts(loaded: LoadedPlan, source: int, target: int) -> Details:
    """Collect the messages that a device sends to another one, and those that come back; O(X)."""
    plan, traffic = loaded.plan, loaded.totals.traffic_bytes
    for device in (source, target):
        check_index(loaded, "a device", device, plan.num_devices)
    node = plan.cluster.node_of_device
    place = "within a node" if node[source] == node[target] else "between nodes"
    ways = [*_way_rows(plan, source, target), *_way_rows(plan, target, source)]
    return Details(
        f"Device {source} → device {target}",
        pair_selection(source, target),
        [
            Section("", [row("Path", place), *ways]),
            Section("Largest messages", _largest_rows(plan, source, target)),
        ],
        {
            "device": source,
            "peer": target,
            "size_bytes": int(traffic[source, target]),
            "back_bytes": int(traffic[target, source]),
        },
    )


def _way_rows(plan: Plan, source: int, target: int) -> list[DetailRow]:
    table, q = plan.transfers, quantities
    chosen = (table.source == source) & (table.target == target)
    total = DetailLink(q.size(int(table.size_bytes[chosen].sum())), pair_selection(source, target))
    number = q.counted(int(chosen.sum()), "message")
    rows = [row(f"{source} → {target}", total, f" in {number}")]
    for kind in np.unique(table.kind[chosen]):
        size = q.size(int(table.size_bytes[chosen & (table.kind == kind)].sum()))
        rows.append(row("", f"{KIND_WORDS[TransferKind(kind)]}: {size}"))
    return rows


def _largest_rows(plan: Plan, source: int, target: int) -> list[DetailRow]:
    table, rows = plan.transfers, []
    chosen = np.flatnonzero((table.source == source) & (table.target == target))
    order = chosen[np.argsort(-table.size_bytes[chosen], kind="stable")][:MAX_LISTED]
    for transfer in order.tolist():
        word = f"{KIND_WORDS[TransferKind(table.kind[transfer])]} of block {table.block[transfer]}"
        link = DetailLink(word, transfer_selection(plan, transfer))
        direction = direction_word(table.is_backward[transfer])
        rows.append(row(quantities.size(table.size_bytes[transfer]), link, f", {direction}"))
    return rows


def event_facts(loaded: LoadedPlan, source: Source, event: int) -> Details:
    """Collect the details of an event, a row of the trace; O(E)."""
    plan, trace = loaded.plan, loaded.traces[source]
    check_index(loaded, "an event", event, len(trace), f" in the {source} trace")
    device, lane, name = int(trace.device[event]), trace.lane[event], trace.name_of(event)
    span = _span_link(plan, trace, event)
    rows = [row("Device", device_link(device)), row(SOURCE_LABELS[source], span)]
    division, word = int(trace.division[event]), direction_word(trace.is_backward[event])
    if division >= 0:
        chosen = division_selection(division, word, device)
        rows.append(row("In", DetailLink(f"division {division} {word}", chosen)))
    is_message, chain = lane in (SEND, RECEIVE), []
    if is_message:
        rows += [*_message_rows(plan, trace, event), *_other_end_rows(plan, trace, event)]
    elif lane == WAIT:
        rows.append(_release_row(trace, event))
        chain = chain_behind(loaded, source, event)
    # What leaves or arrives is a message; "on" stands before a computation.
    steps = []
    for step in chain:
        verb = {SEND: "leaves ", RECEIVE: "arrives at "}.get(int(trace.lane[step]), "on ")
        link = _span_link(plan, trace, step)
        words = EVENT_WORDS.get(told := trace.name_of(step), told)
        steps.append(row(words, f"{verb}device {trace.device[step]}: ", link))
    return Details(
        f"{f'{LANES[lane]} of {name}' if is_message else EVENT_WORDS.get(name, name)} on device "
        f"{device}".capitalize(),
        span.selected,
        [Section("", rows), Section("Events that delayed its end, latest first", steps)],
        {
            "event": event, "source": source, "name": name, "device": device, "lane": LANES[lane],
            "start_ns": int(trace.start_ns[event]), "end_ns": int(trace.end_ns[event]),
            "size_bytes": int(trace.size_bytes[event]), "peer": int(trace.peer[event]),
            "chain": chain,
        },
    )  # fmt: skip


def chain_behind(loaded: LoadedPlan, source: Source, wait: int) -> list[int]:
    """Return the rows of the events that held up the end of a wait, the last one first.

    Each could begin only when the next one in the list had ended. The chain stops at the begin of
    the wait: events that ended before held nothing up.
    """
    trace, found = loaded.traces[source], loaded.recorded[source].dependencies
    chain: list[int] = []
    at = int(found.predecessor[wait])
    while at >= 0 and found.end_ns[at] > trace.start_ns[wait] and len(chain) < MOST_STEPS:
        chain.append(at)
        at = int(found.predecessor[at])
    return chain


def _span_link(plan: Plan, trace: Trace, event: int) -> DetailLink:
    """Build a link with the time of an event."""
    start, end = int(trace.start_ns[event]), int(trace.end_ns[event])
    chosen = event_selection(plan, trace, event)
    return DetailLink(spent_text(start, end), chosen, (start, end), trace.source)


def _peer_link(trace: Trace, message: int) -> DetailLink:
    """Build a link to all messages between a message's two devices, named by the peer."""
    device, peer = int(trace.device[message]), int(trace.peer[message])
    ends = (device, peer) if trace.lane[message] == SEND else (peer, device)
    return DetailLink(f"device {peer}", pair_selection(*ends))


def _message_rows(plan: Plan, trace: Trace, event: int) -> list[DetailRow]:
    if trace.peer[event] < 0:
        return []
    rows = [row("To" if trace.lane[event] == SEND else "From", _peer_link(trace, event))]
    transfer, size = int(trace.transfer[event]), int(trace.size_bytes[event])
    if transfer >= 0:
        text = f"{trace.name_of(event)}, {quantities.size(size)}"
        length_ns = int(trace.end_ns[event] - trace.start_ns[event])
        rate = f" at {quantities.size(size * 1e9 / length_ns)}/s" if length_ns else ""
        rows.append(row("Message", DetailLink(text, transfer_selection(plan, transfer)), rate))
    return rows


def _other_end_rows(plan: Plan, trace: Trace, event: int) -> list[DetailRow]:
    """Link the receive of a send or the send of a receive; O(E)."""
    lane, transfer = trace.lane[event], trace.transfer[event]
    if transfer < 0:
        return []
    # A run of several layers has a transfer once in each: its n-th send belongs to its n-th
    # receive. The events of one lane of one device lie in the order of their starts.
    ends = np.flatnonzero(trace.transfer == transfer)
    here, others = ends[trace.lane[ends] == lane], ends[trace.lane[ends] == SEND + RECEIVE - lane]
    number = int(np.flatnonzero(here == event)[0])
    if number >= len(others):
        return []
    other = int(others[number])
    text = spent_text(int(trace.start_ns[other]), int(trace.end_ns[other]))
    chosen = event_selection(plan, trace, other)
    return [row("Matching receive" if lane == SEND else "Matching send", DetailLink(text, chosen))]


def _release_row(trace: Trace, event: int) -> DetailRow:
    message = released_by(trace, event)
    if message is None:
        return row("Ended by", "no message of the trace")
    verb = "to" if trace.lane[message] == SEND else "from"
    return row("Ended by", f"{trace.name_of(message)} {verb} ", _peer_link(trace, message))
