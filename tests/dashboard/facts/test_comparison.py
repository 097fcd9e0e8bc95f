"""Comparisons are held against sums over the plans' own rows, in plain Python."""

import json
import re
from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest
from plotly.utils import PlotlyJSONEncoder

from dcp_dashboard import create_app
from dcp_dashboard.api.encoding import decode
from dcp_dashboard.api.mask import MOVED, ONLY_FIRST, ONLY_SECOND, SAME, find_moves, fit_devices
from dcp_dashboard.facts.comparison import (
    FIGURES,
    Comparison,
    KindRow,
    compare_devices,
    compare_kinds,
    compare_rows,
)
from dcp_dashboard.facts.findings import explain
from dcp_dashboard.facts.quantities import duration
from dcp_dashboard.facts.traces import phase_of
from dcp_dashboard.library import plans as library_module
from dcp_dashboard.library.folder import plan_key
from dcp_dashboard.library.plans import PlanLibrary
from dcp_dashboard.pages import compare_panels
from dcp_dashboard.pages.charts import MORE, deltas_figure, traffic_difference_figure
from dcp_dashboard.pages.compare import Choice, compare_url, load_comparison, read_choices
from dcp_dashboard.pages.layout import markup
from dcp_dashboard.web.app import render_page
from dcp_dsl import DCPError
from dcp_planner import LANES, predict, simulate, write_plan
from dcp_planner.causes import compare_with_run
from dcp_planner.simulation import EVENT_KINDS


@pytest.fixture(scope="module")
def library(paired_folder):
    return PlanLibrary(paired_folder)


def text_of(page):
    """Everything that a page says, as JSON."""
    return json.dumps(page, cls=PlotlyJSONEncoder, ensure_ascii=False)


def choice(name, source="simulated"):
    return Choice(plan_key(f"{name}.dcpplan"), source)


def compared(library, first, second) -> Comparison:
    sides = [choice(*side) if isinstance(side, tuple) else choice(side) for side in (first, second)]
    return load_comparison(library, *sides)


def row(comparison, name):
    return next(row for row in compare_rows(comparison) if row.difference.name == name)


def test_times_by_kind_are_sums_over_the_events_of_the_mean_device(library):
    sides = [("zigzag", "simulated"), ("zigzag", "measured")]
    comparison = compared(library, *sides)
    rows = compare_kinds(comparison)
    for side, name in ((comparison.first, "first"), (comparison.second, "second")):
        trace, spent = side.trace, Counter()
        for event in range(len(trace)):
            key = EVENT_KINDS[trace.kind[event]], bool(trace.is_backward[event])
            spent[key] += int(trace.end_ns[event] - trace.start_ns[event])
        assert {(r.kind, r.direction == "backward"): getattr(r, name) for r in rows} == {
            key: pytest.approx(ns / 1e9 / side.num_devices) for key, ns in spent.items()
        }
    attention = next(r for r in rows if (r.kind, r.direction) == ("attention", "forward"))
    assert attention.ratio == pytest.approx(1.25, rel=1e-3)  # the run is a quarter slower


def test_the_work_of_the_host_is_not_called_copying(library, monkeypatch):
    monkeypatch.setattr(
        compare_panels, "compare_kinds", lambda _: [KindRow("copy", "forward", 1.0, 2.0)]
    )
    shown = markup(
        compare_panels.kinds_panel(
            compared(library, ("zigzag", "simulated"), ("zigzag", "measured"))
        )
    )
    assert "Starting work (copy), forward" in shown


def test_a_run_beside_its_prediction_names_the_constants(library):
    key = plan_key("zigzag.dcpplan")
    page = text_of(render_page(library, "/compare", f"?a={key}&b={key}"))
    assert "Run against prediction, by class of work" in page
    assert "messages between nodes" in page
    assert "explains" in page
    sides = (("zigzag", "simulated"), ("zigzag", "measured"))  # the run is a quarter slower
    sides = compared(library, *sides)
    cells = markup(compare_panels.constants_panel(sides))
    for one in compare_with_run(sides.second.loaded.plan, sides.second.trace).classes:
        assert not one.predicted_s or f"{one.measured_s / one.predicted_s:.2f}</td>" in cells
    other = plan_key("contiguous.dcpplan")
    page = text_of(render_page(library, "/compare", f"?a={key}&b={other}"))
    assert "by class of work" not in page


