"""Details of all work of one device, of one division, or for one sequence of the batch.

A number that the plan does not have raises `DashboardError`.
"""

import numpy as np

from dcp_dashboard.facts import quantities
from dcp_dashboard.facts.text import (
    SOURCE_LABELS,
    TIMES,
    DetailLink,
    DetailRow,
    Details,
    Section,
    check_index,
    device_link,
    device_selection,
    division_selection,
    list_row,
    pair_selection,
    row,
    selection,
)
from dcp_dashboard.facts.traces import Wait, find_waits
from dcp_dashboard.library.folder import DashboardError
from dcp_dashboard.library.plans import LoadedPlan
from dcp_dashboard.library.summary import count_divisions, count_kinds, device_pairs, imbalance
from dcp_dsl.arrays import Floats
from dcp_planner import LANES, Direction, Plan, Source, Trace, TransferKind

MAX_DEVICES, MAX_FOUND, MAX_ROW_TEXT = 12, 50, 200
"""Most devices of a sequence, sequences of a name, and characters of a sample that are shown."""


def find_sequences(loaded: LoadedPlan, text: str) -> Details:
    """Collect the details of the sequence with a name, or links to all sequences that have it.

    A sequence has the name of its row of the data set. Whole names, with or without the id behind
    the colon, go before parts of names; case does not matter.
    """
    asked, names = text.strip().casefold(), [n.casefold() for n in loaded.plan.sequence_names]
    # "row 7" is the whole name of "row 7: chat-9f3a", so it does not mean "row 70".
    whole = [at for at, name in enumerate(names) if asked in (name, name.partition(":")[0])]
    part = [at for at, name in enumerate(names) if asked and asked in name]
    found = whole or part
    if not found:
        known = f"such as {loaded.plan.sequence_names[0]!r}" if names else "and this plan has none"
        raise DashboardError(
            f"{loaded.entry.relative}: expected the name of a row, {known}, got {text[:80]!r}"
        )
    if len(found) == 1:
        return sequence_facts(loaded, found[0])
    rows = [row("", sequence_link(loaded.plan, sequence)) for sequence in found[:MAX_FOUND]]
    if len(found) > MAX_FOUND:
        rows.append(row("", f"and {quantities.count(len(found) - MAX_FOUND)} more"))
    title = f"{quantities.count(len(found))} sequences have {text.strip()[:80]!r} in their names"
    return Details(title, "", [Section("", rows)], {"sequences": found})


def sequence_link(plan: Plan, sequence: int) -> DetailLink:
    """Build a link to a sequence, by its number and its name."""
    name = plan.sequence_names[sequence] if plan.sequence_names else ""
    text = f"{sequence}, {name}" if name else str(sequence)
    return DetailLink(text, selection("sequence", sequence=sequence))


