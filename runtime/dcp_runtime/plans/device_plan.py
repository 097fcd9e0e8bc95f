"""Prepare one device's part of a plan: block positions, and a tile table per instruction.

The working buffers of a device hold its own tokens first, in local order, then its receive buffers.
Remote blocks lie where the plan says (`Transfers.slot`), for as long as they are needed; rows are
used again.

A plan in head groups is made ready as the plan of a batch G times as long
(`dcp_planner.expand_head_groups`): tokens, blocks and rows below are that batch's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from dcp_dsl.arrays import Indices, Ints
from dcp_planner import Direction, Plan, TransferKind
from dcp_planner.simulation import message_names
from dcp_planner.tables import Attention, Instruction, expand_head_groups
from dcp_runtime.errors import RunError
from dcp_runtime.plans.head_layout import HeadLayout
from dcp_runtime.plans.tile_pieces import TilePieces, cut_pieces
from dcp_runtime.plans.tile_table import BlockRows, TableBuilder, TileTable

Step: TypeAlias = tuple[Instruction, TileTable | None]
"""An instruction, with the tile table of an `Attention`."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One row of `Transfers` that leaves or reaches this device.

    Attributes:
        index: row of the plan's table; both ends use it as the tag of the message.
        kind: what it carries.
        block: row of `Blocks`.
        name: in traces, as the simulator writes it: ``"kv 12"``, or ``"kv 12.3"`` in head group 3.
        num_tokens: tokens of the block.
        peer: the other device.
        is_send: whether this device is the source.
        slot: first row in the receive buffer of its kind, at the target.
        hop: 0 if the source has the data of its own, more if it passes it on.
        brought_by: transfer that brings the block to this device before it forwards it, or -1.
        planned_bytes: size that the plan states, for the plan's element size.
    """

    index: int
    kind: TransferKind
    block: int
    name: str
    num_tokens: int
    peer: int
    is_send: bool
    slot: int
    hop: int
    brought_by: int
    planned_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class DirectionPlan:
    """The work of one device in one direction.

    Attributes:
        rows: first row of each block in the working buffers of queries and of keys.
        receive_rows: rows of the receive buffer of each kind.
        steps: the program with its tile tables.
    """

    rows: BlockRows
    receive_rows: Mapping[TransferKind, int]
    steps: tuple[Step, ...]

    @property
    def tables(self) -> tuple[TileTable, ...]:
        """The tile tables, in the order of the program."""
        return tuple(table for _, table in self.steps if table is not None)


@dataclass(frozen=True, slots=True, eq=False)
class DevicePlan:
    """One device's part of a plan, ready to run forward and backward.

    Attributes:
        plan: the whole plan, without head groups.
        heads: how the heads of whole tokens are cut into those of the plan.
        device: whose part this is.
        num_local: tokens that the device owns; they are the first rows of the working buffers.
        forward, backward: buffers and programs.
        transfers: by row of the plan's table.
    """

    plan: Plan
    heads: HeadLayout
    device: int
    num_local: int
    forward: DirectionPlan
    backward: DirectionPlan
    transfers: Mapping[int, Transfer]

    def of(self, direction: Direction) -> DirectionPlan:
        """Return the work of one direction."""
        return self.forward if direction == "forward" else self.backward


def prepare_device(plan: Plan, device: int, segment_rows: int) -> DevicePlan:
    """Make one device's part of a plan ready."""
    heads, plan = HeadLayout(plan.shape, plan.head_groups), expand_head_groups(plan)
    tiles = np.flatnonzero(plan.tiles.device == device)
    pieces = cut_pieces(plan.blocks, plan.tiles, plan.slabs, tiles, segment_rows, plan.forms)
    local = plan.local_blocks(device)
    return DevicePlan(
        plan=plan,
        heads=heads,
        device=device,
        num_local=int(plan.blocks.num_tokens[local].sum()),
        forward=_direction_plan(plan, device, "forward", pieces),
        backward=_direction_plan(plan, device, "backward", pieces),
        transfers=_transfers(plan, device, heads.groups),
    )


def _transfers(plan: Plan, device: int, groups: int) -> dict[int, Transfer]:
    """Return the transfers that leave or reach a device, by row of the plan's table."""
    table = plan.transfers
    mine = np.flatnonzero((table.source == device) | (table.target == device))
    names = message_names(table.kind[mine], table.block[mine], groups, len(plan.blocks) // groups)
    columns = (
        mine, table.is_backward[mine], table.kind[mine], table.block[mine], table.source[mine],
        table.target[mine], table.slot[mine], table.hop[mine], table.size_bytes[mine],
        plan.blocks.num_tokens[table.block[mine]],
    )  # fmt: skip
    rows = list(zip(names, *(column.tolist() for column in columns), strict=True))
    brings = {tuple(row[2:5]): row[1] for row in rows if row[6] == device}
    found = {}
    for name, i, is_backward, number, block, source, target, slot, hop, size, tokens in rows:
        kind, is_send, brought_by = TransferKind(number), source == device, -1
        if is_send and hop and not kind.is_result:
            brought_by = brings.get((is_backward, number, block), -1)
            if brought_by < 0:
                raise RunError(
                    f"device {device} forwards {kind.name} of block {block}, but nothing brings it "
                    "there; build the plan again"
                )
        peer = target if is_send else source
        found[i] = Transfer(
            i, kind, block, name, tokens, peer, is_send, slot, hop, brought_by, size
        )
    return found


def _direction_plan(
    plan: Plan, device: int, direction: Direction, pieces: TilePieces
) -> DirectionPlan:
    table = plan.transfers
    arrives = (table.target == device) & (table.is_backward == (direction == "backward"))
    receive_rows, places = {}, {}
    for kind in TransferKind:
        chosen = np.flatnonzero(arrives & (table.kind == kind))
        blocks, slots = table.block[chosen], table.slot[chosen]
        ends = slots + plan.blocks.num_tokens[blocks]
        receive_rows[kind] = int(ends.max(initial=0))
        places[kind] = blocks, slots
    rows = BlockRows(
        _rows_of(plan, device, *places[TransferKind.Q]),
        _rows_of(plan, device, *places[TransferKind.KV]),
    )
    _check_blocks(plan, pieces, rows, device)
    builder = TableBuilder(plan.blocks, plan.tiles, pieces, rows)
    steps = tuple(
        (step, builder.build(step.tiles) if isinstance(step, Attention) else None)
        for step in plan.programs(direction)[device].instructions
    )
    return DirectionPlan(rows, receive_rows, steps)


def _rows_of(plan: Plan, device: int, blocks: Indices, slots: Indices) -> Ints:
    """Return the first row of every block: own ones in order, then slots."""
    local = plan.local_blocks(device)
    tokens = plan.blocks.num_tokens[local]
    rows = np.full(len(plan.blocks), -1, np.int64)
    rows[local] = np.cumsum(tokens) - tokens
    rows[blocks] = int(tokens.sum()) + slots
    return rows


def _check_blocks(plan: Plan, pieces: TilePieces, rows: BlockRows, device: int) -> None:
    for what, needed, known in (
        ("q", plan.tiles.q_block[pieces.tile], rows.q),
        ("kv", plan.tiles.kv_block[pieces.tile], rows.kv),
    ):
        missing = needed[known[needed] < 0]
        if missing.size:
            raise RunError(
                f"device {device} computes with {what} block {missing.min()}, but neither owns nor "
                "receives it; build the plan again"
            )