def test_constants_that_were_not_found_are_not_spoken_of(small_plan, tmp_path):
    trace, rng = simulate(small_plan), np.random.default_rng(0)
    length = (trace.end_ns - trace.start_ns) * rng.choice((1, 60), len(trace))
    end = trace.start_ns + length.astype(np.int64)
    run = replace(trace, source="measured", end_ns=end)
    assert {one.constant for one in compare_with_run(small_plan, run).classes} == {None}
    write_plan(tmp_path / "a.dcpplan", small_plan, (trace, run))
    key = plan_key("a.dcpplan")
    page = text_of(render_page(PlanLibrary(tmp_path), "/compare", f"?a={key}&b={key}"))
    assert "none alone" in page
    assert "No one constant explains a difference." in page
    assert "With these constants" not in page


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_phase_begins_at_0_on_both_sides_and_keeps_its_events(library, direction):
    loaded = library.load(plan_key("zigzag.dcpplan"))
    for trace in loaded.traces.values():
        phase, chosen = phase_of(trace, direction), trace.is_backward == (direction == "backward")
        assert phase.start_ns.min() == 0
        assert (phase.end_ns - phase.start_ns).tolist() == (trace.end_ns - trace.start_ns)[
            chosen
        ].tolist()
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
        forward = sum(
            int(size)
            for size, back in zip(transfers.size_bytes, transfers.is_backward, strict=True)
            if not back
        )
        assert getattr(row(comparison, "forward_bytes").difference, name) == forward
        trace = side.trace
        length = (int(trace.end_ns.max()) - int(trace.start_ns.min())) / 1e9
        assert getattr(row(comparison, "time").difference, name) == pytest.approx(length)


def test_every_figure_is_shown_once_in_order(library):
    names = [row.difference.name for row in compare_rows(compared(library, "zigzag", "contiguous"))]
    assert names == [figure.name for figure in FIGURES]


def test_less_time_is_better_and_more_rate_too(library):
    comparison = compared(library, "zigzag", "contiguous")
    a, b = (side.trace.seconds() for side in (comparison.first, comparison.second))
    assert a != b
    expected = "better" if b < a else "worse"
    assert row(comparison, "time").judgement == expected
    assert row(comparison, "rate").judgement == expected
    swapped = compared(library, "contiguous", "zigzag")
    assert row(swapped, "time").judgement != expected
    assert row(comparison, "tokens").judgement == "none"
    assert row(comparison, "tokens").change == "equal"


def test_a_change_carries_its_sign_and_its_share(library):
    change = row(compared(library, "zigzag", ("zigzag", "measured")), "time").change
    assert change.startswith("+")
    assert change.endswith("(+25\u00a0%)")
    waiting = row(compared(library, "zigzag", "contiguous"), "waiting")
    assert re.fullmatch("[+\u2212][0-9.]+ points", waiting.change)


def test_totals_of_different_batches_are_not_judged_but_rates_are(library):
    comparison = compared(library, "zigzag", "large")
    assert row(comparison, "time").judgement == "none"
    assert row(comparison, "forward_bytes").judgement == "none"
    assert row(comparison, "rate").judgement in ("better", "worse")
    limits = " ".join(comparison.limits)
    assert "batches differ" in limits
    assert "2 nodes of 2" in limits
    assert "tiles are not compared" in limits
    assert compare_devices(comparison) == ()


@pytest.mark.parametrize(("slow_by", "times_more"), [(1, "19"), (10, "1.93")])
def test_plans_of_different_batches_are_told_by_their_rates(
    tmp_path, small_plan, large_plan, slow_by, times_more
):
    """Rates by hand: pairs over seconds and devices."""
    seconds, rates = {}, {}
    for name, plan, factor in (("small", small_plan, 1), ("large", large_plan, slow_by)):
        trace = simulate(plan)
        times = {"start_ns": trace.start_ns * factor, "end_ns": trace.end_ns * factor}
        write_plan(tmp_path / f"{name}.dcpplan", plan, (replace(trace, **times),))
        ends, starts = times["end_ns"].tolist(), times["start_ns"].tolist()
        seconds[name] = (max(ends) - min(starts)) / 1e9
        rates[name] = sum(plan.tiles.pairs.tolist()) / seconds[name] / plan.num_devices
    found = rates["large"] / rates["small"]
    assert times_more == (f"{found:.0f}" if slow_by == 1 else f"{found:.2f}")
    for a, b, faster, slower in (("small", "large", "B", "A"), ("large", "small", "A", "B")):
        text = explain(compared(PlanLibrary(tmp_path), a, b)).text
        assert text == (
            f"A takes {duration(seconds[a])}, B {duration(seconds[b])}, for different batches; per "
            f"second and device, {faster} computes {times_more} times the pairs of {slower}."
        )


def test_the_same_batch_in_other_blocks_is_judged_but_tiles_are_not_compared(library):
    comparison = compared(library, "zigzag", "coarse")
    assert comparison.is_same_batch
    assert not comparison.has_same_blocks
    assert row(comparison, "time").judgement in ("better", "worse")
    assert [("tiles" in text) for text in comparison.limits] == [True]


