"""Emulated clusters: a fabric by hand, the simulator as a second opinion, the command."""

import json
import threading
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from dcp_dsl import Sample, Spec, block_sparsity
from dcp_dsl.cli import dcpm
from dcp_planner import (
    Cluster,
    ModelShape,
    PlanConfig,
    TransferKind,
    build_plan,
    preset,
    read_plan,
    simulate,
    write_plan,
)
from dcp_planner.simulation import EVENT_KINDS, StreamPorts
from dcp_planner.simulation.simulator import PlanModel
from dcp_runtime.emulation import emulate
from dcp_runtime.emulation.clocks import DilatedClock, VirtualClock
from dcp_runtime.emulation.emulate import Emulation, emulate_once, emulate_plan, held_by_hosts
from dcp_runtime.emulation.fabric import Costs, Fabric
from dcp_runtime.emulation.report import to_text
from dcp_runtime.errors import RunError
from dcp_runtime.plans.transfers import Bundle, Transfer
from dcp_runtime.transport.gloo_transport import GlooTransport
from dcp_runtime.transport.nccl_transport import NcclTransport
from dcp_runtime.transport.transport import Parcel

MS = 1_000_000


def costs(streams, ports, messages, order="any"):
    """Return the costs of messages ``(stream, busy ms, latency ms)`` between given ports."""
    stream, busy, latency = np.array(messages, np.int64).reshape(-1, 3).T
    shared = StreamPorts(np.array(streams).T.copy(), np.zeros(len(streams), np.int64), ports)
    return Costs(stream, shared, busy * MS, latency * MS, order)


def parcel(number, *, is_send, after=None):
    transfer = Transfer(number, TransferKind.KV, 0, "kv 0", 1, 0, is_send, 0, 0, 0, -1)
    return Parcel(Bundle.of([transfer]), (), 0, after)


def play(made, work):
    """Run a rank per entry of `work`: what it posts at which ms. Return the ends, in ms."""
    ends = {}

    def run(rank):
        at = 0
        parcels = []
        for when, number, is_send in work[rank]:
            clock.sleep((when - at) * MS)
            at = when
            each = parcel(number, is_send=is_send)
            parcels.append((number, is_send, each))
            clock.post(each)
        clock.wait([each for *_, each in parcels])
        for number, is_send, each in parcels:
            ends[number, "sent" if is_send else "got"] = each.end_ns / MS

    clock = VirtualClock(len(work), Fabric(made))
    clock.run(run)
    return ends


def test_two_messages_from_one_port_get_half_of_it_each():
    made = costs([(0, 1), (0, 2)], 3, [(0, 4, 0), (1, 8, 0)])
    ends = play(made, [
        [(0, 0, True), (0, 1, True)], [(0, 0, False)], [(0, 1, False)],
    ])  # fmt: skip
    # Both at a half until 8 ms; then the longer one has 4 ms of work left and the port alone.
    assert ends[0, "sent"] == ends[0, "got"] == 8
    assert ends[1, "sent"] == ends[1, "got"] == 12


def test_two_messages_into_one_port_where_one_comes_later():
    made = costs([(0, 2), (1, 2)], 3, [(0, 4, 1), (1, 4, 1)])
    ends = play(made, [
        [(0, 0, True)], [(2, 1, True)], [(0, 0, False), (0, 1, False)],
    ])  # fmt: skip
    # Alone for 2 ms, a half each until 6 ms, then 2 ms alone. Each arrives 1 ms later.
    assert ends == {(0, "sent"): 6, (0, "got"): 7, (1, "sent"): 8, (1, "got"): 9}


def test_messages_of_one_connection_go_one_after_the_other_lowest_first():
    messages = [(0, 3, 0), (0, 2, 0), (0, 1, 0)]
    # The receiver waits already, and 2 is ready first: it has left before others can go.
    work = [[(1, n, True) for n in (2, 1, 0)], [(0, n, False) for n in range(3)]]
    lowest = play(costs([(0, 1)], 2, messages), work)
    assert [lowest[n, "got"] for n in (2, 0, 1)] == [2, 5, 7]
    fifo = play(costs([(0, 1)], 2, messages, "fifo"), work)
    assert [fifo[n, "got"] for n in (2, 1, 0)] == [2, 4, 7]


