"""Comparisons are held against sums over the plans' own rows, in plain Python."""

import re
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from dcp_dashboard import create_app
from dcp_dashboard.api.encoding import decode
from dcp_dashboard.api.mask import MOVED, ONLY_FIRST, ONLY_SECOND, SAME, find_moves
from dcp_dashboard.facts.comparison import (
    Comparison,
    Side,
    compare_devices,
    compare_kinds,
    compare_rows,
    judge,
)
from dcp_dashboard.facts.findings import explain
from dcp_dashboard.facts.quantities import duration
from dcp_dashboard.facts.traces import phase_of
from dcp_dashboard.library import plans as library_module
from dcp_dashboard.library.folder import PlanEntry, plan_key
from dcp_dashboard.library.plans import PlanLibrary, loaded_plan
from dcp_dashboard.pages.charts import MORE, deltas_figure, traffic_difference_figure
from dcp_dashboard.pages.compare import Choice, load_comparison
from dcp_planner import LANES, predict, simulate
from dcp_planner.report import Difference
from dcp_planner.simulation import EVENT_KINDS


@pytest.fixture(scope="module")
def library(paired_folder):
    return PlanLibrary(paired_folder)


def choice(name, source="simulated"):
    return Choice(plan_key(f"{name}.dcpplan"), source)


def compared(library, first, second) -> Comparison:
    sides = [choice(*side) if isinstance(side, tuple) else choice(side) for side in (first, second)]
    return load_comparison(library, *sides)


def made_side(name, plan, trace):
    entry = PlanEntry(name, f"{name}.dcpplan", Path(name), 1, 2)
    return Side(loaded_plan(entry, plan, [trace]), trace.source)


def row(comparison, name):
    return next(row for row in compare_rows(comparison) if row.difference.name == name)


@pytest.mark.parametrize(
    ("second", "judged"),
    [(1.0, "equal"), (1.001, "equal"), (0.9905, "equal"), (1.02, "worse"), (0.98, "better")],
)
def test_what_differs_by_less_than_noise_is_neither_better_nor_worse(second, judged):
    assert judge(Difference("makespan", 1.0, second), "less") == judged


def test_times_by_kind_are_sums_over_the_events_of_the_mean_device(library):
    sides = [("zigzag", "simulated"), ("zigzag", "measured")]
    comparison = compared(library, *sides)
    rows = compare_kinds(comparison)
    for side, name in ((comparison.first, "first"), (comparison.second, "second")):
        trace, spent = side.trace, Counter()
        for event in range(len(trace)):
            key = EVENT_KINDS[trace.kind[event]], bool(trace.is_backward[event])
            spent[key] += int(trace.end_ns[event] - trace.start_ns[event]) / 1e9 / side.num_devices
        found = {(r.kind, r.direction == "backward"): getattr(r, name) for r in rows}
        assert found == pytest.approx(spent)
    attention = next(r for r in rows if (r.kind, r.direction) == ("attention", "forward"))
    assert attention.ratio == pytest.approx(1.25, rel=1e-3)  # the run is a quarter slower


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_phase_begins_at_0_on_both_sides_and_keeps_its_events(library, direction):
    loaded = library.load(plan_key("zigzag.dcpplan"))
    for trace in loaded.traces.values():
        phase, chosen = phase_of(trace, direction), trace.is_backward == (direction == "backward")
        assert phase.start_ns.min() == 0
        length = (trace.end_ns - trace.start_ns)[chosen]
        assert (phase.end_ns - phase.start_ns).tolist() == length.tolist()
        assert phase.seconds() == pytest.approx(trace.seconds(is_backward=direction == "backward"))
    client = create_app(library.root).server.test_client()
    address = f"/api/plan/{loaded.entry.key}/timeline?source=measured&phase={direction}"
    header, columns = decode(client.get(address, base_url="http://127.0.0.1:8050").data)
    assert columns["start"].min() == 0
    assert set(columns["backward"].tolist()) == {int(direction == "backward")}
    assert header["longest_ns"] >= columns["end"].max()


def test_bytes_and_times_are_those_of_the_plans(library):
    comparison = compared(library, "zigzag", "contiguous")
    for side, name in ((comparison.first, "first"), (comparison.second, "second")):
        transfers = side.loaded.plan.transfers
        forward = transfers.size_bytes[~transfers.is_backward].sum()
        assert getattr(row(comparison, "forward_bytes").difference, name) == forward
        trace = side.trace
        length = (int(trace.end_ns.max()) - int(trace.start_ns.min())) / 1e9
        assert getattr(row(comparison, "time").difference, name) == pytest.approx(length)


