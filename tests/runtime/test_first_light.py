"""The first stages of a GPU, run as far as a CPU can run them."""

import json
import subprocess
import sys
import time
import warnings
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dcp_planner.plan import decode_part
from dcp_runtime import DCPExecutor
from dcp_runtime.transport.loopback import LoopbackTransport, LoopbackWorld

GPU = Path(__file__).resolve().parents[2] / "gpu"
SMALLEST = {"tokens": 1000, "head_dim": 64, "heads": (4, 2), "block": 128}
"""Of the small cases."""
GPU_TIMEOUT_S = 900
"""Of tests that compile the kernels of all cases, which takes minutes."""
SYNC_WARNING = (
    "Synchronization debug mode is a prototype feature and does not yet detect all synchronizing "
    "operations (Triggered internally at /pytorch/torch/csrc/cuda/Module.cpp:1003.)"
)
"""What torch 2.11 says."""
WITHOUT_COMPILERS = """
import sys

# `None` is what is not installed, for `import` and for `find_spec`, by which torch asks.
sys.modules.update(dict.fromkeys(("numba", "llvmlite", "pyarrow", "pandas")))
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/../runtime/benchmarks"]
from pathlib import Path
import cases
cases.PLANS = Path(sys.argv[2])
import stages
import bench_kernels
stages.SHARED = [case for case in cases.SHARED if case.ranks == 2]
import json
print(json.dumps(list(stages.ranks())))
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
        patch.setattr(cases, "SMALL", [cases.Case("sparse", **SMALLEST)])
        patch.setattr(cases, "SHARED", cases.SHARED[:1])
        patch.setattr(cases, "SPREAD", [])
        patch.setattr(cases, "TIMED", [cases.Case("causal", 1000, head_dim=64, heads=(4, 2))])
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
@pytest.mark.timeout(GPU_TIMEOUT_S)
def test_kernels_are_exact_and_repeatable_on_this_gpu(stages_of_this_gpu):
    ran = [row for row in stages_of_this_gpu.kernels() if "skipped" not in row]
    assert {row["kernel"] for row in ran} >= {"triton", "flash"}
    assert [row for row in ran if not row.get("ok")] == []
    assert all(row["bitwise_repeatable"] for row in ran if row["kernel"] == "triton")


@pytest.mark.gpu
@pytest.mark.timeout(GPU_TIMEOUT_S)
def test_ranks_that_share_this_gpu_agree_with_dense_attention(stages_of_this_gpu):
    assert [row for row in stages_of_this_gpu.ranks() if not row.get("ok")] == []


@contextmanager
def host_that_never_waits():
    """Let torch raise where the host waits for the device; torch warns that it does not see all."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype feature")
        try:
            torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.timeout(GPU_TIMEOUT_S)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_layer_on_this_gpu_never_waits_for_the_device(stages_of_this_gpu, cases, dtype):
    case = cases.Case("sparse", **SMALLEST)
    q, kv, dout = stages_of_this_gpu.inputs(case, dtype)
    with DCPExecutor(transport=LoopbackTransport(LoopbackWorld(1), 0)) as executor:
        prepared = executor.prepare(decode_part(case.parts()[0]))
        out, lse = prepared.forward(q, kv)  # the first layer compiles and chooses
        prepared.backward(q, kv, out, lse, dout)
        with host_that_never_waits():
            out, lse = prepared.forward(q, kv)
            prepared.backward(q, kv, out, lse, dout)


def test_torch_may_warn_as_it_forbids_waits_and_allows_them_again(monkeypatch):
    modes = []

    def set_mode(mode):
        modes.append(mode)
        warnings.warn(SYNC_WARNING, stacklevel=1)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    with pytest.raises(RuntimeError, match="waits"), host_that_never_waits():
        raise RuntimeError("a host that waits")
    assert modes == ["error", "default"]


@pytest.fixture
def stages(cases, plans, monkeypatch):
    import stages

    monkeypatch.setattr(cases, "PLANS", plans)
    monkeypatch.setattr(stages, "SMALL", [cases.Case("sparse", **SMALLEST)])
    return stages


def test_kernels_of_this_machine_are_judged(stages, monkeypatch):
    by_name = {row["kernel"]: row for row in stages.kernels()}
    assert by_name["cpu"]["ok"]
    assert by_name["reference"]["bitwise_repeatable"]
    assert "CUDA" in by_name["flash"]["skipped"]
    expected = stages.dense_values

    def wrong(*tensors):
        return {key: 1.01 * value for key, value in expected(*tensors).items()}

    monkeypatch.setattr(stages, "dense_values", wrong)
    wrong_ones = [row["kernel"] for row in stages.kernels() if row.get("ok") is False]
    assert wrong_ones == ["cpu", "reference"]


