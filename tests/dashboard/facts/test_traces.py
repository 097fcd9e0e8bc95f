"""Events that a filter finds and memory over time, against loops over single events."""

import csv
import dataclasses
import gzip
import io
import re
from dataclasses import replace

import numpy as np
import pytest

from dcp_dashboard import DashboardError
from dcp_dashboard.api.devices import memory_over_time, memory_payload
from dcp_dashboard.api.encoding import decode
from dcp_dashboard.exports.files import events_csv
from dcp_dashboard.facts.traces import EventFilter, matching, read_filter
from dcp_dashboard.library.folder import plan_key
from dcp_dsl import Sample, Spec, block_sparsity
from dcp_planner import LANES, Cluster, ModelShape, PlanConfig, TransferKind, build_plan, simulate
from dcp_planner.causes.alternatives import workload_of
from dcp_planner.model.problem import Placement
from dcp_planner.schedule.divisions import Manner, Schedule
from dcp_planner.schedule.emission import assemble
from dcp_planner.simulation import EVENT_KINDS
from dcp_planner.tables import Reduction, measure_memory


def rows_of(trace):
    """Every event as a plain record, in the order of device, lane and start."""
    rows = [
        {
            "row": i, "device": int(trace.device[i]), "lane": LANES[trace.lane[i]],
            "kind": EVENT_KINDS[trace.kind[i]], "name": trace.name_of(i),
            "backward": bool(trace.is_backward[i]),
            "division": int(trace.division[i]), "peer": int(trace.peer[i]),
            "bytes": int(trace.size_bytes[i]), "start_ns": int(trace.start_ns[i]),
            "duration_ns": int(trace.end_ns[i] - trace.start_ns[i]),
        }
        for i in range(len(trace))
    ]  # fmt: skip
    return sorted(rows, key=lambda r: (r["device"], LANES.index(r["lane"]), r["start_ns"]))


@pytest.mark.parametrize(
    ("find", "wanted"),
    [
        ("gpu 2", lambda r: r["device"] == 2),
        ("division 1 kv", lambda r: r["division"] == 1 and "kv" in r["name"]),
        ("kv 1", lambda r: re.search(r"kv 1(?!\d)", r["name"]) is not None),
        ("DEVICE 1 backward attention",
         lambda r: r["device"] == 1 and r["backward"] and r["name"] == "attention"),
        ("to 3", lambda r: r["peer"] == 3),
        ("no such thing", lambda _: False),
        ("(", lambda _: False),
        ("  ", lambda _: True),
        (EventFilter(kinds=("send", "wait"), longer_ns=5_000),
         lambda r: r["kind"] in ("send", "wait") and r["duration_ns"] >= 5_000),
    ],
)  # fmt: skip
def test_a_search_finds_what_its_words_say(small_trace, find, wanted):
    found = [row["row"] for row in rows_of(small_trace) if wanted(row)]
    chosen = EventFilter(find=find) if isinstance(find, str) else find
    assert matching(small_trace, chosen).tolist() == found


@pytest.mark.parametrize("column", ["duration_ns", "name", "kind", "peer", "start_ns"])
def test_sorting_is_stable_in_both_directions(small_trace, column):
    def key(row):
        return EVENT_KINDS.index(row["kind"]) if column == "kind" else row[column]

    rows = rows_of(small_trace)
    rising = matching(small_trace, EventFilter(sort=column)).tolist()
    falling = matching(small_trace, EventFilter(sort=f"-{column}")).tolist()
    assert rising == [row["row"] for row in sorted(rows, key=key)]
    assert falling == [row["row"] for row in sorted(rows, key=key, reverse=True)]


@pytest.mark.parametrize(
    "query", [{"kinds": "sends"}, {"longer": "-3"}, {"longer": "1e9"}, {"sort": "__class__"}]
)
def test_a_filter_that_means_nothing_is_refused(query):
    with pytest.raises(DashboardError, match=r"expected .* got .*; leave"):
        read_filter(query)