def test_less_time_is_better_and_more_rate_too(library):
    comparison = compared(library, "zigzag", "contiguous")
    a, b = (side.trace.seconds() for side in (comparison.first, comparison.second))
    assert a != b
    for found, is_less in ((comparison, b < a), (compared(library, "contiguous", "zigzag"), a < b)):
        judged = {row(found, name).judgement for name in ("time", "rate")}
        assert judged == {"better" if is_less else "worse"}


@pytest.mark.parametrize(("slow_by", "times_more"), [(1, "20"), (10, "2.01")])
def test_plans_of_different_batches_are_told_by_their_rates(
    small_plan, large_plan, slow_by, times_more
):
    """Rates by hand: pairs over seconds and devices."""
    seconds, rates, sides = {}, {}, {}
    for name, plan, factor in (("small", small_plan, 1), ("large", large_plan, slow_by)):
        trace = simulate(plan)
        start, end = trace.start_ns * factor, trace.end_ns * factor
        sides[name] = made_side(name, plan, replace(trace, start_ns=start, end_ns=end))
        seconds[name] = int(end.max() - start.min()) / 1e9
        rates[name] = int(plan.tiles.pairs.sum()) / seconds[name] / plan.num_devices
    found = rates["large"] / rates["small"]
    assert times_more == (f"{found:.0f}" if slow_by == 1 else f"{found:.2f}")
    for a, b, faster, slower in (("small", "large", "B", "A"), ("large", "small", "A", "B")):
        assert explain(Comparison(sides[a], sides[b])).text == (
            f"A takes {duration(seconds[a])} and B takes {duration(seconds[b])}, for different "
            f"batches. Per second and device, {faster} computes {times_more} times as many pairs "
            f"as {slower}."
        )


def test_device_differences_are_sums_over_the_transfers(library):
    comparison = compared(library, "zigzag", "contiguous")
    deltas = {delta.heading: delta for delta in compare_devices(comparison)}
    tables = [s.loaded.plan.transfers for s in (comparison.first, comparison.second)]
    a, b = ([t.size_bytes[t.source == d].sum() for d in range(4)] for t in tables)
    assert deltas["Sent"].difference.tolist() == np.subtract(b, a).tolist()
    owned = [len(comparison.second.loaded.plan.local_tokens(d)) for d in range(4)]
    assert deltas["Tokens"].second.tolist() == owned


def test_the_reason_of_a_run_is_found_in_its_events(small_plan, small_trace):
    trace = small_trace
    # The last attention of device 0 in forward takes longer; what begins later comes later by that.
    computes = np.flatnonzero((trace.device == 0) & (trace.lane == 0) & ~trace.is_backward)
    longer = computes[trace.end_ns[computes].argmax()]
    end, by = int(trace.end_ns[longer]), int(trace.seconds() * 1e9)
    is_late = trace.start_ns >= end
    ends_late = is_late | ((trace.lane == LANES.index("wait")) & (trace.end_ns >= end))
    ends_late[longer] = True
    start = trace.start_ns + by * is_late
    times = {"start_ns": start, "end_ns": trace.end_ns + by * ends_late, "ready_ns": start}
    slow = replace(trace, source="measured", **times)
    usual = replace(trace, source="measured", ready_ns=trace.start_ns)
    sides = (made_side("usual", small_plan, usual), made_side("slow", small_plan, slow))
    found = explain(Comparison(*sides))
    assert re.match(r"A takes 50\s% less time than B.* B loses more time to", found.text)
    assert "uneven compute (" in found.text or "more time to uneven compute" in found.text
    # A prediction that is not the planner's is explained like a run.
    slower = replace(trace, start_ns=trace.start_ns * 2, end_ns=trace.end_ns * 2)
    sides = (made_side("now", small_plan, trace), made_side("then", small_plan, slower))
    found = explain(Comparison(*sides))
    assert found.text.startswith("A takes 50\u00a0% less time than B")
    assert found.rule.startswith("A run cannot be repeated")


