"""Programs as columns: one row per instruction, for making, checking, hashing and storing them.

`digest` hashes all that devices execute: equal digests mean equal work.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, overload

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Bools, Bytes, Indices, Ints, Record, expand
from dcp_planner.model.problem import Direction
from dcp_planner.tables.plan import (
    SCHEMA,
    Attention,
    CommLaunch,
    CommWait,
    Copy,
    DeviceProgram,
    Instruction,
    Plan,
    Reduction,
    columns_of,
)

OPS = ("copy", "launch", "wait", "attention", "reduction")
"""Names of the instructions; a row's `op` is an index into them."""
COPY, LAUNCH, WAIT, ATTENTION, REDUCTION = range(len(OPS))

_CLASSES: tuple[type[Instruction], ...] = (Copy, CommLaunch, CommWait, Attention, Reduction)


@dataclass(frozen=True, slots=True, eq=False)
class ProgramTable(Record):
    """Instructions of one or both directions, sorted by (is_backward, device, position)."""

    is_backward: Annotated[Bools, "I"]
    device: Annotated[Indices, "I"]
    position: Annotated[Indices, "I"]  # place in the program, from 0
    op: Annotated[Bytes, "I"]  # index into `OPS`
    key: Annotated[Indices, "I"]  # key of a launch or wait, else -1
    division: Annotated[Indices, "I"]  # or -1 for a copy
    item_ptr: Annotated[Ints, "I+1"]  # the items of row i are `items[item_ptr[i]:item_ptr[i+1]]`
    # blocks of a copy, tiles of an attention, transfers of a launch or a reduction
    items: Annotated[Indices, "N"]

    def _check(self) -> None:
        if len(self.op) and self.op.max() >= len(OPS):
            raise ValueError(f"ProgramTable.op: expected 0 to {len(OPS) - 1}, got {self.op.max()}")
        if (
            self.item_ptr[0] != 0
            or self.item_ptr[-1] != len(self.items)
            or (np.diff(self.item_ptr) < 0).any()
        ):
            raise ValueError("ProgramTable.item_ptr: expected 0, rising, to the number of items")

    def __len__(self) -> int:
        return len(self.op)

    def row_of_item(self) -> Ints:
        """Return the instruction that each item belongs to, int64 ``[N]``."""
        return np.repeat(np.arange(len(self)), np.diff(self.item_ptr))

    def chosen(self, rows: Ints) -> dict[str, NDArray[np.generic]]:
        """Return the columns of some instructions, with their items."""
        counts = np.diff(self.item_ptr)[rows]
        return {
            # All columns but the last two, `item_ptr` and `items`, have one entry per instruction.
            **{f.name: getattr(self, f.name)[rows] for f in fields(self)[:-2]},
            "item_ptr": np.append(0, np.cumsum(counts)),
            "items": self.items[expand(self.item_ptr[rows], counts)[1]],
        }

    def rows(self, first: int, last: int) -> "ProgramTable":
        """Return the instructions ``first`` to ``last - 1``."""
        columns: dict[str, Any] = self.chosen(np.arange(first, last))
        return ProgramTable(**columns)


class Programs(Sequence[DeviceProgram]):
    """The programs of one direction, one per device, made from a table on first access."""

    __slots__ = ("_made", "_row_ptr", "table")

    def __init__(self, table: ProgramTable, num_devices: int) -> None:
        self.table = table
        # Rows are sorted by device: program d is the rows from entry d to before entry d + 1.
        self._row_ptr = np.searchsorted(table.device, np.arange(num_devices + 1)).tolist()
        self._made: dict[int, DeviceProgram] = {}

    def __len__(self) -> int:
        return len(self._row_ptr) - 1

    @overload
    def __getitem__(self, index: int) -> DeviceProgram: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[DeviceProgram, ...]: ...
    def __getitem__(self, index: int | slice) -> DeviceProgram | tuple[DeviceProgram, ...]:
        """Return the program of a device, or of several."""
        if isinstance(index, slice):
            return tuple(self[device] for device in range(*index.indices(len(self))))
        device = range(len(self))[index]
        # Made one by one: a caller that looks at one device of a thousand does not wait for all.
        if device not in self._made:
            part = self.table.rows(self._row_ptr[device], self._row_ptr[device + 1])
            self._made[device] = DeviceProgram(device, tuple(_instructions(part)))
        return self._made[device]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # as large as the table

    def __repr__(self) -> str:
        return f"<programs of {len(self)} devices, {len(self.table)} instructions>"


