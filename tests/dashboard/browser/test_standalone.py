"""The page of a plan as one file: opened from a disk, drawn and used without any server."""

import numpy as np
from canvases import READ, centres

from dcp_dashboard.api.encoding import device_colours
from dcp_dashboard.exports.overview import standalone_page
from dcp_dashboard.library.plans import load_file


def test_the_file_draws_and_selects_on_its_own(browser, served_folder, small_plan, tmp_path):
    file = tmp_path / "small.html"
    file.write_text(standalone_page(load_file(served_folder / "small.dcpplan")), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    asked, errors = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(file.as_uri())
    page.wait_for_selector(".dcp-mask[data-state=drawn]")
    page.wait_for_selector(".dcp-view-simulated .dcp-timeline[data-state=drawn]")
    assert page.locator("canvas.dcp-pixels").count() == 4  # mask, predicted, measured, traffic
    assert page.title() == "causal · small.dcpplan · dcp-dsl"
    tiles, blocks = small_plan.tiles, small_plan.blocks
    shown = page.eval_on_selector(".dcp-mask .dcp-pixels", READ, centres(small_plan))
    assert shown == [device_colours(2, 2)[device] for device in tiles.device]
    page.click(".dcp-device-table button >> text=3")
    owned = int((blocks.end - blocks.start)[np.asarray(blocks.owner) == 3].sum())
    page.wait_for_selector(f".dcp-inspector >> text={owned:,}")
    assert [url for url in asked if not url.startswith("data:")] == [file.as_uri()]
    assert errors == []
    page.close()
