"""`run_plan` on real processes, and whom a world blames, played on a clock without processes."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path

import pytest

from dcp_planner import LANES
from dcp_planner.tables import Attention
from dcp_planner.workers import WorkerLost
from dcp_runtime import RunConfig, RunError, open_world, run_plan
from dcp_runtime.execute.interpreter import Interpreter
from dcp_runtime.launch import worker
from dcp_runtime.launch import world as world_module
from dcp_runtime.launch.worker import run_job
from dcp_runtime.launch.world import ProcessWorld

RANKS = 3


def of_processes(test):
    """Mark a test that starts processes and waits for them."""
    return pytest.mark.dist(pytest.mark.timing(test))


@pytest.fixture(scope="module")
def world():
    with open_world(RANKS, timeout_s=60) as opened:
        yield opened


@of_processes
@pytest.mark.parametrize(
    ("mask", "partitioner", "options"),
    [("causal", "kahypar", {"layers": 2}), ("blind_rows", "static:zigzag", {"dtype": "bfloat16"})],
)
def test_run_is_verified(lab, world, mask, partitioner, options):
    plan = lab.plan_of([(mask, n) for n in (90, 1, 50)], RANKS, layout=partitioner)
    result = run_plan(plan, RunConfig(RANKS, verify=True, **options), world)
    assert result.verified, result.errors
    trace = result.trace
    assert set(trace.device.tolist()) == set(range(RANKS))
    received = trace.size_bytes[trace.lane == LANES.index("receive")].sum()
    assert received == result.sent_bytes
    if "layers" in options:
        assert result.sent_bytes == 2 * plan.transfers.size_bytes.sum()
    assert 0 <= result.exposed_s <= result.seconds
    # A rank may begin backward while another one still computes forward.
    assert max(result.forward_s, result.backward_s) <= result.seconds


@of_processes
def test_local_error_of_all_ranks_is_one_message_and_breaks_the_world(lab, world):
    """The last test of the world that they share."""
    plan = lab.plan_of([("causal", 80)], RANKS)
    with pytest.raises(RunError, match=r"expected a kernel out of .*cpu, reference, got 'flesh'"):
        run_plan(plan, RunConfig(RANKS, kernel="flesh"), world)
    with pytest.raises(RunError, match="open a new one"):
        run_plan(plan, RunConfig(RANKS), world)


def all_gone(pids, within_s=60.0):
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not any(os.path.exists(f"/proc/{pid}") for pid in pids):
            return True
        time.sleep(0.05)
    return False


@of_processes
@pytest.mark.parametrize(
    ("fault", "point", "ranks", "says"),
    [
        pytest.param("SIGKILL", "start", 2, "was killed by SIGKILL", marks=pytest.mark.slow),
        ("SIGKILL", "division", 3, "was killed by SIGKILL"),
        pytest.param("SIGINT", "division", 2, "was killed by SIGINT", marks=pytest.mark.slow),
        ("SIGSTOP", "division", 2, "dead or stalled|no sign of life"),
        ("BUG", "start", 2, r"exited with 1: ZeroDivisionError: by nought(.|\n)*test_world.py"),
    ],
)
def test_lost_rank_is_named_and_no_process_is_left(lab, monkeypatch, fault, point, ranks, says):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    monkeypatch.setattr("dcp_runtime.launch.world.ENTRY", "test_world:start")
    monkeypatch.setenv("DCP_TEST_FAULT", f"{fault} {point}")
    plan = lab.plan_of([("causal", 96)], ranks)
    # Only a stopped rank is found by a clock; the others must not be found too late on a busy one.
    with open_world(ranks, timeout_s=6 if fault == "SIGSTOP" else 60) as world:
        run_plan(plan, RunConfig(ranks), world)  # started and connected
        pids = world.pids
        with pytest.raises(RunError, match=says) as caught:
            run_plan(plan, RunConfig(ranks, layers=3), world)
        assert caught.value.rank == 1
        assert "rank 1" in str(caught.value)
        assert ("Traceback" in str(caught.value)) == (fault == "BUG")
        if point == "division":  # every other rank saw it too, and said in which division
            assert caught.value.division is not None
            assert "division" in str(caught.value)
    assert all_gone(pids)


@of_processes
def test_processes_end_when_the_world_is_left_by_an_error(lab):
    world = open_world(2, timeout_s=60)
    pids = world.__enter__().pids
    # As a with statement does when Ctrl-C arrives inside it.
    with pytest.raises(KeyboardInterrupt):
        world.gen.throw(KeyboardInterrupt)
    assert all_gone(pids)


@of_processes
def test_nothing_is_left_of_a_parent_that_was_killed(tmp_path):
    code = """if True:
        import time
        from dcp_runtime import open_world
        with open_world(2) as world:
            print(*world.pids, flush=True)
            time.sleep(60)
    """
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(pids) == 2
    assert all_gone(pids)  # a rank that starts up looks later
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout_s": float("nan")}, "a timeout above 0 and at most 86400 s, got nan s"),
        ({"timeout_s": 1e10}, "a timeout above 0 and at most 86400 s, got 1e"),
        ({"timeout_s": 0}, "a timeout above 0 and at most 86400 s, got 0 s"),
        ({"seed": -1}, "a seed of at least 0, got 'float32' and -1"),
        ({"dtype": "float8"}, "a dtype out of float32, bfloat16, float16, float64 and"),
        ({"layers": 0}, "at least 1 rank, 1 layer and 0 passes of warm-up, got 3, 0 and 0"),
        ({"warmup": -1}, "got 3, 1 and -1"),
        ({"transport": "pigeon"}, "a transport out of gloo, nccl.*, loopback"),
        ({"transport": "nccl"}, "say device 'cuda', or use 'gloo'"),
    ],
)
def test_a_run_that_cannot_start_is_refused(options, message):
    with pytest.raises(RunError, match=message):
        RunConfig(RANKS, **options)


def test_a_world_refuses_a_timeout_that_no_clock_takes():
    with pytest.raises(RunError, match="got inf s"), open_world(2, float("inf")):
        pass


TIMEOUT_S, TICK_S, LONGEST_S = 10.0, 0.1, 1000.0


class Clock:
    """Time passes while somebody waits, and what is due then happens."""

    def __init__(self):
        self.now, self.due = 0.0, []

    def monotonic(self):
        return self.now

    def wait(self, futures, timeout, return_when):
        assert (timeout, return_when) == (TICK_S, world_module.FIRST_COMPLETED)
        assert futures
        assert not any(future.done() for future in futures)
        assert self.now < LONGEST_S, "nobody gives up"
        self.now = round(self.now + timeout, 3)
        for at, act in sorted(self.due, key=lambda each: each[0]):
            if at <= self.now:
                act()
        self.due = [each for each in self.due if each[0] > self.now]


class StandIn:
    """A worker whose call notes when its events are due."""

    def __init__(self, program, title):
        self.program, self.title, self.pid = program, title, 100 + len(self.made)
        self.made.append(self)

    def start(self):
        self.told.append(f"start {self.title}")
        if len(self.made) == self.last:
            raise WorkerLost("no memory")

    def call(self, job, *, blob, on_note):
        self.told.append(f"call {self.title}: {job['do']} {blob.decode()}")
        self.answered, made = Future(), self.made.index(self)
        for at, event in self.script.get(made, []):
            act = self.answered.set_result
            if isinstance(event, Exception):
                act = self.answered.set_exception
            elif "steps" in event:
                act = on_note
            self.clock.due.append((at, lambda act=act, event=event: act(event)))
        return self.answered

    def end(self):
        self.told.append(f"end {self.title}")

    def close(self):
        self.told.append(f"close {self.title}")


class Threads:
    """Takes the place of the pool of threads: a call returns its future."""

    def __init__(self, count):
        assert count == len(StandIn.made), "a call would wait for another one's thread"

    __enter__ = lambda self: self  # noqa: E731 - a line is enough
    __exit__ = lambda *_: None  # noqa: E731

    def submit(self, call, *arguments, **options):
        return call(*arguments, **options)


@pytest.fixture
def stage(monkeypatch):
    """Return the class of workers, which a test gives a script for each rank."""
    StandIn.clock, StandIn.script, StandIn.told, StandIn.made = Clock(), {}, [], []
    StandIn.last = None
    monkeypatch.setattr(world_module, "Worker", StandIn)
    monkeypatch.setattr(world_module, "ThreadPoolExecutor", Threads)
    monkeypatch.setattr(world_module, "wait", StandIn.clock.wait)
    monkeypatch.setattr(world_module, "time", StandIn.clock)
    return StandIn


def alive(until_s, doing=None, division=None, rank=0, *, from_s=0.0):
    """Return signs of life twice a second, of a rank that takes no step."""
    state = {"steps": 4, "doing": doing, "division": division, "rank": rank}
    return [(from_s + n / 2, state) for n in range(1 + int(2 * (until_s - from_s)))]


def said(message, rank=None, division=None, *, is_own=False):
    """Return an answer that says why a rank failed."""
    failure = {"message": message, "rank": rank, "division": division, "is_own": is_own}
    return {"failure": failure}, b""


LOST = WorkerLost("rank 1 (process 101) was killed by SIGKILL", "its log\nhas two lines")
BLAMED = said("rank 1 is dead", 1, 2)
WORK = "attention in division 3 of forward"
LATE = [(at, {"steps": 5, "doing": WORK, "division": 3, "rank": 7}) for at in (8.0, 11.0)]
CASES = {
    "all answer": {n: [*alive(4), (4.0 - n, ({"rank": n}, b"out"))] for n in range(3)},
    "a rank that waits for long is not late": {
        0: [*alive(50, WORK, 1), *alive(80, from_s=9.0), (80.0, ({}, b""))],
        1: [*alive(80), (80.0, ({}, b""))],
        2: [*alive(80), (80.0, ({}, b""))],
    },
    "killed, and others blame it": {0: [(2.0, BLAMED)], 1: [(1.0, LOST)], 2: [(3.0, BLAMED)]},
    "killed, and others blame another": {
        0: [(2.0, said("rank 0 is dead", 0, 5))], 1: [(1.0, LOST)], 2: [(3.5, BLAMED)],
    },
    "killed, and nobody answers": {0: alive(99), 1: [(1.0, LOST)], 2: alive(99)},
    "killed, and the others end well": {n: [(2.0, ({}, b""))] for n in (0, 2)} | {1: [(1.0, LOST)]},
    "an error of its own counts for more than blame": {
        0: [(1.0, BLAMED)], 1: [(1.1, said("no such kernel", is_own=True))], 2: [(1.2, BLAMED)],
    },
    "the first error of its own": {n: [(1.0, said(f"of {n}", is_own=True))] for n in range(3)},
    "an error, and two that answer in time": {
        0: [*alive(99), (3.9, ({}, b""))], 1: [(1.0, said("bad", is_own=True))],
        2: [*alive(99), (4.3, ({}, b""))],
    },
    "blamed by all others, who answer late": {
        0: [(1.0, BLAMED)], 1: alive(99), 2: [*alive(99), (3.0, said("later", 1, 4))],
    },
    "blamed by one, while another goes on": {0: [(1.0, BLAMED)], 1: alive(99), 2: alive(99)},
    "silence counts for more than lost contact": {
        0: [*alive(12), (12.0, said("lost contact"))], 1: alive(1),
        2: [*alive(12), (12.0, said("lost contact"))],
    },
    "lost contact, and blame": {
        0: [(1.0, said("lost contact"))], 1: [(1.0, said("1 was told", 2, 6))],
        2: [(1.0, said("lost contact"))],
    },
    "lost contact everywhere": {n: [(1.0 + n, said(f"lost contact {n}"))] for n in range(3)},
    "one that never said anything": {
        0: [(5.0, ({}, b""))], 1: [], 2: [*alive(5), (5.0, ({}, b""))],
    },
    "one that falls silent": {
        0: [(5.0, ({}, b""))], 1: alive(7), 2: [*alive(5), (5.0, ({}, b""))],
    },
    "one that falls silent while it computes": {
        0: [(5.0, ({}, b""))], 1: [], 2: [*alive(9), *alive(15, WORK, 3, 2, from_s=10.0)],
    },
    "one that takes no step though it computes": {
        0: [*alive(8), (8.0, ({}, b""))], 1: [*alive(90, WORK, 3, 5, from_s=2.0)],
        2: [*alive(8), (8.0, ({}, b""))],
    },
    "a step begins the time of a rank anew": {
        0: [(1.0, ({}, b""))], 1: [*alive(7, "attention in division 2", 2), *LATE],
        2: [(1.0, ({}, b""))],
    },
}  # fmt: skip


def test_the_verdict_on_every_course_of_a_job(stage, snapshots):
    texts = {}
    for title, script in CASES.items():
        stage.made.clear(), stage.told.clear()
        stage.clock.now, stage.clock.due, stage.script = 0.0, [], script
        with ProcessWorld(3, TIMEOUT_S) as world:
            stage.told.clear()
            try:
                answers = world.run({"do": "run"}, b"plan")
                found = [str(answers), f"processes {world.pids}"]
                stage.told.append("goes on")
            except RunError as error:
                found = [f"rank {error.rank}, division {error.division}: {error}"]
                found.append(f"processes {world.pids}")
        told = ", ".join(each for each in stage.told if not each.startswith("call"))
        texts[title] = "\n".join([*found, f"after {stage.clock.now:g} s: {told}"])
    snapshots.check("world_verdicts", texts)


def test_every_rank_has_its_place_and_the_same_store(stage):
    with ProcessWorld(2, 7.5, "nccl") as world:
        store = world._store
        assert os.readlink(f"/proc/self/fd/{store}").startswith("/memfd:dcp-store")
        for rank, worker in enumerate(stage.made):
            program = worker.program
            assert program.entry == "dcp_runtime.launch.worker:start"
            assert program.arguments == (str(rank), "2", "7.5", "nccl", str(store))
            assert program.environment == {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
            assert (program.files, program.is_quiet) == ((store,), True)
        assert world.pids == (100, 101)
        with pytest.raises(KeyError):  # of any kind: no process must stay
            world.run({})
    assert not os.path.exists(f"/proc/self/fd/{store}")
    assert stage.told.count("close rank 1") == 1
    with pytest.raises(RunError, match="the processes of this world have ended; open a new one"):
        world.run({"do": "run"})
    world.close()  # twice is once


def test_ranks_that_are_threads_share_a_process(stage):
    stage.script = {0: [(0.5, ({"of": "all"}, b""))]}
    with ProcessWorld(4, TIMEOUT_S, "loopback") as world:
        assert [worker.title for worker in stage.made] == ["rank 0"]
        assert stage.made[0].program.arguments[:4] == ("0", "1", "10.0", "loopback")
        assert world.run({"do": "it"}, b"blob") == [({"of": "all"}, b"")]
    assert stage.told == ["start rank 0", "call rank 0: it blob", "end rank 0", "close rank 0"]


def test_a_process_that_cannot_start_ends_those_that_did(stage):
    stage.last = 2
    world = ProcessWorld(3, TIMEOUT_S)
    with pytest.raises(WorkerLost, match="no memory"):
        world.__enter__()
    assert stage.told == [
        "start rank 0", "start rank 1", "end rank 0", "end rank 1", "close rank 0", "close rank 1",
    ]  # fmt: skip
    assert (world.pids, world._store) == ((), None)


VICTIM = 1


def arm(name, point):
    """Let this process send itself the signal of this name at the point."""
    job_number, layers = 0, 0
    execute = Interpreter._execute

    def break_here():
        if name == "BUG":
            raise ZeroDivisionError("by nought")
        os.kill(os.getpid(), signal.Signals[name])

    def run_job_that_may_break(*arguments):
        nonlocal job_number
        job_number += 1
        if job_number == 2 and point == "start":
            break_here()
        return run_job(*arguments)

    def execute_that_may_break(self, current, instruction, *rest):
        nonlocal layers
        if job_number == 2 and isinstance(instruction, Attention):
            layers += current.direction == "forward" and instruction.division == 0
            if layers == 2:
                break_here()
        return execute(self, current, instruction, *rest)

    worker.run_job = run_job_that_may_break
    if point == "division":
        Interpreter._execute = execute_that_may_break


def start(rank, *place):
    if int(rank) == VICTIM:
        arm(*os.environ["DCP_TEST_FAULT"].split())
    return worker.start(rank, *place)
