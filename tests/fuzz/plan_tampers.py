"""Changes of plan files so that a sentence of docs/dcpplan.md may not hold.

Digests and counts of rows are made anew, so that only the sentence is broken. `tamper_of` makes the
file of a seed; `tamper_fuzz` judges it.
"""

import io
import random

import pyarrow as pa
from mask_tampers import (
    cut_slab,
    join_sequences,
    mask_and_pairs,
    merge_events,
    move_border,
    provenance,
    see_another_sequence,
    set_meta,
)
from plan_file_rows import SPECS, File, Tamper, Undone, base, change, double, drop, swap
from program_tampers import (
    attention_division,
    both_hops,
    cut_launch,
    items_of,
    join_launches,
    launch_division,
    launch_order,
    move,
    move_owner,
    move_tile,
    new_key,
    reroute,
    slots,
)

# Each sentence stands in docs/dcpplan*.md as it is here; `test_campaigns.py` sees to that.
SENTENCES: tuple[tuple[str, tuple[Tamper, ...]], ...] = (
    ("number of head groups, 2 or more; absent for one", (set_meta("head_groups"),)),
    ("rows of every table", (set_meta("tables", "tiles"), set_meta("tables", "events"))),
    ("how the rows of `events` are cut into traces, in order", (merge_events,)),
    ("the tables need `nodes`", (set_meta("cluster", "nodes"), set_meta("cluster", "devices"))),
    (
        "`q_heads`, `kv_heads`",
        tuple(set_meta("shape", k) for k in ("q_heads", "kv_heads", "head_dim", "dtype_bytes")),
    ),
    ("`float32_partials` (absent: false)", (set_meta("shape", "float32_partials"),)),
    (
        "compiles the mask from `provenance`, compares it with the plan's, pair by pair",
        (provenance, provenance),
    ),
    ("equals the next start", (change("sequences", "start", "end", "sequence"),)),
    ("No token sees another sequence", (see_another_sequence, join_sequences)),
    (
        "they tile the batch in order and never cross a sequence",
        (
            change("blocks", "block", "sequence", "start", "end"),
            swap("blocks"),
            drop("blocks"),
            double("blocks"),
            move_border,
        ),
    ),
    (
        "device that holds q, k, v, out and lse of these tokens",
        (change("blocks", "owner"), move_owner),
    ),
    ("sorted by (`q_block`, `kv_block`)", (swap("tiles", is_near=True), swap("tiles"))),
    ("Non-empty tiles of the attention matrix", (drop("tiles"), double("tiles"))),
    ("row of `blocks` whose queries it holds", (change("tiles", "q_block", "kv_block"),)),
    ("1 partial, 2 full", (change("tiles", "kind"),)),
    ("visible (query, key) pairs", (change("tiles", "pairs"),)),
    ("device that computes it, forward and backward", (change("tiles", "device"), move_tile)),
    (
        "the step of forward that computes it",
        (change("tiles", "division", "backward_division"), move_tile, attention_division),
    ),
    (
        "head group, only with `head_groups`",
        (change("tiles", "q_block", "group"), change("transfers", "block", "group")),
    ),
    ("any order means the same", (swap("transfers", is_near=True), swap("transfers"))),
    (
        "2 OUT (with lse; only forward), 3 DQ, 4 DKV (both only backward)",
        (change("transfers", "kind", "is_backward"),),
    ),
    ("another device |", (change("transfers", "source", "target"),)),
    ("of the block's tokens and all heads", (change("transfers", "size_bytes", "block"),)),
    ("0: the data is the source's own", (change("transfers", "hop"), both_hops)),
    (
        "first row that it takes in the target's receive buffer",
        (change("transfers", "slot"), slots),
    ),
    (
        "no two visits of a block at a device have the same division",
        (drop("transfers"), double("transfers"), reroute),
    ),
    ("Results are the same tree\nbackwards", (reroute,)),
    ("first instruction of every device is its only `copy`", (items_of("copy"), move("copy"))),
    ("each is in one such instruction of its device, with its division", (items_of("attention"),)),
    (
        "both ends launch\neach transfer once, in its division",
        (items_of("launch"), launch_division),
    ),
    (
        "both ends launch the transfers from one device to another in the same order",
        (launch_order, move("launch", far=4)),
    ),
    ("A device launches a key once", (new_key, cut_launch, join_launches)),
    (
        "have arrived and left; no wait blocks for ever",
        (move("wait"), move("wait", far=3), move("launch")),
    ),
    ("A tile reads only inputs that the device has waited for", (move("attention"), move("wait"))),
    ("it leaves once it has arrived", (move("launch"), both_hops)),
    ("launched after the last tile that adds to it", (move("launch"), move("attention", far=3))),
    ("that the device has waited for, each once", (items_of("reduction"), move("reduction"))),
    (
        "from the launch of its receive\nuntil the last instruction that reads it",
        (slots, move("launch", far=5)),
    ),
    ("its rows stay taken until the result of that visit has left", (slots, move("wait", far=6))),
    (
        "The program of every device in each direction",
        (
            change("instructions", "direction", "device", "position"),
            drop("instructions"),
            double("instructions"),
            swap("instructions"),
        ),
    ),
    (
        "at least 0 for a launch, and for the wait of the same device",
        (change("instructions", "key"), new_key),
    ),
    (
        "at least 0; -1 for a copy",
        (change("instructions", "division"), change("instructions", "op")),
    ),
    ("empty for a wait", (items_of("launch", "attention", "reduction", "wait"),)),
    (
        "The exact mask, as disjoint slabs",
        (
            change("slabs", "q_start", "q_end", "kv_start", "kv_end", "start_slope", "end_slope"),
            drop("slabs"),
            double("slabs"),
            mask_and_pairs,
            cut_slab,
            swap("slabs"),
        ),
    ),
    (
        "Such sequences have no rows in `slabs`",
        (
            change("forms", "kind", "q_start", "kv_start", "tokens"),
            drop("forms"),
            double("forms"),
            mask_and_pairs,
        ),
    ),
    ("`items` by `kind`", (mask_and_pairs,)),
    (
        "within a trace sorted by (device, lane, start)",
        (swap("events"), change("events", "start_ns", "kind", "source")),
    ),
    (
        "Devices and transfers are those of the plan; divisions, bytes and times",
        (
            change(
                "events",
                "device",
                "peer",
                "transfer",
                "division",
                "size_bytes",
                "ready_ns",
                "end_ns",
            ),
        ),
    ),
)


UNDONE = (Undone, KeyError, IndexError, ValueError, StopIteration, pa.ArrowException, OverflowError)


def tamper_of(seed: int) -> tuple[File, str]:
    """Make the file of one seed, and the sentence it is about."""
    rng = random.Random(f"tamper {seed}")
    while True:
        number = rng.randrange(len(SPECS))
        file, before = base(number), base(number)
        file.meta["blocks"] = [(b["start"], b["end"]) for b in file.tables["blocks"]]
        sentence, tampers = rng.choice(SENTENCES)
        try:
            rng.choice(tampers)(file, rng)
            del file.meta["blocks"]
            if file == before:
                continue
            if all(file.meta[key] == before.meta[key] for key in ("tables", "traces")):
                file.count()
            file.write(io.BytesIO())  # whatever Arrow cannot hold is drawn anew
        except UNDONE:
            continue
        return file, sentence
