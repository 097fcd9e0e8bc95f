"""Whom ranks blame and when, on a clock of the test; what they say where they disagree."""

from collections import Counter
from types import SimpleNamespace

import pytest
from torch.distributed import HashStore

from dcp_runtime.errors import PeerError, RunError
from dcp_runtime.transport import failure_registry, store_barrier
from dcp_runtime.transport.failure_registry import Awaited, FailureRegistry, Status
from dcp_runtime.transport.loopback import LoopbackWorld
from dcp_runtime.transport.store_barrier import StoreBarrier, Topic
from dcp_runtime.transport.transport import agree


class Clock:
    """Time passes by naps alone, half a second each; acts are due at times."""

    def __init__(self):
        self.now, self.naps, self.due = 0.0, [], {}

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.naps.append(seconds)
        self.now += 0.5
        self.due.pop(self.now, lambda: None)()


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(failure_registry, "time", found)
    monkeypatch.setattr(store_barrier, "time", found)
    return found


def waits(peer, *others, place="forward", division=2, text=""):
    return Status("waiting", peer, place, division, text, others)


def raised(text, place="backward", division=0):
    return Status("raised", -1, place, division, text)


CASES = {  # statuses that others have posted, in order; then that of the rank that asks
    "nobody else says anything": ({}, 0, waits(1, text="4 s long")),
    "a chain that ends at a silent rank": ({3: waits(4, division=7), 4: waits(5)}, 0, waits(3)),
    "the chain of the first counts": ({3: waits(4), 6: waits(7)}, 0, waits(6)),
    "one of several is silent": ({1: waits(0), 2: waits(0)}, 0, waits(1, 2, 3)),
    "of two silent ranks the first in the list": ({1: waits(2, 3)}, 0, waits(1)),
    "an error at the end of a chain": (
        {3: waits(4), 4: waits(5), 5: raised("ValueError: bad")}, 0, waits(3),
    ),
    "an error in a step": ({2: raised("no memory", "prepare", None)}, 0, waits(1)),
    "an error counts for more than silence": ({1: waits(2, 3), 3: raised("bad")}, 0, waits(1)),
    "two ranks wait for each other": ({1: waits(2, division=5), 2: waits(1)}, 0, waits(1)),
    "a circle that the first is not in": (
        {4: waits(1), 1: waits(2), 2: waits(3, division=1), 3: waits(1)}, 0, waits(4),
    ),
    "in a step": ({}, 2, waits(1, place="laying out blocks", division=None)),
}  # fmt: skip


def test_who_is_to_blame(clock, snapshots):
    texts = {}
    for title, (posted, asks, own) in CASES.items():
        store, clock.now, clock.naps = HashStore(), 0.0, []
        registries = {rank: FailureRegistry(store, rank) for rank in range(9)}
        assert not registries[8].is_marked()
        for rank, status in posted.items():
            registries[rank].post(status)
            assert registries[8].is_marked()
        registry = registries[asks]
        assert not registry.is_settled
        error = registry.settle(own)
        assert registry.is_settled
        assert set(clock.naps) <= {0.02}
        texts[title] = f"{error}\nrank {error.rank}, division {error.division}, {clock.now:g} s"
        again = registries[8].settle(waits(7, text="another"))
        assert (str(again), again.rank, again.division) == (
            str(error), error.rank, error.division,
        )  # fmt: skip
    snapshots.check("failure_registry", texts)


class Lost:
    """A store whose process ends before the n-th question."""

    def __init__(self, questions):
        self.left, self.store = questions, HashStore()

    def __getattr__(self, name):
        def ask(*arguments):
            self.left -= 1
            if self.left < 0:
                raise RuntimeError("Connection reset")
            return getattr(self.store, name)(*arguments)

        return ask


