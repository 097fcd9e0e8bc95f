"""Tables go to the device once per plan; every tensor is made on the device where it belongs."""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch
from loader_options import make_loader
from torch.utils._device import _device_constructors

import dcp_runtime
from dcp_dsl import Spec
from dcp_planner import ModelShape
from dcp_runtime import DCPAttn, DCPExecutor, LayerPlans
from dcp_runtime.execute import prepared_plan
from dcp_runtime.kernels import triton_kernel
from dcp_runtime.kernels.choice import KernelChoice
from dcp_runtime.kernels.cpu import CpuKernel
from dcp_runtime.kernels.kernel import TensorKind
from dcp_runtime.kernels.triton_inputs import key_runs, move_arrays, query_runs
from dcp_runtime.kernels.triton_kernel import TritonKernel
from dcp_runtime.plans.device_plan import prepare_device
from dcp_runtime.transport.loopback import LoopbackWorld

CPU = torch.device("cpu")


@pytest.fixture
def plan(lab):
    return lab.plan_of([("scattered", 70), ("causal", 1)], 2, heads=(2, 1, 32), divisions=3)


def test_arrays_arrive_as_they_were_whatever_their_type_and_size():
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(0, 100, shape).astype(dtype)
        for shape in ((3,), (0,), (2, 5), (1, 1), (7,), (2, 0))
        for dtype in (np.int32, np.int64, np.uint8)
    ]
    arrays.append(np.arange(12, dtype=np.int32).reshape(3, 4).T)  # not contiguous
    moved = move_arrays(arrays, CPU)
    for array, tensor in zip(arrays, moved, strict=True):
        assert tensor.is_contiguous()
        np.testing.assert_array_equal(tensor.numpy(), array)
        assert tensor.numpy().dtype == array.dtype


def test_all_tables_of_a_plan_move_in_one_transfer(plan, monkeypatch):
    calls = []
    monkeypatch.setattr(
        triton_kernel, "move_arrays", lambda a, d: calls.append(len(a)) or move_arrays(a, d)
    )
    part, kernel = prepare_device(plan, 0, 16), TritonKernel()
    q, kv = torch.zeros(1, 2, 32), torch.zeros(1, 2, 1, 32)
    kind = TensorKind(q.dtype, CPU, 32, group=2)
    kernel.load(part.forward.tables, part.backward.tables, kind)
    assert len(calls) == 1
    pairs = [("forward", host) for host in part.forward.tables]
    pairs += [(name, host) for name in ("dq", "dkv") for host in part.backward.tables]
    tables = [kernel._table(name, host, q, kv)[0] for name, host in pairs]
    assert len(calls) == 1  # nothing was left to move
    assert len(tables) >= 6
    assert len({table.masks[2].untyped_storage().data_ptr() for table in tables}) == 1
    for table, (name, host) in zip(tables, pairs, strict=True):
        runs = key_runs(host, 32, 32) if name == "dkv" else query_runs(host, 32, 32)
        for there, here in zip(table.runs, runs, strict=True):
            np.testing.assert_array_equal(there.numpy(), here)
        np.testing.assert_array_equal(table.masks[1].numpy(), host.row_hi)
        np.testing.assert_array_equal(table.masks[2].numpy(), host.bits)


class Loading(CpuKernel):
    def __init__(self):
        self.loaded = []

    def load(self, forward, backward, kind):
        self.loaded.append((len(forward), len(backward), kind))


def test_a_kernel_is_chosen_with_the_first_layer_and_keeps_its_tables(plan, lab, monkeypatch):
    made = []

    def choose(*_):
        made.append(Loading())
        return KernelChoice(made[-1], ())

    monkeypatch.setattr(prepared_plan, "choose_kernel", choose)
    q, kv, dout = lab.random_qkv(0, 71, 2, 1, 32, torch.float32)

    def work(transport):
        executor = DCPExecutor(transport=transport)
        rows = torch.tensor(plan.local_tokens(transport.rank))
        for _ in range(2):
            prepared = executor.prepare(plan)
            for _ in range(2):
                out, lse = prepared.forward(q[rows], kv[rows])
            prepared.backward(q[rows], kv[rows], out, lse, dout[rows])
        wide = executor.prepare(plan)
        wide.forward(q[rows].double(), kv[rows].double())
        assert prepared.kernel_choice.kernel is prepared.latest_engine.kernel
        return prepared.latest_engine.kernel

    kernels = LoopbackWorld(2, timeout_s=60).run(work)
    # The kernel of the first plan serves the second; its tables are there before the first layer,
    # and those of the third plan too, whose tensors then are of another type.
    assert len(made) == 4
    for kernel in kernels:
        assert [str(kind) for *_, kind in kernel.loaded] == ["torch.float32 on cpu"] * 3
        assert all(forward and backward for forward, backward, _ in kernel.loaded)


FOLDER = Path(dcp_runtime.__file__).parent
FACTORIES = {made.__name__ for made in _device_constructors()}
A_PARAMETER = ("adapters/megatron/layers.py", "torch.zeros(heads)")  # belongs on the default device


def factories_without_device(path):
    text = path.read_text()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        is_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
        names = {keyword.arg for keyword in node.keywords}
        if is_torch and node.func.attr in FACTORIES and "device" not in names:
            yield str(path.relative_to(FOLDER)), ast.get_source_segment(text, node)


def test_every_tensor_is_made_on_a_device_that_is_named():
    assert {"empty", "zeros", "tensor", "full", "arange"} <= FACTORIES
    found = [made for path in FOLDER.rglob("*.py") for made in factories_without_device(path)]
    assert found == [A_PARAMETER]


def test_layers_and_the_loader_run_under_any_default_device(lab):
    shape, tokens = ModelShape(4, 2, 8, 4), 100
    mask = lab.MASKS["streaming"](tokens)
    plan = lab.plan_of([mask], 2)
    qkv = lab.random_qkv(0, tokens, 4, 2, 8, torch.float32)

    def work(transport):
        rows = torch.tensor(plan.local_tokens(transport.rank))
        q, kv, dout = (x[rows].requires_grad_() for x in qkv)
        with torch.device("meta"), DCPExecutor(transport=transport) as executor:
            prepared = LayerPlans.prepare(executor, plan).of(0)
            assert prepared.handle.device.type == "cpu"  # no layer waits for its number
            out = DCPAttn.apply(prepared, q, kv)
            dq, dkv = torch.autograd.grad(out, (q, kv), dout)
            executor.gather_timeline()
        return rows, {"out": out.detach(), "dq": dq, "dkv": dkv}

    whole = lab.whole_of(LoopbackWorld(2).run(work), tokens)
    lab.assert_as_exact_as_eager(whole, *qkv, np.asarray(mask))

    rows = [{"tokens": torch.arange(30)}]
    with torch.device("meta"):
        ((data, _),) = make_loader(rows, Spec.from_text("mask m = causal").mask("m"), shape=shape)
    assert data.tokens.tolist() == list(range(30))


def test_tables_reach_the_device_of_the_kernel():
    with torch.device("meta"):
        (moved,) = move_arrays([np.arange(3, dtype=np.int32)], torch.device("cpu"))
    assert moved.tolist() == [0, 1, 2]
