"""One device's part of a plan, made ready once: where blocks lie, and a tile table per instruction.

The working buffers of a device hold its own tokens first, in local order, then the remote blocks
that some transfer brings, each with a place of its own.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcp_planner import Attention, Direction, Instruction, Plan, TransferKind
from dcp_runtime.errors import RunError
from dcp_runtime.tile_pieces import cut_pieces
from dcp_runtime.tile_table import BlockRows, TableBuilder, TileTable

Step: TypeAlias = tuple[Instruction, TileTable | None]
"""An instruction, with the tile table of an `Attention`."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One row of `Transfers` that leaves or reaches this device.

    Attributes:
        index: row of the plan's table; both ends use it as the tag of the message.
        kind: what it carries.
        block: row of `Blocks`.
        num_tokens: tokens of the block.
        peer: the other device.
        is_send: whether this device is the source.
        planned_bytes: size that the plan states, for the plan's element size.
    """

    index: int
    kind: TransferKind
    block: int
    num_tokens: int
    peer: int
    is_send: bool
    planned_bytes: int

    @property
    def name(self) -> str:
        """Name in traces, as the simulator writes it: ``"kv 12"``."""
        return f"{self.kind.name.lower()} {self.block}"


@dataclass(frozen=True, slots=True, eq=False)
class DevicePlan:
    """What one device needs to run a plan, forward and backward.

    Attributes:
        plan: the whole plan.
        device: whose part this is.
        rows: first row of each block in the working buffers.
        num_local: tokens that the device owns; they are the first rows of both buffers.
        num_q, num_kv: rows of the buffers of queries and of keys.
        forward, backward: the program with its tile tables.
        transfers: by row of the plan's table.
    """

    plan: Plan
    device: int
    rows: BlockRows
    num_local: int
    num_q: int
    num_kv: int
    forward: tuple[Step, ...]
    backward: tuple[Step, ...]
    transfers: dict[int, Transfer]

    def steps(self, direction: Direction) -> tuple[Step, ...]:
        """Give the program of one direction."""
        return self.forward if direction == "forward" else self.backward


def prepare_device(plan: Plan, device: int, segment_rows: int) -> DevicePlan:
    """Make one device's part of a plan ready.

    Args:
        plan: validated plan.
        device: device of the plan.
        segment_rows: most query rows per segment of a tile table; the kernel says what it likes.

    Raises:
        RunError: if the tiles need a block that no transfer brings.
    """
    transfers = _device_transfers(plan, device)
    local = [int(block) for block in plan.local_blocks(device)]
    arriving = [t for t in transfers.values() if not t.is_send]
    q_blocks = [t.block for t in arriving if t.kind == TransferKind.Q]
    kv_blocks = [t.block for t in arriving if t.kind == TransferKind.KV]
    q_rows, num_q = _lay_out(plan, [*local, *q_blocks])
    kv_rows, num_kv = _lay_out(plan, [*local, *kv_blocks])
    rows = BlockRows(q_rows, kv_rows)
    tiles = np.flatnonzero(plan.tiles.device == device)
    _check_blocks(plan, tiles, rows, device)
    pieces = cut_pieces(plan.blocks, plan.tiles, plan.slabs, tiles, segment_rows)
    builder = TableBuilder(plan.blocks, plan.tiles, pieces, rows)
    tables: dict[tuple[int, ...], TileTable] = {}  # forward and backward often agree

    def step(instruction: Instruction) -> Step:
        if not isinstance(instruction, Attention):
            return instruction, None
        if instruction.tiles not in tables:
            tables[instruction.tiles] = builder.build(instruction.tiles)
        return instruction, tables[instruction.tiles]

    return DevicePlan(
        plan=plan,
        device=device,
        rows=rows,
        num_local=int(plan.blocks.num_tokens[local].sum()),
        num_q=num_q,
        num_kv=num_kv,
        forward=tuple(step(i) for i in plan.forward[device].instructions),
        backward=tuple(step(i) for i in plan.backward[device].instructions),
        transfers=transfers,
    )


def _device_transfers(plan: Plan, device: int) -> dict[int, Transfer]:
    table = plan.transfers
    mine = np.flatnonzero((table.source == device) | (table.target == device))
    found = {}
    for index in mine.tolist():
        is_send, block = int(table.source[index]) == device, int(table.block[index])
        found[index] = Transfer(
            index=index,
            kind=TransferKind(int(table.kind[index])),
            block=block,
            num_tokens=int(plan.blocks.num_tokens[block]),
            peer=int(table.target[index] if is_send else table.source[index]),
            is_send=is_send,
            planned_bytes=int(table.size_bytes[index]),
        )
    return found


def _lay_out(plan: Plan, blocks: list[int]) -> tuple[NDArray[np.int64], int]:
    """Place blocks one behind the other, each once; gives the first rows and their total."""
    order = np.array(list(dict.fromkeys(blocks)), np.int64)
    tokens = plan.blocks.num_tokens[order]
    rows = np.full(len(plan.blocks), -1, np.int64)
    rows[order] = np.cumsum(tokens) - tokens
    return rows, int(tokens.sum())


def _check_blocks(plan: Plan, tiles: NDArray[np.int64], rows: BlockRows, device: int) -> None:
    for what, needed, known in (
        ("q", plan.tiles.q_block[tiles], rows.q),
        ("kv", plan.tiles.kv_block[tiles], rows.kv),
    ):
        missing = needed[known[needed] < 0]
        if missing.size:
            raise RunError(
                f"device {device} computes with {what} block {missing.min()}, but neither owns nor "
                "receives it; build the plan again"
            )