def test_on_a_gpu_kernels_run_apart_with_bits_in_float32_too(stages, cases, monkeypatch):
    """The other process sees no GPU here, and skips what needs one."""
    monkeypatch.setattr(stages, "has_cuda", lambda: True)
    found = {(row["kernel"], row["dtype"]): row for row in stages.kernels()}
    dtypes = {"torch.bfloat16", "torch.float32"}
    assert set(found) == {(name, dtype) for name in stages.KERNELS for dtype in dtypes}
    assert found["reference", "torch.float32"]["ok"]
    assert found["reference", "torch.bfloat16"]["ok"]
    assert "skipped" in found["triton", "torch.float32"]


def test_full_tiles_and_tiles_with_bits_are_compared_first(cases):
    assert [case.mask for case in cases.SMALL[:6]] == 3 * ["full"] + 3 * ["sparse"]
    assert cases.Case("sparse", **SMALLEST) in cases.SMALL


WORK_APART = """
import os
import apart

def tell():
    return {"process": os.getpid()}

def fail():
    raise ValueError("refused")

def lose_the_device():
    apart.is_device_lost = lambda: True  # in that process
    raise RuntimeError("illegal memory access")

def crash():
    os.abort()
"""


def test_work_that_loses_the_device_or_crashes_fails_no_later_work(cases, tmp_path, monkeypatch):
    from apart import Apart

    (tmp_path / "work_apart.py").write_text(WORK_APART)
    monkeypatch.syspath_prepend(tmp_path)
    import work_apart as work

    order = [work.tell, work.fail, work.tell, work.lose_the_device, work.tell, work.crash]
    with Apart() as apart:
        found = [apart.attempt(each) for each in (*order, work.tell)]
    errors = [row.get("error") for row in found]
    assert errors[1::2] == [
        "ValueError: refused",
        "RuntimeError: illegal memory access",
        "its process ended: -6",
    ]
    assert errors[::2] == [None] * 4
    first, second, third, fourth = (row["process"] for row in found[::2])
    assert first == second
    assert len({first, third, fourth}) == 3


def test_stages_that_time_a_gpu_run_through_on_a_cpu(stages, cases, monkeypatch):
    """No attribute is missing in what half an hour of a GPU must not find out."""
    monkeypatch.setattr(stages, "need_cuda", lambda: None)
    monkeypatch.setattr(stages, "KERNELS", ("cpu", "reference", "flash", "flash4"))
    monkeypatch.setattr(stages, "TIMED", [cases.Case("causal", 1000, head_dim=64, heads=(4, 2))])
    monkeypatch.setattr("timing.MEASURE_S", 0.0)
    monkeypatch.setattr(stages, "flex_calls", stages._our_calls)  # compiles for half a minute
    of_gpu = {"reset_peak_memory_stats": None, "max_memory_allocated": 7}
    for name, result in (of_gpu | {"get_device_capability": (9, 0)}).items():
        monkeypatch.setattr(stages.torch.cuda, name, lambda result=result: result)
    speed = {row["kernel"]: row for row in stages.speed()}
    for name in ("cpu", "reference", "torch flash"):
        assert speed[name]["backward_tflops"] > 0, speed[name]
    assert "needs tensors on a CUDA device" in speed["flash"]["refused"]
    assert "RuntimeError: No viable backend" in speed["torch cudnn"]["refused"]
    assert not any("error" in row for row in speed.values())
    (found,) = stages.executor()
    assert found["kernel"] == "cpu"
    assert found["forward_over_kernel"] > 0
    assert found["peak_bytes"] == 7
    tried = list(stages.tiles())
    assert len(tried) == 3 * len(stages.SHAPES)
    assert {row["refused"].split(":")[0] for row in tried} == {"RunError"}
    in_use = [(row["kernel"], row["shape"]) for row in tried if row["in_use"]]
    assert in_use == [("dkv", (64, 128, 8, 2))]