def test_a_share_that_one_port_does_not_give_goes_to_others():
    # Three messages enter port 1; one of their senders has another message, for a free port.
    streams = [(0, 1), (2, 1), (3, 1), (0, 4)]
    made = costs(streams, 5, [(0, 6, 0), (1, 6, 0), (2, 6, 0), (3, 6, 0)])
    ends = play(made, [
        [(0, 0, True), (0, 3, True)], [(0, 0, False), (0, 1, False), (0, 2, False)],
        [(0, 1, True)], [(0, 2, True)], [(0, 3, False)],
    ])  # fmt: skip
    # A third each into port 1, so the fourth has two thirds of port 0: 9 ms.
    assert ends[3, "got"] == pytest.approx(9)
    assert [ends[n, "got"] for n in range(3)] == pytest.approx([18, 18, 18])


@pytest.fixture(scope="module")
def plans(lab):
    """Return a function that plans a causal batch; plans are made once."""
    made = {}

    def plan_for(layout, order="any", size=(2, 4), **constants):
        key = layout, order, size, *constants.items()
        if key not in made:
            cluster = replace(preset("a100-p4de", *size), message_order=order, **constants)
            made[key] = lab.plan_of(
                [("causal", 3000), ("causal", 900)], block=128, heads=(8, 2, 128), dtype_bytes=2,
                cluster=cluster, layout=layout, divisions=3,
            )  # fmt: skip
        return made[key]

    return plan_for


@pytest.mark.parametrize(
    ("layout", "order"),
    [
        ("static:ring", "grouped"), ("static:grid", "fifo"), ("static:heads_context", "grouped"),
        ("native", "fifo"),
    ],
)  # fmt: skip
def test_every_rank_does_what_the_simulator_plays(plans, layout, order):
    """The event loop and the interpreter on its fabric share the rule of ports, nothing else."""
    plan = plans(layout, order, port_sharing="fair")
    found, expected = emulate_once(plan), simulate(plan)
    for kind in ("attention", "reduction", "send", "receive"):
        chosen = [
            sorted(zip(t.device[rows].tolist(), t.division[rows].tolist(), strict=True))
            for t in (found, expected)
            for rows in [np.flatnonzero(t.kind == emulate.EVENT_KINDS.index(kind))]
        ]  # fmt: skip
        assert chosen[0] == chosen[1]
    assert found.source == "measured"
    assert found.seconds() == pytest.approx(expected.seconds(), rel=0.01)


def test_the_same_run_gives_the_same_times(plans):
    plan = plans("portfolio", "grouped")
    first, again = emulate_once(plan), emulate_once(plan)
    assert first.seconds() == again.seconds()
    assert np.array_equal(first.end_ns, again.end_ns)


def test_hosts_that_need_longer_hold_the_devices_up(plans):
    plan = plans("static:ring", "grouped", pass_s=0.01)
    trace, expected = emulate_once(plan), simulate(plan)
    assert expected.seconds(is_backward=False) > 0.01
    assert trace.seconds(is_backward=False) == expected.seconds(is_backward=False)
    assert trace.seconds() == expected.seconds()


def test_nothing_is_added_where_the_host_is_fast(plans):
    trace = emulate_once(plans("static:ring", "grouped"))
    same = held_by_hosts(trace, {"forward": 0, "backward": 0}, 8)
    assert np.array_equal(same.start_ns, trace.start_ns)


def test_dilated_time_gives_the_times_of_virtual_time(plans):
    plan = plans("static:ring", "grouped")
    said = []
    found = emulate_plan(plan, 200.0, say=said.append)
    # A busy machine may make ranks late, but no rank is early.
    assert min(found.seconds) > 0.98 * found.virtual_s
    assert len(found.seconds) == emulate.REPEATS
    assert found.dilation == 200
    assert any("run 3 of 3" in text for text in said)


class Impatient(Exception):
    pass


@pytest.mark.parametrize("clock_of", [VirtualClock, lambda n, f: DilatedClock(n, f, 1e3)])
def test_a_rank_that_fails_ends_the_others(clock_of):
    clock = clock_of(3, Fabric(costs([(0, 1)], 2, [(0, 1, 0)])))

    def work(rank):
        if rank == 0:
            raise Impatient
        if rank == 1:
            clock.sleep(10**15)
        clock.wait([parcel(0, is_send=True)])

    before = threading.active_count()
    with pytest.raises(Impatient):
        clock.run(work)
    assert threading.active_count() == before


def test_messages_that_never_come_are_said():
    clock = VirtualClock(2, Fabric(costs([(0, 1)], 2, [(0, 1, 0)])))
    with pytest.raises(RunError, match=r"wait for messages that never come.*dcpm validate"):
        clock.run(lambda rank: clock.wait([parcel(0, is_send=True)]))


