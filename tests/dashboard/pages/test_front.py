"""The page of a front: whose plans are on it, and what it says of those that are not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp_dashboard.library.folder import plan_key
from dcp_dashboard.library.plans import PlanLibrary
from dcp_dashboard.pages.compare import MOST_PLANS, front_page, unbeaten
from dcp_dashboard.web.app import render_page
from dcp_dsl import Spec, sample_from_argument
from dcp_planner import (
    ModelShape,
    PlanConfig,
    build_plan,
    cut_blocks,
    measure,
    predict,
    preset,
    write_plan,
)


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