@pytest.mark.parametrize("questions", [0, 1, 2, 5])
def test_without_a_store_a_rank_blames_its_peer_alone(clock, questions):
    store = Lost(questions)
    registry = FailureRegistry(store, 2)
    error = registry.settle(waits(1, text="3 s long"))
    assert str(error) == (
        "rank 1 is dead or stalled: rank 2 waited for it in division 2 of forward, 3 s long; the "
        "store is lost as well, so the cause may be the process that serves it: often rank 0, or "
        "torchrun on the first node"
    )
    assert (clock.now, store.left) == (2.0, -1)  # it was asked no more
    assert not registry.is_marked()


def test_a_failure_that_another_rank_counted_first_is_waited_for(clock):
    store = HashStore()
    store.add("failures", 1)
    other = '{"message": "rank 4 is dead", "rank": 4, "division": 1}'
    clock.due[1.0] = lambda: store.set("failure", other)
    found = FailureRegistry(store, 0)._publish(PeerError("mine", rank=2))
    assert (str(found), found.rank, found.division, clock.now) == ("rank 4 is dead", 4, 1, 1.0)
    store.delete_key("failure")  # it died before it wrote
    clock.now = 0.0
    assert str(FailureRegistry(store, 0)._publish(PeerError("mine", rank=2))) == "mine"
    assert clock.now == 1.5
    assert set(clock.naps) == {0.02}


def barrier_of(store, rank, size, timeout_s=10.0):
    return StoreBarrier(store, rank, size, FailureRegistry(store, rank), timeout_s)


def test_ranks_at_another_step_are_named_by_all():
    def work(transport):
        place = "forward" if transport.rank == 1 else "prepare"
        with pytest.raises(RunError) as caught:
            transport.exchange_notes("", place)
        return str(caught.value), caught.value.rank, caught.value.division

    error = (
        "rank 1 has another step than rank 0 in {}: expected prepare, got forward; all ranks "
        "prepare the same plans and run the same layers in the same order"
    )
    assert LoopbackWorld(3).run(work) == [
        (error.format(place), 1, 0) for place in ("prepare", "forward", "prepare")
    ]


def test_an_error_is_heard_by_all_others():
    def work(transport):
        def propose():
            if transport.rank == 1:
                raise ValueError("a bad\nvalue")
            return ["x"], transport.rank

        try:
            agree(transport, [Topic("plan", "")], "prepare", propose)
        except (RunError, ValueError) as error:
            return str(error), getattr(error, "rank", None), getattr(error, "division", None)

    text = "rank 1 failed in prepare: ValueError: a bad\nvalue", 1, 0
    assert LoopbackWorld(3).run(work) == [text, ("a bad\nvalue", None, None), text]


PLAN, DTYPE = Topic("plan", "build it again"), Topic("dtype", "cast it")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([("p", "f32")] * 3, None),
        ([("p", "f32"), ("", "f32"), ("p", "")], None),
        ([("", ""), ("", ""), ("", "")], None),
        ([("p", "f32"), ("p", "f16"), ("p", "f16")], "0 dtype 1 f16 f32 cast it"),
        ([("p", "f32"), ("q", "f16"), ("p", "f16")], "1 plan 0 p q build it again"),
        ([("p", "a"), ("p", "b"), ("p", "")], "1 dtype 0 a b cast it"),
        ([("", "a"), ("q", "a"), ("p", "a")], "2 plan 1 q p build it again"),
    ],
)
def test_ranks_agree_or_name_who_differs_from_most(values, says):
    def work(transport):
        own = values[transport.rank]
        try:
            return agree(transport, [PLAN, DTYPE], "prepare", lambda: (own, transport.rank))
        except RunError as error:
            return f"{error} ({error.rank}, {error.division})"

    wanted = [0, 1, 2]
    if says is not None:
        odd, what, right, expected, got, way_out = says.split(" ", 5)
        text = f"rank {odd} has another {what} than rank {right} in prepare: expected {expected}"
        wanted = [f"{text}, got {got}; {way_out} ({odd}, 0)"] * 3
    assert LoopbackWorld(3).run(work) == wanted


