"""From placement and schedule to transfers and one program per device.

Per device and direction, with D divisions::

    Copy · Launch(in 1) · Attention(0) · Launch(out 0)
    for d = 1 .. D-1:  Wait(in d) · Launch(in d+1) · Attention(d) · Launch(out d)
    Wait(out 0) .. Wait(out D-1) · Reduction

Inputs of division d have key d, results key D + d. Empty launches, waits and attentions are left
out. The order of launches is the same on every device, so no two programs can wait for each other.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dcp_planner.cluster import ModelShape
from dcp_planner.placement import Placement
from dcp_planner.plan import (
    Attention,
    CommLaunch,
    CommWait,
    Copy,
    DeviceProgram,
    Direction,
    Instruction,
    Reduction,
    TransferKind,
    Transfers,
)
from dcp_planner.schedule import Schedule
from dcp_planner.workload import Workload


def bytes_per_token(shape: ModelShape, kind: TransferKind, *, is_backward: bool) -> int:
    """Give the bytes of one token in a transfer of this kind.

    >>> bytes_per_token(ModelShape(32, 8, 128, 2), TransferKind.OUT, is_backward=False)
    8320
    """
    if kind in (TransferKind.KV, TransferKind.DKV):
        return shape.kv_bytes
    if kind is TransferKind.OUT:
        return shape.out_bytes
    return shape.q_backward_bytes if kind is TransferKind.Q and is_backward else shape.q_bytes


def emit_transfers(workload: Workload, placement: Placement, schedule: Schedule) -> Transfers:
    """List what has to travel; O(W log W).

    An input is listed under the first division of its target that needs it, a result under the last
    division of its source that adds to it. Sorted by direction, inputs before results, division,
    block, source, target, kind.
    """
    q, kv = workload.compute_q, workload.compute_kv
    parts = [
        _transfers_of(kind, block, is_backward, workload, placement, schedule)
        for kind, block, is_backward in (
            (TransferKind.KV, kv, False), (TransferKind.Q, q, False), (TransferKind.OUT, q, False),
            (TransferKind.KV, kv, True), (TransferKind.Q, q, True), (TransferKind.DQ, q, True),
            (TransferKind.DKV, kv, True),
        )
    ]  # fmt: skip
    table = np.concatenate(parts)
    is_backward, kind, block, source, target, division, size = table.T
    is_result = kind >= TransferKind.OUT
    order = np.lexsort((kind, target, source, block, division, is_result, is_backward))
    return Transfers(
        is_backward=is_backward[order].astype(np.bool_),
        kind=kind[order].astype(np.uint8),
        block=block[order].astype(np.int32),
        source=source[order].astype(np.int32),
        target=target[order].astype(np.int32),
        division=division[order].astype(np.int32),
        size_bytes=size[order],
    )


def _transfers_of(
    kind: TransferKind,
    block: NDArray[np.int32],
    is_backward: bool,
    workload: Workload,
    placement: Placement,
    schedule: Schedule,
) -> NDArray[np.int64]:
    """Give the rows (is_backward, kind, block, source, target, division, size) of one kind."""
    owner = placement.device_of_data
    remote = np.flatnonzero(owner[block] != placement.device_of_compute)
    blocks = block[remote].astype(np.int64)
    device = placement.device_of_compute[remote].astype(np.int64)
    division = (schedule.backward_division if is_backward else schedule.division)[remote]
    order = np.lexsort((-division if kind.is_result else division, blocks, device))
    blocks, device, division = blocks[order], device[order], division[order]
    is_new = (np.diff(blocks, prepend=-1) != 0) | (np.diff(device, prepend=-1) != 0)
    blocks, device, division = blocks[is_new], device[is_new], division[is_new]
    home = owner[blocks].astype(np.int64)
    size = workload.block_tokens[blocks] * bytes_per_token(
        workload.shape, kind, is_backward=is_backward
    )
    source, target = (device, home) if kind.is_result else (home, device)
    full = np.full(len(blocks), 0, np.int64)
    return np.column_stack(
        [full + is_backward, full + int(kind), blocks, source, target, division, size]
    ).astype(np.int64)


def emit_programs(
    direction: Direction,
    placement: Placement,
    schedule: Schedule,
    transfers: Transfers,
    num_devices: int,
) -> tuple[DeviceProgram, ...]:
    """Write one program per device; O((W + X) log)."""
    parts = _Parts.of(direction, placement, schedule, transfers)
    return tuple(
        DeviceProgram(device, _program(device, parts, schedule.num_divisions))
        for device in range(num_devices)
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the instructions of one direction are made of, as ascending tuples by their place."""

    blocks: dict[tuple[int, ...], tuple[int, ...]]  # device
    tiles: dict[tuple[int, ...], tuple[int, ...]]  # device, division
    launches: dict[tuple[int, ...], tuple[int, ...]]  # device, is_result, division
    reductions: dict[tuple[int, ...], tuple[int, ...]]  # device

    @classmethod
    def of(
        cls,
        direction: Direction,
        placement: Placement,
        schedule: Schedule,
        transfers: Transfers,
    ) -> "_Parts":
        is_backward = direction == "backward"
        division = schedule.backward_division if is_backward else schedule.division
        chosen = np.flatnonzero(transfers.is_backward == is_backward)
        is_result = transfers.kind[chosen] >= TransferKind.OUT
        ends = np.concatenate([transfers.source[chosen], transfers.target[chosen]])
        return cls(
            blocks=_grouped(np.arange(len(placement.device_of_data)), placement.device_of_data),
            tiles=_grouped(np.arange(len(division)), placement.device_of_compute, division),
            launches=_grouped(
                np.tile(chosen, 2),
                ends,
                np.tile(is_result, 2),
                np.tile(transfers.division[chosen], 2),
            ),
            reductions=_grouped(chosen[is_result], transfers.target[chosen[is_result]]),
        )


def _grouped(
    items: NDArray[np.int64], *keys: NDArray[np.generic]
) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Group items by their keys, ascending within a group."""
    order = np.lexsort((items, *reversed(keys)))
    if order.size == 0:
        return {}
    columns = np.column_stack([key[order].astype(np.int64) for key in keys])
    starts = np.flatnonzero(np.append(True, (np.diff(columns, axis=0) != 0).any(axis=1)))
    runs = np.split(items[order], starts[1:])
    return {
        tuple(key): tuple(run.tolist())
        for key, run in zip(columns[starts].tolist(), runs, strict=True)
    }


def _program(device: int, parts: _Parts, num_divisions: int) -> tuple[Instruction, ...]:
    program: list[Instruction] = [Copy(parts.blocks.get((device,), ()))]

    def launch(is_result: bool, division: int) -> None:
        items = parts.launches.get((device, int(is_result), division))
        if items:
            key = division + num_divisions * is_result
            program.append(CommLaunch(key, division, items))

    def wait(is_result: bool, division: int) -> None:
        if (device, int(is_result), division) in parts.launches:
            program.append(CommWait(division + num_divisions * is_result, division))

    for division in range(num_divisions):
        if division:
            wait(False, division)
        launch(False, division + 1)
        tiles = parts.tiles.get((device, division))
        if tiles:
            program.append(Attention(division, tiles))
        launch(True, division)
    for division in range(num_divisions):
        wait(True, division)
    program.append(Reduction(num_divisions - 1, parts.reductions.get((device,), ())))
    return tuple(program)
