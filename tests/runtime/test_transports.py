"""Transports when a rank fails, one step at a time."""

import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from thread_group import Group
from torch.distributed import HashStore

from dcp_planner import TransferKind
from dcp_planner.tables import CommWait
from dcp_runtime import RunError
from dcp_runtime.errors import PeerError
from dcp_runtime.execute.interpreter import Interpreter
from dcp_runtime.plans.transfers import Bundle, Transfer
from dcp_runtime.transport import gloo_transport
from dcp_runtime.transport.failure_registry import FailureRegistry, Status
from dcp_runtime.transport.gloo_transport import GlooTransport
from dcp_runtime.transport.loopback import LoopbackTransport, LoopbackWorld
from dcp_runtime.transport.recorder import Recorder
from dcp_runtime.transport.transport import Parcel


def parcel_of(peer, *, after=None, value=0.0, **others):
    """Return a parcel of one block; `others` are fields of its transfer."""
    fields = {
        "index": 3, "kind": TransferKind.KV, "block": 1, "name": "kv 1", "num_tokens": 2,
        "is_send": False, "row": 0, "slot": 0, "hop": 0, "brought_by": -1,
    }  # fmt: skip
    transfer = Transfer(peer=peer, **(fields | others))
    return Parcel(Bundle.of([transfer]), (torch.full((2,), value),), 4, after)


def lone_transport(ranks):
    """Return the transport of the first rank of a group, whose other ranks are never there."""
    transport = GlooTransport.__new__(GlooTransport)
    transport.rank, transport._ranks = 0, list(ranks)
    transport.timeout_s, transport._passed_on = 60.0, frozenset()
    transport._groups = [Group(tuple(ranks), number, "gloo", 1.0, ranks[0]) for number in (1, 2)]
    transport._queues, transport._threads = [], []
    return transport


@pytest.fixture
def short_grace(monkeypatch):
    monkeypatch.setattr("dcp_runtime.transport.failure_registry.GRACE_S", 0.05)


@pytest.fixture
def gloo(short_grace):
    """Return a rank's transport without a group, whose failure registry keeps what it is told."""
    transport = lone_transport(range(3))
    transport._failures, transport._queues = FailureRegistry(HashStore(), 0), [None]
    return transport


def test_what_follows_a_lost_message_is_not_sent(gloo, monkeypatch):
    monkeypatch.setattr(gloo_transport.dist, "isend", lambda *_, **__: pytest.fail("sent"))
    first = parcel_of(2, is_send=False)
    second = parcel_of(1, is_send=True, after=first)
    gloo.start([second])
    first.finish("Connection reset")
    assert second.error == "Connection reset"


def test_a_connection_that_is_gone_shows_at_the_wait(gloo, monkeypatch):
    gone = Mock(side_effect=RuntimeError("Connection closed by peer"))
    monkeypatch.setattr(gloo_transport.dist, "isend", gone)
    parcel = parcel_of(2, is_send=True)
    gloo.start([parcel])
    with pytest.raises(PeerError, match=r"rank 2 is dead or stalled.* until its connection broke"):
        gloo.wait([parcel], "forward")


@pytest.mark.parametrize("error", [None, "Timed out"])
def test_who_should_have_sent_what_is_forwarded_is_to_blame(gloo, error):
    first = parcel_of(2, is_send=False)
    second = parcel_of(1, is_send=True, after=first)
    if error is not None:
        first.finish(error)
        second.finish(error)
    with pytest.raises(PeerError, match="rank 2 is dead or stalled") as caught:
        raise gloo._blame(second, "backward")
    assert (caught.value.rank, caught.value.division) == (2, 4)


def test_a_wait_knows_who_came_last_and_refuses_what_is_infinite():
    early, late = parcel_of(1, is_send=False), parcel_of(2, is_send=False)
    early.end_ns, late.end_ns = 5, 9
    late.tensors[0][1] = torch.inf
    transport = SimpleNamespace(wait=lambda *_: None)
    ours = Interpreter(None, None, transport, Recorder(0, is_on=False), guard=True)
    with pytest.raises(RunError, match="rank 2 sent kv 1 with NaN or infinite values"):
        ours._wait(SimpleNamespace(direction="forward"), CommWait(0, 4), [late, early])
    assert ours.recorder.latest_peer == 2


def test_a_message_is_what_it_was_when_it_was_sent():
    world = LoopbackWorld(2)
    sent, received = parcel_of(1, is_send=True), parcel_of(0, is_send=False)
    sent.tensors[0].fill_(7)
    LoopbackTransport(world, 0).start([sent])
    sent.tensors[0].fill_(8)  # it has left: its rows hold another block by now
    LoopbackTransport(world, 1).start([received])
    assert received.tensors[0].tolist() == [7, 7]


def test_in_lockstep_one_rank_computes_at_a_time():
    together = threading.Barrier(2)

    def work(transport):
        with pytest.raises(threading.BrokenBarrierError):
            together.wait(0.3)
        together.reset()

    LoopbackWorld(2, lockstep=True).run(work)


def test_a_rank_that_writes_late_is_not_taken_for_dead():
    store = HashStore()
    late = threading.Timer(0.3, FailureRegistry(store, 1).raised, ("forward", 2, ValueError("bad")))
    late.start()
    error = FailureRegistry(store, 0).settle(Status("waiting", 1, "forward", 5, ""))
    late.join()
    assert str(error) == "rank 1 failed in division 2 of forward: ValueError: bad"


class SlowToGo:
    """Keeps Python shutting down while rank 1 leaves, which wakes whoever waits for it."""

    def __del__(self, sleep=time.sleep):
        sleep(3)


def main():
    """Be one of two ranks: rank 0 ends with exit code 7 while a message of rank 1 never comes."""
    rank = int(sys.argv[2])
    store = dist.FileStore(sys.argv[1], 2)
    limit = timedelta(seconds=120)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=limit)
    transport = GlooTransport(None, 120)
    if rank == 1:
        transport.exchange_notes("", "leaving")
        time.sleep(1.5)
        os._exit(0)
    bundle = SimpleNamespace(is_result=False, peer=1, index=0, is_send=False)
    transport.start([Parcel(bundle, (torch.zeros(4),), 0)])
    transport.exchange_notes("", "leaving")
    sys.modules["builtins"].slow_to_go = SlowToGo()
    sys.exit(7)


@pytest.mark.dist
def test_a_rank_that_ends_while_a_message_is_under_way_keeps_its_exit_code(tmp_path, start_python):
    other, rank = (
        start_python(Path(__file__), tmp_path / "store", number, folder=tmp_path, TAKE_APART="1")
        for number in (1, 0)
    )
    assert rank.wait(200) == 7, rank.err.read_text()
    assert other.wait(200) == 0, other.err.read_text()


if __name__ == "__main__":
    main()
