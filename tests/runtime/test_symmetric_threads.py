"""Symmetric memory on ranks that are threads: exact results, and what every stream is given to do.

Inside a node threads work off streams and wait for signals; between nodes is the model of NCCL of
`test_nccl`. A window is a tensor of this process, with so few channels that their numbers wrap.
"""

import threading
import time
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from operator import itemgetter
from types import SimpleNamespace

import pytest
import symmetric_stand_in
import torch
from test_nccl import StandIn
from torch.utils._python_dispatch import TorchDispatchMode

from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan
from dcp_runtime import DCPExecutor, RunError
from dcp_runtime.transport import (
    group_store,
    group_transport,
    nccl_transport,
    symmetric_memory,
    symmetric_transport,
)
from dcp_runtime.transport.symmetric_transport import SymmetricTransport

Lane = symmetric_transport._Lane
TIMEOUT_S, CHANNELS = 20.0, 8
LIMIT_MS = 1000 * (2 * 20 + 60)


class NotedStream(symmetric_stand_in.ThreadStream):
    """A stream that notes what it is given, in the order of its rank's host."""

    def __init__(self):
        super().__init__()
        # A thread that watches messages is no rank's host.
        self.told = getattr(Machine.me, "told", [])
        self.describe, self.name = getattr(Machine.me, "describe", str), "a stream"

    def note(self, text):
        self.told.append((self.name, text))

    def follow(self):
        self.note("follow")

    def run(self, work):
        self.note(self.describe(work))
        super().run(work)

    def mark(self):
        self.note("mark")
        return super().mark()

    @contextmanager
    def entered(self):
        self.note("enter")
        yield


class Handle(symmetric_stand_in.Handle):
    """Of threads that are ranks: a signal that never comes must not end the process."""

    def swap(self, *arguments):
        assert arguments[-1] == LIMIT_MS
        super().swap(*arguments)

    def trap(self):
        threading.Event().wait()  # for good: the test has ended, or its ranks come too late


class Machine:
    """Replaces what needs a GPU; a rank is a thread, some ranks share a node."""

    me = threading.local()

    def __init__(self, size, nodes, monkeypatch):
        self.stand_in = StandIn(size)
        self.size, self.each, self.lock = size, size // nodes, threading.Lock()
        self.memories, self.names = {}, {}
        for module in (group_store, group_transport, nccl_transport):
            monkeypatch.setattr(module, "dist", self.stand_in)
        cuda = SimpleNamespace(is_current_stream_capturing=lambda: self.me.is_capturing)
        for module, name, made in (
            (nccl_transport, "torch", self.stand_in),
            (nccl_transport, "make_group", self.make_group),
            (nccl_transport, "abort_group", lambda group: group.abort()),
            (symmetric_transport, "make_group", self.make_group),
            (symmetric_transport, "host_name", lambda: f"node {self.me.rank // self.each}"),
            (symmetric_transport, "device_index", lambda: self.me.rank % self.each),
            (symmetric_transport, "check_device", self.check_device),
            (symmetric_transport, "WindowGroup", partial(WindowGroup, self)),
            (symmetric_transport, "CopyStream", NotedStream),
            (symmetric_transport, "_Lane", self.make_lane),
            (symmetric_transport, "torch", SimpleNamespace(cuda=cuda)),
            (symmetric_memory, "_SymmetricMemory", self),
            (symmetric_memory, "symm_mem", self),
            (torch.cuda, "current_device", lambda: self.me.rank % self.each),
        ):
            monkeypatch.setattr(module, name, made)

    def make_group(self, ranks, backend, timeout_s):
        assert timeout_s == (LIMIT_MS / 1000 if backend == "nccl" else TIMEOUT_S)
        if backend == "nccl":
            return self.stand_in.make_group(ranks, backend, timeout_s)
        return tuple(ranks)

    def make_lane(self, *, is_result):
        return Lane(is_result=is_result, out=NotedStream(), into=NotedStream())

    def check_device(self, mine, others):
        self.me.checked = mine, others

    def empty_strided_p2p(self, size, stride, dtype, device):
        assert (stride, dtype) == ((1,), torch.uint8)
        assert device == torch.device("cuda", self.me.rank % self.each)
        return torch.zeros(size, dtype=dtype)

    def rendezvous(self, memory, name):
        """Bring the memories of a node together, as torch does: by the store of the group."""
        group = self.names[name]
        number = self.me.met = self.me.met + 1
        with self.lock:
            pad = torch.zeros(CHANNELS * group.size, dtype=torch.int32)
            self.memories[self.me.rank, number] = memory, pad
        group.store.set(f"Symmetric/{number}/{group.rank}", str(self.me.rank))
        keys = [f"Symmetric/{number}/{rank}" for rank in range(group.size)]
        found = [self.memories[int(rank), number] for rank in group.store.multi_get(keys)]
        assert len({len(memory) for memory, _ in found}) == 1
        return Handle(group.rank, *zip(*found, strict=True))

    def run(self, work):
        """Call ``work(transport)`` on every rank; return results or errors, and what each noted."""
        told = [[] for _ in range(self.size)]

        def be(rank):
            me = self.me
            me.rank, me.met, me.told, me.is_capturing = rank, 0, told[rank], False
            me.describe = self.describe
            me.transport = transport = SymmetricTransport(None, TIMEOUT_S)
            name_streams(transport)
            told[rank].clear()
            return work(transport)

        return self.stand_in.run(be, 100), told

    def describe(self, work):
        """Say what a stream is to do: places as bytes of the window, ranks within the node."""
        if not isinstance(work, partial):
            return work.__name__
        name, first = work.func.__name__, work.args[0]
        if name != "copy_":
            return " ".join(map(str, (name, *work.args)))
        for left, right, how in (
            (work.func.__self__, first, "to {}"), (first, work.func.__self__, "from {} of {}"),
        ):  # fmt: skip
            for at, part in enumerate(self.me.transport._windows[-1].parts):
                if left.untyped_storage().data_ptr() == part.untyped_storage().data_ptr():
                    place = left.storage_offset() * left.element_size()
                    return f"{right.nbytes} bytes {how.format(place, at)}"
        raise AssertionError(work)


