"""Programs as columns: one row per instruction, for checking, hashing and storing them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import readonly
from dcp_planner.plan import (
    Attention,
    CommLaunch,
    CommWait,
    Copy,
    DeviceProgram,
    Instruction,
    Plan,
    Reduction,
)

OPS = ("copy", "launch", "wait", "attention", "reduction")
"""Names of the instructions; a row's `op` is an index into them."""

_CLASSES: tuple[type[Instruction], ...] = (Copy, CommLaunch, CommWait, Attention, Reduction)


@dataclass(frozen=True, slots=True, eq=False)
class ProgramTable:
    """The instructions of both directions, sorted by (is_backward, device, position).

    Attributes:
        is_backward: bool ``[I]``.
        device: int32 ``[I]``.
        position: int32 ``[I]``, place in the program, from 0.
        op: uint8 ``[I]``, index into `OPS`.
        key: int32 ``[I]``, of a launch or wait, else -1.
        division: int32 ``[I]``, or -1 for a copy.
        item_ptr: int64 ``[I+1]``, the items of row i are ``items[item_ptr[i]:item_ptr[i+1]]``.
        items: int32 ``[N]``, blocks of a copy, tiles of an attention, transfers of a launch or a
            reduction.
    """

    is_backward: NDArray[np.bool_]
    device: NDArray[np.int32]
    position: NDArray[np.int32]
    op: NDArray[np.uint8]
    key: NDArray[np.int32]
    division: NDArray[np.int32]
    item_ptr: NDArray[np.int64]
    items: NDArray[np.int32]

    def __post_init__(self) -> None:
        size = len(self.op)
        for name, dtype, length in (
            ("is_backward", np.bool_, size), ("device", np.int32, size),
            ("position", np.int32, size), ("op", np.uint8, size), ("key", np.int32, size),
            ("division", np.int32, size), ("item_ptr", np.int64, size + 1),
            ("items", np.int32, None),
        ):  # fmt: skip
            value = readonly(f"ProgramTable.{name}", getattr(self, name), dtype, (length,))
            object.__setattr__(self, name, value)
        if size and self.op.max() >= len(OPS):
            raise ValueError(f"ProgramTable.op: expected 0 to {len(OPS) - 1}, got {self.op.max()}")
        ptr = self.item_ptr
        if ptr[0] != 0 or ptr[-1] != len(self.items) or (np.diff(ptr) < 0).any():
            raise ValueError(
                "ProgramTable.item_ptr: expected 0, rising values, the number of items"
            )

    def __len__(self) -> int:
        return len(self.op)

    def row_of_item(self) -> NDArray[np.int64]:
        """Give the instruction that each item belongs to, int64 ``[N]``."""
        return np.repeat(np.arange(len(self)), np.diff(self.item_ptr))


def tabulate_programs(plan: Plan) -> ProgramTable:
    """Write the programs of a plan as a table; O(instructions + items)."""
    rows: list[tuple[bool, int, int, int, int, int, int]] = []
    items: list[int] = []
    for is_backward, programs in ((False, plan.forward), (True, plan.backward)):
        for program in programs:
            for position, step in enumerate(program.instructions):
                held = _items_of(step)
                op = _CLASSES.index(type(step))
                key = step.key if isinstance(step, CommLaunch | CommWait) else -1
                division = -1 if isinstance(step, Copy) else step.division
                rows.append((is_backward, program.device, position, op, key, division, len(held)))
                items.extend(held)
    columns = np.array(rows, np.int64).reshape(-1, 7).T
    return ProgramTable(
        is_backward=columns[0].astype(np.bool_),
        device=columns[1].astype(np.int32),
        position=columns[2].astype(np.int32),
        op=columns[3].astype(np.uint8),
        key=columns[4].astype(np.int32),
        division=columns[5].astype(np.int32),
        item_ptr=np.append(0, np.cumsum(columns[6])),
        items=np.array(items, np.int32),
    )


def restore_programs(
    table: ProgramTable, num_devices: int
) -> tuple[tuple[DeviceProgram, ...], tuple[DeviceProgram, ...]]:
    """Give the forward and backward programs back; the inverse of `tabulate_programs`.

    Raises:
        ValueError: if rows are out of order or a device is out of range.
    """
    place = np.lexsort((table.position, table.device, table.is_backward))
    if not np.array_equal(place, np.arange(len(table))):
        raise ValueError("instructions: expected rows sorted by direction, device and position")
    if len(table) and not (table.device.min() >= 0 and table.device.max() < num_devices):
        raise ValueError(f"instructions: expected devices 0 to {num_devices - 1}")
    programs: dict[tuple[bool, int], list[Instruction]] = {}
    for (is_backward, device, position), step in zip(
        zip(
            table.is_backward.tolist(), table.device.tolist(), table.position.tolist(), strict=True
        ),
        _instructions(table),
        strict=True,
    ):
        program = programs.setdefault((is_backward, device), [])
        if position != len(program):
            raise ValueError(f"instructions: position {position} of device {device} out of order")
        program.append(step)
    forward, backward = (
        tuple(DeviceProgram(d, tuple(programs.get((b, d), ()))) for d in range(num_devices))
        for b in (False, True)
    )
    return forward, backward


def _items_of(step: Instruction) -> tuple[int, ...]:
    if isinstance(step, Copy):
        return step.blocks
    if isinstance(step, CommWait):
        return ()
    return step.tiles if isinstance(step, Attention) else step.transfers


def _instructions(table: ProgramTable) -> Iterator[Instruction]:
    items, ptr = table.items.tolist(), table.item_ptr.tolist()
    columns = (table.op.tolist(), table.key.tolist(), table.division.tolist())
    for row, (op, key, division) in enumerate(zip(*columns, strict=True)):
        held = tuple(items[ptr[row] : ptr[row + 1]])
        match OPS[op]:
            case "copy":
                yield Copy(held)
            case "launch":
                yield CommLaunch(key, division, held)
            case "wait":
                yield CommWait(key, division)
            case "attention":
                yield Attention(division, held)
            case _:
                yield Reduction(division, held)
