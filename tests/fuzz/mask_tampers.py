"""Changes of masks, sequences and borders in plan files, and of their `meta.json`."""

import json
import random
from typing import Any

import numpy as np
import second_validator
from plan_file_rows import File, Tamper, Undone, pick


def mask_and_pairs(file: File, rng: random.Random) -> None:
    """Change slabs or forms, and pairs and kinds of all tiles with them."""
    table = pick(rng, [name for name in ("slabs", "forms") if file.tables.get(name)])
    row = pick(rng, file.tables[table])
    if table == "slabs":
        column = rng.choice([c for c in row if c != "q_start"])
        row[column] = max(0, row[column] + rng.choice((-1, 1)))
    else:
        row["items"][rng.randrange(len(row["items"]))] += rng.choice((-1, 1))
    recount(file)


def recount(file: File) -> None:
    """Count the pairs of every tile anew under the mask that the file holds."""
    mask = dense_of(file)
    blocks = file.tables["blocks"]
    for tile in file.tables["tiles"]:
        q, kv = blocks[tile["q_block"]], blocks[tile["kv_block"]]
        cells = mask[q["start"] : q["end"], kv["start"] : kv["end"]]
        tile["pairs"], tile["kind"] = int(cells.sum()), 2 if cells.all() else 1


def dense_of(file: File) -> np.ndarray:
    plan = second_validator.Plan.__new__(second_validator.Plan)
    for name, rows in file.tables.items():
        named = second_validator.namedtuple(name, rows[0]) if rows else tuple
        setattr(plan, name, [named(**row) for row in rows])
    plan.forms = getattr(plan, "forms", [])
    try:
        return plan.dense_mask()
    except (ValueError, IndexError, KeyError, StopIteration):
        raise Undone from None


def cut_slab(file: File, rng: random.Random) -> None:
    """Split a slab in two: nothing may change."""
    slabs = file.tables["slabs"]
    row = pick(rng, [r for r in slabs if r["q_end"] - r["q_start"] > 1])
    at = rng.randrange(1, row["q_end"] - row["q_start"])
    other = {**row, "q_start": row["q_start"] + at}
    other["kv_start"] += at * row["start_slope"]
    other["kv_end"] += at * row["end_slope"]
    row["q_end"] = other["q_start"]
    slabs.insert(slabs.index(row) + 1, other)
    rng.shuffle(slabs)


def see_another_sequence(file: File, rng: random.Random) -> None:
    """Let a query see a key of another sequence."""
    rows = file.tables["sequences"]
    if len(rows) < 2:
        raise Undone
    border = rows[0]["end"]
    row = pick(rng, file.tables["slabs"])
    if row["q_start"] < border:
        row["kv_end"] = border + rng.randrange(1, 4)
    else:
        row["kv_start"] = border - rng.randrange(1, 4)


def join_sequences(file: File, rng: random.Random) -> None:
    """Call two sequences one, or put the border elsewhere, or add an empty one."""
    rows = file.tables["sequences"]
    match rng.randrange(3):
        case 0 if len(rows) > 1:
            rows[0]["end"] = rows.pop()["end"]
            for block in file.tables["blocks"]:
                block["sequence"] = 0
        case 1 if len(rows) > 1:
            rows[0]["end"] = rows[1]["start"] = rows[0]["end"] + rng.choice((-1, 1, 6))
        case _:
            rows.append({"sequence": len(rows), "start": rows[-1]["end"], "end": rows[-1]["end"]})
            if rng.random() < 0.5:
                samples = file.meta["provenance"]["samples"]
                empty = {
                    k: [] if isinstance(v, list) else 0 for k, v in json.loads(samples[0]).items()
                }
                samples.append(json.dumps(empty))


def move_border(file: File, rng: random.Random) -> None:
    """Move the border of two blocks, with or without a new count of pairs and bytes."""
    blocks = file.tables["blocks"]
    at = rng.randrange(1, len(blocks))
    border = blocks[at]["start"] + rng.choice((-2, -1, 1, 2))
    blocks[at]["start"] = blocks[at - 1]["end"] = border
    if rng.random() < 0.7:
        recount(file)
        for row in file.tables["transfers"]:
            old = base_tokens(file, row["block"])
            block = blocks[row["block"]]
            row["size_bytes"] = row["size_bytes"] // old * (block["end"] - block["start"])


def base_tokens(file: File, block: int) -> int:
    row = file.meta["blocks"][block]
    return int(row[1] - row[0])


def set_meta(*keys: str) -> Tamper:
    """Set another number or text in `meta.json`."""

    def tamper(file: File, rng: random.Random) -> None:
        place = file.meta
        for key in keys[:-1]:
            place = place[key]
        value = place.get(keys[-1])
        choices: tuple[Any, ...] = (None, -1, 0, 1, 2, 3, 4, 8, "", "x", [], {}, True, 10**9, 1.5)
        if isinstance(value, int):
            choices = (*choices, value * 2, value + 1, value - 1)
        place[keys[-1]] = rng.choice(choices)

    return tamper


MASKS = ("causal", "m", "m and q - k < 5", "m or q == k", "full", "sliding(100) and m", "q == k")


def provenance(file: File, rng: random.Random) -> None:
    """Name another mask, sample or text than the one that the plan was made from."""
    source = file.meta["provenance"]
    match rng.randrange(4):
        case 0:
            source["mask"] = rng.choice(MASKS)
        case 1:
            sample = json.loads(source["samples"][0])
            key = pick(rng, sorted(sample))
            if isinstance(sample[key], list):
                sample[key] = sample[key][::-1]
            else:
                sample[key] += rng.choice((-1, 1))
            source["samples"][0] = json.dumps(sample)
        case 2:
            swaps = (("causal", "full"), ("== 0", "== 1"), ("12", "13"), ("!= 1", "!= 2"))
            swaps += (("question or", "answer or"), ("and", "or"))
            source["spec"] = source["spec"].replace(*rng.choice(swaps))
        case 3:
            source["origin"] = "elsewhere"


def merge_events(file: File, rng: random.Random) -> None:
    """Cut the events into traces of other sizes."""
    total = len(file.tables["events"])
    at = rng.randrange(-1, total + 2)
    source = file.meta["traces"][0]["source"]
    file.meta["traces"] = [{"source": source, "events": n} for n in (at, total - at)]
