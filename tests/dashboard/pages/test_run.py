"""Steps of a run, thinned for a chart, and what a browser may send about them."""

import json

import numpy as np
import pytest
from dash import no_update

from dcp_dashboard.pages.run import Pair, extremes, read_click, read_zoom
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
