"""The transport of NCCL on ranks that are threads, with a model of the order NCCL keeps.

Nothing of CUDA is here: a communicator runs its batches one after the other on each rank, and a
batch ends once every message in it has met its other end, in a batch that runs as well. The stream
of a rank is its thread: where a stream would stand still, the thread does, unless the test lets the
host run ahead of what the stream would have.
"""

import re
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from thread_group import ThreadRanks

from dcp_planner import Cluster, TransferKind
from dcp_planner.simulation import EVENT_KINDS
from dcp_runtime import DCPExecutor, RunError
from dcp_runtime.transport import group_transport, nccl_transport
from dcp_runtime.transport.nccl_transport import MessageBatch, NcclTransport
from dcp_runtime.transport.transport import without_overlap

TIMEOUT_S = 2.0
SEND, RECEIVE = "send", "receive"
ONCE_PER_NODE = {"layout": "native", "routing": "node", "divisions": 4}


@dataclass(eq=False)
class Batch:
    """Messages of one rank that start together: (is it sent, tensor, peer)."""

    open: list
    is_done: bool = False


@dataclass(eq=False)
class Communicator:
    """One queue of batches per rank; only the first of each runs."""

    size: int
    joined: set = field(default_factory=set)
    queues: dict = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    aborted: set = field(default_factory=set)  # ranks
    beside: dict = field(default_factory=dict)  # all communicators, by number
    error: str = ""  # after which all batches count as completed, as NCCL's do
    broken: str = ""  # what asking about a batch raises
    is_ahead: bool = False  # nothing arrives, and no host waits for that

    def put(self, rank, batch):
        # As torch says: all ranks take part in the first operation, or nobody knows what happens.
        assert len(self.joined) == self.size, f"only {self.joined} have joined"
        with self.lock:
            self.queues.setdefault(rank, deque()).append(batch)

    def holds_up(self, rank):
        return bool(self.queues.get(rank)) and rank not in self.aborted

    def advance(self):
        with self.lock:
            while not self.is_ahead and self._advance_one():
                pass

    def _advance_one(self):
        running = {rank: queue[0] for rank, queue in self.queues.items() if queue}
        for rank, batch in running.items():
            for message in batch.open:
                kind, tensor, peer = message
                other = running.get(peer)
                if kind != SEND or other is None:
                    continue
                ends = [m for m in other.open if m[0] == RECEIVE and m[2] == rank]
                starts = [m for m in batch.open if m[0] == SEND and m[2] == peer]
                if ends and starts[0] is message:  # pairs meet in the order of their starts
                    assert (tensor.shape, tensor.dtype) == (ends[0][1].shape, ends[0][1].dtype)
                    ends[0][1].copy_(tensor)
                    self._close(rank, batch, message)
                    self._close(peer, other, ends[0])
                    return True
        return False

    def _close(self, rank, batch, message):
        batch.open = [m for m in batch.open if m is not message]
        if not batch.open:
            batch.is_done = True
            self.queues[rank].popleft()


@dataclass(frozen=True)
class Member:
    """The process group of a rank: its end of a communicator."""

    communicator: Communicator
    rank: int
    ask: object  # is called before CUDA is asked about a batch

    def _get_backend(self, device):
        assert device == torch.device("cuda")
        return self

    def abort(self):
        """End it; its memory is freed once no kernel of another one waits on the device."""
        time.sleep(0.02)
        self.communicator.aborted.add(self.rank)
        while any(each.holds_up(self.rank) for each in self.communicator.beside.values()):
            time.sleep(1e-3)


@dataclass(frozen=True)
class Work:
    member: Member
    batch: Batch

    def is_completed(self):
        self.member.ask()
        if self.member.communicator.broken:
            raise RuntimeError(self.member.communicator.broken)
        self.member.communicator.advance()
        return self.batch.is_done or bool(self.member.communicator.error)

    def wait(self):
        """Let the stream wait; an aborted communicator lets it go on, with whatever is there."""
        ours = self.member.communicator
        while not (ours.is_ahead or self.is_completed() or self.member.rank in ours.aborted):
            time.sleep(1e-4)
        if ours.error and not self.batch.is_done:
            raise RuntimeError(ours.error)


