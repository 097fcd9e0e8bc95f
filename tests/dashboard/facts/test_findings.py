"""What the pages of a plan say of its time: causes, waits, gains, whatever the words."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from dcp_dashboard import create_app
from dcp_dashboard.api.devices import path_payload
from dcp_dashboard.api.encoding import decode
from dcp_dashboard.facts.comparison import Comparison, Side, compare_devices, compare_rows
from dcp_dashboard.facts.devices import device_facts, division_facts
from dcp_dashboard.facts.findings import answers, findings, longest_waits
from dcp_dashboard.facts.gain import SCOPES
from dcp_dashboard.facts.quantities import duration, percent
from dcp_dashboard.facts.tiles import event_facts, transfer_facts
from dcp_dashboard.facts.traces import EventFilter, find_waits, matching
from dcp_dashboard.library.folder import DashboardError, plan_key
from dcp_dashboard.library.plans import PlanLibrary, load_file
from dcp_dashboard.pages.plan_list import plan_list_page
from dcp_dsl import DCPError, Slabs, block_sparsity
from dcp_dsl.cli import dcpm
from dcp_planner import (
    LANES,
    Cluster,
    ModelShape,
    PlanConfig,
    PlanError,
    PlanFileError,
    Trace,
    build_plan,
    digest,
    read_plan,
    simulate,
    to_perfetto,
    write_plan,
)
from dcp_planner.causes import Explanation, static_plans, suggestions
from dcp_planner.model.problem import PlanWarning
from dcp_planner.tables import accumulator_bytes, receive_buffer_bytes

MS = 1_000_000
KIND = {"compute": 0, "send": 3, "receive": 4, "wait": 5}  # of EVENT_KINDS
# device, lane, start ms, end ms, backward, division, peer, name
EVENTS = [
    (0, "compute", 0, 10, 0, 0, -1, "attention"),
    (0, "send", 1, 7, 0, 1, 1, "kv 0"),
    (0, "send", 1, 5, 0, 1, 2, "kv 0"),
    (1, "compute", 0, 4, 0, 0, -1, "attention"),
    (1, "receive", 1, 7, 0, 1, 0, "kv 0"),
    (1, "receive", 2, 5, 0, 1, 2, "kv 4"),
    (1, "wait", 4, 7, 0, 1, -1, "wait"),
    (1, "compute", 7, 8, 0, 1, -1, "attention"),
    (2, "compute", 0, 4, 0, 0, -1, "attention"),
    (2, "receive", 1, 5, 0, 1, 0, "kv 0"),
    (2, "wait", 4, 5, 0, 1, -1, "wait"),
    (2, "compute", 5, 8, 0, 1, -1, "attention"),
]


def trace_of(events):
    rows = [
        (start * MS, end * MS, start * MS, device, KIND[lane], backward, division, peer, 0, -1)
        for device, lane, start, end, backward, division, peer, _ in events
    ]
    return Trace.of_rows("measured", np.array(rows, int).reshape(-1, 10), [e[-1] for e in events])


BUSY = [event for event in EVENTS if event[1] != "wait"]
ALONE = [event for event in EVENTS if event[1] not in ("send", "receive")]
LATER = [(2, "wait", 5 + i, 6 + i, 0, 1, -1, "wait") for i in (1, 3, 5)]
BACKWARD = [(d, lane, s + 20, e + 20, 1, div, p, n) for d, lane, s, e, _, div, p, n in EVENTS]


@pytest.mark.parametrize(
    ("events", "text"),
    [
        (EVENTS, "Device 1 waits 3␣ms in division 1 (forward) until the last message, kv 0, "
         "arrives from device 0."),
        (EVENTS + LATER, "Device 2 waits 4␣ms in division 1 (forward) until"),  # all of a division
        ([*EVENTS, *BACKWARD, (1, "wait", 28, 31, 1, 1, -1, "wait")],
         "Device 1 waits 6␣ms in division 1 (backward) until"),
        (ALONE, "Device 1 waits 3␣ms in division 1 (forward)."),
        (BUSY, "No device waits."),
    ],
)  # fmt: skip
def test_the_longest_wait_names_the_message_that_ended_it(events, text):
    finding = longest_waits(trace_of(events))[0]
    assert finding.text.replace("\u00a0", "␣").startswith(text)
    if events is EVENTS:
        assert finding.selected == "division.1~backward.0~device.1~peer.0"
        assert finding.time_ns == (4 * MS, 7 * MS)


def test_a_wait_is_ended_by_a_message_of_its_own_direction():
    late = (1, "receive", 2, 7, 1, 1, 2, "dkv 4")  # arrives last, in the next pass already
    kv = (1, "receive", 1, 6, 0, 1, 0, "kv 0")
    events = [kv if event[-1] == "kv 0" and event[:2] == kv[:2] else event for event in EVENTS]
    for order in (1, -1):
        (wait, *_) = find_waits(trace_of([*events, late][::order]), 5, device=1)
        assert (wait.peer, wait.message, wait.direction) == (0, "kv 0", "forward")


SHOWN_BY = {"links": "send", "latency": "receive", "launches": None, "waves": "compute",
            "tiles": "compute"}  # fmt: skip


def check_step(trace, finding, lane):
    """The finding selects an event of a lane, and shows time of that event or just before it."""
    number = int(re.match(r"event\.(\d+)~source\.simulated~device\.", finding.selected)[1])
    event = np.lexsort((trace.start_ns, trace.lane, trace.device))[number]
    assert f"device.{trace.device[event]}~" in finding.selected
    assert lane is None or LANES[trace.lane[event]] == lane
    assert finding.time_ns[0] < finding.time_ns[1] <= trace.end_ns[event]


def test_the_critical_path_is_one_chain_from_the_first_moment_to_the_last(loaded):
    trace = loaded.traces["simulated"]
    header, columns = decode(path_payload(loaded, "simulated"))
    start, end = columns["start"], columns["end"]
    assert start[0] == 0
    assert end[-1] == trace.end_ns.max() - trace.start_ns.min()
    assert np.array_equal(end[:-1], start[1:])
    order = np.lexsort((trace.start_ns, trace.lane, trace.device))
    events = order[columns["event"]]
    assert (end <= trace.end_ns[events]).all()
    assert trace.end_ns[events[-1]] == trace.end_ns.max()
    shares = [float(re.search(r"([\d.]+)\u00a0%$", part["text"])[1]) for part in header["shares"]]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(100, abs=0.2)
    computing = np.isin(trace.kind[events], KIND["compute"]) * (end - start)
    told = next(part for part in header["shares"] if part["text"].startswith("compute"))
    longest = int((computing * (trace.start_ns[events] <= start)).argmax())
    assert told["time"] == f"{start[longest]:.0f}-{end[longest]:.0f}"


@pytest.fixture
def loaded(tmp_path, small_plan):
    trace = simulate(small_plan)
    still = Trace.of_rows("measured", np.zeros((0, 10), int), [])
    write_plan(tmp_path / "a.dcpplan", small_plan, (trace, still))
    return load_file(tmp_path / "a.dcpplan")


def test_the_most_costly_cause_is_the_answer_and_the_others_are_findings(loaded):
    found, diagnosis = findings(loaded, "simulated"), loaded.predicted.diagnosis
    worth = [cause for cause in diagnosis.causes if cause.saves_s > 0.01 * diagnosis.seconds]
    most, rest = answers(loaded, "simulated")
    told = [f for f in found if "the plan would take" in f.text]
    assert len(told) + 1 == len(worth) > 1
    for cause, finding in zip(worth, (most, *told), strict=True):
        share = percent(cause.saves_s / diagnosis.seconds)
        assert f"the plan would take {duration(cause.saves_s)} less ({share})" in finding.text
        where = cause.where.get("device")
        if cause.name in SHOWN_BY:
            check_step(loaded.traces["simulated"], finding, SHOWN_BY[cause.name])
        else:
            assert finding.selected == ("" if where is None else f"device.{where}")
    assert rest.text.startswith("The next costs, each removed alone: ")
    every = (most, rest, *found)
    assert all(finding.rule.endswith(".") for finding in every)
    assert all(start < end for start, end in (f.time_ns for f in every if f.time_ns))


def test_a_trace_without_time_is_no_error(loaded):
    assert [f.text for f in answers(loaded, "measured")] == ["The trace holds no events."]
    assert findings(loaded, "measured") == ()


@pytest.mark.parametrize(
    ("pass_s", "text"),
    [
        (1e-6, "The busiest host needs 2\xa0µs for a layer, hidden behind "),
        (1.0, "The busiest host needs 2\xa0s for a layer, the devices need "),
    ],
)
def test_a_prediction_says_what_hosts_need_that_run_ahead(tmp_path, small_plan, pass_s, text):
    cluster = replace(small_plan.cluster, host_runs_ahead=True, pass_s=pass_s)
    plan = replace(small_plan, cluster=cluster)
    write_plan(tmp_path / "ahead.dcpplan", plan, [simulate(plan)])
    told = answers(load_file(tmp_path / "ahead.dcpplan"), "simulated")
    assert told[-1].text.startswith(text)
    write_plan(tmp_path / "serial.dcpplan", small_plan, [simulate(small_plan)])
    assert "host needs" not in answers(load_file(tmp_path / "serial.dcpplan"), "simulated")[-1].text


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A folder with a plan, and what the command printed."""
    folder = tmp_path_factory.mktemp("planned")
    (folder / "m.dcpm").write_text("mask m = causal")
    lengths = [option for n in (5000, 2200, 700, 292) for option in ("--sample", f"len = {n}")]
    out = folder / "p.dcpplan"
    words = ["plan", str(folder / "m.dcpm"), *lengths, "--block", "256", "--cluster", "2x2"]
    done = CliRunner().invoke(
        dcpm, [*words, "--against", "static", "--out", str(out), "--json"], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    return folder, json.loads(done.stdout)["batches"][0]


def seconds(figures):
    return figures["predicted_forward_s"] + figures["predicted_backward_s"]


def test_the_page_names_the_gains_that_the_command_prints(planned):
    folder, printed = planned
    client = create_app(folder).server.test_client()
    found = client.get(f"/api/plan/{plan_key('p.dcpplan')}/gain").get_json()
    shown = {row["label"]: row for row in found}
    for name, theirs in printed["against"].items():
        assert shown[name]["speedups"] == [pytest.approx(seconds(theirs) / seconds(printed))]
        for cap in ("compute", "tokens"):
            assert (f"mean {cap}" in shown[name]["note"]) == (cap in theirs["over_caps"])
    best = {s: printed["best_static"][s] for s in SCOPES if s in printed["best_static"]}
    assert len({rival["name"] for rival in best.values()}) == 2  # the case has both
    for scope, rival in best.items():
        row = shown[rival["name"]]
        assert row["told"] == f"{rival['name']}, {SCOPES[scope]}"
        assert row["speedups"] == [pytest.approx(rival["speedup"])]


def test_the_list_has_the_gain_that_the_command_wrote(planned, tmp_path):
    folder, printed = planned
    (row,) = PlanLibrary(folder).index.rows()
    best = {scope: rival["speedup"] for scope, rival in printed["best_static"].items()}
    assert row.value.gains == pytest.approx(best)
    shown = str(plan_list_page(PlanLibrary(folder), ""))
    assert [scope for scope, gain in best.items() if f"{gain:.2f}\u00d7" not in shown] == []
    file = read_plan(folder / "p.dcpplan")
    for name, against in {
        "none": None, "wrong": {"static:ring": "fast"}, "no times": {"static:ring": {}},
        "texts": {"static:ring": {"predicted_forward_s": "1", "predicted_backward_s": None}},
        "caps": {n: f | {"over_caps": ["tokens"]} for n, f in printed["against"].items()},
    }.items():  # fmt: skip
        write_plan(tmp_path / f"{name}.dcpplan", file.plan, file.traces, against=against)
    found = {row.entry.relative: row.value.gains for row in PlanLibrary(tmp_path).index.rows()}
    over = found.pop("caps.dcpplan")  # every layout is above the cap on tokens
    assert over == pytest.approx({"of_all": best["of_all"]})
    assert [*found.values()] == [{}] * 4


def test_a_plan_of_too_many_tiles_says_which_command_compares(small_plan, monkeypatch):
    monkeypatch.setattr(suggestions, "_MOST_TILES", 10)
    with pytest.raises(PlanError, match=r"at most 10 tiles.*--against static"):
        static_plans(small_plan)


CLUSTER, SHAPE = Cluster(2, 2), ModelShape(4, 2, 64)


def plans():
    """Plans that meet their wishes and one that falls back to a layout, with warnings."""
    causal = [Slabs(n, [0], [n], [0], [1], [0], [1]) for n in (1000, 560, 488)]
    sparsity = block_sparsity(causal, 128, 128)
    zigzag, contiguous = (
        build_plan(sparsity, SHAPE, CLUSTER, PlanConfig(f"static:{kind}", token_tolerance=0.5))
        for kind in ("zigzag", "contiguous")
    )
    window = Slabs(2048, [0, 64], [64, 2048], [0, 1], [1, 65], [0, 1], [1, 1])
    narrow = block_sparsity([window], 128, 128)
    frugal = build_plan(narrow, SHAPE, CLUSTER, PlanConfig("static:contiguous"))
    limit = int((receive_buffer_bytes(frugal) + accumulator_bytes(frugal)).max())
    short = PlanConfig("static:zigzag", memory_limit_bytes=limit)
    return zigzag, contiguous, build_plan(narrow, SHAPE, CLUSTER, short)


def places(facts):
    """Return facts without their words: values, and where their links lead."""
    rows = [row for section in facts.sections for row in section.rows]
    links = [[(p.selected, p.time_ns, p.source) for p in row.parts] for row in rows]
    return {k: v for k, v in facts.values.items() if k != "name"}, facts.selected, links


def everything(folder):
    """All that pages, files and comparisons conclude."""
    zigzag, contiguous, short = plans()
    loaded = []
    for name, plan in (("a", zigzag), ("b", contiguous), ("c", short)):
        write_plan(folder / f"{name}.dcpplan", plan, (simulate(plan),))
        loaded.append(load_file(folder / f"{name}.dcpplan"))
    whole = (folder / "a.dcpplan").read_bytes()
    (folder / "cut.dcpplan").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(PlanFileError):
        read_plan(folder / "cut.dcpplan")
    first, trace = loaded[0], loaded[0].traces["simulated"]
    sides = [Side(x, "simulated") for x in loaded[:2]]
    comparison = Comparison(*sides)
    return {
        "plans": [digest(x.plan) for x in loaded],
        "warnings": [[w.code for w in x.plan.warnings] for x in loaded],
        "partitioners": [x.plan.partitioner for x in loaded],
        "kinds": trace.kind.tolist(),
        "perfetto": len(to_perfetto(trace)) > 0,
        "events": [places(event_facts(first, "simulated", i)) for i in range(0, len(trace), 7)],
        "devices": [places(device_facts(first, device)) for device in range(4)],
        "divisions": [places(division_facts(first, 1, "backward"))],
        "transfers": [places(transfer_facts(first, x)) for x in range(0, 40, 5)],
        "findings": [(f.selected, f.time_ns) for f in findings(first, "simulated")],
        "waits": matching(trace, EventFilter(kinds=("wait", "copy"))).tolist(),
        "rows": [(row.difference, row.judgement) for row in compare_rows(comparison)],
        "deltas": [delta.difference.tolist() for delta in compare_devices(comparison)],
        "reason": Explanation(*(side.loaded.predicted.diagnosis for side in sides)).reason,
    }


def test_other_words_change_nothing_but_words(tmp_path, monkeypatch):
    (tmp_path / "before").mkdir()
    before = everything(tmp_path / "before")
    assert "placed_by_layout" in before["warnings"][2]
    warn, refuse = PlanWarning.__init__, DCPError.__init__
    simulator = "dcp_planner.simulation.simulator"
    monkeypatch.setattr(f"{simulator}.message_names", lambda kind, *_: [f"~{k}" for k in kind])
    monkeypatch.setattr(f"{simulator}.wait_name", lambda *_, **__: "kv 3")
    monkeypatch.setattr(PlanWarning, "__init__", lambda self, code, _: warn(self, code, "compute:"))
    monkeypatch.setattr(
        DCPError, "__init__", lambda self, _, where="": refuse(self, "other words", where)
    )
    (tmp_path / "after").mkdir()
    after = everything(tmp_path / "after")
    with pytest.raises(PlanFileError, match=r"^plan file .*/nowhere: other words$"):
        read_plan(tmp_path / "nowhere")
    with pytest.raises(DashboardError, match=r"^dropped: other words$"):
        PlanLibrary(tmp_path).keep(b"PK", "dropped")
    names = load_file(tmp_path / "after" / "a.dcpplan").traces["simulated"].names
    assert set(names) == {"attention", "kv 3", "~0", "~1", "~2", "~3", "~4"} & set(names)
    assert after == before
