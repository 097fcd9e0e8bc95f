"""The plan as it could be: the same placement, scheduled otherwise, or the same batch, cut anew.

All of it follows from the tables of a plan, without the text of its mask.
"""

from dataclasses import dataclass, replace

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_dsl.forms import BlockKind
from dcp_planner.model.config import PlanConfig
from dcp_planner.model.cuts import count_pairs
from dcp_planner.model.placement import Placement
from dcp_planner.model.workload import DIRECTIONS, Direction, Workload
from dcp_planner.schedule.divisions import Manner, Schedule
from dcp_planner.schedule.emission import assemble
from dcp_planner.schedule.routing import find_needs
from dcp_planner.simulation.schedules import divide, make_schedule
from dcp_planner.sorting import order_by
from dcp_planner.tables.head_groups import expand_head_groups
from dcp_planner.tables.plan import Plan, TransferKind


@dataclass(frozen=True, slots=True, eq=False)
class PlanInputs:
    """The ingredients of a plan; head groups are laid out one behind the other.

    Attributes:
        plan: expanded.
        workload, placement: of it.
        config: the routing that its transfers show; the rest as usual.
    """

    plan: Plan
    workload: Workload
    placement: Placement
    config: PlanConfig

    @classmethod
    def of(cls, plan: Plan) -> "PlanInputs":
        """Read the inputs of a plan from its tables."""
        plan = expand_head_groups(plan)
        placement = Placement(plan.blocks.owner, plan.tiles.device)
        is_routed = bool((plan.transfers.hop > 0).any())
        config = PlanConfig(routing="node" if is_routed else "direct")
        return cls(plan, workload_of(plan), placement, config)

    @property
    def divisions(self) -> int:
        """Most divisions of a direction, the local one with them."""
        tiles = self.plan.tiles
        return 1 + max(
            int(column.max(initial=0)) for column in (tiles.division, tiles.backward_division)
        )

    def divided(self, divisions: int) -> Plan:
        """Schedule the placement in so many divisions, launched early."""
        return self._scheduled(
            divide(self.workload, self.placement, self.plan.cluster, self.config, divisions)
        )

    def launched_early(self) -> Plan:
        """Keep the divisions, but launch everything as early as programs can."""
        return self._scheduled(self._early())

    def rounded_partials(self) -> Plan:
        """Keep the divisions, but let partial results travel in the type of the inputs."""
        shape = replace(self.workload.shape, float32_partials=False)
        other = replace(self, workload=replace(self.workload, shape=shape))
        return other._scheduled(self._early())

    def _early(self) -> Schedule:
        tiles, routing = self.plan.tiles, self.config.routing
        forward, backward = (Manner(routing, is_striped=self._is_striped(d)) for d in DIRECTIONS)
        return Schedule(tiles.division, tiles.backward_division, (forward, backward))

    def _is_striped(self, direction: Direction) -> bool:
        """Tell whether blocks take the ways that striping finds, which transfers do not say."""
        if self.config.routing == "direct":
            return False
        table, cluster = self.plan.transfers, self.plan.cluster
        needs = find_needs(self.workload, self.placement, cluster, "node", None, direction)
        is_input = table.kind < TransferKind.OUT
        x = np.flatnonzero(is_input & (table.is_backward == (direction == "backward")))
        ends = np.stack([table.kind[x] == TransferKind.KV, table.block[x], table.target[x]])
        order = order_by(*ends)
        return np.array_equal(
            np.vstack([ends, table.source[x]])[:, order],
            np.stack([needs.is_keys, needs.block, needs.device, needs.peer]),
        )

    def unlimited(self) -> Plan:
        """Schedule the placement as is fastest, whatever memory that takes."""
        cluster = self.plan.cluster
        return self._scheduled(make_schedule(self.workload, self.placement, cluster, self.config))

    def _scheduled(self, schedule: Schedule) -> Plan:
        name = self.plan.partitioner
        return assemble(self.workload, self.plan.cluster, self.placement, schedule, name)


def workload_of(plan: Plan) -> Workload:
    """Read blocks and tiles of a plan of one head group; the inverse of what planning does."""
    blocks, tiles = plan.blocks, plan.tiles
    return Workload(
        plan.shape, plan.cu_seqlens, blocks.sequence, blocks.start, blocks.end, tiles.q_block,
        tiles.kv_block, tiles.kind, tiles.pairs, plan.slabs, plan.forms,
    )  # fmt: skip


def recut(workload: Workload, borders: Ints) -> Workload:
    """Cut a batch at other places, which include the ends of its sequences; O(tiles log tiles)."""
    q, kv, pairs = count_pairs(workload.slabs, borders, workload.forms)
    tokens = np.diff(borders)
    is_full = pairs == tokens[q] * tokens[kv]
    ends = workload.cu_seqlens
    return replace(
        workload,
        block_sequence=(np.searchsorted(ends, borders[:-1], side="right") - 1).astype(np.int32),
        block_start=borders[:-1],
        block_end=borders[1:],
        compute_q=q.astype(np.int32),
        compute_kv=kv.astype(np.int32),
        compute_kind=np.where(is_full, BlockKind.FULL, BlockKind.PARTIAL).astype(np.uint8),
        compute_pairs=pairs,
    )


def coarser(workload: Workload) -> Ints:
    """Leave out every second border inside each sequence: about twice the tokens per block."""
    sequence = workload.block_sequence
    place = np.arange(len(sequence)) - np.searchsorted(sequence, sequence)
    return np.append(workload.block_start[place % 2 == 0], workload.block_end[-1:])


def finer(workload: Workload) -> Ints:
    """Cut every block of at least two tokens in the middle."""
    middle = (workload.block_start + workload.block_end) // 2
    borders = np.concatenate([workload.block_start, middle, workload.block_end[-1:]])
    return np.unique(borders)
