"""What makes a plan slow, whose plans are on a front, pictures and colours of the list."""

import json
import re
import runpy
import struct
import zlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plotly.utils import PlotlyJSONEncoder
from test_causes import CASES

from dcp_dashboard.api.encoding import device_colours, ramp
from dcp_dashboard.exports.pictures import SIDE, thumbnail
from dcp_dashboard.facts.findings import findings
from dcp_dashboard.facts.quantities import duration, ratio
from dcp_dashboard.library.folder import PlanEntry, plan_key
from dcp_dashboard.library.plans import PlanLibrary, loaded_plan
from dcp_dashboard.pages.compare import MOST_PLANS, front_page, unbeaten
from dcp_dashboard.pages.plan import answer_panel
from dcp_dashboard.pages.plan_list import COLUMNS, sort_rows
from dcp_dashboard.pages.tables import Query
from dcp_dashboard.web.app import render_page
from dcp_dsl import Spec, sample_from_argument
from dcp_planner import (
    ModelShape,
    Plan,
    PlanConfig,
    build_plan,
    cut_blocks,
    measure,
    predict,
    preset,
    simulate,
    write_plan,
)

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


def address(*names):
    return "?" + "&".join(f"plan={plan_key(f'{name}.dcpplan')}" for name in names)


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=8))
def test_no_plan_of_the_front_is_beaten_and_each_other_one_is(rows):
    kept = unbeaten(np.array(rows, np.float64))
    for row, is_kept in zip(rows, kept, strict=True):
        is_beaten = any(
            other != row and all(a <= b for a, b in zip(other, row, strict=True)) for other in rows
        )
        assert is_kept != is_beaten


@pytest.fixture
def lone_node(tmp_path):
    """A batch placed in two ways on the devices of one node."""
    spec = Spec.from_text("mask m = causal")
    form = spec.mask("m").compile(sample_from_argument(spec, "len = 2048"))
    for name in ("contiguous", "zigzag"):
        cluster, config = preset("a100-p4de", 1, 4), PlanConfig(f"static:{name}")
        plan = build_plan(cut_blocks([form], 128), ModelShape(), cluster, config)
        write_plan(tmp_path / f"{name}.dcpplan", plan)
    return tmp_path


@pytest.mark.parametrize(
    ("folder", "moved"),
    [
        ("paired_folder", lambda m: m.forward.inter_node_bytes + m.backward.inter_node_bytes),
        ("lone_node", lambda m: m.forward.total_bytes + m.backward.total_bytes),
    ],
)
def test_the_figures_are_those_of_the_plans(folder, moved, request):
    library = PlanLibrary(request.getfixturevalue(folder))
    page = front_page(library, address("contiguous", "zigzag"))
    graph = next(part for part in page._traverse() if getattr(part, "id", "") == "front")
    (dots,) = graph.figure.data
    plans = [library.load(plan_key(f"{name}.dcpplan")).plan for name in ("contiguous", "zigzag")]
    assert dots.x.tolist() == pytest.approx([predict(plan).seconds for plan in plans])
    assert dots.y.tolist() == [moved(measure(plan)) for plan in plans]
    assert max(dots.y) > 0
    assert list(dots.text) == ["A", "B"]
    assert "Not all of one batch" not in str(page)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "expected 1 to 26 plans, got 0"),
        ("?plan=0", "expected the key of a .dcpplan file"),
        ("?" + "&".join(f"plan={n}" for n in range(MOST_PLANS + 1)), "got 27"),
    ],
)
def test_what_cannot_be_shown_is_said(tmp_path, query, message):
    assert message in str(render_page(PlanLibrary(tmp_path), "/front", query))


def test_rows_sort_by_every_column_with_the_unreadable_last(served_folder):
    rows = PlanLibrary(served_folder).index.rows()
    for column in COLUMNS:
        for desc in (False, True):
            ordered = sort_rows(rows, Query(sort=column.name, desc=desc))
            values = [column.value(row.value) if row.value else None for row in ordered]
            known = [value for value in values if value is not None]
            assert known == sorted(known, reverse=desc)
            assert values == known + [None] * (len(values) - len(known))
            assert column.name != "tokens" or ordered[-1].entry.relative == "cut.dcpplan"
    ordered = sort_rows(rows, Query(sort="nonsense"))
    assert ordered[0].entry.relative == "deep/large.dcpplan"


def alpha_of(png):
    """Decode the opacity of a palette PNG by its chunks."""
    at, body, opacity = 8, b"", b""
    while at < len(png):
        (size,), kind = struct.unpack_from(">I", png, at), png[at + 4 : at + 8]
        data = png[at + 8 : at + 8 + size]
        assert struct.unpack_from(">I", png, at + 8 + size)[0] == zlib.crc32(kind + data)
        body += data if kind == b"IDAT" else b""
        opacity = data if kind == b"tRNS" else opacity
        at += 12 + size
    rows = np.frombuffer(zlib.decompress(body), np.uint8).reshape(SIDE, SIDE + 1)
    assert not rows[:, 0].any()
    return np.frombuffer(opacity, np.uint8)[rows[:, 1:]]


def test_thumbnails_show_the_mask(large_plan):
    alpha = alpha_of(thumbnail(large_plan))
    below, above = np.tril_indices(SIDE, -1), np.triu_indices(SIDE, 1)
    assert (alpha[below] == 255).all()
    assert (alpha[above] == 0).all()
    assert ((alpha.diagonal() > 110) & (alpha.diagonal() < 255)).all()


def test_thumbnails_show_where_sequences_end(small_plan):
    alpha = alpha_of(thumbnail(small_plan))
    scale = SIDE / 2048
    assert alpha[int(600 * scale), int(100 * scale)] == 255
    assert alpha[int(1400 * scale), int(500 * scale)] == 0


def lab(colour):
    """CIE L*a*b* of a colour; its formulas share nothing with OKLCH."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    rows = ((0.4125, 0.3576, 0.1804), (0.2127, 0.7152, 0.0722), (0.0193, 0.1192, 0.9503))
    xyz = np.array(rows) @ linear / (0.9505, 1, 1.089)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("count", [1, 2, 4, 8, 32])
def test_ramps_rise_in_lightness(count):
    values = [lab(colour)[0] for colour in ramp(count)]
    assert values == sorted(set(values))
    assert len(values) == count


@pytest.mark.parametrize(
    ("nodes", "per_node", "least"),
    [(2, 8, 15), (4, 4, 15), (4, 8, 15), (1, 8, 2), (2, 2, 2), (8, 8, 2)],
)
def test_devices_can_be_told_apart(nodes, per_node, least):
    points = np.array([lab(colour) for colour in device_colours(nodes, per_node)])
    apart = np.linalg.norm(points[:, None] - points, axis=2)
    np.fill_diagonal(apart, np.inf)
    assert apart.min() > least  # 2 can just be seen beside each other
