"""Steps of a run, thinned for a chart, and what a browser may send about them."""

import numpy as np
import pytest
from dash import no_update

from dcp_dashboard.library.plans import PlanLibrary
from dcp_dashboard.pages.routes import render_page
from dcp_dashboard.pages.run import extremes, read_click, read_zoom


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


def test_a_run_that_is_not_there_is_a_page_that_says_so(tmp_path):
    shown = str(render_page(PlanLibrary(tmp_path), "/run/abc", ""))
    assert "expected the key of a .dcprun.jsonl file" in shown
