"""Judge a plan file from its tables alone: inconsistencies, busy ports, kernels in waves.

An outside reviewer's script, shortened; it shares no code with the planner and needs only numpy and
pyarrow. `seconds` are no prediction: for each direction, the longest that any device computes, or
sends or receives through its network port or its port inside the node, as if all of these
overlapped. A launch's thread blocks, one for each `TILE` rows of a segment and each head, go to the
multiprocessor that is free first, longest first. `MACHINES` are data sheets; kernels reach
`EFFICIENCY` of them.

    python planner/benchmarks/referee.py PLAN...
"""

import heapq
import io
import json
import sys
import zipfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
TILE = 128
EFFICIENCY = 0.6
BACKWARD = 2.5  # times the FLOPs of forward
_FULL = 6  # thread blocks per multiprocessor from which on only the sum and the longest count


class Machine(NamedTuple):
    """A device: multiprocessors, FLOP/s, bytes/s of its network port and of its port inside."""

    sms: int
    flops: float
    network: float
    inside: float


MACHINES = {
    "a100": Machine(108, 312e12, 6.25e9, 300e9),
    "h100": Machine(132, 989e12, 50e9, 450e9),
}
"""p4de with four network ports of 100 Gbit/s for eight devices; DGX H100 with eight of 400."""


class Tables(NamedTuple):
    """Columns of a plan: a value for each block, tile, transfer, attention launch."""

    nodes: int
    devices: int
    heads: int
    head_dim: int
    groups: int
    tokens: Ints
    owner: Ints
    q: Ints
    kv: Ints
    pairs: Ints
    device: Ints
    is_backward: NDArray[np.bool_]
    source: Ints
    target: Ints
    size: Ints
    launches: list[tuple[str, int, Ints]]  # direction, device, tiles


def judge(path: str) -> dict[str, Any]:
    """Return the figures of a plan file (`Any`: numbers, texts, lists and objects of them)."""
    plan = _read(path)
    work = np.bincount(plan.device, plan.pairs, plan.devices)
    owned = np.bincount(plan.owner, plan.tokens, plan.devices)
    row: dict[str, Any] = {
        "errors": _errors(plan),
        "compute": float(work.max() / max(work.mean(), 1e-300)),
        "tokens": float(owned.max() / max(owned.mean(), 1e-300)),
        "nic": max(_busiest(plan, is_backward=b) for b in (False, True)),
    }
    row["seconds"] = {
        name: sum(_seconds(plan, machine, is_backward=b) for b in (False, True))
        for name, machine in MACHINES.items()
    }
    return row


def _errors(plan: Tables) -> list[str]:
    found = []
    if (plan.tokens <= 0).any():
        found.append("blocks without tokens")
    if plan.groups == 1 and len(np.unique(plan.q * len(plan.tokens) + plan.kv)) != len(plan.q):
        found.append("a tile is computed twice")
    for direction in ("forward", "backward"):
        done = [tiles for way, _, tiles in plan.launches if way == direction]
        tiles = np.sort(np.concatenate([np.zeros(0, np.int64), *done]))
        if not np.array_equal(tiles, np.arange(len(plan.q))):
            found.append(f"{direction}: launches do not compute every tile once")
    return found


def _ports(plan: Tables, *, is_backward: bool, crosses: bool) -> Floats:
    """Return the bytes that every device sends, then that it receives."""
    per_node = plan.devices // plan.nodes
    is_far = plan.source // per_node != plan.target // per_node
    chosen = (plan.is_backward == is_backward) & (is_far == crosses)
    ends = (plan.source[chosen], plan.target[chosen])
    return np.concatenate([np.bincount(end, plan.size[chosen], plan.devices) for end in ends])


def _busiest(plan: Tables, *, is_backward: bool) -> float:
    """Return the bytes of the busiest network port over the mean."""
    ports = _ports(plan, is_backward=is_backward, crosses=True)
    return float(ports.max() / ports.mean()) if ports.any() else 0.0


def _seconds(plan: Tables, machine: Machine, *, is_backward: bool) -> float:
    """Return the longest that any device computes, sends or receives in a direction."""
    flops = 4.0 * plan.head_dim * (BACKWARD if is_backward else 1.0)
    rate = machine.flops * EFFICIENCY / machine.sms / flops  # pairs of a head a second
    compute = np.zeros(plan.devices)
    for direction, device, tiles in plan.launches:
        if direction == ("backward" if is_backward else "forward") and len(tiles):
            work = _thread_blocks(plan, tiles, is_backward=is_backward)
            compute[device] += _finish(work, machine.sms) / rate
    far, near = (_ports(plan, is_backward=is_backward, crosses=c).max() for c in (True, False))
    return max(float(compute.max()), float(far) / machine.network, float(near) / machine.inside)


def _thread_blocks(plan: Tables, tiles: Ints, *, is_backward: bool) -> Floats:
    """Return the pairs of each thread block of a launch."""
    rows = (plan.kv if is_backward else plan.q)[tiles]
    unique, inverse = np.unique(rows, return_inverse=True)
    parts = -(-plan.tokens[unique] // TILE)
    each = np.repeat(np.bincount(inverse, plan.pairs[tiles]) / parts, parts)
    return np.tile(each, plan.heads // plan.groups)


def _finish(work: Floats, units: int) -> float:
    """Return when the last of `units` is done, longest work first (list scheduling)."""
    if len(work) >= _FULL * units:
        return float(max(work.sum() / units, work.max()))
    free = [0.0] * units
    for one in np.sort(work)[::-1].tolist():
        heapq.heapreplace(free, free[0] + one)
    return max(free)


def _read(path: str) -> Tables:
    with zipfile.ZipFile(path) as archive:
        meta = json.loads(archive.read("meta.json"))
        blocks, tiles, moves, program = (
            pa.ipc.open_file(io.BytesIO(archive.read(f"{name}.arrow"))).read_all()
            for name in ("blocks", "tiles", "transfers", "instructions")
        )

    def column(table: pa.Table, name: str) -> Ints:
        return table.column(name).to_numpy(zero_copy_only=False).astype(np.int64)

    nodes = int(_find(meta, "nodes"))
    return Tables(
        nodes=nodes,
        devices=nodes * int(_find(meta, "devices_per_node")),
        heads=int(_find(meta, "q_heads")),
        head_dim=int(_find(meta, "head_dim")),
        groups=int(_find(meta, "head_groups") or 1),
        tokens=column(blocks, "end") - column(blocks, "start"),
        owner=column(blocks, "owner"),
        q=column(tiles, "q_block"),
        kv=column(tiles, "kv_block"),
        pairs=column(tiles, "pairs"),
        device=column(tiles, "device"),
        is_backward=column(moves, "is_backward").astype(bool),
        source=column(moves, "source"),
        target=column(moves, "target"),
        size=column(moves, "size_bytes"),
        launches=list(_launches(program)),
    )


def _launches(program: pa.Table) -> Iterator[tuple[str, int, Ints]]:
    names = ("op", "direction", "device", "items")
    columns = (program.column(name).to_pylist() for name in names)
    for op, direction, device, items in zip(*columns, strict=True):
        if op == "attention":
            yield direction, device, np.array(items, np.int64)


def _find(meta: object, name: str) -> Any:
    """Look a key up anywhere in nested meta data; `Any`: what JSON holds."""
    stack = [meta]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            if name in value:
                return value[name]
            stack.extend(value.values())
    return None


if __name__ == "__main__":
    for plan_path in sys.argv[1:]:
        print(json.dumps({"plan": plan_path} | judge(plan_path)))
