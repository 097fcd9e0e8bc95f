"""A store whose server stopped: nobody waits for it, and the error says what may be to blame."""

import gc
import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from torch.distributed import HashStore, Store

from dcp_runtime.data import plan_sources
from dcp_runtime.data.plan_sources import PlanExchange
from dcp_runtime.errors import RunError
from dcp_runtime.transport.failure_registry import FailureRegistry, Status
from dcp_runtime.transport.group_store import DeadlineStore
from dcp_runtime.transport.store_barrier import StoreBarrier

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


def test_a_plan_that_cannot_be_left_in_the_store_is_said_so(monkeypatch):
    class Broken(HashStore):
        def set(self, key, value):
            raise RuntimeError("Connection reset")

    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    store = Broken()
    group = SimpleNamespace(get_group_store=lambda: store, rank=lambda: 0, size=lambda: 2)
    exchange = PlanExchange(group, timeout_s=10)
    exchange._store = DeadlineStore(store, 10)  # keys with a prefix are written from C++
    with pytest.raises(RunError, match=r"plan of batch 3: Connection reset; the cause is"):
        exchange.publish(3, [b"", b""])


def test_a_part_that_was_taken_leaves_the_store(monkeypatch):
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr(plan_sources, "decode_reply", bytes.decode)
    group = SimpleNamespace(get_group_store=HashStore, rank=lambda: 1, size=lambda: 2)
    exchange = PlanExchange(group, timeout_s=10)
    exchange._store = store = HashStore()
    exchange.publish(3, [b"first", b"second"])
    assert exchange.take(3) == "second"
    assert (store.check(["3/0"]), store.check(["3/1"])) == (True, False)


def test_its_thread_ends_with_it():
    before = set(threading.enumerate())
    store = DeadlineStore(HashStore(), 10)
    store.set("a", "1")
    (thread,) = set(threading.enumerate()) - before
    del store
    gc.collect()
    thread.join(100)
    assert not thread.is_alive()
