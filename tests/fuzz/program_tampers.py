"""Changes of the programs of plan files, and of the transfers, tiles and owners they name."""

import random
from itertools import pairwise

from plan_file_rows import DEVICES, File, Row, Tamper, pick, renumber


def programs(file: File) -> dict[tuple[str, int], list[Row]]:
    found: dict[tuple[str, int], list[Row]] = {}
    for row in file.tables["instructions"]:
        found.setdefault((row["direction"], row["device"]), []).append(row)
    return found


def store(file: File, found: dict[tuple[str, int], list[Row]]) -> None:
    file.tables["instructions"] = [row for rows in found.values() for row in rows]
    renumber(file, "instructions")


def move(*ops: str, far: int = 30) -> Tamper:
    """Move an instruction inside its program."""

    def tamper(file: File, rng: random.Random) -> None:
        found = programs(file)
        place = pick(rng, [p for p, rows in found.items() if any(r["op"] in ops for r in rows)])
        rows = found[place]
        row = pick(rng, [row for row in rows if row["op"] in ops])
        at = rows.index(row)
        rows.remove(row)
        rows.insert(min(len(rows), max(0, at + rng.choice((-1, 1)) * rng.randrange(1, far))), row)
        store(file, found)

    return tamper


def items_of(*ops: str) -> Tamper:
    """Change the items of an instruction: leave out, double, add, swap, hand to another."""

    def tamper(file: File, rng: random.Random) -> None:
        rows = [row for row in file.tables["instructions"] if row["op"] in ops]
        row, other = pick(rng, [row for row in rows if row["items"]]), pick(rng, rows)
        items, at = row["items"], rng.randrange(len(row["items"]))
        match rng.randrange(6):
            case 0:
                del items[at]
            case 1:
                items.insert(at, rng.choice(items))
            case 2:
                items[at] += rng.choice((-1, 1, 2, 1000))
            case 3:
                rng.shuffle(items)
            case 4:
                other["items"].append(items.pop(at))
            case 5:
                items[at] = pick(rng, other["items"])

    return tamper


def new_key(file: File, rng: random.Random) -> None:
    """Set another key in a launch and its wait: one of the device, of another, or below 0."""
    found = programs(file)
    rows = found[pick(rng, list(found))]
    key = pick(rng, [row["key"] for row in rows if row["op"] == "launch"])
    keys = [row["key"] for row in file.tables["instructions"]]
    other = rng.choice((*keys, -1, -2, key + 1000, 2**31 - 1))
    chosen = rng.choice((("launch",), ("wait",), ("launch", "wait")))
    for row in rows:
        if row["key"] == key and row["op"] in chosen:
            row["key"] = other


def cut_launch(file: File, rng: random.Random) -> None:
    """Cut a launch in two, each with a wait of its own, perhaps in the other order."""
    found = programs(file)
    place = pick(rng, list(found))
    rows = found[place]
    row = pick(rng, [row for row in rows if row["op"] == "launch" and len(row["items"]) > 1])
    wait = next(r for r in rows if r["op"] == "wait" and r["key"] == row["key"])
    at = rng.randrange(1, len(row["items"]))
    key = max(row["key"] for row in rows) + 1
    second = {**row, "key": key, "items": row["items"][at:]}
    row["items"] = row["items"][:at]
    rows.insert(rows.index(row) + rng.randrange(2), second)
    rows.insert(rows.index(wait) + rng.randrange(2), {**wait, "key": key})
    store(file, found)


def join_launches(file: File, rng: random.Random) -> None:
    """Launch what two neighbouring launches do in one."""
    found = programs(file)
    rows = found[pick(rng, list(found))]
    pairs = [(a, b) for a, b in pairwise(rows) if (a["op"], b["op"]) == ("launch", "launch")]
    a, b = pick(rng, pairs)
    a["items"] += b["items"]
    rows.remove(b)
    rows.remove(next(r for r in rows if r["op"] == "wait" and r["key"] == b["key"]))
    store(file, found)


def launch_order(file: File, rng: random.Random) -> None:
    """Swap two transfers between the same devices, at one end or at both."""
    rows, transfers = file.tables["instructions"], file.tables["transfers"]
    row = pick(rng, [r for r in rows if r["op"] == "launch" and len(r["items"]) > 1])
    a, b = rng.sample(row["items"], 2)
    is_both = rng.random() < 0.5
    same = transfers[a]["source"], transfers[a]["target"]
    chosen = [r for r in rows if r is row or (is_both and r["device"] in same)]
    for other in chosen:
        if other["op"] == "launch" and {a, b} <= {*other["items"]}:
            i, j = other["items"].index(a), other["items"].index(b)
            other["items"][i], other["items"][j] = b, a