def sequence_facts(loaded: LoadedPlan, sequence: int) -> Details:
    """Collect length, row, blocks with owners, work and bytes of a sequence; O(D + W + X)."""
    plan, q = loaded.plan, quantities
    check_index(loaded, "a sequence", sequence, len(plan.cu_seqlens) - 1)
    begin, end = (int(token) for token in plan.cu_seqlens[sequence : sequence + 2])
    mine = plan.blocks.sequence == sequence
    tiles = mine[plan.tiles.q_block]
    pairs = device_pairs(plan, tiles)
    kinds = count_kinds(plan, mine)
    moved = int(plan.transfers.size_bytes[mine[plan.transfers.block]].sum())
    share = pairs.sum() / max(1.0, float(loaded.totals.pairs.sum()))  # a mask may be empty
    counts = ", ".join(f"{q.count(number)} {name}" for name, number in kinds.items())
    tokens = plan.blocks.num_tokens[mine]
    owned = np.bincount(plan.blocks.owner[mine], tokens, minlength=plan.num_devices)
    names = plan.sequence_names
    rows = [
        *([row("Row", names[sequence])] if names else []),
        row("Tokens", f"{q.count(end - begin)}, from {q.count(begin)}"),
        row("Blocks", q.count(int(mine.sum()))),
        row("Tiles", counts),
        row("Work", f"{q.count(pairs.sum())} pairs, {q.percent(share)} of the batch"),
        row("Bytes moved", f"{q.size(moved)} for its blocks"),
        list_row("Owned by", _devices(owned.astype(np.float64), "tokens"), MAX_DEVICES),
        list_row("Computed by", _devices(pairs, "pairs"), MAX_DEVICES),
        row("Mask", loaded.summary.mask),
    ]
    provenance = plan.provenance
    if provenance is not None and sequence < len(provenance.samples):
        rows.append(row("Sample", provenance.samples[sequence][:MAX_ROW_TEXT]))
    return Details(
        f"Sequence {sequence}",
        selection("sequence", sequence=sequence),
        [Section("", rows)],
        {
            "sequence": sequence, "begin": begin, "end": end, "blocks": int(mine.sum()),
            "tiles": kinds, "pairs": round(float(pairs.sum())), "bytes": moved,
        },
    )  # fmt: skip


def _devices(amounts: Floats, unit: str) -> list[DetailLink]:
    """Build a link to every device with an amount, the largest first."""
    order = np.argsort(-amounts, kind="stable")
    return [
        device_link(device, f"device {device} ({quantities.count(amounts[device])} {unit})")
        for device in order[amounts[order] > 0].tolist()
    ]


MAX_DEVICE_WAITS, MAX_DIVISION_WAITS, MAX_SEQUENCES = 6, 5, 8
"""Most waits of a device, waits of a division, and sequences of a device that are listed."""


def device_facts(loaded: LoadedPlan, device: int) -> Details:
    """Collect the details of a device; O(E)."""
    sections = [Section("", _device_rows(loaded, device))]
    totals, plan = loaded.totals, loaded.plan
    for source, trace in loaded.traces.items():
        waits = find_waits(trace, MAX_DEVICE_WAITS, device=device)
        rows = _device_time_rows(trace, device)
        rows += [wait_row(wait, source, is_own=True) for wait in waits]
        sections.append(Section(SOURCE_LABELS[source], rows))
    return Details(
        f"Device {device}",
        device_selection(device),
        sections,
        {
            "device": device, "node": int(plan.cluster.node_of_device[device]),
            "tokens": int(totals.tokens[device]), "tiles": int(totals.tiles[device]),
            "pairs": round(totals.pairs[device]), "sent_bytes": int(totals.sent_bytes[device]),
            "received_bytes": int(totals.received_bytes[device]),
            # All waits: the rows above name only the longest.
            "wait_s": {
                source: float(trace.lane_seconds("wait", plan.num_devices)[device])
                for source, trace in loaded.traces.items()
            },
        },
    )  # fmt: skip


def wait_row(wait: Wait, source: Source, *, is_own: bool) -> DetailRow:
    """Write one wait as a row: place, length and the other device, each with its link.

    The panel of a device (`is_own`) names the division as the place, that of a division the device.
    """
    window = (wait.start_ns, wait.end_ns)
    division = f"division {wait.division} {wait.direction}"
    place = division if is_own else f"device {wait.device}"
    chosen = division_selection(wait.division, wait.direction, wait.device)
    parts: list[str | DetailLink] = [DetailLink(place, chosen, window, source)]
    if wait.peer >= 0:
        # A pair is (sender, receiver); a device may wait for a message of its own to leave.
        ends = (wait.device, wait.peer) if wait.is_sent else (wait.peer, wait.device)
        peer = DetailLink(f"device {wait.peer}", pair_selection(*ends))
        parts += [" for ", peer, f" ({wait.message})"]
    return row(f"waits {quantities.duration(wait.seconds)}", *parts)


