"""The transport of gloo on ranks that are threads: messages, traces on one clock, its end."""

import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from test_transports import lone_transport, parcel_of
from thread_group import ThreadRanks

from dcp_planner import Cluster, TransferKind
from dcp_planner.simulation import EVENT_KINDS
from dcp_runtime.plans.device_plan import prepare_device
from dcp_runtime.transport import group_transport, recorder
from dcp_runtime.transport.gloo_transport import UNUSED_TAG, GlooTransport
from dcp_runtime.transport.recorder import Event, Recorder


def leaving(plan):
    """Return the bundles that devices send in both directions, each with its source."""
    return [
        (device, bundle)
        for device in range(plan.num_devices)
        for part in (prepare_device(plan, device, 16),)
        for *_, bundles in (*part.forward.steps, *part.backward.steps)
        for bundle in bundles
        if bundle.is_send
    ]


@pytest.mark.parametrize("is_frugal", [False, True])
def test_plans_are_exact_and_no_two_messages_of_a_group_share_a_tag(
    lab, on_ranks, check_plan, is_frugal
):
    masks = [lab.MASKS["causal"](170)]
    plan = lab.plan_of(masks, cluster=Cluster(2, 2), divisions=2)
    plan = lab.striped(plan, is_frugal=is_frugal)
    assert plan.transfers.hop.max() == 1
    check_plan(GlooTransport, plan, masks)
    table, sent = plan.transfers, {}
    for (group, source, target, tag), count in on_ranks.made.posted.items():
        if tag >= 0:
            parts = sent.setdefault((group, source, target, tag // 8), {})
            parts[tag % 8] = count
    assert set(sent) == {
        (1 + int(bundle.is_result), 3 * source + 1, 3 * bundle.peer + 1, bundle.index)
        for source, bundle in leaving(plan)
    }
    for (*_, number), parts in sent.items():  # of two layers
        kind, is_backward = TransferKind(table.kind[number]), table.is_backward[number]
        count = {TransferKind.Q: 4 if is_backward else 1, TransferKind.OUT: 2}.get(kind, 1)
        assert parts == dict.fromkeys(range(count), 2)


def test_traces_of_all_ranks_lie_on_the_clock_of_rank_0(on_ranks, monkeypatch):
    """Every rank counts from another moment, and notes the same three events."""
    now, skew_ns = time.perf_counter_ns(), (0, 10**12, -(10**13))

    def of_rank():
        return skew_ns[on_ranks.made.ranks.index(on_ranks.made.me.rank)]

    clock = SimpleNamespace(perf_counter_ns=lambda: time.perf_counter_ns() + of_rank())
    monkeypatch.setattr(recorder, "time", clock)

    def work(transport):
        rank, began = transport.rank, now + of_rank()
        notes = Recorder(rank, is_on=True)
        notes.add(Event("attention", began + 500, began + 900 + rank, False, 1, f"é of {rank}"))
        notes.add(Event("send", began, began + 700, True, 2, "kv 3", 2 - rank, 64 + rank, 3))
        return transport.gather_timeline(notes)

    first, *others = on_ranks(GlooTransport, 3, work)
    assert others == [None, None]
    trace, uncertainty_ns = first.trace, round(1e9 * first.uncertainty_s)
    assert 0 < uncertainty_ns < 10**10
    assert (trace.source, trace.start_ns.min()) == ("measured", 0)
    found = {}
    for n in range(6):
        values = trace.device[n], EVENT_KINDS[trace.kind[n]], trace.name_of(n)
        found[values] = n
        assert (trace.is_backward[n], trace.division[n], trace.peer[n]) == (
            (False, 1, -1) if values[1] == "attention" else (True, 2, 2 - trace.device[n])
        )
    for rank in range(3):
        attends, sends = found[rank, "attention", f"é of {rank}"], found[rank, "send", "kv 3"]
        start, end = trace.start_ns, trace.end_ns
        assert (start[attends] - start[sends], end[sends] - start[sends]) == (500, 700)
        assert end[attends] - start[attends] == 400 + rank
        assert start[sends] <= uncertainty_ns
        assert (trace.size_bytes[sends], trace.transfer[sends]) == (64 + rank, 3)
    assert (trace.ready_ns == trace.start_ns).all()


def test_the_shortest_ping_gives_the_offset_and_half_of_it_the_error(monkeypatch):
    """Round trips of 90, 80, ... ns but one of 11, whose answer came 1,000 ns later there."""
    trips = [90, 80, 11, 12, 70, 60, 50, 40]
    now, told = [0], []

    def recv(tensor, source, group):
        trip = trips[len(told) - 1]
        tensor[0] = now[0] + (8000 if trip == 11 else 7000)
        now[0] += trip

    monkeypatch.setattr(recorder, "time", SimpleNamespace(perf_counter_ns=lambda: now[0]))
    stand_in = SimpleNamespace(
        get_global_rank=lambda group, peer: 10 * peer,
        send=lambda tensor, to, group: told.append((to, group)),
        recv=recv,
    )
    monkeypatch.setattr(recorder, "dist", stand_in)
    offset_ns, bound_ns = recorder._ping("group", 3)
    assert told == [(30, "group")] * 8
    assert bound_ns == 6  # half of 11, rounded up
    assert offset_ns == (170 + 181) // 2 - (170 + 8000)


def test_whoever_gathers_traces_knows_for_whom_it_waits(monkeypatch):
    told, empty = [], recorder._pack(*Recorder(1, is_on=True).table())

    @contextmanager
    def waiting_for(peer, place):
        told.append((peer, place))
        yield

    barrier = SimpleNamespace(
        exchange_notes=lambda note, place: told.append((note, place)), waiting_for=waiting_for
    )
    monkeypatch.setattr(recorder, "_ping", lambda group, peer: (0, 10 * peer))
    monkeypatch.setattr(recorder, "_receive", lambda group, peer: empty)
    monkeypatch.setattr(recorder, "_answer", lambda group: told.append("answers"))
    monkeypatch.setattr(recorder, "_send", lambda group, data: told.append(data == empty))
    for rank in (0, 2):
        stand_in = SimpleNamespace(
            get_rank=lambda group, rank=rank: rank, get_world_size=lambda group: 3
        )
        monkeypatch.setattr(recorder, "dist", stand_in)
        found = recorder.gather_timeline("group", barrier, Recorder(rank, is_on=True))
        assert found is None if rank else found.uncertainty_s == 30e-9
    place = "gathering the trace"
    assert told == [
        ("", place), (1, place), (2, place), ("", place), (0, place), "answers", True,
    ]  # fmt: skip


def test_a_relay_leaves_when_its_own_message_is_there(on_ranks):
    """Rank 0 waits for rank 1 first, which sends only once rank 0 has passed rank 2's block on."""

    def work(transport):
        def exchange(*parcels):
            transport.start(parcels)
            transport.wait(parcels, "forward")
            return parcels[0].tensors[0].tolist()

        part = SimpleNamespace(passed_on=frozenset({2} if transport.rank == 0 else ()))
        transport.begin(part, "forward", None)
        if transport.rank == 0:
            late, brought = (parcel_of(n, index=n) for n in (1, 2))
            relay = parcel_of(1, is_send=True, hop=1, brought_by=2, after=brought)
            relay.tensors = brought.tensors
            return exchange(late, brought, relay)
        if transport.rank == 2:
            return exchange(parcel_of(0, index=2, is_send=True, value=7.0))
        passed = exchange(parcel_of(0, hop=1))
        exchange(parcel_of(0, index=1, is_send=True, value=1.0 + passed[0]))
        return passed

    assert on_ranks(GlooTransport, 3, work) == [[8.0, 8.0], [7.0, 7.0], [7.0, 7.0]]


def test_closing_wakes_threads_that_wait_for_messages(threads, monkeypatch):
    ranks, asked = threads(GlooTransport, ThreadRanks([4, 7, 9])), []
    transport, irecv = lone_transport(ranks.ranks), ranks.irecv

    def noted(tensor, peer, group, tag):
        asked.append((peer, group.number, tag))
        return irecv(tensor, peer, group, tag)

    monkeypatch.setattr(ranks, "irecv", noted)
    parcels = [parcel_of(1), parcel_of(2, kind=TransferKind.OUT)]
    transport.start(parcels)
    lanes = transport._threads
    assert [(each.name, each.daemon) for each in lanes] == [
        ("receive inputs", True), ("send inputs", True), ("receive results", True),
        ("send results", True),
    ]  # fmt: skip
    transport.close()
    assert not any(thread.is_alive() for thread in lanes)
    assert (transport._queues, transport._threads) == ([], [])
    assert [parcel.error for parcel in parcels] == ["Connection closed by peer"] * 2
    assert asked == [(7, 1, 24), (9, 2, 24), (9, 1, UNUSED_TAG), (9, 2, UNUSED_TAG)]


def test_closing_what_is_idle_breaks_no_connection(threads):
    ranks = threads(GlooTransport, ThreadRanks([4, 7]))
    transport = lone_transport(ranks.ranks)
    transport._start_threads(torch.device("cpu"))
    lanes = transport._threads
    transport.close()
    assert not any(thread.is_alive() for thread in lanes)
    assert not ranks.mail
    transport.close()  # twice is once


def test_a_message_that_comes_too_late_is_an_error_of_its_parcel(threads):
    threads(GlooTransport, ThreadRanks([0, 1]))
    transport = lone_transport((0, 1))
    transport.timeout_s = 0.01
    parcel = parcel_of(1)
    transport.start([parcel])
    assert parcel.wait(60)
    transport.close()
    assert parcel.error == "Timed out waiting 1ms for recv operation"


def test_threads_give_up_before_the_host_does(monkeypatch):
    transport, told = lone_transport((0, 1)), []
    monkeypatch.setattr(transport, "_await", lambda *limits: told.append(limits))
    parcels = [parcel_of(1)]
    transport.wait(parcels, "backward")
    assert told == [(parcels, "backward", 2 * transport.timeout_s + 5, group_transport.POLL_S)]