def test_device_differences_are_sums_over_the_transfers(library):
    comparison = compared(library, "zigzag", "contiguous")
    deltas = {delta.heading: delta for delta in compare_devices(comparison)}
    sent = [Counter(), Counter()]
    for count, side in zip(sent, (comparison.first, comparison.second), strict=True):
        transfers = side.loaded.plan.transfers
        for device, size in zip(transfers.source, transfers.size_bytes, strict=True):
            count[int(device)] += int(size)
    assert deltas["Sent"].difference.tolist() == [sent[1][d] - sent[0][d] for d in range(4)]
    owned = [len(comparison.second.loaded.plan.local_tokens(d)) for d in range(4)]
    assert deltas["Tokens"].second.tolist() == owned


def test_a_run_differs_from_its_prediction_in_times_only(library):
    comparison = compared(library, "zigzag", ("zigzag", "measured"))
    assert [delta.heading for delta in compare_devices(comparison)] == ["Compute", "Wait"]
    names = {row.difference.name for row in compare_rows(comparison)}
    assert names == {"time", "forward", "backward", "rate", "waiting"}
    found = explain(comparison)
    assert found.text.startswith("The prediction takes 20\u00a0% less time than the run: ")
    assert found.rule.startswith("A run cannot be repeated with other links. Its events are moved")


def test_the_reason_of_a_run_is_found_in_its_events(tmp_path, small_plan):
    trace = simulate(small_plan)
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
    for name, run in (("usual", usual), ("slow", slow)):
        write_plan(tmp_path / f"{name}.dcpplan", small_plan, (run,))
    sides = ("usual", "measured"), ("slow", "measured")
    found = explain(compared(PlanLibrary(tmp_path), *sides))
    assert found.text.startswith("A takes 50\u00a0% less time than B")
    assert "B loses more to" in found.text
    assert "uneven compute (" in found.text or "more to uneven compute" in found.text


def test_the_sentence_names_the_faster_side_and_its_reason(library):
    comparison = compared(library, "zigzag", "contiguous")
    sides = {"A": comparison.first, "B": comparison.second}
    fast, slow = sorted(sides, key=lambda name: sides[name].trace.seconds())
    text = explain(comparison).text
    assert text.startswith(f"{fast} takes ")
    assert f"less time than {slow}" in text
    free = [
        predict(
            replace(
                side.loaded.plan,
                cluster=replace(
                    side.loaded.plan.cluster, intra_bytes_per_s=1e20, inter_bytes_per_s=1e20,
                ),
            )
        ).seconds
        for side in sides.values()
    ]  # fmt: skip
    assert (
        f"ith infinitely fast links A would take {duration(free[0])} and B {duration(free[1])}"
        in text
    )
    assert f"because {slow} loses more to" in text or f"reason: {slow} loses more to" in text
    same = explain(compared(library, "zigzag", "zigzag")).text
    assert same.startswith("A and B take about the same time")


def test_a_prediction_that_is_not_the_planners_is_explained_like_a_run(tmp_path, small_plan):
    trace = simulate(small_plan)
    slower = replace(trace, start_ns=trace.start_ns * 2, end_ns=trace.end_ns * 2)
    write_plan(tmp_path / "now.dcpplan", small_plan, (trace,))
    write_plan(tmp_path / "then.dcpplan", small_plan, (slower,))
    found = explain(compared(PlanLibrary(tmp_path), "now", "then"))
    assert found.text.startswith("A takes 50\u00a0% less time than B")
    assert found.rule.startswith("A run cannot be repeated")


def test_a_plan_is_predicted_under_other_conditions_once(library, monkeypatch):
    explain(compared(library, "zigzag", "contiguous"))
    monkeypatch.setattr(library_module, "find_causes", None)  # would fail if it were called
    explain(compared(library, "contiguous", "zigzag"))


def test_moved_tiles_are_those_on_another_device(library, small_plan):
    other = compared(library, "zigzag", "contiguous").second.loaded.plan
    moves = find_moves(small_plan, other)
    on = [
        dict(zip(zip(t.q_block.tolist(), t.kv_block.tolist(), strict=True), t.device, strict=True))
        for t in (small_plan.tiles, other.tiles)
    ]
    t = small_plan.tiles
    places = list(zip(t.q_block.tolist(), t.kv_block.tolist(), strict=True))
    pairs = dict(zip(places, t.pairs.tolist(), strict=True))
    assert len(moves.change) == len(on[0]) == len(on[1])
    for q, kv, change in zip(moves.q_block, moves.kv_block, moves.change, strict=True):
        at = (int(q), int(kv))
        assert change == (SAME if on[0][at] == on[1][at] else MOVED)
    assert 0 < moves.share < 1
    assert moves.fitted_pair_share <= moves.pair_share
    moved = sum(p for at, p in pairs.items() if on[0][at] != on[1][at])
    assert moves.pair_share == moved / sum(pairs.values())
    # Tiles of one plan alone are in neither sum.
    without = {places[0], places[-1]}
    keep = [at not in without for at in places]
    columns = {f.name: getattr(t, f.name) for f in fields(t)}
    fewer = replace(t, **{n: column[keep] for n, column in columns.items() if column is not None})
    common = sum(p for at, p in pairs.items() if at not in without)
    moved = sum(p for at, p in pairs.items() if at not in without and on[0][at] != on[1][at])
    assert find_moves(replace(small_plan, tiles=fewer), other).pair_share == moved / common
    nothing = find_moves(small_plan, small_plan)
    assert (nothing.share, nothing.pair_share, nothing.moved_tokens) == (0, 0, 0)


