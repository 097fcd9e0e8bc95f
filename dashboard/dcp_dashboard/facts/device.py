"""What there is to say about a device: its numbers, its waits and for whom it waits."""

import numpy as np

from dcp_dashboard.facts import quantities
from dcp_dashboard.facts.selection import device_selection, division_selection, pair_selection
from dcp_dashboard.facts.text import Facts, Link, Row, Section, row
from dcp_dashboard.facts.transfer import check_device
from dcp_dashboard.facts.waits import Wait, find_waits
from dcp_dashboard.facts.words import SOURCE_LABELS, TIMES
from dcp_dashboard.library.plans import LoadedPlan
from dcp_planner import LANES, Source, Trace

MAX_WAITS = 6


def device_facts(loaded: LoadedPlan, device: int) -> Facts:
    """Say everything about a device; O(E).

    Raises:
        DashboardError: if the plan has no such device.
    """
    check_device(loaded, device)
    totals, plan = loaded.totals, loaded.plan
    waits = {
        source: find_waits(trace, MAX_WAITS, device=device)
        for source, trace in loaded.traces.items()
    }
    sections = [Section("", (*_load_rows(loaded, device), *_partner_rows(loaded, device)))]
    for source, found in waits.items():
        rows = _time_rows(loaded.traces[source], device)
        rows += [wait_row(wait, source, is_own=True) for wait in found]
        sections.append(Section(SOURCE_LABELS[source], tuple(rows)))
    return Facts(
        f"Device {device}",
        device_selection(device),
        tuple(sections),
        {
            "device": device, "node": device // plan.cluster.devices_per_node,
            "tokens": int(totals.tokens[device]), "tiles": int(totals.tiles[device]),
            "pairs": round(totals.pairs[device]), "sent_bytes": int(totals.sent_bytes[device]),
            "received_bytes": int(totals.received_bytes[device]),
            "wait_s": {source: sum(w.seconds for w in found) for source, found in waits.items()},
        },
    )  # fmt: skip


def wait_row(wait: Wait, source: Source, *, is_own: bool) -> Row:
    """Say one wait: where, how long, for whom; with links to the place and to the pair."""
    window = (wait.start_ns, wait.end_ns)
    place = f"division {wait.division} {wait.direction}"
    if not is_own:
        place = f"device {wait.device}"
    chosen = division_selection(wait.division, wait.direction, wait.device)
    parts: list[str | Link] = [Link(place, chosen, window, source)]
    if wait.peer >= 0:
        ends = (wait.device, wait.peer) if wait.is_sent else (wait.peer, wait.device)
        parts += [
            " for ",
            Link(f"device {wait.peer}", pair_selection(*ends)),
            f" ({wait.message})",
        ]
    return row(f"waits {quantities.duration(wait.seconds)}", *parts)


def _load_rows(loaded: LoadedPlan, device: int) -> list[Row]:
    totals, plan, q = loaded.totals, loaded.plan, quantities
    mean = totals.pairs.mean()
    above = q.ratio(totals.pairs[device] / mean) if mean else "0"
    blocks = int((plan.blocks.owner == device).sum())
    return [
        row("Node", str(device // plan.cluster.devices_per_node)),
        row("Owns", f"{totals.tokens[device]:,} tokens in {q.counted(blocks, 'block')}"),
        row("Computes", f"{q.count(totals.pairs[device])} pairs in "
            f"{q.counted(int(totals.tiles[device]), 'tile')}, {above} {TIMES} mean"),
        row("Buffers", f"{q.size(totals.memory_bytes[device])} at most for what it receives"),
    ]  # fmt: skip


def _partner_rows(loaded: LoadedPlan, device: int) -> list[Row]:
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
        rows.append(row(label, f"{text}, most {word} ", Link(f"device {most}", pair), f" ({size})"))
    return rows


def _time_rows(trace: Trace, device: int) -> list[Row]:
    mine = trace.device == device
    if not mine.any():
        return [row("", "Its trace has no event of this device.")]
    compute = mine & (trace.lane == LANES.index("compute"))
    wait = mine & (trace.lane == LANES.index("wait"))
    length = trace.end_ns - trace.start_ns
    total = max(1, int(trace.end_ns.max()))
    rows = [
        row(label, f"{quantities.duration(spent / 1e9)}, {quantities.percent(spent / total)}")
        for label, spent in (
            ("Computing", float(length[compute].sum())),
            ("Waiting", float(length[wait].sum())),
        )
    ]
    done = int(np.max(trace.end_ns[mine]))
    rows.append(
        row("Done at", f"{quantities.duration(done / 1e9)} of {quantities.duration(total / 1e9)}")
    )
    return rows
