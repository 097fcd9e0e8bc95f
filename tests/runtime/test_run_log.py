"""The log of a run: what two real ranks write, what a file is after a crash, who reads it."""

import json
import logging
import math
import os
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner
from loader_options import make_loader
from prometheus_client.parser import text_string_to_metric_families

from dcp_dsl import Spec
from dcp_planner import ModelShape, PlanConfig, digest, predict, read_plan
from dcp_runtime import (
    DCPAttn,
    DCPExecutor,
    MLflowLog,
    PrometheusLog,
    RunError,
    RunHistory,
    RunLog,
    TensorBoardLog,
    WandbLog,
)
from dcp_runtime.commands import top
from dcp_runtime.execute import step_watch
from dcp_runtime.kernels.cpu import CpuKernel
from dcp_runtime.run_log import records
from dcp_runtime.run_log.records import EVEN, RankTotals, explain

LAYERS, SLOW_STEP, SLOW_S = 2, 3, 0.3


def main():
    """Be one of two ranks: ``test_run_log.py FOLDER`` trains; rank 1 is made slow in one step."""
    dist.init_process_group("gloo")
    mask = Spec.from_text("mask band = causal and q - k < 90").mask("band")
    rows = [{"tokens": list(range(length))} for length in (250, 200, 256, 180, 256)]
    loader = make_loader(
        rows, mask, token_budget=256, block_size=32, shape=ModelShape(2, 1, 8, 4),
        config=PlanConfig("static:zigzag"),
    )  # fmt: skip
    forward = CpuKernel.forward

    def slowly(*arguments):
        time.sleep(SLOW_S)
        return forward(*arguments)

    with DCPExecutor(run_log=RunLog(sys.argv[1]), trace_every=2) as executor:
        for step, (data, plan) in enumerate(loader):
            is_slow = step == SLOW_STEP and dist.get_rank() == 1
            CpuKernel.forward = slowly if is_slow else forward
            prepared = executor.prepare(plan)
            tokens = len(data.tokens)
            q = torch.ones(tokens, 2, 8, requires_grad=True)
            kv = torch.ones(tokens, 2, 1, 8)
            for _ in range(LAYERS):
                DCPAttn.apply(prepared, q, kv).sum().backward()
    dist.destroy_process_group()


def write(log, **record):
    log.submit(lambda: log.write(record))
    log.flush()


