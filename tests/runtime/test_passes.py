"""The passes that layers of a prepared plan share: operators, memory, and who may follow them."""

from collections import Counter
from typing import ClassVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan
from dcp_runtime import DCPAttn, DCPExecutor
from dcp_runtime.execute.passes import Pass
from dcp_runtime.kernels.kernel import Kernel
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
    config = PlanConfig("static:zigzag", divisions=3)
    sparsity = lab.sparsity_of([lab.masks["causal"](256)], 8)
    plan = build_plan(sparsity, ModelShape(2, 1, 8, 2), Cluster(1, ranks), config)

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
    config = PlanConfig("static:zigzag", divisions=3)
    masks = [lab.masks["causal"](96)]
    plan = build_plan(lab.sparsity_of(masks, 8), ModelShape(4, 2, 8, 2), Cluster(1, 4), config)
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
    config = PlanConfig("static:zigzag")
    masks = [lab.masks["causal"](32)]
    plan = build_plan(lab.sparsity_of(masks, 8), ModelShape(4, 2, 8, 4), Cluster(1, 1), config)
    q, kv, _ = lab.random_qkv(3, 32, 4, 2, 8, torch.float32)

    def run(transport):
        prepared = DCPExecutor(transport=transport).prepare(plan)
        plain = DCPAttn.apply(prepared, q, kv)
        followed = DCPAttn.apply(prepared, q.as_subclass(Followed), kv)
        assert torch.equal(followed.as_subclass(torch.Tensor), plain)

    LoopbackWorld(1).run(run)
    assert "attention.default" in Followed.seen, Followed.seen
