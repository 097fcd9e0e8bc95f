import json

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan, find_cluster, simulate
from dcp_planner.model.cost_model import link_seconds
from dcp_planner.simulation import EVENT_KINDS
from dcp_runtime import RunError
from dcp_runtime.commands import calibrate
from dcp_runtime.launch import calibration
from dcp_runtime.launch.calibration import Line, fit_messages, fit_nonnegative


@given(
    latency=st.floats(0, 1e-3),
    launch=st.floats(0, 1e-4),
    rate=st.floats(1e6, 1e11),
)
def test_a_fit_of_exact_times_gives_the_times_back(latency, launch, rate):
    samples = [
        {"size_bytes": size, "count": count, "seconds": latency + count * (launch + size / rate)}
        for size in calibration.MESSAGE_BYTES
        for count in calibration.MESSAGE_COUNTS
    ]
    fitted = fit_messages(samples)
    for s in samples:
        seconds = fitted.latency_s + s["count"] * (
            fitted.launch_s + s["size_bytes"] * fitted.s_per_byte
        )
        assert seconds == pytest.approx(s["seconds"], rel=1e-6)


def test_the_fit_means_what_the_cost_model_charges():
    samples = [
        {"size_bytes": size, "count": 1, "seconds": 5e-6 + 2e-6 + size / 1e9}
        for size in (1000, 10_000, 1_000_000)
    ] + [{"size_bytes": 1000, "count": 9, "seconds": 5e-6 + 9 * (2e-6 + 1e-6)}]
    line = fit_messages(samples)
    cluster = Cluster(
        intra_bytes_per_s=line.rate, latency_s=line.latency_s, message_launch_s=line.launch_s
    )
    busy = link_seconds([1000] * 9, cluster, is_inter=False).sum()
    assert busy + cluster.latency_s == pytest.approx(samples[-1]["seconds"], rel=1e-6)


def test_a_term_that_would_be_negative_is_left_out():
    terms = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    fitted = fit_nonnegative(terms, np.array([1.0, 2.5, 4.0]))  # the line -0.5 + 1.5 n
    assert fitted[0] == 0
    assert fitted[1] > 0


def test_a_link_that_nobody_measured_is_no_bottleneck():
    assert Line(0.0, 0.0, 0.0).rate == 1e12


@pytest.mark.parametrize("is_backward", [False, True])
def test_the_time_beside_attention_is_that_of_the_slowest_rank(lab, is_backward):
    sparsity = lab.sparsity_of([lab.masks["causal"](64)], 16)
    cluster = Cluster(1, 2, flops_per_s=1e12, latency_s=1e-3)
    plan = build_plan(sparsity, ModelShape(2, 1, 8, 4), cluster, PlanConfig("static:contiguous"))
    trace = simulate(plan)
    rows = [
        (int(start), int(end), EVENT_KINDS[kind] == "attention")
        for start, end, kind in zip(trace.start_ns, trace.end_ns, trace.kind, strict=True)
    ]
    beside = []
    for device in range(2):
        at = np.flatnonzero((trace.device == device) & (trace.is_backward == is_backward))
        own = [rows[i] for i in at.tolist()]
        attention = sum(end - start for start, end, attends in own if attends)
        beside.append(max(end for _, end, _ in own) - min(s for s, _, _ in own) - attention)
    assert calibration._beside(trace, is_backward=is_backward) == pytest.approx(max(beside) / 1e9)
    assert max(beside) > min(beside)


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """One run of the command, with fewer and smaller measurements."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "LENGTHS", (128, 512))
        patch.setattr(calibration, "MESSAGE_BYTES", (1 << 10, 1 << 20))
        patch.setattr(calibration, "REPEATS", 2)
        out = tmp_path_factory.mktemp("c") / "mine.toml"
        result = CliRunner().invoke(calibrate, ["--ranks", "2", "--out", str(out), "--json"])
    return result, out


@pytest.mark.dist
def test_calibrate_writes_a_cluster_that_plans_can_use(calibrated):
    result, out = calibrated
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    cluster = find_cluster(str(out))
    assert document["schema"] == "dcp.calibrate/1"
    assert "measuring attention, forward and backward\n" in result.stderr
    assert document["cluster"]["flops_per_s"] == cluster.flops_per_s > 1e6
    assert cluster.backward_flops_per_s > 1e6
    assert cluster.num_devices == 2
    assert find_cluster(f"{out}:1x8").num_devices == 8
    stated = {k for k, v in document["cluster"].items() if v is not None}
    identity = {"name", "source", "nodes", "devices_per_node"}
    assert stated - identity == set(document["sources"])


@pytest.mark.dist
def test_calibrate_says_how_far_its_predictions_are_off(calibrated):
    result, _ = calibrated
    document = json.loads(result.stdout)
    assert [check["plan"] for check in document["checks"]] == [c[0] for c in calibration.CHECKS]
    for check in document["checks"]:
        assert check["predicted_s"] > 0
        assert check["error"] == pytest.approx(
            abs(check["predicted_s"] / check["measured_s"] - 1), rel=1e-9
        )
        assert f"check: {check['plan']}: predicted" in result.stderr
    assert document["is_busy"] == (document["noise"] > calibration.MOST_NOISE)
    assert document["is_busy"] == ("this machine is busy" in result.stderr)


def test_calibrate_without_a_cuda_device_says_so():
    import torch

    if torch.cuda.is_available():
        assert calibration.calibrate_cuda(print).cluster.flops_per_s > 1e12
        return
    result = CliRunner().invoke(calibrate, ["--device", "cuda"])
    assert "expected a CUDA device, PyTorch sees none" in str(result.exception)


def test_calibrate_refuses_a_folder_that_is_missing_before_it_measures(tmp_path):
    result = CliRunner().invoke(calibrate, ["--out", str(tmp_path / "no" / "mine.toml")])
    assert isinstance(result.exception, RunError)
    assert f"make the folder {tmp_path / 'no'} first" in str(result.exception)
    assert "measuring" not in result.stderr
