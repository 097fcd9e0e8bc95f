"""CUDA's paths of the runtime on a CPU: streams, devices and groups are stand-ins.

Layers run on tensors that have shape, type and device but no values: operations on them refuse
arguments of two devices and values that the host reads. Kernels of Triton are not launched; what
they are given is looked at.
"""

import threading
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from test_transports import lone_transport, parcel_of
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import distributed_c10d
from torch.overrides import TorchFunctionMode

from dcp_planner import ModelShape
from dcp_runtime import RunError
from dcp_runtime.execute.executor import DCPExecutor
from dcp_runtime.execute.prepared_plan import Softmax
from dcp_runtime.kernels import choice as kernel_choice
from dcp_runtime.kernels import triton_kernel
from dcp_runtime.transport import choice, gloo_transport, group_transport, nccl_transport, recorder
from dcp_runtime.transport.gloo_transport import GlooTransport
from dcp_runtime.transport.loopback import LoopbackWorld
from dcp_runtime.transport.recorder import Event, Recorder, make_clock


@pytest.fixture
def world(lone_group):
    return dist.group.WORLD


@pytest.mark.parametrize(
    ("backends", "has_cuda", "made"),
    [
        ("cpu:gloo,cuda:nccl", True, "nccl"),
        ("cuda:nccl", True, "nccl"),
        ("cpu:gloo,cuda:nccl", False, "gloo"),
        ("cpu:gloo,cuda:gloo", True, "gloo"),
    ],
)
def test_messages_go_over_the_backend_of_cuda_tensors(world, monkeypatch, backends, has_cuda, made):
    monkeypatch.setattr(dist, "get_backend_config", lambda group: backends)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    monkeypatch.setattr(nccl_transport, "NcclTransport", lambda *_: "nccl")
    monkeypatch.setattr(gloo_transport, "GlooTransport", lambda *_: "gloo")
    assert choice.make_transport(None, 5) == made
    assert choice.make_transport(None, 5, "gloo") == "gloo"


def test_groups_are_made_without_the_ranks_that_make_no_executor(world, monkeypatch):
    """torch splits the communicator of a world that is bound to a device: all ranks must come."""
    device = torch.device("cuda", 0)
    world.bound_device_id = device
    split = pytest.fail
    monkeypatch.setattr(distributed_c10d, "_get_split_source", lambda _: split("waits for all"))
    assert group_transport.make_group([0], "gloo", 5).size() == 1
    assert world.bound_device_id == device


def test_ranks_are_those_of_the_group_and_this_is_one_of_them(world, monkeypatch):
    ranks = {dist.group.WORLD: [0, 1], "this and 4": [0, 4], "others": [1, 4]}
    monkeypatch.setattr(dist, "get_process_group_ranks", ranks.get)
    assert group_transport.member_ranks(None) == [0, 1]
    assert group_transport.member_ranks("this and 4") == [0, 4]
    with pytest.raises(RunError, match=r"rank 0 is not one of the group's ranks \[1, 4\]"):
        group_transport.member_ranks("others")


def test_messages_over_nccl_go_before_kernels_that_wait_for_the_device(world, monkeypatch):
    asked = {}

    def make(size, place, ranks, backend, store, name, options, timeout):  # noqa: PLR0913 - torch's
        asked.update(timeout=timeout, backend=backend, options=options)
        return world, store

    monkeypatch.setattr(distributed_c10d, "_new_process_group_helper", make)
    options = SimpleNamespace(
        Options=lambda **given: SimpleNamespace(**given, config=SimpleNamespace())
    )
    monkeypatch.setattr(dist, "ProcessGroupNCCL", options, raising=False)
    group_transport.make_group([0], "nccl", 5)
    assert asked["options"].is_high_priority_stream
    assert asked["options"].config.max_ctas == group_transport.MAX_CTAS
    assert asked["options"]._timeout == asked["timeout"] == timedelta(seconds=5)
    group_transport.make_group([0], "gloo", 5)
    assert (asked["backend"], asked["options"]) == ("gloo", None)


def test_a_communicator_that_does_not_end_in_time_is_left_alone():
    asked = []

    def abort():
        asked.append("abort")
        raise RuntimeError("timed out")

    backends = {torch.device("cuda"): SimpleNamespace(abort=abort)}
    group_transport.abort_group(SimpleNamespace(_get_backend=backends.get))
    assert asked == ["abort"]


class _Stream:
    """A stream that knows whether it is the current one."""

    is_current = False

    @contextmanager
    def work(self):
        self.is_current = True
        yield
        self.is_current = False


class _Pinned:
    """Host memory that notes on which stream it was copied."""

    def __init__(self, stream):
        self.stream, self.copies = stream, []

    def copy_(self, _):
        self.copies.append(self.stream.is_current)