def test_the_sentence_names_the_faster_side_and_its_reason(library):
    comparison = compared(library, "zigzag", "contiguous")
    sides = {"A": comparison.first, "B": comparison.second}
    fast, slow = sorted(sides, key=lambda name: sides[name].trace.seconds())
    text = explain(comparison).text
    assert text.startswith(f"{fast} takes ")
    assert f"less time than {slow}" in text
    plans = [side.loaded.plan for side in sides.values()]
    fast_links = replace(plans[0].cluster, intra_bytes_per_s=1e20, inter_bytes_per_s=1e20)
    a, b = (duration(predict(replace(plan, cluster=fast_links)).seconds) for plan in plans)
    assert f"ith infinitely fast links, A would take {a} and B {b}" in text
    assert f"because {slow} loses more time to" in text or f"reasons: {slow} loses more" in text
    same = explain(compared(library, "zigzag", "zigzag")).text
    assert same.startswith("A and B take about the same time")


def test_a_plan_is_predicted_under_other_conditions_once(library, monkeypatch):
    explain(compared(library, "zigzag", "contiguous"))
    monkeypatch.setattr(library_module, "find_causes", None)  # would fail if it were called
    explain(compared(library, "contiguous", "zigzag"))


def some(tiles, keep):
    """A table of tiles with the rows to keep."""
    columns = {field.name: getattr(tiles, field.name) for field in fields(tiles)}
    known = {name: column[keep] for name, column in columns.items() if column is not None}
    return replace(tiles, **known)


def test_moved_tiles_are_those_on_another_device(library, small_plan):
    other = compared(library, "zigzag", "contiguous").second.loaded.plan
    moves = find_moves(small_plan, other)
    t = small_plan.tiles
    assert t.q_block.tolist() == other.tiles.q_block.tolist() == moves.q_block.tolist()
    assert t.kv_block.tolist() == other.tiles.kv_block.tolist() == moves.kv_block.tolist()
    is_moved = t.device != other.tiles.device
    assert moves.change.tolist() == np.where(is_moved, MOVED, SAME).tolist()
    assert 0 < moves.share < 1
    assert moves.fitted_pair_share <= moves.pair_share
    assert moves.pair_share == t.pairs[is_moved].sum() / t.pairs.sum()
    # Tiles of one plan alone are in neither sum.
    keep = np.arange(len(t)) % (len(t) - 1) > 0
    assert find_moves(replace(small_plan, tiles=some(t, keep)), other).pair_share == (
        t.pairs[keep & is_moved].sum() / t.pairs[keep].sum()
    )
    nothing = find_moves(small_plan, small_plan)
    assert (nothing.share, nothing.pair_share, nothing.moved_tokens) == (0, 0, 0)


def test_tiles_of_one_plan_only_are_told_apart(small_plan):
    tiles = small_plan.tiles
    less = replace(small_plan, tiles=some(tiles, slice(10, None)))
    for sides, change in (((small_plan, less), ONLY_FIRST), ((less, small_plan), ONLY_SECOND)):
        moves = find_moves(*sides)
        assert np.flatnonzero(moves.change == change).tolist() == list(range(10))
        assert moves.tiles(SAME) == len(tiles) - 10
        assert moves.pairs.tolist() == tiles.pairs.tolist()


def test_the_chart_has_one_bar_per_device_above_zero_where_b_has_more(library):
    deltas = compare_devices(compared(library, "zigzag", "contiguous"))
    figure = deltas_figure(deltas, np.array([0, 2, 4]))
    assert [len(bars.x) for bars in figure.data] == [4] * 5
    for bars, delta in zip(figure.data, deltas, strict=True):
        assert list(bars.y) == delta.difference.tolist()
        assert all((c == MORE) == (y > 0) for c, y in zip(bars.marker.color, bars.y, strict=True))
    for axis, bars in zip(figure.select_yaxes(), figure.data, strict=True):
        assert axis.range[0] < min(0, *bars.y)
        assert axis.range[1] > max(0, *bars.y)
        assert max(bars.y, key=abs) in axis.tickvals  # the furthest bar can be read off
        assert axis.ticktext[axis.tickvals.index(0)] == "0"


def test_the_traffic_difference_is_empty_where_neither_plan_sends(library):
    comparison = compared(library, "zigzag", "contiguous")
    a, b = (s.loaded.totals.traffic_bytes for s in (comparison.first, comparison.second))
    z = np.array(traffic_difference_figure(a, b, np.array([0, 2, 4])).data[0].z, dtype=float)
    assert np.isnan(z[(a == 0) & (b == 0)]).all()
    used = (a > 0) | (b > 0)
    assert (z[used] == (b - a)[used]).all()
