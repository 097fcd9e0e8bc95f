"""Planned training steps: bars and texts follow from the groups of the file."""

import pytest

from dcp_dashboard.library.folder import plan_key
from dcp_dashboard.library.plans import PlanLibrary
from dcp_dashboard.pages.reports import documents_text, step_bars
from dcp_dashboard.web.app import render_page
from dcp_planner.step import StepFile, StepGroup


def nested() -> StepFile:
    """Two micro-batches of four devices: one document on all, then two halves; then one half."""
    groups = (
        StepGroup(0, 0, 4, 1.0, 2.0, (7,), (4000,)),
        StepGroup(0, 0, 2, 0.5, 0.5, (1, 2), (900, 100)),
        StepGroup(0, 2, 2, 0.25, 0.25, (3,), (500,)),
        StepGroup(1, 2, 2, 1.0, 1.0, (4,), (2000,)),
    )
    return StepFile("groups from 2 on", 6.0, 1.1, 1.2, 2, 2, 1, 2, groups)


def test_devices_add_up_their_groups_and_wait_for_the_slowest():
    found = [(b.micro_batch, b.devices, b.busy_s, b.waiting_s) for b in step_bars(nested())]
    assert found == [(0, "0-1", 4.0, 0.0), (0, "2-3", 3.5, 0.5), (1, "0-1", 0.0, 2.0),
                     (1, "2-3", 2.0, 0.0)]  # fmt: skip
    assert documents_text(step_bars(nested())[2]) == "nothing"


@pytest.mark.parametrize("content", ["{}", "[", '{"schema": "dcp.step/1"}'])
def test_a_file_that_is_no_step_is_said(tmp_path, content):
    (tmp_path / "x.dcpstep.json").write_text(content)
    library = PlanLibrary(tmp_path)
    page = str(render_page(library, f"/step/{plan_key('x.dcpstep.json')}", ""))
    assert "This cannot be shown" in page
    assert "x.dcpstep.json" in str(render_page(library, "/", ""))
