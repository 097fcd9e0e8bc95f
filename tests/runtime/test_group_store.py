"""The store of a group: meetings of many ranks, who is named, and a server that stops."""

import gc
import random
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from torch.distributed import HashStore, Store

from dcp_runtime.data.plan_sources import PlanExchange
from dcp_runtime.errors import RunError
from dcp_runtime.transport.failure_registry import FailureRegistry, Status
from dcp_runtime.transport.group_store import DeadlineStore
from dcp_runtime.transport.store_barrier import FAN, StoreBarrier

pytestmark = pytest.mark.timing


class Stopped(Store):
    """Takes what is written and never answers, as torch's client of a stopped process."""

    def __init__(self, never):
        super().__init__()
        self.never = never

    def set(self, key, value):
        """The client does not wait for an answer here."""

    def check(self, *asked):
        self.never.wait()

    get = add = check


@pytest.fixture
def stopped():
    never = threading.Event()
    yield Stopped(never)
    never.set()


def test_a_living_store_answers_as_it_does_itself():
    store, below = DeadlineStore(HashStore(), 10), HashStore()
    for asked in (store, below):
        asked.set("a", "1")
    for question in (
        lambda s: s.get("a"),
        lambda s: s.check(["a"]),
        lambda s: s.check(["a", "b"]),
        lambda s: s.multi_get(["a", "a"]),
        lambda s: (s.add("n", 2), s.add("n", 3)),
        lambda s: (s.delete_key("a"), s.check(["a"])),
    ):
        assert question(store) == question(below)


def test_an_error_of_the_store_is_raised_where_it_was_asked():
    class Broken(Store):
        def check(self, keys):
            raise RuntimeError("Connection reset")

    with pytest.raises(RuntimeError, match="Connection reset"):
        DeadlineStore(Broken(), 10).check(["a"])


def test_a_store_that_did_not_answer_in_time_counts_as_lost_even_if_it_answers_later(stopped):
    store = DeadlineStore(stopped, 0.2)
    with pytest.raises(RuntimeError, match="does not answer"):
        store.check(["a"])
    stopped.never.set()
    with pytest.raises(RuntimeError, match="does not answer"):
        store.check(["a"])


def test_a_note_is_written_from_any_thread_and_waits_but_a_moment(stopped, monkeypatch):
    below = HashStore()
    store = DeadlineStore(below, 60)
    store.post("a", "1")
    assert below.get("a") == b"1"  # at once, as it waits
    monkeypatch.setattr("dcp_runtime.transport.group_store.POST_S", 60.0)
    asked = Future()
    # Where Python frees an object on the store's own thread, which cannot wait for itself.
    store._calls.put((lambda: store.post("b", "2"), asked))
    asked.result(30)
    assert store.get("b") == b"2"
    monkeypatch.setattr("dcp_runtime.transport.group_store.POST_S", 0.05)
    still = DeadlineStore(stopped, 60)
    still._calls.put((stopped.never.wait, Future()))
    still.post("c", "3")


def test_a_rank_that_leaves_does_not_wait_long_for_a_store_that_stands_still(stopped, monkeypatch):
    monkeypatch.setattr("dcp_runtime.transport.failure_registry.GRACE_S", 0.05)
    store = DeadlineStore(stopped, 60)
    StoreBarrier(store, 1, 2, FailureRegistry(store, 1), timeout_s=60).leave("closed its executor")
    with pytest.raises(RuntimeError, match="does not answer"):
        store.check(["a"])


def test_a_barrier_ends_when_the_store_does_not_answer(stopped):
    store = DeadlineStore(stopped, 0.2)
    barrier = StoreBarrier(store, 1, 2, FailureRegistry(store, 1), timeout_s=60)
    says = "got no answer in prepare, .* does not answer; the cause is the process that serves it"
    with pytest.raises(RunError, match=says) as caught:
        barrier.exchange_notes("", "prepare")
    assert caught.value.rank is None


def test_a_failure_is_told_when_the_store_does_not_answer(stopped):
    failures = FailureRegistry(DeadlineStore(stopped, 0.2), 2)
    error = failures.settle(Status("waiting", 1, "forward", 3, "3 s long"))
    assert (error.rank, error.division) == (1, 3)
    assert "rank 1 is dead or stalled" in str(error)
    assert "often rank 0, or torchrun on the first node" in str(error)


