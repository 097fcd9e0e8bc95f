"""Layers on CUDA without a GPU: tensors have shape, type and device but no values.

Operations on such tensors refuse arguments of two devices and values that the host reads. Kernels
of Triton are not launched; what they are given is looked at.
"""

import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from dcp_planner import ModelShape
from dcp_runtime.execute.executor import DCPExecutor
from dcp_runtime.execute.prepared_plan import Softmax
from dcp_runtime.kernels import choice, triton_kernel
from dcp_runtime.transport.loopback import LoopbackWorld

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


class Event:
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
    monkeypatch.setattr(choice, "flash4_refusal", lambda *_: "not installed")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "no GPU")
    monkeypatch.setattr(torch.cuda, "device", current_device.change)
    monkeypatch.setattr(torch.cuda, "Event", Event)
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
    masks, heads = [("streaming", 90), ("scattered", 90)], (SHAPE.q_heads, SHAPE.kv_heads, 64)
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