def records_of(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["schema"] == "dcp.run_log/1"
    return lines[1:]


@pytest.fixture(scope="module")
def run(tmp_path_factory, start_ranks):
    folder = tmp_path_factory.mktemp("run")
    start_ranks(2, Path(__file__), folder, folder / "log")
    return folder / "log"


@pytest.mark.dist
def test_every_step_of_two_ranks_has_a_record(run):
    records = records_of(run / "run.dcprun.jsonl")
    assert [record["step"] for record in records] == [0, 1, 2, 3, 4]
    assert [record["name"] for record in records] == [f"epoch 0, batch {n}" for n in range(5)]
    assert [record["tokens"] for record in records] == [250, 200, 256, 180, 256]
    assert [record["lost"] for record in records] == [0] * 5
    for record in records:
        parts = ("attention_s", "other_s", "waiting_s", "idle_s")
        assert sum(record[part] for part in parts) == pytest.approx(record["measured_s"], rel=1e-4)
        assert 0 < record["attention_s"] < record["measured_s"] < record["step_s"] < 60
        assert record["planning_s"] >= 0  # a plan that was made before costs nothing
        assert record["compute_imbalance"] >= 1
    assert records[0]["planning_s"] > 0
    # Nobody named a cluster: the plans are for the CPUs that run them.
    assert {(r["cluster"], r["machine"]) for r in records} == {("cpu-gloo", "cpu-gloo")}


@pytest.mark.dist
def test_a_record_holds_what_was_foreseen_for_two_layers(run):
    kept = sorted(run.glob("*.dcpplan"))
    assert [path.name for path in kept] == ["run-000000000.dcpplan", "run-000000002.dcpplan"]
    records = records_of(run / "run.dcprun.jsonl")
    assert [record["trace"] for record in records] == [kept[0].name, None, kept[1].name, None, None]
    for path, record in zip(kept, records[::2], strict=False):
        file = read_plan(path)
        assert digest(file.plan) == record["digest"]
        assert record["predicted_s"] == pytest.approx(2 * predict(file.plan).seconds, rel=1e-5)
        assert record["bytes"] == 2 * file.plan.transfers.size_bytes.sum()
        (trace,) = file.traces
        assert trace.source == "measured"
        assert set(trace.device.tolist()) == {0, 1}
        # Two layers, counted by events and by the totals that need none.
        attention = trace.kind == 0
        spent = (trace.end_ns - trace.start_ns)[attention].sum() / 2e9
        assert spent <= record["attention_s"] < spent + 0.05


@pytest.mark.dist
def test_the_slow_rank_of_a_step_is_named_with_its_cause(run):
    slow = records_of(run / "run.dcprun.jsonl")[3]
    assert (slow["slowest"], slow["cause"]) == (1, "rate")
    assert slow["attention_s"] > 0.3
    assert slow["exposed_share"] > 0.2  # rank 0 waits for it


def test_a_run_that_goes_on_mends_half_a_line(tmp_path):
    for half in ("", '{"step": 7, "name": "st'):
        log = RunLog(tmp_path)
        write(log, name="a")
        with log.path.open("a") as file:
            file.write(half)
    lines = log.path.read_text().splitlines()
    assert [json.loads(line).get("step") for line in lines[:4]] == [None, 0, None, 1]
    assert len(lines) == 5
    write(RunLog(tmp_path), name="b")
    assert json.loads(log.path.read_text().splitlines()[-1])["step"] == 2


def test_files_are_rotated_and_bounded(tmp_path):
    log = RunLog(tmp_path, rotate_bytes=4096, keep=2)
    for number in range(60):
        write(log, step_s=1.0, tokens=number)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [f"run.dcprun.jsonl{end}" for end in ("", ".1", ".2")]
    assert all(file.stat().st_size <= 4096 for file in files)
    newest = [
        record["step"] for file in (files[2], files[1], files[0]) for record in records_of(file)
    ]
    assert newest == list(range(newest[0], 60))
    assert len(newest) > 12
    # Killed right behind a rotation, with or without a header in the new file.
    files[0].replace(files[1])
    for left in ("", '{"schema": "dcp.run_log/1"}\n'):
        files[0].write_text(left)
        write(RunLog(tmp_path))
        assert records_of(files[0])[-1]["step"] == 60


def test_a_log_that_keeps_no_older_file_goes_on_counting(tmp_path):
    log = RunLog(tmp_path, rotate_bytes=4096, keep=0)
    for _ in range(30):
        write(log, step_s=1.0)
    assert list(tmp_path.iterdir()) == [log.path]
    steps = [record["step"] for record in records_of(log.path)]
    assert steps == list(range(steps[0], 30))
    assert steps[0] > 0


def test_a_full_disk_ends_the_log_with_one_warning(tmp_path, monkeypatch, caplog):
    log = RunLog(tmp_path)
    write(log)
    before = log.path.read_bytes()

    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr("dcp_runtime.run_log.log.os.write", full)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            write(log)
    assert len(caplog.records) == 1
    assert "the log of the run ends here: [Errno 28] No space left" in caplog.text
    assert log.is_off
    assert log.path.read_bytes() == before


def test_a_disk_that_hangs_costs_records_and_no_time(tmp_path):
    log = RunLog(tmp_path)
    hang = [True]

    def hanging():
        while hang:
            time.sleep(0.001)

    log.submit(hanging)
    started = time.monotonic()
    for _ in range(1000):
        log.submit(lambda: log.write({}))
    assert time.monotonic() - started < 5
    hang.clear()
    log.flush(timeout_s=60)
    records = records_of(log.path)
    assert 255 <= len(records) <= 257  # the one that hangs may wait as well
    assert records[-1]["dropped"] == 1000 - len(records)


def test_causes_of_a_slow_rank():
    even = RankTotals(1.0, 100, 0.5)
    assert explain([even, even, even])["cause"] == "even"
    assert explain([even, RankTotals(1.0, 200, 1.0), even]) == {
        "slowest": 1, "cause": "work", "why": "rank 1 has 1.50 times the mean work",
    }  # fmt: skip
    slower = explain([even, even, RankTotals(1.0, 100, 1.0)])
    assert (slower["slowest"], slower["cause"]) == (2, "rate")
    assert "2.00 times as long as the others" in slower["why"]
    waits = RankTotals(1.0, 100, 0.5, 0.0, 0.4, 1, 0.3)
    late = explain([waits, even, even])
    assert (late["slowest"], late["cause"]) == (1, "messages")
    # At the bounds: 1.05 times the mean is even, and so is a wait of that excess.
    assert explain([RankTotals(30.0, 1, 21.0), RankTotals(30.0, 1, 19.0)])["cause"] == "even"
    bound = RankTotals(1.0, 100, 0.5, 0.0, 0.5, 1, EVEN - 1)
    assert explain([bound, even])["cause"] == "even"
    assert explain([bound._replace(late_s=0.0501), even])["cause"] == "messages"


class StoreOfTotals:
    """Holds the totals of rank 1 from the second look on, at first those of an earlier batch."""

    def __init__(self):
        self.looks, self.totals = 0, RankTotals(2.0, 7, 0.5)

    def check(self, keys):
        assert keys == ["run/1/1"]
        self.looks += 1
        return self.looks > 1

    def multi_get(self, keys):
        return [json.dumps([1 if self.looks < 4 else 65, *self.totals])]


def test_totals_count_for_their_batch_and_are_waited_for_once(monkeypatch, caplog):
    clock = SimpleNamespace(now=1000.0)

    def sleep(seconds):
        clock.now += seconds

    fake = SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep, time=time.time)
    monkeypatch.setattr(step_watch, "time", fake)
    store = StoreOfTotals()
    watch = step_watch.StepWatch(None, None, SimpleNamespace(size=2, rank=0, store=store), 0, 1, 1)
    assert watch._others(65, 1) == [store.totals]  # in the place of batch 1
    assert store.looks == 4
    for waits_s in (5.0, 0.0):
        started = clock.now
        assert watch._others(129, 1) is None
        assert waits_s <= clock.now - started < waits_s + 0.02
        assert caplog.text.count("ranks without totals") == 1


