"""Divisions: local tiles first, the others in the order in which their inputs arrive."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from dcp_dsl.arrays import Bools, Indices, Ints, Record
from dcp_planner.model.config import Routing
from dcp_planner.model.placement import Placement
from dcp_planner.model.workload import Direction, Workload
from dcp_planner.sorting import order_by


@dataclass(frozen=True, slots=True)
class Manner:
    """How the blocks of one direction travel, and how long they stay where they arrive.

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
    device, owner = placement.device_of_compute, placement.device_of_data
    q, kv = workload.compute_q, workload.compute_kv
    needs = owner[q] != device, owner[kv] != device
    division = np.zeros(workload.num_tiles, np.int32)
    remote = np.flatnonzero(needs[0] | needs[1])
    if remote.size == 0:
        return division
    is_row = needs[0] if way.by == "awaited" else np.zeros(len(device), np.bool_)
    first, second = np.where(is_row, q, kv), np.where(is_row, kv, q)
    devices = int(max(owner.max(), device.max())) + 1
    turn = (owner[first] - device) % devices if way.in_ring else np.zeros(len(device), np.int32)
    keys = (device, is_row, turn, first, second)
    order = remote[order_by(*(key[remote] for key in keys))]
    runs = device[order].astype(np.int64)
    amount = np.maximum(1, workload.compute_pairs[order])
    if way.even == "bytes":
        amount = _received_bytes(workload, order, runs, needs, _sizes(workload, direction))
    division[order] = 1 + _equal_parts(runs, amount, parts)
    return division


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
    device, owner = placement.device_of_compute, placement.device_of_data
    sides = workload.compute_q, workload.compute_kv
    remote = owner[sides[0]] != device, owner[sides[1]] != device
    return _cut(workload, device, remote, _sizes(workload, direction), parts, arrivals)


def _sizes(workload: Workload, direction: Direction) -> tuple[int, int]:
    """Return the bytes of a token of queries and of keys."""
    shape = workload.shape
    return shape.q_bytes if direction == "forward" else shape.q_backward_bytes, shape.kv_bytes


def _cut(
    workload: Workload,
    device: Indices,
    needs: tuple[Bools, Bools],
    bytes_per_token: tuple[int, int],
    parts: int,
    arrivals: Arrivals | None,
) -> Indices:
    """Cut the tiles that wait for their queries or keys, in `needs`; 0 for all others."""
    division = np.zeros(workload.num_tiles, np.int32)
    remote = np.flatnonzero(needs[0] | needs[1])
    if remote.size == 0:
        return division
    order = remote[_order(workload, device, needs[0], remote, arrivals)]
    runs = device[order].astype(np.int64)
    if arrivals is not None and arrivals.weight is not None:
        brought = arrivals.weight[order]
    else:
        brought = _received_bytes(workload, order, runs, needs, bytes_per_token)
    division[order] = 1 + _equal_parts(runs, brought, parts)
    return division


def _order(
    workload: Workload, device: Indices, needs_q: Bools, remote: Ints, arrivals: Arrivals | None
) -> Ints:
    """Return the order of the remote tiles by device and, there, in time.

    Tiles that share the block they wait for stand together, so that it is waited for once.
    """
    q, kv, is_row = workload.compute_q[remote], workload.compute_kv[remote], needs_q[remote]
    first, second = np.where(is_row, q, kv), np.where(is_row, kv, q)
    in_time = is_row if arrivals is None else arrivals.at_ns[remote]
    return order_by(device[remote], in_time, first, second)


def _received_bytes(
    workload: Workload,
    order: Ints,
    runs: Ints,
    needs: tuple[Bools, Bools],
    bytes_per_token: tuple[int, int],
) -> Ints:
    """Compute the bytes of blocks that the tiles of `order` are first to need on their device."""
    brought = np.zeros(len(order), np.int64)
    sides = workload.compute_q, workload.compute_kv
    for block, needed, size in zip(sides, needs, bytes_per_token, strict=True):
        chosen = np.flatnonzero(needed[order])
        blocks = block[order[chosen]]
        place = runs[chosen] * workload.num_blocks + blocks
        rows = order_by(place)
        first = rows[np.diff(place[rows], prepend=-1) != 0]
        brought[chosen[first]] += workload.block_tokens[blocks[first]] * size
    return brought


def _equal_parts(device: Ints, brought: Ints, parts: int) -> Ints:
    """Number the parts 0, 1, ... of each device's run so that each brings about the same bytes.

    Every device's first element brings something, so no part number leaks from the device before.
    """
    before = np.cumsum(brought) - brought
    is_first = np.diff(device, prepend=-1) != 0
    before -= np.maximum.accumulate(np.where(is_first, before, 0))
    total = np.bincount(device, weights=brought)[device]
    # What brings nothing stays with the last arrival before it.
    middle = np.where(brought > 0, device + (before + brought / 2) / total, 0.0)
    share = np.maximum.accumulate(middle) - device
    part = np.minimum((share * parts).astype(np.int64), parts - 1)
    steps = np.diff(part, prepend=0) != 0
    dense = np.cumsum(steps)  # numbers start at 0: an empty first part would only delay
    return dense - np.maximum.accumulate(np.where(is_first, dense, 0))