def _device_rows(loaded: LoadedPlan, device: int) -> list[DetailRow]:
    """Describe what the plan gives a device to do, without any trace."""
    check_index(loaded, "a device", device, loaded.plan.num_devices)
    return [*_device_load_rows(loaded, device), *_partner_rows(loaded, device)]


def _device_load_rows(loaded: LoadedPlan, device: int) -> list[DetailRow]:
    totals, plan, q = loaded.totals, loaded.plan, quantities
    # A device of half the rate is level with the others at half of the mean.
    share = float(totals.pairs.mean() * plan.cluster.work_of_device[device])
    above = q.ratio(totals.pairs[device] / share) if share else "0"
    speed = plan.cluster.speed_of_device[device]
    rate = "" if speed == 1 else f", {q.percent(speed)} of the rate"
    blocks = int((plan.blocks.owner == device).sum())
    # Tokens of each sequence that the device owns: blocks of others weigh nothing.
    owned = np.bincount(
        plan.blocks.sequence, plan.blocks.num_tokens * (plan.blocks.owner == device)
    )
    most = np.argsort(-owned, kind="stable")
    links = [sequence_link(plan, sequence) for sequence in most[owned[most] > 0].tolist()]
    return [
        row("Node", f"{plan.cluster.node_of_device[device]}{rate}"),
        row("Owns", f"{q.counted(totals.tokens[device], 'token')} in {q.counted(blocks, 'block')}"),
        list_row("Of sequences", links, MAX_SEQUENCES),
        row("Computes", f"{q.count(totals.pairs[device])} pairs in "
            f"{q.counted(int(totals.tiles[device]), 'tile')}, {above} {TIMES} mean"),
        row("Buffers", f"up to {q.size(totals.memory_bytes[device])} for received data and sums"),
    ]  # fmt: skip


def _partner_rows(loaded: LoadedPlan, device: int) -> list[DetailRow]:
    traffic, rows = loaded.totals.traffic_bytes, []
    for label, amounts, is_source in (
        ("Sends", traffic[device], True),
        ("Receives", traffic[:, device], False),
    ):
        text = quantities.size(int(amounts.sum()))
        if not amounts.any():
            rows.append(row(label, text))
            continue
        most = int(amounts.argmax())
        pair = pair_selection(device, most) if is_source else pair_selection(most, device)
        word = "to" if is_source else "from"
        size = quantities.size(int(amounts[most]))
        rows.append(
            row(label, f"{text}, most {word} ", DetailLink(f"device {most}", pair), f" ({size})")
        )
    return rows


def _device_time_rows(trace: Trace, device: int) -> list[DetailRow]:
    mine = trace.device == device
    if not mine.any():
        return [row("", "The trace has no event of this device.")]
    # Shares are of the whole run, not of the time until this device is done.
    length = trace.end_ns - trace.start_ns
    total, done, q = max(1, int(trace.end_ns.max())), int(np.max(trace.end_ns[mine])), quantities
    rows = []
    for label, lane in (("Computing", "compute"), ("Waiting", "wait")):
        spent = float(length[mine & (trace.lane == LANES.index(lane))].sum())
        rows.append(row(label, f"{q.duration(spent / 1e9)}, {q.percent(spent / total)}"))
    return [*rows, row("Finished at", f"{q.duration(done / 1e9)} of {q.duration(total / 1e9)}")]


