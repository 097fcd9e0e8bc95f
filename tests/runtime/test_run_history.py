"""Reading the log of a run while it is written, and what `dcpm top` says of it."""

import json
import math
import os
import re
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from test_run_log import write

from dcp_runtime import RunError, RunHistory, RunLog
from dcp_runtime.commands import top
from dcp_runtime.run_log import records


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
    for text in ("750 ms, median 750 ms, 1.5 times the predicted", "500 ms, median 500 ms", "12.5%",
                 "3: rank 3 has 1.50 times"):  # fmt: skip
        assert text in shown.output
    told = json.loads(CliRunner().invoke(top, [str(tmp_path), "--json"]).output)
    assert told["schema"] == "dcp.top/1"
    assert told["runs"]["run.dcprun.jsonl"]["last"]["measured_s"] == 0.75


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
