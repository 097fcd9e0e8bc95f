"""Traces of a device that works through a stream, with a stand-in for the stream and its events."""

from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
import torch

from dcp_planner.simulation import EVENT_KINDS
from dcp_runtime import DCPExecutor, DeviceRates, RunError
from dcp_runtime.execute.executor import TRACED_BATCHES
from dcp_runtime.transport import recorder as recorder_module
from dcp_runtime.transport.loopback import LoopbackWorld
from dcp_runtime.transport.recorder import Event, HostClock, Recorder, StreamClock, make_clock

IDLE = "stream without work"


@dataclass
class Stream:
    """A device that does what is queued one by one; time passes only as the test says."""

    now_ms: float = 1000.0
    free_ms: float = 1000.0
    waited: list = field(default_factory=list)
    rate: float = 1.0  # of the device's clock

    def perf_counter_ns(self):
        return round(1e6 * self.now_ms)

    def clock(self):
        return StreamClock(self.event, lambda: IDLE)

    def queue(self, ms):
        self.free_ms = max(self.free_ms, self.now_ms) + ms

    def event(self):
        return StreamEvent(self)


class StreamEvent:
    """Like ``torch.cuda.Event(enable_timing=True)``: has a time once its stream has come to it."""

    def __init__(self, stream):
        self.stream, self.at_ms = stream, None

    def record(self, stream=None):
        assert stream in (None, IDLE)
        self.at_ms = max(self.stream.free_ms, self.stream.now_ms)
        if stream == IDLE:
            self.at_ms = self.stream.now_ms

    def synchronize(self):
        self.stream.waited.append(self.at_ms)
        self.stream.now_ms = max(self.stream.now_ms, self.at_ms)

    def query(self):
        return self.stream.now_ms >= self.at_ms

    def elapsed_time(self, end):
        assert self.stream.now_ms >= end.at_ms, "not reached yet: torch raises here"
        return float(np.float32(self.stream.rate * (end.at_ms - self.at_ms)))  # as CUDA's


@pytest.fixture
def stream(monkeypatch):
    """A device whose time is that of the host's clock as well."""
    made = Stream()
    monkeypatch.setattr(recorder_module, "time", made)
    return made


def test_work_lasts_as_long_as_on_the_device_and_not_as_its_launch(stream):
    clock = stream.clock()
    before = len(stream.waited)
    recorder = Recorder(0, is_on=True, clock=clock)
    for division in range(2):
        start = clock.now()
        stream.queue(30.0)  # a launch returns at once
        recorder.add(Event("attention", start, clock.now(), False, division, "attention"))
    assert len(stream.waited) == before  # nobody waited while work was queued
    table, _ = recorder.table()
    assert (table[:, 1] - table[:, 0]).tolist() == [30_000_000, 30_000_000]
    assert table[1, 0] == table[0, 1]


def test_a_wait_is_exposed_only_while_the_device_has_nothing_to_do(stream):
    clock = stream.clock()
    recorder = Recorder(0, is_on=True, clock=clock)
    stream.queue(50.0)
    for arrives_after_ms in (20.0, 80.0):  # the device works on until 50
        start = clock.now()
        stream.now_ms = 1000.0 + arrives_after_ms  # the host waits for a message
        recorder.add(Event("wait", start, clock.now(), False, 0, "wait for inputs 0"))
    table, _ = recorder.table()
    assert (table[:, 1] - table[:, 0]).tolist() == [0, 30_000_000]
    assert (table[:, 4] == EVENT_KINDS.index("wait")).all()


def test_totals_of_a_device_are_those_of_its_events_once_it_is_done(stream):
    recorder = Recorder(0, is_on=True, clock=stream.clock())
    start = recorder.clock.now()
    stream.queue(30.0)
    recorder.add(Event("attention", start, recorder.clock.now(), False, 0, "attention"))
    recorder.add(Event("send", 1, 2, False, 0, "kv 1"))
    waits = len(stream.waited)
    assert recorder.spent_s() is None  # and nobody waited for the device
    assert len(stream.waited) == waits
    stream.now_ms += 40.0
    assert recorder.spent_s() == (0.03, 0.0, 0.0)
    assert Recorder(0, is_on=False, clock=recorder.clock).spent_s() is None


def test_waits_of_a_device_are_counted_for_the_rank_whose_message_came_last(stream):
    recorder = Recorder(0, is_on=True, clock=stream.clock())
    recorder.awaited_ns[4] = 1  # the host does not wait
    for layer in (0, 1):
        start = recorder.clock.now()
        stream.queue(30.0 + layer)
        recorder.add(Event("wait", start, recorder.clock.now(), False, 0, "wait for inputs 0"))
        end_ns = recorder.clock.read_ns([recorder.clock.now()])[0]
        for peer, early_ns in ((1, 0 if layer else 9), (2, 9 if layer else 0)):
            event = Event("receive", 1, end_ns - early_ns, False, 0, "kv 1", peer)
            recorder.add(event)
            recorder.add(event._replace(division=1, end=end_ns, peer=3))
            recorder.add(event._replace(is_backward=True, end=end_ns, peer=3))
    assert recorder.awaited() == {2: 30_000_000, 1: 31_000_000}