def test_ctrl_c_ends_all_ranks(monkeypatch):
    clock = DilatedClock(2, Fabric(costs([(0, 1)], 2, [(0, 1, 0)])), 1e3)
    join = threading.Thread.join

    def interrupted(thread, timeout=None):
        if timeout is None:
            return join(thread)
        monkeypatch.setattr(threading.Thread, "join", join)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        clock.run(lambda rank: clock.sleep(10**15))
    assert threading.active_count() == before


def test_the_machine_that_adds_too_much_is_said_and_asked_again(plans, monkeypatch):
    plan, asked = plans("static:ring", "grouped"), []
    trace = emulate_once(plan)
    late = replace(trace, end_ns=trace.end_ns * 2)

    def repeat(setting, dilation, say):
        asked.append(dilation)
        return [late] * 3

    monkeypatch.setattr(emulate, "_repeat", repeat)
    found = emulate_plan(plan)
    assert asked == [asked[0], asked[0] * 2.5, asked[0] * 6.25]
    assert found.host_share > 0.05
    text = to_text(found)
    assert f"stop other programs, or say --dilation {found.dilation * 4:g}" in text
    asked.clear()
    assert emulate_plan(plan, 7.0).dilation == 7
    assert asked == [7]


def test_text_of_a_quiet_run(plans):
    trace = emulate_once(plans("static:ring", "grouped"))
    text = to_text(Emulation(8, 50, 1e-3, 1e-3, (1.01e-3, 1.02e-3, 1.0e-3), trace, True))
    assert "measured / predicted 1.010" in text
    assert "3 runs within 2.0%; this machine added 1.0% to 1.000 ms in virtual time" in text
    assert "It cannot show the time of kernels" in " ".join(text.split())
    assert "stop other programs" not in text


def run(path, *options):
    return CliRunner().invoke(dcpm, ["run", str(path), *options])


@pytest.fixture
def plan_file(plans, tmp_path):
    path = tmp_path / "small.dcpplan"
    write_plan(path, plans("static:ring", "grouped", (1, 2)))
    return path


def test_the_command_writes_prediction_and_measurement_side_by_side(plan_file, tmp_path):
    out = tmp_path / "both.dcpplan"
    result = run(plan_file, "--emulate", "--dilation", "20", "--json", "--trace", str(out))
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["schema"] == "dcp.emulate/1"
    assert document["devices"] == 2
    assert document["dilation"] == 20
    assert document["median_s"] == sorted(document["seconds"])[1]
    assert document["ratio"] == document["median_s"] / document["predicted_s"]
    assert [trace.source for trace in read_plan(out).traces] == ["simulated", "measured"]
    assert "run 3 of 3" in result.stderr


def test_the_command_says_what_it_measured(plan_file):
    result = run(plan_file, "--emulate", "--no-overlap")
    assert result.exit_code == 0, result.output
    assert "2 emulated devices" in result.stdout
    assert "predicted with overlap" in result.stdout


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--emulate", "--kernel", "cpu"], "--kernel changes nothing; leave it out"),
        (["--emulate", "--verify"], "--verify changes nothing; leave it out"),
        (["--dilation", "5"], "say --emulate, too"),
        (["--emulate", "--dilation", "fast"], "a number such as 200, or auto, got 'fast'"),
        (["--emulate", "--dilation", "0.5"], "a dilation of 1 to 1000000 real seconds"),
        (["--emulate", "--dilation", "nan"], "a dilation of 1 to 1000000 real seconds"),
    ],
)
def test_refused_options(plan_file, options, told):
    result = run(plan_file, *options)
    assert result.exit_code != 0
    assert told in " ".join(f"{result.output} {result.exception}".split())


def test_too_many_devices_are_refused_with_their_number(lab):
    plan = lab.plan_of([("causal", 100)], cluster=Cluster(5, 8), layout="static:ring")
    with pytest.raises(RunError, match=r"at most 32 devices to emulate, got 40; plan for fewer"):
        emulate_plan(plan)


CLUSTER = Cluster(
    2, 2, intra_bytes_per_s=2e9, inter_bytes_per_s=5e8, latency_s=2e-6, flops_per_s=1e12,
    comm_sms=1, sms=8, copy_bytes_per_s=1e10, port_sharing="fair",
    devices=((1, 0.97), (0.9, 1.06)),  # unequal, so that no two events are at one moment
)  # fmt: skip


