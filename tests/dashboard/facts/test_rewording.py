"""Texts are for people: other words for events, warnings and refusals change nothing else."""

import pytest

from dcp_dashboard.facts.comparison import Comparison, Side, compare_devices, compare_rows
from dcp_dashboard.facts.devices import device_facts, division_facts
from dcp_dashboard.facts.findings import findings
from dcp_dashboard.facts.tiles import event_facts, transfer_facts
from dcp_dashboard.facts.traces import EventFilter, matching
from dcp_dashboard.library.folder import DashboardError
from dcp_dashboard.library.plans import PlanLibrary, load_file
from dcp_dsl import DCPError, Slabs, block_sparsity
from dcp_planner import (
    Cluster,
    ModelShape,
    PlanConfig,
    PlanFileError,
    build_plan,
    digest,
    read_plan,
    simulate,
    to_perfetto,
    write_plan,
)
from dcp_planner.causes import Explanation
from dcp_planner.model.problem import PlanWarning
from dcp_planner.tables import accumulator_bytes, receive_buffer_bytes

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