def tabulate_programs(plan: Plan, direction: Direction | None = None) -> ProgramTable:
    """Write programs as a table; O(instructions + items), O(1) for a direction with a table.

    Without a direction: forward, then backward.
    """
    if direction is not None:
        programs = plan.programs(direction)
        if isinstance(programs, Programs):
            return programs.table
        return _tabulate(direction == "backward", programs)
    forward, backward = (tabulate_programs(plan, d) for d in ("forward", "backward"))
    values = {
        f.name: np.concatenate([getattr(forward, f.name), getattr(backward, f.name)])
        for f in fields(ProgramTable)
    }
    # Items of backward follow those of forward; the last pointer of forward is its first one.
    values["item_ptr"] = np.concatenate(
        [forward.item_ptr, backward.item_ptr[1:] + len(forward.items)]
    )
    return ProgramTable(**values)


def _tabulate(is_backward: bool, programs: Sequence[DeviceProgram]) -> ProgramTable:
    rows: list[tuple[int, int, int, int, int, int]] = []
    items: list[int] = []
    for program in programs:
        for position, step in enumerate(program.instructions):
            held = _items_of(step)
            op = _CLASSES.index(type(step))
            key = step.key if isinstance(step, CommLaunch | CommWait) else -1
            division = -1 if isinstance(step, Copy) else step.division
            rows.append((program.device, position, op, key, division, len(held)))
            items.extend(held)
    columns = np.array(rows, np.int64).reshape(-1, 6).T
    return ProgramTable(
        # `ProgramTable` narrows the columns to their types, and refuses numbers that do not fit.
        is_backward=np.full(len(rows), is_backward),
        device=columns[0],
        position=columns[1],
        op=columns[2],
        key=columns[3],
        division=columns[4],
        item_ptr=np.append(0, np.cumsum(columns[5])),
        items=np.array(items, np.int64),
    )


def restore_programs(table: ProgramTable, num_devices: int) -> tuple[Programs, Programs]:
    """Rebuild the forward and backward programs; the inverse of `tabulate_programs`."""
    place = np.lexsort((table.position, table.device, table.is_backward))
    if not np.array_equal(place, np.arange(len(table))):
        raise ValueError("instructions: expected rows sorted by direction, device and position")
    if len(table) and not (table.device.min() >= 0 and table.device.max() < num_devices):
        raise ValueError(f"instructions: expected devices 0 to {num_devices - 1}")
    # Positions count from 0 in each program: the number of a row less that of the program's first.
    rows = np.arange(len(table))
    is_first = np.diff(table.is_backward * num_devices + table.device, prepend=-1) != 0
    expected = rows - np.maximum.accumulate(np.where(is_first, rows, 0))
    wrong = np.flatnonzero(table.position != expected)
    if wrong.size:
        raise ValueError(
            f"instructions: position {table.position[wrong[0]]} of device "
            f"{table.device[wrong[0]]} out of order"
        )
    border = int(np.searchsorted(table.is_backward, True))  # False sorts first
    return (
        Programs(table.rows(0, border), num_devices),
        Programs(table.rows(border, len(table)), num_devices),
    )


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


def digest(plan: Plan) -> str:
    """Compute the sha256 over all that the devices execute, as 64 hex digits.

    It covers schema, numbers of cluster and shape, sequences, all tables, the mask and the
    programs. It does not cover provenance, names of sequences, the partitioner's name, warnings, or
    names and sources of the cluster's constants.
    """
    cluster = {k: v for k, v in plan.cluster.to_json().items() if k not in ("name", "source")}
    head: dict[str, object]
    head = {"schema": SCHEMA, "cluster": cluster, "shape": plan.shape.to_json()}
    if plan.head_groups > 1:
        head["head_groups"] = plan.head_groups
    sha = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
    _add(sha, "cu_seqlens", plan.cu_seqlens)
    programs = tabulate_programs(plan)
    for table in (plan.blocks, plan.tiles, plan.transfers):
        # The class was called Tiles when the first digests were made; they must stay the same.
        title = "Tiles" if table is plan.tiles else type(table).__name__
        for name, column in columns_of(table).items():
            _add(sha, f"{title}.{name}", column)
    for name in programs.__slots__:  # the order of columns is part of the digest
        _add(sha, f"ProgramTable.{name}", getattr(programs, name))
    _add(sha, "slabs", plan.slabs.table())
    for placed in plan.forms:
        sha.update(f"form:{placed.q_start}:{placed.kv_start}:{placed.form.digest};".encode())
    return sha.hexdigest()


def _add(sha: "hashlib._Hash", name: str, array: NDArray[np.generic]) -> None:
    # Equal plans have equal digests on machines of either byte order.
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    sha.update(f"{name}:{little.dtype.str}:{little.shape};".encode())
    sha.update(little.tobytes())