def test_watching_threads_copy_on_the_stream_of_the_layer(monkeypatch):
    stream = _Stream()
    monkeypatch.setattr(group_transport, "stream_of", lambda _: stream.work())
    transport, there = lone_transport((0, 1)), _Pinned(stream)

    def stage(tensor, posted, *, is_send):
        posted.staged.append((there, None))
        return tensor

    monkeypatch.setattr(transport, "_stage", stage)
    work = SimpleNamespace(wait=lambda timeout: None)
    monkeypatch.setattr(gloo_transport.dist, "irecv", lambda *_, **__: work)
    parcel = parcel_of(1)
    transport.start([parcel])
    assert parcel.wait(100)
    transport.close()
    assert there.copies == [True]


def test_watching_threads_are_on_the_device_of_the_tensors(monkeypatch):
    """Their first device is 0, where each rank would make a context."""
    devices, device = [], torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    transport = lone_transport((0, 1))
    transport._start_threads(device)
    transport.close()
    transport._start_threads(torch.device("cpu"))
    transport.close()
    assert devices == [device] * len(gloo_transport.LANES)


def test_sends_are_staged_on_the_stream_of_the_layer(monkeypatch):
    stream = _Stream()
    host = _Pinned(stream)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: host)
    posted = gloo_transport.Posted(parcel_of(1), stream.work())
    on_device = SimpleNamespace(device=torch.device("cuda"), shape=(2,), dtype=torch.float32)
    transport = GlooTransport.__new__(GlooTransport)
    assert transport._stage(on_device, posted, is_send=True) is host
    assert host.copies == [True]


def test_the_stream_of_cuda_tensors_is_the_current_one_of_their_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: ("stream of", device))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: ("work on", stream))
    device = torch.device("cuda", 1)
    expected = "work on", ("stream of", device)
    assert group_transport.stream_of([SimpleNamespace(device=device)]) == expected


def test_backward_of_a_rank_in_one_process_runs_on_its_own_thread():
    """One thread of autograd per GPU would run a rank that waits for the rank behind it."""

    def work(transport):
        return torch._C._is_multithreading_enabled()

    assert LoopbackWorld(2).run(work) == [False, False]
    assert torch._C._is_multithreading_enabled()


def test_a_recorder_leaves_out_what_a_graph_captures(monkeypatch):
    """CUDA refuses to read an event that was recorded while a graph was captured."""

    class Timed:
        is_capturing = False

        def __init__(self, enable_timing):
            self.is_captured = Timed.is_capturing

        def record(self, stream=None):
            self.is_captured = Timed.is_capturing and stream is None

        def synchronize(self):
            assert not self.is_captured

        def elapsed_time(self, other):
            return 1.0

    monkeypatch.setattr(torch.cuda, "Event", Timed)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: f"another of {device}")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: Timed.is_capturing)
    kept = Recorder(0, is_on=True, clock=make_clock(torch.device("cuda", 1)))
    for Timed.is_capturing in (False, True):
        moment = kept.clock.now()
        kept.add(Event("attention", moment, moment, False, int(Timed.is_capturing), "attention"))
    assert kept.table()[0][:, 6].tolist() == [0]


def test_a_recorder_keeps_its_newest_events(monkeypatch):
    monkeypatch.setattr(recorder, "MAX_EVENTS", 3)
    kept = Recorder(0, is_on=True)
    for start in range(5):
        kept.add(Event("attention", start, start + 1, False, 0, "attention"))
    table, names = kept.table()
    assert table[:, 0].tolist() == [2, 3, 4]
    assert len(names) == 3


SHAPE = ModelShape(q_heads=4, kv_heads=2, head_dim=64)
DEVICE = "cuda:1"  # not the current one of the layer's thread


class Device(TorchFunctionMode):
    """Does without the parts of torch that need a device: indexing, and copies into a tensor.

    Notes the copies between host and device, for which the host would wait.
    """

    def __init__(self):
        super().__init__()
        self.copies = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is Tensor.__getitem__:
            return indexed(*args)
        if function is Tensor.__setitem__:
            x, at, value = args
            return self.copy(indexed(x, at), value) if isinstance(value, Tensor) else None
        if function is Tensor.copy_:
            return self.copy(*args)
        if function is Tensor.contiguous:
            return args[0].clone(memory_format=torch.contiguous_format)
        if function in (Tensor.item, Tensor.tolist, Tensor.cpu, Tensor.__bool__, Tensor.__int__):
            self.copies.append(function.__name__)
        result = function(*args, **(kwargs or {}))
        if function is Tensor.to and result.device != args[0].device:
            self.copies.append("to")
        return result

    def copy(self, target, source):
        assert target.device == source.device
        assert source.expand(target.shape).shape == target.shape
        return target


def indexed(x, index):
    dim = 0
    for at in index if isinstance(index, tuple) else (index,):
        if isinstance(at, int):
            x = x.select(dim, at)
            continue
        if isinstance(at, slice):
            x = torch.ops.aten.slice(x, dim, at.start, at.stop, at.step or 1)
        else:
            x = x.index_select(dim, at)
        dim += 1
    return x


