"""The first stages of a GPU, run as far as a CPU can run them."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dcp_planner.plan import decode_part
from dcp_runtime import DCPExecutor
from dcp_runtime.transport.loopback import LoopbackTransport, LoopbackWorld

GPU = Path(__file__).resolve().parents[2] / "gpu"
WITHOUT_COMPILERS = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("numba", "llvmlite", "pyarrow", "pandas"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refuse())
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import cases
cases.PLANS = Path(sys.argv[2])
import stages
stages.SHARED = [case for case in cases.SHARED if case.ranks == 2]
import json
print(json.dumps(stages.ranks()))
"""


@pytest.fixture(scope="module")
def cases():
    sys.path.insert(0, str(GPU))
    import cases

    yield cases
    sys.path.remove(str(GPU))


@pytest.fixture(scope="module")
def plans(cases, tmp_path_factory):
    """Plans of one small case and of two ranks."""
    folder = tmp_path_factory.mktemp("plans")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cases, "PLANS", folder)
        patch.setattr(cases, "SMALL", [case for case in cases.SMALL if case.head_dim == 64][-1:])
        patch.setattr(cases, "SHARED", cases.SHARED[:1])
        patch.setattr(cases, "TIMED", [])
        cases.main()
    return folder


@pytest.fixture(scope="module")
def stages_of_this_gpu(cases, tmp_path_factory):
    """All small cases, with their plans, on the GPU of this machine."""
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    import stages

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cases, "PLANS", tmp_path_factory.mktemp("all_plans"))
        patch.setattr(cases, "TIMED", [])
        cases.main()
        yield stages


@pytest.mark.gpu
def test_kernels_are_exact_and_repeatable_on_this_gpu(stages_of_this_gpu):
    found = stages_of_this_gpu.kernels()
    ran = [row for row in found["rows"] if "skipped" not in row]
    assert not found["failed"]
    assert {row["kernel"] for row in ran} >= {"triton", "flash"}
    assert all(row["bitwise_repeatable"] for row in ran if row["kernel"] == "triton")


@pytest.mark.gpu
def test_ranks_that_share_this_gpu_agree_with_dense_attention(stages_of_this_gpu):
    assert not stages_of_this_gpu.ranks()["failed"]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_layer_on_this_gpu_never_waits_for_the_device(stages_of_this_gpu, cases, dtype):
    case = cases.SMALL[-1]
    q, kv, dout = stages_of_this_gpu.inputs(case, dtype)
    executor = DCPExecutor(transport=LoopbackTransport(LoopbackWorld(1), 0))
    prepared = executor.prepare(decode_part(case.parts()[0]))
    out, lse = prepared.forward(q, kv)  # the first layer compiles and chooses
    prepared.backward(q, kv, out, lse, dout)
    torch.cuda.set_sync_debug_mode("error")
    try:
        out, lse = prepared.forward(q, kv)
        prepared.backward(q, kv, out, lse, dout)
    finally:
        torch.cuda.set_sync_debug_mode("default")
        executor.close()


@pytest.fixture
def stages(cases, plans, monkeypatch):
    import stages

    monkeypatch.setattr(cases, "PLANS", plans)
    monkeypatch.setattr(stages, "SMALL", [c for c in cases.SMALL if c.head_dim == 64][-1:])
    return stages


def test_kernels_of_this_machine_are_judged(stages, monkeypatch):
    found = stages.kernels()
    by_name = {row["kernel"]: row for row in found["rows"]}
    assert by_name["cpu"]["ok"]
    assert by_name["reference"]["bitwise_repeatable"]
    assert "CUDA" in by_name["flash"]["skipped"]
    assert not found["failed"]
    expected = stages._dense_values

    def wrong(*tensors):
        return {key: 1.01 * value for key, value in expected(*tensors).items()}

    monkeypatch.setattr(stages, "_dense_values", wrong)
    assert {row["kernel"] for row in stages.kernels()["failed"]} == {"cpu", "reference"}


def test_a_plan_runs_where_neither_numba_nor_pyarrow_is_installed(plans):
    """Its parts are read and prepared by numpy alone, as on a machine that only trains."""
    command = [sys.executable, "-c", WITHOUT_COMPILERS, str(GPU), str(plans)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (row,) = json.loads(done.stdout)["rows"]
    assert row["ok"]
    assert row["case"] == "streaming_llm-1024-2-64"


def test_stages_that_need_a_gpu_say_so_and_leave_a_document(tmp_path):
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(GPU / "first_light.py"), "--stage", "speed", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert "skipped" in done.stdout
    document = json.loads((tmp_path / "speed.json").read_text())
    assert (document["stage"], document["status"]) == ("speed", "skipped")
    assert document["reason"] == "torch sees no CUDA device"


def test_a_stage_that_crashes_or_takes_too_long_is_told(cases, tmp_path, capsys):
    import first_light

    document = first_light.start("machine", tmp_path, limit_s=0.01)
    assert document["status"] == "failed"
    assert "longer than 0.01 s" in document["reason"]
    ended = subprocess.CompletedProcess([], -11, "", "Segmentation fault")
    assert "exit -11: Segmentation fault" in first_light.read_document(ended)["reason"]
    assert "failed" in capsys.readouterr().out


def test_plans_that_are_missing_are_named_with_the_command_that_makes_them(cases):
    with pytest.raises(SystemExit, match=r"no-such-mask.*run `python gpu/cases.py`"):
        replace(cases.SMALL[0], mask="no-such-mask").parts()
