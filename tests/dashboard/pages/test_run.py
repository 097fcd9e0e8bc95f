"""Steps of a run, thinned for a chart, and what a browser may send about them."""

import json

import numpy as np
import pytest
from dash import no_update

from dcp_dashboard.library.folder import PlanEntry
from dcp_dashboard.library.index import RunLine, read_run
from dcp_dashboard.pages.run import (
    Pair,
    extremes,
    pair_sentence,
    read_click,
    read_zoom,
    run_figure,
    run_sentence,
)
from dcp_runtime import RunHistory


@pytest.mark.parametrize("count", [0, 1, 799, 800, 801, 1_000, 12_345])
def test_thinned_values_keep_the_least_and_the_most_of_every_stretch(count):
    generator = np.random.default_rng(count)
    values = generator.normal(size=count)
    values[generator.random(count) < 0.2] = np.nan
    kept = extremes(values, 800)
    assert len(kept) <= max(800, 0)
    assert (np.diff(kept) > 0).all()
    if count <= 800:
        assert kept.tolist() == list(range(count))
        return
    width = -(-count // 400)
    for start in range(0, count, width):
        stretch = values[start : start + width]
        known = stretch[~np.isnan(stretch)]
        shown = values[kept[(kept >= start) & (kept < start + width)]]
        assert not np.isnan(shown).any()
        if len(known):
            assert (shown.min(), shown.max()) == (known.min(), known.max())


def test_values_that_nobody_knows_are_no_points():
    assert extremes(np.full(5_000, np.nan), 800).tolist() == []


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ({"xaxis.range[0]": 5, "xaxis.range[1]": 1}, [1.0, 5.0]),
        ({"xaxis2.autorange": True}, None),
        ({"xaxis.range[0]": "a", "xaxis.range[1]": 1}, None),
        ({"xaxis.range[0]": float("nan"), "xaxis.range[1]": 1}, None),
        ({"autosize": True}, no_update),
        ("text", no_update),
        (None, no_update),
    ],
)
def test_a_zoom_is_read_whatever_is_sent(sent, read):
    assert read_zoom(sent) == read


@pytest.mark.parametrize(
    "sent", [None, {}, {"points": []}, {"points": [{"x": "9"}]}, {"points": [{"x": 1e300}]}]
)
def test_what_is_no_click_is_none(sent):
    assert read_click(sent) is None


def history(path, seconds, **more):
    lines = [json.dumps({"step": step, "step_s": value} | more) for step, value in seconds.items()]
    path.write_text("".join(f"{line}\n" for line in lines))
    found = RunHistory(path)
    found.update()
    return found


def test_medians_and_steps_of_two_runs_are_compared_where_both_have_a_step(tmp_path):
    before, after = {0: 1.0, 1: 2.0, 2: 1.0, 3: 4.0, 9: 50.0}, {1: 2.5, 2: 1.25, 3: 1.0, 4: 7.0}
    first = history(tmp_path / "before", before, exposed_share=0.5, queued=3)
    pair = Pair.of(first, history(tmp_path / "after", after, exposed_share=0.25))
    assert pair.steps.tolist() == [1, 2, 3]
    assert pair.medians("step_s") == (2.0, 1.25)
    assert pair.medians("exposed_share") == (0.5, 0.25)
    assert pair.medians("queued") is None  # the second run does not say
    assert pair.most_different() == [3, 1, 2]
    assert pair.most_different(most=1) == [3]
    assert Pair.of(first, first).most_different() == []


def figure_of(path, seconds, zoomed=None, **more):
    run = history(path, seconds, **more)
    figure = run_figure([(PlanEntry("k", path.name, path, 1, 2), run)], zoomed)
    return figure.to_plotly_json()["layout"], figure.data


