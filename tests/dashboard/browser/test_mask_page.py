"""The page of the mask: keys move from tile to tile, and down to pairs against the dense mask."""

import re

import numpy as np

from dcp_dashboard.api.palette import device_colours
from dcp_dashboard.library.folder import plan_key

BACKGROUND = (0xF3, 0xF4, 0xF7)
HOLLOW = 0.2


def open_mask(visit, name, query=""):
    page = visit.open(f"plan/{plan_key(name)}/mask{query}")
    page.wait_for_selector(".dcp-mask[data-state=drawn]")
    return page


def hollow(colour):
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    mixed = [a + (b - a) * HOLLOW for a, b in zip(BACKGROUND, parts, strict=True)]
    return "#" + "".join(f"{int(np.floor(value + 0.5)):02x}" for value in mixed)


def test_enter_zooms_to_a_tile_until_its_pairs_are_seen(visit, large_plan):
    page = open_mask(visit, "deep/large.dcpplan")
    tiles, blocks = large_plan.tiles, large_plan.blocks
    page.focus(".dcp-mask .dcp-marks")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"sel=tile\.(\d+)"), wait_until="commit")
    diagonal = int(np.flatnonzero(tiles.q_block == tiles.kv_block)[40])
    page.evaluate("(sel) => dcp.state.set({ sel })", {"type": "tile", "tile": diagonal})
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"tokens=(\d+)-(\d+)-(\d+)-(\d+)"), wait_until="commit")
    page.wait_for_selector(".dcp-mask[data-detail=shown]")
    begin, end = (
        int(blocks.start[tiles.q_block[diagonal]]),
        int(blocks.end[tiles.q_block[diagonal]]),
    )
    side = (end - begin) * 1.2
    left = (begin + end - side) / 2
    rng = np.random.default_rng(0)
    queries, keys = rng.integers(begin, end, (2, 200))
    points = [((k + 0.5 - left) / side, (q + 0.5 - left) / side)
              for q, k in zip(queries.tolist(), keys.tolist(), strict=True)]  # fmt: skip
    colour = device_colours(4, 8)[tiles.device[diagonal]]
    # one pixel is 1.2 pairs: those next to the diagonal may fall on either side
    clear = np.abs(queries - keys) > 2
    shown = np.array(visit.colours_at(".dcp-mask", points))
    expected = np.where(queries >= keys, colour, hollow(colour))
    assert (shown == expected)[clear].all()
    assert 20 < (queries >= keys)[clear].sum() < 180

    for key, axis, step in (
        ("ArrowLeft", "kv", -1),
        ("ArrowDown", "q", 1),
        ("ArrowRight", "kv", 1),
    ):
        before = page.evaluate("dcp.state.get().sel")
        page.keyboard.press(key)
        after = page.evaluate("dcp.state.get().sel")
        if key == "ArrowLeft":
            before = {"q": int(tiles.q_block[diagonal]), "kv": int(tiles.kv_block[diagonal])}
        assert after[axis] == before[axis] + step
        assert after[{"q": "kv", "kv": "q"}[axis]] == before[{"q": "kv", "kv": "q"}[axis]]
    page.keyboard.press("Escape")
    page.keyboard.press("0")
    page.wait_for_function("() => location.search === ''")


def test_the_table_lists_the_tiles_of_the_selection(visit, small_plan):
    page = open_mask(visit, "small.dcpplan", "?sel=device.2")
    page.click("text=Tiles as a table")
    page.wait_for_selector(".dcp-tile-table tbody tr")
    tiles = small_plan.tiles
    mine = np.flatnonzero(tiles.device == 2)
    rows = page.locator(".dcp-tile-table tbody tr")
    assert rows.count() == len(mine)
    shown = [int(row.split("\t")[-1].replace(",", "")) for row in rows.all_inner_texts()]
    assert shown == sorted(tiles.pairs[mine].tolist(), reverse=True)
    page.click(".dcp-tile-table tbody button >> nth=1")
    page.wait_for_selector(".dcp-tile-table tr[aria-selected=true]")
    tile = page.evaluate("dcp.state.get().sel.tile")
    assert tiles.device[tile] == 2
    page.wait_for_selector(f".dcp-inspector >> text={tiles.pairs[tile]:,} of")
    assert rows.count() == len(mine)  # the list stays while one goes through it
