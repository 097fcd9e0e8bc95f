"""The page of the mask: keys go from tile to tile down to pairs; groups of heads, tables."""

import re

import numpy as np
from canvases import centres

from dcp_dashboard.api.encoding import device_colours
from dcp_dashboard.library.folder import plan_key
from dcp_planner import write_plan

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


def test_the_picture_and_the_colours_of_its_devices_fit_the_window(visit):
    page = open_mask(visit, "deep/large.dcpplan")
    for width, height in ((1440, 900), (1440, 700), (1920, 1080)):
        page.set_viewport_size({"width": width, "height": height})
        inside = "(height) => document.documentElement.scrollHeight <= height"
        page.wait_for_function(inside, arg=height)
        box = page.locator(".dcp-mask").bounding_box()
        assert box["y"] + box["height"] <= height
        assert box["width"] > 0.6 * (height - 200)
    colours = device_colours(4, 8)
    named = page.locator(".dcp-legend-devices .dcp-legend-item")
    assert named.all_inner_texts() == [str(device) for device in range(32)]
    shown = named.locator(".dcp-swatch").evaluate_all(
        "(all) => all.map((e) => e.style.backgroundColor.match(/\\d+/g).map(Number))"
    )
    assert shown == [[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in colours]
    assert page.get_attribute(".dcp-finder", "placeholder").startswith("Find ")
    named.nth(9).click()
    page.wait_for_selector(".dcp-inspector h3 >> text=Device 9")
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function("() => document.documentElement.scrollWidth <= 390")


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
    row = int(tiles.q_block[diagonal])
    begin, end = int(blocks.start[row]), int(blocks.end[row])
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

    moves = {"ArrowLeft": (row, row - 1), "ArrowDown": (row + 1, row - 1),
             "ArrowRight": (row + 1, row)}  # fmt: skip
    for key, place in moves.items():
        page.keyboard.press(key)
        assert page.evaluate("[dcp.state.get().sel.q, dcp.state.get().sel.kv]") == [*place]
    page.keyboard.press("Escape")
    page.keyboard.press("0")
    page.wait_for_function("() => location.search === ''")


def table_rows(page, table=".dcp-tile-table"):
    rows = page.locator(f"{table} tbody tr").all_inner_texts()
    return [row.split("\t") for row in rows]


def test_the_table_lists_the_tiles_of_the_selection(visit, small_plan):
    page = open_mask(visit, "small.dcpplan", "?sel=device.2")
    page.click("text=Tiles as a table")
    page.wait_for_selector(".dcp-tile-table tbody tr")
    tiles, sequence = small_plan.tiles, small_plan.blocks.sequence
    mine = np.flatnonzero(tiles.device == 2)
    order = sorted(mine.tolist(), key=lambda tile: (-int(tiles.pairs[tile]), tile))
    shown = table_rows(page)
    assert 5 < len(shown) <= len(mine)
    for row, tile in zip(shown, order, strict=False):
        q, kv = int(tiles.q_block[tile]), int(tiles.kv_block[tile])
        kind = {1: "partial", 2: "full"}[int(tiles.kind[tile])]
        divisions = [str(tiles.division[tile]), str(tiles.backward_division[tile])]
        expected = [f"{q} \u00d7 {kv}", str(sequence[q]), "2", *divisions, kind]
        assert row == [*expected, f"{tiles.pairs[tile]:,}"]
    page.click(".dcp-tile-table tbody tr >> nth=1")
    page.wait_for_selector(".dcp-tile-table tr[aria-selected=true]")
    assert page.evaluate("dcp.state.get().sel.tile") == order[1]
    page.wait_for_selector(f".dcp-inspector >> text={tiles.pairs[order[1]]:,} of")
    assert table_rows(page) == shown  # the list stays while one goes through it


def test_sequences_stand_in_a_table_by_the_names_of_their_rows(visit, small_plan):
    page = open_mask(visit, "small.dcpplan")
    page.click("text=Sequences as a table")
    page.wait_for_selector(".dcp-sequence-table tbody tr")
    sequence = small_plan.blocks.sequence[small_plan.tiles.q_block]
    for number, (row, tokens) in enumerate(
        zip(table_rows(page, ".dcp-sequence-table"), (1000, 560, 488), strict=True)
    ):
        mine = sequence == number
        share = 100 * small_plan.tiles.pairs[mine].sum() / small_plan.tiles.pairs.sum()
        devices = set(small_plan.tiles.device[mine])
        named = [str(number), small_plan.sequence_names[number], f"{tokens:,}"]
        assert row == [*named, f"{share:.3g}\u00a0%", str(len(devices))]
    assert page.locator(".dcp-sequence-table script").count() == 0
    page.click(".dcp-sequence-table tbody tr >> nth=1")
    page.wait_for_selector(".dcp-inspector h3 >> text='Sequence 1'")
    page.wait_for_selector(".dcp-sequence-table tr[aria-selected=true] >> text=alert")


def test_the_table_holds_every_tile_in_any_order(visit, large_plan):
    page = open_mask(visit, "deep/large.dcpplan")
    page.click("text=Tiles as a table")
    page.wait_for_selector(".dcp-tile-table tbody tr")
    number = len(large_plan.tiles)
    assert page.locator(".dcp-tile-table tbody tr").count() < 30
    cut = "(all) => all.filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.innerText)"
    assert page.eval_on_selector_all(".dcp-tile-table :is(th, td)", cut) == []
    full = int((large_plan.tiles.kind == 2).sum())
    told = page.locator(".dcp-tile-table .dcp-choice button").all_inner_texts()
    assert told == [f"{number:,} tiles", f"{full:,} full", f"{number - full:,} partial"]
    page.click(".dcp-tile-table th >> text=Device")
    page.wait_for_selector(".dcp-tile-table th[aria-sort=ascending] >> text=Device")
    page.locator(".dcp-tile-table .dcp-virtual-scroll").evaluate(
        "(box) => { box.scrollTop = box.scrollHeight; }"
    )
    page.wait_for_selector(f".dcp-tile-table tr[aria-rowindex='{number + 1}']")
    assert {row[2] for row in table_rows(page)} == {"31"}
    page.click(".dcp-tile-table .dcp-choice >> text=partial")
    page.wait_for_selector(f".dcp-tile-table [aria-rowcount='{number - full + 1}']")
    assert {row[5] for row in table_rows(page)} == {"partial"}
    assert page.get_attribute("#mask-kind [data-value=partial]", "aria-checked") == "true"
    page.click("#mask-kind [data-value=all]")
    page.wait_for_selector(f".dcp-tile-table [aria-rowcount='{number + 1}']")


def test_the_mask_shows_the_tiles_of_one_group(visit, grouped_plan, tmp_path):
    write_plan(tmp_path / "grouped.dcpplan", grouped_plan)
    with visit.serving(tmp_path):
        see_groups(visit, grouped_plan)


def see_groups(visit, grouped_plan):
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
