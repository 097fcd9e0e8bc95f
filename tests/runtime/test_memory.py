"""The memory that the planner states is what the passes of the runtime allocate."""

import numpy as np
import pytest
import torch

from dcp_dsl import Sample, Spec, block_sparsity
from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan
from dcp_planner.tables.metrics import measure_memory
from dcp_runtime.execute.passes import BackwardPass, ForwardPass
from dcp_runtime.kernels.kernel import QueryRows
from dcp_runtime.plans.device_plan import prepare_device

DTYPES = {2: torch.bfloat16, 4: torch.float32}


def allocated(value, seen):
    """Bytes of all tensors that an object holds, each storage once."""
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        is_new = storage.data_ptr() not in seen and storage.nbytes() > 0
        seen.add(storage.data_ptr())
        return storage.nbytes() if is_new else 0
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        return sum(allocated(part, seen) for part in value)
    names = getattr(type(value), "__slots__", ()) or getattr(value, "__dict__", ())
    return sum(
        allocated(getattr(value, name), seen) for name in names if not name.startswith("_plan")
    )


@pytest.mark.parametrize(("dtype_bytes", "partials"), [(2, "input"), (2, "float32"), (4, "input")])
@pytest.mark.parametrize("partitioner", ["static:zigzag", "native", "static:documents"])
def test_what_is_stated_is_what_a_pass_allocates(dtype_bytes, partials, partitioner):
    shape = ModelShape(4, 2, 16, dtype_bytes)
    mask = Spec.from_text("mask m = causal").mask("m")
    sparsity = block_sparsity([mask.bind(Sample(length=n)) for n in (512, 256)], 64, 64)
    config = PlanConfig(partitioner=partitioner, budget="fast", partials=partials)
    plan = build_plan(sparsity, shape, Cluster(2, 2), config)
    stated, dtype = measure_memory(plan), DTYPES[dtype_bytes]
    for device in range(4):
        part, seen = prepare_device(plan, device, 128), set()
        n = part.num_local
        q, out = torch.zeros(n, 4, 16, dtype=dtype), torch.zeros(n, 4, 16, dtype=dtype)
        kv, lse = torch.zeros(n, 2, 2, 16, dtype=dtype), torch.zeros(n, 4)
        saved = allocated((q, kv, out, lse), seen)
        assert saved == stated.saved[device]
        current = ForwardPass(part, q, kv)
        forward = saved + allocated(current, set(seen))
        assert forward == stated.forward[device]
        rows = QueryRows(q, torch.zeros_like(q), lse, torch.zeros(n, 4))
        dq, dkv = torch.empty_like(q), torch.empty_like(kv)
        own = allocated((rows, dq, dkv), seen)
        backward = saved + own + allocated(BackwardPass(part, rows, kv), set(seen))
        assert backward == stated.backward[device]
    assert np.all(stated.peak >= stated.saved)
