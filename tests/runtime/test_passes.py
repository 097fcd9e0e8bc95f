"""The passes that layers of a prepared plan share: operators, memory, and who may follow them."""

from collections import Counter
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dcp_planner import Cluster
from dcp_planner.tables.metrics import measure_memory
from dcp_runtime import DCPAttn, DCPExecutor
from dcp_runtime.execute.passes import BackwardPass, ForwardPass, Pass
from dcp_runtime.kernels.kernel import Kernel, QueryRows
from dcp_runtime.plans.device_plan import prepare_device
from dcp_runtime.transport.loopback import LoopbackWorld


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


class NoKernel(Kernel):
    name = "none"

    def forward(self, *_):
        pass

    backward = forward

    def delta(self, out, dout):
        return out.new_zeros(out.shape[:2])

    def merge(self, *_):
        pass


def counted(lab, ranks, layer):
    """Return the operators of forward and backward of a layer, by rank; `layer` counts from 1."""
    choices = {"block": 8, "heads": (2, 1, 8), "dtype_bytes": 2, "divisions": 3}
    plan = lab.plan_of([("causal", 256)], ranks, **choices)

    def run(transport):
        prepared = DCPExecutor(transport=transport, kernel="reference").prepare(plan)
        prepared.recorder.is_on = False
        q = torch.zeros(prepared.part.num_local, 2, 8, dtype=torch.bfloat16)
        kv = torch.zeros(prepared.part.num_local, 2, 1, 8, dtype=torch.bfloat16)
        prepared._check_tensors(q, kv)
        object.__setattr__(prepared._engine, "kernel", NoKernel())
        for _ in range(layer):
            with Counting() as forward:
                out, lse = prepared.forward(q, kv)
            with Counting() as backward:
                prepared.backward(q, kv, out, lse, out)
        return forward.seen, backward.seen

    return LoopbackWorld(ranks).run(run)


def test_a_layer_without_messages_makes_its_results_and_clears_its_sums(lab):
    ((forward, backward),) = counted(lab, 1, 3)
    # Sums of 16-bit results are wide: cleared, and converted at the end.
    assert forward == {"new_empty": 1, "fill_": 1, "slice": 2, "zero_": 1, "_to_copy": 1}
    assert backward == {"new_zeros": 1, "slice": 4, "zero_": 2, "_to_copy": 2}


def test_further_layers_make_no_views_of_what_travels(lab):
    for (forward, backward), (again, back) in zip(
        counted(lab, 4, 1), counted(lab, 4, 2), strict=True
    ):
        # Inputs are copied to their buffers, sums are converted to the type that travels.
        assert again["slice"] <= 4 < forward["slice"]
        assert back["slice"] <= 8 + back["add_"] < backward["slice"]
        assert again["new_empty"] + back["new_empty"] <= 1


def test_memory_that_is_lent_between_calls_comes_back(lab, monkeypatch):
    """As on CUDA: the storages of shared buffers are empty between two layers."""
    plan = lab.plan_of([("causal", 96)], 4, block=8, dtype_bytes=2, divisions=3)
    qkv = [x.bfloat16() for x in lab.random_qkv(3, 96, 4, 2, 8, torch.float32)]
    kept, _ = lab.run_in_threads(plan, *qkv, layers=3)
    lent = []

    def keep(self, *tensors):
        storages = {x.untyped_storage() for x in tensors if x is not None and x.numel()}
        self._lent = [(storage, storage.nbytes()) for storage in storages]

    release = Pass.release

    def release_and_look(self):
        release(self)
        lent.append([storage.nbytes() for storage, _ in self._lent])

    monkeypatch.setattr(Pass, "_keep", keep)
    monkeypatch.setattr(Pass, "release", release_and_look)
    got, _ = lab.run_in_threads(plan, *qkv, layers=3)
    for name, value in kept.items():
        assert torch.equal(got[name], value), name
    assert len(lent) == 4 * 3 * 2
    assert sum(map(len, lent)) > len(lent)
    assert not any(map(sum, lent))


class Followed(torch.Tensor):
    """A tensor that sees which operators it goes through."""

    seen: ClassVar = []

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.seen.append(getattr(function, "__name__", ""))
        return super().__torch_function__(function, types, args, kwargs)


def test_tensors_of_other_classes_go_through_the_operator(lab):
    plan = lab.plan_of([("causal", 32)], block=8)
    q, kv, _ = lab.random_qkv(3, 32, 4, 2, 8, torch.float32)

    def run(transport):
        prepared = DCPExecutor(transport=transport).prepare(plan)
        plain = DCPAttn.apply(prepared, q, kv)
        followed = DCPAttn.apply(prepared, q.as_subclass(Followed), kv)
        assert torch.equal(followed.as_subclass(torch.Tensor), plain)

    LoopbackWorld(1).run(run)
    assert "attention.default" in Followed.seen, Followed.seen


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
def test_what_is_stated_is_what_a_pass_allocates(lab, dtype_bytes, partials, partitioner):
    plan = lab.plan_of(
        [("causal", 512), ("causal", 256)], block=64, heads=(4, 2, 16), dtype_bytes=dtype_bytes,
        cluster=Cluster(2, 2), layout=partitioner, budget="fast", partials=partials,
    )  # fmt: skip
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
