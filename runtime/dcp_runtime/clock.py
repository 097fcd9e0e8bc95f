"""All ranks' events on one clock.

Rank 0 pings each rank a few times; the ping with the shortest round trip gives the offset of that
rank's clock, which is uncertain by half that round trip (NTP's rule). On one machine the monotonic
clocks agree anyway and the offsets only show how small the error is.
"""

import io
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from dcp_planner import Trace
from dcp_runtime.recorder import EventTable, Recorder, make_trace

PINGS = 8


@dataclass(frozen=True, slots=True)
class Timeline:
    """A measured trace of all ranks.

    Attributes:
        trace: events of all ranks; times count from the first event of any rank.
        uncertainty_s: how far the clocks of two ranks may be apart after alignment.
    """

    trace: Trace
    uncertainty_s: float


def gather_timeline(group: dist.ProcessGroup, recorder: Recorder) -> Timeline | None:
    """Collect the events of all ranks on rank 0, on its clock; collective; ``None`` elsewhere."""
    offsets_ns, uncertainty_ns = _align(group)
    table, names = recorder.table()
    table[:, :2] += offsets_ns
    gathered = _gather(group, _pack(table, names))
    if dist.get_rank(group) != 0:
        return None
    return merge_timelines([_unpack(part) for part in gathered], uncertainty_ns / 1e9)


def merge_timelines(
    parts: Sequence[tuple[EventTable, tuple[str, ...]]], uncertainty_s: float
) -> Timeline:
    """Make one trace of the tables of all ranks (`Recorder.table`), which are on one clock."""
    table = np.concatenate([table for table, _ in parts])
    names = tuple(name for _, names in parts for name in names)
    return Timeline(make_trace(table, names), uncertainty_s)


def _align(group: dist.ProcessGroup) -> tuple[int, int]:
    """Give what to add to this rank's clock, and the largest uncertainty of any rank, in ns."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    result = torch.zeros(size, 2, dtype=torch.int64)  # offset, uncertainty
    for peer in range(1, size):
        if rank == 0:
            result[peer] = _ping(group, peer)
        elif rank == peer:
            _answer(group)
    dist.broadcast(result, dist.get_global_rank(group, 0), group)
    return int(result[rank, 0]), int(result[:, 1].max())


def _ping(group: dist.ProcessGroup, peer: int) -> torch.Tensor:
    best = torch.tensor([0, np.iinfo(np.int64).max])
    to = dist.get_global_rank(group, peer)
    answer = torch.zeros(1, dtype=torch.int64)
    for _ in range(PINGS):
        sent = time.perf_counter_ns()
        dist.send(answer, to, group)
        dist.recv(answer, to, group)
        back = time.perf_counter_ns()
        if (back - sent) // 2 < best[1]:
            best = torch.tensor([(sent + back) // 2 - int(answer), (back - sent) // 2])
    return best


def _answer(group: dist.ProcessGroup) -> None:
    to = dist.get_global_rank(group, 0)
    ping = torch.zeros(1, dtype=torch.int64)
    for _ in range(PINGS):
        dist.recv(ping, to, group)
        dist.send(torch.tensor([time.perf_counter_ns()]), to, group)


def _pack(table: EventTable, names: tuple[str, ...]) -> bytes:
    data = io.BytesIO()
    np.savez(data, table=table, names=np.array(names, dtype=np.str_))
    return data.getvalue()


def _unpack(
    data: bytes,
) -> tuple[EventTable, tuple[str, ...]]:
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return arrays["table"], tuple(arrays["names"].tolist())


def _gather(group: dist.ProcessGroup, data: bytes) -> list[bytes]:
    """Give the bytes of every rank, to every rank."""
    count = dist.get_world_size(group)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(count)]
    dist.all_gather(sizes, torch.tensor([len(data)]), group)
    longest = max(int(size) for size in sizes)
    mine = torch.zeros(longest, dtype=torch.uint8)
    mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    all_data = [torch.zeros(longest, dtype=torch.uint8) for _ in range(count)]
    dist.all_gather(all_data, mine, group)
    return [part[: int(size)].numpy().tobytes() for part, size in zip(all_data, sizes, strict=True)]
