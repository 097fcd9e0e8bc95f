"""The page of a plan leads with what makes it slow, whatever was planted."""

import json
import re
import runpy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from plotly.utils import PlotlyJSONEncoder
from test_planted_causes import CASES

from dcp_dashboard.facts.findings import findings
from dcp_dashboard.facts.quantities import duration, ratio
from dcp_dashboard.library.folder import PlanEntry
from dcp_dashboard.library.plans import loaded_plan
from dcp_dashboard.pages.plan import answer_panel
from dcp_planner import Plan, simulate

PLANNER_TESTS = Path(__file__).parents[2] / "planner"
WORDS = {
    "compute": ("uneven compute", "multiprocessors idle", "compute anyway"),
    "links": ("data transfer",),
    "latency": ("message latency",),
    "order": ("waiting for earlier work of other devices",),
    "launches": ("host work",),
    "memory": ("freeing buffers early",),
    "idle": ("devices without work",),
}
"""Words of a person for each kind of cause."""


@pytest.fixture(scope="module")
def masks():
    """The masks that the planted cases are built from."""
    found = runpy.run_path(str(PLANNER_TESTS / "conftest.py"))
    return SimpleNamespace(causal=found["causal"], pack=found["sparsity_of"])


def nodes_of(component):
    """Every component of a panel with its properties, in order."""

    def walk(node):
        if isinstance(node, dict):
            yield node
            yield from walk(node.get("props", {}).get("children"))
        elif isinstance(node, list):
            for child in node:
                yield from walk(child)

    return list(walk(json.loads(json.dumps(component, cls=PlotlyJSONEncoder))))


def words_of(node):
    """All texts of a component, joined."""
    if isinstance(node, dict):
        return words_of(node["props"].get("children"))
    return " ".join(map(words_of, node)) if isinstance(node, list) else str(node)


def loaded_of(plan, *runs):
    """A plan and its run, as if a file had held both."""
    entry = PlanEntry("0" * 16, "p.dcpplan", Path("p.dcpplan"), 0, 0)
    return loaded_plan(entry, plan, list(runs))


def panel_of(plan):
    """The components of the answer to a plan."""
    return nodes_of(answer_panel(loaded_of(plan)))


@pytest.mark.parametrize(("kind", "where", "make"), CASES.values(), ids=CASES)
def test_the_first_sentence_names_the_planted_cause(masks, kind, where, make):
    made = make(masks)
    if not isinstance(made, Plan):
        check_run(kind, where, *made)
        return
    panel = panel_of(made)
    first = next(words_of(node) for node in panel if node["type"] == "P")
    assert first.startswith("The largest cost comes from ")
    named = first.removeprefix("The largest cost comes from ").split(":")[0]
    assert any(words in named for words in WORDS[kind])
    if "device" in where:
        assert f"device {where['device']} " in first


RUN_WORDS = {
    "compute": r"Device 2 holds the others up: it spends .+? on compute",
    "links": "Beside compute, waiting for data transfer takes most",
    "launches": r"Device \d holds the others up: it spends .+? on host work",
}
"""How the measured costs show each kind of cause that is planted in a run."""


def check_run(kind, where, plan, run):
    """The headline sets the run against the prediction; its costs are ranked as measured."""
    loaded = loaded_of(plan, run)
    texts = [words_of(n) for n in nodes_of(answer_panel(loaded)) if n["type"] == "P"]
    times = [loaded.traces[name].seconds() for name in ("measured", "simulated")]
    told = f"The run takes {duration(times[0])}, {ratio(times[0] / times[1])} times the predicted"
    assert texts[0].startswith(f"{told} {duration(times[1])}.")
    assert re.search(RUN_WORDS[kind], texts[1])
    assert "No other cost" not in " ".join(texts)
    # Removing the cause alone stays a finding, with the place of the cause.
    first = findings(loaded, "measured")[0].text
    if "device" in where:
        assert f"device {where['device']} " in first


def test_the_uses_of_a_run_are_ranked_by_their_measured_time(small_plan):
    trace = simulate(small_plan)
    times = {name: 2 * getattr(trace, name) for name in ("start_ns", "end_ns", "ready_ns")}
    run = replace(trace, source="measured", **times)
    panel = nodes_of(answer_panel(loaded_of(small_plan, run)))
    rows = [
        [words_of(cell).removeprefix("None ") for cell in node["props"]["children"]]
        for node in panel
        if node["type"] == "Tr"
    ]
    assert rows[0] == ["Time of a device", "Mean", "Share", "Predicted", "Longest, on device"]
    mean, predicted = ({row[0]: float(row[at].split()[0]) for row in rows[1:]} for at in (1, 3))
    assert list(mean.values()) == sorted(mean.values(), reverse=True)
    assert sum(mean.values()) == pytest.approx(run.seconds() * 1e6, rel=0.01)
    attends = (trace.end_ns - trace.start_ns)[trace.kind == 0].sum() / small_plan.num_devices / 1e3
    assert mean["compute"] == pytest.approx(2 * attends, rel=0.01)
    assert predicted["compute"] == pytest.approx(attends, rel=0.01)


def test_a_run_of_several_layers_is_set_against_the_prediction_of_one(shown):
    panel = nodes_of(answer_panel(shown["unequal"]))  # its run is the prediction, twice
    first = words_of(next(node for node in panel if node["type"] == "P"))
    assert first.startswith("A layer of the 2 in the run takes ")
    assert ", 1.00 times the predicted " in first


def test_devices_stand_in_the_order_of_their_idle_time(large_plan):
    loaded = loaded_of(large_plan)
    trace, devices = loaded.traces["simulated"], large_plan.num_devices
    busy = np.bincount(
        trace.device, (trace.end_ns - trace.start_ns) * (trace.lane == 0), devices
    )  # fmt: skip
    idle = trace.end_ns.max() - busy  # no launches on this cluster: what is no work is idle
    panel = nodes_of(answer_panel(loaded))
    (group,) = (n["props"] for n in panel if n["props"].get("className") == "dcp-accounts")
    seen = re.findall(r"aria-label=\"Device (\d+): idle", group["data-html"])
    assert sorted(map(int, seen)) == list(range(devices))
    assert [idle[int(d)] for d in seen] == pytest.approx(sorted(idle, reverse=True), rel=1e-6)
    before, folded = group["data-html"].split("<details>")
    assert before.count("<button") == 16
    assert f"{devices - 16} more devices" in folded
    sentence = next(t for t in map(words_of, panel) if t.startswith(f"Device {seen[0]} is idle"))
    assert f"Device {seen[-1]} is idle shortest" in sentence


def test_the_bar_of_each_device_is_all_of_its_time(small_plan, small_trace):
    panel = panel_of(small_plan)
    (group,) = (node for node in panel if "dcp-accounts" in node["props"].get("className", ""))
    bars = re.findall(r'aria-label="([^"]+)".*?background:([^"]+)"', group["props"]["data-html"])
    assert len(bars) == small_plan.num_devices
    for label, style in bars:
        device = int(re.match(r"Device (\d+): idle .*; compute ", label)[1])
        ends = [tuple(map(float, pair)) for pair in re.findall(r"([\d.]+)% ([\d.]+)%", style)]
        assert (ends[0][0], ends[-1][1]) == (0, 100)
        assert all(one[1] == other[0] for one, other in pairwise(ends))
        mine = (small_trace.device == device) & (small_trace.kind == 0)
        busy = (small_trace.end_ns - small_trace.start_ns)[mine].sum() / small_trace.end_ns.max()
        assert ends[0][1] / 100 == pytest.approx(busy, abs=2e-3)
