"""Constants of a machine, fitted to times, and rates of ranks, measured as they train."""

import json
import re
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from dcp_dsl import Spec
from dcp_planner import Cluster, PlanConfig, find_cluster, simulate
from dcp_planner.model.cost_model import link_seconds
from dcp_planner.simulation import EVENT_KINDS
from dcp_runtime import DeviceRates, Planning, RunError
from dcp_runtime.adapters.megatron import PlannedBatches, PlannedSequences
from dcp_runtime.commands import calibrate
from dcp_runtime.launch import calibration
from dcp_runtime.launch.calibration import fit_messages, fit_nonnegative


@given(latency=st.floats(0, 1e-3), launch=st.floats(0, 1e-4), rate=st.floats(1e6, 1e11))
def test_a_fit_of_exact_times_gives_the_times_back(latency, launch, rate):
    samples = [
        {"size_bytes": size, "count": count, "seconds": latency + count * (launch + size / rate)}
        for size in calibration.MESSAGE_BYTES
        for count in calibration.MESSAGE_COUNTS
    ]
    line = fit_messages(samples)
    for s in samples:
        of_one = line.launch_s + s["size_bytes"] * line.s_per_byte
        assert line.latency_s + s["count"] * of_one == pytest.approx(s["seconds"], rel=1e-6)


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
    assert fitted[0] == 0 < fitted[1]


@pytest.mark.parametrize("is_backward", [False, True])
def test_the_time_beside_attention_is_that_of_the_slowest_rank(lab, is_backward):
    cluster = Cluster(1, 2, flops_per_s=1e12, latency_s=1e-3)
    plan = lab.plan_of(
        [("causal", 64)], heads=(2, 1, 8), cluster=cluster, layout="static:contiguous"
    )
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