def test_a_rank_alone_meets_and_agrees_with_itself():
    assert barrier_of(None, 0, 1).exchange_notes("mine", "prepare") == ["mine"]
    alone = SimpleNamespace(size=1)
    assert agree(alone, [PLAN], "prepare", lambda: (["p"], 7)) == 7


def test_of_two_halves_the_one_with_the_first_rank_is_right():
    topic = Topic("seed", "")
    with pytest.raises(RunError, match="rank 1 has another seed than rank 0") as caught:
        topic.compare(["b", "a", "a", "b"], "here")
    assert caught.value.rank == 1
    with pytest.raises(RunError, match="rank 0 has another seed than rank 1"):
        topic.compare(["b", "a", "a"], "here")


def test_a_lost_server_is_the_cause_and_no_rank(clock):
    for rank in (2, 0):
        with pytest.raises(PeerError) as caught:
            barrier_of(Lost(0), rank, 3).exchange_notes("", "prepare")
        assert str(caught.value) == (
            f"the store of the process group is lost: rank {rank} got no answer in prepare, "
            "Connection reset; the cause is the process that serves it: often rank 0, or torchrun "
            "on the first node"
        )
        assert caught.value.rank is None
    assert clock.now == 0  # nobody is there to agree with


def test_a_collective_of_torch_that_fails_blames_the_one_it_waits_for(clock):
    barrier = barrier_of(HashStore(), 0, 2, timeout_s=1.5)
    with (
        pytest.raises(PeerError, match=r"rank 1 is dead .* waited for it in here, 1\.5 s long$"),
        barrier.waiting_for(1, "here"),
    ):
        raise RuntimeError("Timed out waiting 1ms")
    with barrier.waiting_for(1, "here"):
        pass


def test_waits_for_notes_are_short_and_then_long_and_look_for_failures(clock):
    """The mark costs another look at the store: only who naps longest looks for it."""
    asked = Counter()

    class Store:
        def check(self, keys):
            asked[keys[0]] += 1
            return False

    failures = SimpleNamespace(is_off=lambda meeting: asked.update([f"mark {meeting}"]))
    barrier = StoreBarrier(Store(), 0, 2, failures, 6.0)
    assert not barrier._have_come(["key"], 6.0, 7)
    assert clock.now == 6.5
    assert asked == {"key": 15, "mark 7": 4}  # the last look is behind the mark
    assert clock.naps == [*(50e-6 * 2**n for n in range(9)), *[0.02] * 4]
    failures.is_off = lambda meeting: True
    clock.now = 0.0
    assert not barrier._have_come(["key"], 60.0, 7)
    assert clock.now == 4.5


def test_a_rank_that_wrote_its_note_and_then_failed_is_not_missed(clock):
    store = HashStore()
    barrier = barrier_of(store, 0, 2)

    def is_off(meeting):
        store.set("key", "note")  # between two looks of this rank
        return True

    barrier._failures = SimpleNamespace(is_off=is_off)
    assert barrier._have_come(["key"], 60.0, 0)


CLOSED = "closed its executor after epoch 0, batch 1"
SAME = (
    "give every rank the same rows, or let all ranks leave the loop over their batches after the "
    "same one"
)


def leaves(store, rank, calls=0, meeting=0):
    registry = FailureRegistry(store, rank)
    registry.calls = calls
    registry.leave(CLOSED, meeting)
    return registry