class StandIn(ThreadRanks):
    """The part of ``torch.distributed`` that the transport takes; every thread is a rank."""

    isend, irecv = SEND, RECEIVE
    P2POp = staticmethod(lambda op, tensor, peer, group: (group, [op, tensor, peer]))

    def __init__(self, size):
        super().__init__(range(size))
        self.size, self.made, self.deadlines, self.devices = size, {}, [], []
        self.is_capturing, self.may_ask = False, set()
        self.cuda = SimpleNamespace(
            current_device=lambda: 3,
            set_device=self.devices.append,
            is_current_stream_capturing=lambda: self.is_capturing,
        )

    def zeros(self, count, device):
        return torch.zeros(count)

    def make_group(self, ranks, backend, timeout_s):
        with self.lock:
            number = self.me.groups = self.me.groups + 1
            self.deadlines.append((backend, timeout_s))
            made = self.made.setdefault(number, Communicator(self.size, beside=self.made))
            return Member(made, self.me.rank, self.ask)

    def ask(self):
        asker = threading.current_thread()
        allowed = not self.is_capturing or asker in self.may_ask or asker.name != "messages"
        assert allowed, "CUDA refuses, and ends the capture"

    def all_reduce(self, tensor, group):
        with self.lock:
            group.communicator.joined.add(self.me.rank)

    def batch_isend_irecv(self, operations):
        (group,) = {group for group, _ in operations}
        batch = Batch([message for _, message in operations])
        group.communicator.put(self.me.rank, batch)
        return [Work(group, Batch([], is_done=True)), Work(group, batch)]  # torch may give several


@pytest.fixture
def make_ranks(monkeypatch):
    """Return the maker of ranks whose communicators keep the order."""

    def make(size):
        stand_in = StandIn(size)
        monkeypatch.setattr(nccl_transport, "make_group", stand_in.make_group)
        monkeypatch.setattr(nccl_transport, "torch", stand_in)
        allow = lambda: stand_in.may_ask.add(threading.current_thread())  # noqa: E731
        monkeypatch.setattr(nccl_transport, "allow_captures", allow, raising=False)
        return stand_in

    return make


@pytest.mark.parametrize(
    ("cluster", "choices", "wrap"),
    [
        (Cluster(1, 2), {}, {}),
        (Cluster(1, 4), {"layout": "native", "divisions": 4}, {}),
        (Cluster(2, 2), ONCE_PER_NODE, {}),
        (Cluster(2, 2), ONCE_PER_NODE, {"wrap": without_overlap}),
        (Cluster(2, 2), {"head_groups": 2}, {}),
    ],
    ids=["a pair", "a node", "once per node", "no overlap", "head groups"],
)
def test_plans_run_on_communicators_that_keep_the_order(lab, check_plan, cluster, choices, wrap):
    masks = [lab.MASKS["full"](130), lab.MASKS["blind_rows"](40)]
    check_plan(NcclTransport, lab.plan_of(masks, cluster=cluster, **choices), masks, **wrap)


@pytest.mark.parametrize("is_frugal", [False, True])
def test_two_hops_behind_the_first_in_one_division_do_not_stand_still(lab, check_plan, is_frugal):
    masks = [lab.MASKS["causal"](170)]
    plan = lab.striped(lab.plan_of(masks, cluster=Cluster(2, 4), divisions=2), is_frugal=is_frugal)
    table = plan.transfers
    for is_result in (False, True):
        chosen = (table.kind >= TransferKind.OUT) == is_result
        assert set(table.hop[chosen & (table.division == 1)]) == {0, 1, 2}
    check_plan(NcclTransport, plan, masks)


