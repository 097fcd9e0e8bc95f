"""Memory that all ranks of a machine read: places of blocks, signals, streams that copy.

A shared window is one symmetric buffer (``torch.distributed._symmetric_memory``): each rank writes
into its own part and reads those of the others. A signal is one bit per channel and pair of ranks:
`put` waits until it is 0 and sets it, `wait` waits until it is 1 and clears it. Both wait on the
device, in the current stream, while the host goes on.
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
"""Turns that results of one division after another take in their region."""
ALIGNMENT = 16
"""Bytes at whose multiples tensors begin."""
QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
FEWEST_QUEUES = 8
OVERLAPPING = "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"


class Mark:
    """A place in a stream."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's
        self._event.record(stream)

    def is_completed(self) -> bool:
        """Return whether the stream has come here."""
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Put the current stream behind it."""
        torch.cuda.current_stream().wait_event(self._event)


class CopyStream:
    """A stream of high priority: its copies start before the rest of a kernel that computes."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]

    def follow(self) -> None:
        """Go on behind what the current stream has to do so far."""
        self._stream.wait_stream(torch.cuda.current_stream())

    def entered(self) -> AbstractContextManager[object]:
        """Make it the current stream."""
        return torch.cuda.stream(self._stream)

    def run(self, work: Callable[[], object]) -> None:
        """Queue work."""
        with self.entered():
            work()

    def mark(self) -> Mark:
        """Return the place behind all that is queued."""
        return Mark(self._stream)


class WindowGroup:
    """The ranks of a group that share windows; torch finds them by `name`.

    torch's meeting for a window goes through `store`, of which it knows that half in C++ alone.
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
        # `symm_mem.empty` takes it from a pool, which would keep it when a window grows.
        self._memory = _SymmetricMemory.empty_strided_p2p((size_bytes,), (1,), torch.uint8, device)
        self._handle = symm_mem.rendezvous(self._memory, group.name)
        self._limit_ms = int(1000 * limit_s)
        self._rank, ranks = group.rank, range(group.size)
        self.parts = [self._handle.get_buffer(r, (size_bytes,), torch.uint8) for r in ranks]
        self._pads = [self._handle.get_signal_pad(r, dtype=torch.int32) for r in ranks]
        self.num_channels = self._pads[0].numel() // group.size

    def put(self, rank: int, channel: int) -> None:
        """Signal a rank what the current stream has done."""
        self._handle.put_signal(rank, channel, self._limit_ms)

    def wait(self, rank: int, channel: int) -> None:
        """Put the current stream behind a signal of a rank."""
        self._handle.wait_signal(rank, channel, self._limit_ms)

    def release(self, stream: CopyStream) -> None:
        """Answer the signals of this rank by those it waits for, on a stream of their own."""
        for rank, pad in enumerate(self._pads):
            if rank == self._rank:
                stream.run(partial(pad.fill_, 1))
            else:
                mine = pad[: self.num_channels * len(self._pads)].view(self.num_channels, -1)
                stream.run(mine[:, self._rank].zero_)


@dataclass(frozen=True, slots=True)
class WindowPlaces:
    """Places of the blocks of one plan and direction in the regions of a window.

    Attributes:
        places: by the index of a transfer, also of what near ranks send: its first byte in the
            region or the half, and the half of a result.
        copied: transfers that take a block into the window, for all its targets.
        unsent: numbers of inputs and of results that go to near ranks.
        awaited: inputs that come from each near rank.
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
        """Lay out what a rank sends to near ranks; those tell it the places of their own blocks."""
        places, known = dict[int, tuple[int, int]](), dict[tuple[int, ...], tuple[int, int]]()
        ends, turns = Counter[int](), dict[tuple[int, int], int]()
        copied, unsent, awaited, count = set[int](), Counter[bool](), Counter[int](), 0
        for launch, x in _near_launches(part, direction, near):
            count += 1
            if not x.is_send:
                awaited[x.peer] += not x.kind.is_result
                continue
            unsent[x.kind.is_result] += 1
            # A result has one target; all targets of an input get the same.
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
    """Yield what a program sends to near ranks and takes from them, in order."""
    for step, _ in part.of(direction).steps:
        if isinstance(step, CommLaunch):
            for index in step.transfers:
                if part.transfers[index].peer in near:
                    yield step, part.transfers[index]


def places(part: Tensor, offset: int, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return where tensors of these shapes lie one after another in a part of a window.

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
