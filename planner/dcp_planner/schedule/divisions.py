"""Order the work of a plan: the division of every tile, and the order in which devices act.

Divisions: local tiles first, the others in the order in which their inputs arrive.

Stages: all devices launch, wait, compute and reduce in one order. Every instruction of every device
belongs to a stage; a program is the device's instructions in the order of their stages. A wait
comes after the launch it belongs to on every device, so programs cannot deadlock.
With divisions t, and hops h of inputs and results::

    Copy
    Launch(inputs 1, each h) · Launch(inputs 2, each h) · ...
    for t = 0, 1, ...:
        Wait(arrivals of inputs t, each h)
        Attention(t)
        Launch(results of t, h = 0)
        for h = 1, 2, ...: Wait(partials of t - h) · Reduction · Launch(merged results of t - h)
    Wait(results that came home) · Reduction · Wait(whatever is still leaving)

This order never waits for memory: all inputs are launched at the start, so links are busy as long
as there is something to send. A frugal order launches the inputs of t + 1 just before Attention(t).
One division after results were launched, it waits until they have left and merges those that came
home, so that their buffers can be used again.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np

from dcp_dsl.arrays import Bools, Indices, Ints, Record, order_by
from dcp_planner.jit import IndexTable, IntTable, compiled
from dcp_planner.model.config import MOST_DIVISIONS, Routing
from dcp_planner.model.problem import Direction, Placement, Workload
from dcp_planner.tables.programs import ATTENTION, COPY, LAUNCH, REDUCTION, WAIT


@dataclass(frozen=True, slots=True)
class Manner:
    """Routes of the blocks of one direction, and how long blocks stay where they arrive."""

    routing: Routing = "direct"  # directly, or once per node
    is_frugal: bool = False  # whether buffers are freed as early as possible, at the price of waits
    # most divisions that a block stays without being used; then it leaves and is fetched again.
    # `None`: it stays until its last use.
    idle: int | None = None
    # whether blocks routed by node cross between nodes through the ports of all devices; only with
    # `idle=None`
    is_striped: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Schedule(Record):
    """The division of every tile, forward and backward."""

    division: Annotated[Indices, "W"]  # in forward; 0 needs nothing from another device
    backward_division: Annotated[Indices, "W"]
    manners: tuple[Manner, Manner] = (Manner(), Manner())  # of forward and of backward

    def of(self, direction: Direction) -> Indices:
        """Return the division of every tile in one direction."""
        return self.division if direction == "forward" else self.backward_division

    @property
    def is_streamed(self) -> bool:
        """True if a direction frees buffers early."""
        return any(manner.is_frugal for manner in self.manners)


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Times at which tiles could start, from a simulation of another cut of the same placement."""

    at_ns: Ints  # `[W]`, time at which the last remote input of each tile has arrived
    # int64 `[W]`, at least 1, amount of each tile that divisions share out equally; `None` for
    # received bytes
    weight: Ints | None = None


@dataclass(frozen=True, slots=True)
class Streaming:
    """An order of tiles in which each block is needed for a short time only."""

    # consecutive tiles share the block that they wait for, or their keys
    by: Literal["awaited", "keys"]
    in_ring: bool  # whether blocks come in the order of their owners, counted from the device on
    even: Literal["bytes", "pairs"]  # amount that divisions share out equally


