"""Which kernel is chosen on which device, and why no other: whole explanations, kept as texts."""

import sys
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dcp_planner import Cluster
from dcp_runtime.errors import RunError
from dcp_runtime.kernels import flash
from dcp_runtime.kernels.choice import KERNELS, choose_kernel, known_kernel, segment_rows
from dcp_runtime.kernels.cost import predict
from dcp_runtime.kernels.kernel import TensorKind, Work
from dcp_runtime.kernels.triton_kernel import TritonKernel, launch_shape
from dcp_runtime.plans.device_plan import prepare_device

BF16, F32 = torch.bfloat16, torch.float32
TRIANGLE = np.tri(640, dtype=bool)
WINDOW = TRIANGLE & ~np.tri(640, k=-100, dtype=bool)
COMB = TRIANGLE & (np.arange(640) % 8 < 4)


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of any generation, with a version of flash-attn-4 or none."""

    def make(capability, package):
        def version(_):
            if package is None:
                raise flash.PackageNotFoundError
            return package

        for name in ("flash_attn", "flash_attn.cute", "flash_attn.cute.interface"):
            monkeypatch.setitem(sys.modules, name, SimpleNamespace(__path__=[]))
        monkeypatch.setattr(flash, "version", version)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Some GPU")

    return make


def explained(*given, **named):
    """Return the choice, or what refuses it; the versions of torch are no part of it."""
    try:
        text = choose_kernel(*given, **named).explain()
    except RunError as error:
        text = f"refused: {error}"
    return text.replace(torch.__version__, "VERSION")


CASES = {
    "cpu, float32": (None, (F32,), {}),
    "cpu, bfloat16, the reference": (None, (BF16,), {"wanted": "reference"}),
    "cpu, float32, triton": (None, (F32,), {"wanted": "triton"}),
    "cpu, float32, flash": (None, (F32,), {"wanted": "flash"}),
    "cpu, float32, a soft cap": (None, (F32,), {"softcap": 3.0}),
    "cpu, float32, the CPU's with a soft cap": (None, (F32,), {"softcap": 3.0, "wanted": "cpu"}),
    "cpu, float8": (None, (torch.float8_e5m2,), {}),
    "cpu, int64": (None, (torch.int64,), {}),
    "meta, float32": (None, (F32, "meta"), {}),
    "meta, float32, the CPU's": (None, (F32, "meta"), {"wanted": "cpu"}),
    "cpu, float32, a kernel that is none": (None, (F32,), {"wanted": "x"}),
    "9.0, bfloat16": ((9, 0), (BF16, "cuda"), {"head_dim": 128}),
    "9.0, bfloat16, no head_dim": ((9, 0), (BF16, "cuda"), {}),
    "9.0, bfloat16, a soft cap": ((9, 0), (BF16, "cuda"), {"head_dim": 128, "softcap": 3.0}),
    "9.0, float32": ((9, 0), (F32, "cuda"), {"head_dim": 96}),
    "9.0, float64": ((9, 0), (torch.float64, "cuda"), {"head_dim": 64}),
    "9.0, float64, the reference": ((9, 0), (torch.float64, "cuda"), {"wanted": "reference"}),
    "9.0, bfloat16, heads of 20": ((9, 0), (BF16, "cuda"), {"head_dim": 20}),
    "9.0, bfloat16, heads of 40": ((9, 0), (BF16, "cuda"), {"head_dim": 40}),
    "9.0, bfloat16, heads of 256": ((9, 0), (BF16, "cuda"), {"head_dim": 256}),
    "9.0, bfloat16, heads of 256, a soft cap": (
        (9, 0),
        (BF16, "cuda"),
        {"head_dim": 256, "softcap": 3.0},
    ),
    "9.0, bfloat16, heads of 264": ((9, 0), (BF16, "cuda"), {"head_dim": 264}),
    "9.0, float32, torch's flash": ((9, 0), (F32, "cuda", "flash", 64), {}),
    "7.5, float16": ((7, 5), (torch.float16, "cuda"), {"head_dim": 64}),
    "8.0, bfloat16": ((8, 0), (BF16, "cuda"), {"head_dim": 64}),
    "10.0, bfloat16": ((10, 0), (BF16, "cuda"), {"head_dim": 64}),
    "11.0, bfloat16": ((11, 0), (BF16, "cuda"), {"head_dim": 64}),
    "12.0, bfloat16": ((12, 0), (BF16, "cuda"), {"head_dim": 64}),
}


def test_every_choice_says_why_it_is_no_other(snapshots, gpu):
    texts = {}
    for title, (capability, given, named) in CASES.items():
        gpu(capability, "4.0.0b36")
        texts[title] = explained(*given, **named)
    for package in (None, "4.0.0b35", "4.0.0b36", "0.0.1", "4.1.0"):
        gpu((9, 0), package)
        choice = dict(choose_kernel(BF16, "cuda", head_dim=128).refused)
        texts[f"9.0, flash-attn-4 {package}"] = choice["flash4"]
    gpu((9, 0), "4.0.0b36")
    torch.use_deterministic_algorithms(True)
    try:
        texts["9.0, the same bits"] = explained(BF16, "cuda", head_dim=128)
    finally:
        torch.use_deterministic_algorithms(False)
    snapshots.check("kernel_choice", texts)


def part_of(lab, mask, shape=(8, 2, 64), ranks=2, **constants):
    cluster = Cluster(devices_per_node=ranks, **constants)
    plan = lab.plan_of([mask], block=160, heads=shape, dtype_bytes=2, cluster=cluster)
    return prepare_device(plan, ranks - 1, 128)


def test_predictions_are_kept_and_decide(snapshots, gpu, lab):
    gpu((9, 0), "4.0.0b36")
    texts = {}
    for title, part in {
        "a triangle": part_of(lab, TRIANGLE),
        "a window": part_of(lab, WINDOW),
        "a comb": part_of(lab, COMB),
        "a triangle, heads alike": part_of(lab, TRIANGLE, (4, 4, 128)),
        "a triangle, slow launches": part_of(lab, TRIANGLE, kernel_launch_s=1e-3),
        "a comb, slow copies": part_of(lab, COMB, copy_bytes_per_s=1e9),
        "a triangle, rates of each direction": part_of(
            lab, TRIANGLE, ranks=1, flops_per_s=1e12, backward_flops_per_s=3e11
        ),
    }.items():
        dim = part.plan.shape.head_dim
        texts[title] = explained(BF16, "cuda", None, dim, part=part)
    snapshots.check("kernel_predictions", texts)


def test_the_pairs_of_a_prediction_are_those_of_its_tiles(lab):
    """A rank alone: 160 rows in tiles of 32 (four heads share 128) meet the keys before them."""
    part = part_of(lab, np.tri(160, dtype=bool), (8, 2, 64), 1)
    (table,) = part.forward.tables
    kind = TensorKind(BF16, torch.device("cpu"), 64, group=4)
    whole = sum(128 * (begin // 128) for begin in range(0, 160, 32))
    edge = sum(begin % 128 + 32 for begin in range(0, 160, 32))
    assert TritonKernel().work(table, kind) == Work(1, 32 * whole, 32 * edge)
    cost = predict(TritonKernel(), part, kind)
    assert cost.work == Work(1, 32 * whole, 32 * edge)
    assert Work(1, 2, 3, 4, 5) + Work(10, 20, 30, 40, 50) == Work(11, 22, 33, 44, 55)


def test_tiles_are_those_of_the_generation(snapshots):
    texts = {}
    for head_dim, title in ((128, "tiles"), (256, "tiles of heads above 128")):
        lines = []
        for kernel in ("forward", "dq", "dkv"):
            for dtype, arch in product((BF16, F32), (80, 89, 90, 100, 119, 120)):
                shapes = [launch_shape(kernel, dtype, arch, g, head_dim) for g in (1, 2, 3, 8)]
                s = shapes[0]
                lines.append(
                    f"{kernel} {dtype} {arch}: {s.block_m} x {s.block_n}, {s.warps} warps, "
                    f"{s.stages} stages, edge {s.edge}, heads {[s.heads for s in shapes]}, "
                    f"tokens {[s.tokens for s in shapes]}"
                )
        texts[title] = "\n".join(lines)
    assert launch_shape("dq", BF16) == launch_shape("dq", BF16, 90, 1, 128)
    snapshots.check("launch_shapes", texts)


def test_known_kernels_have_segments_that_suit_them():
    assert [known_kernel(name) for name in KERNELS] == list(KERNELS)
    rows = {name: segment_rows(name) for name in (None, *KERNELS)}
    assert rows == {
        None: 256, "triton": 128, "flash4": 256, "flash": 256, "cpu": 256, "reference": 512,
    }  # fmt: skip
    with pytest.raises(RunError, match=r"expected a kernel out of triton, flash4, .*, got 'x'"):
        known_kernel("x")