def ready(lab, transport, plan):
    """Prepare a plan of 120 tokens; return executor, prepared plan, and q, kv, dout of a rank."""
    executor = DCPExecutor(transport=transport)
    prepared, rows = executor.prepare(plan), torch.tensor(plan.local_tokens(transport.rank))
    q, kv, dout = (x[rows] for x in lab.random_qkv(1, 120, 4, 2, 8, torch.float32))
    prepared._check_tensors(q, kv)
    return executor, prepared, q, kv, dout


@pytest.fixture
def lost_by(lab, on_ranks):
    """Run a plan of three ranks, of which one leaves; give what the others raise."""
    plan = lab.plan_of([("full", 120)], 3, block=8)

    def run(away, leave=lambda transport: None):
        def work(transport):
            _, prepared, q, kv, _ = ready(lab, transport, plan)
            return leave(transport) if transport.rank == away else prepared.forward(q, kv)

        found = on_ranks(NcclTransport, 3, work, TIMEOUT_S)
        del found[away]
        assert all(isinstance(error, RunError) for error in found)
        assert [error.rank for error in found] == [away] * 2
        return found

    return run


SLOW = pytest.mark.slow  # the time limit passes in each


@pytest.mark.parametrize("away", [1, pytest.param(0, marks=SLOW), pytest.param(2, marks=SLOW)])
def test_a_rank_that_stays_away_is_named_in_time(lost_by, on_ranks, away):
    for error in lost_by(away):
        assert error.division is not None
        assert f"rank {away} is dead or stalled" in str(error)
    communicators = [on_ranks.made.made[number] for number in (1, 2)]
    assert [len(each.aborted) for each in communicators] == [2, 2], "kernels would wait on the GPU"
    for backend, timeout_s in on_ranks.made.deadlines:
        assert backend == "gloo" or timeout_s > 2 * TIMEOUT_S, "the watchdog would be first"


def test_a_broken_communicator_is_told_with_the_rank_that_left(lost_by):
    def leave(transport):
        for member in transport._groups:
            member.communicator.error = "remote process exited"

    lost_by(1, leave)


@pytest.fixture
def ahead(lab, on_ranks):
    """Run ``work(transport, layer)`` on two ranks while no message arrives and no host waits."""
    plan = lab.plan_of([("full", 120)], 2, block=8)

    def run(work):
        def run_rank(transport):
            executor, prepared, q, kv, dout = ready(lab, transport, plan)
            let_run_ahead(transport, True)

            def layer():
                out, lse = prepared.forward(q, kv)
                prepared.backward(q, kv, out, lse, dout)

            return work(transport, executor, layer)

        return on_ranks(NcclTransport, 2, run_rank, TIMEOUT_S)

    return run


def let_run_ahead(transport, is_ahead):
    transport.exchange_notes("", "before")
    for member in transport._groups:
        member.communicator.is_ahead = is_ahead
    transport.exchange_notes("", "after")


def closes_rank_1(transport, failure):
    """Close rank 1 and let the communicators of the others fail; return whether this is rank 1."""
    if transport.rank == 1:
        transport.close()
    transport.exchange_notes("", "one is closed")
    if transport.rank != 1:
        for member in transport._groups:
            setattr(member.communicator, failure, "remote process exited")
    return transport.rank == 1


def test_ranks_that_come_to_different_places_are_told(on_ranks):
    found = on_ranks(NcclTransport, 2, lambda t: t.exchange_notes("", f"step {t.rank}"))
    assert [type(error) for error in found] == [RunError] * 2
    assert "step 1" in str(found[0])


def until(is_so):
    deadline = time.monotonic() + 60
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_layers_are_queued_before_any_message_arrives(ahead, on_ranks):
    def work(transport, executor, layer):
        layer()
        layer()
        assert transport in group_transport._with_threads, "Python would end before its thread"
        early = [event for event in executor._recorder().events if event.kind == "receive"]
        let_run_ahead(transport, False)
        trace = executor.trace()  # waits for the messages
        return len(early), np.count_nonzero(trace.kind == EVENT_KINDS.index("receive"))

    for early, late in ahead(work):
        assert early == 0
        assert late > 0
        assert late % 2 == 0
    assert on_ranks.made.devices == [3, 3], "threads would make contexts on other devices"


