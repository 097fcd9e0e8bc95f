"""Details of a sequence of the batch, and sequences by the names of their rows."""

import numpy as np

from dcp_dashboard.facts import quantities
from dcp_dashboard.facts.text import (
    DetailLink,
    Details,
    Section,
    check_index,
    device_link,
    list_row,
    row,
    selection,
)
from dcp_dashboard.library.folder import DashboardError
from dcp_dashboard.library.plans import LoadedPlan
from dcp_dashboard.library.summary import device_pairs
from dcp_dsl.arrays import Bools, Floats
from dcp_dsl.forms import BlockKind
from dcp_planner import Plan

KINDS = {"full": BlockKind.FULL, "partial": BlockKind.PARTIAL}
MAX_DEVICES, MAX_FOUND = 12, 50
MAX_ROW_TEXT = 200


def find_sequences(loaded: LoadedPlan, text: str) -> Details:
    """Collect the details of the sequence whose row has a name, or links to all that have it.

    Whole names, or those of rows without their id, go before parts of names; case does not matter.

    Raises:
        DashboardError: if no name has the text in it.
    """
    asked, names = text.strip().casefold(), [n.casefold() for n in loaded.plan.sequence_names]
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
    """Collect length, row, blocks with owners, work and bytes of a sequence; O(D + W + X).

    Raises:
        DashboardError: if there is no such sequence.
    """
    plan, q = loaded.plan, quantities
    check_index(loaded, "a sequence", sequence, len(plan.cu_seqlens) - 1)
    begin, end = (int(token) for token in plan.cu_seqlens[sequence : sequence + 2])
    mine = plan.blocks.sequence == sequence
    tiles = mine[plan.tiles.q_block]
    pairs = device_pairs(plan, tiles)
    kinds = count_kinds(plan, mine)
    moved = int(plan.transfers.size_bytes[mine[plan.transfers.block]].sum())
    share = pairs.sum() / max(1.0, float(loaded.totals.pairs.sum()))
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
        row("Moves", f"{q.size(moved)} for its blocks"),
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


def count_kinds(plan: Plan, blocks: Bools) -> dict[str, int]:
    """Count the full, partial and empty tiles of whole sequences by their blocks, bool ``[D]``."""
    found = plan.tiles.kind[blocks[plan.tiles.q_block]]
    kinds = {name: int((found == kind).sum()) for name, kind in KINDS.items()}
    pairs = int((np.bincount(plan.blocks.sequence[blocks]) ** 2).sum())
    kinds["empty"] = pairs * plan.head_groups - len(found)
    return kinds


def _devices(amounts: Floats, unit: str) -> list[DetailLink]:
    """Build a link to every device with an amount, the largest first."""
    order = np.argsort(-amounts, kind="stable")
    return [
        device_link(device, f"device {device} ({quantities.count(amounts[device])} {unit})")
        for device in order[amounts[order] > 0].tolist()
    ]
