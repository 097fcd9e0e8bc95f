"""Clock alignment: the events of all ranks on the clock of rank 0.

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
from dcp_runtime.transport.recorder import EventTable, Recorder, make_trace
from dcp_runtime.transport.store_barrier import StoreBarrier

PINGS = 8
_PLACE = "gathering the trace"


@dataclass(frozen=True, slots=True)
class Timeline:
    """A measured trace of all ranks."""

    trace: Trace
    uncertainty_s: float


def gather_timeline(
    group: dist.ProcessGroup, barrier: StoreBarrier, recorder: Recorder
) -> Timeline | None:
    """Collect the events of all ranks on rank 0, on its clock; collective; ``None`` elsewhere."""
    barrier.exchange_notes("", _PLACE)
    if dist.get_rank(group) != 0:
        data = _pack(*recorder.table())
        with barrier.waiting_for(0, _PLACE):
            _answer(group)
            _send(group, data)
        return None
    parts, uncertainties_ns = [recorder.table()], [0]
    for peer in range(1, dist.get_world_size(group)):
        with barrier.waiting_for(peer, _PLACE):
            offset_ns, uncertainty_ns = _ping(group, peer)
            table, names = _unpack(_receive(group, peer))
        table[:, :3] += offset_ns
        parts.append((table, names))
        uncertainties_ns.append(uncertainty_ns)
    return merge_timelines(parts, farthest_apart(uncertainties_ns) / 1e9)


def farthest_apart(uncertainties: Sequence[int]) -> int:
    """Return how far two clocks may be apart that are off by so much each: both in opposite ways.

    >>> farthest_apart([0, 30, 20]), farthest_apart([0])
    (50, 0)
    """
    return sum(sorted(uncertainties)[-2:])


def merge_timelines(
    parts: Sequence[tuple[EventTable, tuple[str, ...]]], uncertainty_s: float
) -> Timeline:
    """Make one trace of the tables of all ranks (`Recorder.table`), which are on one clock."""
    table = np.concatenate([table for table, _ in parts])
    names = tuple(name for _, names in parts for name in names)
    return Timeline(make_trace(table, names), uncertainty_s)


def _ping(group: dist.ProcessGroup, peer: int) -> tuple[int, int]:
    """Return what to add to a rank's clock, and by how much that may be wrong, in ns."""
    best_ns = 0, np.iinfo(np.int64).max
    to = dist.get_global_rank(group, peer)
    answer = torch.zeros(1, dtype=torch.int64)
    for _ in range(PINGS):
        sent = time.perf_counter_ns()
        dist.send(answer, to, group)
        dist.recv(answer, to, group)
        back = time.perf_counter_ns()
        if (back - sent + 1) // 2 < best_ns[1]:
            best_ns = (sent + back) // 2 - int(answer), (back - sent + 1) // 2
    return best_ns


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


def _unpack(data: bytes) -> tuple[EventTable, tuple[str, ...]]:
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return arrays["table"], tuple(arrays["names"].tolist())


def _send(group: dist.ProcessGroup, data: bytes) -> None:
    to = dist.get_global_rank(group, 0)
    dist.send(torch.tensor([len(data)]), to, group)
    dist.send(torch.frombuffer(bytearray(data), dtype=torch.uint8), to, group)


def _receive(group: dist.ProcessGroup, peer: int) -> bytes:
    source = dist.get_global_rank(group, peer)
    size = torch.zeros(1, dtype=torch.int64)
    dist.recv(size, source, group)
    data = torch.empty(int(size), dtype=torch.uint8)
    dist.recv(data, source, group)
    return data.numpy().tobytes()
