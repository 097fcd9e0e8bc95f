"""Divisions: local tiles first, the others in the order in which their inputs arrive."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from dcp_dsl.arrays import Bools, Indices, Ints, Record
from dcp_planner.jit import IndexTable, IntTable, compiled
from dcp_planner.model.config import Routing
from dcp_planner.model.placement import Placement
from dcp_planner.model.workload import Direction, Workload
from dcp_planner.sorting import order_by


@dataclass(frozen=True, slots=True)
class Manner:
    """Routes of the blocks of one direction, and the time they stay where they arrive.

    Attributes:
        routing: which way blocks travel.
        is_frugal: whether buffers are given back as early as possible, at the price of waits.
        idle: most divisions without a use that a block stays; after more it leaves and is fetched
            again. ``None``: it stays until its last use.
        is_striped: whether blocks routed by node cross through the ports of all devices; only of
            blocks that stay.
    """

    routing: Routing = "direct"
    is_frugal: bool = False
    idle: int | None = None
    is_striped: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Schedule(Record):
    """The division of every tile, forward and backward.

    Attributes:
        division: int32 ``[W]``, in forward; 0 needs nothing from another device.
        backward_division: int32 ``[W]``.
        manners: of forward and of backward.
    """

    division: Annotated[Indices, "W"]
    backward_division: Annotated[Indices, "W"]
    manners: tuple[Manner, Manner] = (Manner(), Manner())

    def of(self, direction: Direction) -> Indices:
        """Return the division of every tile in one direction."""
        return self.division if direction == "forward" else self.backward_division

    @property
    def is_streamed(self) -> bool:
        """True if a direction gives buffers back early."""
        return any(manner.is_frugal for manner in self.manners)


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Times at which tiles could start, from a simulation of another cut of the same placement.

    Attributes:
        at_ns: int64 ``[W]``, when the last remote input of each tile is there.
        weight: int64 ``[W]``, at least 1, what divisions are to have equal amounts of; ``None`` for
            received bytes.
    """

    at_ns: Ints
    weight: Ints | None = None


@dataclass(frozen=True, slots=True)
class Streaming:
    """An order of tiles in which blocks are needed for a short time only.

    Attributes:
        by: what tiles that follow one another share: the block they wait for, or their keys.
        in_ring: whether blocks come in the order in which their owners follow the device.
        even: what divisions have equal amounts of.
    """

    by: Literal["awaited", "keys"]
    in_ring: bool
    even: Literal["bytes", "pairs"]


def cut_streamed(
    workload: Workload, placement: Placement, direction: Direction, parts: int, way: Streaming
) -> Indices:
    """Cut each device's tiles into divisions in the order of `way`; O(W log W).

    Like `cut_divisions`, for divisions whose blocks are given back early.
    """
    owner, (needs, remote, device) = placement.device_of_data, _remote(workload, placement)
    is_row = needs[0, remote] & (way.by == "awaited")
    first, second = _blocks(workload, remote, is_row)
    devices = int(max(owner.max(initial=0), placement.device_of_compute.max(initial=0))) + 1
    turn = (owner[first] - device) % devices if way.in_ring else np.zeros_like(device)
    order = order_by(device, is_row, turn, first, second)
    amount = None if way.even == "bytes" else np.maximum(1, workload.compute_pairs)
    return _cut(workload, direction, needs, (remote[order], device[order]), amount, parts)


def cut_divisions(
    workload: Workload,
    placement: Placement,
    direction: Direction,
    parts: int,
    arrivals: Arrivals | None = None,
) -> Indices:
    """Cut each device's tiles into divisions: local ones, and at most `parts` more; O(W log W).

    Division 0 is everything local. The others split what a device receives into equal bytes, in the
    order of `arrivals`. If those are unknown: first tiles that wait for keys only, then tiles of
    remote queries, whose inputs are larger and whose results have to travel home. Backward has its
    own bytes, so it is cut on its own.

    Args:
        workload: what is computed.
        placement: where.
        direction: of the pass.
        parts: most divisions of what is not local.
        arrivals: the order in time, if it is known.

    Returns:
        int32 ``[W]``, division of each tile.

    Source: divisions as in DCP (SOSP'25), Sec. 4.3, without its greedy.
    """
    needs, remote, device = _remote(workload, placement)
    is_row = needs[0, remote]
    # Tiles that share the block they wait for stand together, so that it is waited for once.
    first, second = _blocks(workload, remote, is_row)
    in_time = is_row if arrivals is None else arrivals.at_ns[remote]
    order = order_by(device, in_time, first, second)
    amount = None if arrivals is None else arrivals.weight
    return _cut(workload, direction, needs, (remote[order], device[order]), amount, parts)


