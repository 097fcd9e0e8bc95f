"""The runtime makes each tensor on the device where it belongs, not on torch's default device.

``meta`` stands for CUDA: on it, too, a tensor cannot become an array, and no rank can send it.
"""

import ast
from pathlib import Path

import numpy as np
import torch
from loader_options import make_loader
from torch.utils._device import _device_constructors

import dcp_runtime
from dcp_dsl import Spec
from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan
from dcp_runtime import DCPAttn, DCPExecutor, LayerPlans
from dcp_runtime.kernels.triton_inputs import move_arrays
from dcp_runtime.transport.loopback import LoopbackWorld

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
    mask = lab.masks["streaming"](tokens)
    config, cluster = PlanConfig(partitioner="static:zigzag"), Cluster(devices_per_node=2)
    plan = build_plan(lab.sparsity_of([mask], 16), shape, cluster, config)
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
