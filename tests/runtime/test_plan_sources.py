"""Plans made ahead and handed out, in one process: stand-ins for the pool, the group and workers.

`test_planner_pool` does the same with processes.
"""

import json
import time
import warnings
from concurrent.futures import Future
from dataclasses import replace
from operator import attrgetter
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from loader_options import SMALL, make_loader
from torch import distributed as dist

from dcp_dsl import DatasetError, Spec
from dcp_planner import Cluster, PlanConfig, PlanFileError
from dcp_planner.plan import decode_part, encode_parts, encode_plan
from dcp_planner.workers import TaskError, WorkerLost
from dcp_runtime import LookAhead, RunError
from dcp_runtime.data import plan_sources, planner_pool
from dcp_runtime.data.choices import Replicas
from dcp_runtime.data.make_plans import plan_request, start
from dcp_runtime.data.plan_sources import OwnPlans, PlanExchange, SharedPlans, make_plan_source
from dcp_runtime.data.planner_pool import PlannerPool, PlanRequest, decode_reply, encode_parts_of
from dcp_runtime.plans.batch_plans import batch_note, digest_of

SPEC = Spec.from_text(
    "segment s = part[parts]*\nmask own = causal and same(part)\nmask band = causal and q - k < 9\n"
    "stack mixed = 2 of band, own"
)
OPTIONS = {**SMALL, "token_budget": 24, "cluster": Cluster(devices_per_node=2), "rank": 0}
BAD = "row 7 is bad"