def _remote(workload: Workload, placement: Placement) -> tuple[Bools, Ints, Ints]:
    """Find what tiles wait for: queries and keys, bool ``[2, W]``; those that do; their devices."""
    owner, device = placement.device_of_data, placement.device_of_compute
    needs = np.stack([owner[workload.compute_q], owner[workload.compute_kv]]) != device
    remote = np.flatnonzero(needs[0] | needs[1])
    return needs, remote, device[remote].astype(np.int64)


def _blocks(workload: Workload, tiles: Ints, is_row: Bools) -> tuple[Indices, Indices]:
    """Return the blocks of tiles: queries first where `is_row`, else keys first."""
    q, kv = workload.compute_q[tiles], workload.compute_kv[tiles]
    return np.where(is_row, q, kv), np.where(is_row, kv, q)


def _cut(
    workload: Workload,
    direction: Direction,
    needs: Bools,
    line: tuple[Ints, Ints],
    amount: Ints | None,
    parts: int,
) -> Indices:
    """Cut the remote tiles into parts of equal amounts; 0 for all others.

    Args:
        workload: of all tiles.
        direction: of the pass.
        needs: bool ``[2, W]``, whether a tile waits for its queries and keys.
        line: the remote tiles in the order of the cut, device by device, and their devices.
        amount: int64 ``[W]``; ``None`` for the bytes that each tile is the first to need there.
        parts: of each device.
    """
    if amount is None:
        amount = np.zeros(workload.num_tiles, np.int64)
        row = "q_bytes" if direction == "forward" else "q_backward_bytes"
        sizes = np.outer((getattr(workload.shape, row), workload.shape.kv_bytes),
                         workload.block_tokens)  # fmt: skip
        blocks = np.stack([workload.compute_q, workload.compute_kv])
        _add_received(*line, needs, blocks, sizes, np.full_like(sizes, -1), amount)
    division = np.zeros(workload.num_tiles, np.int32)
    _number_parts(*line, amount, parts, division)
    return division


@compiled
def _add_received(
    order: Ints,
    device: Ints,
    needs: Bools,
    blocks: IndexTable,
    sizes: IntTable,
    last: IntTable,
    amount: Ints,
) -> None:
    """Add the bytes of each block to the tile that needs it first on its device.

    `last` is the last device that needed each block, -1 before all.
    """
    for n in range(len(order)):
        for side in range(2):
            block = blocks[side, order[n]]
            if needs[side, order[n]] and last[side, block] != device[n]:
                last[side, block] = device[n]
                amount[order[n]] += sizes[side, block]


@compiled
def _number_parts(order: Ints, device: Ints, amount: Ints, parts: int, division: Indices) -> None:
    """Number the parts 1, 2, ... of each device's tiles so that each has about the same amount.

    A tile is in the part that its middle lies in; one of no amount stays with the tile before it.
    The numbers have no gap: an empty first part would only delay.
    """
    start = 0
    while start < len(order):
        end, total = start, 0.0
        while end < len(order) and device[end] == device[start]:
            total += amount[order[end]]
            end += 1
        before, share, part, number = 0.0, 0.0, -1, 0
        for n in range(start, end):
            brought = amount[order[n]]
            if brought > 0:
                middle = device[n] + (before + brought / 2) / total
                share = max(share, middle - device[n])
            now = min(int(share * parts), parts - 1)
            number += now != part
            part = now
            division[order[n]] = number
            before += brought
        start = end