def test_csv_holds_every_matching_event_once(small_trace):
    text = b"".join(events_csv([small_trace], EventFilter(kinds=("receive",)))).decode()
    found = list(csv.DictReader(io.StringIO(text)))
    rows = rows_of(small_trace)
    wanted = [(i, row) for i, row in enumerate(rows) if row["kind"] == "receive"]
    assert [(int(f["event"]), f["name"], int(f["duration_ns"])) for f in found] == [
        (i, row["name"], row["duration_ns"]) for i, row in wanted
    ]
    assert {f["source"] for f in found} == {"simulated"}


@pytest.mark.parametrize("name", ["=cmd()", "+1", "-1", "@SUM(A1)", "\tx"])
def test_a_name_is_no_formula_for_a_spreadsheet(small_trace, name):
    hostile = dataclasses.replace(small_trace, name=[0] * len(small_trace), names=(name,))
    text = b"".join(events_csv([hostile], EventFilter())).decode()
    assert {row["name"] for row in csv.DictReader(io.StringIO(text))} == {f"'{name}"}


def test_both_traces_are_in_one_file(client, small_trace):
    key = plan_key("small.dcpplan")
    answer = client.get(f"/api/plan/{key}/events.csv?source=both&find=gpu%201")
    lines = answer.data.decode().splitlines()
    assert len(lines) == 1 + 2 * np.count_nonzero(small_trace.device == 1)
    answer = client.get(f"/api/plan/{key}/trace.pftrace?source=both")
    assert b"device 3 (measured)" in answer.data
    assert b"device 3 (predicted)" in answer.data


def test_code_travels_compressed_and_data_as_it_is(client):
    accepts = {"Accept-Encoding": "gzip"}
    with (
        client.get("/assets/dashboard.bundle.js", headers=accepts) as script,
        client.get("/assets/dashboard.bundle.js") as plain,
    ):
        assert script.headers["Content-Encoding"] == "gzip"
        assert "Content-Encoding" not in plain.headers
        assert gzip.decompress(script.data) == plain.data
        assert len(script.data) < len(plain.data) / 2
    data = client.get(f"/api/plan/{plan_key('small.dcpplan')}/timeline", headers=accepts)
    assert "Content-Encoding" not in data.headers


@pytest.fixture(params=["small", "grouped", "large", "bytes", "lone"])
def plan(request, small_plan, grouped_plan, large_plan, lone_plan, small_choices):
    return {
        "small": small_plan, "grouped": grouped_plan, "large": large_plan,
        "bytes": small_choices[1], "lone": lone_plan,
    }[request.param]  # fmt: skip


def test_the_peak_is_what_the_plan_states(plan):
    trace = simulate(plan)
    header, columns = decode(memory_payload(trace, plan))
    stated = measure_memory(plan).peak
    for device in range(plan.num_devices):
        levels = [columns["saved"][device]]
        for way, name in enumerate(("forward", "backward")):
            at = way * plan.num_devices + device
            if columns["ended"][at] > columns["began"][at]:
                levels.append(columns[name][device])
        assert max(levels) == stated[device]
    assert header["limit_bytes"] == plan.cluster.memory_bytes


def test_buffers_are_never_fuller_than_they_are_large(plan):
    trace = simulate(plan)
    curves = memory_over_time(plan, trace)
    assert (curves.filled >= 0).all()
    for device in range(plan.num_devices):
        mine = slice(curves.ptr[device], curves.ptr[device + 1])
        time, filled = curves.time_ns[mine], curves.filled[mine]
        assert (np.diff(time) > 0).all()
        for way in (0, 1):
            began, ended = curves.began_ns[way, device], curves.ended_ns[way, device]
            during = filled[(time >= began) & (time < ended)]
            assert during.max(initial=0) <= curves.buffers[way, device]
        assert not len(filled) or filled[-1] == 0