def test_ranks_whose_device_alone_knows_give_the_step_alone():
    assert records.measured_figures([RankTotals(2.0, 5), RankTotals(1.0, 5, 0.5)]) == {
        "step_s": 2.0
    }


def test_bounds_of_a_log_are_checked(tmp_path):
    with pytest.raises(RunError, match="rotate_bytes of at least 4096"):
        RunLog(tmp_path, rotate_bytes=10)


def test_sinks_get_the_numbers_that_are_known(tmp_path, monkeypatch):
    told = []
    writer = SimpleNamespace(add_scalar=lambda *args: told.append(("tensorboard", *args)))
    client = SimpleNamespace(log_metric=lambda *args, step: told.append(("mlflow", *args, step)))
    stand_ins = {
        "torch.utils.tensorboard": SimpleNamespace(SummaryWriter=lambda folder: writer),
        "wandb": SimpleNamespace(log=lambda values: told.append(("wandb", values))),
        "mlflow": SimpleNamespace(MlflowClient=lambda: client),
    }
    for name, module in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, module)
    text = tmp_path / "dcp.prom"
    sinks = [TensorBoardLog(tmp_path), WandbLog(), MLflowLog("id"), PrometheusLog(text)]
    write(RunLog(tmp_path, sinks=sinks), step_s=0.5, queued=None, name="a")
    assert told == [
        ("tensorboard", "dcp/step_s", 0.5, 0),
        ("wandb", {"dcp/step_s": 0.5, "dcp/step": 0}),
        ("mlflow", "id", "dcp/step_s", 0.5, 0),
    ]
    assert text.read_text() == "# TYPE dcp_step_s gauge\ndcp_step_s 0.5\n"


