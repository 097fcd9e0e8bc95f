"""Our CUDA kernels, cross-compiled to sm_90: what their loops are made of."""

import json
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "runtime" / "benchmarks" / "bench_kernels.py"


@pytest.mark.parametrize("head_dims", [(128,), pytest.param((64, 96), marks=pytest.mark.slow)])
def test_loops_over_whole_runs_use_wgmma_alone_and_spill_nothing(tmp_path, start_python, head_dims):
    out, options = tmp_path / "kernels.json", ("--arch", 90, "--head-dim", *head_dims, "--masks")
    cache = {"folder": tmp_path, "TRITON_CACHE_DIR": str(tmp_path)}
    fork = start_python(BENCHMARK, "--json", out, *options, **cache)
    assert fork.wait(280) == 0, fork.err.read_text()[-3000:]
    found = json.loads(out.read_text())["kernels"]
    kernels = {entry["kernel"] for entry in found}
    assert kernels - {"forward_tma"} == {"forward", "dq", "dkv", "fused"}
    for entry in found:
        assert entry["shared_bytes"] <= 227 * 1024, entry
        if entry["dtype"] == "float32":  # no tensor cores at full precision
            assert not entry["loops"]
            continue
        whole, masked = entry["loops"]
        assert whole["wgmma"] > 0, entry
        assert whole["mma"] == masked["mma"] == 0, entry
        assert (whole["tma"] > 0) == (entry["kernel"] == "forward_tma"), entry
        # Five products at once need some more registers than there are; 15 of 588 instructions.
        is_short_of_registers = entry["kernel"] == "fused" and entry["head_dim"] == 128
        assert whole["spills"] <= (16 if is_short_of_registers else 0), entry
        # Of one row or key: the loops would be alike if whole runs were masked after all.
        size = entry["shape"][entry["kernel"] in ("forward", "forward_tma", "dq")]
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
