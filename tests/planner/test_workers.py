"""Worker processes: what they answer, and that whatever ends them ends nobody else."""

import errno
import gc
import os
import resource
import signal
import subprocess
import sys
import threading
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from dcp_planner.workers import process as process_module
from dcp_planner.workers import worker as worker_module
from dcp_planner.workers.process import WorkerProgram
from dcp_planner.workers.program import FrameBuffer, FrameError, pack_frame
from dcp_planner.workers.worker import TaskError, Worker, WorkerLost, WorkerOverdue, WorkerPool

pytestmark = [pytest.mark.dist, pytest.mark.timing]
PROGRAM = WorkerProgram("worker_tasks:start", ("first", "second"))


@pytest.fixture
def worker():
    made = Worker(PROGRAM, "the tester")
    yield made
    pid = made.pid
    made.close()
    assert pid is None or not is_there(pid)


def is_there(pid):
    """Return whether there is such a process, or a zombie of it."""
    return os.path.exists(f"/proc/{pid}")


def has_ended(pid):
    """Return whether a process that is no child of ours has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_an_answer_brings_what_was_sent_and_notes_come_before_it(worker, capfd):
    blob, notes = os.urandom(3_000_000), []
    answer, data = worker.call({"do": "echo", "text": "ü"}, blob=blob, on_note=notes.append)
    assert answer["message"] == {"do": "echo", "text": "ü"}
    assert answer["arguments"] == ["first", "second"]
    assert data == blob
    assert notes == [{"at": "half"}]
    assert answer["pid"] == worker.pid != os.getpid()
    assert worker.call({"do": "echo"})[0]["pid"] == worker.pid
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "printed from Python\nprinted from C\n" in printed.err


def test_what_a_quiet_worker_prints_is_not_shown(capfd):
    quiet = Worker(WorkerProgram("worker_tasks:start", is_quiet=True))
    quiet.call({"do": "echo"})
    quiet.close()
    assert capfd.readouterr() == ("", "")


def test_a_refusal_is_told_and_the_worker_goes_on(worker):
    worker.start()
    pid = worker.pid
    with pytest.raises(TaskError, match=r"^expected a better row$") as caught:
        worker.call({"do": "refuse"})
    assert caught.value.kinds[:2] == ("DatasetError", "DCPError")
    assert worker.call({"do": "echo"})[0]["pid"] == pid


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({"do": "kill", "signal": "SIGKILL"}, "was killed by SIGKILL$"),
        ({"do": "leave"}, "exited with 7"),
        ({"do": "fail"}, "exited with 1: ZeroDivisionError: by nought$"),
        ({"do": "hang_up"}, "closed its connection and did not end$"),
        ({"do": "send_garbage", "bytes": "hello, this is no frame"}, "sent no frame: expected at"),
        ({"do": "fill"}, "exited with 1: MemoryError"),
    ],
)
def test_a_lost_process_is_named_with_its_cause_and_replaced(monkeypatch, fault, says):
    if fault["do"] == "hang_up":  # the others end by themselves, however busy the machine is
        monkeypatch.setattr("dcp_planner.workers.process._END_GRACE_S", 0.2)
    worker = Worker(WorkerProgram("worker_tasks:start", memory_bytes=1 << 29), "the tester")
    pid = worker.call({"do": "echo"})[0]["pid"]
    with pytest.raises(WorkerLost, match=rf"^the tester \(process {pid}\) {says}") as caught:
        worker.call(fault)
    assert not is_there(pid)
    if fault["do"] == "fail":
        assert caught.value.log.startswith("last words of Python\nTraceback")
    assert worker.call({"do": "echo"})[0]["pid"] != pid
    worker.close()


def test_a_child_that_outlives_a_worker_and_can_still_print_holds_nobody_up(worker):
    with pytest.raises(WorkerLost, match="exited with 7") as caught:
        worker.call({"do": "leave_a_child"})
    os.kill(int(caught.value.log), signal.SIGKILL)


def killed(worker):
    pid = worker.pid  # asked once: asking reaps a process that has ended
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize("end", [killed, Worker.end])
def test_a_process_that_ended_between_calls_is_replaced(worker, end):
    pids = set()
    for _ in range(3):
        pids.add(worker.call({"do": "echo"})[0]["pid"])
        end(worker)
    assert len(pids) == 3


@pytest.mark.parametrize("task", ["hang", "chatter"])
def test_a_task_that_takes_too_long_is_ended(worker, task):
    pid = worker.call({"do": "echo"})[0]["pid"]
    with pytest.raises(WorkerOverdue, match=r"took longer than 0\.2 s and was ended"):
        worker.call({"do": task}, 0.2)
    assert not is_there(pid)


def test_a_worker_that_does_not_read_holds_nobody_up(worker):
    worker.call({"do": "echo"})
    os.kill(worker.pid, signal.SIGSTOP)
    with pytest.raises(WorkerOverdue):
        worker.call({"do": "echo"}, 0.2, blob=bytes(10_000_000))


def test_a_fault_on_this_side_loses_the_process_at_once(worker, monkeypatch):
    pid = worker.call({"do": "echo"})[0]["pid"]
    fail = Mock(side_effect=OSError(errno.EIO, "Input/output error"))
    # No wait for a process that has no reason to end.
    monkeypatch.setattr("dcp_planner.workers.process._END_GRACE_S", 1e9)
    with monkeypatch.context() as patched:
        patched.setattr(worker._process, "receive", fail)
        with pytest.raises(WorkerLost, match=rf"process {pid}\) cannot be reached: Input/output"):
            worker.call({"do": "echo"})
    assert not is_there(pid)
    assert worker.call({"do": "echo"})[0]["pid"] != pid


def test_a_worker_that_prints_much_is_not_held_up(worker, capfd):
    assert worker.call({"do": "print_much"}, 60) == ({}, b"")
    assert worker._process.log == "x" * 4096


def test_a_process_begins_with_what_its_program_says_and_no_more(monkeypatch):
    started, limited = [], []
    monkeypatch.setattr(
        process_module.subprocess, "Popen",
        lambda command, **choices: started.append((command, choices)) or SimpleNamespace(pid=77),
    )  # fmt: skip
    monkeypatch.setattr(process_module.resource, "prlimit", lambda *limit: limited.append(limit))
    monkeypatch.setattr(sys, "path", ["", "/one", "/two"])
    monkeypatch.setattr(os, "environ", {"HOME": "/home", "PYTHONPATH": "/mine", "A": "1"})
    program = WorkerProgram("m:f", ("x", "y"), environment={"A": "2"}, files=(8, 9))
    for memory_bytes in (None, 0, 1 << 30):
        assert replace(program, memory_bytes=memory_bytes).start(5).pid == 77
    assert limited == [
        (77, resource.RLIMIT_DATA, limits) for limits in ((0, 0), (1 << 30, 1 << 30))
    ]
    ((command, choices), *_) = started
    assert command == [
        sys.executable, "-P", "-m", "dcp_planner.workers.program", "5", "m:f", "x", "y",
    ]  # fmt: skip
    # A session of its own: Ctrl-C in a terminal does not reach it.
    assert choices == {
        "bufsize": 0, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT, "pass_fds": (5, 8, 9), "start_new_session": True,
        "env": {"HOME": "/home", "PYTHONPATH": "/one:/two", "A": "2"},
    }  # fmt: skip


def test_a_request_that_is_too_large_is_not_sent(worker, monkeypatch):
    monkeypatch.setattr("dcp_planner.workers.program.MAX_BLOB_BYTES", 10)
    with pytest.raises(FrameError, match="10 of data, got 19 and 11"):
        worker.call({"do": "echo", "a": 1}, blob=bytes(11))
    assert worker.pid is None


@pytest.mark.parametrize("entry", ["worker_tasks:start_badly", "no_such_module:start"])
def test_after_failed_starts_in_a_row_none_is_tried(entry):
    worker = Worker(WorkerProgram(entry, is_quiet=True), "the tester", max_failed_starts=2)
    for _ in range(2):
        assert not worker.cannot_start
        with pytest.raises(WorkerLost, match=r"exited with 1: (OSError|ModuleNotFoundError): "):
            worker.call({})
    assert worker.cannot_start
    with pytest.raises(WorkerLost, match="the tester ended 2 times before it was ready"):
        worker.call({})
    worker.close()


def test_where_no_process_can_be_started_it_is_said(worker, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/program")
    with pytest.raises(WorkerLost, match=r"^the tester cannot be started: .*No such file"):
        worker.start()


def test_a_start_that_takes_too_long_is_ended(monkeypatch):
    monkeypatch.setattr(worker_module, "START_LIMIT_S", 0.2)
    worker = Worker(WorkerProgram("worker_tasks:start_never", ()), "the tester")
    with pytest.raises(WorkerOverdue, match=r"longer than 0\.2 s"):
        worker.call({"do": "echo"})
    worker.close()


@pytest.mark.parametrize("way", ["end", "close"])
def test_a_task_is_cancelled_from_another_thread(worker, way):
    worker.call({"do": "echo"})
    pid = worker.pid
    other = threading.Thread(target=getattr(worker, way), daemon=True)
    with pytest.raises(WorkerLost, match="was killed by SIGKILL"):
        worker.call({"do": "hang"}, on_note=lambda _: other.start())
    assert not is_there(pid)
    if way == "close":
        with pytest.raises(WorkerLost, match="was closed; make a new one"):
            worker.call({"do": "echo"})
    else:
        assert worker.call({"do": "echo"})[0]["pid"] != pid


def test_an_interrupt_while_waiting_ends_the_process_whose_answer_nobody_reads(worker):
    with pytest.raises(KeyboardInterrupt):
        worker.call({"do": "echo"}, on_note=Mock(side_effect=KeyboardInterrupt))
    assert worker.pid is None
    assert worker.call({"do": "echo", "n": 2})[0]["message"]["n"] == 2


def test_calls_of_many_threads_wait_in_line_and_the_worker_outlives_the_one_that_started_it(worker):
    threads = [threading.Thread(target=worker.call, args=({"do": "echo"},), daemon=True)
               for _ in range(8)]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    pid = worker.pid
    assert worker.call({"do": "echo"})[0]["pid"] == pid


def test_a_worker_that_nobody_holds_ends():
    worker = Worker(PROGRAM)
    pid = worker.call({"do": "echo"})[0]["pid"]
    del worker
    gc.collect()
    assert not is_there(pid)


def test_no_file_stays_open_and_none_is_inherited(worker):
    before = set(os.listdir("/proc/self/fd"))
    for fault in ("kill", "leave", "refuse", "echo"):
        with pytest.raises((WorkerLost, TaskError)) if fault != "echo" else memoryview(b""):
            worker.call({"do": fault, "signal": "SIGKILL"})
    files = worker.call({"do": "list_files"})[0]["files"]
    assert len(files) == 5  # standard input, output and error, the socket, the folder it lists
    worker.close()
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_fork_ends_nothing_of_its_parent(worker):
    pid = worker.call({"do": "echo"})[0]["pid"]
    pool = WorkerPool([worker])
    fork = os.fork()
    if not fork:
        pool.close()
        worker._end_process()
        os._exit(0)
    assert os.waitpid(fork, 0)[1] == 0
    assert worker.call({"do": "echo"})[0]["pid"] == pid
    pool.close()


OWNER = """
import os, signal, sys, threading
from dcp_planner.workers.process import WorkerProgram
from dcp_planner.workers.worker import Worker
worker = Worker(WorkerProgram("worker_tasks:start"))
def end(_):
    print(worker.pid, flush=True)
    {way}
{call}
"""
CALL = 'worker.call({"do": sys.argv[1]}, on_note=end)'


@pytest.mark.parametrize(
    ("way", "call"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", CALL),
        ("os._exit(3)", CALL),
        ("sys.exit(3)", CALL),
        ("", f"threading.Thread(target=lambda: {CALL}, daemon=True).start(); sys.stdin.read()"),
    ],
    ids=["killed", "ended hard", "ended", "ended beside a thread that waits"],
)
@pytest.mark.parametrize(
    "task", ["hold_the_interpreter", pytest.param("hang", marks=pytest.mark.slow)]
)
def test_a_worker_ends_with_its_owner(way, call, task):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER.format(way=way or "pass", call=call), task],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    pid = int(owner.stdout.readline())
    owner.communicate(timeout=60)
    assert owner.returncode in (-9, 3, 0)
    while not has_ended(pid):  # the time limit of the test is that of the kernel
        pass


def test_a_pool_runs_tasks_side_by_side_and_gives_results_and_errors():
    pool = WorkerPool([Worker(PROGRAM), Worker(PROGRAM)])
    both_run = threading.Barrier(2)

    def meet(worker):
        return worker.call({"do": "echo"}, on_note=lambda _: both_run.wait(60))[0]["pid"]

    met = [pool.submit(meet), pool.submit(meet)]
    assert len({future.result(120) for future in met}) == 2
    with pytest.raises(TaskError):
        pool.submit(lambda worker: worker.call({"do": "refuse"})).result(60)
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda _: 1 / 0).result(60)
    pool.close()


def test_closing_a_pool_ends_what_runs_and_refuses_what_waits():
    pool = WorkerPool([Worker(PROGRAM)])
    runs = threading.Event()
    running = pool.submit(lambda worker: worker.call({"do": "hang"}, on_note=lambda _: runs.set()))
    waiting = pool.submit(lambda worker: worker.call({"do": "echo"}))
    assert runs.wait(60)
    pids = [worker.pid for worker in pool.workers]
    pool.close()
    pool.close()
    assert pool.is_closed
    wait([running, waiting], 60)
    with pytest.raises(WorkerLost, match="was killed by SIGKILL"):
        running.result()
    with pytest.raises(WorkerLost, match="was closed"):
        waiting.result()
    assert not any(is_there(pid) for pid in pids)
    with pytest.raises(WorkerLost, match="are closed; make new ones"):
        pool.submit(lambda _: None)


def test_a_pool_that_nobody_holds_ends_even_if_its_own_thread_drops_it():
    pool = WorkerPool([Worker(PROGRAM)])
    pid = pool.submit(lambda worker: worker.call({"do": "echo"})[0]["pid"]).result(60)
    held = [pool]
    future = pool.submit(lambda worker: worker.call({"do": "hang"}, on_note=lambda _: held.clear()))
    del pool
    with pytest.raises(WorkerLost):
        future.result(60)
    while not has_ended(pid):
        pass
    assert not is_there(pid)


def test_a_frame_may_be_as_large_as_the_limits(monkeypatch):
    monkeypatch.setattr("dcp_planner.workers.program.MAX_TEXT_BYTES", 7)
    monkeypatch.setattr("dcp_planner.workers.program.MAX_BLOB_BYTES", 3)
    buffer = FrameBuffer()
    buffer.feed(pack_frame({"a": 1}, b"abc"))
    assert buffer.take() == ({"a": 1}, b"abc")
    assert buffer.take() is None
    for message, blob in (({"a": 10}, b""), ({}, b"abcd")):
        with pytest.raises(FrameError, match="expected at most 7 bytes of JSON and 3 of data"):
            pack_frame(message, blob)


def test_frames_arrive_in_pieces():
    buffer = FrameBuffer()
    data = pack_frame({"n": 1}, b"abc") + pack_frame({"n": 2})
    found = []
    for byte in data:
        buffer.feed(bytes([byte]))
        while (frame := buffer.take()) is not None:
            found.append(frame)
    assert found == [({"n": 1}, b"abc"), ({"n": 2}, b"")]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\1" + bytes(11) + b"x", "no JSON"),
        (b"\2" + bytes(11) + b"[]", "no JSON object"),
        (bytes(8) + b"\xff" * 4, "expected at most"),
    ],
)
def test_bytes_that_are_no_frame_are_refused(data, says):
    buffer = FrameBuffer()
    buffer.feed(data)
    with pytest.raises(FrameError, match=says):
        buffer.take()
