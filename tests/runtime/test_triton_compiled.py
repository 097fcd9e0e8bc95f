"""Our CUDA kernels, cross-compiled to sm_90: what their loops are made of, and how many there are.

A driver that has no GPU stands in where kernels are launched; they are not compiled then.
"""

import json
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan
from dcp_runtime.execute.passes import BackwardPass, ForwardPass
from dcp_runtime.kernels.kernel import AttentionState, QueryRows
from dcp_runtime.kernels.triton_kernel import TritonKernel, merge_rows
from dcp_runtime.plans.device_plan import prepare_device

BENCHMARK = Path(__file__).parents[2] / "runtime" / "benchmarks" / "bench_kernels.py"


@pytest.mark.parametrize("head_dims", [(128,), pytest.param((64, 96), marks=pytest.mark.slow)])
def test_loops_over_whole_runs_use_wgmma_alone_and_spill_nothing(tmp_path, start_python, head_dims):
    out, options = tmp_path / "kernels.json", ("--arch", 90, "--head-dim", *head_dims, "--masks")
    cache = {"folder": tmp_path, "TRITON_CACHE_DIR": str(tmp_path)}
    fork = start_python(BENCHMARK, "--json", out, *options, **cache)
    assert fork.wait(280) == 0, fork.err.read_text()[-3000:]
    found = json.loads(out.read_text())["kernels"]
    kernels = {entry["kernel"] for entry in found}
    assert kernels == {"forward", "dq", "dkv"}
    for entry in found:
        assert entry["shared_bytes"] <= 227 * 1024, entry
        if entry["dtype"] == "float32":  # no tensor cores at full precision
            assert not entry["loops"]
            continue
        whole, masked = entry["loops"]
        assert whole["wgmma"] > 0, entry
        assert whole["mma"] == masked["mma"] == 0, entry
        assert whole["spills"] == 0, entry
        # Of one row or key: the loops would be alike if whole runs were masked after all.
        size = entry["shape"][entry["kernel"] in ("forward", "dq")]
        assert whole["instructions"] / size < masked["instructions"] / entry["edge"] / 2, entry


FLOAT32 = """
import json, sys, warnings
sys.path.insert(0, sys.argv[1])
warnings.simplefilter("ignore")  # Triton's own
import torch
from bench_kernels import compile_case
print(json.dumps(compile_case("dkv", torch.float32, 64, True, 90)))
"""


def test_dkv_in_float32_compiles_with_bits_and_spills_nothing(tmp_path, start_python):
    script = tmp_path / "compile.py"
    script.write_text(FLOAT32)
    fork = start_python(script, BENCHMARK.parent, folder=tmp_path, TRITON_CACHE_DIR=str(tmp_path))
    assert fork.wait(280) == 0, fork.err.read_text()[-3000:]
    found = json.loads(fork.out.read_text())
    assert (found["dtype"], found["has_bits"], found["spill_bytes"]) == ("float32", True, 0)


@pytest.fixture
def variants(monkeypatch):
    """Kernels that launches would compile: those of each name differ in what Triton compiles for.

    Triton compiles a kernel anew for an integer of 1, and for one that 16 divides.
    """
    found = defaultdict(set)

    def note(*, key, fn, **_):
        found[fn.name].add(key)
        return True  # as if it were compiled

    stand_in = SimpleNamespace(
        get_current_device=lambda: "no GPU",
        get_current_stream=lambda _: 0,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
    )
    monkeypatch.setattr(driver, "_active", stand_in)  # `reset_active` would look for a GPU
    with knobs.runtime.scope():
        knobs.runtime.jit_cache_hook = note
        yield found


def test_batches_of_any_size_share_their_kernels(lab, variants):
    shape, kernel = ModelShape(q_heads=4, kv_heads=2, head_dim=64), TritonKernel()
    for tokens in (1, 48, 64, 90):
        sparsity = lab.sparsity_of([lab.masks["streaming"](tokens)], 16)
        plan = build_plan(sparsity, shape, Cluster(1, 1), PlanConfig("static:zigzag"))
        part = prepare_device(plan, 0, kernel.segment_rows)
        q, dout = torch.zeros(2, tokens, 4, 64)
        kv = torch.zeros(tokens, 2, 2, 64)
        for finishes in (frozenset(), kernel.finishes):
            forward = ForwardPass(part, q, kv, finishes=finishes)
            for table in part.forward.tables:
                forward.attend(kernel, table)
            out, lse = forward.result()
            rows = QueryRows(q, dout, lse, kernel.delta(out, dout))
            backward = BackwardPass(part, rows, kv, finishes=finishes)
            for table in part.backward.tables:
                backward.attend(kernel, table)
        merge_rows(AttentionState(out.float(), lse), 0, out, lse)
    names = [f"{name}_kernel" for name in ("delta", "dkv", "dq", "forward", "merge")]
    assert {name: len(found) for name, found in sorted(variants.items())} == dict.fromkeys(names, 1)
