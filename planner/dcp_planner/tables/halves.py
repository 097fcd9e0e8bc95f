"""The backward of a reproducible plan: every tile in two halves, each computed by an owner.

Sums depend on their order, so a reproducible plan sends none. The owner of the queries computes
dq of a tile, the owner of its keys dk and dv: inputs travel, results stay where they are made. A
device adds the keys of a query from the last to the first, and the queries of a key from the first
to the last, whatever the division in which their blocks arrive.

In the programs of backward, item t is the half of tile t that adds to dq, and item W + t the half
that adds to dk and dv, for W tiles.
"""

from dataclasses import dataclass, replace

import numpy as np

from dcp_dsl.arrays import Indices, Ints
from dcp_planner.model.config import GRID as GRID  # for the runtime, which cuts tiles on it, too
from dcp_planner.model.cost_model import KernelWork
from dcp_planner.model.problem import Direction, Placement, Workload
from dcp_planner.tables.plan import ComputeBlocks


def backward_halves(tiles: ComputeBlocks, owner: Indices) -> ComputeBlocks:
    """List what backward computes, as tiles: twice W halves in a reproducible plan.

    Args:
        tiles: of a plan.
        owner: int32 ``[D]``, the device of every block.
    """
    if tiles.key_division is None:
        return tiles
    return ComputeBlocks(
        np.tile(tiles.q_block, 2),
        np.tile(tiles.kv_block, 2),
        np.tile(tiles.kind, 2),
        np.tile(tiles.pairs, 2),
        np.append(tiles.device, owner[tiles.kv_block]),
        np.tile(tiles.division, 2),
        np.append(tiles.backward_division, tiles.key_division),
    )


def halved(workload: Workload, owner: Indices) -> tuple[Workload, Placement]:
    """Return the halves of backward as a workload of twice as many tiles, and where they are."""
    q, kv = workload.compute_q, workload.compute_kv
    twice = replace(
        workload,
        compute_q=np.tile(q, 2),
        compute_kv=np.tile(kv, 2),
        compute_kind=np.tile(workload.compute_kind, 2),
        compute_pairs=np.tile(workload.compute_pairs, 2),
    )
    return twice, Placement(owner, np.append(owner[q], owner[kv]))


def in_order(division: Indices, workload: Workload, direction: Direction) -> Indices:
    """Delay tiles until those that are added before them are computed.

    Args:
        division: int32 ``[W]``, or ``[2W]`` of the halves of backward.
        workload: of these tiles or halves.
        direction: forward or backward.

    >>> from dcp_dsl import Slabs, block_sparsity
    >>> from dcp_planner import ModelShape
    >>> from dcp_planner.model.problem import build_workload
    >>> causal = Slabs(4, [0], [4], [0], [1], [0], [1])
    >>> tiles = build_workload(block_sparsity([causal], 2, 2), ModelShape())  # (0 0), (1 0), (1 1)
    >>> in_order(np.array([0, 0, 3]), tiles, "forward").tolist()
    [0, 3, 3]
    """
    found, size = division.copy(), len(division)
    half = size // 2 if direction == "backward" else size
    rows, keys = np.arange(half), np.arange(half, size)
    _delay(found, rows, workload.compute_q, -workload.compute_kv)
    _delay(found, keys, workload.compute_kv, workload.compute_q)
    return found


def _delay(division: Indices, chosen: Ints, chain: Indices, place: Indices) -> None:
    """Let divisions of chosen tiles never fall along their chains, in the order of `place`."""
    chosen = chosen[np.lexsort((place[chosen], chain[chosen]))]
    # A step between chains that is above all divisions keeps one maximum for all of them.
    step = (np.int64(division.max(initial=0)) + 1) * chain[chosen].astype(np.int64)
    division[chosen] = np.maximum.accumulate(division[chosen] + step) - step


@dataclass(frozen=True, slots=True, eq=False)
class HalvesWork(KernelWork):
    """Prices of the halves of backward: each runs one of the two kernels."""

    @classmethod
    def of_halves(cls, work: KernelWork) -> "HalvesWork":
        """Take the prices of all halves, each counted as a whole tile."""
        return cls(work.seconds, work.kernels)

    def launch_seconds(self, rows: Ints, item_ptr: Ints, items: Indices) -> np.ndarray:
        """Compute the seconds of launches, as `KernelWork.launch_seconds`."""
        total, half = np.zeros(len(rows)), len(self.seconds) // 2
        for kernel, is_mine in zip(self.kernels, (items < half, items >= half), strict=True):
            before = np.append(0, np.cumsum(is_mine))[item_ptr]
            alone = KernelWork(self.seconds, (kernel,))
            total += alone.launch_seconds(rows, before, items[is_mine])
        return total
