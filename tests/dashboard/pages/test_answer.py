"""The page of a plan leads with what makes it slow, whatever was planted."""

import json
import re
import runpy
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from plotly.utils import PlotlyJSONEncoder
from test_planted_causes import CASES

from dcp_dashboard.library.folder import PlanEntry
from dcp_dashboard.library.plans import loaded_plan
from dcp_dashboard.pages.plan import answer_panel
from dcp_planner import Plan

PLANNER_TESTS = Path(__file__).parents[2] / "planner"
WORDS = {
    "compute": ("uneven compute", "multiprocessors idle", "compute anyway"),
    "links": ("data transfer",),
    "latency": ("message latency",),
    "order": ("waiting for earlier work of other devices",),
    "launches": ("launch overhead",),
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


def panel_of(plan, *runs):
    """The components of the answer to a plan and its run, as if a file had held both."""
    entry = PlanEntry("0" * 16, "p.dcpplan", Path("p.dcpplan"), 0, 0)
    return nodes_of(answer_panel(loaded_plan(entry, plan, list(runs))))


@pytest.mark.parametrize(("kind", "where", "make"), CASES.values(), ids=CASES)
def test_the_first_sentence_names_the_planted_cause(masks, kind, where, make):
    made = make(masks)
    panel = panel_of(*([made] if isinstance(made, Plan) else made))
    first = next(words_of(node) for node in panel if node["type"] == "P")
    assert first.startswith("The largest cost comes from ")
    named = first.removeprefix("The largest cost comes from ").split(":")[0]
    assert any(words in named for words in WORDS[kind])
    if "device" in where:
        assert f"device {where['device']} " in first


def test_the_bar_of_each_device_is_all_of_its_time(small_plan, small_trace):
    panel = panel_of(small_plan)
    (group,) = (node for node in panel if "dcp-accounts" in node["props"].get("className", ""))
    bars = re.findall(r'aria-label="([^"]+)".*?background:([^"]+)"', group["props"]["data-html"])
    assert len(bars) == small_plan.num_devices
    for device, (label, style) in enumerate(bars):
        assert label.startswith(f"Device {device}: compute ")
        ends = [tuple(map(float, pair)) for pair in re.findall(r"([\d.]+)% ([\d.]+)%", style)]
        assert (ends[0][0], ends[-1][1]) == (0, 100)
        assert all(one[1] == other[0] for one, other in pairwise(ends))
        mine = (small_trace.device == device) & (small_trace.kind == 0)
        busy = (small_trace.end_ns - small_trace.start_ns)[mine].sum() / small_trace.end_ns.max()
        assert ends[0][1] / 100 == pytest.approx(busy, abs=2e-3)
