"""GPU memory that all ranks of a machine read: places of blocks, signals, streams that copy.

A shared window is one symmetric buffer (``torch.distributed._symmetric_memory``): each rank writes
into its own part and reads the parts of the others. A signal is one bit per channel and ordered
pair of ranks: `put` waits until it is 0 and sets it, `wait` waits until it is 1 and clears it. Both
wait on the device, in the current stream, while the host goes on.
"""

import os
import socket
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import torch
from torch import Tensor
from torch._C._distributed_c10d import (
    ProcessGroup,
    Store,
    _register_process_group,
    _SymmetricMemory,
    _unregister_process_group,
)
from torch.distributed import _symmetric_memory as symm_mem
from torch.distributed.distributed_c10d import GroupName

from dcp_planner import Direction
from dcp_planner.tables import CommLaunch
from dcp_runtime.errors import RunError
from dcp_runtime.plans.device_plan import DevicePlan, Transfer
from dcp_runtime.transport.transport import RowBytes

HALVES = 2
"""Parts of the region of results: results of one division fill a half while the other is read."""
ALIGNMENT = 16
"""Bytes at whose multiples tensors begin."""
QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
"""Variable with the number of queues to a GPU; streams that share one can wait for each other."""
FEWEST_QUEUES = 8
OVERLAPPING = "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"
TORCH_LIMIT = 2, 15
"""From this version on, signals of a group wait for those before them, on whichever streams they
are: two ranks would wait for each other's readers, and neither would read."""


class Mark:
    """A place in a stream."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's
        self._event.record(stream)

    def is_completed(self) -> bool:
        """Return whether the stream has passed this place."""
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Make the current stream wait for it."""
        torch.cuda.current_stream().wait_event(self._event)


class CopyStream:
    """A stream of high priority: its copies start before the rest of a kernel that computes."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]

    def follow(self) -> None:
        """Wait for the work that is queued in the current stream now."""
        self._stream.wait_stream(torch.cuda.current_stream())

    def entered(self) -> AbstractContextManager[object]:
        """Make it the current stream."""
        return torch.cuda.stream(self._stream)

    def run(self, work: Callable[[], object]) -> None:
        """Queue work."""
        with self.entered():
            work()

    def mark(self) -> Mark:
        """Return the place behind all work that is queued now."""
        return Mark(self._stream)


class WindowGroup:
    """The ranks of a group that share windows; torch finds them by `name`.

    When torch makes a window the ranks meet through `store`. The group is registered in C++ alone,
    which is the half of a process group that this meeting reads.
    """

    def __init__(self, group: ProcessGroup, store: Store) -> None:
        self.rank, self.size, self._store = group.rank(), group.size(), store
        self.name, cpu = GroupName(f"{group.group_name} windows"), torch.device("cpu")
        self._group = ProcessGroup(store, self.rank, self.size)
        # torch takes the names in its records from a backend.
        self._group._register_backend(cpu, ProcessGroup.BackendType.GLOO, group._get_backend(cpu))
        _register_process_group(self.name, self._group)

    def close(self) -> None:
        """Make no more windows."""
        _unregister_process_group(self.name)


class SharedWindow:
    """Symmetric memory of the ranks of a group, `size_bytes` on each; collective.

    Ranks count within the group. `limit_s` ends a wait for a signal, and with it the process.
    """

    def __init__(self, size_bytes: int, group: WindowGroup, limit_s: float) -> None:
        device = torch.device("cuda", torch.cuda.current_device())
        # `symm_mem.empty` takes memory from a pool, which would keep it when a window grows.
        self._memory = _SymmetricMemory.empty_strided_p2p((size_bytes,), (1,), torch.uint8, device)
        self._handle = symm_mem.rendezvous(self._memory, group.name)
        self._limit_ms = int(1000 * limit_s)
        self._rank, ranks = group.rank, range(group.size)
        self.parts = [self._handle.get_buffer(r, (size_bytes,), torch.uint8) for r in ranks]
        self._pads = [self._handle.get_signal_pad(r, dtype=torch.int32) for r in ranks]
        self.num_channels = self._pads[0].numel() // group.size
        # CUDA may wait for all kernels before it loads one: those of `release` are loaded now.
        for answer in self._answers([torch.zeros_like(pad) for pad in self._pads]):
            answer()

    def put(self, rank: int, channel: int) -> None:
        """Signal a rank that the current stream has come this far."""
        self._handle.put_signal(rank, channel, self._limit_ms)

    def wait(self, rank: int, channel: int) -> None:
        """Make the current stream wait for a signal of a rank."""
        self._handle.wait_signal(rank, channel, self._limit_ms)

    def release(self, stream: CopyStream) -> None:
        """Let all waits of this rank end, as if every other rank had answered."""
        for answer in self._answers(self._pads):
            stream.run(answer)

    def _answers(self, pads: Sequence[Tensor]) -> Iterator[Callable[[], object]]:
        # A pad has a row per channel and a column per rank that signals: its owner waits for 1
        # there, the other rank for 0 before it signals again.
        for rank, pad in enumerate(pads):
            if rank == self._rank:
                yield partial(pad.fill_, 1)
            else:
                mine = pad[: self.num_channels * len(pads)].view(self.num_channels, -1)
                yield mine[:, self._rank].zero_


@dataclass(frozen=True, slots=True)
class WindowPlaces:
    """Places of the blocks of one plan and direction in the regions of a window.

    Attributes:
        places: by the index of a transfer to or from a near rank: the first byte in the region of
            inputs, or in a half of that of results, and the number of the half.
        copied: transfers that copy their block into the window, for all its targets.
        unsent: how many inputs, and how many results (``True``), go to near ranks.
        awaited: how many inputs come from each near rank.
        count: transfers to and from near ranks.
        needed: bytes of the region of inputs, and of a half of that of results.
    """

    places: Mapping[int, tuple[int, int]]
    copied: Set[int]
    unsent: Counter[bool]
    awaited: Counter[int]
    count: int
    needed: tuple[int, int]

    @classmethod
    def of(
        cls,
        part: DevicePlan,
        direction: Direction,
        row_bytes: RowBytes,
        near: Container[int],
    ) -> Self:
        """Lay out the blocks that a rank sends to near ranks; those tell it their own places."""
        places, known = dict[int, tuple[int, int]](), dict[tuple[int, ...], tuple[int, int]]()
        # Bytes laid out so far, by turn: -1 for all inputs, then a turn for the results of each
        # division and hop. Every turn begins at the start of its half, in the place of the results
        # of the turn before the last.
        ends, turns = Counter[int](), dict[tuple[int, int], int]()
        copied, unsent, awaited, count = set[int](), Counter[bool](), Counter[int](), 0
        for launch, x in _near_launches(part, direction, near):
            count += 1
            if not x.is_send:
                awaited[x.peer] += not x.kind.is_result
                continue
            unsent[x.kind.is_result] += 1
            # A result has one target; all targets of an input read the same copy.
            copy: tuple[int, ...] = -1, x.kind, x.block, x.brought_by
            turn = -1
            if x.kind.is_result:
                copy, turn = (x.index,), turns.setdefault((launch.division, x.hop), len(turns))
            if copy not in known:
                copied.add(x.index)
                known[copy] = ends[turn], max(0, turn) % HALVES
                ends[turn] += sum(aligned(x.num_tokens * width) for width in row_bytes(x.kind))
            places[x.index] = known[copy]
        needed = ends.pop(-1, 0), max(ends.values(), default=0)
        return cls(places, copied, unsent, awaited, count, needed)


def _near_launches(
    part: DevicePlan, direction: Direction, near: Container[int]
) -> Iterator[tuple[CommLaunch, Transfer]]:
    """Yield the transfers of a program to and from near ranks, in order."""
    for step, _ in part.of(direction).steps:
        if isinstance(step, CommLaunch):
            for index in step.transfers:
                if part.transfers[index].peer in near:
                    yield step, part.transfers[index]


def places(part: Tensor, offset: int, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the places of tensors of these shapes, one after another in a part of a window.

    >>> a, b = places(torch.zeros(64, dtype=torch.uint8), 16, torch.ones(2, 3, 1))
    >>> a.shape, a.dtype, b.storage_offset()
    (torch.Size([3, 1]), torch.float32, 8)
    """
    found = []
    for tensor in tensors:
        place = part[offset : offset + tensor.nbytes].view(tensor.dtype)
        found.append(place.view(tensor.shape))
        offset += aligned(tensor.nbytes)
    return found