def cut_streamed(
    workload: Workload, placement: Placement, direction: Direction, parts: int, way: Streaming
) -> Indices:
    """Cut each device's tiles into divisions in the order of `way`; O(W log W).

    Like `cut_divisions`, for divisions whose blocks are freed early.
    """
    owner, (needs, remote, device) = placement.device_of_data, _remote(workload, placement)
    is_row = needs[0, remote] & (way.by == "awaited")
    first, second = _blocks(workload, remote, is_row)
    devices = int(max(owner.max(initial=0), placement.device_of_compute.max(initial=0))) + 1
    # Owners by their distance from the device: no two devices begin with blocks of one owner.
    turn = (owner[first] - device) % devices if way.in_ring else np.zeros_like(device)
    order = order_by(device, is_row, turn, first, second)
    # At least 1: a tile of no amount would stay with the one before it.
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

    Division 0 has all local tiles. The others divide the tiles with remote inputs into equal bytes,
    in the order of `arrivals`. Without arrivals, tiles that wait for keys only come first, then
    tiles of remote queries, whose inputs are larger and whose results have to travel home. Backward
    has other bytes, so it is cut separately.
    Source: divisions as in DCP (SOSP'25), Sec. 4.3, without its greedy.
    """
    needs, remote, device = _remote(workload, placement)
    is_row = needs[0, remote]
    # Tiles that share the block they wait for stand together, so that it is waited for once.
    first, second = _blocks(workload, remote, is_row)
    # False sorts before True: tiles that wait for keys come first.
    in_time = is_row if arrivals is None else arrivals.at_ns[remote]
    order = order_by(device, in_time, first, second)
    amount = None if arrivals is None else arrivals.weight
    return _cut(workload, direction, needs, (remote[order], device[order]), amount, parts)


def _remote(workload: Workload, placement: Placement) -> tuple[Bools, Ints, Ints]:
    """Find which tiles wait for queries (row 0) and keys (1), bool ``[2, W]``; rows and devices.

    The rows are those of tiles that wait for anything, ascending; the devices are theirs.
    """
    owner, device = placement.device_of_data, placement.device_of_compute
    needs = np.stack([owner[workload.compute_q], owner[workload.compute_kv]]) != device
    remote = np.flatnonzero(needs[0] | needs[1])
    return needs, remote, device[remote].astype(np.int64)


def _blocks(workload: Workload, tiles: Ints, is_row: Bools) -> tuple[Indices, Indices]:
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

    `line` has these tiles in the order of the cut, device by device, and their devices. `amount`
    ``None`` stands for bytes, each block counted at the first tile that needs it on a device.
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
    return in_order(division, workload) if workload.shape.exact_sums else division


def in_order(division: Indices, workload: Workload) -> Indices:
    """Delay tiles until those that are added before them are computed.

    A query gets its keys from the last to the first, in whatever order their blocks arrive.

    >>> from dcp_dsl import Slabs, block_sparsity
    >>> from dcp_planner import ModelShape
    >>> from dcp_planner.model.problem import build_workload
    >>> causal = Slabs(4, [0], [4], [0], [1], [0], [1])
    >>> tiles = build_workload(block_sparsity([causal], 2, 2), ModelShape())  # (0 0), (1 0), (1 1)
    >>> in_order(np.array([0, 0, 3]), tiles).tolist()
    [0, 3, 3]
    """
    row = workload.compute_q.astype(np.int64)
    order = np.lexsort((-workload.compute_kv, row))
    # A step between rows that is above all divisions keeps one maximum for all of them.
    step = (int(division.max(initial=0)) + 1) * row[order]
    found = np.empty_like(division)
    found[order] = np.maximum.accumulate(division[order] + step) - step
    return found


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
    """Add the bytes of each block to the first tile that needs it on its device.

    `last` is the last device that needed each block, -1 before all.
    """
    # Tiles come device by device, so a block that another device needed last is new on this one.
    for n in range(len(order)):
        for side in range(2):
            block = blocks[side, order[n]]
            if needs[side, order[n]] and last[side, block] != device[n]:
                last[side, block] = device[n]
                amount[order[n]] += sizes[side, block]


@compiled
def _number_parts(order: Ints, device: Ints, amount: Ints, parts: int, division: Indices) -> None:
    """Number the parts 1, 2, ... of each device's tiles so that each has about the same amount.

    A tile is in the part that its middle lies in; a tile of no amount stays with the tile before
    it. Parts without a tile get no number: an empty first division would only delay.
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
                # Adding the device and taking it off rounds the share: digests rest on these bits.
                middle = device[n] + (before + brought / 2) / total
                share = max(share, middle - device[n])
            now = min(int(share * parts), parts - 1)  # rounding may bring a share to 1
            number += now != part
            part = now
            division[order[n]] = number
            before += brought
        start = end


AHEAD = {False: MOST_DIVISIONS, True: 1}
"""How many divisions before its own an input is launched, by `is_frugal`; False: at the start.

Three ahead was up to 30 % slower than all, and saved 2 % of the memory: most of it is queries and
results.
"""
INTO, OUT, HOME = range(3)
"""Ways of transfers: inputs, partial results on their way to a gateway, results that come home."""
TAKE, SEND, MERGE = range(3)
"""Steps of a transfer: its target launches it, its source launches it, its target merges it."""


class Stages:
    """Stages of one direction, numbered in their order, and tables to look stages up.

    Attributes:
        op: uint8 ``[S]``, instruction of each stage.
        division, key: int32 ``[S]``; the key of a wait is the stage that launches its transfers.
        attention: int64 ``[D]``, stage that computes each division.
        at: int64 ``[3, 3, D, H]``, stage of a transfer's step, by way, step, division and hop; -1:
            transfers of this way have no such step.
    """

    def __init__(self, divisions: int, hops: tuple[int, int], *, is_frugal: bool) -> None:
        self._divisions, (self._in_hops, self._out_hops) = divisions, hops
        self._is_frugal = is_frugal
        self._rows: list[tuple[int, int, int]] = [(COPY, -1, -1)]
        self._waited = set[int]()
        self.attention = np.full(divisions, -1, np.int64)
        self.at = np.full((3, 3, divisions, max(hops)), -1, np.int64)
        for division in range(1, min(AHEAD[is_frugal], divisions)):
            self._launch_inputs(division)
        for t in range(divisions + self._out_hops):
            self._add_division(t)
        self._add_end()
        op, division, key = np.array(self._rows, np.int32).T.copy()
        self.op, self.division, self.key = op.astype(np.uint8), division, key

    def _add(self, op: int, division: int, key: int = -1) -> int:
        self._rows.append((op, division, len(self._rows) if op == LAUNCH else key))
        return len(self._rows) - 1

    def _wait(self, launches: Ints) -> None:
        """Wait for launches, each once; -1 and those waited for before are skipped."""
        for launch in launches.ravel().tolist():
            if launch >= 0 and launch not in self._waited:
                self._waited.add(launch)
                self._add(WAIT, self._rows[launch][1], launch)

    def _add_division(self, t: int) -> None:
        if t < self._divisions:
            self._wait(self.at[INTO, TAKE, t])
            if t + AHEAD[self._is_frugal] < self._divisions:
                self._launch_inputs(t + AHEAD[self._is_frugal])
            self.attention[t] = self._add(ATTENTION, t)
            if self._is_frugal:
                self._wait(self.at[INTO, SEND, t])
            self._launch_results(t, 0)
        for hop in range(1, self._out_hops + 1):
            division = t - hop
            if 0 <= division < self._divisions:
                self._merge(division, hop - 1)
                if hop < self._out_hops:
                    self._launch_results(division, hop)

    def _launch_inputs(self, division: int) -> None:
        for hop in range(self._in_hops):
            for end in (TAKE, SEND):
                self.at[INTO, end, division, hop] = self._add(LAUNCH, division)

    def _launch_results(self, division: int, hop: int) -> None:
        # Both ends of a pair of devices launch in the same order: first to gateways, then home.
        for way in (OUT, HOME):
            for end in (TAKE, SEND):
                self.at[way, end, division, hop] = self._add(LAUNCH, division)

    def _merge(self, division: int, hop: int) -> None:
        self._wait(self.at[OUT, TAKE, division, hop])
        self.at[OUT, MERGE, division, hop] = self._add(REDUCTION, division)
        if self._is_frugal:
            for way, end in ((HOME, TAKE), (OUT, SEND), (HOME, SEND)):
                self._wait(self.at[way, end, division, hop])
            self.at[HOME, MERGE, division, hop] = self._add(REDUCTION, division)

    def _add_end(self) -> None:
        if not self._is_frugal:
            self._wait(self.at[HOME, TAKE])
            self.at[HOME, MERGE] = self._add(REDUCTION, self._divisions - 1)
        for way in (INTO, OUT, HOME):
            self._wait(self.at[way, SEND])


# A plan tries over a hundred schedules of a few shapes; making stages is half of tabulating one.
@lru_cache(maxsize=64)
def stages_of(divisions: int, hops: tuple[int, int], *, is_frugal: bool) -> Stages:
    """Return the stages of so many divisions, and hops of inputs and of results, at least 1."""
    return Stages(divisions, hops, is_frugal=is_frugal)