def test_a_rank_that_left_is_named_at_once_by_the_meeting_that_waits_for_it(clock):
    store = HashStore()
    barrier = barrier_of(store, 0, 3, timeout_s=600.0)
    store.set("barrier/0/1", '{"prepare\\n": [1]}')
    clock.due[1.0] = lambda: leaves(store, 2)
    says = f"rank 2 {CLOSED}; rank 0 waits for it in prepare; {SAME}"
    with pytest.raises(PeerError) as caught:
        barrier.exchange_notes("", "prepare")
    assert (str(caught.value), caught.value.rank) == (says, 2)
    assert clock.now < 8
    # Rank 1, which waits for the sum of all, hears the same.
    with pytest.raises(PeerError, match=says):
        barrier_of(store, 1, 3).exchange_notes("", "prepare")


def test_a_rank_that_left_after_a_meeting_is_not_missed_there(clock):
    store = HashStore()
    leaves(store, 1, meeting=1)
    clock.due[9.0] = lambda: store.set("barrier/0/1", '{"prepare\\nits note": [1]}')
    assert barrier_of(store, 0, 2).exchange_notes("mine", "prepare") == ["mine", "its note"]


@pytest.mark.parametrize("calls", [3, 4])
def test_a_rank_that_left_before_a_call_is_to_blame_for_its_messages(clock, calls):
    """After the call it has sent all: then another rank is, or nobody."""
    store = HashStore()
    left, own = leaves(store, 1, calls), FailureRegistry(store, 0)
    own.calls = 4
    assert own.is_lost([2, 1]) == (calls < 4)
    assert not own.is_lost([2])
    assert not own.is_marked()
    left.leave("", 7)
    assert own.left_before(7) is None  # it is said once
    says = f"rank 1 {CLOSED}; rank 0 waits for it in division 2 of forward; {SAME}"
    if calls == 4:
        says = "rank 2 is dead or stalled: rank 0 waited for it in division 2 of forward"
    assert str(own.settle(waits(1, 2))) == says


def test_the_error_of_a_rank_counts_for_more_than_that_it_left(clock):
    store = HashStore()
    registry = FailureRegistry(store, 1)
    registry.raised("the code around its layers", None, ValueError("bad"))
    registry.leave(CLOSED, 0)
    error = FailureRegistry(store, 0).settle(waits(1))
    assert str(error) == "rank 1 failed in the code around its layers: ValueError: bad"


@pytest.mark.parametrize(("ended", "place"), [(2, 2), (2, 3), (3, 2)])
def test_a_batch_that_another_rank_does_not_have_is_told_at_once(clock, ended, place):
    store = HashStore()
    own, other = (FailureRegistry(store, rank) for rank in (0, 1))
    other.end_data(5, ended, "has no more rows after epoch 0, batch 1")
    own.awaited = Awaited(5, place, "epoch 0, batch 2, rows 7, 8")
    if place < ended:
        assert own.end_of_data() is None
        return
    assert own.is_off(0)
    error = own.publish(own.end_of_data())
    assert str(error) == (
        "rank 1 has no more rows after epoch 0, batch 1; rank 0 goes on with epoch 0, batch 2, "
        f"rows 7, 8; {SAME}"
    )
    assert str(other.settle(waits(0))) == str(error)  # on all ranks, also on that one
    own.awaited = Awaited(4, place, "a batch of another loader")
    assert own.end_of_data() is None


def test_values_are_compared_with_those_of_the_first_without_waiting():
    store, topic = HashStore(), Topic("order of layers", "draw alike")
    first, second, third = (barrier_of(store, rank, 3) for rank in range(3))
    second.compare_with_first(topic, "", "closing")  # it cannot know
    first.compare_with_first(topic, "layers 0-3", "closing")
    second.compare_with_first(topic, "layers 0-3", "closing")
    says = (
        "rank 2 has another order of layers than rank 0 in closing: expected layers 0-3, got "
        "layers 0-1, 3; draw alike"
    )
    with pytest.raises(RunError, match=says):
        third.compare_with_first(topic, "layers 0-1, 3", "closing")
    barrier_of(Lost(0), 2, 3).compare_with_first(topic, "another", "closing")
    barrier_of(None, 0, 1).compare_with_first(topic, "alone", "closing")