def test_messages_of_a_layer_are_let_go_once_they_have_come(ahead):
    def work(transport, executor, layer):
        sent, start = [], transport.start

        def noted(parcels):
            sent.extend(map(weakref.ref, parcels))
            start(parcels)

        transport.start = noted
        let_run_ahead(transport, False)
        layer()
        executor.trace()  # waits for the messages
        until(lambda: all(parcel() is None for parcel in sent))
        return bool(sent), [parcel for parcel in sent if parcel() is not None]

    assert ahead(work) == [(True, []), (True, [])]


@pytest.mark.parametrize("failure", ["error", "broken"])
def test_a_failure_behind_the_host_is_raised_by_its_next_call(ahead, failure):
    def work(transport, executor, layer):
        layer()
        if closes_rank_1(transport, failure):
            return None
        until(lambda: transport._failure)
        for call in (layer, lambda: transport.exchange_notes("", "prepare")):
            with pytest.raises(RunError, match=r"rank 1 is dead or stalled.*remote process exited"):
                call()
        return "told"  # the communicators have ended: none waited for the kernels of the other

    assert ahead(work) == ["told", None]


def test_a_communicator_that_failed_ends_before_the_ranks_agree(ahead):
    """torch ends a process that does not end it at once; other ranks have heard of it by then."""

    def work(transport, executor, layer):
        layer()
        seen, settle = [], transport._failures.settle

        def noted(status):
            ended = [transport.rank in member.communicator.aborted for member in transport._groups]
            seen.append((transport._failures.is_marked(), *ended))
            return settle(status)

        transport._failures.settle = noted
        if closes_rank_1(transport, "error"):
            return None
        until(lambda: transport._failure)
        return seen

    assert ahead(work) == [[(True, True, True)], None]


def test_a_gpu_that_refuses_its_work_is_the_fault_of_its_own_rank(ahead, on_ranks):
    def work(transport, executor, layer):
        layer()
        transport.exchange_notes("", "both have begun")
        if transport.rank == 0:
            with pytest.raises(RunError) as caught:
                transport.catch_up()  # sees the mark of the other rank
        else:
            Work.is_completed = refuse
            until(lambda: transport._failure)
            with pytest.raises(RunError) as caught:
                layer()
        return str(caught.value)

    known = Work.is_completed

    def refuse(self):
        if self.member.rank == 1:
            raise torch.AcceleratorError("CUDA error: an illegal memory access")
        return known(self)

    try:
        said = ahead(work)
    finally:
        Work.is_completed = known
    assert said[0] == said[1]
    # Nothing more is asked of the GPU of rank 1.
    assert [on_ranks.made.made[number].aborted for number in (1, 2)] == [{0}, {0}]
    assert re.match(r"rank 1 failed in division \d+ of forward: AcceleratorError: CUDA", said[0])


def test_a_communicator_that_ends_under_a_call_is_no_fault_of_this_rank(ahead):
    def work(transport, executor, layer):
        if transport.rank == 1:
            return None

        def end(is_result, parcels):
            batch = MessageBatch(parcels, ())
            transport._give_up(batch, "forward", 0, RuntimeError("remote process exited"))
            raise RuntimeError("NCCL communicator was aborted on rank 0.")

        transport._start_batch = end
        with pytest.raises(RunError, match=r"rank 1 is dead or stalled.*remote process exited"):
            layer()
        return transport.rank

    assert ahead(work) == [0, None]


