"""Memory that all ranks of a node can read, its signals, and streams that copy beside kernels.

A window is one symmetric buffer (``torch.distributed._symmetric_memory``): each rank writes into
its own part and reads those of the others. A signal is one bit per channel and pair of ranks: `put`
waits until it is 0 and sets it, `wait` waits until it is 1 and clears it. Both wait on the device,
in the current stream, while the host goes on.
"""

import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _SymmetricMemory
from torch.distributed import _symmetric_memory as symm_mem

from dcp_runtime.errors import RunError

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


class Window:
    """Symmetric memory of the ranks of a group, `size_bytes` on each; collective.

    Ranks count within the group. `limit_s` ends a wait for a signal, and with it the process.
    """

    def __init__(self, size_bytes: int, group: dist.ProcessGroup, limit_s: float) -> None:
        device = torch.device("cuda", torch.cuda.current_device())
        # `symm_mem.empty` takes it from a pool, which would keep it when a window grows.
        self._memory = _SymmetricMemory.empty_strided_p2p((size_bytes,), (1,), torch.uint8, device)
        self._handle = symm_mem.rendezvous(self._memory, group)
        self._limit_ms = int(1000 * limit_s)
        self._rank, ranks = group.rank(), range(group.size())
        self.parts = [self._handle.get_buffer(r, (size_bytes,), torch.uint8) for r in ranks]
        self._pads = [self._handle.get_signal_pad(r, dtype=torch.int32) for r in ranks]
        self.num_channels = self._pads[0].numel() // group.size()

    def put(self, rank: int, channel: int) -> None:
        """Signal a rank what the current stream has done."""
        self._handle.put_signal(rank, channel, self._limit_ms)

    def wait(self, rank: int, channel: int) -> None:
        """Put the current stream behind a signal of a rank."""
        self._handle.wait_signal(rank, channel, self._limit_ms)

    def release(self, stream: CopyStream, is_over: Callable[[], bool], limit_s: float) -> None:
        """Answer all signals of this rank by those it waits for, until its streams have ended."""
        deadline = time.monotonic() + limit_s
        while not is_over() and time.monotonic() < deadline:
            for rank, pad in enumerate(self._pads):
                if rank == self._rank:
                    stream.run(partial(pad.fill_, 1))
                else:
                    mine = pad[: self.num_channels * len(self._pads)]
                    mine = mine.view(self.num_channels, -1)[:, self._rank]
                    stream.run(mine.zero_)
            time.sleep(1e-3)


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