def name_streams(transport):
    for lane, what in zip(transport._lanes, ("inputs", "results"), strict=True):
        lane.out.name, lane.into.name = f"{what} out", f"{what} in"
    transport._bridge.name = "bridge"


class WindowGroup:
    """Takes the place of that of the product, which torch finds by its name in C++."""

    def __init__(self, machine, ranks, store):
        self.machine, self.ranks, self.store = machine, ranks, store
        self.rank, self.size = ranks.index(machine.me.rank), len(ranks)
        self.name = f"{ranks} as {machine.me.rank} knows it"
        machine.names[self.name] = self

    def close(self):
        self.machine.names.pop(self.name, None)


def plan_of(lab, tokens, cluster, partitioner="static:zigzag", mask="causal", **options):
    sparsity = lab.sparsity_of([lab.masks[mask](tokens)], 8)
    return build_plan(sparsity, ModelShape(2, 1, 4, 4), cluster, PlanConfig(partitioner, **options))


def results_of(executor, plan, qkv, told):
    prepared = executor.prepare(plan)
    rows = torch.tensor(plan.local_tokens(executor.rank))
    q, kv, dout = (x[rows] for x in qkv)
    out, lse = prepared.forward(q, kv)
    told.append(("backward", ""))
    dq, dkv = prepared.backward(q, kv, out, lse, dout)
    return rows, {"out": out, "lse": lse, "dq": dq, "dkv": dkv}


def assert_exact(lab, plan, mask, qkv, parts):
    whole = lab.whole_of(parts, plan.num_tokens)
    lab.assert_as_exact_as_eager(whole, *qkv, lab.masks[mask](plan.num_tokens))


def lines_of(told):
    """Join what one stream is given at a time."""
    runs = [(name, [text for _, text in run]) for name, run in groupby(told, itemgetter(0))]
    return [name + ": ".join(["", ", ".join(texts)]) if texts[0] else name for name, texts in runs]


