"""One device's part of a plan: where blocks lie in its buffers, and a tile table per instruction.

The working buffers of a device hold its own tokens first, in local order, then its receive buffers.
Remote blocks lie where the plan says (`Transfers.slot`), as long as they are needed; later blocks
use the same rows again. A plan names blocks of a packed batch, a kernel reads rows of buffers:
`tile_pieces` cuts the plan's tiles to those of the kernel, a `TileTable` says where they lie, and
`own_sums` which tables begin and end the sums of own rows.

A plan in head groups is made ready as the plan of a batch G times as long
(`dcp_planner.tables.expand_head_groups`): tokens, blocks and rows below are those of that batch.
Whole tokens exist only on the way into a layer and out of it (`HeadLayout`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TypeAlias

import numpy as np
from torch import Tensor

from dcp_dsl.arrays import Indices, Ints
from dcp_planner import Direction, ModelShape, Plan, TransferKind
from dcp_planner.simulation import message_names
from dcp_planner.tables import (
    GRID,
    Attention,
    CommLaunch,
    Instruction,
    Reduction,
    Transfers,
    expand_head_groups,
    find_feeders,
    find_merges,
    inputs_of_results,
    inputs_of_tiles,
)
from dcp_runtime.errors import RunError
from dcp_runtime.plans.own_sums import Merge, OwnSums, mark_tables
from dcp_runtime.plans.tile_pieces import TilePieces, cut_pieces
from dcp_runtime.plans.tile_table import AddsTo, TableBuilder, TileTable
from dcp_runtime.plans.transfers import Bundle, Transfer, bundle


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """The cut of a token's heads into groups; with one group tensors stay as they are."""

    shape: ModelShape
    groups: int

    def split_q(self, tensor: Tensor) -> Tensor:
        """Turn ``[T, Hq, ...]`` into ``[G T, Hq / G, ...]``.

        >>> import torch
        >>> x = torch.tensor([[0, 1], [10, 11]])  # two tokens of two heads
        >>> HeadLayout(ModelShape(2, 2, 1), 2).split_q(x).flatten().tolist()
        [0, 10, 1, 11]
        """
        # The usual case, here and below: even views that change nothing cost the host time.
        if self.groups == 1:
            return tensor
        each = self.shape.q_heads // self.groups
        heads = tensor.reshape(len(tensor), self.groups, each, *tensor.shape[2:])
        return heads.transpose(0, 1).flatten(0, 1)

    def join_q(self, tensor: Tensor) -> Tensor:
        """Turn ``[G T, Hq / G, ...]`` into ``[T, Hq, ...]``."""
        if self.groups == 1:
            return tensor
        return self._by_group(tensor).transpose(0, 1).flatten(1, 2)

    def split_kv(self, kv: Tensor) -> Tensor:
        """Turn ``[T, ..., Hkv, D]`` into ``[G T, ..., max(1, Hkv / G), D]``; copies are 0."""
        if self.groups == 1:
            return kv
        if self._sharing == 1:  # at least one kv head for each group
            each = self.shape.kv_heads // self.groups
            heads = kv.reshape(*kv.shape[:-2], self.groups, each, kv.shape[-1])
            return heads.movedim(-3, 0).flatten(0, 1)  # [G, T, ..., Hkv / G, D]
        # More groups than kv heads: the first of the groups that share a head owns its keys.
        expanded = kv.new_zeros(self.groups, *kv.shape[:-2], 1, kv.shape[-1])
        expanded[:: self._sharing] = kv.movedim(-2, 0).unsqueeze(-2)  # [Hkv, T, ..., 1, D]
        return expanded.flatten(0, 1)

    def join_kv(self, kv: Tensor) -> Tensor:
        """Turn ``[G T, ..., max(1, Hkv / G), D]`` into ``[T, ..., Hkv, D]``."""
        if self.groups == 1:
            return kv
        return self._by_group(kv)[:: self._sharing].movedim(0, -3).flatten(-3, -2)

    @property
    def _sharing(self) -> int:
        """Groups that read the same key/value head."""
        return max(1, self.groups // self.shape.kv_heads)

    def _by_group(self, tensor: Tensor) -> Tensor:
        return tensor.reshape(self.groups, len(tensor) // self.groups, *tensor.shape[1:])


Step: TypeAlias = tuple[Instruction, tuple[TileTable, ...], tuple[Bundle, ...]]
"""An instruction, with the tile tables of an `Attention` and the bundles of a `CommLaunch`."""


@dataclass(frozen=True, slots=True, eq=False)
class DirectionPlan:
    """The work of one device in one direction."""

    receive_rows: Mapping[TransferKind, int]  # of the buffer of each kind
    steps: tuple[Step, ...]
    sums: Mapping[TransferKind, OwnSums]  # of results: the own rows that no table begins or ends

    @property
    def tables(self) -> tuple[TileTable, ...]:
        """The tile tables, in the order of the program."""
        return tuple(table for _, tables, _ in self.steps for table in tables)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class DevicePlan:
    """One device's part of a plan, ready to run forward and backward."""

    plan: Plan  # the whole plan, without head groups
    heads: HeadLayout  # how the heads of whole tokens are cut into those of the plan
    device: int
    num_local: int  # tokens that the device owns, first rows of the working buffers
    forward: DirectionPlan
    backward: DirectionPlan
    transfers: Mapping[int, Transfer]  # by row of the plan's table
    passed_on: frozenset[int] = frozenset()  # those that arrive and are sent on from here

    def of(self, direction: Direction) -> DirectionPlan:
        """Return the work of one direction."""
        return self.forward if direction == "forward" else self.backward


def prepare_device(plan: Plan, device: int, segment_rows: int) -> DevicePlan:
    """Make one device's part of a plan ready."""
    heads, plan = HeadLayout(plan.shape, plan.head_groups), expand_head_groups(plan)
    transfers = _transfers(plan, device, heads.groups)
    tiles = np.flatnonzero(plan.tiles.device == device)
    grid = GRID if plan.is_reproducible else None
    pieces = cut_pieces(plan.blocks, plan.tiles, plan.slabs, tiles, segment_rows, plan.forms, grid)
    return DevicePlan(
        plan=plan,
        heads=heads,
        device=device,
        num_local=_local_rows(plan, device)[1],
        forward=_direction_plan(plan, device, "forward", pieces, transfers),
        backward=_direction_plan(plan, device, "backward", pieces, transfers),
        transfers=transfers,
        passed_on=frozenset(t.brought_by for t in transfers.values() if t.brought_by >= 0),
    )


def outline_device(flat: Plan, groups: int, device: int) -> DevicePlan:
    """Make the program and the messages of one device ready, without the tiles of its kernels.

    This is enough for a run whose kernels compute nothing, and takes a fraction of the time. `flat`
    is an expanded plan (`expand_head_groups`), which had so many head groups before.
    """
    transfers = _transfers(flat, device, groups)

    def outlined(direction: Direction) -> DirectionPlan:
        program = flat.programs(direction)[device].instructions
        steps: list[Step] = [
            (step, (), bundle(step.transfers, transfers) if isinstance(step, CommLaunch) else ())
            for step in program
        ]
        return DirectionPlan(dict.fromkeys(TransferKind, 0), tuple(steps), {})

    return DevicePlan(
        plan=flat,
        heads=HeadLayout(flat.shape, groups),
        device=device,
        num_local=_local_rows(flat, device)[1],
        forward=outlined("forward"),
        backward=outlined("backward"),
        transfers=transfers,
    )


def _transfers(plan: Plan, device: int, groups: int) -> dict[int, Transfer]:
    """Return the transfers that leave or reach a device, by row of the plan's table."""
    mine, table = _of_device(plan.transfers, device)
    names = message_names(table.kind, table.block, groups, len(plan.blocks) // groups)
    feeder, is_send = find_feeders(table), table.source == device
    lost = np.flatnonzero(
        is_send & (table.hop > 0) & (feeder < 0) & (table.kind < TransferKind.OUT)
    )
    if lost.size:
        x = lost[0]
        raise RunError(
            f"device {device} forwards {TransferKind(int(table.kind[x])).name} of block "
            f"{table.block[x]}, but nothing brings it there; build the plan again"
        )
    # A feeder of -1 would index the last row; `where` does not take it.
    brought_by = np.where(is_send & (feeder >= 0), mine[feeder], -1)
    columns = (
        mine, table.kind, table.block, plan.blocks.num_tokens[table.block],
        np.where(is_send, table.target, table.source), is_send,
        _rows_of_transfers(plan, table, device), table.slot, table.hop, brought_by,
    )  # fmt: skip
    rows = zip(names, *(column.tolist() for column in columns), strict=True)
    return {
        i: Transfer(i, TransferKind(kind), block, name, tokens, *rest)
        for name, i, kind, block, tokens, *rest in rows
    }


def _of_device(table: Transfers, device: int) -> tuple[Ints, Transfers]:
    """Return the transfers that leave or reach a device, and their rows in the plan's table."""
    rows = np.flatnonzero((table.source == device) | (table.target == device))
    columns = ((field.name, getattr(table, field.name)) for field in fields(table))
    return rows, replace(table, **{name: x[rows] for name, x in columns if x is not None})


def _rows_of_transfers(plan: Plan, table: Transfers, device: int) -> Ints:
    """Return the first row of the data that each transfer of a device carries or is merged into."""
    is_send, is_result = table.source == device, table.kind >= TransferKind.OUT
    feeder, input_of = find_feeders(table), inputs_of_results(table)
    into = find_merges(table, plan.blocks.owner)
    # Sums lie at the rows of the input that they belong to, so each case leads to an input:
    # - a result that leaves: the input whose sums it carries;
    # - a result that arrives: that of the result which takes the merged sums further;
    # - an input that leaves: the transfer that brought it here; one that arrives: itself.
    # -1 stands for own blocks, whose rows are the local ones.
    arrived = np.where(
        is_result, np.where(is_send, input_of, np.where(into >= 0, input_of[into], -1)),
        np.where(is_send, feeder, np.arange(len(table))),
    )  # fmt: skip
    local, own = _local_rows(plan, device)
    return np.where(arrived >= 0, own + table.slot[arrived], local[table.block])


def _direction_plan(
    plan: Plan,
    device: int,
    direction: Direction,
    pieces: TilePieces,
    transfers: Mapping[int, Transfer],
) -> DirectionPlan:
    table = plan.transfers
    arrives = (table.target == device) & (table.is_backward == (direction == "backward"))
    ends = table.slot + plan.blocks.num_tokens[table.block]
    receive_rows = {
        kind: int(ends[arrives & (table.kind == kind)].max(initial=0)) for kind in TransferKind
    }
    rows = _rows_of_tiles(plan, device, direction)
    _check_tiles(plan, pieces, rows, device)
    builder = TableBuilder(plan.blocks, plan.tiles, pieces, rows)
    program, num_local = plan.programs(direction)[device].instructions, _local_rows(plan, device)[1]
    attends = [step.tiles for step in program if isinstance(step, Attention)]
    sums: Mapping[TransferKind, OwnSums]
    if plan.is_reproducible:
        ways: tuple[AddsTo, ...] = ("both",) if direction == "forward" else ("dq", "dkv")
        tables = [tuple(t for w in ways for t in builder.build_ordered(i, w)) for i in attends]
        sums = dict.fromkeys(TransferKind, OwnSums.of_all(num_local))
    else:
        built = [builder.build(items) for items in attends]
        marked, sums = mark_tables(built, direction, _merges(program, transfers), num_local)
        tables = [(table,) for table in marked]
    ready = iter(tables)
    steps = (
        (
            step,
            next(ready) if isinstance(step, Attention) else (),
            bundle(step.transfers, transfers) if isinstance(step, CommLaunch) else (),
        )
        for step in program
    )
    return DirectionPlan(receive_rows, tuple(steps), sums)


def _merges(
    program: tuple[Instruction, ...], transfers: Mapping[int, Transfer]
) -> Mapping[TransferKind, list[Merge]]:
    """Return the partial results of each kind that a program merges."""
    found: dict[TransferKind, list[Merge]] = {kind: [] for kind in TransferKind}
    tables = 0
    for step in program:
        tables += isinstance(step, Attention)
        if isinstance(step, Reduction):
            for index in step.transfers:
                found[transfers[index].kind].append((tables, transfers[index].rows))
    return found


def _rows_of_tiles(plan: Plan, device: int, direction: Direction) -> tuple[Ints, Ints]:
    """Return the first rows of queries and of keys of all tiles, -1 where a block is never here."""
    tiles, (local, own) = plan.tiles, _local_rows(plan, device)
    _, table = _of_device(plan.transfers, device)
    read_q, read_kv = inputs_of_tiles(tiles, table)
    way = int(direction == "backward")

    def rows(brought_by: Ints, block: Indices) -> Ints:
        # Without transfers there is no slot to index, and nothing is brought.
        slots = table.slot[brought_by] if len(table) else -1
        return np.where(brought_by >= 0, own + slots, local[block])

    return rows(read_q[way], tiles.q_block), rows(read_kv[way], tiles.kv_block)


def _local_rows(plan: Plan, device: int) -> tuple[Ints, int]:
    """Return the first row of every own block, -1 for those of others, and the number of rows."""
    local = plan.local_blocks(device)
    tokens = plan.blocks.num_tokens[local]
    rows = np.full(len(plan.blocks), -1, np.int64)
    rows[local] = np.cumsum(tokens) - tokens
    return rows, int(tokens.sum())


def _check_tiles(plan: Plan, pieces: TilePieces, rows: tuple[Ints, Ints], device: int) -> None:
    for what, block, known in (
        ("q", plan.tiles.q_block, rows[0]),
        ("kv", plan.tiles.kv_block, rows[1]),
    ):
        missing = block[pieces.tile][known[pieces.tile] < 0]
        if missing.size:
            raise RunError(
                f"device {device} computes with {what} block {missing.min()}, but neither owns nor "
                "receives it; build the plan again"
            )
