"""Details of a device and of a division: load, partners, times and waits.

A number that the plan does not have raises `DashboardError`.
"""

import numpy as np
from numpy.typing import NDArray

from dcp_dashboard.facts import quantities
from dcp_dashboard.facts.sequences import sequence_link
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
)
from dcp_dashboard.facts.traces import Wait, find_waits
from dcp_dashboard.library.plans import LoadedPlan
from dcp_dashboard.library.summary import count_divisions, device_pairs, imbalance
from dcp_planner import LANES, Direction, Source, Trace, TransferKind

MAX_DEVICE_WAITS, MAX_DIVISION_WAITS, MAX_SEQUENCES = 6, 5, 8


def device_facts(loaded: LoadedPlan, device: int) -> Details:
    """Collect the details of a device; O(E)."""
    check_index(loaded, "a device", device, loaded.plan.num_devices)
    totals, plan = loaded.totals, loaded.plan
    waits = {
        source: find_waits(trace, MAX_DEVICE_WAITS, device=device)
        for source, trace in loaded.traces.items()
    }
    sections = [Section("", (*_device_load_rows(loaded, device), *_partner_rows(loaded, device)))]
    for source, found in waits.items():
        rows = _device_time_rows(loaded.traces[source], device)
        rows += [wait_row(wait, source, is_own=True) for wait in found]
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
            "wait_s": {source: sum(w.seconds for w in found) for source, found in waits.items()},
        },
    )  # fmt: skip


def wait_row(wait: Wait, source: Source, *, is_own: bool) -> DetailRow:
    """Write one wait as a row: place, length and the other device, each with its link."""
    window = (wait.start_ns, wait.end_ns)
    place = f"division {wait.division} {wait.direction}"
    if not is_own:
        place = f"device {wait.device}"
    chosen = division_selection(wait.division, wait.direction, wait.device)
    parts: list[str | DetailLink] = [DetailLink(place, chosen, window, source)]
    if wait.peer >= 0:
        ends = (wait.device, wait.peer) if wait.is_sent else (wait.peer, wait.device)
        parts += [
            " for ",
            DetailLink(f"device {wait.peer}", pair_selection(*ends)),
            f" ({wait.message})",
        ]
    return row(f"waits {quantities.duration(wait.seconds)}", *parts)


def _device_load_rows(loaded: LoadedPlan, device: int) -> list[DetailRow]:
    totals, plan, q = loaded.totals, loaded.plan, quantities
    share = float(totals.pairs.mean() * plan.cluster.work_of_device[device])
    above = q.ratio(totals.pairs[device] / share) if share else "0"
    speed = plan.cluster.speed_of_device[device]
    rate = "" if speed == 1 else f", {q.percent(speed)} of the rate"
    blocks = int((plan.blocks.owner == device).sum())
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
        row("Buffers", f"{q.size(totals.memory_bytes[device])} at most for what it receives"),
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
        return [row("", "Its trace has no event of this device.")]
    compute = mine & (trace.lane == LANES.index("compute"))
    wait = mine & (trace.lane == LANES.index("wait"))
    length = trace.end_ns - trace.start_ns
    total, done, q = max(1, int(trace.end_ns.max())), int(np.max(trace.end_ns[mine])), quantities
    rows = []
    for label, chosen in (("Computing", compute), ("Waiting", wait)):
        spent = float(length[chosen].sum())
        rows.append(row(label, f"{q.duration(spent / 1e9)}, {q.percent(spent / total)}"))
    return [*rows, row("Done at", f"{q.duration(done / 1e9)} of {q.duration(total / 1e9)}")]


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
    load = _division_load_rows(loaded, division, direction, pairs, int(chosen.sum()))
    sections = [Section("", [*load, _way(division, last, direction, device)])]
    for source in loaded.traces:
        rows = _division_time_rows(loaded, source, division, direction, device)
        sections.append(Section(SOURCE_LABELS[source], rows))
    title = f"Division {division}, {direction}"
    if device is not None:
        rows = [*device_facts(loaded, device).sections[0].rows]
        sections.append(Section(f"Device {device}", rows))
        title += f", device {device}"
    return Details(
        title,
        division_selection(division, direction, device),
        sections,
        {
            "division": division, "direction": direction, "tiles": int(chosen.sum()),
            "pairs": round(pairs.sum()),
            "max_over_mean": imbalance(pairs / loaded.plan.cluster.work_of_device),
        },
    )  # fmt: skip


def _division_load_rows(
    loaded: LoadedPlan,
    division: int,
    direction: Direction,
    pairs: NDArray[np.float64],
    num_tiles: int,
) -> list[DetailRow]:
    table, q = loaded.plan.transfers, quantities
    arrives = (
        (table.is_backward == (direction == "backward"))
        & (table.division == division)
        & (table.kind < TransferKind.OUT)
    )
    load = pairs / loaded.plan.cluster.work_of_device
    busiest = int(load.argmax())
    tiles = q.counted(num_tiles, "tile")
    devices = q.counted(int((pairs > 0).sum()), "device")
    size = q.size(int(table.size_bytes[arrives].sum()))
    return [
        row("Computes", f"{q.count(pairs.sum())} pairs in {tiles} on {devices}"),
        row("Balance", f"max/mean {q.ratio(imbalance(load))}, most on ",
            DetailLink(f"device {busiest}", division_selection(division, direction, busiest))),
        row("Needs", f"{size} in {q.counted(int(arrives.sum()), 'message')}"),
    ]  # fmt: skip


def _way(division: int, last: int, direction: Direction, device: int | None) -> DetailRow:
    """Link to the steps before and after, and to the same one of the other direction."""
    parts: list[str | DetailLink] = []
    for step, word in ((division - 1, "before"), (division + 1, "after")):
        if 0 <= step <= last:
            link = DetailLink(f"division {step}", division_selection(step, direction, device))
            parts += [link, f" {word}, "]
    if device is None:
        parts.append(f"{last + 1} in all")
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
    return rows or [row("", "The trace has no event of it.")]
