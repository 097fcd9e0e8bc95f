"""Which rank a world blames, when, and what it ends: played on a clock, without processes."""

import os
from concurrent.futures import Future

import pytest

from dcp_planner.workers import WorkerLost
from dcp_runtime import RunError
from dcp_runtime.launch import world as world_module
from dcp_runtime.launch.world import ProcessWorld

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