@pytest.mark.parametrize("teller", ["step", "close"])
def test_a_lost_message_is_told_before_an_optimizer_steps_or_the_executor_is_closed(ahead, teller):
    def work(transport, executor, layer):
        weight = torch.ones(1, requires_grad=True)
        weight.grad = torch.ones(1)
        optimizer = torch.optim.SGD([weight], lr=0.25)  # the first imports much of torch
        layer()
        if closes_rank_1(transport, "error"):
            return None
        with pytest.raises(RunError, match=r"rank 1 is dead or stalled.*remote process exited"):
            optimizer.step() if teller == "step" else executor.close()
        untouched = weight.item()
        executor.close()  # says it once
        optimizer.step()  # is not held by an executor that is closed
        return untouched, weight.item()

    assert ahead(work) == [(1, 0.75), None]


def test_a_rank_that_closed_its_executor_is_named_by_the_thread(ahead):
    def go_on(executor, layer):
        layer()
        executor.close()

    def work(transport, executor, layer):
        if transport.rank == 1:
            executor._batches._batches.clear()  # it leaves without a word about its layers
            return executor.close()
        says = "rank 1 closed its executor after prepared batch 1; rank 0 waits for it in division"
        with pytest.raises(RunError, match=says):  # sooner or later
            go_on(executor, layer)

    assert ahead(work) == [None, None]


def test_a_step_waits_for_all_messages_also_where_they_take_longer_than_one_may(ahead):
    def work(transport, executor, layer):
        optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.25)
        layer()
        time.sleep(0.1)  # the thread has begun to count
        transport.timeout_s = 0.05
        threading.Timer(0.6, let_run_ahead, (transport, False)).start()
        optimizer.step()
        return transport._latest.wait(0)

    assert ahead(work) == [True, True]


def test_a_step_inside_a_backward_pass_lets_the_host_run_ahead(ahead):
    def work(transport, executor, layer):
        stepped, weight = [], torch.ones(1, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.25)

        def step(_):
            optimizer.step()
            stepped.append(transport._latest.is_set())

        weight.register_post_accumulate_grad_hook(step)
        layer()
        weight.sum().backward()
        let_run_ahead(transport, False)
        transport.catch_up()
        return stepped, weight.item()

    assert ahead(work) == [([False], 0.75)] * 2


def test_a_rank_that_fails_ahead_of_its_messages_is_to_blame_itself(ahead):
    def work(transport, executor, layer):
        if transport.rank == 1:
            layer()
            transport.report("forward", 2, ValueError("out of memory"))
            return transport._watcher.join(4 * nccl_transport.POLL_S)  # sees the mark
        time.sleep(4 * nccl_transport.POLL_S)
        layer()
        until(lambda: transport._failure)
        return layer()

    first, second = ahead(work)
    assert second is None
    assert "rank 1 failed in division 2 of forward: ValueError: out of memory" in str(first)


def test_messages_from_before_a_capture_are_watched_while_it_goes_on(ahead, on_ranks):
    def work(transport, executor, layer):
        layer()
        transport.exchange_notes("", "before")
        on_ranks.made.is_capturing = True
        let_run_ahead(transport, False)
        transport.catch_up()
        return transport._failure

    assert ahead(work) == [None, None]
    assert len(on_ranks.made.may_ask) == 2


def test_a_thread_tells_cuda_that_it_leaves_captures_alone(monkeypatch):
    told = []

    def library(name):
        exchange = lambda mode: told.append((name, mode._obj.value))  # noqa: E731
        return SimpleNamespace(cuThreadExchangeStreamCaptureMode=exchange)

    monkeypatch.setattr(nccl_transport.ctypes, "CDLL", library)
    nccl_transport.allow_captures()
    assert told == [("libcuda.so.1", 1)]  # thread-local, in cuda.h


def test_captured_calls_are_not_watched(ahead, on_ranks):
    def work(transport, executor, layer):
        on_ranks.made.is_capturing = True
        layer()
        executor.trace()  # waits for nothing
        return transport._watcher

    assert ahead(work) == [None, None]