@pytest.mark.parametrize(("size", "nodes"), [(3, 1), (4, 2)])
def test_results_are_exact_and_streams_do_what_they_did(lab, monkeypatch, snapshots, size, nodes):
    machine, cluster = Machine(size, nodes, monkeypatch), Cluster(nodes, size // nodes)
    small = plan_of(lab, 40, cluster, divisions=2)
    if nodes > 1:
        small = lab.striped(small)
        assert small.transfers.hop.max() == 2  # blocks are passed on, near and far
    large = plan_of(lab, 64, cluster, "static:contiguous", "full", divisions=3)
    draws = {
        plan: lab.random_qkv(1, plan.num_tokens, 2, 1, 4, torch.float32) for plan in (small, large)
    }
    turns = ((small, "causal"), (large, "full"), (small, "causal"))

    def work(transport):
        found, told = [], machine.me.told
        with DCPExecutor(transport=transport, check_finite=True) as executor:
            for plan, _ in turns:
                transport.exchange_notes("", "before a plan")
                told.append((f"-- {plan.num_tokens} tokens", ""))
                found.append(results_of(executor, plan, draws[plan], told))
                told.append((f"window of {transport._capacity}", ""))
            transport.exchange_notes("", "after all")
            last, own = transport._meetings - 1, transport.rank
            keys = [f"blocks/{number}/{own}" for number in range(last + 1)]
            assert [transport.store.check([key]) for key in keys] == [False] * last + [True]
        assert not transport._windows
        return found

    found, told = machine.run(work)
    for each in found:
        assert not isinstance(each, BaseException), repr(each)
    for n, (plan, mask) in enumerate(turns):
        assert_exact(lab, plan, mask, draws[plan], [parts[n] for parts in found])
    assert not machine.names
    texts = {f"rank {rank}": "\n".join(lines_of(each)) for rank, each in enumerate(told)}
    snapshots.check(f"symmetric_{nodes}", texts)


def of_one_node(lab, monkeypatch, work, size=2):
    """Run ``work(transport, executor, layer)`` on ranks of one node; `layer` runs a layer."""
    machine = Machine(size, 1, monkeypatch)
    plan = plan_of(lab, 24, Cluster(1, size))
    q, kv, dout = lab.random_qkv(1, 24, 2, 1, 4, torch.float32)

    def be(transport):
        executor = DCPExecutor(transport=transport)
        rows, prepared = torch.tensor(plan.local_tokens(transport.rank)), executor.prepare(plan)

        def layer():
            out, lse = prepared.forward(q[rows], kv[rows])
            return out, *prepared.backward(q[rows], kv[rows], out, lse, dout[rows])

        try:
            return work(transport, executor, layer)
        finally:
            transport.close()

    return machine.run(be)


def test_layers_join_their_streams_once_a_graph_has_captured_one(lab, monkeypatch, snapshots):
    def work(transport, executor, layer):
        told, results = Machine.me.told, []
        for title in ("first", "captured", "after it"):
            transport.exchange_notes("", title)
            told.append((f"-- {title}", ""))
            Machine.me.is_capturing = title == "captured"
            results.append(layer())
        assert all(map(torch.equal, results[0], results[1]))
        assert all(map(torch.equal, results[0], results[2]))
        transport.exchange_notes("", "growing")
        transport._grow([48, transport._capacity[1] + 1])  # graphs use the first window
        assert [len(each.parts[0]) for each in transport._windows] == [256 + 2 * 256, 256 + 2 * 272]
        transport.exchange_notes("", "closing")
        executor.close()

    found, told = of_one_node(lab, monkeypatch, work)
    assert found == [None, None]
    snapshots.check("symmetric_graph", {"rank 0": "\n".join(lines_of(told[0]))})


def test_graphs_capture_what_has_run_on_one_machine(lab, monkeypatch):
    def work(transport, executor, layer):
        Machine.me.is_capturing = True
        says = "whose forward ran before, .* got 2 ranks here and a plan that did not run; run the"
        with pytest.raises(RunError, match=says):
            layer()
        Machine.me.is_capturing = False
        layer()
        transport._near = {0: 0}
        Machine.me.is_capturing = True
        says = "expected all 2 ranks on one machine.* got 1 ranks here and a plan that ran"
        with pytest.raises(RunError, match=says):
            layer()
        assert not transport._has_graphs
        return "refused"

    found, _ = of_one_node(lab, monkeypatch, work)
    assert found == ["refused"] * 2


def test_a_rank_that_fails_is_told_and_the_streams_of_others_end(lab, monkeypatch):
    left = []
    monkeypatch.setattr(symmetric_transport, "_left_behind", left)

    def work(transport, executor, layer):
        layer()
        transport.exchange_notes("", "all have come")
        if transport.rank == 1:
            transport.report("forward", 2, ValueError("out of memory"))
            return None

        def go_on():
            layer()
            transport.catch_up()

        with pytest.raises(RunError, match="rank 1 failed in division 2 of forward: ValueError"):
            go_on()
        assert all(mark.event.wait(60) for mark in transport._ends().works)
        executor.close()
        return len(transport._windows)

    found, _ = of_one_node(lab, monkeypatch, work, 3)
    assert found == [0, None, 0]
    assert left == []


def test_a_mark_is_told_once_where_all_blocks_came(lab, monkeypatch):
    def work(transport, executor, layer):
        layer()
        transport.exchange_notes("", "all have come")
        if transport.rank == 1:
            transport.report("backward", 0, ValueError("too late"))
        else:
            while not transport._failures.is_marked():
                time.sleep(0.001)
            with pytest.raises(RunError, match="rank 1 failed in division 0 of backward"):
                transport.catch_up()
        transport.catch_up()  # it is told, or is this rank's own
        return transport.rank

    assert of_one_node(lab, monkeypatch, work)[0] == [0, 1]


@pytest.mark.parametrize("is_released", [True, False])
def test_closing_ends_streams_that_wait_or_keeps_their_memory(lab, monkeypatch, is_released):
    left, told = [], []
    monkeypatch.setattr(symmetric_transport, "_left_behind", left)
    monkeypatch.setattr(symmetric_transport, "CLOSE_S", 0.05)
    monkeypatch.setattr(symmetric_transport, "RELEASE_S", 60 if is_released else 0.05)
    shared = symmetric_memory.SharedWindow
    release = shared.release
    if not is_released:
        monkeypatch.setattr(shared, "release", lambda *_: told.append("tried"))

    def work(transport, executor, layer):
        layer()
        (window,) = transport._windows
        transport.exchange_notes("", "all have come")
        if transport.rank == 0:
            transport._lanes[0].into.run(partial(window.wait, 1, 3))  # nobody signals
            executor.close()
            told.append(transport._failures._status_of(0).text)
            ends = [mark.event.wait(60 if is_released else 0) for mark in transport._ends().works]
            release(window, SimpleNamespace(run=lambda work: work()))  # no stream waits on
            return window in left, all(ends), transport._windows
        return None

    found, _ = of_one_node(lab, monkeypatch, work)
    assert found == [(not is_released, is_released, []), None]
    assert told.pop() == "the executor was closed while blocks travelled"
    assert (len(told) > 1) == (not is_released)  # again and again


def test_a_closed_executor_sends_nothing(lab, monkeypatch):
    def work(transport, executor, layer):
        layer()
        transport.exchange_notes("", "all have come")
        transport.close()
        with pytest.raises(RunError, match="the executor is closed; make another one"):
            transport._window()

    assert of_one_node(lab, monkeypatch, work)[0] == [None, None]


def test_released_waits_are_answered_as_if_by_all_others():
    """Of three ranks with two channels; a rank's pad has a row per channel, a column per sender."""
    window = symmetric_memory.SharedWindow.__new__(symmetric_memory.SharedWindow)
    window._pads, window._rank, window.num_channels = [torch.full((8,), 5) for _ in range(3)], 1, 2
    ran = []
    window.release(SimpleNamespace(run=lambda work: (ran.append(work), work())))
    other = [5, 0, 5, 5, 0, 5, 5, 5]
    assert [pad.tolist() for pad in window._pads] == [other, [1] * 8, other]
    assert len(ran) == 3


class Computed(TorchDispatchMode):
    """Notes what is computed, and on how much."""

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.found = getattr(self, "found", [])
        if "fill_" in str(function) or "zero_" in str(function):
            self.found.append((str(function), arguments[0].shape, arguments[0].stride()))
        return function(*arguments, **(options or {}))


def test_kernels_that_end_waits_are_loaded_before_any_wait(monkeypatch):
    """CUDA may wait for all kernels before it loads one, also for those that wait in vain."""
    pads = [torch.zeros(8, dtype=torch.int32) for _ in range(3)]
    handle = SimpleNamespace(
        get_buffer=lambda rank, sizes, dtype: torch.zeros(sizes, dtype=dtype),
        get_signal_pad=lambda rank, dtype: pads[rank],
    )
    files = SimpleNamespace(empty_strided_p2p=lambda *_: None, rendezvous=lambda *_: handle)
    for name in ("_SymmetricMemory", "symm_mem"):
        monkeypatch.setattr(symmetric_memory, name, files)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with Computed() as before:
        group = SimpleNamespace(rank=1, size=3, name="three ranks")
        window = symmetric_memory.SharedWindow(16, group, 60)
    assert not torch.stack(pads).any(), "no signal is set"
    with Computed() as late:
        window.release(SimpleNamespace(run=lambda work: work()))
    assert torch.stack(pads).any()
    assert set(late.found) <= set(before.found)
