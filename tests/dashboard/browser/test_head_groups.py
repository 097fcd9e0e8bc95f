"""Groups of heads in a browser: the mask shows the one that choice, address or selection say."""

import numpy as np
import pytest
from canvases import centres

from dcp_dashboard import start_server
from dcp_dashboard.api.encoding import device_colours
from dcp_dashboard.library.folder import plan_key
from dcp_planner import write_plan


@pytest.fixture(scope="module")
def server(tmp_path_factory, grouped_plan):
    folder = tmp_path_factory.mktemp("groups")
    write_plan(folder / "grouped.dcpplan", grouped_plan)
    with start_server(folder) as running:
        yield running


def test_the_mask_shows_the_tiles_of_one_group(visit, grouped_plan):
    tiles = grouped_plan.tiles
    page = visit.open(f"plan/{plan_key('grouped.dcpplan')}/mask?group=1")
    page.wait_for_selector(".dcp-mask[data-state=drawn]")
    colours = np.array(device_colours(2, 2))[tiles.device]

    def shown(group):
        found = np.array(visit.colours_at(".dcp-mask", centres(grouped_plan)))
        return (found == colours)[tiles.group == group].all()

    assert shown(1)
    assert not shown(0)
    assert page.locator("#mask-group button").all_inner_texts() == ["Heads 1-2", "3-4"]
    assert "heads 3-4" in visit.hover_at(".dcp-mask", *centres(grouped_plan)[3])

    page.click("#mask-group button >> nth=0")
    page.wait_for_function("() => !location.search.includes('group')")
    assert shown(0)

    # a selected tile shows its group, another group has the same tile, and arrows stay in it
    other = int(np.flatnonzero(tiles.group == 1)[9])
    page.evaluate("(sel) => dcp.state.set({ sel })", {"type": "tile", "tile": other})
    page.wait_for_function("() => location.search.includes('group=1')")
    page.wait_for_selector(".dcp-inspector >> text=3-4 of 4")
    assert page.get_attribute("#mask-group button >> nth=1", "aria-checked") == "true"
    page.click("#mask-group button >> nth=0")
    tile = page.evaluate("dcp.state.get().sel.tile")
    assert tiles.group[tile] == 0
    assert (tiles.q_block[tile], tiles.kv_block[tile]) == (
        tiles.q_block[other], tiles.kv_block[other]
    )  # fmt: skip
    page.focus(".dcp-mask .dcp-marks")
    page.keyboard.press("ArrowDown")
    moved = page.evaluate("dcp.state.get().sel.tile")
    assert tiles.group[moved] == 0
    assert tiles.q_block[moved] == tiles.q_block[other] + 1

    # what the address selects is shown even where it names no group
    page = visit.open(f"plan/{plan_key('grouped.dcpplan')}/mask?sel=tile.{other}")
    page.wait_for_selector(".dcp-mask[data-state=drawn][data-group='1']")
    page.wait_for_function("() => location.search.includes('group=1')")