def test_tiles_of_one_plan_only_are_told_apart(small_plan):
    tiles = small_plan.tiles
    names = ("q_block", "kv_block", "kind", "pairs", "device", "division", "backward_division")
    fewer = replace(tiles, **{name: getattr(tiles, name)[10:] for name in names})
    less = replace(small_plan, tiles=fewer)
    for sides, change in (((small_plan, less), ONLY_FIRST), ((less, small_plan), ONLY_SECOND)):
        moves = find_moves(*sides)
        assert np.flatnonzero(moves.change == change).tolist() == list(range(10))
        assert moves.tiles(SAME) == len(tiles) - 10
        assert moves.pairs.tolist() == tiles.pairs.tolist()


def test_renumbering_undoes_a_permutation():
    rng = np.random.default_rng(0)
    first = rng.integers(0, 8, 500)
    weight = rng.integers(1, 9, 500)
    order = rng.permutation(8)
    numbers = fit_devices(first, order[first], weight, 8)
    assert sorted(numbers.tolist()) == list(range(8))
    assert (numbers[order[first]] == first).all()


def test_the_chart_has_one_bar_per_device_above_zero_where_b_has_more(library):
    deltas = compare_devices(compared(library, "zigzag", "contiguous"))
    figure = deltas_figure(deltas, np.array([0, 2, 4]))
    assert [len(bars.x) for bars in figure.data] == [4] * 5
    for bars, delta in zip(figure.data, deltas, strict=True):
        assert list(bars.y) == delta.difference.tolist()
        assert all((c == MORE) == (y > 0) for c, y in zip(bars.marker.color, bars.y, strict=True))
    axes = [figure.layout[f"yaxis{row or ''}"] for row in (0, 2, 3, 4, 5)]
    for axis, bars in zip(axes, figure.data, strict=True):
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


def test_the_tiles_of_both_plans_are_served(paired_folder, library, small_plan):
    client = create_app(paired_folder).server.test_client()
    a, b, coarse = (plan_key(f"{n}.dcpplan") for n in ("zigzag", "contiguous", "coarse"))
    header, columns = decode(client.get(f"/api/compare/{a}/{b}/moves").data)
    other = library.load(b).plan
    assert columns["tile_a"].tolist() == small_plan.tiles.device.tolist()
    assert columns["tile_b"].tolist() == other.tiles.device.tolist()
    moved = (small_plan.blocks.owner != other.blocks.owner).astype(int)
    assert columns["block_owner"].tolist() == moved.tolist()
    for mode in header["modes"]:
        assert columns[mode["column"]].max() < len(mode["palette"])
    assert client.get(f"/api/compare/{a}/{coarse}/moves").status_code == 404
    assert client.get(f"/api/compare/{a}/nothing/moves").status_code == 404


def test_addresses_of_comparisons_read_back():
    sides = (choice("zigzag", "measured"), choice("large"))
    assert read_choices(compare_url(*sides).partition("?")[2]) == sides
    assert read_choices("") == (None, None)


def test_a_missing_trace_is_a_message(library):
    with pytest.raises(DCPError, match="holds no measured trace, only simulated"):
        compared(library, "zigzag", ("large", "measured"))


@pytest.mark.parametrize("query", ["?a=0&b=1", "?a=%00&b=..", "?a[]=1&b=<script>"])
def test_a_hostile_address_is_a_message(library, query):
    page = text_of(render_page(library, "/compare", query))
    assert "This cannot be shown" in page or "Choose two plans" in page


def test_the_page_says_what_it_compares(library):
    query = compare_url(choice("zigzag"), choice("contiguous")).partition("?")[2]
    page = text_of(render_page(library, "/compare", query))
    for part in ("zigzag.dcpplan", "mostly because", "of the tokens have another owner"):
        assert part in page
    alone = render_page(library, "/compare", "?a=" + plan_key("large.dcpplan"))
    assert "Choose two plans" in text_of(alone)