def aligned(size_bytes: int) -> int:
    """Round bytes up to the alignment."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def host_name() -> str:
    """Return a name of this machine."""
    # Machines may share a host name, but not the id of their last boot.
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot.read_text().strip() if boot.exists() else ''}"


def device_index() -> int:
    """Return the number of this rank's GPU on its machine; -1 without CUDA."""
    return torch.cuda.current_device() if torch.cuda.is_available() else -1


def check_device(mine: int, others: Sequence[int]) -> None:
    """Refuse GPUs of one machine that cannot read each other's memory.

    Raises:
        RunError: says why, and the way out.
    """
    way_out = 'make the executor without transport="symmetric"'
    if mine < 0:
        raise RunError(f'transport="symmetric" needs CUDA, and torch sees no device; {way_out}')
    if tuple(map(int, torch.__version__.split(".")[:2])) >= TORCH_LIMIT:
        raise RunError(
            f'transport="symmetric" needs a torch before {TORCH_LIMIT[0]}.{TORCH_LIMIT[1]}, this '
            f"is {torch.__version__}, where a signal waits for those on other streams; {way_out}"
        )
    if not others:
        raise RunError(
            f'transport="symmetric" needs ranks that share a machine, and no other runs on '
            f"{socket.gethostname()}; {way_out}: NCCL carries blocks between machines"
        )
    if mine in others and os.environ.get(OVERLAPPING) != "1":
        raise RunError(
            f"expected a GPU for each rank, got cuda:{mine} for two of {socket.gethostname()}; let "
            "each process see all GPUs and call torch.cuda.set_device(LOCAL_RANK) before, or, to "
            f"try several ranks on one GPU, set {OVERLAPPING}=1"
        )
    reaches = torch.cuda.can_device_access_peer
    if far := [other for other in others if other != mine and not reaches(mine, other)]:
        raise RunError(
            f"cuda:{mine} cannot read the memory of cuda:{far[0]}: the machine has no peer-to-peer "
            f"access between them; {way_out}"
        )
    backend = symm_mem.get_backend(torch.device("cuda", mine))
    if backend != "CUDA":
        raise RunError(
            f"expected torch's symmetric memory on the backend CUDA, got {backend}; leave the "
            f"variable TORCH_SYMMMEM unset, or {way_out}"
        )
    queues = os.environ.get(QUEUES, str(FEWEST_QUEUES))
    if int(queues) < FEWEST_QUEUES:
        raise RunError(
            f"expected {QUEUES} of at least {FEWEST_QUEUES}, got {queues}: streams that wait for "
            f"signals would hold up those that compute; unset it, or {way_out}"
        )