def test_what_was_found_is_told_in_tables(cases, tmp_path, snapshots, capsys, monkeypatch):
    import report

    errors = {"out": 0.001, "dq": 0.002, "dkv": 0.0015}
    exact = {"errors": errors, "ok": True, "bitwise_repeatable": True, "dtype": "torch.bfloat16"}
    rates = {"forward_tflops": 512.3, "backward_tflops": 300.0}
    found = {
        "machine": [{"python": "3.12", "torch": "2.11", "triton": "3.6", "device": "H100",
                     "matmul_tflops": 798.1, "copy_gb_per_s": 3012.0}],
        "kernels": [
            exact | {"case": "full", "kernel": "triton"},
            exact | {"case": "causal", "kernel": "triton", "errors": {"out": 0.0005}},
            exact | {"case": "full", "kernel": "flash", "ok": False, "bitwise_repeatable": False},
            {"case": "full", "kernel": "flash4", "dtype": "torch.bfloat16", "skipped": "absent"},
        ],
        "ranks": [{"case": "causal-2", "errors": errors, "ok": True}],
        "speed": [
            {"case": "causal", "kernel": "triton"} | rates,
            {"case": "causal", "kernel": "torch flash", "forward_tflops": 400.0,
             "backward_tflops": 320.0},
            {"case": "causal", "kernel": "flash4", "refused": "absent"},
            {"case": "documents", "kernel": "triton"} | rates,
            {"case": "documents", "kernel": "torch flash", "forward_tflops": 256.15,
             "error": "RuntimeError: no backward"},
            {"case": "window", "kernel": "triton", "forward_tflops": 480.0, "error": "no backward"},
            {"case": "window", "kernel": "torch flash"} | rates,
        ],
        "executor": [{"case": "causal", "kernel": "triton", "forward_s": 0.07, "backward_s": 0.2,
                      "forward_over_kernel": 1.012, "backward_over_kernel": 0.999,
                      "prepare_s": 0.004, "host_forward_s": 0.0002, "peak_bytes": 3 * 2**30,
                      "input_bytes": 2**30}],
        "overlap": [{"backend": "nccl", "case": "causal-2",
                     "overlap": {"step_s": 0.01, "layers": 4, "trace_s": 0.01, "exposed": 0.04}}],
        "tiles": [
            {"case": "causal", "kernel": "dkv", "shape": [128, 64, 8, 2], "in_use": False,
             "backward_tflops": 310.0},
            {"case": "causal", "kernel": "dkv", "shape": [64, 128, 8, 2], "in_use": True,
             "backward_tflops": 300.0},
            {"case": "causal", "kernel": "dkv", "shape": [64, 64, 8, 2], "in_use": False,
             "refused": "does not fit"},
        ],
    }  # fmt: skip
    stages = {
        name: {"stage": name, "status": "passed", "rows": rows} for name, rows in found.items()
    }
    stages["kernels"]["status"] = "failed"
    stages["compilation"] = {"stage": "compilation", "status": "skipped", "rows": []}
    for name, document in stages.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(document))

    def told(*arguments):
        monkeypatch.setattr(sys, "argv", ["report.py", *map(str, arguments)])
        report.main()
        return capsys.readouterr().out

    tables, joined = told(tmp_path), tmp_path / "joined.json"
    snapshots.check("first_light", {"tables": tables})
    assert told(tmp_path, "--json", joined) == tables
    assert json.loads(joined.read_text()) == stages
    assert told(tmp_path) == told("--table", joined) == tables
    for wrong in ((), (tmp_path, "--table", joined)):
        with pytest.raises(SystemExit):
            told(*wrong)


def test_a_plan_runs_where_neither_numba_nor_pyarrow_is_installed(plans):
    """Its parts are read and prepared by numpy alone, as on a machine that only trains."""
    command = [sys.executable, "-c", WITHOUT_COMPILERS, str(GPU), str(plans)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (row,) = json.loads(done.stdout)
    assert row["ok"]
    assert row["case"] == "streaming_llm-1024-2-64"


def test_stages_that_need_a_gpu_say_so_and_leave_a_document(tmp_path, start_python):
    arguments = (GPU / "first_light.py", "--stage", "speed", "--out", tmp_path)
    fork = start_python(*arguments, folder=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert fork.wait(250) == 0, fork.err.read_text()
    assert "skipped" in fork.out.read_text()
    document = json.loads((tmp_path / "speed.json").read_text())
    assert (document["stage"], document["status"]) == ("speed", "skipped")
    assert document["reason"] == "torch sees no CUDA device"


@pytest.fixture
def scripted(cases, tmp_path, monkeypatch):
    """Let the stage ``machine`` be some lines of Python; give what it leaves."""
    import first_light

    class UntilRows(subprocess.Popen):
        """A process whose time is over once its stage has written `rows`."""

        rows = None

        def wait(self, timeout=None):
            path = tmp_path / "machine.json"
            while timeout is not None and self.rows is not None:
                if path.exists() and len(json.loads(path.read_text())["rows"]) == self.rows:
                    raise subprocess.TimeoutExpired(self.args, timeout)
                time.sleep(0.01)
            return super().wait(timeout)

    monkeypatch.setattr(first_light.subprocess, "Popen", UntilRows)

    def run(body, cut_after=None):
        UntilRows.rows = cut_after
        script = tmp_path / "first_light.py"
        patch = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(GPU)!r})