def lives(plan, trace):
    """(device, start, end, bytes) of everything in receive buffers; each block arrives once."""
    transfers, shape, tiles = plan.transfers, plan.shape, plan.tiles
    events = list(zip(
        trace.lane.tolist(), trace.device.tolist(), trace.transfer.tolist(), trace.kind.tolist(),
        trace.is_backward.tolist(), trace.division.tolist(), trace.start_ns.tolist(),
        trace.end_ns.tolist(), strict=True,
    ))  # fmt: skip
    lane = {name: LANES.index(name) for name in LANES}
    row, keys = 4 * shape.q_heads * shape.head_dim, 8 * shape.kv_heads * shape.head_dim
    of = {"q": (TransferKind.OUT, TransferKind.DQ), "kv": (TransferKind.DKV,)}
    for x in range(len(transfers)):
        way, kind, block = (
            int(c[x]) for c in (transfers.is_backward, transfers.kind, transfers.block)
        )
        device, tokens = int(transfers.target[x]), int(plan.blocks.num_tokens[block])
        [(start, arrived)] = [e[6:] for e in events if e[0] == lane["receive"] and e[2] == x]
        ends, size = [arrived], int(transfers.size_bytes[x])
        if kind in (TransferKind.Q, TransferKind.KV):
            side = "q" if kind == TransferKind.Q else "kv"
            division = tiles.backward_division if way else tiles.division
            used = (tiles.q_block if side == "q" else tiles.kv_block) == block
            divisions = set(division[used & (tiles.device == device)].tolist())
            ends += [
                e[7]
                for e in events
                if EVENT_KINDS[e[3]] == "attention"
                and e[1] == device
                and e[4] == way
                and e[5] in divisions
            ]
            onward = [
                y
                for y in range(len(transfers))
                if transfers.source[y] == device
                and transfers.block[y] == block
                and transfers.is_backward[y] == way
                and transfers.kind[y] in (kind, *of[side])
            ]
            ends += [e[7] for e in events if e[0] == lane["send"] and e[2] in onward]
            if side == "q":
                size += tokens * (row if way else row + 4 * shape.q_heads)
            elif way:
                size += tokens * keys
        else:
            programs = plan.backward if way else plan.forward
            merges = [
                step.transfers
                for step in programs[device].instructions
                if isinstance(step, Reduction) and step.transfers
            ]
            merged = [
                (e[6], e[7])
                for e in events
                if EVENT_KINDS[e[3]] == "reduction" and e[1] == device and e[4] == way
            ]
            [at] = [n for n, members in enumerate(merges) if x in members]
            ends.append(sorted(merged)[at][1])
        yield device, start, max(ends), size


def causal_170():
    mask = Spec.from_text("mask causal_ = causal").mask("causal_")
    return block_sparsity([mask.bind(Sample({}, 170))], 16, 16)


def striped(plan):
    """Let blocks cross through all ports: devices merge partial results twice in a division."""
    tiles, manner = plan.tiles, Manner("node", is_striped=True)
    schedule = Schedule(tiles.division, tiles.backward_division, (manner, manner))
    placement = Placement(plan.blocks.owner, tiles.device)
    return assemble(workload_of(plan), plan.cluster, placement, schedule, "striped")


@pytest.mark.parametrize("is_striped", [False, True])
def test_buffers_hold_what_has_come_and_is_still_needed(small_plan, is_striped):
    if is_striped:
        config = PlanConfig("static:zigzag", divisions=3)
        cluster = Cluster(nodes=2, devices_per_node=4)
        small_plan = striped(build_plan(causal_170(), ModelShape(4, 2, 8, 4), cluster, config))
    slow = replace(small_plan.cluster, copy_bytes_per_s=1e10, kernel_launch_s=1e-6)
    small_plan = replace(small_plan, cluster=slow)
    trace = simulate(small_plan)
    assert EVENT_KINDS.index("reduction") in trace.kind
    curves, found = memory_over_time(small_plan, trace), list(lives(small_plan, trace))
    for device in range(small_plan.num_devices):
        mine = slice(curves.ptr[device], curves.ptr[device + 1])
        for time, filled in zip(curves.time_ns[mine], curves.filled[mine], strict=True):
            alive = [size for at, a, b, size in found if at == device and a <= time < b]
            assert filled == sum(alive), (device, time)
    assert curves.filled.max() > 0