def division_facts(
    loaded: LoadedPlan, division: int, direction: Direction, device: int | None = None
) -> Details:
    """Collect the details of a step of the schedule, of all devices or of one; O(W + X + E)."""
    tiles = loaded.plan.tiles
    column = tiles.division if direction == "forward" else tiles.backward_division
    last = count_divisions(loaded.plan, direction) - 1
    check_index(loaded, "a division", division, last + 1, f" in {direction}")
    chosen = column == division
    pairs = device_pairs(loaded.plan, chosen)
    # Over the rate: equal loads take equally long on unequal devices.
    work = loaded.plan.cluster.work_of_device
    busiest, above, q = int((pairs / work).argmax()), imbalance(pairs, work), quantities
    tiles_and_devices = (
        f"{q.counted(int(chosen.sum()), 'tile')} on {q.counted(int((pairs > 0).sum()), 'device')}"
    )
    rows = [
        row("Computes", f"{q.count(pairs.sum())} pairs in {tiles_and_devices}"),
        row("Balance", f"max/mean {q.ratio(above)}, most on ",
            DetailLink(f"device {busiest}", division_selection(division, direction, busiest))),
        _needs_row(loaded, division, direction),
        _way(division, last, direction, device),
    ]  # fmt: skip
    sections = [Section("", rows)]
    for source in loaded.traces:
        rows = _division_time_rows(loaded, source, division, direction, device)
        sections.append(Section(SOURCE_LABELS[source], rows))
    title = f"Division {division}, {direction}"
    if device is not None:
        sections.append(Section(f"Device {device}", _device_rows(loaded, device)))
        title += f", device {device}"
    return Details(
        title,
        division_selection(division, direction, device),
        sections,
        {
            "division": division, "direction": direction, "tiles": int(chosen.sum()),
            "pairs": round(pairs.sum()),
            "max_over_mean": above,
        },
    )  # fmt: skip


def _needs_row(loaded: LoadedPlan, division: int, direction: Direction) -> DetailRow:
    """Sum the inputs that arrive for a division; kinds below `OUT` are inputs."""
    table, q = loaded.plan.transfers, quantities
    arrives = (
        (table.is_backward == (direction == "backward"))
        & (table.division == division)
        & (table.kind < TransferKind.OUT)
    )
    size = q.size(int(table.size_bytes[arrives].sum()))
    return row("Needs", f"{size} in {q.counted(int(arrives.sum()), 'message')}")


def _way(division: int, last: int, direction: Direction, device: int | None) -> DetailRow:
    """Link to the steps before and after, and to the same one of the other direction."""
    parts: list[str | DetailLink] = []
    for step, word in ((division - 1, "before"), (division + 1, "after")):
        if 0 <= step <= last:
            link = DetailLink(f"division {step}", division_selection(step, direction, device))
            parts += [link, f" {word}, "]
    if device is None:
        parts.append(f"{last + 1} in total")
    else:
        parts.append(DetailLink("all devices", division_selection(division, direction)))
    return row("Steps", *parts)


def _division_time_rows(
    loaded: LoadedPlan, source: Source, division: int, direction: Direction, device: int | None
) -> list[DetailRow]:
    trace, is_backward = loaded.traces[source], direction == "backward"
    chosen = (
        (trace.lane == LANES.index("compute"))
        & (trace.division == division)
        & (trace.is_backward == is_backward)
    )
    if device is not None:
        chosen &= trace.device == device
    rows = []
    if chosen.any():
        # From the first start to the last end; a division of a run comes once in every layer.
        start, end = int(trace.start_ns[chosen].min()), int(trace.end_ns[chosen].max())
        spent = np.zeros(loaded.plan.num_devices)
        np.add.at(spent, trace.device[chosen], (trace.end_ns - trace.start_ns)[chosen] / 1e9)
        text = f"{quantities.duration(start / 1e9)} to {quantities.duration(end / 1e9)}"
        link = DetailLink(
            text, division_selection(division, direction, device), (start, end), source
        )
        rows.append(row("Computed", link))
        longest = int(spent.argmax())
        rows.append(
            row("Longest", f"{quantities.duration(spent[longest])} on ", device_link(longest))
        )
    waits = find_waits(trace, MAX_DIVISION_WAITS, device=device, division=(division, is_backward))
    rows += [wait_row(wait, source, is_own=False) for wait in waits]
    return rows or [row("", "The trace has no event of this division.")]