def test_first_steps_that_compile_do_not_set_the_scale_and_later_slow_ones_do(tmp_path):
    usual = dict.fromkeys(range(3, 50), 1.0)
    layout, _ = figure_of(tmp_path / "a", {0: 40.0, 1: 30.0, 2: 1.0} | usual)
    assert layout["yaxis"]["range"] == pytest.approx([0, 1.1])
    layout, _ = figure_of(tmp_path / "b", {0: 40.0} | usual | {30: 9.5})
    assert layout["yaxis"]["range"] == pytest.approx([0, 1.1 * 9.5])
    for name, seconds in (("c", {0: 1.2} | usual), ("d", {0: 40.0, 1: 30.0}), ("e", {})):
        layout, _ = figure_of(tmp_path / name, seconds)
        assert "range" not in layout["yaxis"]  # nothing to cut, or nothing to hold it against
    layout, _ = figure_of(tmp_path / "f", {0: 40.0, 1: 30.0} | usual, zoomed=[20, 30])
    assert "range" not in layout["yaxis"]


@pytest.mark.parametrize(("most", "ticks"), [(0, 1), (1, 1), (3, 1), (4, 1), (7, 2), (63, 16)])
def test_ranks_have_whole_ticks_and_dots_that_one_can_hit(tmp_path, most, ticks):
    layout, lines = figure_of(tmp_path / "log", {0: 1.0, 1: 1.0}, slowest=most, queued=most)
    for axis in ("yaxis4", "yaxis5"):
        assert (layout[axis]["tick0"], layout[axis]["dtick"]) == (0, ticks)
        assert layout[axis]["range"][0] < 0
        assert layout[axis]["range"][1] > most
    (dots,) = (line for line in lines if line.mode == "markers" and line.name == "rank")
    assert dots.marker.size >= 6
    assert layout["hovermode"] == "x"  # a click beside a line means its step


def test_a_run_begins_with_a_sentence(tmp_path):
    seconds = {step: 2.0 if step < 80 else 1.0 for step in range(200)}
    more = {"measured_s": 0.5, "predicted_s": 0.25, "exposed_share": 0.2}
    text = run_sentence(history(tmp_path / "a", seconds, slowest=3, why="rank 3 is slow", **more))
    assert text.replace("\u00a0", " ") == (
        "A step takes 1 s, the median of the last 100. Attention of the slowest rank takes 500 ms, "
        "2.00 times the predicted 250 ms. Rank 3 is slowest in 100 of 100 steps: rank 3 is slow. "
        "The rank that waits longest waits for 20 % of attention's time."
    )
    assert run_sentence(history(tmp_path / "b", {})) == "The run has written no step yet."
    assert run_sentence(history(tmp_path / "c", {7: None})) == "Step 7 is the newest."


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (2.0, 1.0, "A step takes 2 s in A and 1 s in B: 2.00\u00d7 as fast in B. "
                   "Attention takes 500 ms and 500 ms."),
        (1.0, 1.5, "A step takes 1 s in A and 1.5 s in B: 1.50\u00d7 as fast in A. "
                   "Attention takes 500 ms and 500 ms."),
        (1.0, 1.01, "A step takes 1 s in A and 1.01 s in B. Attention takes 500 ms and 500 ms."),
        (None, 1.0, "The two runs have no step time in common."),
    ],
)  # fmt: skip
def test_two_runs_begin_with_which_is_faster(tmp_path, before, after, told):
    runs = [
        history(tmp_path / name, {1: seconds, 2: seconds}, measured_s=0.5)
        for name, seconds in (("a", before), ("b", after))
    ]
    assert pair_sentence(Pair.of(*runs)).replace("\u00a0", " ") == told


def test_the_list_reads_the_newest_steps_of_a_log(tmp_path):
    path = tmp_path / "run.dcprun.jsonl"
    history(path, {step: 9.0 if step < 4_000 else 1.5 for step in range(5_000)}, measured_s=0.5)
    assert path.stat().st_size > 2 * 65_536
    assert read_run(path) == RunLine(4_999, 1.5, 0.5)
    path.write_text('{"step": 3}\n{"step": "x"}\n[1]\n{"step": 4, "step_s": "2"}\n{"st')
    assert read_run(path) == RunLine(4, None, None)
    assert read_run(tmp_path / "gone") == RunLine(None, None, None)