def test_prometheus_reads_what_its_sink_writes(tmp_path):
    figures = {name: 0.1 + number for number, name in enumerate(records.NUMBERS)}
    path = tmp_path / "dcp.prom"
    PrometheusLog(path)(records.as_record(7, figures))
    families = list(text_string_to_metric_families(path.read_text()))
    assert {family.type for family in families} == {"gauge"}
    found = {sample.name: sample.value for family in families for sample in family.samples}
    assert found == {f"dcp_{name}": figures[name] for name in records.NUMBERS if name != "at"}


def test_a_sink_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(RunError, match="pip install wandb"):
        WandbLog()


# Reading a log while it is written


def append(path, *lines):
    with path.open("a") as file:
        for line in lines:
            file.write(line if isinstance(line, str) else json.dumps(line) + "\n")


def test_only_whole_new_lines_are_read(tmp_path):
    path = tmp_path / "run.dcprun.jsonl"
    append(path, {"schema": "dcp.run_log/1"}, {"step": 0, "step_s": 1.5, "name": "a"}, '{"step": 1')
    run = RunHistory(path)
    run.update()
    assert len(run) == 1
    assert run.last["name"] == "a"
    append(path, ', "step_s": 2.5}\n')
    run.update()
    run.update()
    assert run.column("step").tolist() == [0, 1]
    assert run.column("step_s").tolist() == [1.5, 2.5]
    assert run.record(1)["predicted_s"] is None
    assert run.record(2) == {}


@pytest.mark.timeout(20)
def test_a_pipe_in_place_of_a_log_does_not_hold_up_the_reader(tmp_path):
    path = tmp_path / "run.dcprun.jsonl"
    os.mkfifo(path)
    run = RunHistory(path)
    with pytest.raises(RunError, match="cannot read the log"):
        run.update()
    assert len(run) == 0


@pytest.mark.parametrize(
    "line",
    [
        "no json", "[]", "[" * 7000, '{"step": true}', '{"step": -1}', '{"step": 1.5}',
        '{"step": 1' + " " * 9000 + "}",
    ],
)  # fmt: skip
def test_what_is_no_record_is_passed_over(tmp_path, line):
    path = tmp_path / "run.dcprun.jsonl"
    append(path, line + "\n", {"step": 3, "step_s": 10**400, "tokens": "many", "why": "a\x1b[31mb"})
    run = RunHistory(path)
    run.update()
    assert run.column("step").tolist() == [3]
    assert math.isnan(run.column("step_s")[0])
    assert run.last["tokens"] is None
    assert run.last["why"] == "a[31mb"


def test_a_line_that_never_ends_costs_no_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "CHUNK_BYTES", 1000)
    path = tmp_path / "run.dcprun.jsonl"
    append(path, {"step": 0}, "x" * 100_000)
    run = RunHistory(path)
    run.update()
    assert len(run._rest) < 3 * records.MOST_LINE_BYTES
    append(path, "\n", {"step": 1})
    run.update()
    assert run.column("step").tolist() == [0, 1]


def test_a_rotated_log_is_followed_without_a_gap(tmp_path):
    log = RunLog(tmp_path, rotate_bytes=4096, keep=3)
    follower = RunHistory(log.path)
    for number in range(30):
        write(log, tokens=10 * number)
        follower.update()
    late = RunHistory(log.path)
    late.update()
    assert follower.column("step").tolist() == list(range(30))
    assert np.array_equal(follower.column("tokens"), 10 * np.arange(30))
    assert late.column("step").tolist() == list(range(30))
    assert (tmp_path / "run.dcprun.jsonl.2").exists()