class StreamEvent:
    """An event of a stream."""

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        pass

    def synchronize(self):
        pass

    def query(self):
        return True

    def elapsed_time(self, _):
        return 1.0


class CurrentDevice(threading.local):
    """The device of a thread, on which Triton launches kernels."""

    number = 0

    @contextmanager
    def change(self, device):
        before, self.number = self.number, device.index
        yield
        self.number = before


current_device = CurrentDevice()


class Launches:
    """Notes the kernels that are launched, and that all their tensors are on the device."""

    def __init__(self, name, found):
        self._name, self._found = name, found

    def __getitem__(self, grid):
        assert min(grid) > 0

        def launch(*args, **constants):
            tensors = [x for x in args if isinstance(x, Tensor)]
            assert {x.device for x in tensors} == {torch.device("cuda", current_device.number)}
            assert all(x.stride(-1) == 1 for x in tensors)
            self._found.append(self._name)

        return launch


def tables_on_device(arrays, device):
    return tuple(
        torch.empty(array.shape, dtype=getattr(torch, array.dtype.name), device=device)
        for array in arrays
    )


@pytest.fixture
def launched(monkeypatch):
    """Stand-ins for the driver; gives the names of the kernels that are launched."""
    found = []
    names = ("forward", "dq", "dkv", "delta", "merge")
    source = {f"{name}_kernel": Launches(name, found) for name in names}
    monkeypatch.setattr(triton_kernel, "triton_source", SimpleNamespace(**source))
    monkeypatch.setattr(triton_kernel, "move_arrays", tables_on_device)
    monkeypatch.setattr(kernel_choice, "flash4_refusal", lambda *_: "not installed")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "no GPU")
    monkeypatch.setattr(torch.cuda, "device", current_device.change)
    monkeypatch.setattr(torch.cuda, "Event", StreamEvent)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return found


def tensors(rows, dtype, *, is_packed):
    """Draw q, keys and values, and the gradient of out."""
    q, dout = torch.empty(2, rows, SHAPE.q_heads, SHAPE.head_dim, dtype=dtype, device=DEVICE)
    kv = torch.empty(rows, 2, SHAPE.kv_heads, SHAPE.head_dim, dtype=dtype, device=DEVICE)
    return q, kv if is_packed else tuple(kv.unbind(1)), dout


def run_layers(transport, mode, plan, kernel, dtype, options):
    """Run two layers of a plan on one rank; give the last results, and the copies of the second."""
    chosen, executor = dict(options), DCPExecutor(kernel=kernel, transport=transport)
    is_packed = chosen.pop("is_packed", True)
    with mode, torch.no_grad():
        prepared = executor.prepare(plan)
        rows = len(plan.local_tokens(transport.rank))
        q, kv, dout = tensors(rows, dtype, is_packed=is_packed)
        if chosen.pop("has_sinks", False):
            chosen["sinks"] = torch.empty(SHAPE.q_heads, dtype=dtype, device=DEVICE)
        for _ in range(2):
            with Device() as device:
                out, lse = prepared.forward(q, kv, Softmax(**chosen))
                gradients = prepared.backward(q, kv, out, lse, dout)
        executor.close()
    like = (q, kv) if is_packed else (q, *kv)
    pairs = [(out, q), *zip(gradients, like, strict=True)]
    assert all((a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device) for a, b in pairs)
    assert (lse.dtype, lse.device) == (torch.float32, q.device)
    return prepared.kernel_choice.kernel.name, device.copies


@pytest.mark.parametrize(
    ("kernel", "dtype", "groups", "options"),
    [
        (None, torch.bfloat16, 1, {}),
        (None, torch.float32, 1, {"cap": 30.0}),
        (None, torch.bfloat16, 1, {"is_packed": False, "has_sinks": True}),
        (None, torch.float16, 2, {"is_packed": False}),
        ("triton", torch.bfloat16, 4, {}),
        ("flash", torch.bfloat16, 1, {}),
    ],
)
def test_layers_mix_no_devices_and_the_host_waits_for_none(
    lab, launched, kernel, dtype, groups, options
):
    """Blocks travel in both directions between two ranks; gradients have the types of arguments."""
    masks, heads = [("streaming", 40), ("scattered", 40)], (SHAPE.q_heads, SHAPE.kv_heads, 64)
    plan = lab.plan_of(masks, 2, heads=heads, dtype_bytes=2, head_groups=groups)
    world, mode = LoopbackWorld(2, timeout_s=60, lockstep=True), FakeTensorMode()
    with mode:  # a torch without a driver makes a stand-in, which lives as long as this thread
        pass
    found = world.run(lambda t: run_layers(t, mode, plan, kernel, dtype, options))
    assert found == [(kernel or "triton", [])] * 2
    expected = {
        None: {"forward", "delta", "dq", "dkv"},
        "triton": {"forward", "delta", "dq", "dkv"},
        "flash": set(),
    }
    # Partial results are merged where queries travel, and where flash makes several calls.
    assert set(launched) - {"merge"} == expected[kernel]