@pytest.mark.dist
def test_calibrating_real_ranks_writes_a_cluster_and_how_far_predictions_are_off(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(calibration, "LENGTHS", (128, 512))
    monkeypatch.setattr(calibration, "MESSAGE_BYTES", (1 << 10, 1 << 20))
    monkeypatch.setattr(calibration, "REPEATS", 2)
    out = tmp_path / "mine.toml"
    result = CliRunner().invoke(calibrate, ["--ranks", "2", "--out", str(out), "--json"])
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


class Machine:
    """Runs plans and rings in exactly the time that a cluster with known constants takes.

    `factors` are those of one plan's runs, in order and again; the first of all is much too slow.
    """

    def __init__(self, cluster, factors=(1.0,)):
        self.cluster, self.factors, self.ran, self.opened = cluster, factors, [], []

    @contextmanager
    def open_world(self, ranks, timeout_s, transport="gloo"):
        self.opened.append((ranks, timeout_s, transport))
        yield SimpleNamespace(ranks=ranks, run=self.ring)

    def ring(self, job):
        """Rank 1 is the slowest, and takes what the constants say."""
        sizes, counts = job["ring"]["sizes"], job["ring"]["counts"]
        assert job["ring"]["repeats"] == calibration.REPEATS
        line, rate = self.cluster, self.cluster.intra_bytes_per_s
        of_all = [
            {
                "size_bytes": size, "count": n,
                "seconds": line.latency_s + n * (line.message_launch_s + size / rate),
            }
            for size in sizes for n in counts
        ]  # fmt: skip
        return [
            ({"ring": [{**each, "seconds": share * each["seconds"]} for each in of_all]}, b"")
            for share in (0.6, 1.0, 0.8)[: self.opened[-1][0]]
        ]

    def run_plan(self, plan, config, world):
        assert config.ranks == world.ranks == plan.num_devices
        runs = [name for name, _ in self.ran]
        name = f"{plan.num_tokens} tokens in {len(plan.cu_seqlens) - 1}, {len(plan.tiles)} tiles"
        factor = self.factors[runs.count(name) % len(self.factors)] if self.ran else 50.0
        self.ran.append((name, factor))
        nodes = {"devices_per_node": plan.num_devices}
        trace = simulate(replace(plan, cluster=replace(self.cluster, **nodes)))
        start, end = (
            np.rint(each * factor).astype(np.int64) for each in (trace.start_ns, trace.end_ns)
        )
        trace = replace(trace, start_ns=start, end_ns=end, ready_ns=start)
        seconds = (trace.seconds(is_backward=is_backward) for is_backward in (False, True))
        return SimpleNamespace(trace=trace, forward_s=next(seconds), backward_s=next(seconds))


TRUE = Cluster(
    1, 1, intra_bytes_per_s=2.5e9, inter_bytes_per_s=2.5e9, latency_s=3e-5, message_launch_s=8e-6,
    flops_per_s=4e9, backward_flops_per_s=5e9, kernel_launch_s=2e-4, pass_s=7e-4,
    kernel_tile=calibration.KERNEL_TILE, copy_bytes_per_s=8e9, message_order="fifo",
)  # fmt: skip


@pytest.fixture
def on_machine(monkeypatch):
    """Calibrate a `Machine` instead of this one."""

    def use(machine):
        for name in ("open_world", "run_plan"):
            monkeypatch.setattr(calibration, name, getattr(machine, name))
        monkeypatch.setattr(calibration, "machine_bytes", lambda: 48 * 10**9)
        rates = {"cpu": 8e9, "cuda": 2e12}
        monkeypatch.setattr(calibration, "_copy_rate", rates.__getitem__)
        return machine

    return use


def test_constants_of_a_known_machine_are_found_whatever_its_first_run_takes(on_machine):
    machine, said = on_machine(Machine(TRUE)), []
    found = calibration.calibrate_cpu(2, said.append)
    for name in (
        "intra_bytes_per_s", "inter_bytes_per_s", "latency_s", "message_launch_s", "flops_per_s",
        "backward_flops_per_s", "kernel_launch_s", "pass_s", "copy_bytes_per_s",
    ):  # fmt: skip
        assert getattr(found.cluster, name) == pytest.approx(getattr(TRUE, name), rel=2e-3), name
    assert (found.noise, found.is_busy) == (0.0, False)
    # Predicted with the constants that were found.
    assert [check.error for check in found.checks] == [pytest.approx(0, abs=1e-3)] * 5
    assert said == [
        "memory, and messages between 2 processes, gloo", "attention, forward and backward",
        "plans to check the constants with",
    ]  # fmt: skip
    assert machine.opened == [(2, 120.0, "gloo")]


def printed(result):
    """What a command printed, with numbers to four digits."""
    text = f"{result.stdout}--\n{result.stderr}"
    return re.sub(r"\d+\.\d{4,}(e[-+]?\d+)?", lambda found: f"{float(found[0]):.4g}", text)


def test_what_calibrating_prints_and_runs(on_machine, snapshots, tmp_path, monkeypatch):
    monkeypatch.setattr(calibration, "CHECKS", calibration.CHECKS[::3])
    machine = on_machine(Machine(TRUE, (1.0, 1.1, 0.8)))
    texts = {"three ranks": printed(CliRunner().invoke(calibrate, ["--ranks", "3"]))}
    texts["its runs"] = "\n".join(f"{name}, {factor:g} times" for name, factor in machine.ran)
    on_machine(Machine(TRUE, (1.0, 1.5)))
    out = tmp_path / "mine.toml"
    found = CliRunner().invoke(calibrate, ["--ranks", "1", "--out", str(out)])
    texts["one rank, busy, into a file"] = printed(found).replace(str(out), "FILE")
    texts["the file"] = printed(SimpleNamespace(stdout=out.read_text(), stderr=""))
    found = CliRunner().invoke(calibrate, ["--ranks", "1", "--json", "--out", str(out)])
    told = json.loads(found.stdout)
    assert told.pop("cluster") == find_cluster(str(out)).to_json()
    assert told.pop("sources") == calibration._sources(1, "gloo")
    assert told.pop("file") == str(out)
    texts["as JSON"] = printed(SimpleNamespace(stdout=json.dumps(told, indent=1), stderr=""))
    snapshots.check("calibration", texts)


def test_attention_that_takes_no_longer_for_more_work_is_no_rate(on_machine, monkeypatch):
    right = calibration._flops

    def wrong(length, *, is_backward):
        return 1e9 / length if is_backward else right(length, is_backward=False)

    monkeypatch.setattr(calibration, "_flops", wrong)
    machine = on_machine(Machine(TRUE))
    with pytest.raises(RunError, match="attention took no longer for more work; run it again"):
        calibration.calibrate_cpu(2, lambda text: None)
    assert len(machine.ran) == 1 + 2 * len(calibration.LENGTHS)


@pytest.fixture
def devices(monkeypatch, on_machine):
    """Let torch find so many CUDA devices; their attention takes what `seconds` say."""
    on_machine(Machine(TRUE))
    seconds = []
    properties = SimpleNamespace(total_memory=80 * 10**9)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device}")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    randn, asked = torch.randn, []

    def small(*size, device, dtype, requires_grad):
        asked.append((size, device, dtype, requires_grad))
        return randn(*size[:1], 1, *size[2:], dtype=dtype, requires_grad=requires_grad)

    def attend(q, k, v):
        asked.append((q.shape[2], q.requires_grad))
        return q + k + v

    def timed(work, device):
        asked.append(("timed", device))
        work()
        return seconds.pop(0)

    def use(count, *spent_s):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        seconds[:] = spent_s
        return asked

    monkeypatch.setattr(torch, "randn", small)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
    monkeypatch.setattr(calibration, "_timed", timed)
    return use


