"""What there is to say about a division: its load, what arrives for it, when it runs, who waits."""

import numpy as np
from numpy.typing import NDArray

from dcp_dashboard.facts import quantities
from dcp_dashboard.facts.device import device_facts, wait_row
from dcp_dashboard.facts.selection import device_selection, division_selection
from dcp_dashboard.facts.text import Facts, Link, Row, Section, row
from dcp_dashboard.facts.waits import find_waits
from dcp_dashboard.facts.words import SOURCE_LABELS
from dcp_dashboard.library.folder import DashboardError
from dcp_dashboard.library.plans import LoadedPlan
from dcp_dashboard.library.summary import device_pairs, imbalance
from dcp_planner import LANES, Direction, Source, TransferKind

MAX_WAITS = 5


def division_facts(
    loaded: LoadedPlan, division: int, direction: Direction, device: int | None = None
) -> Facts:
    """Say everything about a step of the schedule, of all devices or of one; O(W + X + E).

    Raises:
        DashboardError: if the plan has no such division or device.
    """
    tiles = loaded.plan.tiles
    column = tiles.division if direction == "forward" else tiles.backward_division
    last = int(column.max(initial=-1))
    if not 0 <= division <= last:
        raise DashboardError(
            f"{loaded.entry.relative}: expected a division from 0 to {last} in {direction}, got "
            f"{division}"
        )
    chosen = column == division
    pairs = device_pairs(loaded.plan, chosen)
    sections = [
        Section(
            "",
            (
                *_load_rows(loaded, division, direction, pairs),
                _way(division, last, direction, device),
            ),
        )
    ]
    sections += [
        Section(SOURCE_LABELS[source], _time_rows(loaded, source, division, direction, device))
        for source in loaded.traces
    ]
    if device is not None:
        sections += [
            Section(f"Device {device}", section.rows)
            for section in device_facts(loaded, device).sections[:1]
        ]
    title = f"Division {division}, {direction}"
    return Facts(
        title if device is None else f"{title}, device {device}",
        division_selection(division, direction, device),
        tuple(sections),
        {
            "division": division, "direction": direction, "tiles": int(chosen.sum()),
            "pairs": round(pairs.sum()), "max_over_mean": imbalance(pairs),
        },
    )  # fmt: skip


def _load_rows(
    loaded: LoadedPlan,
    division: int,
    direction: Direction,
    pairs: NDArray[np.float64],
) -> list[Row]:
    plan, q = loaded.plan, quantities
    table = plan.transfers
    column = plan.tiles.division if direction == "forward" else plan.tiles.backward_division
    arrives = (
        (table.is_backward == (direction == "backward"))
        & (table.division == division)
        & (table.kind < TransferKind.OUT)
    )
    busiest = int(pairs.argmax())
    tiles = q.counted(int((column == division).sum()), "tile")
    devices = q.counted(int((pairs > 0).sum()), "device")
    size = q.size(int(table.size_bytes[arrives].sum()))
    return [
        row("Computes", f"{q.count(pairs.sum())} pairs in {tiles} on {devices}"),
        row("Balance", f"max/mean {q.ratio(imbalance(pairs))}, most on ",
            Link(f"device {busiest}", division_selection(division, direction, busiest))),
        row("Needs", f"{size} in {q.counted(int(arrives.sum()), 'message')}"),
    ]  # fmt: skip


def _way(division: int, last: int, direction: Direction, device: int | None) -> Row:
    """Link to the steps before and after, and to the same one of the other direction."""
    parts: list[str | Link] = []
    for step, word in ((division - 1, "before"), (division + 1, "after")):
        if 0 <= step <= last:
            parts += [
                Link(f"division {step}", division_selection(step, direction, device)),
                f" {word}, ",
            ]
    if device is None:
        parts.append(f"{last + 1} in all")
    else:
        parts.append(Link("all devices", division_selection(division, direction)))
    return row("Steps", *parts)


def _time_rows(
    loaded: LoadedPlan, source: Source, division: int, direction: Direction, device: int | None
) -> tuple[Row, ...]:
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
        link = Link(text, division_selection(division, direction, device), (start, end), source)
        rows.append(row("Computed", link))
        longest = int(spent.argmax())
        rows.append(
            row("Longest", f"{quantities.duration(spent[longest])} on ",
                Link(f"device {longest}", device_selection(longest)))
        )  # fmt: skip
    waits = find_waits(trace, MAX_WAITS, device=device, division=(division, is_backward))
    rows += [wait_row(wait, source, is_own=False) for wait in waits]
    return tuple(rows) or (row("", "The trace has no event of it."),)