@pytest.mark.parametrize("stops", ["before it is made", "before the plan comes"])
def test_a_plan_is_not_waited_for_when_the_store_does_not_answer(stopped, monkeypatch, stops):
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    if stops == "before the plan comes":
        stopped.add = lambda key, value: 1
    group = SimpleNamespace(get_group_store=lambda: stopped, rank=lambda: 1, size=lambda: 2)
    with pytest.raises(RunError, match=r"does not answer; the cause is the process that serves it"):
        PlanExchange(group, timeout_s=0.2).take(3)


def test_its_thread_ends_with_it():
    before = set(threading.enumerate())
    store = DeadlineStore(HashStore(), 10)
    store.set("a", "1")
    (thread,) = set(threading.enumerate()) - before
    del store
    gc.collect()
    thread.join(100)
    assert not thread.is_alive()


class CountingStore:
    """A store in memory that counts the keys and bytes that it is asked for."""

    def __init__(self):
        self.values, self.keys, self.bytes = {}, 0, 0

    def set(self, key, value):
        self.keys += 1
        self.values[key] = value.encode()

    def check(self, keys):
        self.keys += len(keys)
        return all(key in self.values for key in keys)

    def multi_get(self, keys):
        found = [self.values[key] for key in keys]
        self.keys += len(keys)
        self.bytes += sum(map(len, found))
        return found

    def get(self, key):
        return self.multi_get([key])[0]

    def delete_key(self, key):
        self.keys += 1
        del self.values[key]


def play(store, barriers, notes, seed):
    """Let every rank take its turns in random order until all have left; look once a turn."""
    meetings = {rank: barriers[rank].meet(note) for rank, note in enumerate(notes)}
    waits, found, drawn = dict.fromkeys(meetings, ()), {}, random.Random(seed)
    while meetings:
        ranks = list(meetings)
        drawn.shuffle(ranks)
        for rank in ranks:
            if not waits[rank] or store.check(waits[rank]):
                try:
                    waits[rank] = next(meetings[rank])
                except StopIteration as end:
                    found[rank] = end.value
                    del meetings[rank]
    return found


def barriers_of(store, size, timeout_s=60.0):
    return [
        StoreBarrier(store, rank, size, FailureRegistry(store, rank), timeout_s)
        for rank in range(size)
    ]


@pytest.mark.parametrize("size", [2, 3, FAN + 1, FAN + 2, 100])
def test_every_rank_reads_the_notes_of_all_meeting_after_meeting(size):
    store, drawn = CountingStore(), random.Random(size)
    barriers = barriers_of(store, size)
    for seed in range(3):
        notes = [drawn.choice(["", "same", "same", f"rank {rank}\n"]) for rank in range(size)]
        assert play(store, barriers, notes, seed) == dict.fromkeys(range(size), notes)
    assert all(key.startswith("barrier/2/") for key in store.values)  # others were forgotten


def test_the_store_works_for_1024_ranks_as_for_each_of_them():
    store, size = CountingStore(), 1024
    play(store, barriers_of(store, size), ["prepare\nepoch 0, batch 7\n" + "f" * 64] * size, 0)
    assert store.keys < 16 * size
    assert store.bytes < 300 * size


@pytest.fixture
def short_grace(monkeypatch):
    monkeypatch.setattr("dcp_runtime.transport.failure_registry.GRACE_S", 0.4)


def assert_all_miss(store, size, away):
    """Let all other ranks meet; each must name the one that is away."""
    barriers = barriers_of(store, size, timeout_s=0.4)
    del barriers[away]
    with ThreadPoolExecutor(size) as pool:
        runs = [pool.submit(barrier.exchange_notes, "", "prepare") for barrier in barriers]
    for run in runs:
        with pytest.raises(RunError, match=f"rank {away} is dead or stalled") as caught:
            run.result()
        assert caught.value.rank == away


@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize(("size", "away"), [(3, 2), (40, 39), (40, 1)])
def test_the_rank_that_does_not_come_is_named(size, away):
    assert_all_miss(HashStore(), size, away)


@pytest.mark.usefixtures("short_grace")
def test_a_rank_that_dies_between_its_note_and_the_sum_is_named():
    store = HashStore()
    next(barriers_of(store, 20)[1].meet(""))  # its children are 17, 18 and 19
    assert_all_miss(store, 20, 1)
