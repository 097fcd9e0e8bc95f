"""Symmetric memory without a GPU: shared files between real processes, and threads as streams.

A signal is a 32-bit word: `put_signal` waits until it is 0 and sets it, `wait_signal` waits until
it is 1 and clears it, as CUDA's do; past its limit of time it ends the process, as their trap does.
A stream is a thread that does what is queued, in order, each piece after a short random while; the
host is the stream that computes. What goes over NCCL between nodes goes over gloo. A graph notes
what the host computes and queues, and does it again.
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

import torch
import torch.distributed as dist
from layer_runs import whole_of
from torch._C._distributed_c10d import _resolve_process_group
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dcp_runtime.transport import nccl_transport, symmetric_memory, symmetric_transport
from dcp_runtime.transport.group_transport import make_group

PAD_WORDS = 32 * 72
TRAPPED = 86


class ThreadMark:
    def __init__(self, stream):
        self.event, self.stream, self.graph = threading.Event(), stream, Graph.capturing
        self.place = stream.queued

    def is_completed(self):
        assert self.graph is None, "CUDA refuses: the event is part of a graph"
        return self.event.is_set()

    def wait(self):
        if Graph.capturing and threading.current_thread() is threading.main_thread():
            assert self.graph is Graph.capturing, "CUDA refuses: the event is not of this graph"
            Graph.capturing.note(lambda: self.event.wait())
            Graph.capturing.joined[self.stream] = self.place
        else:
            self.event.wait()


class Graph(TorchDispatchMode):
    """Notes tensors that the host computes while it captures, and work that it queues on streams.

    Nothing that is queued is done before a replay, as on CUDA. What the host computes is done, on
    whatever the blocks that did not come hold, and written into the same tensors in each replay.
    """

    capturing = None

    def __init__(self):
        super().__init__()
        self.steps, self.forked, self.joined = [], set(), {}

    def __enter__(self):
        Graph.capturing = self
        return super().__enter__()

    def __exit__(self, *error):
        Graph.capturing = None
        super().__exit__(*error)
        late = [stream for stream in self.forked if self.joined.get(stream) != stream.queued]
        assert error[0] or not late, "CUDA refuses: a stream of the graph goes on beyond its end"

    def note(self, step):
        self.steps.append(step)

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        options = options or {}
        made = function(*arguments, **options)
        results = made if isinstance(made, tuple | list) else (made,)
        given = [x for x in tree_leaves((arguments, options)) if isinstance(x, torch.Tensor)]
        new = [x for x in results if isinstance(x, torch.Tensor) and all(x is not y for y in given)]

        def again():
            found = function(*arguments, **options)
            found = found if isinstance(found, tuple | list) else (found,)
            for old, fresh in zip(results, found, strict=True):
                if not isinstance(old, torch.Tensor):
                    assert old == fresh, "the host would not know"
                elif old is not fresh:
                    old.copy_(fresh)

        places = {x.untyped_storage().data_ptr() for x in given}
        if all(x.untyped_storage().data_ptr() not in places for x in new):  # views stay as they are
            self.note(again)
        return made

    def replay(self):
        for step in self.steps:
            step()


class ThreadStream:
    """Takes the place of `CopyStream`, method by method."""

    longest_nap_s = 5e-4

    def __init__(self):
        self.queue, self.queued = queue.SimpleQueue(), 0
        self.random = random.Random(os.getpid())
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            work = self.queue.get()
            time.sleep(self.random.random() * ThreadStream.longest_nap_s)
            work()

    def follow(self):
        """Nothing to wait for: what the host has queued so far, it has done."""
        if Graph.capturing:
            Graph.capturing.forked.add(self)

    def run(self, work):
        self.queued += 1
        graph = Graph.capturing
        if graph is None:
            self.queue.put(work)
        else:
            assert self in graph.forked, "the graph would not hold it"
            graph.note(lambda: self.queue.put(work))

    def mark(self):
        mark = ThreadMark(self)
        if Graph.capturing:
            assert self in Graph.capturing.forked, "CUDA refuses: the event is of no graph"
            Graph.capturing.note(mark.event.clear)
            Graph.capturing.note(lambda: self.queue.put(mark.event.set))
        else:
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
        assert (sizes, dtype) == ((len(self.buffers[rank]),), torch.uint8)
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
                self.trap()
            time.sleep(5e-5)
        words[index] = new

    def trap(self):
        os._exit(TRAPPED)


class SharedFiles:
    """The part of torch's symmetric memory that makes windows, in files of one folder."""

    def __init__(self, folder):
        self.folder, self.counter = Path(folder), itertools.count()
        # As torch counts: all meetings of a process, so ranks may differ.
        self.meetings = itertools.count(2 * dist.get_rank())

    def empty_strided_p2p(self, size, stride, dtype, device):
        assert (stride, dtype, device.type) == ((1,), torch.uint8, "cuda")
        self.number = next(self.counter)
        return self.map(dist.get_rank(), "buffer", size[0], torch.uint8)

    def rendezvous(self, memory, name):
        """Meet through the store of a group, as torch does in C++: a gathering, then a barrier."""
        group = _resolve_process_group(name)
        store = group.get_group_store()
        self.map(dist.get_rank(), "pad", PAD_WORDS, torch.int32)
        self.arrive("before meeting")
        ranks = list(map(int, self.gather(group, store, str(dist.get_rank()))))
        self.arrive("before barrier")
        if hasattr(store, "barrier"):
            store.barrier(f"CUDASymmetricMemory/{next(self.meetings)}", group.size())
        else:  # up to torch 2.11
            self.gather(group, store, "0")
        buffers = [self.map(rank, "buffer", memory.numel(), torch.uint8) for rank in ranks]
        pads = [self.map(rank, "pad", PAD_WORDS, torch.int32) for rank in ranks]
        assert all(len(buffer) == len(memory) for buffer in buffers)
        return Handle(group.rank(), buffers, pads)

    def gather(self, group, store, value):
        number = next(self.meetings)
        keys = [f"CUDASymmetricMemory/{number}/{rank}" for rank in range(group.size())]
        store.set(keys[group.rank()], value)
        if hasattr(store, "barrier"):
            return store.multi_get(keys)
        for key in keys:  # one by one up to torch 2.11
            store.wait([key])
        return [store.get(key) for key in keys]

    def arrive(self, place):
        """Nothing fails here, unless a test says so."""

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
    """Replace what needs a GPU in this process; ranks lie on so many nodes, in order.

    Returns the maker of windows, whose `arrive` is called at two places of a meeting: for faults.
    """
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
    torch.cuda.is_current_stream_capturing = lambda: Graph.capturing is not None
    nccl_transport.torch = SimpleNamespace(
        cuda=torch.cuda, zeros=lambda count, device: torch.zeros(count)
    )
    nccl_transport.make_group = lambda ranks, backend, limit_s: make_group(ranks, "gloo", limit_s)
    nccl_transport.abort_group = lambda group: None
    dist.batch_isend_irecv = batch_isend_irecv
    return files


def whole(rows, tensors, tokens):
    """Bring the rows of all ranks together, on rank 0; ``None`` elsewhere."""
    parts = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object((rows.numpy(), tensors), parts)
    return parts and whole_of(parts, tokens)