def test_old_steps_are_forgotten(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "MOST_RECORDS", 10)
    path = tmp_path / "run.dcprun.jsonl"
    append(path, *({"step": step, "name": "n"} for step in range(25)))
    run = RunHistory(path)
    run.update()
    assert run.column("step").tolist() == list(range(15, 25))
    assert run.record(14) == {}
    assert len(run._texts) == 10


def test_top_shows_prediction_beside_measurement_and_the_slowest_rank(tmp_path):
    record = {"step_s": 2.0, "predicted_s": 0.5, "measured_s": 0.75, "exposed_share": 0.125}
    record |= {"slowest": 3, "why": "rank 3 has 1.50 times the mean work", "queued": 2, "name": "b"}
    write(RunLog(tmp_path), **record)
    shown = CliRunner().invoke(top, [str(tmp_path), "--once"], env={"COLUMNS": "120"})
    assert shown.exit_code == 0
    for text in ("750 ms, median 750 ms, 1.5 times the prediction", "500 ms, median 500 ms",
                 "12.5%", "3: rank 3 has 1.50 times"):  # fmt: skip
        assert text in shown.output
    told = json.loads(CliRunner().invoke(top, [str(tmp_path), "--json"]).output)
    assert told["schema"] == "dcp.top/1"
    assert told["runs"]["run.dcprun.jsonl"]["last"]["measured_s"] == 0.75


@pytest.mark.parametrize(
    ("cluster", "machine", "ends"),
    [
        ("cpu-gloo", "cpu-gloo", ("1.5 times the prediction", ", for cpu-gloo")),
        ("calibrated-cpu", "cpu-gloo", ("1.5 times the prediction", ", for calibrated-cpu")),
        ("a100-p4de", "cpu-gloo",
         ("median 750 ms", ", for a100-p4de, not comparable: this is cpu-gloo")),
        ("a100-p4de", "NVIDIA L40S",
         ("median 750 ms", ", for a100-p4de, not comparable: this is NVIDIA L40S")),
    ],
)  # fmt: skip
def test_a_prediction_names_its_cluster_and_only_like_machines_are_compared(
    tmp_path, cluster, machine, ends
):
    write(RunLog(tmp_path), predicted_s=0.5, measured_s=0.75, cluster=cluster, machine=machine)
    history = RunHistory(tmp_path / "run.dcprun.jsonl")
    history.update()
    told = dict(history.sentences())
    assert told["Attention, measured"].endswith(ends[0])
    assert told["Attention, predicted"].endswith(ends[1])


def test_top_on_a_terminal_shows_every_step_until_it_is_interrupted(tmp_path, monkeypatch):
    path, steps = tmp_path / "run.dcprun.jsonl", [8, 7]
    append(path, {"step": 6, "name": "n"})

    def sleep(_):
        if not steps:
            raise KeyboardInterrupt
        append(path, {"step": steps.pop(), "name": "n"})

    monkeypatch.setattr("dcp_runtime.commands.time", SimpleNamespace(sleep=sleep))
    terminal = {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "120"}
    shown = CliRunner().invoke(top, [str(tmp_path)], env=terminal)
    assert re.findall(r"(\d) · n", shown.output)[:3] == ["6", "7", "8"]


def test_a_folder_without_a_log_is_refused_with_the_way_out(tmp_path):
    failed = CliRunner().invoke(top, [str(tmp_path)])
    assert isinstance(failed.exception, RunError)
    assert "expected the folder of a run" in str(failed.exception)
    with pytest.raises(RunError, match="cannot read the log"):
        RunHistory(tmp_path / "none").update()


if __name__ == "__main__":
    main()