import types
stages = sys.modules["stages"] = types.ModuleType("stages")
class Skip(Exception): pass
def machine():
{body}
stages.Skip, stages.STAGES = Skip, {{"machine": machine}}
import first_light
first_light.run_stage("machine", Path({str(tmp_path)!r}))
"""
        script.write_text(patch)
        monkeypatch.setattr(first_light, "__file__", str(script))
        return first_light.start("machine", tmp_path, 240.0)

    return run


CUT_OFF = """
    yield {"rate": 1}
    import subprocess
    subprocess.Popen(["sleep", "300"])  # holds what the stage holds
    yield {"rate": 2}
    time.sleep(300)
"""


def test_a_stage_that_takes_too_long_leaves_its_rows_and_no_process(scripted, tmp_path, capsys):
    document = scripted(CUT_OFF, cut_after=2)
    assert document["status"] == "cut off"
    assert document["rows"] == [{"rate": 1}, {"rate": 2}]
    assert "longer than 240 s" in document["reason"]
    assert json.loads((tmp_path / "machine.json").read_text()) == document
    assert document["seconds"] < 60, "waited for a process of the stage"
    assert "cut off" in capsys.readouterr().out


def test_a_wrong_row_counts_where_its_stage_is_cut_off(scripted):
    document = scripted("    yield {'ok': False}; time.sleep(300)", cut_after=1)
    assert (document["status"], len(document["rows"])) == ("failed", 1)
    assert "longer than 240 s" in document["reason"]


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ("    yield {'ok': True}", "passed", None),
        ("    yield {'ok': False}", "failed", None),
        ("    yield {'error': 'CUDA'}", "failed", None),
        ("    yield {}; import os; os.abort()", "failed", "exit -6"),
        ("    yield {}; raise ValueError('torch lacks it')", "failed", "torch lacks it"),
    ],
)
def test_stages_that_fail_or_crash_are_told_with_their_rows(scripted, body, status, reason):
    document = scripted(body)
    assert (document["status"], len(document["rows"])) == (status, 1)
    assert reason is None or reason in document["reason"]


def test_a_stage_that_no_time_is_left_for_says_so(cases, tmp_path):
    import first_light

    document = first_light.start("machine", tmp_path, -3.0)
    assert (document["status"], document["reason"]) == ("cut off", "no time is left for it")
    assert (tmp_path / "machine.json").exists()


@pytest.mark.parametrize(("status", "code"), [("passed", 0), ("skipped", 0), ("cut off", 1)])
def test_the_exit_status_is_0_where_no_stage_was_left_open(
    cases, tmp_path, monkeypatch, capsys, status, code
):
    import first_light

    ends = {"machine": "passed", "kernels": status}
    ended = {name: {"status": ends[name], "rows": []} for name in ends}
    monkeypatch.setattr(first_light, "start", lambda name, *_: ended[name])
    arguments = ["first_light", "--stage", *ends, "--out", str(tmp_path)]
    monkeypatch.setattr(first_light.sys, "argv", arguments)
    assert first_light.main() == code
    last = capsys.readouterr().out.splitlines()[-1:]
    assert (last == ["without a full answer: kernels"]) == bool(code)


def test_of_little_time_each_stage_gets_its_part(cases, tmp_path, monkeypatch):
    import first_light

    now, shares = [100.0], []

    def start(name, folder, limit_s):
        shares.append(limit_s)
        now[0] += {"machine": 6.0, "ranks": limit_s, "speed": 24.0}[name]
        return {"status": "passed"}

    monkeypatch.setattr(first_light, "start", start)
    monkeypatch.setattr(first_light.time, "monotonic", lambda: now[0])
    arguments = ["first_light", "--out", str(tmp_path), "--limit", "63"]
    monkeypatch.setattr(
        first_light.sys, "argv", [*arguments, "--stage", "machine", "ranks", "speed"]
    )
    assert first_light.main() == 0
    # Of 630 s that they may take; after 6 s there are 57 s left for 570 s, of which 9 s are used.
    assert shares == pytest.approx([6.0, 9.0, 48.0])


def test_all_stages_fit_into_half_an_hour(cases):
    import first_light
    import stages

    assert list(first_light.LIMITS_S) == list(stages.STAGES)
    assert sum(first_light.LIMITS_S.values()) <= 28 * 60


def test_plans_that_are_missing_are_named_with_the_command_that_makes_them(cases):
    with pytest.raises(SystemExit, match=r"no-such-mask.*run `python gpu/cases.py`"):
        replace(cases.SMALL[0], mask="no-such-mask").parts()
