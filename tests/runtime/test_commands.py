"""`dcpm run`: its document, its messages, its exit status."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner

from dcp_dsl import Slabs, block_sparsity
from dcp_dsl.cli import dcpm
from dcp_planner import (
    Cluster,
    ModelShape,
    PlanConfig,
    build_plan,
    read_plan,
    simulate,
    write_plan,
)
from dcp_runtime import RunError
from dcp_runtime.launch import launcher
from dcp_runtime.verify.verification import TensorError


def run(path, *options):
    return CliRunner().invoke(dcpm, ["run", str(path), *options])


@pytest.fixture
def write(lab, tmp_path):
    """Write the plan of a small causal mask for a cluster."""

    def file_of(cluster):
        plan = lab.plan_of([("causal", 60)], heads=(2, 1, 8), cluster=cluster)
        write_plan(tmp_path / "small.dcpplan", plan)
        return tmp_path / "small.dcpplan"

    return file_of


@pytest.fixture
def plan_file(write):
    return write(Cluster(devices_per_node=2))


@pytest.mark.dist
def test_run_prints_one_document_and_writes_the_trace(plan_file, tmp_path):
    out = tmp_path / "measured.dcpplan"
    result = run(plan_file, "--ranks", "2", "--verify", "--json", "--trace", str(out))
    document = json.loads(result.stdout)
    assert result.exit_code == 0
    assert document["schema"] == "dcp.run/1"
    assert document["verified"] is True
    assert document["kernels"] == ["cpu", "cpu"]
    assert set(document["errors"]) == {"out", "dq", "dk", "dv"}
    assert document["seconds"] > 0 <= document["exposed_s"]
    (trace,) = read_plan(out).traces
    assert trace.source == "measured"
    assert trace.size_bytes.sum() == 2 * document["bytes"]  # once sent, once received


def test_failed_verification_is_exit_status_1_with_the_numbers(plan_file, monkeypatch):
    bad = TensorError("dq", 1e-2, 1e-7, float("nan"), 2e-7, ok=False)
    result = launcher.RunResult(
        False, (bad,), "slabs", 1.0, 0.4, 0.6, 0.1, 100, 0.01, 1e-6,
        simulate(read_plan(plan_file).plan), ("triton", "flash4", "triton"),
    )  # fmt: skip
    monkeypatch.setattr(launcher, "run_plan", lambda *_: result)
    shown = run(plan_file)
    assert shown.exit_code == 1
    assert "(triton kernel on 2, flash4 kernel on 1)" in shown.stdout
    assert "dq   error 1.00e-02 (1.00e-07)" in shown.stdout
    assert "NOT VERIFIED" in shown.stdout
    assert "mask from the slabs of the plan" in shown.stdout
    shown = run(plan_file, "--json")
    assert shown.exit_code == 1
    assert json.loads(shown.stdout)["errors"]["dq"]["relative_max"] is None
    rebuilt = replace(result, mask_source="provenance")
    monkeypatch.setattr(launcher, "run_plan", lambda *_: rebuilt)
    assert "mask from the spec stored in the plan" in run(plan_file).stdout


def test_a_run_keeps_what_the_file_says_of_other_methods(plan_file, tmp_path):
    against = {"static:ring": {"predicted_forward_s": 1.0, "predicted_backward_s": 2.0}}
    file, out = read_plan(plan_file), tmp_path / "own.dcpplan"
    write_plan(out, file.plan, file.traces, against=against)
    result = run(str(out), "--transport", "loopback", "--trace", str(out))
    assert result.exit_code == 0, result.stderr
    assert read_plan(out).meta["against"] == against


@pytest.mark.parametrize("target", ["missing/x.dcpplan", "pipe.dcpplan", "folder.pftrace"])
def test_a_trace_that_cannot_be_written_is_refused_before_the_run(
    plan_file, tmp_path, monkeypatch, target
):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.dcpplan")
    os.mkdir("folder.pftrace")
    result = run(plan_file, "--trace", target)
    assert isinstance(result.exception, RunError)
    assert f"{target}: cannot be written" in str(result.exception)
    assert "running" not in result.stderr


@pytest.mark.parametrize("target", ["x.txt", "x", "trace.json", "x.dcpplan.gz"])
def test_a_trace_of_an_unknown_format_is_refused_before_the_run(plan_file, tmp_path, target):
    result = run(plan_file, "--trace", str(tmp_path / target))
    assert result.exit_code == 2
    assert "--trace: expected a name that ends in .dcpplan or .pftrace, got" in result.stderr
    assert "running" not in result.stderr
    assert not (tmp_path / target).exists()


def test_a_cuda_kernel_on_the_cpu_is_refused_once_with_what_to_use_instead(plan_file):
    result = run(plan_file, "--kernel", "triton", "--transport", "loopback")
    assert isinstance(result.exception, RunError)
    assert "use kernel 'cpu', or set TRITON_INTERPRET=1" in str(result.exception)
    assert str(result.exception).count("needs tensors on a CUDA device") == 1


@pytest.mark.parametrize(
    "option", [("--seed", "-1"), ("--timeout", "nan"), ("--timeout", "inf"), ("--timeout", "1e9")]
)
def test_numbers_out_of_range_are_refused(plan_file, option):
    result = run(plan_file, *option)
    assert result.exit_code == 2 or isinstance(result.exception, RunError)
    assert isinstance(result.exception, SystemExit | RunError)


def test_missing_torch_names_the_extra(plan_file, monkeypatch):
    monkeypatch.setattr(launcher, "find_spec", lambda _: None)
    result = run(plan_file)
    assert isinstance(result.exception, RunError)
    assert "pip install 'dcp-dsl[run]'" in str(result.exception)


def test_help_loads_no_heavy_library_planner_processes_no_torch_and_the_face_names_its_extra():
    code = (
        "import sys, dcp_runtime.commands; from dcp_runtime import RunConfig\n"
        "assert not {'torch', 'numba', 'pyarrow'} & set(sys.modules)\n"
        "import dcp_runtime.data.make_plans\n"
        "assert 'torch' not in sys.modules\n"
        "sys.modules['torch'] = None\n"
        "try:\n    dcp_runtime.DCPAttn\n"
        "except ModuleNotFoundError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'dcp-dsl[run]'" in done.stdout


@pytest.mark.parametrize(
    ("cluster", "options", "says"),
    [
        (Cluster(1, 2), ("--ranks", "3"),
         "the plan is for 2 devices, 3 ranks were asked for.*run it on 2 ranks"),
        (Cluster(3, 8), (), "is for 24 devices.*say --ranks 24"),
    ],
)  # fmt: skip
def test_processes_start_as_many_as_the_plan_has_devices_and_many_only_if_asked_for(
    write, monkeypatch, cluster, options, says
):
    monkeypatch.setattr(launcher, "run_plan", lambda *_: pytest.fail("started"))
    result = run(write(cluster), *options)
    assert isinstance(result.exception, RunError)
    assert re.search(says, str(result.exception))


@pytest.mark.parametrize("tokens", [2**31 - 1, 60])
def test_a_small_file_of_many_tokens_is_refused_before_anything_is_allocated(
    lab, tmp_path, monkeypatch, tokens
):
    mask = Slabs(tokens, [0], [tokens], [0], [1], [0], [1])
    block = 2**28 if tokens > 60 else 16
    sparsity = block_sparsity([mask], block, block)
    config = PlanConfig(partitioner="static:contiguous")
    plan = build_plan(sparsity, ModelShape(2, 1, 8, 4), Cluster(1, 2), config)
    if tokens == 60:  # a receive buffer has as many rows as its largest slot says
        assert len(plan.transfers)
        slot = plan.transfers.slot.copy()
        slot[0] = 2**31 - 64
        plan = replace(plan, transfers=replace(plan.transfers, slot=slot))
    write_plan(tmp_path / "long.dcpplan", plan)
    assert (tmp_path / "long.dcpplan").stat().st_size < 40_000
    monkeypatch.setattr(launcher, "open_world", lambda *_: pytest.fail("started"))
    real = os.sysconf
    pages = {"SC_PHYS_PAGES": 16 * 2**30 // real("SC_PAGE_SIZE")}
    monkeypatch.setattr(os, "sysconf", lambda name: pages.get(name) or real(name))
    result = run(tmp_path / "long.dcpplan")
    assert isinstance(result.exception, RunError), result.output
    assert "expected a plan that fits into this machine's" in str(result.exception)


@pytest.mark.dist
def test_loopback_runs_in_one_process_and_writes_a_trace_for_perfetto(plan_file, tmp_path):
    out = tmp_path / "trace.pftrace"
    result = run(plan_file, "--transport", "loopback", "--verify", "--json", "--trace", str(out))
    document = json.loads(result.stdout)
    assert (document["verified"], document["transport"], document["ranks"]) == (True, "loopback", 2)
    assert b"attention" in out.read_bytes()
    assert "running on 2 threads of one process" in result.stderr