def plan_for(order):
    mask = Spec.from_text("mask m = causal").mask("m")
    sparsity = block_sparsity([mask.bind(Sample(length=1024))], 128, 128)
    config = PlanConfig(partitioner="static:zigzag", divisions=3)
    cluster = replace(CLUSTER, message_order=order)
    plan = build_plan(sparsity, ModelShape(1, 1, 16, 4), cluster, config)
    assert plan.transfers.hop.max() > 0  # some messages are passed on
    return plan


def times_of(trace, kind):
    """End of each event of a kind, by direction, device, division, transfer and name, in ns."""
    rows = np.flatnonzero(trace.kind == EVENT_KINDS.index(kind)).tolist()
    return sorted(
        (
            bool(trace.is_backward[e]), int(trace.device[e]), int(trace.division[e]),
            int(trace.transfer[e]), trace.name_of(e), int(trace.end_ns[e]),
        )
        for e in rows
    )  # fmt: skip


def whole_messages(plan, found):
    """Set the end of blocks that travel together to that of the last one, as in a run."""
    last = {}
    for part in PlanModel.of(plan).directions.values():
        last |= dict(zip(part.rows.tolist(), part.rows[part.bundles.last].tolist(), strict=True))
    ends = {key[3]: key[5] for key in found}
    return [(*key[:5], ends[last[key[3]]]) for key in found]


@pytest.mark.parametrize("order", ["fifo", "grouped"])
def test_ranks_send_and_compute_at_the_times_that_are_predicted(order):
    plan = plan_for(order)
    measured, predicted = emulate_once(plan), simulate(plan)
    total_ns = predicted.seconds() * 1e9
    for kind in ("send", "receive"):
        expected = whole_messages(plan, times_of(predicted, kind))
        assert len(expected) > 30
        found = times_of(measured, kind)
        assert [key[:5] for key in found] == [key[:5] for key in expected]
        late = [a[5] - b[5] for a, b in zip(found, expected, strict=True)]
        assert np.median(np.abs(late)) <= 1
        assert np.abs(late).max() < 0.001 * total_ns
    for kind in ("attention", "reduction"):
        pairs = zip(times_of(measured, kind), times_of(predicted, kind), strict=True)
        assert all(abs(a[5] - b[5]) < 0.001 * total_ns for a, b in pairs)
    assert measured.seconds() == pytest.approx(predicted.seconds(), rel=0.001)


def test_any_order_takes_about_as_long_as_predicted():
    # The simulator sends the lowest block first, a rank the lowest of what it launches together.
    plan = plan_for("any")
    assert emulate_once(plan).seconds() == pytest.approx(simulate(plan).seconds(), rel=0.05)


def test_the_order_of_another_transport_would_not_fit():
    predicted = {order: simulate(plan_for(order)).seconds() for order in ("fifo", "grouped")}
    assert abs(predicted["fifo"] - predicted["grouped"]) > 0.05 * predicted["grouped"]


def test_presets_name_the_order_of_their_transport():
    assert preset("cpu-gloo").message_order == GlooTransport.message_order == "fifo"
    for name in ("a100-p4de", "h100-dgx", "h200-dgx", "b200-dgx"):
        assert preset(name).message_order == NcclTransport.message_order == "grouped"


RANKS = 4


def exposed(plan, *, overlap):
    """Return the share of the time for which the rank that waits longest waits."""
    trace = emulate_once(plan, overlap=overlap)
    return trace.lane_seconds("wait", RANKS).max() / trace.seconds()


def test_a_fifth_at_most_is_exposed_and_without_overlap_more_than_half():
    mask = Spec.from_text("mask m = causal").mask("m")
    sparsity = block_sparsity([mask.bind(Sample(length=32_768))], 1024, 1024)
    # The interpreter runs; devices and links are slow enough that messages weigh as much as tiles.
    cluster = Cluster(devices_per_node=RANKS, flops_per_s=9.6e9, intra_bytes_per_s=2.8e6)
    config = PlanConfig("static:zigzag", divisions=8)
    plan = build_plan(sparsity, ModelShape(1, 1, 16, 4), cluster, config)
    assert exposed(plan, overlap=True) <= 0.2
    assert exposed(plan, overlap=False) > 0.5


def test_nothing_is_exposed_where_nothing_travels():
    mask = Spec.from_text("mask m = causal").mask("m")
    sparsity = block_sparsity([mask.bind(Sample(length=64))] * RANKS, 16, 16)
    plan = build_plan(
        sparsity, ModelShape(1, 1, 16, 4), Cluster(1, RANKS), PlanConfig("static:documents")
    )
    assert not len(plan.transfers)
    assert exposed(plan, overlap=False) == pytest.approx(0)
