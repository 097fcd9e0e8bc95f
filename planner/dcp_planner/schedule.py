"""When each tile is computed: local tiles first, the rest as its inputs arrive."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import readonly
from dcp_planner.config import Routing
from dcp_planner.placement import Placement
from dcp_planner.plan import Direction
from dcp_planner.workload import Workload


@dataclass(frozen=True, slots=True, eq=False)
class Division:
    """The tiles that all devices compute between two waits.

    Attributes:
        direction: of the pass.
        index: 0 for local tiles.
        tiles: int64 ``[*]``, rows of the workload, ascending.
    """

    direction: Direction
    index: int
    tiles: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """The division of every tile, forward and backward.

    Attributes:
        division: int32 ``[W]``, in forward; 0 needs nothing from another device.
        backward_division: int32 ``[W]``.
        routing: which way blocks travel.
        is_frugal: whether buffers are given back as early as possible, at the price of waits.
    """

    division: NDArray[np.int32]
    backward_division: NDArray[np.int32]
    routing: Routing = "direct"
    is_frugal: bool = False

    def __post_init__(self) -> None:
        for name in ("division", "backward_division"):
            value = readonly(f"Schedule.{name}", getattr(self, name), np.int32, (None,))
            object.__setattr__(self, name, value)

    @property
    def num_divisions(self) -> int:
        """Divisions in use, over both directions; at least 1."""
        return 1 + int(max(self.division.max(initial=0), self.backward_division.max(initial=0)))

    def of(self, direction: Direction) -> NDArray[np.int32]:
        """Give the division of every tile in one direction."""
        return self.division if direction == "forward" else self.backward_division

    def divisions(self, direction: Direction) -> tuple[Division, ...]:
        """Give the divisions of one direction in order."""
        chosen = self.of(direction)
        return tuple(
            Division(direction, index, np.flatnonzero(chosen == index))
            for index in range(self.num_divisions)
        )


def cut_divisions(
    workload: Workload,
    placement: Placement,
    direction: Direction,
    parts: int,
    devices_per_node: int | None = None,
) -> NDArray[np.int32]:
    """Cut each device's tiles into divisions: local ones, and at most `parts` more; O(W log W).

    Division 0 is everything local. The others split what a device receives into equal bytes: first
    tiles that wait for keys only, then tiles of remote queries, whose inputs are larger and whose
    results have to travel home. Backward has its own bytes, so it is cut on its own.

    Where heads are spread over a node, nearly every tile waits for something: then the nodes count.
    What comes from inside is computed with first, and only bytes from other nodes are levelled.

    Args:
        workload: what is computed.
        placement: where.
        direction: of the pass.
        parts: most divisions of what is not local.
        devices_per_node: if nodes count.

    Returns:
        int32 ``[W]``, division of each tile.

    Source: divisions as in DCP (SOSP'25), Sec. 4.3, without its greedy.
    """
    shape = workload.shape
    q_bytes = shape.q_bytes if direction == "forward" else shape.q_backward_bytes
    device, owner = placement.device_of_compute, placement.device_of_data
    sizes = q_bytes, shape.kv_bytes
    sides = workload.compute_q, workload.compute_kv
    remote = tuple(owner[block] != device for block in sides)
    if devices_per_node is None or parts == 1:
        return _cut(workload, device, remote, sizes, parts)
    node, home = device // devices_per_node, owner // devices_per_node
    far = tuple(home[block] != node for block in sides)
    division = _cut(workload, device, far, sizes, parts - 1)
    is_near = (division == 0) & (remote[0] | remote[1])
    return np.where(is_near, 1, division + (division > 0)).astype(np.int32)


def _cut(
    workload: Workload,
    device: NDArray[np.int32],
    needs: tuple[NDArray[np.bool_], ...],
    bytes_per_token: tuple[int, int],
    parts: int,
) -> NDArray[np.int32]:
    """Cut the tiles that wait for their queries or keys, in `needs`; 0 for all others."""
    q, kv = workload.compute_q, workload.compute_kv
    needs_q, needs_kv = needs
    division = np.zeros(workload.num_tiles, np.int32)
    remote = np.flatnonzero(needs_q | needs_kv)
    if remote.size == 0:
        return division
    # Tiles that share the block they wait for stand together, so that it is waited for once.
    first, second = np.where(needs_q, q, kv), np.where(needs_q, kv, q)
    order = remote[np.lexsort((second[remote], first[remote], needs_q[remote], device[remote]))]
    runs = device[order].astype(np.int64)
    brought = np.zeros(len(order), np.int64)
    for block, needed, size in zip((q, kv), needs, bytes_per_token, strict=True):
        chosen = np.flatnonzero(needed[order])
        blocks = block[order[chosen]]
        _, arrivals = np.unique(runs[chosen] * workload.num_blocks + blocks, return_index=True)
        brought[chosen[arrivals]] += workload.block_tokens[blocks[arrivals]] * size
    division[order] = 1 + _equal_parts(runs, brought, parts)
    return division


def _equal_parts(
    device: NDArray[np.int64], brought: NDArray[np.int64], parts: int
) -> NDArray[np.int64]:
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
    steps[is_first] = False  # numbers start at 0: an empty first part would only delay
    dense = np.cumsum(steps)
    return dense - np.maximum.accumulate(np.where(is_first, dense, 0))