def requests_of(*lengths, mask="band", **options):
    """Return the requests that a loader makes for its batches, each of one row."""
    rows = [{"tokens": [0] * n, "parts": [n - n // 3, n // 3]} for n in lengths]
    value = SPEC.stack(mask) if mask in SPEC.stacks else SPEC.mask(mask)
    loader = make_loader(rows, value, **{**OPTIONS, **options})
    return [window.pending.request for window in loader._coming()]


def digests_of(reply):
    """Return the digests of plans, or of the plans that parts were cut from."""
    return [digest_of(plan) for batch in reply.batches for plan in batch.plans]


class Group:
    """A rank of a group whose store is in this process."""

    def __init__(self, store, rank, size):
        self.rank, self.size = (lambda: rank), (lambda: size)
        self.get_group_store = lambda: store


@pytest.fixture
def exchanges(monkeypatch):
    """The n-th exchange of each rank of a group."""
    monkeypatch.setattr(plan_sources, "dist", SimpleNamespace(is_initialized=lambda: True))

    def make(size=2, timeout_s=30.0, store=None):
        store = store or dist.HashStore()
        return [PlanExchange(Group(store, rank, size), timeout_s) for rank in range(size)]

    return make


class Pool:
    """Takes requests and answers when the test says."""

    is_closed = cannot_start = False

    def __init__(self):
        self.asked = []

    def submit(self, request):
        self.asked.append((request, Future()))
        return self.asked[-1][1]

    submit_parts = submit

    def close(self):
        self.is_closed = True


# Each rank for itself


def test_a_plan_is_made_when_it_is_taken_and_kept_for_equal_sequences():
    source = OwnPlans(None)
    (first,), (second,) = requests_of(20), requests_of(21)
    found = source.take(source.start(first), 0)
    assert digests_of(found) == digests_of(plan_request(first))
    again = replace(first, sequences=(replace(first.sequences[0], row=5),))
    assert source.take(source.start(again), 3) is found
    assert source.take(source.start(second), 0) is not found
    metrics = source.metrics
    assert (metrics.plans, metrics.cached, metrics.lost, metrics.queued) == (3, 1, 0, 0)
    assert 0 < metrics.latest_waited_s == metrics.latest_s < metrics.plan_s < metrics.waited_s


def test_the_plans_that_were_used_last_stay(monkeypatch):
    monkeypatch.setattr(plan_sources, "MAX_CACHED_PLANS", 2)
    made = []
    monkeypatch.setattr(plan_sources, "plan_request", lambda request: made.append(request))
    source = OwnPlans(None)
    one, two, three = (requests_of(n)[0] for n in (20, 21, 22))
    for request in (one, two, one, three, one, two):
        source.take(source.start(request), 0)
    assert made == [one, two, three, two]


def test_a_pool_is_asked_once_and_its_seconds_are_those_of_the_plan():
    source, (request,) = OwnPlans(pool := Pool()), requests_of(20)
    pending = source.start(request)
    reply = plan_request(request)
    pool.asked[0][1].set_result((reply, 4.0))
    assert source.take(pending, 2) is reply
    metrics = source.metrics
    assert (metrics.latest_s, metrics.plan_s, metrics.queued, metrics.plans) == (4, 4, 2, 1)
    assert metrics.latest_waited_s == metrics.waited_s < 1
    assert source.start(request).future is None  # it is known
    assert source.take(source.start(request), 0) is reply
    assert (metrics.latest_s, metrics.plan_s, metrics.cached, len(pool.asked)) == (0, 4, 1, 1)
    # A plan that was asked for twice at once is not one that had been made before.
    other = source.start(requests_of(21)[0])
    pool.asked[1][1].set_result((reply, 1.0))
    source.take(other, 0)
    assert metrics.cached == 1


@pytest.mark.parametrize("cannot_start", [False, True])
def test_a_plan_whose_process_is_lost_is_made_here(cannot_start):
    source, (request,) = OwnPlans(pool := Pool()), requests_of(20)
    pending = source.start(request)
    pool.cannot_start = cannot_start
    pool.asked[0][1].set_exception(WorkerLost("the planner is gone"))
    what = "from now on this process plans" if cannot_start else "the batch is planned again here"
    with pytest.warns(RuntimeWarning, match=f"the planner is gone; {what}"):
        found = source.take(pending, 0)
    assert digests_of(found) == digests_of(plan_request(request))
    assert source.metrics.lost == 1
    assert (source.pool is None) == pool.is_closed == cannot_start
    assert (source.start(requests_of(21)[0]).future is None) == cannot_start


def test_a_plan_whose_process_was_ended_by_close_is_made_here_without_a_word():
    source, (request,) = OwnPlans(pool := Pool()), requests_of(20)
    pending = source.start(request)
    source.close()
    source.close()
    pool.asked[0][1].set_exception(WorkerLost("ended"))
    found = source.take(pending, 0)
    assert digests_of(found) == digests_of(plan_request(request))
    assert (source.metrics.lost, pool.is_closed) == (0, True)


def test_a_plan_under_way_is_cancelled():
    future = Future()
    for pending in (plan_sources.PendingPlan(None, each) for each in (None, future)):
        pending.cancel()
    assert future.cancelled()


def test_the_hidden_share_is_what_nobody_waited_for():
    shares = [
        plan_sources.PlanningMetrics(plan_s=plan_s, waited_s=waited_s).hidden_share
        for plan_s, waited_s in ((0, 0), (4, 1), (4, 4), (4, 5), (4, 0))
    ]
    assert shares == [1.0, 0.75, 0.0, 0.0, 1.0]


# One rank for all


def test_the_first_rank_plans_and_every_rank_takes_its_part(exchanges):
    sources = [SharedPlans(None, exchange) for exchange in exchanges(2)]
    asked = requests_of(20, 21, mask="mixed")
    pending = [[source.start(request) for source in sources] for request in asked]
    assert [[each.number for each in both] for both in pending] == [[0, 0], [1, 1]]
    for request, both in zip(asked, pending, strict=True):
        own = plan_request(request)
        for rank, source in enumerate(sources):
            found = source.take(both[rank], 1 - rank)
            assert digests_of(found) == digests_of(own)
            assert [plan.device for batch in found.batches for plan in batch.plans] == [rank] * 2
            assert (found.hidden, found.steps) == (own.hidden, own.steps)
    assert [source.metrics.queued for source in sources] == [1, 0]
    assert [source.metrics.plans for source in sources] == [2, 2]
    store = sources[0]._exchange._store
    assert not store.check(["0/0"])  # what was taken is gone
    assert not store.check(["1/1"])


def test_several_exchanges_do_not_mix(exchanges):
    store = dist.HashStore()
    one, two = exchanges(1, store=store) + exchanges(1, store=store)
    own, other = (encode_parts_of(plan_request(requests_of(n)[0]), range(1)) for n in (20, 21))
    one.publish(0, own)
    two.publish(0, other)
    assert digests_of(one.take(0)) != digests_of(two.take(0))


def test_a_rank_that_gets_no_plan_says_so(exchanges):
    _, second = exchanges(2, timeout_s=0.05)
    started = time.monotonic()
    says = r"rank 1 got no plan of batch 3 from rank 0 within 0.05 s; rank 0 may have failed"
    with pytest.raises(RunError, match=says) as caught:
        second.take(3)
    assert caught.value.rank == 0
    assert time.monotonic() - started >= 0.05


def test_a_batch_that_comes_between_two_looks_is_taken_before_the_end(exchanges, monkeypatch):
    first, second = exchanges()
    look = second._store.check

    def check(keys):
        found = look(keys)
        if not found:
            first.fail(0, DatasetError("row 1 is bad"))
            first.end(0, "failed in its data loader")
        return found

    monkeypatch.setattr(second._store, "check", check)
    with pytest.raises(DatasetError, match="row 1 is bad"):
        second.take(0)


def test_a_store_that_is_gone_is_named(exchanges, monkeypatch):
    first, second = exchanges(2)

    gone = Mock(side_effect=RuntimeError("connection reset\nsecond line"))
    for name in ("set", "check"):
        monkeypatch.setattr(type(first._store), name, gone)
    says = r"rank {} lost the store that brings the plan of batch 5: connection reset; the cause is"
    with pytest.raises(RunError, match=says.format(0)) as caught:
        first.publish(5, [b"", b""])
    assert caught.value.rank == 0
    with pytest.raises(RunError, match=says.format(1)):
        second.take(5)


def test_a_batch_that_cannot_be_planned_is_refused_on_all_ranks(exchanges):
    for config, rows, error in (
        (PlanConfig("no such thing"), 20, RunError),
        (PlanConfig("static:zigzag"), 1, DatasetError),
    ):
        sources = [SharedPlans(None, exchange) for exchange in exchanges(2)]
        (request,) = requests_of(20, config=config)
        if rows == 1:
            sequence = replace(request.sequences[0], sample='{"len": 0, "x": 1.5}')
            request = replace(request, sequences=(sequence,))
        pending = [source.start(request) for source in sources]
        said = set()
        for source, own in zip(sources, pending, strict=True):
            with pytest.raises(error) as caught:
                source.take(own, 0)
            said.add((type(caught.value), str(caught.value)))
        assert len(said) == 1
        assert [source.metrics.plans for source in sources] == [0, 0]


@pytest.fixture
def started(exchanges):
    """A pool that was asked for a plan, the sources of two ranks with what they wait for."""
    pool, (request,) = Pool(), requests_of(20)
    sources = [SharedPlans(own, each) for own, each in zip((pool, None), exchanges(2), strict=True)]
    return pool, request, *((source, source.start(request)) for source in sources)


def test_a_pool_publishes_what_its_processes_plan(started):
    pool, request, *both = started
    parts = encode_parts_of(plan_request(request), request.own_devices)
    pool.asked[0][1].set_result((parts, 6.0))
    for source, own in both:
        assert digests_of(source.take(own, 0)) == digests_of(plan_request(request))
        assert source.metrics.lost == 0
    (first, _), (second, _) = both
    assert first.metrics.latest_s == 6.0
    assert second.metrics.latest_s == second.metrics.latest_waited_s < 5
    assert first._seconds == {}


@pytest.mark.parametrize("cannot_start", [False, True])
def test_a_plan_that_the_pool_lost_is_placed_or_planned_by_the_first_rank(started, cannot_start):
    pool, request, (first, own), (second, other) = started
    pool.cannot_start = cannot_start
    pool.asked[0][1].set_exception(WorkerLost("the planner is gone"))
    says = "rank 0 plans" if cannot_start else "the batch is placed by 'static:contiguous'"
    with pytest.warns(RuntimeWarning, match=f"^the planner is gone; {says}$"):
        found = first.take(own, 0)
    if not cannot_start:
        request = replace(request, config=PlanConfig("static:contiguous"))
    assert digests_of(found) == digests_of(plan_request(request))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert digests_of(second.take(other, 0)) == digests_of(found)
    assert (first.metrics.lost, second.metrics.lost) == (1, 0)
    assert 0 < first.metrics.latest_s < 60
    assert first._lost == first._seconds == {}


def test_what_the_pool_refuses_is_told_to_all(started):
    pool, _, *both = started
    pool.asked[0][1].set_exception(DatasetError(BAD))
    for source, own in both:
        with pytest.raises(DatasetError, match=f"^{BAD}$"):
            source.take(own, 0)


@pytest.mark.parametrize("how", ["cancelled", "closed", "a closed pool"])
def test_a_plan_that_the_pool_did_not_make_is_made_by_the_first_rank(started, how):
    pool, request, *both = started
    first, pending = both[0]
    if how == "a closed pool":
        pool.close()
    else:
        first.close()
    if how == "cancelled":
        pending.cancel()
    else:
        pool.asked[0][1].set_exception(WorkerLost("ended"))
    assert not first._exchange._store.check(["0/0"])
    first.close()
    for source, own in both:
        assert digests_of(source.take(own, 0)) == digests_of(plan_request(request))
    assert (first.metrics.lost, pool.is_closed) == (0, True)


def test_the_seconds_of_a_lost_plan_are_known_before_a_rank_takes_it():
    known, done = [], Future()
    exchange = SimpleNamespace(publish=lambda number, parts: known.append([*plans._seconds]))
    plans = SharedPlans(Pool(), exchange)
    done.set_exception(WorkerLost("gone"))
    plans._publish(4, requests_of(20)[0], done)
    assert known == [[4]]


# Which source


def replicas_of(count, ranks, group=None):
    return Replicas(count, ranks, 0, Cluster(1, count * ranks), group)


def test_the_source_is_that_of_the_choices(monkeypatch):
    made = []
    monkeypatch.setattr(plan_sources, "PlannerPool", lambda *given: made.append(given) or Pool())
    assert make_plan_source(LookAhead(processes=0), replicas_of(1, 1)).pool is None
    assert isinstance(make_plan_source(LookAhead(processes=3), replicas_of(2, 1)), OwnPlans)
    assert made == [(3, plan_sources.PLAN_TIME_LIMIT_S)]
    with pytest.raises(RunError, match="choose planner='each'"):
        make_plan_source(LookAhead(planner="first", processes=0), replicas_of(1, 1))
    monkeypatch.setattr(plan_sources, "dist", SimpleNamespace(is_initialized=lambda: True))
    with pytest.raises(RunError, match="which ranks are one of the 2 replicas"):
        make_plan_source(LookAhead(planner="first", processes=0), replicas_of(2, 1))
    store = dist.HashStore()
    for rank, processes, asked in ((0, 0, 0), (0, 2, 1), (1, 2, 0), (1, 0, 0)):
        made.clear()
        replicas = replicas_of(2, 2, Group(store, rank, 2))
        source = make_plan_source(LookAhead(planner="first", processes=processes), replicas)
        assert len(made) == asked == (source.pool is not None)
        assert source._exchange._timeout_s == 2 * plan_sources.PLAN_TIME_LIMIT_S
    with pytest.raises(RunError, match="a replica has 3 devices, the group 2 ranks"):
        make_plan_source(LookAhead(planner="first"), replicas_of(2, 3, Group(store, 0, 2)))


# Requests, replies and workers


def test_requests_survive_json_and_are_named_by_all_but_their_rows():
    one, two = (requests_of(n, mask="mixed")[0] for n in (20, 21))
    again = PlanRequest.from_json(one.to_json())
    assert again == one
    elsewhere = replace(one, sequences=(replace(one.sequences[0], row=9),))
    assert again.key == one.key == elsewhere.key != two.key
    assert "\n" not in one.to_json()
    later = replace(one, replica=2)
    assert (list(one.own_devices), list(later.own_devices)) == ([0, 1], [4, 5])


class Worker:
    """Answers as a planner process does, in this one."""

    def __init__(self):
        self.limits, self.ended, self.cannot_start, self.pid = [], 0, False, None
        self.change = lambda answer, blob: (answer, blob)

    def call(self, message, limit_s):
        self.limits.append(limit_s)
        return self.change(*start()(message, None))

    def end(self):
        self.ended += 1


@pytest.fixture
def pool():
    """A pool of one such worker, which is asked at once."""
    pool, worker = PlannerPool(2, 12.5), Worker()

    def submit(plan):
        future = Future()
        try:
            future.set_result(plan(worker))
        except Exception as error:
            future.set_exception(error)
        return future

    pool._pool = SimpleNamespace(submit=submit, workers=[worker], is_closed=False)
    return pool


def test_a_process_gives_whole_plans_or_the_parts_of_its_replica(pool):
    (request,) = requests_of(20, mask="mixed")
    own, (worker,) = plan_request(request), pool._pool.workers
    reply, seconds = pool.submit(request).result()
    assert digests_of(reply) == digests_of(own)
    assert seconds > 0
    parts, seconds = pool.submit_parts(request).result()
    assert parts == encode_parts_of(own, request.own_devices)
    assert worker.limits == [12.5, 12.5]
    assert [decode_reply(part).batches[0].plans[1].device for part in parts] == [0, 1]


def test_a_refusal_has_the_class_that_it_had_in_the_process(pool):
    (worker,) = pool._pool.workers
    for kinds, error in ((("SpecError", "DCPError"), RunError), (("DatasetError",), DatasetError)):
        worker.change = Mock(side_effect=TaskError(BAD, kinds))
        with pytest.raises(error, match=BAD) as caught:
            pool.submit(requests_of(20)[0]).result()
        assert type(caught.value) is error
    assert worker.ended == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda answer, blob: ({"seconds": 1.0}, blob),
        lambda answer, blob: ({"sizes": answer["sizes"]}, blob),
        lambda answer, blob: (answer, blob[:-1]),
        lambda answer, blob: ({**answer, "sizes": ["a"]}, blob),
    ],
    ids=["no sizes", "no seconds", "too short", "sizes of texts"],
)
def test_a_process_whose_answer_cannot_be_read_is_ended(pool, change):
    (worker,) = pool._pool.workers
    worker.change = change
    with pytest.raises(WorkerLost, match="the planner's answer cannot be read: "):
        pool.submit(requests_of(20)[0]).result()
    assert worker.ended == 1


def test_a_pool_that_has_no_thread_has_lost_the_plan(pool):
    pool._pool.submit = Mock(side_effect=RuntimeError("can't start new thread"))
    with pytest.raises(WorkerLost, match="the planner cannot be asked: can't start new thread"):
        pool.submit(requests_of(20)[0]).result()


def test_a_pool_says_what_its_workers_are():
    pool = PlannerPool(3, 1.0)
    assert (pool.processes, pool.cannot_start, pool.is_closed) == ((), False, False)
    states = [(4, False), (None, True), (6, False)]
    workers = [SimpleNamespace(pid=pid, cannot_start=c) for pid, c in states]
    pool._pool = SimpleNamespace(workers=workers, is_closed=True, close=lambda: None)
    assert (pool.processes, pool.cannot_start, pool.is_closed) == ((4, 6), True, True)


def test_devices_get_their_parts_of_a_group_that_begins_later():
    reply = plan_request(requests_of(20)[0])
    (batch,) = reply.batches
    later = replace(reply, batches=(replace(batch, first=2),))
    replies = encode_parts_of(later, range(2, 4))
    found = [decode_reply(reply, bytes).batches[0].plans[0] for reply in replies]
    assert found == encode_parts(batch.plans[0])
    assert found[0] != found[1]


def test_replies_survive_their_bytes_and_damaged_ones_are_refused():
    (request,) = requests_of(20, 9, mask="mixed", token_budget=40, replicas=2)
    reply = plan_request(request)
    assert [len(batch.members) for batch in reply.batches] == [1]
    reply = replace(reply, left_out=((3, "why"),), hidden=((1, 4), (6, 7)), overflow=5)
    plans = [encode_plan(plan) for batch in reply.batches for plan in batch.plans]
    data = planner_pool.encode_reply(reply, plans)
    found = decode_reply(data, lambda plan: planner_pool.decode_plan(plan).plan)
    assert digests_of(found) == digests_of(reply)
    fields = attrgetter("left_out", "hidden", "steps", "overflow")
    assert fields(found) == fields(reply)
    for one, other in zip(found.batches, reply.batches, strict=True):
        fields = attrgetter("members", "first", "cycle")
        assert fields(one) == fields(other)
        assert json.dumps(one.facts) == json.dumps(other.facts)
    for damaged in (b"", b"{}", b"[]", b"\xff\n", data.replace(b'"sizes": [', b'"sizes": ["a", ')):
        with pytest.raises(RunError, match="expected a part of a planned batch, got"):
            decode_reply(damaged, bytes)
    with pytest.raises(PlanFileError):
        decode_reply(data)  # whole plans are no parts


def test_a_plan_of_one_batch_that_serves_another_has_the_names_of_its_rows():
    tokens = list(range(24))
    rows = [{"tokens": tokens, "id": "chat-9f3a"}, {"tokens": tokens, "path": "a.py"}]
    loader = make_loader([*rows, {"tokens": tokens}], SPEC.mask("band"), **OPTIONS)
    plans = [plan for _, plan in loader]
    assert [plan.sequence_names for plan in plans] == [
        ("row 0: chat-9f3a",), ("row 1: a.py",), ("row 2",)
    ]  # fmt: skip
    assert [plan.provenance.origin for plan in plans] == ["rows 0", "rows 1", "rows 2"]
    assert loader.metrics.cached == 2
    assert [batch_note(plan).name for plan in plans] == [f"epoch 0, batch {n}" for n in range(3)]


def test_parts_of_plans_name_their_sequences_too():
    (batch,) = plan_request(requests_of(20)[0]).batches
    parts = replace(batch, plans=(decode_part(encode_parts(batch.plans[0])[1]),))
    (own,), (part,) = batch.named((4,), ("x",)).plans, parts.named((4, 7), ("y",)).plans
    assert (own.sequence_names, own.provenance.origin) == (("x",), "rows 4")
    assert (part.plan.sequence_names, part.plan.provenance) == (("y",), None)
    assert (part.device, part.digest) == (1, digest_of(batch.plans[0]))