def move_tile(file: File, rng: random.Random) -> None:
    """Let another device, or another division, compute a tile: in the table and in programs."""
    at = rng.randrange(len(file.tables["tiles"]))
    tile = file.tables["tiles"][at]
    is_far = rng.random() < 0.6
    for direction, column in (("forward", "division"), ("backward", "backward_division")):
        rows = [
            row
            for row in file.tables["instructions"]
            if row["direction"] == direction and row["op"] == "attention"
        ]
        now = next(row for row in rows if at in row["items"])
        others = [row for row in rows if (row["device"] != now["device"]) == is_far]
        now["items"].remove(at)
        new = pick(rng, others)
        if is_far and direction == "backward":
            new = pick(rng, [row for row in rows if row["device"] == tile["device"]])
        new["items"].append(at)
        tile["device"], tile[column] = new["device"], new["division"]


def move_owner(file: File, rng: random.Random) -> None:
    """Move a block to another device, and copies with it."""
    block = pick(rng, file.tables["blocks"])
    old, block["owner"] = block["owner"], rng.randrange(DEVICES)
    for row in file.tables["instructions"]:
        if row["op"] == "copy" and row["device"] == old:
            row["items"].remove(block["block"])
        if row["op"] == "copy" and row["device"] == block["owner"]:
            row["items"] = sorted([*row["items"], block["block"]])


def reroute(file: File, rng: random.Random) -> None:
    """Let a transfer come from, or go to, another device, and launch it there."""
    transfer = pick(rng, file.tables["transfers"])
    end = rng.choice(("source", "target"))
    old, new = transfer[end], rng.randrange(DEVICES)
    transfer[end] = new
    transfer["hop"] = rng.choice((transfer["hop"], 0, 1, 2))
    direction = "backward" if transfer["is_backward"] else "forward"
    rows = [r for r in file.tables["instructions"] if r["direction"] == direction]
    for row in rows:
        if row["op"] == "launch" and row["device"] == old and transfer["transfer"] in row["items"]:
            row["items"].remove(transfer["transfer"])
    fits = [r for r in rows if (r["op"], r["device"]) == ("launch", new)]
    fits = [r for r in fits if r["division"] == transfer["division"]]
    pick(rng, fits)["items"].append(transfer["transfer"])
    if transfer["kind"] > 1 and end == "target":
        for row in rows:
            if row["op"] == "reduction" and transfer["transfer"] in row["items"]:
                row["items"].remove(transfer["transfer"])
        fits = [r for r in rows if (r["op"], r["device"]) == ("reduction", new)]
        pick(rng, fits)["items"].append(transfer["transfer"])


def slots(file: File, rng: random.Random) -> None:
    """Let a transfer take rows of another one in the same buffer."""
    row = pick(rng, file.tables["transfers"])
    same = [r for r in file.tables["transfers"] if r["target"] == row["target"]]
    row["slot"] = max(0, pick(rng, same)["slot"] + rng.choice((0, 0, 0, 1, -1, 5)))


def both_hops(file: File, rng: random.Random) -> None:
    """Shift the hops of all transfers of a block."""
    row = pick(rng, file.tables["transfers"])
    by = rng.choice((1, 2))
    for other in file.tables["transfers"]:
        if (other["block"], other["kind"]) == (row["block"], row["kind"]) and other["hop"]:
            other["hop"] += by


def launch_division(file: File, rng: random.Random) -> None:
    """Put a whole launch, its transfers and waits, into another division."""
    found = programs(file)
    rows = found[pick(rng, list(found))]
    row = pick(rng, [r for r in rows if r["op"] == "launch"])
    new = rng.randrange(0, 5)
    moved = {*row["items"]}
    for item in moved:
        file.tables["transfers"][item]["division"] = new
    for other in file.tables["instructions"]:
        is_same = (other["op"], other["direction"]) == ("launch", row["direction"])
        if is_same and {*other["items"]} & moved:
            other["division"] = new


def attention_division(file: File, rng: random.Random) -> None:
    """Put the tiles of an attention into another division, in both tables."""
    row = pick(rng, [r for r in file.tables["instructions"] if r["op"] == "attention"])
    row["division"] = rng.randrange(0, 5)
    column = "division" if row["direction"] == "forward" else "backward_division"
    for item in row["items"]:
        file.tables["tiles"][item][column] = row["division"]