def test_device_and_messages_share_the_host_s_clock(stream):
    clock = stream.clock()
    moments = [clock.now(), 123, clock.now()]
    stream.queue(5.0)
    moments.append(clock.now())
    stream.queue(50.0)
    assert clock.read_ns(moments) == [1_000_000_000, 123, 1_000_000_000, 1_005_000_000]
    assert stream.now_ms < stream.free_ms  # nobody waited for work behind the last moment
    assert clock.read_ns([123]) == [123]


@pytest.mark.parametrize("hours", [0, 1, 10, 100])
def test_long_runs_are_timed_as_finely_as_short_ones(stream, hours):
    """CUDA returns float32 milliseconds: after ten hours they are 4 ms apart."""
    stream.rate = 1.0 + 1e-6  # of the device's clock against the host's
    recorder = Recorder(0, is_on=True, clock=stream.clock())
    recorder.add(Event("attention", recorder.clock.now(), recorder.clock.now(), False, 0, "a"))
    recorder.table()
    stream.now_ms += hours * 3.6e6 + 0.1
    start_ns = stream.perf_counter_ns()
    for _ in range(2000):
        start = recorder.clock.now()
        stream.queue(1.3)
        recorder.add(Event("attention", start, recorder.clock.now(), False, 0, "attention"))
    stream.now_ms = stream.free_ms + 700.0
    found = recorder.table()[0][1:, :2] - start_ns
    wanted = 1_300_000 * np.arange(2001)
    assert np.abs(np.diff(found) - 1_300_000).max() < 200
    assert np.abs(found - np.stack([wanted[:-1], wanted[1:]], 1)).max() < 10_000
    stream.now_ms += 3.6e6  # a trace that is read an hour later
    assert np.abs(np.diff(recorder.table()[0][1:, :2]) - 1_300_000).max() < 200


def test_the_cpu_is_timed_by_the_host():
    clock = make_clock(torch.device("cpu"))
    assert isinstance(clock, HostClock)
    moments = clock.read_ns([clock.now() for _ in range(3)])
    assert np.diff(moments).min() >= 0


def test_on_cuda_events_that_can_be_timed_are_used(stream, monkeypatch):
    asked = []

    def event(**options):
        asked.append(options)
        return stream.event()

    def idle_stream(device):
        asked.append(device)
        return IDLE

    monkeypatch.setattr(torch.cuda, "Event", event)
    monkeypatch.setattr(torch.cuda, "Stream", idle_stream)
    device = torch.device("cuda", 1)
    clock = make_clock(device)
    assert (asked, stream.waited) == ([], [])  # a graph may capture the first layer
    moments = clock.now(), clock.now()
    clock.read_ns(moments)
    clock.read_ns(moments)
    assert asked.count(device) == 1
    assert asked.count({"enable_timing": True}) == len(asked) - 1
    assert make_clock(device, clock) is clock


@pytest.fixture
def alone(lab):
    """A plan of one device, its queries, keys and values."""
    plan = lab.plan_of([("causal", 20)], block=8, heads=(2, 1, 4))
    return plan, *lab.random_qkv(0, 20, 2, 1, 4, torch.float32)[:2]


def test_the_first_batches_are_recorded_and_then_every_so_many(alone):
    plan, *qkv = alone

    def recorded(transport, **options):
        executor, found = DCPExecutor(transport=transport, **options), []
        for number in range(TRACED_BATCHES + 5):
            prepared = executor.prepare(plan)
            prepared.forward(*qkv)
            if prepared.recorder.events:
                found.append(number)
                assert len(executor.trace()) == len(prepared.recorder.events)
            else:
                with pytest.raises(RunError, match=f"of prepared batch {number + 1}: the first 16"):
                    executor.trace()
        return found

    first = list(range(TRACED_BATCHES))
    assert LoopbackWorld(1).run(recorded) == [first]
    assert LoopbackWorld(1).run(partial(recorded, trace_every=3)) == [[*first, 18]]
    with pytest.raises(RunError, match="expected trace_every to be at least 1, got -1"):
        LoopbackWorld(1).run(partial(recorded, trace_every=-1))


def test_rates_are_measured_of_a_device_that_is_a_batch_behind_the_host(alone, stream, monkeypatch):
    class Clock(StreamClock):
        def now(self):
            stream.queue(10.0)
            return super().now()

    clock = Clock(stream.event, lambda: IDLE)
    monkeypatch.setattr("dcp_runtime.execute.prepared_plan.make_clock", lambda *_: clock)
    plan, *qkv = alone
    rates, seconds = DeviceRates(plan.cluster, every=1), []
    monkeypatch.setattr(rates, "add", lambda work, spent: seconds.append(spent))

    def train(transport):
        executor, done_ms = DCPExecutor(transport=transport, rates=rates), stream.now_ms
        for _ in range(TRACED_BATCHES + 6):
            executor.prepare(plan).forward(*qkv)
            stream.now_ms, done_ms = done_ms, stream.free_ms  # done with the batch before

    LoopbackWorld(1).run(train)
    assert len(seconds) == TRACED_BATCHES + 4
    assert seconds == [pytest.approx(0.01)] * len(seconds)
