"""Symmetric memory without a GPU: shared files between real processes, and threads as streams.

A signal is a 32-bit word: `put_signal` waits until it is 0 and sets it, `wait_signal` waits until
it is 1 and clears it, as CUDA's do; past its limit of time it ends the process, as their trap does.
A stream is a thread that does what is queued, in order, each piece after a short random while; the
host is the stream that computes. What goes over NCCL between nodes goes over gloo.
"""

import itertools
import os
import queue
import random
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torch.distributed as dist

from dcp_runtime.transport import nccl_transport, symmetric_memory, symmetric_transport
from dcp_runtime.transport.group_transport import make_group

PAD_WORDS = 32 * 72
TRAPPED = 86


class ThreadMark:
    def __init__(self):
        self.event = threading.Event()

    def is_completed(self):
        return self.event.is_set()

    def wait(self):
        self.event.wait()


class ThreadStream:
    """Takes the place of `CopyStream`, method by method."""

    longest_nap_s = 1e-3

    def __init__(self):
        self.queue = queue.SimpleQueue()
        self.random = random.Random(os.getpid())
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            work = self.queue.get()
            time.sleep(self.random.random() * ThreadStream.longest_nap_s)
            work()

    def follow(self):
        """Nothing to wait for: what the host has queued so far, it has done."""

    def run(self, work):
        self.queue.put(work)

    def mark(self):
        mark = ThreadMark()
        self.queue.put(mark.event.set)
        return mark

    @contextmanager
    def entered(self):
        self.mark().wait()
        yield


class Handle:
    """The part of ``_SymmetricMemory`` that a window takes."""

    def __init__(self, rank, buffers, pads):
        self.rank, self.buffers, self.pads = rank, buffers, pads

    def get_buffer(self, rank, sizes, dtype):
        assert (sizes, dtype) == ((self.buffers[rank].numel(),), torch.uint8)
        return self.buffers[rank]

    def get_signal_pad(self, rank, dtype):
        assert dtype == torch.int32
        return self.pads[rank]

    def put_signal(self, rank, channel, limit_ms):
        self.swap(rank, channel, self.rank, 0, 1, limit_ms)

    def wait_signal(self, rank, channel, limit_ms):
        self.swap(self.rank, channel, rank, 1, 0, limit_ms)

    def swap(self, pad, channel, word, old, new, limit_ms):
        words, deadline = self.pads[pad].numpy(), time.monotonic() + limit_ms / 1e3
        index = channel * len(self.pads) + word
        assert 0 <= index < PAD_WORDS
        assert limit_ms > 60_000, "ends the process before the executor's own limit"
        while words[index] != old:
            if time.monotonic() > deadline:
                os._exit(TRAPPED)
            time.sleep(5e-5)
        words[index] = new


class SharedFiles:
    """The part of torch's symmetric memory that makes windows, in files of one folder."""

    def __init__(self, folder):
        self.folder, self.counter = Path(folder), itertools.count()

    def empty_strided_p2p(self, size, stride, dtype, device):
        assert (stride, dtype, device.type) == ((1,), torch.uint8, "cuda")
        self.number = next(self.counter)
        return self.map(dist.get_rank(), "buffer", size[0], torch.uint8)

    def rendezvous(self, memory, group):
        self.map(dist.get_rank(), "pad", PAD_WORDS, torch.int32)
        dist.barrier(group=group)
        ranks = dist.get_process_group_ranks(group)
        buffers = [self.map(rank, "buffer", memory.numel(), torch.uint8) for rank in ranks]
        pads = [self.map(rank, "pad", PAD_WORDS, torch.int32) for rank in ranks]
        assert all(len(buffer) == len(memory) for buffer in buffers)
        return Handle(group.rank(), buffers, pads)

    def map(self, rank, name, size, dtype):
        path = str(self.folder / f"{name}-{self.number}-{rank}")
        return torch.from_file(path, shared=True, size=size, dtype=dtype)


class GlooWork:
    """A message of gloo that a thread waits for, so that asking about it says something."""

    def __init__(self, work):
        self.work, self.error = work, None
        self.thread = threading.Thread(target=self.follow, daemon=True)
        self.thread.start()

    def follow(self):
        try:
            self.work.wait()
        except RuntimeError as error:
            self.error = error

    def is_completed(self):
        return not self.thread.is_alive()

    def wait(self):
        self.thread.join()
        if self.error is not None:
            raise self.error


def batch_isend_irecv(operations):
    return [GlooWork(each.op(each.tensor, each.peer, each.group)) for each in operations]


def install(folder, nodes):
    """Replace what needs a GPU in this process; ranks lie on so many nodes, in order."""
    node, device = divmod(dist.get_rank(), dist.get_world_size() // nodes)
    files = SharedFiles(folder)
    symmetric_memory._SymmetricMemory = symmetric_memory.symm_mem = files
    for name in ("__init__", "follow", "run", "entered", "mark"):
        setattr(symmetric_memory.CopyStream, name, getattr(ThreadStream, name))
    symmetric_memory.CopyStream.serve = ThreadStream.serve
    symmetric_transport.host_name = lambda: f"node {node}"
    symmetric_transport.device_index = lambda: device
    symmetric_transport.check_device = lambda mine, others: None
    torch.cuda.current_device = lambda: device
    torch.cuda.set_device = lambda device: None
    torch.cuda.is_current_stream_capturing = lambda: False
    nccl_transport.torch = SimpleNamespace(
        cuda=torch.cuda, zeros=lambda count, device: torch.zeros(count)
    )
    nccl_transport.make_group = lambda ranks, backend, limit_s: make_group(ranks, "gloo", limit_s)
    nccl_transport.abort_group = lambda group: None
    dist.batch_isend_irecv = batch_isend_irecv


def whole(rows, tensors, tokens):
    """Bring the rows of all ranks together, on rank 0; ``None`` elsewhere."""
    parts = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object((rows.numpy(), tensors), parts)
    if parts is None:
        return None
    found = {}
    for mine, values in parts:
        for name, value in values.items():
            empty = torch.full((tokens, *value.shape[1:]), torch.nan, dtype=value.dtype)
            found.setdefault(name, empty)[np.asarray(mine)] = value
    return found