@pytest.mark.parametrize("count", [1, 2])
def test_devices_are_calibrated_by_torchs_attention_and_nccl(devices, count):
    asked, said = devices(count, 1e-5, 0.001, 0.003), []
    found = calibration.calibrate_cuda(said.append)
    cluster = found.cluster
    flops = 4 * 8 * 128 * 8192**2
    assert (cluster.flops_per_s, cluster.backward_flops_per_s) == (flops / 1e-3, 2.5 * flops / 3e-3)
    assert (cluster.nodes, cluster.devices_per_node, cluster.kernel_tile) == (1, count, 128)
    assert (cluster.kernel_launch_s, cluster.copy_bytes_per_s) == (1e-5, 2e12)
    assert (cluster.memory_bytes, cluster.message_order) == (80 * 10**9, "grouped")
    assert (cluster.name, cluster.source) == (
        "calibrated-cuda", f"dcpm calibrate: {count} x GPU 0"
    )  # fmt: skip
    rate, latency_s = (2.5e9, 3e-5) if count > 1 else (1e12, 0.0)
    assert (cluster.intra_bytes_per_s, cluster.latency_s) == pytest.approx((rate, latency_s))
    assert (found.checks, found.noise) == ((), 0.0)
    whole = (1, 8, 8192, 128), "cuda", torch.bfloat16, True
    assert asked == [
        whole, whole, whole, ("timed", "cuda"), (128, False), ("timed", "cuda"), (8192, True),
        (8192, True), ("timed", "cuda"),
    ]  # fmt: skip
    messages = ["messages between 2 devices, NCCL"] if count > 1 else []
    assert said == ["attention on GPU 0", "memory", *messages]
    ring = found.sources["latency_s"]
    assert ring == (
        "fit over rings of 1 or 8 messages of 1024 to 4194304 bytes, nccl, 2 ranks at once"
        if count > 1 else "not measured: there is no second device"
    )  # fmt: skip
    assert found.sources["flops_per_s"].startswith("PyTorch's flash attention, 8 heads of 128")
    assert found.sources["memory_bytes"] == "physical memory"
    assert (cluster.pass_s, found.sources["pass_s"]) == (0.0, "not measured")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_median_of_warm_runs_is_taken_once_the_device_is_done(monkeypatch, device):
    now, done = [0.0], []
    took_s = iter([50.0, 60.0, 3.0, 9.0, 1.0, 5.0, 4.0])

    def work():
        now[0] += next(took_s) if device == "cpu" else 0.0

    def synchronize():
        done.append(now[0])
        now[0] += next(took_s)

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(calibration, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    assert calibration._timed(work, device) == 4.0
    assert len(done) == (7 if device == "cuda" else 0)


def test_a_copy_reads_and_writes_every_byte(monkeypatch):
    def timed(work, device):
        assert (work().sum(), device) == (2**24, "cpu")
        return 0.25

    monkeypatch.setattr(calibration, "_timed", timed)
    assert calibration._copy_rate("cpu") == 2 * 2**26 / 0.25


SCRIPT = Path(__file__).with_name("rates_scenario.py")


def notes(*seconds, work=1000):
    return [json.dumps([[work, value]]) for value in seconds]


@pytest.mark.dist
def test_a_slow_rank_gets_less_work_and_steps_get_shorter(start_ranks, tmp_path):
    first, second = (json.loads(text) for text in start_ranks(2, SCRIPT, tmp_path))
    assert first == second  # all ranks plan alike
    _, speeds, seconds = zip(*first, strict=True)
    assert speeds[0] == [1, 1]
    fast, slow = speeds[-1]
    assert 0.2 < slow / fast < 0.5  # a quarter, if nothing but the naps took time
    assert seconds[-1] < seconds[0] / 1.3


def test_rates_are_adopted_only_if_they_stay_off():
    rates = DeviceRates(Cluster(2, 2), every=1)
    for seconds in (notes(1, 1, 2, 1), notes(1, 1.1, 1, 0.95), notes(1, 1, 2, 1)):
        rates.update(seconds)  # off, on, off
        assert rates.cluster == Cluster(2, 2)
    rates.update(notes(1, 1, 2.4, 1.02))
    assert rates.cluster.devices == ((1.0, 1.0), (0.45, 1.0))
    for _ in range(4):
        rates.update(notes(1, 1, 2.1, 1))  # within the change
    assert rates.cluster.devices == ((1.0, 1.0), (0.45, 1.0))
    for _ in range(2):
        rates.update(notes(1, 1, 1.01, 1))
    assert rates.cluster == Cluster(2, 2)


@pytest.mark.parametrize(
    ("cluster", "periods"),
    [
        (Cluster(1, 3), [notes(5, 5, 5)] * 3),  # all slow: no straggler
        (Cluster(1, 2, devices=((1.0, 0.5),)), [notes(1, 2)] * 3),  # as expected
        (Cluster(1, 2), [notes(1, 3), notes(1, None), notes(1, 3)]),  # not measured between
        (Cluster(1, 2), [notes(1, 3), notes(1, 3, work=0), notes(1, 3)]),
    ],
)
def test_rates_stay_where_no_rank_is_off_twice(cluster, periods):
    rates = DeviceRates(cluster, every=1)
    for seconds in periods:
        rates.update(seconds)
    assert rates.cluster == cluster


def test_periods_that_measure_nothing_are_said_once(caplog):
    rates = DeviceRates(Cluster(1, 2), every=1)
    for seconds in (notes(None, None), notes(None, 1), notes(1, 1), notes(None, None)):
        rates.update(seconds)
    assert [text.count("no batch of a period was measured") for text in caplog.messages] == [1, 1]


def test_packed_batches_are_planned_for_the_measured_rates(monkeypatch):
    monkeypatch.setattr(PlannedSequences, "prepare", lambda _, plan, positions: plan)
    rates, mask = DeviceRates(Cluster(1, 2), every=1), Spec.from_text("mask m = causal").mask("m")
    planning = Planning(rates=rates, config=PlanConfig("static:zigzag"), block_size=8)
    batches = PlannedBatches(SimpleNamespace(rank=0), mask, planning)
    for _ in range(2):
        rates.update(notes(1, 2))
    _, plan = batches.split({"tokens": torch.arange(64)[None]}, torch.tensor([0, 64]))
    assert plan.cluster.devices == ((1.0, 0.5),)


def test_a_period_ends_after_its_batches():
    rates = DeviceRates(Cluster(1, 2), every=2)
    assert rates.add(10, 0.5) is None
    assert json.loads(rates.add(20, None)) == [[10, 0.5], [20, None]]
    assert rates.add(10, 0.5) is None


def test_what_cannot_be_is_refused():
    with pytest.raises(RunError, match="every of at least 1"):
        DeviceRates(Cluster(), every=0)
